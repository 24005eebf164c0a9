"""The server: lets the parties meet and is trusted with nothing.

`relay` carries and adds ciphertexts, `flower` lets nodes in and conducts runs, `config` is
server.toml, `cli` the command `isonomy-server`. It imports `common` and no other role.
"""
