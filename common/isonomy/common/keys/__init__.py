"""Who a party is: signing and sealing keys, the card that others pin, TLS certificates.

`party` and `identity` hold a party's keys, `sealing` is where a frame is sealed and opened,
`certificates` makes and renews TLS material. Any room above may import it.
"""
