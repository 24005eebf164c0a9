"""What every other room stands on: errors and exit codes, canonical JSON and hashes, checks of
fields, files written whole, logs, command lines.

Everybody may import it; it imports nothing of Isonomy. `errors` has the whole tree of exceptions
and the codes under which they travel, `canonical` the bytes that are hashed and signed.
"""
