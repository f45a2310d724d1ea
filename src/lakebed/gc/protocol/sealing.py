"""JSON that says itself whether it is whole: `{"format": 1, "sha256": "<64 hex digits>", "<name>": {…}}`.

The digest is over the bytes of the value that is sealed. Whoever reads it believes all of it or nothing.
"""

from __future__ import annotations

import hashlib
from typing import TypeVar

import msgspec

from .manifests import BadInput

T = TypeVar("T")


class _Envelope(msgspec.Struct, frozen=True, kw_only=True):
    format: int
    sha256: str


def seal(value: msgspec.Struct, *, name: str, format_number: int) -> bytes:
    body = msgspec.json.encode(value)
    digest = hashlib.sha256(body).hexdigest()
    return msgspec.json.encode({"format": format_number, "sha256": digest, name: msgspec.Raw(body)})


def unseal(data: bytes, kind: type[T], *, name: str, what: str, format_number: int) -> T:
    """
    Raises:
        BadInput: unreadable, of another format, or changed. Its message says `what`.
    """
    try:
        envelope = msgspec.json.decode(data, type=_Envelope)
        if envelope.format != format_number:
            raise BadInput(f"the {what} has the format {envelope.format}, not {format_number}", input=name)
        body = msgspec.json.decode(data, type=dict[str, msgspec.Raw]).get(name, msgspec.Raw())
        if hashlib.sha256(bytes(body)).hexdigest() != envelope.sha256:
            raise BadInput(f"the {what} contradicts its digest", input=name)
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadInput(f"the {what} is unreadable: {error}", input=name) from error
