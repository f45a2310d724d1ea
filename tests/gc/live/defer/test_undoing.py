"""Undoing a deferred run: what can be read again, what stays, and what refuses."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import numpy as np
import pyarrow as pa
import pytest

from lakebed.base import CommitId, Conflict, RunId, parse_address
from lakebed.cli.gc.why import why_text
from lakebed.gc.kinds import kind_to_plan
from lakebed.gc.kinds.erasure.plan import Erasure
from lakebed.gc.live import NotRestorable, PolicyBook, RunMoved, WrongKind
from lakebed.gc.live.reading.commits import read_snapshot_for_metadata, read_swept
from lakebed.gc.live.reading.inputs import Inputs
from lakebed.gc.machine import flow
from lakebed.gc.messages import (
    EXPIRED,
    GARBAGE,
    Defer,
    ErasureOrder,
    Expire,
    Fate,
    Mode,
    Purge,
    Restore,
    RunAbandoned,
    RunKind,
    RunReport,
    RunState,
    RunView,
    StartRun,
    Sweep,
    UncommittedOptions,
    Undo,
    Undone,
)
from lakebed.gc.rules import MetadataRule, Selection, days_rules
from lakebed.kv import Page
from lakebed.kv.drivers.memory import MemoryStore
from lakebed.objectstore import MemoryObjectStore
from lakebed.versions import CommitExpired, ContentsGone, PathExpired, RunRecord, SweptRecord, keys
from tests.gc.conftest import Lake
from tests.gc.specified import plan_of

EVERY_FILE: Final = MetadataRule(file_age_ms_min=-1, runs_newest=0, run_age_ms_min=-1)
POLICY: Final = b'{"due": {"prefix": "a", "days": 1}}'


class Story(Lake):
    """A repository in which runs of the shipped flow collect."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store, MemoryObjectStore("mem://tests", now_ms=lambda: self.clock.ms))

    @classmethod
    async def opened(cls, store: MemoryStore) -> Story:
        lake = cls(store)
        await lake.versions.commits.initialise("main")
        return lake

    async def plan(self, kind: RunKind, mode: Mode = Mode.CLEAN) -> str:
        options = UncommittedOptions(mode=mode)
        return (await flow.plan(self.collector().context, kind_to_plan(kind, options, EVERY_FILE))).run_id

    async def apply(self, run_id: str, window: str | None = None) -> RunReport:
        return await flow.apply(self.collector().context, run_id, window=window, grace_s=0)

    async def run(self, kind: RunKind, window: str | None = None) -> str:
        run_id = await self.plan(kind)
        await self.apply(run_id, window)
        return run_id

    async def undo(self, run_id: str, *, dry_run: bool = False) -> Undone:
        return await self.service.undo(run_id, Undo(dry_run=dry_run))

    async def history(self, *contents: str) -> list[CommitId]:
        """Commit these contents of `a`, one after the other."""
        found = []
        for content in contents:
            await self.put("main", "a", content)
            found.append((await self.commit("main")).id)
        return found

    async def expired(self, *contents: str, window: str = "7d") -> tuple[str, list[CommitId]]:
        """Let a run take all commits but the last of these, and keep their objects for a window."""
        commits = await self.history(*contents)
        await self.service.rules.write(days_rules(1, {}))
        self.days(2)
        await self.put("main", "z", "head")
        await self.commit("main")
        self.days(2)
        return await self.run(RunKind.COMMITTED, window), commits

    async def read(self, ref: str) -> str:
        entry = await self.versions.staging.get(ref, b"a")
        await self.versions.taken.check(entry)
        return (await self.objectstore.get(entry.address)).decode()

    async def record(self, run_id: str) -> RunRecord:
        found = await self.versions.retired.find_run(RunId(run_id))
        assert found is not None
        return found[0]

    async def swept(self) -> Mapping[str, str]:
        return {name: one.run async for name, one in self.versions.inventory.every(SweptRecord)}


@pytest.fixture
async def lake() -> Story:
    return await Story.opened(MemoryStore())


async def test_the_commits_of_an_undone_run_can_be_read_and_named_again(lake: Story) -> None:
    run_id, [first, *_] = await lake.expired("one", "two")
    with pytest.raises(ContentsGone):
        await lake.read(first)

    undone = await lake.undo(run_id)

    assert (undone.state, undone.is_done, undone.objects) == (RunState.UNDONE, True, 1)
    assert undone.commits >= 1
    assert await lake.read(first) == "one"
    await lake.versions.refs.create_branch("back", first)
    assert await lake.read("back") == "one"
    assert await lake.swept() == {}


async def test_without_undo_a_commit_that_a_run_took_cannot_be_named(lake: Story) -> None:
    run_id, [first, *_] = await lake.expired("one", "two")
    undone = await lake.undo(run_id, dry_run=True)

    with pytest.raises(CommitExpired):
        await lake.versions.refs.create_branch("back", first)

    assert undone.state is RunState.SWEEPING


async def test_the_rules_that_would_take_the_commits_again_are_told(lake: Story) -> None:
    run_id, _ = await lake.expired("one", "two")

    before = await lake.undo(run_id, dry_run=True)
    await lake.service.rules.write(days_rules(30, {"main": 30}))
    after = await lake.undo(run_id, dry_run=True)

    assert [(one.rule, one.commits) for one in before.again] == [("default: 1d", before.commits)]
    assert after.again == ()


async def test_an_undone_run_is_neither_purged_nor_applied_nor_restored_from(lake: Story) -> None:
    run_id, [first, *_] = await lake.expired("one", "two")
    await lake.undo(run_id)
    lake.days(30)

    purged = await flow.purge(lake.collector().context, grace_s=0)

    assert (purged.purged, purged.waiting) == ((), ())
    with pytest.raises(Exception, match=r"is undone"):
        await lake.apply(run_id)
    with pytest.raises(NotRestorable, match="undone"):
        await lake.service.restore(Restore(run_id=run_id))
    assert await lake.read(first) == "one"


async def test_an_undo_is_repeated_without_harm(lake: Story) -> None:
    run_id, _ = await lake.expired("one", "two")
    await lake.undo(run_id)

    again = await lake.undo(run_id)

    assert (again.state, again.is_done) == (RunState.UNDONE, True)


async def test_a_run_whose_purge_began_is_not_undone(lake: Story) -> None:
    run_id, [first, *_] = await lake.expired("one", "two")
    lake.days(8)
    await flow.purge(lake.collector().context, grace_s=0)

    with pytest.raises(RunMoved, match="has ended"):
        await lake.undo(run_id)
    with pytest.raises(ContentsGone):
        await lake.read(first)


async def test_only_a_deferred_run_is_undone(lake: Story) -> None:
    await lake.history("one")
    run_id = await lake.run(RunKind.METADATA)

    with pytest.raises(WrongKind):
        await lake.undo(run_id)


async def test_a_later_run_that_counts_on_what_a_run_took_is_undone_first(lake: Story) -> None:
    first_run, [first, *_] = await lake.expired("one", "two")
    await lake.put("main", "a", "three")
    await lake.commit("main")
    lake.days(3)
    second_run = await lake.run(RunKind.COMMITTED, "7d")

    with pytest.raises(Conflict, match=second_run):
        await lake.undo(first_run)
    await lake.undo(second_run)
    await lake.undo(first_run)

    assert await lake.read(first) == "one"


async def test_a_run_is_not_undone_once_a_later_one_deleted_what_it_had_shared(lake: Story) -> None:
    first_run, _ = await lake.expired("one", "two")
    await lake.put("main", "a", "three")
    await lake.commit("main")
    lake.days(3)
    second_run = await lake.run(RunKind.COMMITTED)

    with pytest.raises(Conflict, match=f"run {second_run} deletes, or deleted"):
        await lake.undo(first_run)


async def let_off(lake: Story) -> tuple[str, CommitId]:
    """Return a deferred run and its commit, whose object was staged when the run looked, and is not any more."""
    commits = await lake.history("one", "two")
    await lake.service.rules.write(days_rules(1, {}))
    await lake.versions.copies.copy(commits[0], b"a", "main", b"copied", shallow=True)
    lake.days(4)
    run_id = await lake.run(RunKind.COMMITTED, "7d")
    await lake.versions.staging.delete("main", b"copied")
    lake.days(1)
    await lake.versions.cleanup.clean()
    return run_id, commits[0]


async def test_what_a_run_let_off_stays_while_the_run_can_be_undone(lake: Story) -> None:
    run_id, commit = await let_off(lake)
    await lake.run(RunKind.UNCOMMITTED)

    await lake.undo(run_id)

    assert await lake.read(commit) == "one"


async def test_why_names_the_run_whose_undo_brings_back_the_commits_of_an_object(lake: Story) -> None:
    run_id, commit = await let_off(lake)
    until_ms = dict(await lake.versions.retired.runs())[RunId(run_id)].until_ms

    answer = await lake.service.why.ask(ref=commit, path="a")
    text = "\n".join(why_text(answer, repository="lake"))

    (found,) = answer.objects
    assert (found.fate, found.goes_ms) == (Fate.KEPT, until_ms)
    assert [(stay.kind, stay.name, stay.until_ms) for stay in found.stays] == [("undo", run_id, until_ms)]
    assert [(name.commit, name.path, name.run) for name in found.commits] == [(commit, "a", run_id)]
    assert f"run {run_id}, which can be undone until its purge begins" in text
    assert f"lakebed gc restore lakefs://lake {run_id} --undo" in text


async def test_why_finds_by_its_path_what_only_an_undo_brings_back(lake: Story) -> None:
    run_id, _ = await let_off(lake)

    found = (await lake.service.why.ask(ref="no-such-branch", path="a")).objects

    assert [stay.name for one in found for stay in one.stays if stay.kind == "undo"] == [run_id]


async def test_the_trees_of_a_run_that_can_be_undone_stay(lake: Story) -> None:
    run_id, [first, *_] = await lake.expired("one", "two")
    await lake.run(RunKind.METADATA)
    await lake.undo(run_id)
    await lake.run(RunKind.METADATA)

    assert await lake.server().staging.get(first, b"a")


async def test_runs_after_an_undo_take_what_the_rules_still_let_go(lake: Story) -> None:
    run_id, [first, *_] = await lake.expired("one", "two")
    await lake.undo(run_id)

    await lake.run(RunKind.COMMITTED)

    with pytest.raises(ContentsGone):
        await lake.read(first)
    assert set((await lake.swept()).values()).isdisjoint({run_id})


async def test_a_sweep_that_slept_does_not_give_back_what_a_later_run_took(lake: Story) -> None:
    run_id, [first, *_] = await lake.expired("one", "two")
    await lake.undo(run_id)
    later = await lake.run(RunKind.COMMITTED)

    await lake.versions.retired.note_swept(RunId(run_id), [first])

    assert (await lake.swept())[first] == later


async def test_a_record_that_an_undone_run_writes_late_counts_for_nothing(lake: Story) -> None:
    run_id, [first, *_] = await lake.expired("one", "two")
    await lake.undo(run_id)

    await lake.versions.retired.note_swept(RunId(run_id), [first])

    assert await lake.read(first) == "one"
    await lake.versions.refs.create_branch("back", first)
    await lake.run(RunKind.UNCOMMITTED)
    assert await lake.read("back") == "one"


async def test_commits_without_objects_of_their_own_wait_for_the_window_too(lake: Story) -> None:
    """Of a table that only grows each old commit goes without an object."""
    await lake.put("main", "a", "one")
    first = (await lake.commit("main")).id
    for path in ("b", "c"):
        await lake.put("main", path)
        await lake.commit("main")
    await lake.service.rules.write(days_rules(1, {}))
    lake.days(4)
    run_id = await lake.run(RunKind.COMMITTED, "7d")

    undone = await lake.undo(run_id)

    assert (undone.objects, undone.commits > 0) == (0, True)
    assert await lake.read(first) == "one"


async def test_uncommitted_data_of_an_undone_run_goes_with_the_next_run(lake: Story) -> None:
    address = await lake.put("main", "a")
    await lake.versions.staging.delete("main", b"a")
    await lake.versions.slices.end()
    run_id = await lake.run(RunKind.UNCOMMITTED, "7d")
    await lake.undo(run_id)
    there = await lake.objects()

    await lake.run(RunKind.UNCOMMITTED)

    assert (address in there, address in await lake.objects()) == (True, False)


async def test_what_an_undone_lifecycle_run_took_can_be_read_again(lake: Story) -> None:
    await PolicyBook(lake.versions).write(POLICY)
    await lake.history("one")
    lake.days(4)
    run_id = await lake.run(RunKind.LIFECYCLE, "7d")
    with pytest.raises(PathExpired):
        await lake.read("main")

    undone = await lake.undo(run_id)

    assert await lake.read("main") == "one"
    assert [one.objects for one in undone.again] == [1]
    lake.days(30)
    await flow.purge(lake.collector().context, grace_s=0)
    assert await lake.read("main") == "one"


async def test_what_an_undone_lifecycle_run_notes_late_counts_for_nothing(lake: Story) -> None:
    await PolicyBook(lake.versions).write(POLICY)
    await lake.history("one")
    lake.days(4)
    run_id = await lake.run(RunKind.LIFECYCLE, "7d")
    await lake.undo(run_id)
    place = parse_address((await lake.versions.staging.get("main", b"a")).address)
    assert place is not None

    slices, numbers = np.array([place[0]]), np.array([place[1]])
    await lake.versions.taken.add(run_id, [(0, slices, numbers, ())])

    assert await lake.read("main") == "one"


async def test_an_erasure_is_counted_however_little_it_takes(lake: Story) -> None:
    """It selects by paths, and has not seen those of commits that were gone."""
    run_id, _ = await lake.expired("one", "two")
    await lake.put("main", "e")
    await lake.versions.copies.copy("main", b"e", "main", b"f", shallow=True)
    await lake.commit("main")
    order = ErasureOrder(selection=Selection(paths=("e",)), why="asked for")
    made = await flow.plan(lake.collector().context, Erasure(order))
    await lake.apply(made.run_id)

    assert made.garbage.rows == 0
    with pytest.raises(Conflict, match=made.run_id):
        await lake.undo(run_id)


async def test_the_record_of_an_undone_run_is_never_removed(lake: Story) -> None:
    run_id, _ = await lake.expired("one", "two")
    await lake.undo(run_id)

    await lake.run(RunKind.METADATA)
    await lake.run(RunKind.METADATA)

    assert (await lake.record(run_id)).state is RunState.UNDONE


async def test_of_two_runs_that_took_one_commit_the_first_is_not_undone(lake: Story) -> None:
    """Both were published before either swept. Undone, the first would give back what the second deletes."""
    await lake.service.rules.write(days_rules(1, {}))
    [old, _] = await lake.history("one", "two")
    lake.days(4)
    published = []
    for _ in range(2):
        run_id = RunId((await lake.service.start(StartRun(kind=RunKind.COMMITTED))).run_id)
        inputs = Inputs(lake.objectstore, RunKind.COMMITTED, run_id)
        expired = await inputs.write_table(EXPIRED, EXPIRED.name, pa.table({"id": pa.array([old], pa.string())}))
        answer = await lake.service.expire(run_id, Expire(commits=expired, rules_version=1))
        assert answer.commits is not None
        plan = await inputs.write_table(GARBAGE, GARBAGE.name, plan_of(frozenset(), reason="expired"))
        published.append((run_id, plan, answer.commits))
    for run_id, plan, commits in published:
        await lake.service.sweep(run_id, Sweep(plan=plan, commits=commits))

    (first, plan, _), (second, _, _) = published
    await lake.service.defer(first, Defer(plan=plan, window="7d"))

    with pytest.raises(Conflict, match=second):
        await lake.undo(first)


async def test_a_run_is_refused_that_counted_on_one_that_was_undone_before_it_swept(lake: Story) -> None:
    first_run, [first, *_] = await lake.expired("one", "two")
    await lake.put("main", "a", "three")
    await lake.commit("main")
    lake.days(3)
    second_run = await lake.plan(RunKind.COMMITTED)
    sweeping = lake.service.sweep

    async def undone_first(run_id: str, body: Sweep) -> RunView:
        await lake.undo(first_run)
        return await sweeping(run_id, body)

    lake.service.sweep = undone_first
    with pytest.raises(RunAbandoned, match=f"run {first_run} was undone"):
        await lake.apply(second_run)
    lake.service.sweep = sweeping

    await lake.apply(second_run)
    assert await lake.read(first) == "one"


class Undoing(MemoryStore):
    """Undoes a run once the first page of what was swept is read."""

    undo: Callable[[], Awaitable[object]] | None = None

    async def scan(self, partition: bytes, start: bytes, limit: int) -> Page:
        page = await super().scan(partition, start, limit)
        if self.undo is not None and start == keys.SWEPT and limit > 1:
            undo, self.undo = self.undo, None
            await undo()
        return page


async def test_a_run_that_is_undone_while_swept_records_are_read_is_seen_to_be() -> None:
    store = Undoing()
    lake = await Story.opened(store)
    run_id, [first, *_] = await lake.expired("one", "two")
    store.undo = lambda: lake.undo(run_id)

    swept = await read_swept(lake.versions)

    assert first not in swept.commits


async def test_the_trees_of_a_run_that_is_undone_while_a_collection_looks_stay(lake: Story) -> None:
    run_id, [first, *_] = await lake.expired("one", "two")
    read, readings = lake.versions.retired.runs, 0

    async def undone_first() -> list[tuple[RunId, RunRecord]]:
        """The snapshot reads the runs, and so does the look at young ones."""
        nonlocal readings
        readings += 1
        if readings == 2:
            await lake.undo(run_id)
        return await read()

    lake.versions.retired.runs = undone_first  # type: ignore[method-assign]  # the undo comes between two readings
    snapshot = await read_snapshot_for_metadata(lake.versions, grace_ms=0)

    assert first not in snapshot.swept


async def test_what_a_run_holds_whose_purge_began_is_in_no_plan_of_uncommitted_data(lake: Story) -> None:
    """Its commits are gone for good by then, and name nothing."""
    run_id, _ = await lake.expired("one", "two")
    lake.days(8)
    await lake.service.purge(run_id, Purge())

    plan = await flow.plan(
        lake.collector().context, kind_to_plan(RunKind.UNCOMMITTED, UncommittedOptions(mode=Mode.CLEAN), EVERY_FILE)
    )

    assert plan.garbage.rows == 0
