"""Make the key of Signature Version 4. It signs requests to AWS and verifies requests to our S3 gateway."""

from __future__ import annotations

import hmac

__all__ = ["aws_signing_key"]


def aws_signing_key(secret: str, scope: str) -> bytes:
    """Return the signing key for a secret and a scope: date/region/service/aws4_request. Costs four HMACs."""
    key = ("AWS4" + secret).encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    return key
