"""A party's Flower node, and the local socket between it and the party's daemon.

`node` has the node's key and command line, `_process` runs it. `bridge` is the socket's end in the
node, `bridge_server` the daemon's, `attendance` turns a ticket that comes in there into a session.
The node is trusted with nothing but tickets.
"""
