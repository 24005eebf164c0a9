"""One Isonomy session as a Flower app: a relay on the server, a bridge on each node."""
