"""A party's end: hands the ticket to the daemon next door and waits."""

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from isonomy.server.flower.client_app import pass_on

app = ClientApp()


@app.train("session")
def session(message: Message, context: Context) -> Message:
    """Answer with the daemon's summary, or with a number that says what went wrong."""
    return pass_on(message, dict(context.node_config))
