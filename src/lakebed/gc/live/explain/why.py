"""Answer `lakebed gc why`: why an object exists and until when, or which run deleted it.

An answer is informational: it changes no run or record, and reads piece by piece while others write. Dates come from
`lakebed.gc.rules` (lasting.py), names from naming.py. Costs one read of every distinct metarange, of the end of every
distinct range and of all staged cells. For a deleted object it also reads the ledger, newest files first. Since this
may take minutes, it runs in steps, which searches.py cuts into pages.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakebed.base import (
    CommitId,
    Corrupt,
    Invalid,
    MetarangeId,
    NotFound,
    RunId,
    RunKind,
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
from lakebed.gc.live.reading.inputs import CommitColumns, packed, texts
from lakebed.gc.live.reading.naming import Named, Search, Wanted, Work, batches
from lakebed.gc.live.records.settings import HoldBook, PolicyBook, RuleBook
from lakebed.gc.messages import (
    LEDGER_PREFIX,
    CommittedName,
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
from lakebed.gc.rules import Ancestry, Holds, Rules, Stay, StayKind, goes_ms, parse_duration, plain_name, stays_of
from lakebed.gc.rules.lifecycle import check_policy
from lakebed.objectstore import ObjectMissing, ObjectStat
from lakebed.versions import (
    CommitExpired,
    ContentsGone,
    DeletedRefRecord,
    RefState,
    RunRecord,
    SliceRecord,
    SliceState,
    Versions,
)

from .due_names import DueNames

_TAKES_NAMED: Final = {kind for kind in RunKind if kind.takes_named}

SHOWN: Final = 100
"""The number of reasons, and of names, of an object that an answer lists."""
OBJECTS_SHOWN: Final = 20

_NOT_DELETED: Final = frozenset({LedgerState.FAILED, LedgerState.KEPT})
_TAKING: Final = frozenset({RunState.EXPIRING, RunState.SWEEPING})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """Hold facts that are read once for all objects of an answer."""

    snapshot: Snapshot
    ancestry: Ancestry
    rules: Rules | None
    holds: Holds
    now_ms: int
    taken_by: Mapping[CommitId, RunId]
    """The runs of expiring commits, and of swept ones that an undo can bring back (`Snapshot.returnable`)."""
    until_ms: Mapping[RunId, int]
    """The end of the window of each deferred run."""
    deleted_until_ms: dict[str, int]
    """The time until which each deleted branch or tag is kept, by its name in the snapshot."""


@dataclass(slots=True)
class _Found:
    """Hold the results of a search for all objects of an answer."""

    committed: dict[MetarangeId, list[Named]] = field(default_factory=dict)
    uncommitted: dict[str, list[UncommittedName]] = field(default_factory=dict)
    stats: dict[str, ObjectStat | None] = field(default_factory=dict)
    taken: list[LedgerRow] = field(default_factory=list)
    deferred: dict[str, DeferredRun] = field(default_factory=dict)
    versions: dict[MetarangeId, list[Named]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class FateFacts:
    """Hold the facts about one object that decide its fate.

    `modified_ms` is None if the object is not in the store. `deleted_by` names the kinds of runs that recorded its
    deletion. `stays` are those of commits that name the object, or of runs whose undo brings such commits back.
    """

    is_outside: bool = False
    is_own: bool = False
    modified_ms: int | None = None
    deleted_by: AbstractSet[str] = frozenset()
    is_staged: bool = False
    is_held: bool = False
    is_committed: bool = False
    stays: Sequence[Stay] = ()
    deferred_until_ms: int | None = None


def fate_of(facts: FateFacts, rules: Rules | None, *, now_ms: int) -> tuple[Fate, int | None]:
    """Return the fate of an object, and the first instant at which a run may delete it. The first match decides."""
    if facts.is_outside:
        return Fate.OUTSIDE, None
    if facts.modified_ms is None:
        return _fate_of_missing(facts), None
    if facts.is_own:
        return Fate.OWN, None
    if facts.is_staged or facts.is_held:
        return Fate.KEPT, None
    if facts.is_committed:
        until_ms = None if rules is None else goes_ms(facts.stays, now_ms=now_ms)
        return Fate.EXPIRED if until_ms == now_ms else Fate.KEPT, until_ms
    if facts.deferred_until_ms is not None:
        return Fate.DEFERRED, facts.deferred_until_ms
    if facts.stays:
        ends = [stay.until_ms for stay in facts.stays if stay.until_ms is not None]
        return Fate.KEPT, max(now_ms, *ends) if len(ends) == len(facts.stays) else None
    age = None if rules is None else rules.uncommitted_min_age
    until_ms = now_ms if age is None else parse_duration(age).over_ms(facts.modified_ms, now_ms)
    return Fate.UNREFERENCED if until_ms == now_ms else Fate.YOUNG, until_ms


def _fate_of_missing(facts: FateFacts) -> Fate:
    # Only lifecycle runs and erasures delete objects that commits still name.
    was_taken = bool(facts.deleted_by & _TAKES_NAMED if facts.is_committed else facts.deleted_by)
    if facts.is_staged or (facts.is_committed and not was_taken):
        return Fate.MISSING
    return Fate.TAKEN if was_taken else Fate.UNKNOWN


class Why:
    def __init__(self, versions: Versions, rules: RuleBook) -> None:
        self._versions = versions
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
        trees = _metaranges(snapshot, returnable=True)
        at_ref = await self.at_ref(ref, path, snapshot.swept) if path else None
        del snapshot
        found = _Found()
        if address or at_ref is not None:
            addresses = {at_ref or self.canonical(address): None}
        else:
            addresses = {}
            searching = self._search.addresses_at(path_to_key(path), trees, addresses)
            async for step in reported("commits", searching, len(trees)):
                yield step
            async for step in reported("ledger", self.ledger(frozenset(), path, found.taken)):
                yield step
            async for step in reported("deferred", self._held(frozenset(), path, found.deferred)):
                yield step
            addresses |= dict.fromkeys([*found.deferred, *(row.address for row in found.taken)])
        shown = list(addresses)[:OBJECTS_SHOWN]
        async for step in self._find(shown, trees, found):
            yield step
        current = await self._rules.read()
        async for step in self._read(read):
            yield step
        # What follows does not end within a page's time if it begins late in it.
        heavy = WhyProgress(stage="commits", files=len(read[0].commits) // COMMITS_A_FILE)
        yield heavy
        known = await self._known(current.rules, read.pop())
        yield heavy
        looked = frozenset(trees)
        # Commits made during the search may name the objects too.
        if late := [tree for tree in _metaranges(known.snapshot, returnable=True) if tree not in looked]:
            async for step in self._find_committed(shown, late, found):
                yield step
        policy = await self._policies.read()
        due = None if policy.policy is None else DueNames(check_policy(policy.policy), known.snapshot)
        if due is not None:
            every = _metaranges(known.snapshot)
            searching = due.find_versions(self._search, found.committed, every, found.versions)
            async for step in reported("commits", searching, len(every)):
                yield step
        objects: list[WhyObject] = []
        for one in shown:
            objects.append(_with_due(await self._object(one, known, found), due, found))
            yield heavy
        yield WhyAnswer(
            repository_uri=self._versions.objectstore.uri,
            address=address,
            ref=ref,
            path=path,
            at_ref=at_ref is not None,
            now_ms=known.now_ms,
            rules_version=current.version,
            has_rules=current.rules is not None,
            policy_version=None if due is None else policy.version,
            objects=tuple(objects),
            objects_count=len(addresses),
        )

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
            if await self._versions.refs.resolve_commit(ref) in swept:
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

    async def _known(self, rules: Rules | None, snapshot: Snapshot) -> _Known:
        snapshot = _without_returned(snapshot)
        runs = dict(await self._versions.retired.runs())
        return _Known(
            snapshot=snapshot,
            ancestry=ancestry_of(snapshot),
            rules=rules,
            holds=await HoldBook(self._versions).in_force(),
            now_ms=self._versions.ports.clock.now_ms(),
            taken_by={**snapshot.returnable, **await self._expiring(runs)},
            until_ms={run: record.until_ms for run, record in runs.items() if record.until_ms},
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

    async def _object(self, address: str, known: _Known, found: _Found) -> WhyObject:
        uncommitted, stat = found.uncommitted.get(address, []), found.stats.get(address)
        deferred = found.deferred.get(address)
        taken = tuple(row for row in found.taken if row.address == address)
        naming = partial(_commits_naming, address, known, found.committed)
        names = naming(known.snapshot.there())
        # A collection of uncommitted data keeps what these commits name. What is deferred has dates of its own.
        returnable = replace(names, rows=()) if names or deferred else naming(_are_returnable(known.snapshot))
        listed = names or returnable
        is_own = _is_own(address)
        stays = _stays_sorted(known, [] if is_own else names.rows, returnable.names())
        holds = () if is_own or not known.holds.holds else _holds_on(names.names(), known.holds)
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
    """Check that the question has an address, or a ref and a path.

    Raises:
        Invalid: it has neither or both.
    """
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


def _ending(stay: Stay, deleted_until_ms: int | None) -> Stay:
    """End the stay of a deleted branch or tag when it can no longer be brought back."""
    if deleted_until_ms is None:
        return stay
    until_ms = deleted_until_ms if stay.until_ms is None else min(stay.until_ms, deleted_until_ms)
    return msgspec.structs.replace(stay, until_ms=until_ms)


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


def ancestry_of(snapshot: Snapshot) -> Ancestry:
    """Return the snapshot's commits as row numbers. A ref that is being made holds its commit under any rules."""
    ids, parents = snapshot.commits.column("id"), snapshot.commits.column("parents")
    starts = parents.offsets.to_numpy()
    has_parent = np.diff(starts) > 0
    above = parents.values.take(pa.array(starts[:-1][has_parent]))
    # One look-up: to build the index of the ids takes longer than all other steps.
    names = pa.concat_arrays([above, packed([commit for _, _, commit, _ in snapshot.refs])])
    rows = np.asarray(pc.fill_null(pc.index_in(names, value_set=ids), -1).to_numpy(), np.int64)
    first_parent = np.full(len(ids), -1, np.int64)
    first_parent[has_parent] = rows[: len(above)]
    named: dict[str, dict[str, int]] = {"branch": {}, "tag": {}, "intent": {}}
    for (kind, name, _, state), row in zip(snapshot.refs, rows[len(above) :].tolist(), strict=True):
        if row >= 0 and state == RefState.ACTIVE.value:
            named[kind][name] = row
        elif row >= 0:
            named["intent"][f"{kind} {name}"] = row
    return Ancestry(
        ids=_Texts(ids),
        first_parent=first_parent.tolist(),
        created_ms=snapshot.commits.numbers("created_ms").tolist(),
        heads=named["branch"],
        tags=named["tag"],
        held=named["intent"],
    )


class _Texts(Sequence[CommitId]):
    """Make texts of the ids that are asked for. Most never are."""

    def __init__(self, ids: pa.Array) -> None:
        self._ids: list[bytes] = ids.to_pylist()

    def __len__(self) -> int:
        return len(self._ids)

    def __getitem__(self, row: Any) -> Any:
        return CommitId(self._ids[row].hex())


def _without_returned(snapshot: Snapshot) -> Snapshot:
    """Omit a deleted ref if a live ref has its name and commit: it keeps nothing more.

    Its record stays until the end of its period, so that every collector sees one of the two (`read_snapshot`).
    """
    if all(plain_name(name) == name for _, name, _, _ in snapshot.refs):
        return snapshot
    live = {(kind, name, commit) for kind, name, commit, state in snapshot.refs if state == RefState.ACTIVE.value}
    return replace(
        snapshot,
        refs=[
            ref
            for ref in snapshot.refs
            if plain_name(ref[1]) == ref[1] or (ref[0], plain_name(ref[1]), ref[2]) not in live
        ],
    )


def _metaranges(snapshot: Snapshot, *, returnable: bool = False) -> list[MetarangeId]:
    """Return the distinct metaranges of commits that were not swept, newest first. Add `returnable` ones on request."""
    wanted = pc.or_(snapshot.there(), _are_returnable(snapshot)) if returnable else snapshot.there()
    there = snapshot.commits.column("metarange_id").filter(wanted)
    trees = pc.unique(there.take(pa.array(np.arange(len(there))[::-1])))
    return [MetarangeId(tree) for tree in texts(trees).to_pylist() if tree]


def _are_returnable(snapshot: Snapshot) -> pa.Array:
    """Return a flag for each commit: an undo can bring it back."""
    return pc.is_in(snapshot.commits.column("id"), value_set=packed(sorted(snapshot.returnable)))


def _stays_sorted(known: _Known, rows: Sequence[int], returnable: Sequence[CommittedName]) -> list[Stay]:
    """Return the stays of these commits, and one for each run whose undo brings some back. Those that keep come first.

    `returnable` has the names in commits that an undo brings back, newest first.
    """
    stays = [
        _ending(stay, known.deleted_until_ms.get(stay.name))
        for stay in stays_of(known.ancestry, rows, known.rules, now_ms=known.now_ms)
    ]
    newest = {name.run: name for name in reversed(returnable)}
    stays += [
        Stay(kind=StayKind.UNDO, name=run, commit=CommitId(name.commit), until_ms=known.until_ms.get(RunId(run)))
        for run, name in newest.items()
    ]
    return sorted(
        stays, key=lambda stay: (not stay.keeps_at(known.now_ms), stay.kind, -(stay.until_ms or 0), stay.name)
    )


def _holds_on(names: Sequence[CommittedName], holds: Holds) -> tuple[str, ...]:
    return tuple(dict.fromkeys(hold for name in names for hold in holds.of(path=name.path, commit=name.commit)))


@dataclass(frozen=True, slots=True)
class _Naming:
    """The commits that name an object: their rows, newest first, and the least path in the tree of each."""

    known: _Known
    rows: Sequence[int]
    paths: Mapping[MetarangeId, str]

    def __len__(self) -> int:
        return len(self.rows)

    def names(self, rows: Sequence[int] | None = None) -> list[CommittedName]:
        """Return these rows as names; 4 µs each."""
        rows = self.rows if rows is None else rows
        table = self.known.snapshot.commits.table.take(pa.array(rows, pa.int64()))
        return [
            CommittedName(
                commit=id_,
                created_ms=commit.created_ms,
                path=self.paths[commit.metarange_id],
                run=self.known.taken_by.get(id_, ""),
            )
            for id_, commit in CommitColumns(table)
        ]


def _commits_naming(
    address: str, known: _Known, committed: dict[MetarangeId, list[Named]], wanted: pa.Array
) -> _Naming:
    paths = {
        metarange: min(row.path for row in rows if row.address == address)
        for metarange, rows in committed.items()
        if any(row.address == address for row in rows)
    }
    named = pc.is_in(known.snapshot.commits.column("metarange_id"), value_set=packed(sorted(paths)))
    rows = np.flatnonzero(pc.and_(named, wanted).to_numpy(zero_copy_only=False))
    return _Naming(known, rows[::-1].tolist(), paths)
