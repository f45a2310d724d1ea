"""Groups, or policies, by their id: the stored ones, and among them the built-in ones (built_in.py).

Every read goes to the store; only `Authorizer` caches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

import msgspec

from lakebed.auth.accounts import ID, Accounts
from lakebed.auth.records import PARTITION, GroupRecord, PolicyRecord, decode, encode
from lakebed.base import AlreadyExists, Denied, Invalid, NotFound
from lakebed.kv import PredicateFailed, Store, scan_prefix

__all__ = ["BuiltIn", "InvalidRole"]

ID_BYTES_MAX: Final = 256

A = TypeVar("A")
R = TypeVar("R", GroupRecord, PolicyRecord)


class BuiltIn(Denied):
    """The group or policy comes with the release, and cannot be changed."""


class InvalidRole(Invalid):
    """The id or access level breaks a rule that the message states."""


@dataclass(frozen=True, slots=True)
class Register(Generic[R]):
    """Keep groups or policies by id. Errors have the types `taken` and `unknown`, and use the word `noun`.

    Built-in ones are as old as the installation.
    """

    store: Store
    accounts: Accounts
    kind: type[R]
    noun: str
    keys: bytes
    built_in: Mapping[str, R]
    taken: type[AlreadyExists]
    unknown: type[NotFound]

    async def add(self, record: R) -> R:
        """Store a new record.

        Raises:
            InvalidRole: the id breaks a rule.
            AlreadyExists: of the type `taken`: the id is taken.
        """
        key = self._key(record.id)
        if record.id in self.built_in:
            raise self.taken(f"{self.noun} {record.id!r} is built in", **{self.noun: record.id})
        try:
            await self.store.set_if(PARTITION, key, encode(record), None)
        except PredicateFailed as error:
            raise self.taken(f"{self.noun} {record.id!r} exists", **{self.noun: record.id}) from error
        return record

    async def get(self, id_: str) -> R:
        """Return a record, stored or built in.

        Raises:
            InvalidRole: the id breaks a rule.
            NotFound: of the type `unknown`: there is none.
        """
        if id_ in self.built_in:
            return msgspec.structs.replace(self.built_in[id_], created_ms=await self.accounts.installed_ms())
        held = await self.store.get(PARTITION, self._key(id_))
        if held is None:
            raise self._missing(id_)
        return decode(self.kind, held.value)

    async def list(self, *, prefix: str, after: str, limit: int) -> tuple[Sequence[R], bool]:
        """List records, ascending by id, and return whether more follow."""
        installed_ms = await self.accounts.installed_ms()
        found = {id_: msgspec.structs.replace(record, created_ms=installed_ms) for id_, record in self.built_in.items()}
        async for _, value in scan_prefix(self.store, PARTITION, self.keys):
            record = decode(self.kind, value)
            found[record.id] = record
        return page(found, prefix=prefix, after=after, limit=limit)

    async def change(self, id_: str, change: Callable[[R], R]) -> R:
        """Replace a stored record.

        Raises:
            BuiltIn, InvalidRole.
            NotFound: of the type `unknown`: there is none.
            PredicateFailed: another request changed it at the same time.
        """
        refuse_built_in(id_, self.built_in)
        key = self._key(id_)
        held = await self.store.get(PARTITION, key)
        if held is None:
            raise self._missing(id_)
        record = change(decode(self.kind, held.value))
        await self.store.set_if(PARTITION, key, encode(record), held.predicate)
        return record

    async def check_removable(self, id_: str) -> None:
        """Refuse to remove a built-in or missing record. Call it before removing records that name it.

        Raises:
            BuiltIn: the record is built in.
            NotFound: of the type `unknown`: no record has this id.
        """
        refuse_built_in(id_, self.built_in)
        await self.get(id_)

    async def remove(self, id_: str) -> None:
        """Remove a record that no other record names any more."""
        await self.store.delete(PARTITION, self._key(id_))

    def _key(self, id_: str) -> bytes:
        return self.keys + check_id(id_).encode()

    def _missing(self, id_: str) -> NotFound:
        return self.unknown(f"there is no {self.noun} {id_!r}", **{self.noun: id_})


def page(found: Mapping[str, A], *, prefix: str, after: str, limit: int) -> tuple[list[A], bool]:
    """Return up to `limit` records of the prefix after `after`, ascending by id, and whether more follow."""
    names = [name for name in sorted(found) if name.startswith(prefix) and (not after or name > after)]
    return [found[name] for name in names[:limit]], len(names) > limit


def refuse_built_in(name: str, built_in: Mapping[str, object]) -> None:
    if name in built_in:
        raise BuiltIn(f"{name} is built in and cannot be changed: make one of your own", id=name)


def check_id(name: str) -> str:
    if not ID.fullmatch(name) or len(name.encode()) > ID_BYTES_MAX:
        raise InvalidRole(
            f"an id has 1 to 128 characters and at most {ID_BYTES_MAX} bytes, no control characters and no slash",
            id=name,
        )
    return name
