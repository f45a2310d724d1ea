"""Continuation tokens: where a reading goes on, sealed so that no client can make one up.

A token decides what is not read again, and what is not read is not kept: one that says "at the end" would let a sweep
take what is staged. So it carries a keyed digest (HMAC-SHA-256) over the run, who reads it, and the cursor. The key is
the secret in the run's record, made anew for each attempt: a token of another run or attempt is none.

Who reads it: our own collectors, or a client of the contract, who may do less. So no client goes on, through the
contract's route, with a run that was not begun there.

A restore has no run of its own, and so its tokens are sealed with a key of the server (restoring.py).
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from enum import StrEnum
from typing import Final

import msgspec

from lakebed.base import Ids, RunId
from lakebed.gc.live.errors import BadContinuation
from lakebed.versions import RunRecord

from .reading import Cursor

_DIGEST_BYTES: Final = 32
_SECRET_BITS: Final = 256


class Reader(StrEnum):
    COLLECTOR = "collector"
    CONTRACT = "contract"


def fresh_secret(ids: Ids) -> str:
    """For a run's record."""
    return f"{ids.bits(_SECRET_BITS):064x}"


class Seal:
    """A keyed digest, in front of what it is of, in base64. It is good for what it was `bound` to, and nothing else."""

    def __init__(self, key: bytes, *bound: str) -> None:
        self._key = key
        self._bound = bound

    def seal(self, data: bytes) -> str:
        return base64.urlsafe_b64encode(self._digest(data) + data).decode()

    def open(self, token: str) -> bytes | None:
        """None: not sealed with this key, or bound to something else."""
        try:
            sealed = base64.b64decode(token, altchars=b"-_", validate=True)
        except ValueError:
            return None
        data = sealed[_DIGEST_BYTES:]
        return data if hmac.compare_digest(sealed[:_DIGEST_BYTES], self._digest(data)) else None

    def _digest(self, data: bytes) -> bytes:
        return hmac.digest(self._key, msgspec.msgpack.encode((*self._bound, data)), hashlib.sha256)


class Continuations:
    """The tokens of one run and reader. A run of an earlier release has no secret, and no token of it is accepted."""

    def __init__(self, run_id: RunId, record: RunRecord, reader: Reader) -> None:
        self._run_id = run_id
        self._has_secret = bool(record.secret)
        self._seal = Seal(record.secret.encode(), run_id, reader.value)

    def token(self, cursor: Cursor) -> str:
        return self._seal.seal(msgspec.msgpack.encode(cursor))

    def cursor(self, token: str) -> Cursor:
        """
        Raises:
            BadContinuation: not a token that was given to this reader for this run, or one of an earlier attempt.
        """
        data = self._seal.open(token) if self._has_secret else None
        if data is None:
            raise BadContinuation(
                f"this is no continuation token of run {self._run_id}, or one of an earlier attempt: begin again",
                run_id=self._run_id,
            )
        return msgspec.msgpack.decode(data, type=Cursor)
