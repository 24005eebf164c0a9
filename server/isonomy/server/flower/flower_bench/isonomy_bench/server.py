"""Sends the payload and takes the time."""

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from isonomy.server.flower.measure import send_and_time

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Time some round trips, one after the other."""
    send_and_time(grid, int(context.run_config["legs"]), int(context.run_config["bytes"]))
