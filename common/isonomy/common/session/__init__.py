"""A party's connection to the others through the relay: order, acknowledgement, resumption.

`connection.Session` is the face of this room, with `tickets` (how a party is admitted) and
`sealed_links.Parcel` (what is sent and received). Behind it: `sealed_links` numbers, seals and
opens frames, `stream` keeps a gRPC stream up, `_resume` stores the secret for coming back,
`tls_channels` makes TLS credentials. Nothing here knows what a query is.
"""
