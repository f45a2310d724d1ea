"""Answer `lakebed gc why`: why an object exists and until when, or which run deleted it.

An answer is informational: it changes no run or record, and reads piece by piece while others write. Dates come from
`lakebed.gc.rules` (lasting.py), names from naming.py. Costs one read of every distinct metarange, of the end of every
distinct range and of all staged cells. For a deleted object it also reads the ledger, newest files first. Since this
may take minutes, it runs in steps, which searches.py cuts into pages.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from lakebed.base import (
    CommitId,
    Corrupt,
    Invalid,
    MetarangeId,
    NotFound,
    RunId,
    RunState,
    from_row,
    is_absolute,
    key_inside,
    parse_address,
    path_to_key,
    slice_name,
)
from lakebed.gc.live.defer.deferring import DeferredRun, DeferredRuns
from lakebed.gc.live.defer.restorable import at_path
from lakebed.gc.live.reading.commits import COMMITS_A_FILE, RECORDS_A_FILE, Snapshot, name_of_deleted, snapshot_steps
from lakebed.gc.live.reading.naming import Named, Search, Wanted, Work, batches
from lakebed.gc.live.records.settings import HoldBook, PolicyBook, RuleBook
from lakebed.gc.messages import (
    LEDGER_PREFIX,
    Fate,
    LedgerRow,
    LedgerState,
    UncommittedName,
    WhyAnswer,
    WhyObject,
    WhyProgress,
    decode_record,
    is_special,
    ledger_records,
    plain_rows,
)
from lakebed.gc.rules import Rules
from lakebed.gc.rules.lifecycle import check_policy
from lakebed.objectstore import ObjectMissing, ObjectStat
from lakebed.versions import (
    CommitExpired,
    ContentsGone,
    DeletedRefRecord,
    RunRecord,
    SliceRecord,
    SliceState,
    Versions,
)

from .due_names import DueNames
from .reasons import (
    FateFacts,
    Known,
    ancestry_of,
    are_returnable,
    commits_naming,
    fate_of,
    holds_on,
    stays_sorted,
    trees_of,
    without_returned,
)

SHOWN: Final = 100
"""The number of reasons, and of names, of an object that an answer lists."""
OBJECTS_SHOWN: Final = 20

_NOT_DELETED: Final = frozenset({LedgerState.FAILED, LedgerState.KEPT})
_TAKING: Final = frozenset({RunState.EXPIRING, RunState.SWEEPING})


@dataclass(slots=True)
class _Found:
    """Hold the results of a search for all objects of an answer."""

    committed: dict[MetarangeId, list[Named]] = field(default_factory=dict)
    uncommitted: dict[str, list[UncommittedName]] = field(default_factory=dict)
    stats: dict[str, ObjectStat | None] = field(default_factory=dict)
    taken: list[LedgerRow] = field(default_factory=list)
    deferred: dict[str, DeferredRun] = field(default_factory=dict)
    versions: dict[MetarangeId, list[Named]] = field(default_factory=dict)


class Why:
    def __init__(self, versions: Versions, rules: RuleBook, default_branch: str) -> None:
        self._versions = versions
        self._default_branch = default_branch
        self._policies = PolicyBook(versions)
        self._rules = rules
        self._search = Search(versions)
        self._deferred = DeferredRuns(versions)

    async def ask(self, *, address: str = "", ref: str = "", path: str = "") -> WhyAnswer:
        """Return the answer, the last of `steps`."""
        async for step in self.steps(address=address, ref=ref, path=path):
            if isinstance(step, WhyAnswer):
                return step
        raise AssertionError("the last step is the answer")

    async def steps(
        self, *, address: str = "", ref: str = "", path: str = ""
    ) -> AsyncGenerator[WhyProgress | WhyAnswer, None]:
        """Yield progress after each step of about PARALLEL files, then the answer.

        The question is an address, relative or absolute, or a ref and a path. If the path does not exist at the ref, or
        the ref does not exist or was swept, search the whole history and the ledger.

        Raises:
            Invalid: see there.
            Corrupt: a file of a commit is missing or altered; the message names it.
        """
        check_question(address=address, ref=ref, path=path)
        read: list[Snapshot] = []
        async for step in self._read(read):
            yield step
        # Keep the trees alone: there may be a million commits, and the search may take minutes.
        snapshot = read.pop()
        trees = trees_of(snapshot, returnable=True)
        at_ref = await self.at_ref(ref, path, snapshot.swept) if path else None
        del snapshot
        found = _Found()
        addresses: dict[str, None] = {}
        if address or at_ref is not None:
            addresses[at_ref or self.canonical(address)] = None
        else:
            async for step in self._ever_at(path, trees, found, addresses):
                yield step
        shown = list(addresses)[:OBJECTS_SHOWN]
        async for step in self._find(shown, trees, found):
            yield step
        asked = partial(WhyAnswer, address=address, ref=ref, path=path, objects_count=len(addresses))
        async for last in self._judge(shown, trees, found, partial(asked, at_ref=at_ref is not None)):
            yield last

    async def _judge(
        self, shown: Sequence[str], trees: Sequence[MetarangeId], found: _Found, asked: Callable[..., WhyAnswer]
    ) -> AsyncIterator[WhyProgress | WhyAnswer]:
        """Read all that may have changed meanwhile, and yield the answer last: `asked` with the rest."""
        current, read = await self._rules.read(), list[Snapshot]()
        async for step in self._read(read):
            yield step
        # What follows does not end within a page's time if it begins late in it.
        heavy = WhyProgress(stage="commits", files=len(read[0].commits) // COMMITS_A_FILE)
        yield heavy
        known = await self._known(current.rules, read.pop())
        yield heavy
        looked = frozenset(trees)
        # Commits made during the search may name the objects too.
        if late := [tree for tree in trees_of(known.snapshot, returnable=True) if tree not in looked]:
            async for step in self._find_committed(shown, late, found):
                yield step
        policy = await self._policies.read()
        due = None if policy.policy is None else DueNames(check_policy(policy.policy), known.snapshot)
        if due is not None:
            every = trees_of(known.snapshot)
            searching = due.find_versions(self._search, found.committed, every, found.versions)
            async for step in reported("commits", searching, len(every)):
                yield step
        objects: list[WhyObject] = []
        for one in shown:
            objects.append(_with_due(await self._object(one, known, found), due, found))
            yield heavy
        yield asked(
            repository_uri=self._versions.objectstore.uri,
            now_ms=known.now_ms,
            rules_version=current.version,
            has_rules=current.rules is not None,
            policy_version=None if due is None else policy.version,
            objects=tuple(objects),
        )

    async def _ever_at(
        self, path: str, trees: Sequence[MetarangeId], found: _Found, addresses: dict[str, None]
    ) -> AsyncIterator[WhyProgress]:
        """Find the addresses that were ever at a path: in commits, in deferred runs, in the ledger."""
        searching = self._search.addresses_at(path_to_key(path), trees, addresses)
        async for step in reported("commits", searching, len(trees)):
            yield step
        async for step in reported("ledger", self.ledger(frozenset(), path, found.taken)):
            yield step
        async for step in reported("deferred", self._held(frozenset(), path, found.deferred)):
            yield step
        addresses |= dict.fromkeys([*found.deferred, *(row.address for row in found.taken)])

    async def _read(self, read: list[Snapshot]) -> AsyncIterator[WhyProgress]:
        """Read a snapshot, and add it to `read`."""
        async for step in snapshot_steps(self._versions):
            if isinstance(step, Snapshot):
                read.append(step)
            else:
                yield WhyProgress(stage="commits", files=1 + step // RECORDS_A_FILE)

    def canonical(self, address: str) -> str:
        """Return the address in the spelling of answers: relative if it is inside the namespace."""
        key = key_inside(address, self._versions.objectstore.uri)
        return address if key is None else key

    async def at_ref(self, ref: str, path: str, swept: AbstractSet[CommitId]) -> str | None:
        """Return the canonical address of the path at a ref, or None if the path does not exist there."""
        try:
            entry = await self._versions.staging.get(ref, path_to_key(path))
        except NotFound:
            return None
        except ContentsGone as gone:
            return await self._at_swept(CommitId(str(gone.facts["commit"])), path)
        except (Corrupt, CommitExpired):
            # The files of a swept commit may be deleted.
            if (await self._versions.refs.resolve(ref)).commit_id in swept:
                return None
            raise
        return self.canonical(entry.address)

    async def _at_swept(self, commit_id: CommitId, path: str) -> str | None:
        """Return the address at a path of a swept commit, while its files exist. Users cannot read through it."""
        commit = await self._versions.history.get_commit(commit_id)
        try:
            row = await self._versions.trees.lookup(commit.metarange_id, path_to_key(path))
        except Corrupt:
            return None
        return None if row is None else self.canonical(from_row(row).address)

    async def _known(self, rules: Rules | None, snapshot: Snapshot) -> Known:
        snapshot = without_returned(snapshot)
        runs = dict(await self._versions.retired.runs())
        return Known(
            snapshot=snapshot,
            ancestry=ancestry_of(snapshot),
            rules=rules,
            holds=await HoldBook(self._versions).in_force(),
            now_ms=self._versions.ports.clock.now_ms(),
            taken_by={**snapshot.returnable, **await self._expiring(runs)},
            until_ms={run: record.until_ms for run, record in runs.items() if record.until_ms},
            default_branch=self._default_branch,
            deleted_until_ms={
                name_of_deleted(key, ref): ref.kept_until_ms
                async for key, ref in self._versions.inventory.every(DeletedRefRecord)
            },
        )

    async def _expiring(self, runs: Mapping[RunId, RunRecord]) -> dict[CommitId, RunId]:
        """Return the expiring commits with their runs."""
        expiring: dict[CommitId, RunId] = {}
        for run, record in runs.items():
            if record.state in _TAKING:
                expiring |= dict.fromkeys(await self._versions.retired.expiring(run), run)
        return expiring

    # One object

    async def _find(
        self, addresses: Sequence[str], trees: Sequence[MetarangeId], found: _Found
    ) -> AsyncIterator[WhyProgress]:
        async for step in self._find_committed(addresses, trees, found):
            yield step
        if users := [address for address in addresses if not _is_own(address)]:
            wanted = Wanted(self._versions.objectstore.uri, users)
            async for step in reported("staging", self._search.uncommitted(wanted, found.uncommitted)):
                yield step
        for address in addresses:
            if not is_absolute(address):
                found.stats[address] = await self.stat(address)
        there = frozenset(address for address, stat in found.stats.items() if stat is not None and not _is_own(address))
        if not there <= found.deferred.keys():
            async for step in reported("deferred", self._held(there, "", found.deferred)):
                yield step
        async for step in self.deletions(found.stats, found.taken):
            yield step

    async def deletions(
        self, stats: Mapping[str, ObjectStat | None], taken: list[LedgerRow]
    ) -> AsyncIterator[WhyProgress]:
        """Find the ledger rows of the objects that are not in the store, unless `taken` has a row of each."""
        gone = frozenset(address for address, stat in stats.items() if stat is None and not is_absolute(address))
        if not gone <= {row.address for row in taken}:
            taken.clear()
            async for step in reported("ledger", self.ledger(gone, "", taken)):
                yield step

    async def _find_committed(
        self, addresses: Sequence[str], trees: Sequence[MetarangeId], found: _Found
    ) -> AsyncIterator[WhyProgress]:
        own = [address for address in addresses if _is_own(address)]
        wanted = Wanted(self._versions.objectstore.uri, [address for address in addresses if not _is_own(address)])
        if wanted.addresses:
            async for step in reported("commits", self._search.committed(wanted, trees, found.committed), len(trees)):
                yield step
        if own:
            async for step in reported("commits", self._search.files(own, trees, found.committed), len(trees)):
                yield step

    async def _object(self, address: str, known: Known, found: _Found) -> WhyObject:
        uncommitted, stat = found.uncommitted.get(address, []), found.stats.get(address)
        deferred = found.deferred.get(address)
        taken = tuple(row for row in found.taken if row.address == address)
        naming = partial(commits_naming, address, known, found.committed)
        names = naming(known.snapshot.there())
        # A collection of uncommitted data keeps what these commits name. What is deferred has dates of its own.
        returnable = replace(names, rows=()) if names or deferred else naming(are_returnable(known.snapshot))
        listed = names or returnable
        is_own = _is_own(address)
        stays = stays_sorted(known, [] if is_own else names.rows, returnable.names())
        holds = () if is_own or not known.holds.holds else holds_on(names.names(), known.holds)
        facts = FateFacts(
            is_outside=is_absolute(address),
            is_own=is_own,
            modified_ms=None if stat is None else stat.modified_ms,
            deleted_by=frozenset(row.reason for row in taken if row.state not in _NOT_DELETED),
            is_staged=bool(uncommitted),
            is_held=bool(holds),
            is_committed=bool(names),
            stays=stays,
            deferred_until_ms=None if deferred is None else deferred.until_ms,
        )
        fate, until_ms = fate_of(facts, known.rules, now_ms=known.now_ms)
        return WhyObject(
            address=address,
            fate=fate,
            size_bytes=None if stat is None else stat.size_bytes,
            modified_ms=facts.modified_ms,
            goes_ms=until_ms,
            slice_closed=await self._is_closed(address),
            stays=tuple(stays[:SHOWN]),
            stays_count=len(stays),
            commits=tuple(listed.names(listed.rows[:SHOWN])),
            commits_count=len(listed),
            uncommitted=tuple(uncommitted[:SHOWN]),
            uncommitted_count=len(uncommitted),
            taken=taken,
            holds=holds,
            run=deferred.run_id if deferred is not None and fate is Fate.DEFERRED else "",
        )

    async def stat(self, address: str) -> ObjectStat | None:
        try:
            return await self._versions.objectstore.stat(address)
        except ObjectMissing:
            return None

    async def _is_closed(self, address: str) -> bool | None:
        if parse_address(address) is None:
            return None
        record = await self.slice_of(address)
        return record is not None and record.state is SliceState.CLOSED

    async def slice_of(self, address: str) -> SliceRecord | None:
        numbers = parse_address(address)
        return None if numbers is None else await self._versions.inventory.find(SliceRecord, slice_name(numbers[0]))

    # Deferred runs and the ledger

    async def _held(self, addresses: frozenset[str], path: str, found: dict[str, DeferredRun]) -> AsyncIterator[Work]:
        """Find the deferred runs with these addresses or this path, newest first."""
        for run in await self._deferred.runs():
            if not path and addresses <= found.keys():
                break
            garbage = await self._deferred.table_of(run)
            if garbage is None:
                continue
            for part in garbage.parts:
                rows = await self._deferred.part(garbage, part)
                for address in rows.filter(_asked(rows, addresses, path))["address"].to_pylist():
                    found.setdefault(address, run)
                # Let the server answer other requests between two parts.
                await self._versions.ports.clock.sleep(0)
                yield Work(1, 1)

    async def ledger(self, addresses: frozenset[str], path: str, found: list[LedgerRow]) -> AsyncIterator[Work]:
        """Find the ledger rows of these addresses or this path, and sort them, latest first.

        Reads whole days, newest first, until each address has a row: an object may be restored and deleted on one day.
        """
        listed = [stat.key async for page in self._versions.objectstore.list(LEDGER_PREFIX) for stat in page]
        days: dict[str, list[tuple[str, ...]]] = {}
        for names in ledger_records(listed):
            days.setdefault(names[0].rpartition("/")[0], []).append(names)
        for day in sorted(days, reverse=True):
            for batch in batches(days[day]):
                for rows in await self._records(batch):
                    found += plain_rows(rows.filter(_asked(rows, addresses, path)))
                yield Work(len(batch), len(batch))
            # For a row GONE, read on: an older row names the run that deleted the object.
            if not path and addresses <= {row.address for row in found if row.state is not LedgerState.GONE}:
                break
        found.sort(key=lambda row: (-row.deleted_ms, row.address))

    async def _records(self, records: Sequence[Sequence[str]]) -> list[pa.Table]:
        wanted = [self._versions.objectstore.get(name) for names in records for name in names]
        files = iter(await self._versions.ports.tasks.gather(wanted))
        # Let the server answer other requests between two batches.
        await self._versions.ports.clock.sleep(0)
        return [decode_record(names, [next(files) for _ in names]) for names in records]


def check_question(*, address: str, ref: str, path: str) -> None:
    """Check that the question has an address, or a ref and a path, or raise Invalid."""
    if bool(address) == bool(ref and path) or bool(address and (ref or path)):
        raise Invalid("say an address, or a ref and a path")


def _with_due(object_: WhyObject, due: DueNames | None, found: _Found) -> WhyObject:
    """Add the dates of the lifecycle policy. They do not apply to foreign objects or to Lakebed's own files."""
    if due is None or is_absolute(object_.address) or _is_own(object_.address):
        return object_
    names = due.of(object_.address, found.committed, found.versions)
    return msgspec.structs.replace(
        object_,
        due_ms=names[0].due_ms if names else None,
        due_names=tuple(names[:SHOWN]),
        due_names_count=len(names),
    )


def _asked(rows: pa.Table, addresses: frozenset[str], path: str) -> pa.ChunkedArray:
    """Return a flag for each row: it has one of these addresses, or this path if given."""
    asked = pc.is_in(rows["address"], value_set=pa.array(sorted(addresses), pa.string()))
    return pc.or_(asked, at_path(rows, path)) if path else asked


async def reported(stage: str, works: AsyncIterator[Work], of: int = 0) -> AsyncIterator[WhyProgress]:
    """Yield the progress of a stage for each step of work."""
    files = done = 0
    async for work in works:
        files, done = work.files, done + work.through
        yield WhyProgress(stage=stage, done=done, of=of, files=files)


def _is_own(address: str) -> bool:
    return not is_absolute(address) and is_special(address)
