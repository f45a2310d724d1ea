"""The S3 gateway: S3's operations over branches, on the server's own port or a separate one.

    AWS_ENDPOINT_URL=http://127.0.0.1:8000 aws s3 ls s3://lake/main/tables/

`gateway.py` identifies the caller and the operation of a request, and calls a handler in `buckets.py` or `objects.py`.
`requests` reads and checks a request: signature, body, digests, headers. `documents.py` reads and writes XML.
`operations.py` is the table of operations. The gateway refuses any other operation by name.

Import other files by their names: the server's state holds the options, and the gateway holds the state.
"""
