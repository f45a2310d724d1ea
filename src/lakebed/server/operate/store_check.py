"""Find damage in the metadata of an installation, and name the command that repairs it. Changes nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Final

import msgspec

from lakebed.auth import ADMINS, Accounts, Groups, ServerKeys, load_server_keys
from lakebed.base import Corrupt, Invalid, LakebedError, count_of, human_size
from lakebed.kv import InvalidStoreUri, Store, open_store, store_partitions, store_size
from lakebed.runtime import live_ports
from lakebed.server.options import ServerOptions, namespace_opener
from lakebed.server.process.folder import MARKER_FILE
from lakebed.server.process.pairing import PARTITION as SERVER_PARTITION
from lakebed.server.process.pairing import WrongMetadata, check_pair

from .backup_check import check_named

USERS_LOOKED_AT: Final = 1000
FREE_BYTES_WORTH_IT: Final = 64 << 20
SHOWN: Final = 3
PAIR_ADVICE: Final = "name the right pair of --data and --kv"


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one check. `advice` is the remedy for a failed check."""

    name: str
    passed: bool
    found: str
    advice: str = ""


async def check_metadata(options: ServerOptions, *, objects: bool) -> AsyncIterator[Finding]:
    """Yield the result of each check in turn. Skip checks that need a failed one. `objects`: also check every
    object.
    """
    data = options.data_dir
    if not (data / MARKER_FILE).exists():
        yield Finding(
            name="folder", passed=False, found=f"{data} is not a data folder", advice="name a server's folder by --data"
        )
        return
    try:
        # Check first: opening a missing SQLite file would create it.
        partitions = store_partitions(options.metadata_uri)
        store = open_store(options.metadata_uri)
    except LakebedError as error:
        yield Finding(name="database", passed=False, found=str(error), advice=_advice_to_open(error))
        return
    try:
        yield Finding(name="database", passed=True, found=f"opens, {count_of(len(partitions), 'partition')}")
        async for finding in _checks(options, store, objects=objects):
            yield finding
    finally:
        await store.close()
    with suppress(InvalidStoreUri):
        yield _space(options)


def _advice_to_open(error: LakebedError) -> str:
    match error:
        case InvalidStoreUri():
            return "mend the URI in --kv or LAKEBED_STORE_URI (docs/guide/databases.md)"
        case WrongMetadata():
            return PAIR_ADVICE
        case Corrupt():
            return "serve it with the release that made it, or bring a backup back: `lakebed backup restore`"
        case _:
            return "start the database, or set it as the message says, and check again"


async def _checks(options: ServerOptions, store: Store, *, objects: bool) -> AsyncIterator[Finding]:
    try:
        await check_pair(options.data_dir, store, holds_objects=options.holds_objects)
    except Invalid as error:
        yield Finding(name="folder", passed=False, found=str(error), advice=PAIR_ADVICE)
        return
    yield Finding(name="folder", passed=True, found="belongs to this database")
    ports = live_ports()
    if await store.get(SERVER_PARTITION, b"server/folder") is None:
        yield Finding(name="set-up", passed=True, found="no server has run on it yet")
        return
    keys = await load_server_keys(store, ports.ids, options.server_secret)
    accounts = Accounts(store, ports, keys)
    yield await _secret(accounts, keys)
    yield await _administrators(Groups(store, ports, accounts), is_set_up=await accounts.installation() is not None)
    if objects:
        yield await _objects(options, store)


async def _secret(accounts: Accounts, keys: ServerKeys) -> Finding:
    looked_at = 0
    users, _ = await accounts.list_users(prefix="", after="", limit=USERS_LOOKED_AT)
    for user in users:
        records, _ = await accounts.list_credentials(user.id, prefix="", after="", limit=1)
        for record in records:
            looked_at += 1
            try:
                keys.unseal(record.secret, access_key_id=record.access_key_id)
            except LakebedError as error:
                return Finding(
                    name="secret",
                    passed=False,
                    found=str(error),
                    advice="set LAKEBED_SERVER_SECRET as it was; if it is lost, make new key pairs, beginning with"
                    " `lakebed auth recover`",
                )
    return Finding(name="secret", passed=True, found=f"reads the key pairs of {count_of(looked_at, 'user')}")


async def _administrators(groups: Groups, *, is_set_up: bool) -> Finding:
    if not is_set_up:
        return Finding(name="users", passed=True, found="not set up yet: `lakebed setup`")
    members, _ = await groups.list_members(ADMINS, prefix="", after="", limit=SHOWN + 1)
    if not members:
        return Finding(
            name="users", passed=False, found="no administrator is left", advice="make one: `lakebed auth recover`"
        )
    return Finding(name="users", passed=True, found=f"administrators: {', '.join(user.id for user in members[:SHOWN])}")


async def _objects(options: ServerOptions, store: Store) -> Finding:
    advice = (
        "bring it back from a backup (`lakebed backup restore`), or delete the repositories and branches that name"
        " what is gone"
    )
    try:
        checked = await check_named(store, namespace_opener(options), live_ports())
    except LakebedError as error:
        return Finding(name="repositories", passed=False, found=str(error), advice=advice)
    if checked.missing_count:
        shown = "; ".join(checked.missing[:SHOWN])
        found = f"{count_of(checked.missing_count, 'object')} missing: {shown}"
        return Finding(name="repositories", passed=False, found=found, advice=advice)
    found = f"{checked.repositories:,}, with {count_of(checked.commits, 'commit')} and {checked.entries:,} entries"
    return Finding(name="repositories", passed=True, found=f"{found}: all they name is there")


def _space(options: ServerOptions) -> Finding:
    size = store_size(options.metadata_uri)
    found = f"{human_size(size.size_bytes)}, {human_size(size.free_bytes)} of it free"
    if size.free_bytes > max(FREE_BYTES_WORTH_IT, size.size_bytes // 2):
        found += ": `lakebed kv compact` gives it back"
    return Finding(name="space", passed=True, found=found)
