"""Sends back what came."""

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

app = ClientApp()


@app.query("echo")
def echo(message: Message, context: Context) -> Message:
    """Return the payload as it is."""
    return Message(content=message.content, reply_to=message)
