"""The command lines of the company: `isonomy` and `isonomy-company`."""
