"""Collections over wide trees: a sublist between a metarange and its ranges is a file that commits name, too."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakebed.base import Corrupt, MetarangeId, RangeId, SublistId
from lakebed.gc import messages
from lakebed.gc.engines import LocalEngine
from lakebed.gc.kinds.lifecycle import sorting
from lakebed.gc.kinds.lifecycle import trees as trees_module
from lakebed.gc.kinds.lifecycle.reaching import Terms, reach_metaranges
from lakebed.gc.kinds.lifecycle.sorting import due_in, in_rows, sort_ranges
from lakebed.gc.kinds.lifecycle.trees import TreeParts, read_new
from lakebed.gc.live import CollectionService
from lakebed.gc.live.reading.commits import read_snapshot
from lakebed.gc.mark.holding import metaranges_of
from lakebed.gc.mark.inputs import ranges
from lakebed.gc.mark.inputs.ranges import ListedRanges
from lakebed.gc.messages import BadInput, Plan, RunKind
from lakebed.gc.rules.lifecycle import check_policy
from lakebed.objectstore import MemoryDeleter, MemoryObjectStore
from lakebed.ranges import (
    CutRule,
    RangeInfo,
    SublistList,
    decode_metarange,
    encode_metarange,
    encode_sublist,
    metarange_key,
    sublist_key,
)
from lakebed.runtime import live_ports
from lakebed.versions import TreeCache, Trees
from lakebed.versions.commits.committer import Note
from tests.gc.garbage import context_of, ranges_of, task_of
from tests.spark.collecting import Collecting
from tests.spark.lakeside import Lakeside
from tests.spark.test_metadata import FILES, collector

WIDE = CutRule(strong=1, weak=1, weak_from=1, rows_max=1, listed=1, sublists_min=2)
"""A range for each entry, a sublist for each range, and every tree of two entries is wide."""


@pytest.fixture
def lakeside(tmp_path: Path) -> Iterator[Lakeside]:
    with Lakeside(tmp_path, rule=WIDE) as found:
        yield found


@pytest.fixture(params=[ranges.IN_ROWS_MAX, 0], ids=["in rows", "in files"])
def listed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranges are held as rows, or tasks write files of them."""
    monkeypatch.setattr(ranges, "IN_ROWS_MAX", request.param)
    monkeypatch.setattr(ranges, "FILE_RANGES", 2)
    monkeypatch.setattr(ranges, "FILES_WANTED", 1)
    monkeypatch.setattr(ranges, "HELD_FILES", 2)


def local(collecting: Collecting, kind: RunKind) -> Plan:
    """Plan and apply on the local engine."""
    plan = collecting.plan(None, kind)
    collecting.apply(None, plan.run_id)
    return plan


def names(lakeside: Lakeside, folder: str) -> set[str]:
    return {file.stem for file in lakeside.files(f"_lakefs/{folder}/*.parquet")}


def named(lakeside: Lakeside, metarange: MetarangeId) -> set[str]:
    return {info.id for info in lakeside.wait(lakeside.versions.trees.sublists(metarange))}


def fill(lakeside: Lakeside) -> MetarangeId:
    for number in range(4):
        lakeside.upload(f"a/{number}")
    return lakeside.commit(age_days=40).metarange_id


def read_anew(lakeside: Lakeside, metarange: MetarangeId) -> list[bytes]:
    """The paths of a tree, past every cache."""
    trees = Trees(lakeside.objectstore, TreeCache(0), lakeside.versions.ports)
    return [key for key, _ in lakeside.wait(trees.scan(metarange, b"", 100))]


def lose(lakeside: Lakeside, sublist: str) -> None:
    """Delete its file, and forget what the process has read."""
    (lakeside.folder / "_lakefs" / "sublists" / f"{sublist}.parquet").unlink()
    lakeside.versions.trees._files._cache._values.clear()


def test_the_tree_of_a_commit_is_wide_here(lakeside: Lakeside) -> None:
    tree = fill(lakeside)

    data = (lakeside.folder / "_lakefs" / "metaranges" / f"{tree}.parquet").read_bytes()

    assert isinstance(decode_metarange(tree, data), SublistList)
    assert names(lakeside, "sublists") == named(lakeside, tree)


@pytest.mark.usefixtures("listed")
def test_a_run_of_metadata_keeps_the_sublists_that_commits_name_and_takes_the_others(lakeside: Lakeside) -> None:
    first = fill(lakeside)
    lakeside.delete("a/0")
    # The first two are swept; the tree of the second stays for its child.
    kept = [lakeside.commit(age_days=30).metarange_id]
    lakeside.upload("a/4")
    kept.append(lakeside.commit(age_days=20).metarange_id)
    lakeside.upload("a/5")
    kept.append(head := lakeside.commit().metarange_id)
    lakeside.rules(1)
    local(lakeside.collector, RunKind.COMMITTED)
    stays = {sublist for tree in kept for sublist in named(lakeside, tree)}
    goes = named(lakeside, first)

    plan = local(collector(lakeside), RunKind.METADATA)

    assert names(lakeside, "sublists") == stays
    assert goes - stays
    # The metarange of the first, its own sublist and the range in that.
    assert plan.range_counts.expired == 3
    assert read_anew(lakeside, head) == [b"a/%d" % number for number in range(1, 6)]


@pytest.mark.usefixtures("listed")
def test_collections_of_data_find_what_wide_trees_name(lakeside: Lakeside) -> None:
    fill(lakeside)
    lakeside.delete("a/0")
    lakeside.upload("a/1", b"new")
    for age_days in (30, 20, 0):
        lakeside.upload(f"c/{age_days}")
        lakeside.commit(age_days=age_days)
    lakeside.upload("b/1")
    lakeside.wait(lakeside.versions.resets.reset("main"))
    lakeside.wait(lakeside.versions.slices.end())
    lakeside.rules(1)
    before = lakeside.addresses()

    for kind in (RunKind.UNCOMMITTED, RunKind.COMMITTED):
        local(lakeside.collector, kind)

    # One that no commit named, one that was deleted, one that was replaced.
    assert len(before - lakeside.addresses()) == 3
    assert [lakeside.content(f"a/{number}") for number in (1, 2, 3)] == [b"new", b"data", b"data"]


@pytest.mark.usefixtures("listed")
def test_a_commit_between_plan_and_apply_keeps_the_sublists_that_the_plan_wanted(lakeside: Lakeside) -> None:
    fill(lakeside)
    lakeside.upload("b/1")
    stranded = strand(lakeside)
    wanted = named(lakeside, stranded)
    collecting = collector(lakeside)
    plan = collecting.plan(None, RunKind.METADATA)
    made = lakeside.commit().metarange_id

    collecting.apply(None, plan.run_id)

    assert made == stranded
    assert wanted <= names(lakeside, "sublists")
    assert read_anew(lakeside, made) == [b"a/0", b"a/1", b"a/2", b"a/3", b"b/1"]


def strand(lakeside: Lakeside) -> MetarangeId:
    """Write the files of a tree, as a commit does that then fails."""

    async def write() -> MetarangeId:
        versions = lakeside.versions
        record = (await versions.context.branches.fresh("main")).record
        base = await versions.context.commits.metarange(record.commit_id)
        return await versions.commits.lay(base, record.tokens())

    return lakeside.wait(write())


def test_a_sublist_that_was_retired_is_written_under_another_id(lakeside: Lakeside) -> None:
    fill(lakeside)
    lakeside.upload("b/1")
    stranded = strand(lakeside)
    local(collector(lakeside), RunKind.METADATA)

    made = lakeside.commit().metarange_id

    assert made != stranded
    assert not (named(lakeside, made) - names(lakeside, "sublists"))
    assert read_anew(lakeside, made) == [b"a/0", b"a/1", b"a/2", b"a/3", b"b/1"]


def test_an_unpublished_commit_that_lacks_a_retired_sublist_is_orphaned(lakeside: Lakeside) -> None:
    tree = fill(lakeside)
    lakeside.upload("b/1")
    stranded = strand(lakeside)
    own = named(lakeside, stranded) - named(lakeside, tree)

    async def publish_nothing() -> str:
        versions = lakeside.versions
        head = (await versions.context.branches.fresh("main")).record.commit_id
        note = Note(message="m", committer="tests", metadata={}, created_ms=None)
        commit = await versions.commits.new_commit("main", stranded, (head,), note)
        return await versions.context.commits.write(commit)

    commit = lakeside.wait(publish_nothing())
    lakeside.wait(lakeside.versions.retired.retire("r1", ids=sorted(own), runs=[]))  # type: ignore[arg-type]  # any name
    for one in own:
        lose(lakeside, one)

    assert commit in lakeside.wait(read_snapshot(lakeside.versions)).swept


def test_a_lost_sublist_stops_plans_until_its_commit_is_marked_and_then_all_lists_stay(lakeside: Lakeside) -> None:
    tree = fill(lakeside)
    lakeside.branch("gone")
    lakeside.upload("b/1", branch="gone")
    lost_tree = lakeside.commit(branch="gone").metarange_id
    lakeside.wait(lakeside.versions.refs.delete_branch("gone"))
    (lost,) = named(lakeside, lost_tree) - named(lakeside, tree)
    lose(lakeside, lost)
    with pytest.raises(Corrupt, match=f"{lost}: missing; `lakebed gc missing`"):
        collector(lakeside).plan(None, RunKind.METADATA)

    marked = lakeside.wait(lakeside.service.mark_missing())
    lakeside.service = CollectionService(lakeside.versions)
    stays = names(lakeside, "sublists") | names(lakeside, "ranges")
    local(replace(lakeside.collector, metadata=FILES), RunKind.METADATA)

    assert marked.marked == 1
    assert names(lakeside, "sublists") | names(lakeside, "ranges") == stays
    assert read_anew(lakeside, tree) == [b"a/0", b"a/1", b"a/2", b"a/3"]


def test_a_search_finds_the_commits_that_name_a_sublist(lakeside: Lakeside) -> None:
    fill(lakeside)
    commit = lakeside.wait(lakeside.versions.history.log("main", limit=1))[0][0]
    (one, *_) = sorted(named(lakeside, commit.metarange_id))

    (found,) = lakeside.wait(lakeside.service.why.ask(address=f"_lakefs/sublists/{one}.parquet")).objects

    assert [name.commit for name in found.commits] == [commit.id]


class Counted(MemoryObjectStore):
    """Counts the reads of each sublist."""

    def __init__(self) -> None:
        super().__init__("mem://lake/repo")
        self.reads: Counter[str] = Counter()

    async def get(self, key: str, *, start: int = 0, end: int | None = None) -> bytes:
        if key.startswith("_lakefs/sublists/"):
            self.reads[key] += 1
        return await super().get(key, start=start, end=end)


async def write_versions(store: Counted) -> tuple[dict[str, bool], dict[str, bool], set[str]]:
    """Write trees that share most of their sublists. Return which are live, which of what they list, and all keys of
    sublists.
    """
    lists = [[made_up(place, 0) for place in range(first, first + 4)] for first in range(0, 40, 4)]
    trees, wanted, read = dict[str, bool](), dict[str, bool](), set[str]()
    for version in range(1, 31):
        lists[version % 10][version % 4] = made_up(4 * (version % 10) + version % 4, version)
        sublists = [encode_sublist(of_list) for of_list in lists]
        # A narrow tree shares ranges with wide ones.
        narrow = version % 7 == 0
        id_, data = encode_metarange([one for of in lists for one in of] if narrow else [info for info, _ in sublists])
        await store.put(metarange_key(id_), data)
        trees[id_] = live = version % 15 == 0
        for one in [one for of in lists for one in of]:
            wanted[one.id] = wanted.get(one.id, False) or live
        for info, file in [] if narrow else sublists:
            await store.put(key := sublist_key(info.id), file)
            read.add(key)
            wanted[info.id] = wanted.get(info.id, False) or live
    return trees, wanted, read


@pytest.mark.parametrize("a_share", [1, 1_000])
@pytest.mark.parametrize("shares", [1, 3])
async def test_a_sublist_is_read_once_however_many_trees_and_tasks_have_it(
    monkeypatch: pytest.MonkeyPatch, shares: int, a_share: int
) -> None:
    monkeypatch.setattr(ranges, "SUBLISTS_A_SHARE", a_share)
    store = Counted()
    trees, wanted, read = await write_versions(store)
    engine = LocalEngine(store, live_ports(), open_deleter=lambda: MemoryDeleter(store), shares=shares)

    found = await ranges.read_ranges(engine, metaranges_of(trees), folder="_lakefs/ranges/", with_sublists=True)

    names = zip(found.rows["range_id"].to_pylist(), found.rows["is_live"].to_pylist(), strict=True)
    assert sorted(names) == sorted(wanted.items())
    assert store.reads == Counter(read)


@pytest.mark.parametrize("bits", [trees_module.CHUNK_BITS, 1])
@pytest.mark.parametrize("shares", [1, 3])
async def test_a_lifecycle_run_reads_a_sublist_once_and_the_next_only_new_ones(
    monkeypatch: pytest.MonkeyPatch, shares: int, bits: int
) -> None:
    """Live trees have one mask here, and all others another."""
    monkeypatch.setattr(trees_module, "CHUNK_BITS", bits)
    store = Counted()
    trees, wanted, read = await write_versions(store)
    masks = {id_: 1 + is_live for id_, is_live in trees.items()}
    engine = LocalEngine(store, live_ports(), open_deleter=lambda: MemoryDeleter(store), shares=shares)
    known = TreeParts()

    for some in ([*masks][:20], [*masks]):
        of_some, folder = {id_: masks[id_] for id_ in some}, "_lakefs/trees/"
        new, found = await read_new(engine, store, of_some, known, folder=folder, tell=lambda _: None)
        await found.add(store, [*new.narrow, *new.sublists], of_some | found.sublists)
        known = known.plus(new)

    rows = found.ranges()
    assert {id_: found.masks[mask] & 2 > 0 for id_, mask in zip(*columns(rows, "range_id", "mask"), strict=True)} == {
        id_: is_live for id_, is_live in wanted.items() if sublist_key(SublistId(id_)) not in read
    }
    assert store.reads == Counter(read)


@pytest.mark.parametrize("shares", [1, 3])
async def test_a_lifecycle_run_judges_ranges_in_files_as_it_judges_rows(
    monkeypatch: pytest.MonkeyPatch, shares: int
) -> None:
    monkeypatch.setattr(trees_module, "CHUNK_BITS", 1)
    store = Counted()
    trees, _, _ = await write_versions(store)
    policy = check_policy(json.dumps(POLICY).encode())
    reached = reach_metaranges(*chain_of([*trees]), policy)
    engine = LocalEngine(store, live_ports(), open_deleter=lambda: MemoryDeleter(store), shares=shares)

    async def judged(in_rows_max: int, *, back: bool = False) -> tuple[dict[str, Terms], set[str]]:
        monkeypatch.setattr(sorting, "IN_ROWS_MAX", in_rows_max)
        folder = f"_lakefs/{in_rows_max}/"
        _, found = await sort_ranges(engine, store, reached, policy, TreeParts(), folder=folder, tell=lambda _: None)
        assert ListedRanges(found.due).in_files is ListedRanges(found.whole).in_files is (in_rows_max == 0)
        if back:
            found = await in_rows(context_of(store), found)
            assert [row[:4] for row in found.spans["min_key"].to_pylist()] == [
                b"%04d" % places[id_] for id_ in found.due["range_id"].to_pylist()
            ]
        due = await due_in(task_of(store), found.due)
        whole = [some async for some in ListedRanges(found.whole).each(context_of(store))]
        terms = {id_: found.terms[n] for id_, n in zip(*columns(due, "range_id", "terms"), strict=True)}
        return terms, {id_ for some in whole for id_ in some["range_id"].to_pylist()}

    places = {made_up(place, version).id: place for place in range(40) for version in range(31)}
    monkeypatch.setattr(ranges, "FILES_WANTED", 1)
    due, whole = await judged(1_000)

    assert len({*due.values()}) > 2
    assert whole
    assert await judged(0) == await judged(0, back=True) == (due, whole)


POLICY = {"a": {"prefix": "000", "days": 9, "branch_days": {"b5": 3, "b20": 30}}, "b": {"prefix": "001", "days": 1}}


def chain_of(trees: list[str]) -> tuple[pa.Table, pa.Table]:
    """COMMITS, each with one tree and the one before as its parent, and REFS: a branch at some of them."""
    commits = [
        {
            "id": f"c{at}",
            "generation": at + 1,
            "creation_date": 0,
            "metarange_id": tree,
            "parents": [f"c{at - 1}"] if at else [],
            "swept": False,
            "expiring": False,
        }
        for at, tree in enumerate(trees)
    ]
    refs = [
        {"kind": "branch", "name": f"b{at}", "commit_id": f"c{at}", "state": "active"} for at in (5, 20, len(trees) - 1)
    ]
    rows = pa.Table.from_pylist(commits, messages.arrow_schema(messages.COMMITS))
    return rows, pa.Table.from_pylist(refs, messages.arrow_schema(messages.REFS))


async def test_ranges_of_very_many_classes_of_commits_stay_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each would have a bit for each class on its way from task to task."""
    monkeypatch.setattr(sorting, "IN_ROWS_MAX", 0)
    monkeypatch.setattr(sorting, "MASK_BITS_MAX", 1)
    store = Counted()
    trees, _, _ = await write_versions(store)
    policy = check_policy(json.dumps(POLICY).encode())
    reached = reach_metaranges(*chain_of([*trees]), policy)
    engine = LocalEngine(store, live_ports(), open_deleter=lambda: MemoryDeleter(store))

    _, found = await sort_ranges(engine, store, reached, policy, TreeParts(), folder="_lakefs/f/", tell=lambda _: None)

    assert not ListedRanges(found.due).in_files
    assert found.due.num_rows


async def test_a_file_of_ranges_that_is_altered_stops_a_lifecycle_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sorting, "IN_ROWS_MAX", 0)
    store = Counted()
    trees, _, _ = await write_versions(store)
    policy = check_policy(json.dumps(POLICY).encode())
    reached = reach_metaranges(*chain_of([*trees]), policy)
    engine = LocalEngine(store, live_ports(), open_deleter=lambda: MemoryDeleter(store))
    _, found = await sort_ranges(engine, store, reached, policy, TreeParts(), folder="_lakefs/f/", tell=lambda _: None)
    key = found.due["name"][0].as_py()
    await store.put(key, (await store.get(key))[:-1])

    with pytest.raises(BadInput, match="contradicts its size or digest"):
        await due_in(task_of(store), found.due)


def columns(rows: pa.Table, *names: str) -> list[list[Any]]:
    return [rows[name].to_pylist() for name in names]


@pytest.mark.parametrize("live", [0, 1])
async def test_a_range_is_live_if_one_of_the_sublists_that_list_it_is(live: int) -> None:
    store, sublists = Counted(), dict[str, tuple[int, int, bool]]()
    shared = made_up(0, 0)
    for number in (0, 1):
        info, file = encode_sublist([shared, made_up(1, number)])
        await store.put(sublist_key(info.id), file)
        sublists[info.id] = (0, 0, number == live)

    found = await ranges.read_sublists(task_of(store), ranges_of(sublists))

    names = zip(found["range_id"].to_pylist(), found["is_live"].to_pylist(), strict=True)
    assert dict(names) == {shared.id: True, **{made_up(1, number).id: number == live for number in (0, 1)}}


def made_up(place: int, version: int) -> RangeInfo:
    """A range of which there is no file."""
    id_ = RangeId(sha256(b"%d %d" % (place, version)).hexdigest())
    key = b"%04d/" % place
    return RangeInfo(id=id_, min_key=key, max_key=key + b"9", count=2, size_bytes=2, file_bytes=9)
