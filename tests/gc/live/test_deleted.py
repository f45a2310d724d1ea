"""Collect the objects of deleted repositories, and use their namespaces again: all of it shipped code."""

from __future__ import annotations

import copy
import io
import random
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial

import pyarrow.parquet as pq
import pytest
from msgspec import structs

from lakebed.base import (
    Conflict,
    Corrupt,
    Entry,
    LakebedError,
    MetarangeId,
    NotFound,
    OutcomeUnknown,
    Ports,
    RepositoryUid,
    RunId,
    from_row,
)
from lakebed.catalog import Catalog, DeletedNotFound, DeleteProtected, NamespaceInUse, Repository, WindowNotOver
from lakebed.catalog.deleted import DeletedRepositories
from lakebed.gc.engines import LocalEngine
from lakebed.gc.kinds.deleted.plan import Deleted
from lakebed.gc.kinds.uncommitted.plan import Uncommitted
from lakebed.gc.live import CollectionService, DeletedCollections, HoldBook, OtherInstallation, WrongKind, open_deleted
from lakebed.gc.live.explain.searches import Searches
from lakebed.gc.live.options import ServiceOptions
from lakebed.gc.live.reading.elsewhere import Elsewhere, NamedElsewhere
from lakebed.gc.machine import flow
from lakebed.gc.machine.preflight import OtherStore
from lakebed.gc.mark.inputs.listing import is_metadata
from lakebed.gc.messages import (
    GARBAGE,
    Fate,
    NewHold,
    Plan,
    PrepareCommits,
    PreparedCommits,
    Question,
    Requests,
    RunKind,
    RunReport,
    RunState,
    Service,
    StartRun,
    UncommittedOptions,
    WhyAnswer,
    encode_plan,
    plan_path,
)
from lakebed.gc.rules import judge_deleted
from lakebed.gc.rules.committed import Namespace
from lakebed.gc.runs.context import RunContext, read_garbage, write_input
from lakebed.kv import Predicate, PredicateFailed
from lakebed.kv.drivers.memory import MemoryStore
from lakebed.objectstore import DeleteFailure, MemoryDeleter, MemoryObjectStore, ObjectStore
from lakebed.ranges import RangeInfo, encode_metarange, metarange_key, range_key
from lakebed.runtime import LiveIds, LiveTasks
from lakebed.versions import Note, Options, SliceRecord, TreeCache, Trees, Versions, keys
from tests.clocks import TurnableClock
from tests.gc.garbage import forged

DAY_MS = 86_400_000
HOUR_MS = 3_600_000


class Refusing:
    """A deleter that may not."""

    uri = "mem://lake"

    async def delete(self, keys: Sequence[str]) -> Sequence[DeleteFailure]:
        return [DeleteFailure(key=key, reason="no") for key in keys]

    async def close(self) -> None:
        return


class Installation:
    """A server's catalog, the namespaces it opened, and a clock that the test turns."""

    def __init__(self) -> None:
        self.clock = TurnableClock()
        self.ports = Ports(self.clock, LiveIds(), LiveTasks())
        self.store = MemoryStore()
        self.stores: dict[str, MemoryObjectStore] = {}
        self.catalog = self.server()

    def server(self) -> Catalog:
        cache = TreeCache(1 << 20)

        def make_versions(uid: RepositoryUid, objectstore: ObjectStore, salt: str) -> Versions:
            trees = Trees(objectstore, cache, self.ports, salt=salt)
            options = Options(owner=self.ports.ids.fresh())
            return Versions(
                uid=uid, store=self.store, objectstore=objectstore, trees=trees, ports=self.ports, options=options
            )

        return Catalog(store=self.store, ports=self.ports, open_namespace=self.open, make_versions=make_versions)

    def open(self, uri: str) -> ObjectStore:
        return self.stores.setdefault(uri, MemoryObjectStore(uri, now_ms=self.clock.now_ms))

    async def repository(self, name: str = "lake", uri: str = "mem://lake") -> Repository:
        made = await self.catalog.create(name, storage_namespace=uri)
        await made.objects.upload("main", "a", b"1")
        await made.changes.commit("main", Note(message="m", committer="ann"))
        await made.objects.upload("main", "b", b"2")
        return made

    async def deleted(self, name: str = "lake", uri: str = "mem://lake") -> Repository:
        made = await self.repository(name, uri)
        await self.catalog.delete(name)
        return made

    def days(self, count: float) -> None:
        self.clock.ms += int(count * DAY_MS)

    async def service(self, name: str = "lake") -> DeletedCollections:
        return await open_deleted(self.catalog, name, "")

    async def context(self, name: str = "lake") -> RunContext:
        return await self.context_of(await self.service(name), name)

    async def context_of(self, service: Requests, name: str = "lake") -> RunContext:
        store = self.open("mem://lake" if name == "lake" else f"mem://{name}")
        assert isinstance(store, MemoryObjectStore)
        return RunContext(
            repository=name,
            service=Service(service),
            engine=LocalEngine(store, self.ports, open_deleter=lambda: MemoryDeleter(store), shares=2),
            store=store,
            ports=self.ports,
            progress=lambda _: None,
        )

    async def upkeep(self) -> None:
        """Let the records go, and come again when every older request is over."""
        for _ in range(3):
            self.clock.ms += HOUR_MS
            await self.catalog.clean()

    async def collected(self) -> Repository:
        made = await self.deleted()
        self.days(8)
        await self.apply(await self.plan())
        return made

    async def plan(self, name: str = "lake") -> Plan:
        return await flow.plan(await self.context(name), Deleted())

    async def apply(self, plan: Plan, name: str = "lake") -> RunReport:
        return await flow.apply(await self.context(name), plan.run_id)

    async def keys(self, uri: str = "mem://lake") -> set[str]:
        return {stat.key async for page in self.open(uri).list("") for stat in page}

    async def state(self, name: str = "lake") -> str:
        return next(one.record.state.value for one in await self.catalog.deleted.list(prefix=name))


@pytest.fixture
def here() -> Installation:
    return Installation()


async def test_collecting_takes_a_dump_of_refs(here: Installation) -> None:
    made = await here.repository()
    await made.dumps.dump()
    await here.catalog.delete("lake")
    here.days(8)

    await here.apply(await here.plan())

    assert not [key for key in await here.keys() if key.startswith("_lakefs/refs/")]


async def test_collecting_takes_data_trees_and_runs_and_keeps_the_marker_and_the_ledger(here: Installation) -> None:
    made = await here.deleted()
    here.days(8)

    plan = await here.plan()
    report = await here.apply(plan)

    left = await here.keys()
    assert report.objects_deleted == plan.totals.all.objects == 4
    assert not [key for key in left if key.startswith("data/") or (is_metadata(key) and plan.run_id not in key)]
    assert "_lakefs/dummy" in left
    assert any("/ledger/" in key for key in left)
    assert await here.state() == "collected"
    assert made.record.marker.encode() == await here.open("mem://lake").get("_lakefs/dummy")


async def test_a_search_of_many_pages_through_the_other_repositories_comes_to_its_end(here: Installation) -> None:
    """More pages than a collector takes for a circle where a token comes twice."""
    other = await here.repository("other", "mem://other")
    for number in range(6):
        await other.objects.upload("main", f"more/{number}", b"x")
        await other.changes.commit("main", Note(message="m", committer="ann"))
    await here.deleted()
    here.days(8)
    searches = Searches(here.ports, files_a_page=1)
    context = await here.context_of(await open_deleted(here.catalog, "lake", "", searches=searches))

    plan = await flow.plan(context, Deleted())
    report = await flow.apply(context, plan.run_id)

    assert report.objects_deleted == plan.totals.all.objects == 4
    assert await here.state() == "collected"


class Counted(MemoryObjectStore):
    """Notes which ranges are read."""

    def __init__(self, uri: str) -> None:
        super().__init__(uri)
        self.read: list[str] = []

    async def get(self, key: str, *, start: int = 0, end: int | None = None) -> bytes:
        if "/ranges/" in key:
            self.read.append(key)
        return await super().get(key, start=start, end=end)


@pytest.mark.parametrize("is_one_lost", [False, True])
async def test_ranges_that_swept_trees_share_are_read_once(here: Installation, is_one_lost: bool) -> None:
    """A tree that a collection of metadata deleted in part hides no range of the others."""
    here.stores["mem://other"] = store = Counted("mem://other")
    other = await here.catalog.create("other", storage_namespace="mem://other")
    ranges: list[RangeInfo] = []
    for path in ("a", "b", "c"):
        address = "mem://lake/imported" if path == "c" else f"s3://elsewhere/{path}"
        entry = Entry(address=address, size_bytes=1, checksum=path, modified_ms=0)
        await other.versions.staging.put("main", path.encode(), entry)
        commit = await other.changes.commit("main", Note(message="m", committer="ann"))
        await other.versions.retired.note_swept(RunId("earlier"), [commit.id])
        ranges += await other.versions.trees.ranges(commit.metarange_id)
        await other.versions.staging.delete("main", path.encode())
    await other.changes.commit("main", Note(message="m", committer="ann"))
    a, b, c = ranges
    for shared in ([a, c], [b, c], [a, b, c], [a, b]):
        id_, data = encode_metarange(shared)
        await store.put(metarange_key(id_), data)
        record = structs.replace(commit, metarange_id=MetarangeId(id_))
        swept = await other.versions.context.commits.write(record)
        await other.versions.retired.note_swept(RunId("earlier"), [swept])
    if is_one_lost:
        await MemoryDeleter(store).delete([range_key(a.id)])
    store.read.clear()

    steps = Elsewhere("mem://lake", lambda: here.catalog.others(RepositoryUid("x")), ServiceOptions()).steps()
    [found] = [step async for step in steps if isinstance(step, NamedElsewhere)]

    assert found.names == {"mem://lake/imported": "other"}
    if not is_one_lost:
        assert sorted(store.read) == sorted(2 * [range_key(one.id) for one in ranges]), "the end of each, and its rows"


async def test_nothing_is_deleted_while_the_repository_can_be_brought_back(here: Installation) -> None:
    await here.deleted()
    plan = await here.plan()
    before = await here.keys()

    with pytest.raises(WindowNotOver):
        await here.apply(plan)

    assert {key for key in before if key.startswith("data/")} <= await here.keys()
    assert (await here.catalog.undelete("lake")).id == "lake"


async def test_a_plan_from_within_the_window_is_made_again_after_it(here: Installation) -> None:
    """An upload that was under way at the deletion may have put its bytes after that plan listed."""
    await here.deleted()
    early = await here.plan()
    here.days(8)

    with pytest.raises(WindowNotOver, match="plan again"):
        await here.apply(early)

    assert await here.state() == "kept"


async def test_a_window_is_over_once_both_clocks_say_so(here: Installation) -> None:
    uid = (await here.deleted()).record.uid
    store_ms = here.clock.now_ms()
    here.days(8)

    with pytest.raises(WindowNotOver):
        await here.catalog.deleted.begin_collecting(uid, planned_ms=here.clock.now_ms(), store_ms=store_ms)

    assert await here.state() == "kept"


async def test_nothing_brings_back_a_repository_that_is_being_collected(here: Installation) -> None:
    await here.collected()

    with pytest.raises(NotFound, match="collected"):
        await here.catalog.undelete("lake")
    with pytest.raises(NotFound, match="collected"):
        await here.catalog.deleted.forget("lake")


async def test_a_repository_that_came_back_is_not_collected_by_an_old_plan(here: Installation) -> None:
    await here.deleted()
    here.days(8)
    plan, context = await here.plan(), await here.context()
    await here.catalog.undelete("lake")

    with pytest.raises(NotFound):
        await flow.apply(context, plan.run_id)
    await here.catalog.delete("lake")
    here.days(8)
    with pytest.raises(WindowNotOver, match="plan again"):
        await here.apply(plan)

    assert [key for key in await here.keys() if key.startswith("data/")]


async def test_only_what_is_own_by_record_goes(here: Installation) -> None:
    made = await here.deleted()
    [own] = [name async for name, _ in made.versions.inventory.every(SliceRecord)]
    stays = {
        "data/0000000000000/00000001",
        "data/notes.txt",
        f"data/{own}/readme",
        f"data/{own}/00000001/deeper",
        "inner/_lakefs/dummy",
        "inner/data/0000000000000/00000001",
        "imported/x",
        "_lakefs/ranges/a colleague's backup",
    }
    for key in stays:
        await here.open("mem://lake").put(key, b"x")
    here.days(8)

    plan = await here.plan()
    report = await here.apply(plan)

    assert stays <= await here.keys()
    assert report.objects_failed == 0
    assert plan.unknown_files_count >= 5


@pytest.mark.parametrize("how", ["staged", "committed", "swept", "of a deleted one", "spelt otherwise"])
async def test_what_another_repository_names_stays_until_it_is_named_no_more(here: Installation, how: str) -> None:
    made = await here.repository()
    _, row = (await made.versions.staging.list("main")).items[0]
    assert row is not None
    entry = from_row(row)
    other = await here.catalog.create("other", storage_namespace="mem://other")
    uri = f"{'MEM' if how == 'spelt otherwise' else 'mem'}://lake/{entry.address}"
    named = Entry(address=uri, size_bytes=1, checksum="x", modified_ms=0)
    await other.versions.staging.put("main", b"theirs", named)
    if how in {"committed", "swept"}:
        commit = await other.changes.commit("main", Note(message="m", committer="ann"))
    if how == "swept":  # Its tree is there until a collection of metadata takes it.
        await other.versions.staging.delete("main", b"theirs")
        await other.changes.commit("main", Note(message="m", committer="ann"))
        await other.versions.retired.note_swept(RunId("earlier"), [commit.id])
    await here.catalog.delete("lake")
    if how == "of a deleted one":
        await here.catalog.delete("other")
    here.days(8)

    plan = await here.plan()
    report = await here.apply(plan)

    assert entry.address in await here.keys()
    assert report.objects_deleted == plan.totals.all.objects == 3
    assert await here.state() == "collecting"
    await here.upkeep()
    assert await here.state() == "collecting"
    if how == "of a deleted one":
        await here.catalog.deleted.forget("other")
    elif how == "swept":
        await MemoryDeleter(here.stores["mem://other"]).delete([metarange_key(commit.metarange_id)])
    elif how != "committed":
        await other.versions.staging.delete("main", b"theirs")
    else:
        await here.catalog.delete("other")
        await here.catalog.deleted.forget("other")
    await here.apply(await here.plan())
    assert entry.address not in await here.keys()
    assert await here.state() == "collected"


async def test_the_names_of_other_repositories_are_written_by_the_row_group(here: Installation) -> None:
    """A row that waits for its group takes 2 KB: a million of them would take as many megabytes as a server has."""
    await here.repository()
    other = await here.catalog.create("other", storage_namespace="mem://other")
    for number in range(5):
        named = Entry(address=f"mem://lake/data/x/{number}", size_bytes=1, checksum="x", modified_ms=0)
        await other.versions.staging.put("main", b"%d" % number, named)
    await here.catalog.delete("lake")
    here.days(8)

    service = await open_deleted(here.catalog, "lake", "", ServiceOptions(group_rows=2))
    await flow.plan(await here.context_of(service), Deleted())

    [part] = [key for key in await here.keys() if re.search(r"/uncommitted/[^/]+\.parquet$", key)]
    assert pq.read_metadata(io.BytesIO(await here.open("mem://lake").get(part))).num_row_groups == 3


async def test_what_another_repository_came_to_name_after_the_plan_stays(here: Installation) -> None:
    made = await here.deleted()
    here.days(8)
    plan = await here.plan()
    address = f"mem://lake/{min(key for key in await here.keys() if key.startswith('data/'))}"
    other = await here.catalog.create("other", storage_namespace="mem://other")
    named = Entry(address=address, size_bytes=1, checksum="x", modified_ms=0)
    await other.versions.staging.put("main", b"theirs", named)

    report = await here.apply(plan)

    assert report.objects_deleted == plan.totals.all.objects - 1
    assert address.removeprefix("mem://lake/") in await here.keys()
    assert made.record.uid


async def test_a_forged_plan_takes_neither_what_another_repository_names_nor_what_lies_in_no_slice_on_record(
    here: Installation,
) -> None:
    await here.deleted()
    here.days(8)
    store = here.stores["mem://lake"]
    named = min(key for key in await here.keys() if key.startswith("data/"))
    other = await here.catalog.create("other", storage_namespace="mem://other")
    entry = Entry(address=f"mem://lake/{named}", size_bytes=1, checksum="x", modified_ms=0)
    await other.versions.staging.put("main", b"theirs", entry)
    plan = await here.plan()
    strange = "data/0123456789abc/00000001"
    await store.put(strange, b"x")
    rows = forged([named, strange], seen_ms=here.clock.ms)
    table = await write_input(store, f"{plan.folder}garbage.forged/", GARBAGE, rows)
    await store.put(plan_path(plan.kind, plan.run_id), encode_plan(structs.replace(plan, garbage=table)))

    await here.apply(plan)

    assert {named, strange} <= await here.keys()


async def test_an_apply_over_a_copy_of_a_deleted_repository_is_refused(here: Installation) -> None:
    await here.deleted()
    here.days(8)
    plan, context = await here.plan(), await here.context()
    copy = MemoryObjectStore("mem://lake", now_ms=here.clock.now_ms)
    copy.objects = dict(here.stores["mem://lake"].objects)
    engine = LocalEngine(copy, here.ports, open_deleter=lambda: MemoryDeleter(copy), shares=2)

    with pytest.raises(OtherStore):
        await flow.apply(replace(context, store=copy, engine=engine), plan.run_id)

    assert copy.objects.keys() >= {key for key in await here.keys() if key.startswith("data/")}
    assert (await here.apply(plan)).objects_deleted == plan.totals.all.objects


async def test_an_unreadable_tree_of_another_repository_stops_the_collection(here: Installation) -> None:
    await here.deleted()
    await here.repository("other", "mem://other")
    here.days(8)
    plan = await here.plan()
    for key in await here.keys("mem://other"):
        if key.startswith("_lakefs/metaranges/"):
            await MemoryDeleter(here.stores["mem://other"]).delete([key])
    before = await here.keys()

    with pytest.raises(LakebedError, match="missing"):
        await here.apply(plan)

    assert {key for key in before if key.startswith("data/")} <= await here.keys()


async def why(here: Installation, **question: str) -> WhyAnswer:
    return await Service(await here.service()).why(Question(**question))


async def test_why_says_from_when_an_object_of_a_deleted_repository_goes_and_when_it_went(here: Installation) -> None:
    await here.deleted()
    before = await here.keys()
    [by_path] = (await why(here, ref="main", path="a")).objects
    assert by_path.fate is Fate.DELETED
    assert by_path.goes_ms == (await here.plan()).delete_from_ms == here.clock.now_ms() + 7 * DAY_MS
    here.days(8)

    await here.apply(await here.plan())

    answer = await why(here, address=f"mem://lake/{by_path.address}")
    assert (answer.deleted_uid != "", answer.has_rules) == (True, False)
    assert [(one.address, one.fate) for one in answer.objects] == [(by_path.address, Fate.TAKEN)]
    assert answer.objects[0].taken[0].reason == "deleted-repository"
    for address in before - await here.keys() - {by_path.address}:
        [one] = (await why(here, address=address)).objects
        assert one.fate is Fate.TAKEN


async def test_why_names_the_repository_that_keeps_an_object_of_a_deleted_one(here: Installation) -> None:
    await here.deleted()
    other = await here.catalog.create("other", storage_namespace="mem://other")
    address = min(key for key in await here.keys() if key.startswith("data/"))
    named = Entry(address=f"mem://lake/{address}", size_bytes=1, checksum="x", modified_ms=0)
    await other.versions.staging.put("main", b"theirs", named)

    [one] = (await why(here, address=address)).objects

    assert (one.fate, one.elsewhere, one.goes_ms) == (Fate.KEPT, ("other",), None)


async def test_why_says_what_the_collection_leaves(here: Installation) -> None:
    made = await here.deleted()
    await here.open("mem://lake").put("data/0000000000000/00000001", b"x")

    async def fate(address: str) -> Fate:
        [one] = (await why(here, address=address)).objects
        return one.fate

    assert await fate("data/0000000000000/00000001") is Fate.UNRECORDED
    assert await fate("imported/x") is Fate.UNKNOWN
    assert await fate("mem://elsewhere/x") is Fate.OUTSIDE
    assert await fate("_lakefs/dummy") is Fate.OWN
    hold = NewHold(name="case-7", globs=("a",), why="a lawsuit")
    await HoldBook(made.versions).add(hold, by="ann")
    [one] = (await why(here, ref="main", path="a")).objects
    assert (one.fate, one.holds) == (Fate.KEPT, ("case-7",))


class Losing(MemoryStore):
    """A store of which the answers to conditional writes are lost while `loses`; `repeats`: its driver writes again."""

    loses = repeats = False

    async def set_if(self, partition: bytes, key: bytes, value: bytes, predicate: Predicate | None) -> Predicate:
        now = await super().set_if(partition, key, value, predicate)
        if self.repeats:
            return await super().set_if(partition, key, value, predicate)
        if self.loses:
            raise OutcomeUnknown("the answer was lost")
        return now


@pytest.mark.parametrize("how", ["loses", "repeats"])
async def test_who_lost_the_answer_finds_his_own_move_of_a_deleted_repository(here: Installation, how: str) -> None:
    here.store = store = Losing()
    here.catalog = here.server()
    made = await here.deleted()
    here.days(8)
    now_ms = here.clock.now_ms()
    setattr(store, how, True)

    await here.catalog.deleted.begin_collecting(made.record.uid, planned_ms=now_ms, store_ms=now_ms)

    assert await here.state() == "collecting"


@pytest.mark.parametrize(("failure", "told"), [(OutcomeUnknown, OutcomeUnknown), (PredicateFailed, DeletedNotFound)])
async def test_a_move_of_a_deleted_repository_that_was_not_made_is_no_success(
    here: Installation, failure: type[LakebedError], told: type[LakebedError]
) -> None:
    class Failing(MemoryStore):
        fails = False

        async def set_if(self, partition: bytes, key: bytes, value: bytes, predicate: Predicate | None) -> Predicate:
            if self.fails:
                raise failure("not done")
            return await super().set_if(partition, key, value, predicate)

    here.store = store = Failing()
    here.catalog = here.server()
    made = await here.deleted()
    here.days(8)
    now_ms = here.clock.now_ms()
    store.fails = True

    with pytest.raises(told):
        await here.catalog.deleted.begin_collecting(made.record.uid, planned_ms=now_ms, store_ms=now_ms)


async def test_a_run_whose_repository_was_deleted_and_collected_meanwhile_says_so(here: Installation) -> None:
    made = await here.repository()
    await made.versions.slices.end()
    store = here.open("mem://lake")
    assert isinstance(store, MemoryObjectStore)

    class Meanwhile(CollectionService):
        async def namespace(self) -> str:
            return (await here.catalog.get("lake")).objectstore.uri

    service = Meanwhile(made.versions)
    prepare = service.prepare_commits

    async def prepare_later(run_id: str, body: PrepareCommits | None = None) -> PreparedCommits:
        await here.catalog.delete("lake")
        here.days(8)
        await here.apply(await here.plan())
        return await prepare(run_id, body)

    service.prepare_commits = prepare_later
    context = replace(await here.context_of(service), repository="lake")

    with pytest.raises(flow.RepositoryGone, match="repository lake was deleted while the run read it"):
        await flow.plan(context, Uncommitted(UncommittedOptions()))


async def test_a_namespace_in_another_spelling_is_no_deleted_repository(here: Installation) -> None:
    made = await here.repository()

    class Spelled(CollectionService):
        async def namespace(self) -> str:
            return "MEM://lake/"

    async def fail(run_id: str, body: PrepareCommits | None = None) -> PreparedCommits:
        raise Corrupt("a commit record is damaged")

    service = Spelled(made.versions)
    service.prepare_commits = fail
    with pytest.raises(Corrupt, match="a commit record is damaged"):
        await flow.plan(await here.context_of(service), Uncommitted(UncommittedOptions()))


async def test_legal_holds_keep_a_deleted_repository(here: Installation) -> None:
    made = await here.deleted()
    hold = NewHold(name="case-7", globs=("a",), why="a lawsuit")
    await HoldBook(made.versions).add(hold, by="ann")
    here.days(8)
    plan = await here.plan()

    with pytest.raises(DeleteProtected, match="case-7"):
        await here.apply(plan)

    assert await here.state() == "kept"


async def test_a_deleted_repository_has_no_other_collections_and_one_in_use_not_this(here: Installation) -> None:
    made = await here.repository()
    with pytest.raises(WrongKind):
        await CollectionService(made.versions).start(StartRun(kind=RunKind.DELETED))
    await here.catalog.delete("lake")
    service = await here.service()

    with pytest.raises(WrongKind):
        await service.start(StartRun(kind=RunKind.UNCOMMITTED))
    with pytest.raises(Conflict, match="the repository is deleted: it can be brought back"):
        await service.mark_missing()
    with pytest.raises(Conflict, match="the repository is deleted: it can be brought back"):
        await service.adopt_slices()


async def test_an_apply_that_is_repeated_finds_the_work_done(here: Installation) -> None:
    await here.deleted()
    here.days(8)
    plan, context = await here.plan(), await here.context()

    first = await flow.apply(context, plan.run_id)
    second = await flow.apply(context, plan.run_id)

    assert (second.state, second.objects_deleted) == (RunState.ENDED, first.objects_deleted)


async def test_an_apply_that_failed_half_way_goes_on_later(here: Installation) -> None:
    await here.deleted()
    here.days(8)
    plan, store = await here.plan(), here.stores["mem://lake"]
    broken = replace(await here.context(), engine=LocalEngine(store, here.ports, open_deleter=Refusing))

    failed = await flow.apply(broken, plan.run_id)
    report = await flow.apply(await here.context(), plan.run_id)

    assert failed.objects_failed == plan.totals.all.objects
    assert (report.state, report.objects_failed) == (RunState.ENDED, 0)
    assert await here.state() == "collected"


# The namespace again


async def test_a_namespace_is_free_again_when_all_of_the_old_repository_is_gone(here: Installation) -> None:
    made = await here.collected()
    with pytest.raises(NamespaceInUse):
        await here.catalog.create("new", storage_namespace="mem://lake", reuse=True)
    await here.upkeep()
    assert await here.state() == "gone"
    assert not (await here.store.scan(made.record.uid.encode(), b"", 10)).keys

    with pytest.raises(NamespaceInUse):
        await here.catalog.create("new", storage_namespace="mem://lake")
    new = await here.catalog.create("new", storage_namespace="mem://lake", reuse=True)

    assert new.record.marker == made.record.marker
    assert await here.catalog.deleted.list() == []
    with pytest.raises(NamespaceInUse):
        await here.catalog.create("newer", storage_namespace="mem://lake", reuse=True)


async def test_no_tree_in_a_namespace_that_is_used_again_has_a_name_of_before(here: Installation) -> None:
    """A delete of a file of the old repository that comes late must meet none of the new one's."""
    entry = Entry(address="s3://elsewhere/x", size_bytes=1, checksum="x", modified_ms=0)
    old = await here.catalog.create("lake", storage_namespace="mem://lake")
    await old.versions.staging.put("main", b"x", entry)
    before = await old.changes.commit("main", Note(message="m", committer="ann"))
    names = await here.keys()
    await here.catalog.delete("lake")
    here.days(8)
    await here.apply(await here.plan())
    await here.upkeep()

    new = await here.catalog.create("new", storage_namespace="mem://lake", reuse=True)
    await new.versions.staging.put("main", b"x", entry)
    after = await new.changes.commit("main", Note(message="m", committer="ann"))

    assert after.metarange_id != before.metarange_id
    trees = {key for key in await here.keys() if is_metadata(key) and "anges/" in key}
    assert trees
    assert not trees & names


async def test_collections_go_on_in_a_namespace_that_is_used_again(here: Installation) -> None:
    await here.collected()
    await here.upkeep()
    new = await here.catalog.create("new", storage_namespace="mem://lake", reuse=True)
    service = CollectionService(new.versions)
    with pytest.raises(OtherInstallation):
        await service.start(StartRun(kind=RunKind.UNCOMMITTED))

    await service.adopting()

    assert (await service.start(StartRun(kind=RunKind.UNCOMMITTED))).namespace == "mem://lake"


async def test_a_deleted_repository_is_collected_after_a_restored_backup_once_it_is_adopted(here: Installation) -> None:
    await here.deleted()
    here.days(8)
    backup = copy.deepcopy(here.store.__dict__)
    await here.plan()
    await here.plan()
    here.store.__dict__.update(backup)
    with pytest.raises(OtherInstallation):
        await here.plan()

    await (await here.service()).adopting()
    await here.apply(await here.plan())

    assert await here.state() == "collected"


class Slow(DeletedRepositories):
    """Others make a repository between the look for a free marker and what is done with it."""

    meanwhile: Callable[[], Awaitable[object]] | None = None

    async def free_marker(self, uri: str) -> str | None:
        found = await super().free_marker(uri)
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            await meanwhile()
        return found


async def test_of_two_that_use_a_namespace_again_at_once_the_slower_one_keeps_no_claim_on_it(
    here: Installation,
) -> None:
    await here.collected()
    await here.upkeep()
    late, other = here.server(), here.server()
    late.deleted = slow = Slow(here.store, here.ports, late.places, kept_days=7)
    slow.meanwhile = partial(other.create, "winner", storage_namespace="mem://lake", reuse=True)

    with pytest.raises(NamespaceInUse):
        await late.create("loser", storage_namespace="mem://lake", reuse=True)

    await other.delete("winner")
    await other.deleted.forget("winner")
    await here.upkeep()
    here.days(1)
    for reuse in (False, True):
        with pytest.raises(NamespaceInUse):
            await here.catalog.create("loser", storage_namespace="mem://lake", reuse=reuse)


class Died(BaseException):
    """A process ended here."""


async def test_a_wish_to_use_a_namespace_again_does_not_outlive_the_next_user(here: Installation) -> None:
    await here.collected()
    await here.upkeep()
    server = here.server()
    reserve = here.store.set_if

    async def dying(partition: bytes, key: bytes, value: bytes, predicate: Predicate | None) -> Predicate:
        if (partition, key) != (keys.REPOSITORIES, b"wish"):
            return await reserve(partition, key, value, predicate)
        await server.create("next", storage_namespace="mem://lake", reuse=True)
        await reserve(partition, key, value, predicate)
        raise Died

    here.store.set_if = dying  # type: ignore[method-assign]  # a store whose client dies
    with pytest.raises(Died):
        await here.catalog.create("wish", storage_namespace="mem://lake", reuse=True)
    here.store.set_if = reserve  # type: ignore[method-assign]  # as it was
    await server.delete("next")
    await server.deleted.forget("next")
    await here.upkeep()

    with pytest.raises(NamespaceInUse):
        await here.server().create("wish", storage_namespace="mem://lake", reuse=True)


async def test_a_namespace_with_objects_of_a_forgotten_repository_is_never_free(here: Installation) -> None:
    await here.collected()
    await here.upkeep()
    await here.catalog.create("new", storage_namespace="mem://lake", reuse=True)
    await here.catalog.delete("new")
    await here.catalog.deleted.forget("new")
    await here.upkeep()

    with pytest.raises(NamespaceInUse):
        await here.catalog.create("newer", storage_namespace="mem://lake", reuse=True)


async def test_forgetting_a_repository_that_is_gone_drops_its_line(here: Installation) -> None:
    await here.collected()
    await here.upkeep()

    await here.catalog.deleted.forget("lake")

    assert await here.catalog.deleted.list() == []


# The specification


@pytest.mark.parametrize("seed", range(8))
async def test_the_plan_is_what_the_rule_says(here: Installation, seed: int) -> None:
    rng = random.Random(seed)
    made = await here.catalog.create("lake", storage_namespace="mem://lake")
    other = await here.catalog.create("other", storage_namespace="mem://other")
    for number in range(rng.randrange(1, 12)):
        await made.objects.upload("main", f"p{number}", b"x" * number)
        if rng.random() < 0.3:
            await made.changes.commit("main", Note(message="m", committer="ann"))
        if rng.random() < 0.3:
            await made.versions.slices.end()
    store = here.open("mem://lake")
    slices = [name async for name, _ in made.versions.inventory.every(SliceRecord)]
    for number in range(rng.randrange(8)):
        odd = rng.choice(
            ["data/{s}/{n:08d}", "data/{s}/{n}", "data/000000000000{n}/{n:08d}", "{n}", "in/data/{s}/{n:08d}"]
        )
        await store.put(odd.format(s=rng.choice(slices), n=number), b"y")
    keys = sorted(await here.keys())
    named = rng.sample([f"mem://lake/{key}" for key in keys if "dummy" not in key], rng.randrange(4))
    for number, address in enumerate(named):
        entry = Entry(address=address, size_bytes=1, checksum=str(number), modified_ms=0)
        await other.versions.staging.put("main", str(number).encode(), entry)
        if rng.random() < 0.5:
            await other.changes.commit("main", Note(message="m", committer="ann"))
    await here.catalog.delete("lake")
    here.days(8)
    plan = await here.plan()

    tables = [await read_garbage(store, plan, part) for part in plan.garbage.parts]
    goes = {key for table in tables for key in table["address"].to_pylist()}

    wanted = judge_deleted(
        [key for key in keys if plan.run_id not in key],
        namespace=Namespace(uri="mem://lake", closed=frozenset(slices)),
        is_own_file=is_metadata,
        named=named,
    )
    assert goes == wanted
    await here.apply(plan)
    assert not goes & await here.keys()
    assert set(keys) - goes <= await here.keys()
