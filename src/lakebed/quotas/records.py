"""Declare the record of a quota, and where that of a repository, a branch or a user is (docs/formats/records.md)."""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from lakebed.base import OutcomeUnknown, RepositoryUid, Unavailable
from lakebed.kv import Held, Store
from lakebed.versions import Record, decode_record, encode_record, keys

QUOTA: Final = b"quota/"
USERS_PARTITION: Final = b"auth"
"""The partition of users: a backup takes both."""


DEAD_MS: Final = 15 * 60_000
"""A grant that is older counts as used. Its process is dead, or stalled: a live one asks again each minute."""


class Scope(NamedTuple):
    """Name what a quota is of. `title` is for messages."""

    partition: bytes
    key: bytes
    title: str


def of_repository(uid: RepositoryUid) -> Scope:
    return Scope(keys.repository_partition(uid), QUOTA + b"repository", "the repository")


def of_branch(uid: RepositoryUid, branch: str) -> Scope:
    return Scope(keys.repository_partition(uid), QUOTA + b"branch/" + branch.encode(), f"branch {branch}")


def of_user(user_id: str) -> Scope:
    return Scope(USERS_PARTITION, QUOTA + b"user/" + user_id.encode(), f"user {user_id}")


class Grant(msgspec.Struct, frozen=True, array_like=True):
    """Bytes that a process may admit without asking again. `at_ms`: when it last asked."""

    size_bytes: int
    at_ms: int
    # Of what it admitted since its first grant, so many are in `used_bytes`. So an answer that was lost, and a
    # settlement that is repeated, count nothing twice.
    spent_bytes: int = 0


class QuotaRecord(Record, frozen=True, kw_only=True, omit_defaults=True):
    """A quota. `used_bytes` were written, and `grants` may have been: the sum is never over the limit by a grant.

    `counting` names the count under way, which was alive at `counting_ms`; `since_bytes` were settled since it began.
    """

    limit_bytes: int
    used_bytes: int = 0
    grants: dict[str, Grant] = msgspec.field(default_factory=dict)
    set_ms: int = 0
    set_by: str = ""
    counting: str = ""
    counting_ms: int = 0
    since_bytes: int = 0
    # When the last one ended, 0: never.
    counted_ms: int = 0
    # Objects were deleted since.
    is_stale: bool = False

    def alive(self, now_ms: int) -> dict[str, Grant]:
        return {owner: grant for owner, grant in self.grants.items() if now_ms - grant.at_ms < DEAD_MS}

    @property
    def granted_bytes(self) -> int:
        return sum(grant.size_bytes for grant in self.grants.values())


async def read(store: Store, scope: Scope) -> tuple[QuotaRecord, Held] | None:
    held = await store.get(scope.partition, scope.key)
    return None if held is None else (decode_record(QuotaRecord, held.value), held)


async def replace_record(store: Store, scope: Scope, record: QuotaRecord, held: Held | None) -> None:
    """Write over exactly what was read.

    Raises:
        PredicateFailed: it is another by now.
        OutcomeUnknown: an answer was lost, and the record is not this one.
    """
    value = encode_record(record)
    try:
        await store.set_if(scope.partition, scope.key, value, held.predicate if held else None)
    except OutcomeUnknown as error:
        try:
            now = await store.get(scope.partition, scope.key)
        except Unavailable:
            raise error from None  # Its own error would say that nothing happened.
        if now is None or now.value != value:
            raise
