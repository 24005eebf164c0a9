"""`isonomy-regulator console`: the officer's day in a browser on this machine.

A process of its own, under the account of the officer's commands, that calls the same functions as
they do. It reaches the ledger through the daemon's officer socket (serving/officer.py) and keeps no
secret between two requests: whoever acts types a passphrase, each time. Only the command enters
here, by `serve`.

| module | what it does |
|---|---|
| serve | starts it; hands out one-time addresses |
| guard | what every request passes first: host, origin, size; headers of every response |
| access | one-time addresses, sessions, the idle lock |
| forms | forms and uploads, which lie in a private folder until they are used |
| officers | who may act here, and the proof of it |
| call | one request on its way to a page: session, CSRF, errors |
| render | templates, the catalogue of texts (texts.toml), pictures |
| today, inbox, live, books, reports, people, upkeep | the pages |
"""
