"""Who a party is: signing and sealing keys, the card that others pin, TLS certificates.

`party` and `identity` hold a party's keys, `boxes` seals something for somebody outside a session
(session/sealed_links.py seals frames), `certificates` makes and renews TLS material, `rotation`
leads from an old card to the new one. Any room above may import it.
"""
