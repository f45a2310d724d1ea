"""The S3 gateway: S3's operations over branches, on the server's own port or one of its own.

A request goes through `gateway.py` (who asks, for what, may they) to a handler in `buckets.py` or `objects.py`.
`signatures.py`, `bodies.py`, `checksums.py` and `documents.py` are what S3 has of its own: signatures, the frame and
the digests of bodies, XML. `operations.py` is the table; what stands in none of its rows is refused by name.

Other files are imported by their names: the server's state holds the options, and the gateway holds the state.
"""
