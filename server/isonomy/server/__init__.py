"""The server: lets the parties meet and is trusted with nothing."""
