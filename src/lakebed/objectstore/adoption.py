"""The adoption of another server's namespace: a log in the namespace itself. Only one writer can write each line.

    _lakefs/old-server/00000001.json     kept: a repository of ours claims it, and deletes no object from before
    _lakefs/old-server/00000002.json     adopted, as a person asked: plans include objects from before
    _lakefs/old-server/00000003.json     final: applies may delete objects from before; no line follows

The last line holds. Going back from adopted to kept writes a line, too. A namespace without the log was always ours.
The log is not in the key-value store: so an older backup of the records does not undo it, and every sweep reads the
same log.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

from lakebed.base import Conflict, Corrupt

from .store import ObjectExists, ObjectStore

__all__ = [
    "ADOPTION_PREFIX",
    "Adoption",
    "AdoptionMoved",
    "AdoptionState",
    "AdoptionUnreadable",
    "read_adoption",
    "write_adoption",
]


ADOPTION_PREFIX: Final = "_lakefs/old-server/"
_FORMAT: Final = 1


class AdoptionState(StrEnum):
    KEPT = "kept"
    ADOPTED = "adopted"
    FINAL = "final"


class AdoptionMoved(Conflict):
    """Another process wrote the next line meanwhile."""


class AdoptionUnreadable(Corrupt):
    """A line of the log is of another release, or is damaged: objects from before are kept."""


class Adoption(msgspec.Struct, frozen=True, kw_only=True):
    """One line. `marker` is that of the claiming repository. `server` is the old server's address.

    `compared_ms` is the store's clock before the last migration began that ended with equal listings; 0 before the
    first.
    """

    marker: str
    state: AdoptionState
    server: str
    compared_ms: int = 0
    by: str = ""
    format: int = _FORMAT
    number: int = 1

    @property
    def may_delete(self) -> bool:
        """Return whether collections may delete objects from before the claim."""
        return self.state is AdoptionState.FINAL


async def read_adoption(store: ObjectStore) -> Adoption | None:
    """Return the last line, or None if the namespace was always ours. Costs a listing, and a get if there is a log.

    Raises:
        AdoptionUnreadable: this release cannot read the line.
    """
    last = ""
    async for page in store.list(ADOPTION_PREFIX):
        last = page[-1].key if page else last
    if not last:
        return None
    try:
        line = msgspec.json.decode(await store.get(last), type=Adoption)
    except msgspec.DecodeError as error:
        raise AdoptionUnreadable(f"{store.uri}/{last} cannot be read", key=last) from error
    if line.format != _FORMAT or last != _key(line.number):
        raise AdoptionUnreadable(f"{store.uri}/{last} is of another release", key=last)
    return line


async def write_adoption(store: ObjectStore, line: Adoption, *, after: Adoption | None) -> Adoption:
    """Write the next line, if `after` is still the last line.

    Raises:
        AdoptionMoved: another line is the last, or the last is final.
    """
    if after is not None and after.state is AdoptionState.FINAL:
        raise AdoptionMoved("the adoption is final", namespace=store.uri)
    line = msgspec.structs.replace(line, number=1 if after is None else after.number + 1)
    try:
        await store.put(_key(line.number), msgspec.json.encode(line), if_absent=True)
    except ObjectExists as error:
        raise AdoptionMoved(
            "another process changed the adoption meanwhile: look again", namespace=store.uri
        ) from error
    return line


def _key(number: int) -> str:
    return f"{ADOPTION_PREFIX}{number:08d}.json"
