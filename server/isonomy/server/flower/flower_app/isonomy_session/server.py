"""The server's end: the relay and one message per party."""

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from isonomy.server.flower.server_app import conduct

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run one session to its end."""
    settings = context.run_config
    conduct(grid, str(settings["plan"]), verbose=bool(settings["verbose"]))
