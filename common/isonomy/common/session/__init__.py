"""A party's connection to the others through the relay: order, acknowledgement, resumption.

`connection.Session` is the face of this room, with `tickets` (how a party is admitted) and
`links.Parcel` (what is sent and received). Behind it: `_mailbox` and `links` decide what the bytes
mean, `stream` keeps a gRPC stream up, `_presence` notices who stays away, `_resume` stores the
secret for coming back, `tls_channels` makes TLS credentials. Nothing here knows what a query is.
"""
