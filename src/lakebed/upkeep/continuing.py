"""Continuation tokens: where a reading goes on, sealed so that nobody can make one up.

A token decides what is not read again, and what is not read is not kept: one that says "at the end" would let a sweep
take what is staged. So it carries a keyed digest (HMAC-SHA-256) over the run, who reads it, and the cursor. The key is
the secret in the run's record, made anew for each attempt: a token of another run or attempt is none.

Who reads it: our own collectors, or a client of the contract, who may do less. So nobody goes on, through the
contract's route, with a run that was not begun there.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from enum import StrEnum
from typing import Final

import msgspec

from lakebed.base import Ids, RunId
from lakebed.versions import RunRecord

from .errors import BadContinuation
from .reading import Cursor

_DIGEST_BYTES: Final = 32
_SECRET_BITS: Final = 256


class Reader(StrEnum):
    COLLECTOR = "collector"
    CONTRACT = "contract"


def fresh_secret(ids: Ids) -> str:
    """For a run's record."""
    return f"{ids.bits(_SECRET_BITS):064x}"


class Continuations:
    """The tokens of one run and reader. A run of an earlier release has no secret, and no token of it is accepted."""

    def __init__(self, run_id: RunId, record: RunRecord, reader: Reader) -> None:
        self._run_id = run_id
        self._secret = record.secret
        self._reader = reader

    def token(self, cursor: Cursor) -> str:
        data = msgspec.msgpack.encode(cursor)
        return base64.urlsafe_b64encode(self._digest(data) + data).decode()

    def cursor(self, token: str) -> Cursor:
        """
        Raises:
            BadContinuation: not a token that was given to this reader for this run, or one of an earlier attempt.
        """
        try:
            sealed = base64.b64decode(token, altchars=b"-_", validate=True)
        except ValueError:
            sealed = b""
        data = sealed[_DIGEST_BYTES:]
        if not self._secret or not hmac.compare_digest(sealed[:_DIGEST_BYTES], self._digest(data)):
            raise BadContinuation(
                f"this is no continuation token of run {self._run_id}, or one of an earlier attempt: begin again",
                run_id=self._run_id,
            )
        return msgspec.msgpack.decode(data, type=Cursor)

    def _digest(self, data: bytes) -> bytes:
        sealed = msgspec.msgpack.encode((self._run_id, self._reader.value, data))
        return hmac.digest(self._secret.encode(), sealed, hashlib.sha256)
