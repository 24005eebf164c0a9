"""A party's Flower node, and the local socket between it and the party's daemon.

`command` has the commands, `_supernode` is the node, `client_app` what it does with a message,
`node` finds ports. `bridge` is the socket's end in the node, `bridge_server` the daemon's,
`attendance` turns a ticket that comes in there into a session. The node is trusted with nothing but
tickets. The server's operator reaches the server by such a socket, too.
"""
