"""Memberships of groups, and policies of users and groups: pairs under `<kind>/<holder>/<granted>`.

From the holder's side a scan of few keys finds them, from the other side a scan of the whole kind: IAM is small. A
pair is valid only while both ends have the uids for which it was made.
"""

from __future__ import annotations

from lakebed.auth.records import PARTITION, USER_GROUPS, USER_POLICIES, GrantRecord, decode, encode
from lakebed.base import NotFound
from lakebed.kv import Store, scan_prefix

__all__ = ["NotGranted"]


class NotGranted(NotFound):
    """The user is not in this group, or the user or group does not have this policy."""


async def grant(
    store: Store, kind: bytes, holder: tuple[str, str], granted: tuple[str, str], *, nonce: str = ""
) -> None:
    """Store a grant. Each end is (id, uid). Repeating a grant changes only the nonce."""
    record = GrantRecord(holder_uid=holder[1], granted_uid=granted[1], nonce=nonce)
    await store.set(PARTITION, grant_key(kind, holder[0], granted[0]), encode(record))


async def grants_of(store: Store, kind: bytes, holder: tuple[str, str]) -> dict[str, str]:
    """Return the ids granted to this holder with their uids at the grant, ascending by id."""
    prefix = grant_key(kind, holder[0], "")
    found: dict[str, str] = {}
    async for key, value in scan_prefix(store, PARTITION, prefix):
        record = decode(GrantRecord, value)
        if record.holder_uid == holder[1]:
            found[key[len(prefix) :].decode()] = record.granted_uid
    return found


async def holders_of(store: Store, kind: bytes, granted: tuple[str, str]) -> dict[str, str]:
    """Return the ids of the holders of this grant with their uids at the grant, ascending by id."""
    found: dict[str, str] = {}
    async for key, value in scan_prefix(store, PARTITION, kind):
        holder, _, name = key[len(kind) :].decode().partition("/")
        record = decode(GrantRecord, value)
        if name == granted[0] and record.granted_uid == granted[1]:
            found[holder] = record.holder_uid
    return found


async def revoke(store: Store, kind: bytes, holder: tuple[str, str], granted: str) -> None:
    """Remove a grant, or raise NotGranted."""
    if granted not in await grants_of(store, kind, holder):
        lacks = "is not in group" if kind == USER_GROUPS else "does not have policy"
        raise NotGranted(f"{holder[0]} {lacks} {granted}", holder=holder[0], granted=granted)
    await store.delete(PARTITION, grant_key(kind, holder[0], granted))


async def revoke_all(store: Store, kinds: tuple[bytes, ...], *, holder: str | None = None, granted: str = "") -> None:
    """Remove every grant that names an end that is about to be deleted, whatever its uid."""
    stale: list[bytes] = []
    for kind in kinds:
        prefix = kind if holder is None else grant_key(kind, holder, "")
        async for key, _ in scan_prefix(store, PARTITION, prefix):
            if holder is not None or key.endswith(b"/" + granted.encode()):
                stale.append(key)
    await store.delete_many(PARTITION, stale)


async def revoke_all_of_user(store: Store, user_id: str) -> None:
    await revoke_all(store, (USER_GROUPS, USER_POLICIES), holder=user_id)


def grant_key(kind: bytes, holder: str, granted: str) -> bytes:
    return kind + f"{holder}/{granted}".encode()
