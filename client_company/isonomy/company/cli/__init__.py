"""The commands `isonomy` (main.py) and `isonomy-company` (company.py).

They read arguments, call the rooms below and print. Heavy libraries are imported inside the
commands, so that `--help` is quick. Nothing imports this room.
"""
