"""Isonomy as a Flower app: tickets travel as Flower messages, everything else through the relay.

`flower` calls Flower's commands, `server_app` conducts a session in the ServerApp, `client_app`
passes the ticket on in each node. `flower_app` and `flower_bench` are the bundles that Flower
ships; `measure` times Flower messages.
"""
