"""Make the key of Signature Version 4, with which requests to AWS are signed and those to our S3 door verified."""

from __future__ import annotations

import hmac


def aws_signing_key(secret: str, scope: str) -> bytes:
    """`scope` is date/region/service/aws4_request: what the key is good for. Costs four HMACs."""
    key = ("AWS4" + secret).encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    return key
