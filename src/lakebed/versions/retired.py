"""Commits that may no longer be named and ids of files that may no longer be written: where writers and runs meet.

A writer that is about to name a commit first writes where a run will look (a ref that is `creating`, an intent, a
commit record), then checks here. A run first publishes the commits that it expires, then looks there. So one of the two
sees the other (docs/design/protocols.md, "Naming a commit while a collection of committed data runs"). A commit that a
run took is not read through either: else a path would resolve until its object goes, and no reader had any grace.

A collection of metadata retires ids of files for ever ("A collection of metadata"): writers ask after them.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from functools import wraps
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

from msgspec.structs import replace

from lakebed.base import CommitId, OutcomeUnknown, RunId, RunState, in_waves
from lakebed.kv import SCAN_PAGE, Held, Predicate, PredicateFailed, scan_pages
from lakebed.ranges import FileCorrupt

from . import keys
from .context import Context, Retry
from .errors import CommitExpired, ContentsGone
from .records import Change, PlannedRecord, RunRecord, SweptRecord, decode_record, decode_records, encode_record
from .trees.files import MISSING

P = ParamSpec("P")
T = TypeVar("T")
BATCH: Final = 1_000
_AT_ONCE: Final = 100
TAKING = frozenset({RunState.EXPIRING, RunState.SWEEPING})


class Retired:
    def __init__(self, context: Context) -> None:
        self._context = context
        self._runs_seen = 0

    async def check_not_expiring(self, commits: Iterable[CommitId]) -> None:
        """Costs what `given_up_by` does.

        Raises:
            CommitExpired: a run took, or is about to take, the data of one of these commits.
        """
        for commit, run in (await self.given_up_by(commits)).items():
            raise _expired(commit, run)

    async def given_up_by(self, commits: Iterable[CommitId]) -> dict[CommitId, RunId]:
        """Return of which of these commits a run took, or is about to take, the data, and which run.

        Costs a scan of the runs, one `get_many`, and one more for each run that expires just now.
        """
        wanted = sorted(set(commits) - {CommitId("")})
        found: dict[CommitId, RunId] = {}
        # Each commit of a run that noted `swept` has its record below. Else a deferred run would cost reads for days.
        taking = [run for run, record in await self.runs() if record.state in TAKING and not record.swept]
        for run in taking:
            partition = keys.expiring_partition(self._context.uid, run)
            listed = await self._context.store.get_many(partition, [commit.encode() for commit in wanted])
            found |= {commit: run for commit, held in zip(wanted, listed, strict=True) if held is not None}
        # After the runs, never before: a run writes these before it ends, so one of the two looks finds it.
        for commit, run in (await self.swept_by(wanted)).items():
            found[commit] = run
        return found

    async def is_lifecycle_expiring(self) -> bool:
        """Answer whether a lifecycle run may come to take objects, and has not written down which.

        Ask after the record of a copy is written, as `check_not_expiring`. Costs a scan of the runs.
        """
        # A run that begins later reads the record of the copy. `Taken.find` has the objects that earlier runs took.
        runs = [record for _, record in await self.runs() if record.kind.takes_named]
        return any(record.state in TAKING and not record.swept for record in runs)

    async def check_contents(self, commits: Sequence[CommitId]) -> None:
        """Ask after the contents were read: contents read before the run gave them up stay readable for the grace
        that it waits then (lakebed.gc, flow.py). Heads of branches need no look. Costs one `get_many`.

        Raises:
            ContentsGone: a run gave one of these commits up.
        """
        for commit, run in (await self.swept_by(commits)).items():
            what = f"the contents of commit {commit[:12]} were taken by collection run {run}"
            raise ContentsGone(what, commit=commit, run=run)

    async def swept_by(self, commits: Sequence[CommitId]) -> dict[CommitId, RunId]:
        """Return which of these commits runs took, and which run. Commits of an undone run do not count.

        Costs one `get_many` and, where there are any, one more for their runs.
        """
        held = await self._context.get_many([keys.SWEPT + commit.encode() for commit in commits])
        found = {
            commit: RunId(decode_record(SweptRecord, one.value).run)
            for commit, one in zip(commits, held, strict=True)
            if one is not None
        }
        undone = await self.undone(found.values())
        return {commit: run for commit, run in found.items() if run not in undone}

    async def undone(self, runs: Iterable[RunId]) -> set[RunId]:
        """Return which of these runs were undone: for good. Costs one `get_many`, or nothing for no run."""
        ids = sorted(set(runs))
        held = await self._context.get_many([keys.RUN + run.encode() for run in ids]) if ids else []
        return {
            run
            for run, one in zip(ids, held, strict=True)
            if one is not None and decode_record(RunRecord, one.value).state is RunState.UNDONE
        }

    async def retired_by(self, ids: Sequence[str]) -> list[str]:
        """For each id of a file nothing, or the run that gave it up: then the file is written with that for a salt.

        One `get_many`, which for a writer must begin after the branch was read that the files are for.
        """
        found = await self._context.store.get_many(
            keys.retired_partition(self._context.uid), [id_.encode() for id_ in ids]
        )
        return ["" if held is None else held.value.decode() for held in found]

    async def took(self, error: FileCorrupt) -> CommitExpired | None:
        """Return an error that names the collection which took a missing file of a tree; None where none did."""
        [run] = await self.retired_by([error.id]) if error.reason == MISSING else [""]
        if not run:
            return None
        return CommitExpired(f"the contents of this commit were taken by collection run {run}", run=run)

    # For collectors: ids that may no longer be written

    async def retire(self, run: RunId, *, ids: Sequence[str], runs: Sequence[RunId]) -> None:
        """Retire these ids of files, and the folders of these runs, for ever. Nothing is ever taken out again."""
        names = [id_.encode() for id_ in ids] + [keys.retired_run(one) for one in runs]
        partition = keys.retired_partition(self._context.uid)
        for start in range(0, len(names), BATCH):
            await self._context.store.set_many(
                partition, [(name, run.encode()) for name in names[start : start + BATCH]]
            )

    async def are_retired(self, runs: Sequence[RunId]) -> list[bool]:
        """Answer for each run whether its folder was retired: then its plan can be published no more."""
        return [bool(by) for by in await self.retired_by([keys.retired_run(run).decode() for run in runs])]

    # For collectors: commits that a run expires

    async def expire(self, run: RunId, commits: Sequence[CommitId]) -> None:
        """Add commits to those that the run expires. They count while the run is expiring or sweeping."""
        partition = keys.expiring_partition(self._context.uid, run)
        for start in range(0, len(commits), BATCH):
            batch = commits[start : start + BATCH]
            await self._context.store.set_many(partition, [(commit.encode(), b"") for commit in batch])

    async def expiring(self, run: RunId) -> list[CommitId]:
        """Return the commits that the run expires now, in order of id."""
        partition = keys.expiring_partition(self._context.uid, run)
        found: list[CommitId] = []
        start: bytes | None = b""
        while start is not None:
            page = await self._context.store.scan(partition, start, BATCH)
            found += [CommitId(key.decode()) for key in page.keys]
            start = page.next_start
        return found

    async def release(self, run: RunId, commits: Iterable[CommitId]) -> None:
        """Take these commits out of those that the run expires."""
        partition = keys.expiring_partition(self._context.uid, run)
        names = sorted(commit.encode() for commit in commits)
        for start in range(0, len(names), BATCH):
            await self._context.store.delete_many(partition, names[start : start + BATCH])

    async def note_swept(self, run: RunId, commits: Sequence[CommitId]) -> set[RunId]:
        """Write for ever that the run took the data of these commits. Return the other runs that took some before.

        A record is never replaced, unless its run was undone. Costs a `get_many` for each thousand, and a conditional
        write for each commit.
        """
        others: set[RunId] = set()
        for start in range(0, len(commits), BATCH):
            batch = commits[start : start + BATCH]
            held = await self._context.get_many([keys.SWEPT + commit.encode() for commit in batch])
            by = [None if one is None else RunId(decode_record(SweptRecord, one.value).run) for one in held]
            # A call for an undone run that slept would give back what a later run took.
            undone = await self.undone({one for one in by if one not in (None, run)} if any(by) else ())
            others.update(one for one in by if one is not None and one != run and one not in undone)
            mine = [
                (keys.SWEPT + commit.encode(), None if one is None else one.predicate)
                for commit, one, taker in zip(batch, held, by, strict=True)
                if taker is None or taker in undone
            ]
            lost = await in_waves(
                self._context.ports.tasks, mine, lambda item: self._note_swept(item, run), most=_AT_ONCE
            )
            others.update(one for one in lost if one is not None)
        return others

    async def _note_swept(self, item: tuple[bytes, Predicate | None], run: RunId) -> RunId | None:
        """Return the run that was faster."""
        key, predicate = item
        retry = Retry()
        while True:
            try:
                await self._context.set_if(key, encode_record(SweptRecord(run=run)), predicate)
            except PredicateFailed:
                pass
            except OutcomeUnknown as error:
                retry.lost(error)
            else:
                return None
            held = await self._context.get(key)
            by = None if held is None else RunId(decode_record(SweptRecord, held.value).run)
            if by == run:
                return None
            if by is not None and not await self.undone([by]):
                return by
            predicate = None if held is None else held.predicate

    async def forget_swept(self, run: RunId, limit: int) -> int:
        """Remove at most `limit` records of an undone run. Return the count: below the limit, none is left."""
        page: list[bytes] = []
        async for key, value in self._context.scan(keys.SWEPT):
            if decode_record(SweptRecord, value).run == run:
                page.append(key)
                if len(page) == limit:
                    break
        await in_waves(self._context.ports.tasks, page, lambda key: self._forget_swept(key, run), most=_AT_ONCE)
        return len(page)

    async def _forget_swept(self, key: bytes, run: RunId) -> None:
        """A later run may have taken the commit meanwhile, and its record stays."""
        held = await self._context.get(key)
        if held is not None and decode_record(SweptRecord, held.value).run == run:
            with suppress(PredicateFailed):
                await self._context.delete_if(key, held.predicate)

    # For collectors: records of runs

    async def runs(self) -> list[tuple[RunId, RunRecord]]:
        """Return every run, oldest first."""
        found: list[tuple[RunId, RunRecord]] = []
        # As many as there were, and one that shows the end: makers of refs ask, and mostly there are few runs.
        async for names, values in scan_pages(
            self._context.store, self._context.partition, keys.RUN, first=min(self._runs_seen + 1, SCAN_PAGE)
        ):
            ids = [RunId(key[len(keys.RUN) :].decode()) for key in names]
            found += zip(ids, decode_records(RunRecord, values), strict=True)
        self._runs_seen = len(found)
        return found

    async def find_run(self, run: RunId) -> tuple[RunRecord, Held] | None:
        held = await self._context.get(keys.RUN + run.encode())
        return None if held is None else (decode_record(RunRecord, held.value), held)

    async def write_run(
        self, run: RunId, record: RunRecord, before: Held | None, *, by: str = "", step: str = ""
    ) -> Held:
        """Replace exactly `before` (None: there is none yet), with the change for events that this is, or `step`.

        Raises:
            PredicateFailed: another call moved the run.
            OutcomeUnknown: the answer was lost, and so was the record, or the store cannot be asked.
        """
        last = None if before is None else decode_record(RunRecord, before.value)
        # The callers' records may lack the latest change.
        changes = () if last is None else last.changes
        if step := step or record.step_from(last):
            changes = (*changes, Change(operation=step, at_ms=self._context.ports.clock.now_ms(), by=by))
        key, value = keys.RUN + run.encode(), encode_record(replace(record, changes=changes))
        try:
            return await self._context.set_if(key, value, None if before is None else before.predicate)
        except OutcomeUnknown:
            found = await self._context.get(key)
            if found is None or found.value != value:
                raise
            return found

    async def note_planned(self, run: RunId, record: PlannedRecord) -> PlannedRecord:
        """Write who planned the run, unless a record says so already. Return the record in force."""
        key = keys.PLANNED + run.encode()
        try:
            await self._context.set_if(key, encode_record(record), None)
        except (PredicateFailed, OutcomeUnknown):
            found = await self.find_planned(run)
            if found is None:
                raise
            return found
        return record

    async def find_planned(self, run: RunId) -> PlannedRecord | None:
        held = await self._context.get(keys.PLANNED + run.encode())
        return None if held is None else decode_record(PlannedRecord, held.value)

    async def planned(self) -> dict[RunId, PlannedRecord]:
        """Return who planned each run. Costs a scan."""
        found: dict[RunId, PlannedRecord] = {}
        pages = scan_pages(self._context.store, self._context.partition, keys.PLANNED, first=SCAN_PAGE)
        async for names, values in pages:
            ids = [RunId(key[len(keys.PLANNED) :].decode()) for key in names]
            found |= zip(ids, decode_records(PlannedRecord, values), strict=True)
        return found

    async def forget_planned(self, runs: Sequence[RunId]) -> None:
        """Remove who planned these runs. Their plans count as made by an unknown user from now on."""
        names = [keys.PLANNED + run.encode() for run in runs]
        for start in range(0, len(names), BATCH):
            await self._context.store.delete_many(self._context.partition, names[start : start + BATCH])

    async def forget_run(self, run: RunId, *, changes: int | None = None) -> bool:
        """Remove a run's record and its list of expired commits. False: there is none, or it was replaced meanwhile.

        With `changes`, that many changes of it have their events: keep the record if it has more.
        """
        key = keys.RUN + run.encode()
        held = await self._context.get(key)
        if held is None:
            return False
        if changes is not None and len(decode_record(RunRecord, held.value).changes) > changes:
            return False
        # The list first: a crash between the two leaves a record without a list, which the next pass finds.
        partition = keys.expiring_partition(self._context.uid, run)
        while (page := await self._context.store.scan(partition, b"", BATCH)).keys:
            await self._context.store.delete_many(partition, page.keys)
        try:
            await self._context.delete_if(key, held.predicate)
        except PredicateFailed:
            return False
        return True


def says_who_took(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """Wrap a method of a part with `_retired` that reads the contents of commits.

    Where a file is missing because a collection took it, the method raises CommitExpired.
    """

    @wraps(method)
    async def asking(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return await method(self, *args, **kwargs)
        except FileCorrupt as error:
            taken = await self._retired.took(error)
            if taken is None:
                raise
            raise taken from error

    return asking


def _expired(commit: CommitId, run: str) -> CommitExpired:
    return CommitExpired(f"commit {commit[:12]} was taken by collection run {run}", commit=commit, run=run)
