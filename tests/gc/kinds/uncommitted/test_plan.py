"""A whole clean run over a live repository: what goes, what stays, and what may happen meanwhile."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import pyarrow as pa
import pytest

from lakebed.base import Entry, MetarangeId, RunId
from lakebed.gc.live import (
    BadContinuation,
    CollectionService,
    OutOfOrder,
    RunMoved,
    RunNotFound,
    ServiceOptions,
    StalePlan,
    WrongKind,
)
from lakebed.gc.live.reading.inputs import Inputs
from lakebed.gc.messages import (
    COMMITS,
    GARBAGE,
    UNCOMMITTED,
    Apply,
    BadInput,
    End,
    Mark,
    Mode,
    ReadUncommitted,
    RunKind,
    RunState,
    StartedRun,
    StartRun,
    UncommittedOptions,
    arrow_schema,
    manifest_of,
)
from lakebed.gc.rules import Namespace, clean_run
from lakebed.kv.drivers.memory import MemoryStore
from lakebed.objectstore import MemoryObjectStore, ObjectStat
from lakebed.versions import (
    Applied,
    BranchRecord,
    CopyRecord,
    CopyState,
    MultipartRecord,
    Note,
    PartRecord,
    RetiredBy,
    UploadRefused,
    decode_record,
    encode_record,
    keys,
    none_retired,
)
from tests.gc.conftest import Lake


async def test_an_overwritten_staged_object_goes_and_the_new_one_stays(lake: Lake) -> None:
    old = await lake.put("main", "a", "1")
    new = await lake.put("main", "a", "2")

    run = await lake.collector().collect_uncommitted()

    assert run.garbage == {old}
    assert await lake.objects() == {new}


async def test_committed_objects_stay_even_when_no_branch_reaches_them(lake: Lake) -> None:
    await lake.versions.refs.create_branch("dev", "main")
    kept = await lake.put("dev", "a")
    await lake.commit("dev")
    await lake.versions.refs.delete_branch("dev")

    await lake.collector().collect_uncommitted()

    assert await lake.objects() == {kept}


async def test_a_commit_that_was_swept_since_a_run_began_still_names_its_objects(lake: Lake) -> None:
    """A copy from it may have been made after the run had read staging: then nothing else names them."""
    await lake.put("main", "a")
    commit = await lake.commit("main")
    run = await lake.service.start(StartRun(kind=RunKind.UNCOMMITTED))
    await lake.service.read_uncommitted(run.run_id, ReadUncommitted())

    await lake.versions.retired.note_swept(RunId("other"), [commit.id])
    prepared = await lake.service.prepare_commits(run.run_id)

    inputs = Inputs(lake.objectstore, RunKind.UNCOMMITTED, RunId(run.run_id))
    commits = (await inputs.read_table(COMMITS, prepared.commits)).to_pylist()
    assert [row["swept"] for row in commits if row["id"] == commit.id] == [False]


async def test_a_deleted_staged_object_goes(lake: Lake) -> None:
    await lake.put("main", "a")
    await lake.versions.staging.delete("main", b"a")

    await lake.collector().collect_uncommitted()

    assert await lake.objects() == set()


async def test_a_reset_branchs_objects_go(lake: Lake) -> None:
    await lake.put("main", "a")
    await lake.versions.resets.reset("main")
    kept = await lake.put("main", "b")

    await lake.collector().collect_uncommitted()

    assert await lake.objects() == {kept}


async def test_a_deleted_branchs_staged_objects_go(lake: Lake) -> None:
    await lake.versions.refs.create_branch("dev", "main")
    await lake.put("dev", "a")
    await lake.versions.refs.delete_branch("dev")

    await lake.collector().collect_uncommitted()

    assert await lake.objects() == set()


async def test_an_object_identical_to_the_committed_one_and_staged_again_stays(lake: Lake) -> None:
    first = await lake.put("main", "a", "same")
    await lake.commit("main")
    second = await lake.put("main", "a", "same")

    await lake.collector().collect_uncommitted()

    assert await lake.objects() == {first, second}


async def test_a_second_run_finds_nothing(lake: Lake) -> None:
    await lake.put("main", "a", "1")
    await lake.put("main", "a", "2")
    await lake.collector().collect_uncommitted()

    assert (await lake.collector().collect_uncommitted()).garbage == frozenset()


async def test_an_empty_repository_has_no_garbage(lake: Lake) -> None:
    assert (await lake.collector().collect_uncommitted()).garbage == frozenset()


async def test_unknown_files_below_data_are_reported_and_survive(lake: Lake) -> None:
    await lake.objectstore.put("data/notes.txt", b"mine")

    run = await lake.collector().collect_uncommitted()

    assert run.unknown_files == {"data/notes.txt"}
    assert await lake.objects() == {"data/notes.txt"}


# Meanwhile


class Meanwhile:
    """A clean run, step by step, so that a test can do something between two of them."""

    def __init__(self, lake: Lake, options: ServiceOptions | None = None) -> None:
        self.lake = lake
        self.service = lake.service_with(options or ServiceOptions(scan_page=1, page_rows=1))
        self.token: str | None = None
        self.listing: set[str] = set()

    async def start(self) -> StartedRun:
        self.started = await self.service.start(StartRun(kind=RunKind.UNCOMMITTED))
        self.listing = await self.lake.objects()
        return self.started

    async def read_page(self) -> bool:
        """One page; whether there is more."""
        page = await self.service.read_uncommitted(self.started.run_id, ReadUncommitted(continuation_token=self.token))
        self.token = page.continuation_token
        self.manifest = page.manifest
        return self.token is not None

    async def finish(self) -> frozenset[str]:
        """Read to the end, mark; what would be deleted."""
        while await self.read_page():
            pass
        assert self.manifest is not None
        inputs = Inputs(self.lake.objectstore, RunKind.UNCOMMITTED, RunId(self.started.run_id))
        uncommitted = set((await inputs.read_table(UNCOMMITTED, self.manifest)).column("address").to_pylist())
        prepared = await self.service.prepare_commits(self.started.run_id)
        commits = await inputs.read_table(COMMITS, prepared.commits)
        committed: set[str] = set()
        for metarange in set(commits.column("metarange_id").to_pylist()) - {""}:
            rows = await self.lake.versions.trees.scan(metarange, b"", 1000)
            committed |= {self.lake.versions_address(row) for _, row in rows}
        plan = await inputs.write_table(GARBAGE, GARBAGE.name, arrow_schema(GARBAGE).empty_table())
        await self.service.mark(self.started.run_id, Mark(plan=plan))
        namespace = Namespace(uri=self.started.namespace, closed=frozenset(self.started.closed_slices))
        return clean_run(self.listing, committed=committed, uncommitted=uncommitted, namespace=namespace).garbage


async def test_an_object_uploaded_while_a_run_reads_survives(lake: Lake) -> None:
    old = await lake.put("main", "a", "1")
    await lake.put("main", "a", "2")
    run = Meanwhile(lake)
    await run.start()
    await run.read_page()
    await lake.put("main", "0", "new, and before where the reading is")
    run.listing = await lake.objects()

    assert await run.finish() == {old}


async def test_an_object_whose_upload_began_before_the_run_and_ends_in_it_survives(lake: Lake) -> None:
    run = Meanwhile(lake)
    body = lake.body()

    async def slow(address: str) -> Entry:
        entry = await body(address)
        await run.start()
        while await run.read_page():
            pass
        return entry

    await lake.versions.staging.upload("main", b"a", slow)

    assert len(run.listing) == 1
    assert await run.finish() == frozenset()


async def test_a_copy_between_two_pages_of_the_reading_survives_the_removal_of_its_source(lake: Lake) -> None:
    """A rename: copied to a path the reading has passed, its source deleted before the reading comes there."""
    await lake.put("main", "b")
    address = await lake.put("main", "z")
    run = Meanwhile(lake)
    await run.start()
    await run.read_page()
    await run.read_page()
    await lake.versions.copies.copy("main", b"z", "main", b"a")
    await lake.versions.staging.delete("main", b"z")

    garbage = await run.finish()

    assert address not in garbage
    assert (await lake.versions.staging.get("main", b"a")).address == address


async def test_a_copy_record_is_not_cleaned_away_while_a_run_marks_that_began_before_it_was_done(lake: Lake) -> None:
    await lake.put("main", "b")
    address = await lake.put("main", "z")
    run = Meanwhile(lake)
    await run.start()
    await run.read_page()
    await lake.versions.copies.copy("main", b"z", "main", b"a")
    await lake.versions.staging.delete("main", b"z")
    await lake.versions.cleanup.clean()
    await lake.versions.cleanup.clean()

    assert address not in await run.finish()


async def test_a_linked_upload_survives_from_the_moment_its_address_is_handed_out(lake: Lake) -> None:
    address = await lake.versions.uploads.issue("main")
    await lake.objectstore.put(address, b"x")

    assert (await lake.collector().collect_uncommitted()).garbage == frozenset()

    stat = await lake.objectstore.stat(address)
    await lake.versions.uploads.link(
        "main", b"a", Entry(address=address, size_bytes=stat.size_bytes, checksum="c", modified_ms=1)
    )

    assert (await lake.collector().collect_uncommitted()).garbage == frozenset()
    assert await lake.objects() == {address}


async def test_an_upload_that_expired_unlinked_goes(lake: Lake) -> None:
    address = await lake.versions.uploads.issue("main")
    await lake.objectstore.put(address, b"x")
    lake.days(3)
    await lake.versions.cleanup.clean()

    with pytest.raises(UploadRefused):
        await lake.versions.uploads.link(
            "main", b"a", Entry(address=address, size_bytes=1, checksum="c", modified_ms=1)
        )

    run = await lake.collector().collect_uncommitted()

    assert run.garbage == {address}


async def test_parts_stay_while_their_upload_may_be_completed_and_go_when_it_was_given_up(lake: Lake) -> None:
    async def begin() -> tuple[str, str]:
        record = MultipartRecord(branch="main", path=b"a", created_ms=lake.clock.now_ms(), content_type="x")
        name = await lake.versions.parts.begin(record)
        address = await lake.versions.parts.issue(name)
        await lake.objectstore.put(address, b"x")
        part = PartRecord(address=address, size_bytes=1, md5="m", modified_ms=1)
        await lake.versions.parts.put(name, 1, part)
        return name, address

    kept, aborted = await begin(), await begin()
    await lake.versions.parts.end(aborted[0])

    assert (await lake.collector().collect_uncommitted()).garbage == {aborted[1]}

    lake.days(3)
    await lake.versions.cleanup.clean()

    assert (await lake.collector().collect_uncommitted()).garbage == {kept[1]}
    lake.days(8)
    assert await lake.versions.parts.clean() == 1
    assert [name async for name, _ in lake.versions.parts.begun()] == []


async def test_a_commit_between_two_pages_moves_addresses_to_where_the_run_looks_next(lake: Lake) -> None:
    await lake.put("main", "a")
    await lake.put("main", "b")
    run = Meanwhile(lake)
    await run.start()
    await run.read_page()
    await lake.commit("main")
    await lake.versions.cleanup.clean()
    lake.days(1)
    await lake.versions.cleanup.clean()

    assert await run.finish() == frozenset()


async def test_what_a_freeze_moves_between_two_pages_is_read_where_it_went(lake: Lake) -> None:
    await lake.put("main", "a")
    await lake.put("main", "b")
    run = Meanwhile(lake)
    await run.start()
    await run.read_page()
    await lake.versions.fencing.freeze("main")
    lake.days(1)
    await lake.versions.cleanup.clean()

    assert await run.finish() == frozenset()
    assert (await lake.versions.staging.get("main", b"b")).size_bytes == 4


async def test_branches_with_sealed_tokens_are_touched_and_others_left_alone(lake: Lake) -> None:
    await lake.versions.refs.create_branch("quiet", "main")
    await lake.put("main", "a")
    await lake.versions.commits.seal("main")
    run = Meanwhile(lake)
    await run.start()

    await run.finish()

    assert (await _branch(lake, "main")).epoch == 1
    assert (await _branch(lake, "quiet")).epoch == 0


async def _branch(lake: Lake, name: str) -> BranchRecord:
    held = await lake.store.get(lake.versions.partition, keys.BRANCH + name.encode())
    assert held is not None
    return decode_record(BranchRecord, held.value)


# Owners that died


async def test_a_crashed_servers_open_slice_is_not_collected_until_it_is_given_up(lake: Lake) -> None:
    dead = lake.server()
    old = await lake.put("main", "a", "1", server=dead)
    new = await lake.put("main", "a", "2", server=dead)

    assert (await lake.collector().collect_uncommitted()).garbage == frozenset()

    lake.days(2)
    run = await lake.collector().collect_uncommitted()

    assert run.garbage == {old}
    assert await lake.objects() == {new}


async def test_a_server_that_was_given_up_too_soon_goes_on_in_a_fresh_slice(lake: Lake) -> None:
    sleeper = lake.server()
    body = lake.body()

    async def slow(address: str) -> Entry:
        entry = await body(address)
        lake.days(2)
        await lake.service.start(StartRun(kind=RunKind.UNCOMMITTED))
        return entry

    entry = await sleeper.staging.upload("main", b"a", slow)
    await lake.collector().collect_uncommitted()

    assert entry.address in await lake.objects()
    assert (await lake.versions.staging.get("main", b"a")).address == entry.address


async def test_a_copy_left_pending_by_a_crash_keeps_its_object_until_it_is_given_up(lake: Lake) -> None:
    address = await lake.put("main", "a")
    pending = CopyRecord(state=CopyState.PENDING, address=address, branch="main", started_ms=lake.clock.ms)
    await lake.store.set(lake.versions.partition, keys.COPY + b"1", encode_record(pending))
    await lake.versions.staging.delete("main", b"a")

    assert (await lake.collector().collect_uncommitted()).garbage == frozenset()

    lake.days(2)
    await lake.collector().collect_uncommitted()
    await lake.versions.cleanup.clean()
    await lake.versions.cleanup.clean()

    assert (await lake.collector().collect_uncommitted()).garbage == {address}


# The run itself


class Listed(MemoryObjectStore):
    """Does something else once after the objects were listed, whose listing is answered as it was."""

    meanwhile: Callable[[], Awaitable[object]] | None = None

    async def list(self, prefix: str = "", *, start_after: str = "") -> AsyncIterator[Sequence[ObjectStat]]:
        pages = [page async for page in super().list(prefix, start_after=start_after)]
        if prefix.startswith("data/") and self.meanwhile is not None:
            meanwhile, self.meanwhile = self.meanwhile, None
            await meanwhile()
        for page in pages:
            yield page


async def test_what_a_run_took_that_ended_while_another_listed_is_in_one_plan_alone() -> None:
    store = Listed("mem://tests")
    lake = Lake(MemoryStore(), store)
    await lake.versions.commits.initialise("main")
    garbage = await lake.put("main", "a")
    await lake.versions.staging.delete("main", b"a")
    first = await lake.collector().planned(RunKind.UNCOMMITTED, UncommittedOptions(mode=Mode.CLEAN))
    store.meanwhile = lambda: lake.collector().again(first)

    second = await lake.collector().collect_uncommitted()

    assert (await lake.collector().outcome(first)).garbage == {garbage}
    assert second.garbage == frozenset()


async def test_a_run_that_was_abandoned_throws_its_work_away(lake: Lake) -> None:
    run = Meanwhile(lake)
    started = await run.start()
    await lake.service.abandon(started.run_id)

    with pytest.raises(RunMoved, match="abandoned"):
        await run.read_page()
    with pytest.raises(RunMoved, match="abandoned"):
        await lake.service.mark(started.run_id, Mark(plan=manifest_of(GARBAGE, "x/", [])))


async def test_a_run_left_marking_for_too_long_is_abandoned(lake: Lake) -> None:
    started = await lake.service.start(StartRun(kind=RunKind.UNCOMMITTED))

    assert await lake.service.abandon_dead_runs() == []
    lake.days(8)
    assert await lake.service.abandon_dead_runs() == [started.run_id]
    assert (await lake.service.run(started.run_id)).state is RunState.ABANDONED


async def test_marking_twice_with_one_plan_is_one_mark_and_with_another_is_refused(lake: Lake) -> None:
    started = await lake.service.start(StartRun(kind=RunKind.UNCOMMITTED))
    plan = Mark(plan=manifest_of(GARBAGE, "x/", []))

    first = await lake.service.mark(started.run_id, plan)

    assert await lake.service.mark(started.run_id, plan) == first
    with pytest.raises(RunMoved):
        await lake.service.mark(started.run_id, Mark(plan=manifest_of(GARBAGE, "y/", [])))


async def test_a_marked_run_cannot_be_abandoned(lake: Lake) -> None:
    started = await lake.service.start(StartRun(kind=RunKind.UNCOMMITTED))
    plan = manifest_of(GARBAGE, "x/", [])
    await lake.service.mark(started.run_id, Mark(plan=plan))

    with pytest.raises(RunMoved):
        await lake.service.abandon(started.run_id)
    assert (await lake.service.end(started.run_id, End(plan=plan.digest()))).state is RunState.ENDED


async def test_commits_are_not_listed_before_staging_was_read_to_its_end(lake: Lake) -> None:
    started = await lake.service.start(StartRun(kind=RunKind.UNCOMMITTED))

    with pytest.raises(OutOfOrder):
        await lake.service.prepare_commits(started.run_id)


async def test_staging_is_not_read_again_after_the_commits(lake: Lake) -> None:
    await lake.put("main", "staged")
    run = Meanwhile(lake)
    started = await run.start()
    while await run.read_page():
        pass
    await lake.service.prepare_commits(started.run_id)
    await lake.commit("main")

    with pytest.raises(OutOfOrder):  # else the object would be in neither
        await run.read_page()


async def test_a_page_that_was_written_again_with_another_end_stops_the_reading(lake: Lake) -> None:
    """The client sent the call again, and went on from the answer that came first: `b` is in neither page."""
    kept = [await lake.put("main", "a"), await lake.put("main", "b"), await lake.put("main", "c")]
    run = Meanwhile(lake, ServiceOptions(scan_page=2, page_rows=2))
    await run.start()
    await run.read_page()
    from_the_first = run.token
    await lake.put("main", "aa")
    run.token = None
    await run.read_page()
    run.token = from_the_first

    with pytest.raises(BadInput, match="page"):
        assert set(kept).isdisjoint(await run.finish())


async def test_a_page_that_is_missing_stops_the_reading(lake: Lake) -> None:
    for path in "abc":
        await lake.put("main", path)
    run = Meanwhile(lake, ServiceOptions(scan_page=2, page_rows=2))
    await run.start()
    await run.read_page()
    written = [stat.key async for page in lake.objectstore.list("_lakefs/retention/") for stat in page]
    await lake.deleter.delete([key for key in written if key.endswith("uncommitted.page-00000.json")])

    with pytest.raises(BadInput, match="is missing"):
        await run.finish()


async def test_what_another_server_holds_open_is_judged_by_the_run_after_the_one_that_asked(lake: Lake) -> None:
    other = lake.server()
    garbage = await lake.put("main", "a", server=other)
    await lake.put("main", "a", server=other)
    lake.days(0.01)

    assert (await lake.collector().collect_uncommitted()).garbage == frozenset()
    assert (await lake.service.start(StartRun(kind=RunKind.UNCOMMITTED))).open_slices == 1

    await CollectionService(other).close_slices_for_runs()
    assert (await lake.collector().collect_uncommitted()).garbage == {garbage}


async def test_a_slice_opened_since_the_last_run_began_stays_open(lake: Lake) -> None:
    await lake.collector().collect_uncommitted()
    lake.days(0.01)
    first = await lake.put("main", "a")

    await lake.service.close_slices_for_runs()

    assert (await lake.put("main", "b")).rpartition("/")[0] == first.rpartition("/")[0]


async def test_what_a_clock_dated_years_ahead_is_given_up_like_what_is_old(lake: Lake) -> None:
    lake.days(3650)
    dead = lake.server()
    garbage = await lake.put("main", "a", server=dead)
    await lake.service.start(StartRun(kind=RunKind.UNCOMMITTED))
    lake.days(-3650)
    await lake.put("main", "a")

    assert len(await lake.service.abandon_dead_runs()) == 1
    assert (await lake.collector().collect_uncommitted()).garbage == {garbage}


async def test_a_run_dated_ahead_of_the_clock_does_not_end_each_slice_as_it_is_opened(lake: Lake) -> None:
    lake.days(1)
    await lake.service.start(StartRun(kind=RunKind.UNCOMMITTED))
    lake.days(-1)
    first = await lake.put("main", "a")

    await lake.service.close_slices_for_runs()

    assert (await lake.put("main", "b")).rpartition("/")[0] == first.rpartition("/")[0]


async def test_a_plan_that_is_no_plan_is_refused(lake: Lake) -> None:
    started = await lake.service.start(StartRun(kind=RunKind.UNCOMMITTED))

    with pytest.raises(BadInput, match="commits table"):
        await lake.service.mark(started.run_id, Mark(plan=manifest_of(COMMITS, "x/", [])))


@pytest.mark.parametrize("token", ["", "?", "AAAA", "gA==", "ä"])
async def test_a_continuation_token_that_is_none_is_refused(lake: Lake, token: str) -> None:
    started = await lake.service.start(StartRun(kind=RunKind.UNCOMMITTED))

    with pytest.raises(BadContinuation):
        await lake.service.read_uncommitted(started.run_id, ReadUncommitted(continuation_token=token))


async def test_an_apply_is_for_the_plan_that_the_run_was_marked_with_and_no_other(lake: Lake) -> None:
    started = await lake.service.start(StartRun(kind=RunKind.UNCOMMITTED))
    plan = manifest_of(GARBAGE, "x/", [])
    request = Apply(kind=RunKind.UNCOMMITTED, plan=plan.digest())
    with pytest.raises(RunMoved, match="marking"):
        await lake.service.apply(started.run_id, request)
    await lake.service.read_uncommitted(started.run_id, ReadUncommitted())
    await lake.service.prepare_commits(started.run_id)
    await lake.service.mark(started.run_id, Mark(plan=plan))

    assert (await lake.service.apply(started.run_id, request)).state is RunState.MARKED
    with pytest.raises(StalePlan):
        await lake.service.apply(started.run_id, Apply(kind=RunKind.UNCOMMITTED, plan="other"))
    with pytest.raises(WrongKind):
        await lake.service.apply(started.run_id, Apply(kind=RunKind.METADATA, plan=plan.digest()))


async def test_a_run_of_committed_data_reads_staging_only_when_it_expires(lake: Lake) -> None:
    started = await lake.service.start(StartRun(kind=RunKind.COMMITTED))

    with pytest.raises(RunNotFound):
        await lake.service.read_uncommitted(started.run_id, ReadUncommitted())
    assert started.state is RunState.PLANNING


# What is written


async def test_uncommitted_addresses_are_written_where_the_document_says_with_their_creation_date(lake: Lake) -> None:
    address = await lake.put("main", "a")
    await lake.versions.staging.put(
        "main", b"b", Entry(address="s3://elsewhere/x", size_bytes=1, checksum="c", modified_ms=7)
    )
    started = await lake.service.start(StartRun(kind=RunKind.UNCOMMITTED))

    page = await lake.service.read_uncommitted(started.run_id, ReadUncommitted())

    assert page.location == f"_lakefs/retention/gc/uncommitted/{started.run_id}/uncommitted/"
    assert page.manifest is not None
    inputs = Inputs(lake.objectstore, RunKind.UNCOMMITTED, RunId(started.run_id))
    rows = await inputs.read_table(UNCOMMITTED, page.manifest)
    assert rows.column("address").to_pylist() == [address, "s3://elsewhere/x"]
    assert rows.column("creation_date").cast(pa.int64()).to_pylist() == [lake.clock.ms, 7]
    assert rows.column("branch").to_pylist() == ["main", "main"]
    assert rows.column("slice").to_pylist()[1] == -1


async def test_a_last_page_without_a_row_loses_nothing(lake: Lake) -> None:
    """The reference lost everything when its last page of uncommitted entries was empty."""
    await lake.put("main", "a")
    await lake.put("main", "b")
    run = Meanwhile(lake)
    await run.start()
    while await run.read_page():
        pass

    assert run.manifest is not None
    assert run.manifest.rows == 2


async def test_pages_of_any_size_read_the_same_addresses(lake: Lake) -> None:
    for number in range(7):
        await lake.put("main", f"k{number}")
    await lake.versions.refs.create_branch("dev", "main")
    await lake.put("dev", "k")

    found = []
    for scan, rows in ((1, 1), (2, 3), (5, 2), (1000, 1000)):
        run = Meanwhile(lake, ServiceOptions(scan_page=scan, page_rows=rows))
        await run.start()
        while await run.read_page():
            pass
        assert run.manifest is not None
        inputs = Inputs(lake.objectstore, RunKind.UNCOMMITTED, RunId(run.started.run_id))
        found.append(sorted((await inputs.read_table(UNCOMMITTED, run.manifest)).column("address").to_pylist()))

    assert found[0] == sorted(await lake.objects())
    assert all(addresses == found[0] for addresses in found)


async def test_a_commit_in_flight_never_publishes_an_address_that_a_run_found_overwritten(lake: Lake) -> None:
    """The commit has read the cell; a writer with an older view replaces it there; the run sees only the new one."""
    writer, committer = lake.server(), lake.server()
    await writer.refs.get_branch("main")
    old = await lake.put("main", "a", "1")
    apply = committer.trees.apply
    new: list[str] = []

    async def apply_late(metarange: MetarangeId, changes: pa.Table, *, retired_by: RetiredBy = none_retired) -> Applied:
        if not new:
            new.append(await lake.put("main", "a", "2", server=writer))
            run = await lake.collector().collect_uncommitted()
            assert run.garbage == {old}
        return await apply(metarange, changes, retired_by=retired_by)

    committer.trees.apply = apply_late  # type: ignore[method-assign]  # a pause between the reading and the publishing
    await committer.commits.commit("main", Note(message="m", committer="me"))

    assert (await lake.versions.staging.get("main@", b"a")).address == new[0]
    assert await lake.objects() == set(new)
