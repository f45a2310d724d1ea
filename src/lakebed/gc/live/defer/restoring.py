"""Restore objects of a deferred run: stage each object under a fresh address, and verify the copy.

A swept commit stays swept, and a deleted address is never named again: the safety of a sweep needs both. So a restore
is an upload with a body copied inside the object store (docs/design/protocols.md, "Upload by the server"). All promises
about uploads hold for it.

A page restores some objects of one part of the run's table (restorable.py). A repeated page keeps objects that are
already staged. Of several versions of a path the last seen stays, in any order of pages.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Final, Protocol, TypeAlias

import msgspec
import pyarrow as pa

from lakebed.base import (
    BYTES_MD5,
    CONTENT_TYPE_DEFAULT,
    Corrupt,
    Entry,
    Etags,
    LakebedError,
    in_waves,
    in_words,
    parse_address,
    path_to_key,
)
from lakebed.gc import messages
from lakebed.gc.live.errors import BadContinuation
from lakebed.gc.live.reading.reading import Seal
from lakebed.objectstore import ObjectMissing, content_type_of
from lakebed.versions import Condition, PathExists, PathNotFound, PreconditionFailed, Versions

from .entries import LAST_PATH, CommittedEntries, entry_again
from .restorable import Place, Restorable

__all__ = ["Charge", "Refusal", "Restoring"]

AT_ONCE: Final = 16
LOOKS: Final = 3
"""Attempts at a path while other writers change it."""

_OLDEST_SLICE: Final = 1 << 63
"""Slice numbers descend with time (lakebed.base.addresses). A foreign address has no date: treat it as the oldest."""

_OCCUPIED: Final = "another object is there"


Refusal = Callable[[str, str], str]
"""Return why an object from the first path (empty if unknown) may not be staged at the second path, or empty if it may.

Asked for each object: a restore writes, and to another path it copies.
"""


def refuse_nothing(_path: str, _target: str) -> str:
    return ""


class Reserved(Protocol):
    """Room in quotas for one object. It is given back if the object is not stored."""

    async def store(self, size_bytes: int) -> Callable[[], None]:
        """Reserve these bytes. Call what it returns once they are stored.

        Raises:
            LakebedError: a quota has no room.
        """
        ...


Charge: TypeAlias = Callable[[str], Awaitable[AbstractContextManager[Reserved]]]
"""Begin to charge an object that is stored once more, for this branch."""


class _NoQuota:
    async def store(self, _: int) -> Callable[[], None]:
        return lambda: None


async def charge_nothing(_branch: str) -> AbstractContextManager[Reserved]:
    return nullcontext(_NoQuota())


class RestoreOutcome(Enum):
    """State the outcome for a version. `REPLACED`: it replaced an older version staged by the same restore."""

    RESTORED = "restored"
    REPLACED = "replaced"
    PRESENT = "present"
    OLDER = "older"


Row = dict[str, Any]
"""A row of GARBAGE with the run's id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deed:
    """Hold the outcome of a row: a `RestoreOutcome` or an error. `bytes` is the increase of restored bytes.

    `is_bare`: the entry that a commit had was not found.
    """

    row: Row
    target: str
    outcome: RestoreOutcome | str
    bytes: int = 0
    is_bare: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bytes:
    size_bytes: int
    md5: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupant:
    """Hold the facts about the entry at the path of a version.

    `is_taken`: a lifecycle run deleted its object. `is_same`: it has the bytes of the version. `is_ours`: this restore
    staged it. `is_newest`: a restore staged it from a version that is not older.
    """

    is_taken: bool = False
    is_same: bool = False
    is_ours: bool = False
    is_newest: bool = False


class Step(Enum):
    """Name the step to take at the path of a version, with its outcome. `uploads`: it writes the path."""

    STAGE = RestoreOutcome.RESTORED, True
    REPLACE = RestoreOutcome.REPLACED, True
    RECORD = RestoreOutcome.PRESENT, True
    KEEP = RestoreOutcome.PRESENT, False
    KEEP_NEWER = RestoreOutcome.OLDER, False
    REFUSE = _OCCUPIED, False

    def __init__(self, outcome: RestoreOutcome | str, uploads: bool) -> None:
        self.outcome = outcome
        self.uploads = uploads


def decide(there: Occupant | None, *, overwrite: bool, by_address: bool) -> Step:
    """Decide about one version of a path. `by_address`: the request names the version, not the path."""
    if there is None:
        return Step.STAGE
    if there.is_newest:
        return Step.KEEP if there.is_same else Step.KEEP_NEWER
    if there.is_same:
        # Stage it again to record its version. Otherwise an older version would replace it.
        return Step.RECORD if not by_address and (overwrite or there.is_ours) else Step.KEEP
    # Without `overwrite`, replace only an entry that this same restore staged, or whose object is deleted.
    if there.is_ours:
        return Step.REPLACE
    return Step.STAGE if overwrite or there.is_taken else Step.REFUSE


class Restoring:
    def __init__(
        self, versions: Versions, *, key: bytes, refusal: Refusal = refuse_nothing, charge: Charge = charge_nothing
    ) -> None:
        """Seal tokens with `key`, a secret that all processes of a server share: no client can make up a place."""
        self._versions = versions
        self._key = key
        self._refusal = refusal
        self._charge = charge
        self._objectstore = versions.objectstore
        self._restorable = Restorable(versions)

    async def restore(self, body: messages.Restore, *, branch: str) -> messages.RestorePage:
        """Restore one page onto this branch.

        Raises:
            BranchNotFound: the branch does not exist.
            NothingNamed: the request has neither a path nor a run.
            NotRestorable: no deferred run has the objects: they were deleted, or no run selected them.
            BadContinuation: the token is not one of this restore.
            BadInput: the table of a deferred run is unreadable.
        """
        await self._versions.refs.get_branch(branch)
        seal = self._seal(body, branch)
        if body.continuation_token is None:
            position = self._restorable.begin(body, self._versions.ports.ids.fresh())
        else:
            position = _place(seal.open(body.continuation_token))
        page = await self._restorable.find(body, position)
        token = None if page.following is None else seal.seal(msgspec.msgpack.encode(page.following))
        if not page.rows:
            return messages.RestorePage(run_id=page.run_id, continuation_token=token)
        rows = [{**row, "run_id": page.run_id} for row in page.rows]
        return await self._restore_page(body, branch, rows, position.restore, token)

    def _seal(self, body: messages.Restore, branch: str) -> Seal:
        asked = msgspec.json.encode(msgspec.structs.replace(body, continuation_token=None, branch=branch))
        return Seal(self._key, "restore", self._versions.uid, asked.decode())

    async def _restore_page(
        self, body: messages.Restore, branch: str, page: list[Row], restore: str, token: str | None
    ) -> messages.RestorePage:
        versions: dict[str, list[Row]] = {}
        for row in page:
            versions.setdefault(_target(body, row), []).append(row)
        entries = CommittedEntries(self._versions)

        async def put_back(target: str) -> list[Deed]:
            return await self._restore_versions(body, branch, versions[target], target, restore, entries)

        outcomes = await in_waves(self._versions.ports.tasks, [*versions], put_back, most=AT_ONCE)
        deeds = [deed for some in outcomes for deed in some]
        done = [deed for deed in deeds if deed.outcome in (RestoreOutcome.RESTORED, RestoreOutcome.REPLACED)]
        if done:
            await self._record([{**deed.row, "path": deed.target} for deed in done])
        failures = [
            messages.RestoreFailure(address=deed.row["address"], path=deed.target, error=deed.outcome)
            for deed in deeds
            if isinstance(deed.outcome, str)
        ]
        counts = Counter(deed.outcome for deed in deeds)
        return messages.RestorePage(
            run_id=page[0]["run_id"],
            restored=counts[RestoreOutcome.RESTORED],
            bytes_restored=sum(deed.bytes for deed in deeds),
            present=counts[RestoreOutcome.PRESENT],
            older=counts[RestoreOutcome.OLDER] + counts[RestoreOutcome.REPLACED],
            bare=sum(deed.is_bare for deed in done),
            failed=len(failures),
            failures=tuple(failures[: messages.FAILURES_SHOWN]),
            continuation_token=token,
        )

    async def _restore_versions(
        self,
        body: messages.Restore,
        branch: str,
        rows: Sequence[Row],
        target: str,
        restore: str,
        entries: CommittedEntries,
    ) -> list[Deed]:
        """Restore the newest version of one path that can be restored, and report the others as older.

        If another object occupies the path, report that once, not for each version.
        """
        deeds: list[Deed] = []
        is_done = is_occupied = False
        for row in sorted(rows, key=_newness_of, reverse=True):
            if is_done:
                deeds.append(Deed(row=row, target=target, outcome=RestoreOutcome.OLDER))
                continue
            deed = await self.restore_one(body, branch, row, target, restore=restore, entries=entries)
            is_done = isinstance(deed.outcome, RestoreOutcome)
            if deed.outcome == _OCCUPIED:
                deed = replace(deed, outcome=RestoreOutcome.OLDER) if is_occupied else deed
                is_occupied = True
            deeds.append(deed)
        return deeds

    # One object

    async def restore_one(
        self,
        body: messages.Restore,
        branch: str,
        row: Row,
        target: str,
        *,
        restore: str,
        entries: CommittedEntries,
    ) -> Deed:
        outcome: RestoreOutcome | str = self._refusal(row["path"], target)
        more_bytes, known = 0, None
        if not outcome:
            try:
                # What the object had at a path that the user may not restore is not for them to see.
                or_last = LAST_PATH in row and not self._refusal(row[LAST_PATH], target)
                known = await entries.find(row, or_last=or_last)
                outcome, more_bytes = await self._restore(body, branch, row, target, restore, known)
            except ObjectMissing:
                # A purge was faster. Only this object fails.
                outcome = "it was deleted meanwhile"
            except LakebedError as error:
                outcome = in_words(error)
        return Deed(row=row, target=target, outcome=outcome, bytes=more_bytes, is_bare=known is None)

    async def _restore(
        self, body: messages.Restore, branch: str, row: Row, target: str, restore: str, known: Entry | None
    ) -> tuple[RestoreOutcome | str, int]:
        """Restore one version. Return the outcome and the increase of restored bytes."""
        by_address = row["address"] == body.path
        for _ in range(LOOKS):
            there = await self._entry_at(branch, target)
            occupant = None
            if there is not None:
                # A version requested by its address is restored even if the path has a newer version.
                rival = None if by_address else _restored_from(there, target, run=body.run_id)
                occupant = await self._occupant(there, rival, row, restore, known)
            step = decide(occupant, overwrite=body.overwrite, by_address=by_address)
            if not step.uploads:
                return step.outcome, 0
            try:
                entry = await self._upload(branch, row, target, restore, there, known)
            except (PathExists, PreconditionFailed):
                # Another call changed the path since we read it, perhaps to this very object. Look again.
                continue
            # A replaced version of this restore counted before, and the same bytes are no increase.
            replaced_bytes = there.size_bytes if there is not None and step is not Step.STAGE else 0
            return step.outcome, entry.size_bytes - replaced_bytes
        return _OCCUPIED, 0

    async def _occupant(
        self, there: Entry, rival: messages.RestoredFrom | None, row: Row, restore: str, known: Entry | None
    ) -> Occupant:
        is_taken = (await self._versions.taken.find([there.address]))[0] is not None
        return Occupant(
            is_taken=is_taken,
            is_same=not is_taken and await self._is_same(there, row["address"], known),
            is_ours=rival is not None and rival.restore == restore,
            is_newest=rival is not None and _newness(rival.seen_ms, rival.run, rival.address) >= _newness_of(row),
        )

    async def _entry_at(self, branch: str, target: str) -> Entry | None:
        try:
            return await self._versions.staging.get(branch, path_to_key(target))
        except PathNotFound:
            return None

    async def _is_same(self, entry: Entry, source: str, known: Entry | None) -> bool:
        """Return whether the entry has the bytes of the object at `source`: restored before, or never replaced.

        `known`: the entry that a commit had for `source`.
        """
        if (await self._objectstore.stat(source)).size_bytes != entry.size_bytes:
            return False
        # The checksum of an upload in parts, or of an import, is no MD5 of the bytes.
        if known is not None and known.checksum and known.checksum == entry.checksum:
            return True
        return (await self._read(source)).md5 == (entry.metadata.get(BYTES_MD5) or entry.checksum)

    async def _upload(
        self, branch: str, row: Row, target: str, restore: str, there: Entry | None, known: Entry | None
    ) -> Entry:
        """Upload the version to the path. Replace only the entry `there`, as bound by its checksum."""
        source = row["address"]
        # Recorded in the entry, so that later pages can compare versions.
        version = messages.RestoredFrom(
            path=target,
            run=row["run_id"],
            address=source,
            seen_ms=_seen_ms(row),
            restore=restore,
            modified_ms=0 if known is None else known.modified_ms,
        )

        async def store_body(address: str) -> Entry:
            wanted = await self._read(source)
            type_in_store = "" if known is not None else await content_type_of(self._objectstore, source)
            if row["size_bytes"] not in (wanted.size_bytes, -1):
                raise Corrupt(f"it has {wanted.size_bytes} bytes, and the plan says {row['size_bytes']}")
            stored = await reserved.store(wanted.size_bytes)
            # The copy is read back before it is staged: a purge deletes the object, so a bad copy loses it.
            await self._objectstore.copy(source, address)
            stored()
            if await self._read(address) != wanted:
                raise Corrupt("what was read back is not what was copied")
            fresh = Entry(
                address=address,
                size_bytes=wanted.size_bytes,
                checksum=wanted.md5,
                # The date of now: a lifecycle policy would take an entry with its old date again.
                modified_ms=self._versions.ports.clock.now_ms(),
                content_type=type_in_store or CONTENT_TYPE_DEFAULT,
            )
            return entry_again(known, fresh, version)

        # The checksum binds the write to the entry that was read: of two concurrent calls neither undoes the other.
        condition = Condition(if_none_match=True) if there is None else Condition(if_match=Etags.of(there.checksum))
        with await self._charge(branch) as reserved:
            return await self._versions.staging.upload(branch, path_to_key(target), store_body, condition=condition)

    async def _read(self, key: str) -> _Bytes:
        md5, size_bytes = hashlib.md5(usedforsecurity=False), 0
        async for chunk in self._objectstore.stream(key):
            md5.update(chunk)
            size_bytes += len(chunk)
        return _Bytes(size_bytes=size_bytes, md5=md5.hexdigest())

    async def _record(self, done: list[Row]) -> None:
        """Write a ledger file of restored objects, with their new paths."""
        now_ms = self._versions.ports.clock.now_ms()
        facts = {"state": messages.LedgerState.RESTORED.value, "deleted_at": now_ms, "error": ""}
        rows = pa.Table.from_pylist([{**row, **facts} for row in done], schema=messages.arrow_schema(messages.LEDGER))
        name = f"{done[0]['run_id']}-restore-{self._versions.ports.ids.fresh()}.parquet"
        await self._objectstore.put(f"{messages.ledger_folder(now_ms)}{name}", messages.encode_ledger(rows))


def _place(opened: bytes | None) -> Place:
    if opened is None:
        raise BadContinuation("this is not a continuation token of this restore: begin it again")
    return msgspec.msgpack.decode(opened, type=Place)


def _target(body: messages.Restore, row: Row) -> str:
    version = f"@{row['run_id']}/{row['address']}" if body.all_versions and row["path"] else ""
    if not body.prefix:
        return f"{row['path']}{version}" if row["path"] else f"restored/{row['run_id']}/{row['address']}"
    slash = "" if body.prefix.endswith("/") else "/"
    return f"{body.prefix}{slash}{row['path'] or row['address']}{version}"


def _seen_ms(row: Row) -> int:
    """Return the time last seen. 0 if an older release wrote the row, or the object was last seen at another path."""
    seen = None if LAST_PATH in row else row.get("last_seen_at")
    return 0 if seen is None else round(seen.timestamp() * 1000)


def _newness_of(row: Row) -> tuple[int, int, int, str, str]:
    return _newness(_seen_ms(row), row["run_id"], row["address"])


def _newness(seen_ms: int, run: str, address: str) -> tuple[int, int, int, str, str]:
    """Return a sort key: greater for the version last seen later, and on a tie for the version uploaded later."""
    slice_, sequence = parse_address(address) or (_OLDEST_SLICE, 0)
    return seen_ms, -slice_, sequence, run, address


def _restored_from(entry: Entry, path: str, *, run: str) -> messages.RestoredFrom | None:
    """Return the entry's version if a restore of this run, or any if empty, staged it at this path.

    Ignore a copy from another path.
    """
    version = messages.restored_from(entry.metadata)
    return version if version is not None and version.path == path and run in ("", version.run) else None
