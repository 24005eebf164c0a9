"""The control plane: Flower, of which parties reach only what their nodes need.

`serve` is the server's process, `operator` asks it, `superlink` is Flower in process, `_door` the
way in, `server_app` conducts a session, `measure` times Flower's messages.
"""
