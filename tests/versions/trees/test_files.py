"""Trees of committed entries, against plain dicts. Small cut rules make many small ranges out of few entries."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakebed.base import EMPTY_METARANGE, Entry, MetarangeId, Row, to_row
from lakebed.objectstore import Body, MemoryDeleter, MemoryObjectStore, Stored
from lakebed.ranges import (
    CHANGES_SCHEMA,
    CUT_RULE,
    CutRule,
    MetarangeCorrupt,
    RangeCorrupt,
    RangeFile,
    Strategy,
    changes_from_rows,
)
from lakebed.runtime import live_ports
from lakebed.versions import trees
from lakebed.versions.trees import Applied, Merged, Trees, builder
from lakebed.versions.trees.cache import TreeCache
from lakebed.versions.trees.diff import DiffKind, DiffRow
from lakebed.versions.trees.files import PARTS_MAX, ROWS_APART, TOGETHER

SMALL = CutRule(strong=8, weak=3, weak_from=12, rows_max=20)
WIDE = replace(SMALL, listed=2, sublists_min=2)
"""Nearly every tree of several ranges has sublists, and a change makes it wide, or no longer."""
rules = st.sampled_from([SMALL, WIDE])

Model = dict[bytes, Row]

# No deadline: a shared machine may pause anywhere.
searched = settings(deadline=None, max_examples=60)


def row(key: bytes, version: int) -> Row:
    return to_row(key, Entry(address=f"s3://elsewhere/{version}", size_bytes=version, checksum="", modified_ms=version))


def model_of(versions: Mapping[int, int]) -> Model:
    """Keys from small numbers, so that cuts and neighbours are met often."""
    return {b"k%03d" % number: row(b"k%03d" % number, version) for number, version in sorted(versions.items())}


contents = st.dictionaries(st.integers(0, 150), st.integers(1, 3), max_size=120).map(model_of)
dense = st.sets(st.integers(0, 70), max_size=9).map(lambda gaps: model_of(dict.fromkeys({*range(70)} - gaps, 1)))
"""A wide tree of these has several sublists."""
anywhere = st.dictionaries(st.integers(0, 150), st.integers(0, 3), max_size=30)
nearby = st.builds(
    lambda first, edit: {first + number: version for number, version in edit.items()},
    st.integers(0, 142),
    st.dictionaries(st.integers(0, 8), st.integers(0, 3), max_size=6),
)
edits = anywhere | nearby
"""Edits of a few neighbours leave most ranges, and most sublists, as they are: before and after what changed."""
news = st.dictionaries(st.integers(0, 300), st.integers(1, 3), max_size=150)


def edited(model: Model, edit: Mapping[int, int]) -> Model:
    """Version 0 removes."""
    keys = {b"k%03d" % number: version for number, version in edit.items()}
    put = {key: row(key, version) for key, version in keys.items() if version}
    merged = {key: value for key, value in {**model, **put}.items() if keys.get(key) != 0}
    return dict(sorted(merged.items()))


class CountingObjectStore(MemoryObjectStore):
    def __init__(self, uri: str = "mem://counted") -> None:
        super().__init__(uri)
        self.read: list[str] = []
        self.written: list[str] = []

    async def get(self, key: str, *, start: int = 0, end: int | None = None) -> bytes:
        self.read.append(key)
        await asyncio.sleep(0)
        return await super().get(key, start=start, end=end)

    async def put(self, key: str, body: Body, *, size_bytes: int | None = None, if_absent: bool = False) -> Stored:
        self.written.append(key)
        return await super().put(key, body, size_bytes=size_bytes, if_absent=if_absent)


@dataclass
class Forest:
    """Trees over a fresh store, and short ways to ask them."""

    objectstore: CountingObjectStore
    trees: Trees
    rule: CutRule

    @classmethod
    def plant(cls, rule: CutRule = SMALL) -> Forest:
        objectstore = CountingObjectStore()
        return cls(objectstore, Trees(objectstore, TreeCache(10_000_000), live_ports(), rule=rule), rule)

    def reopened(self) -> Forest:
        """The same store behind a cold cache."""
        self.objectstore.read.clear()
        self.objectstore.written.clear()
        trees = Trees(self.objectstore, TreeCache(10_000_000), live_ports(), rule=self.rule)
        return Forest(self.objectstore, trees, self.rule)

    async def apply(self, tree: MetarangeId, changes: Mapping[bytes, Row | None]) -> Applied:
        keys = sorted(changes)
        return await self.trees.apply(tree, changes_from_rows(keys, [changes[key] for key in keys]))

    async def build(self, model: Model) -> MetarangeId:
        return (await self.apply(EMPTY_METARANGE, model)).metarange_id

    async def turn(self, tree: MetarangeId, before: Model, after: Model) -> Applied:
        changes: dict[bytes, Row | None] = dict.fromkeys(before.keys() - after.keys())
        return await self.apply(tree, {**changes, **after})

    async def read(self, tree: MetarangeId) -> Model:
        return dict(await self.trees.scan(tree, b"", 1_000_000))

    async def diff(self, left: MetarangeId, right: MetarangeId, **of: bytes) -> list[DiffRow]:
        return await gathered(self.trees.diff(left, right, **of))

    async def merge(self, base: Model, source: Model, destination: Model, strategy: Strategy = "none") -> Merged:
        ids = [await self.build(model) for model in (base, source, destination)]
        return await self.trees.merge(base=ids[0], source=ids[1], destination=ids[2], strategy=strategy)

    async def names(self, tree: MetarangeId, *kinds: str) -> list[str]:
        """Return the ids of a tree's files, or of those of some kinds."""
        if tree == EMPTY_METARANGE:
            return []
        of_kind: dict[str, list[str]] = {
            "metaranges": [tree],
            "ranges": [info.id for info in await self.trees.ranges(tree)],
            "sublists": [info.id for info in await self.trees.sublists(tree)],
        }
        return [id_ for kind in kinds or of_kind for id_ in of_kind[kind]]

    def range_reads(self) -> list[str]:
        return [key for key in self.objectstore.read if "/ranges/" in key]


async def gathered(batches: AsyncIterator[list[DiffRow]]) -> list[DiffRow]:
    found = []
    async for batch in batches:
        assert batch
        found += batch
    return found


def difference(left: Model, right: Model) -> list[DiffRow]:
    found = []
    for key in sorted(left.keys() | right.keys()):
        one, other = left.get(key), right.get(key)
        if one != other:
            kind: DiffKind = "added" if one is None else "removed" if other is None else "changed"
            found.append(DiffRow(kind, key, one if other is None else None, other))
    return found


def merged_model(base: Model, source: Model, destination: Model, strategy: str) -> tuple[Model, list[bytes]]:
    result, conflicts = {}, []
    for key in sorted(base.keys() | source.keys() | destination.keys()):
        b, s, d = base.get(key), source.get(key), destination.get(key)
        value = s if b == d else d
        if s not in (b, d) and b != d:
            conflicts.append(key)
            value = s if strategy == "source-wins" else d
        if value is not None:
            result[key] = value
    return result, conflicts


@searched
@given(contents, st.lists(edits, max_size=4), rules)
def test_a_tree_depends_on_its_entries_and_not_on_how_they_came(
    model: Model, steps: list[Mapping[int, int]], rule: CutRule
) -> None:
    async def story() -> None:
        forest, now = Forest.plant(rule), model
        tree = await forest.build(now)
        for step in steps:
            after = edited(now, step)
            changes = {b"k%03d" % number: after.get(b"k%03d" % number) for number in step}
            applied = await forest.apply(tree, changes)
            kinds = [row.kind for row in difference(now, after)]
            assert (applied.added, applied.changed, applied.removed) == tuple(
                kinds.count(kind) for kind in ("added", "changed", "removed")
            )
            tree, now = applied.metarange_id, after
            assert tree == await Forest.plant(rule).build(now)
            assert await forest.reopened().read(tree) == now

    asyncio.run(story())


@searched
@given(contents, contents, rules)
def test_any_two_trees_turn_into_each_other(before: Model, after: Model, rule: CutRule) -> None:
    async def story() -> None:
        forest = Forest.plant(rule)
        applied = await forest.turn(await forest.build(before), before, after)
        assert applied.metarange_id == await forest.build(after)

    asyncio.run(story())


@searched
@given(contents, edits, contents, st.integers(0, 160), st.sampled_from([b"", b"k", b"k0", b"k01", b"k1", b"x"]), rules)
def test_a_diff_lists_what_differs_in_key_order(
    left: Model, edit: Mapping[int, int], other: Model, start: int, prefix: bytes, rule: CutRule
) -> None:
    async def story() -> None:
        forest = Forest.plant(rule)
        for right in (edited(left, edit), other):
            ids = await forest.build(left), await forest.build(right)
            assert await forest.diff(*ids) == difference(left, right)
            asked = [
                row for row in difference(left, right) if row.key >= b"k%03d" % start and row.key.startswith(prefix)
            ]
            assert await forest.reopened().diff(*ids, start=b"k%03d" % start, prefix=prefix) == asked

    asyncio.run(story())


asked_for = st.sets(st.integers(0, 160), min_size=1, max_size=9).map(
    lambda numbers: [(b"k%03d" % start, b"k%03d" % end) for start, end in pairwise(sorted(numbers))]
)


@searched
@given(contents, edits, contents, asked_for, rules)
def test_where_two_trees_differ_is_known_by_ranges_then_by_keys(
    left: Model, edit: Mapping[int, int], other: Model, asked: list[tuple[bytes, bytes]], rule: CutRule
) -> None:
    async def story() -> None:
        forest = Forest.plant(rule)
        for right in (edited(left, edit), other):
            ids = await forest.build(left), await forest.build(right)
            keys = [row.key for row in difference(left, right)]
            differs = [row for row, (start, end) in enumerate(asked) if any(start <= key < end for key in keys)]
            starts, ends = [start for start, _ in asked], [end for _, end in asked]
            for exactly in (False, True):
                apart, _ = await forest.trees.apart(*ids, exactly=exactly)
                assert {*differs} <= {*apart.meets(starts, ends)}
                # More stretches than keys are looked up the other way around.
                assert [
                    row for row in range(len(asked)) if apart.meets(starts[row : row + 1], ends[row : row + 1])
                ] == (sorted(apart.meets(starts, ends)))
            assert (apart.is_exact, apart.starts, sorted(apart.meets(starts, ends))) == (True, keys, differs)
            assert await forest.trees.apart(*ids, exactly=True) == (apart, 0)

    asyncio.run(story())


async def test_trees_that_differ_at_too_many_keys_are_known_by_ranges_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    forest = Forest.plant(SMALL)
    contents = [model_of(dict.fromkeys(range(150), version)) for version in (1, 2)]
    left, right = [await forest.build(model) for model in contents]
    monkeypatch.setattr(trees.diff, "STRETCHES_MAX", 9)

    apart, read = await forest.trees.apart(left, right, exactly=True)

    assert (apart.is_exact, read > 300, len(apart.starts)) == (False, True, 1)
    assert apart.meets([b"k001", b"k9"], [b"k002", b"z"]) == [0]
    assert await forest.trees.apart(left, right, exactly=True) == (apart, 0)


@searched
@given(contents, edits, edits, st.sampled_from(["none", "source-wins", "dest-wins"]), rules)
def test_a_merge_follows_the_three_way_rule_and_is_cut_as_if_built_at_once(
    base: Model, ours: Mapping[int, int], theirs: Mapping[int, int], strategy: Strategy, rule: CutRule
) -> None:
    async def story() -> None:
        forest, source, destination = Forest.plant(rule), edited(base, ours), edited(base, theirs)
        expected, conflicts = merged_model(base, source, destination, strategy)
        merged = await forest.merge(base, source, destination, strategy)
        if strategy == "none" and conflicts:
            assert merged.conflicts == conflicts
            assert merged.conflict_count == len(conflicts)
            assert merged.metarange_id == await forest.build(destination)
            return
        assert merged.conflicts == []
        assert merged.metarange_id == await forest.build(expected)

    asyncio.run(story())


@searched
@given(contents, news, edits, edits, rules)
def test_a_merge_keeps_what_both_sides_have_and_the_base_lacks(
    base: Model, both: Mapping[int, int], ours: Mapping[int, int], theirs: Mapping[int, int], rule: CutRule
) -> None:
    """Both sides have sublists and ranges in common that the base lacks, beside those of their own."""

    async def story() -> None:
        forest, shared = Forest.plant(rule), edited(base, both)
        source, destination = edited(shared, ours), edited(shared, theirs)
        merged = await forest.merge(base, source, destination, "source-wins")
        expected, _ = merged_model(base, source, destination, "source-wins")
        assert merged.metarange_id == await forest.build(expected)
        assert await forest.reopened().read(merged.metarange_id) == expected

    asyncio.run(story())


async def test_a_merge_of_wide_trees_keeps_a_sublist_that_both_have_and_the_base_lacks() -> None:
    forest, base = Forest.plant(WIDE), model_of(dict.fromkeys(range(0, 1000, 2), 1))
    shared = edited(base, dict.fromkeys(range(401, 600, 2), 1))
    source, destination = edited(shared, {100: 2}), edited(shared, {900: 2})

    merged = await forest.merge(base, source, destination)

    ids = [await forest.build(model) for model in (base, source, destination)]
    lists = [{one.id for one in await forest.trees.sublists(tree)} for tree in ids]
    kept = (lists[1] & lists[2]) - lists[0]
    assert kept
    assert kept <= {one.id for one in await forest.trees.sublists(merged.metarange_id)}
    assert await forest.reopened().read(merged.metarange_id) == edited(source, {900: 2})


@searched
@given(contents, contents, contents, rules)
def test_trees_without_a_common_past_merge_too(base: Model, source: Model, destination: Model, rule: CutRule) -> None:
    async def story() -> None:
        forest = Forest.plant(rule)
        merged = await forest.merge(base, source, destination, "source-wins")
        expected, _ = merged_model(base, source, destination, "source-wins")
        assert merged.metarange_id == await forest.build(expected)

    asyncio.run(story())


@searched
@given(contents, st.lists(st.integers(-1, 160), max_size=20), st.integers(0, 160), st.integers(0, 100), rules)
def test_entries_are_found_one_by_one_in_bulk_and_in_order(
    model: Model, numbers: Sequence[int], start: int, limit: int, rule: CutRule
) -> None:
    async def story() -> None:
        forest = Forest.plant(rule)
        tree = await forest.build(model)
        keys = [b"k%03d" % number if number >= 0 else b"" for number in numbers]
        assert [await forest.trees.lookup(tree, key) for key in keys] == [model.get(key) for key in keys]
        assert await forest.trees.lookup_many(tree, keys) == [model.get(key) for key in keys]
        first = b"k%03d" % start
        expected = [item for item in model.items() if item[0] >= first][:limit]
        assert await forest.trees.scan(tree, first, limit) == expected

    asyncio.run(story())


async def test_the_tree_without_entries_has_no_file() -> None:
    forest, model = Forest.plant(), model_of({1: 1})

    emptied = await forest.turn(await forest.build(model), model, {})

    assert emptied.metarange_id == EMPTY_METARANGE
    assert not [key for key in forest.objectstore.objects if key.endswith("/.parquet")]
    assert await forest.trees.lookup(EMPTY_METARANGE, b"k") is None
    assert await forest.trees.scan(EMPTY_METARANGE, b"", 10) == []
    assert await forest.trees.lookup_many(EMPTY_METARANGE, [b"k"]) == [None]


async def test_a_change_that_changes_nothing_gives_the_same_id_and_writes_nothing() -> None:
    forest, model = Forest.plant(), model_of(dict.fromkeys(range(100), 1))
    tree = await forest.build(model)
    forest = forest.reopened()

    applied = await forest.apply(tree, {b"k005": model[b"k005"], b"nothing": None, b"": None, b"k050": model[b"k050"]})

    assert applied == Applied(metarange_id=tree, added=0, changed=0, removed=0)
    assert (await forest.trees.apply(tree, CHANGES_SCHEMA.empty_table())).metarange_id == tree
    assert forest.objectstore.written == []


async def test_a_change_reads_and_writes_only_the_range_it_falls_into() -> None:
    forest, model = Forest.plant(), model_of(dict.fromkeys(range(1000), 1))
    tree = await forest.build(model)
    ranges = await forest.trees.ranges(tree)
    target = ranges[len(ranges) // 2]
    forest = forest.reopened()

    changed = await forest.apply(tree, {target.min_key: row(target.min_key, 2)})

    assert forest.range_reads() == [f"_lakefs/ranges/{target.id}.parquet"]
    after = await forest.trees.ranges(changed.metarange_id)
    assert len([info for info in after if info not in ranges]) == 1
    assert len(forest.objectstore.written) == 2
    assert forest.objectstore.written[-1] == f"_lakefs/metaranges/{changed.metarange_id}.parquet"


async def test_a_change_of_a_wide_tree_reads_and_writes_one_sublist() -> None:
    forest, model = Forest.plant(WIDE), model_of(dict.fromkeys(range(1000), 1))
    tree = await forest.build(model)
    sublists = await forest.trees.sublists(tree)
    assert len(sublists) > 20
    target = sublists[len(sublists) // 2]
    (info, *_) = [info for info in await forest.trees.ranges(tree) if info.min_key == target.min_key]
    forest = forest.reopened()

    changed = await forest.apply(tree, {info.min_key: row(info.min_key, 2)})

    after = await forest.trees.sublists(changed.metarange_id)
    # The last sublist ends with the tree and not in a cut: nothing follows it, so it goes over unread, too.
    assert [key for key in forest.objectstore.read if "/sublists/" in key] == [f"_lakefs/sublists/{target.id}.parquet"]
    assert len([one for one in after if one not in sublists]) == 1
    assert sorted(key.split("/")[1] for key in forest.objectstore.written) == ["metaranges", "ranges", "sublists"]
    assert forest.objectstore.written[-1] == f"_lakefs/metaranges/{changed.metarange_id}.parquet"


async def test_where_a_sublist_no_longer_ends_in_a_cut_the_ranges_of_the_next_one_stay_in_the_tree() -> None:
    """The last range of a list goes as a whole. The range before it ends in a cut of ranges, and of no list."""
    forest, model = Forest.plant(WIDE), model_of(dict.fromkeys(range(200), 1))
    tree = await forest.build(model)
    lists = {sublist.max_key for sublist in await forest.trees.sublists(tree)}
    for info in await forest.trees.ranges(tree):
        if info.max_key in lists:
            gone = [key for key in model if info.min_key <= key <= info.max_key]
            changed = await forest.apply(tree, dict.fromkeys(gone))
            after = {key: value for key, value in model.items() if key not in gone}
            assert await forest.read(changed.metarange_id) == after
            assert changed.metarange_id == await forest.build(after)


async def test_a_diff_of_wide_trees_reads_no_sublist_that_both_have() -> None:
    forest, model = Forest.plant(WIDE), model_of(dict.fromkeys(range(1000), 1))
    left = await forest.build(model)
    right = (await forest.apply(left, {b"k500": row(b"k500", 2)})).metarange_id
    forest = forest.reopened()

    await forest.diff(left, right)

    assert len([key for key in forest.objectstore.read if "/sublists/" in key]) == 2


async def test_a_merge_of_wide_trees_opens_only_sublists_that_one_of_them_lacks() -> None:
    forest, base = Forest.plant(WIDE), model_of(dict.fromkeys(range(1000), 1))
    source, destination = edited(base, {100: 2}), edited(base, {900: 2})
    ids = [await forest.build(model) for model in (base, source, destination)]
    forest = forest.reopened()

    await forest.trees.merge(base=ids[0], source=ids[1], destination=ids[2], strategy="none")

    # Of each change the sublist before it, in two trees, and after it, in one.
    assert len({key for key in forest.objectstore.read if "/sublists/" in key}) == 4


async def test_a_bulk_load_between_two_keys_of_a_range_is_cut_as_if_built_at_once() -> None:
    """More changes than are applied at once, with keys of the range before, among and behind them."""
    forest = Forest.plant(CUT_RULE)
    value = row(b"", 1)
    old = dict.fromkeys([b"a", b"b%08d" % 69_999, b"b%08d" % 100_000, b"c"], row(b"", 2))
    load = {b"b%08d" % number: value for number in range(140_000)}
    tree = await forest.build(old)

    applied = await forest.apply(tree, {**load, b"b00200000": None, b"c": None})

    expected = {b"a": old[b"a"], **load}
    assert (applied.added, applied.changed, applied.removed) == (139_998, 2, 1)
    assert applied.metarange_id == await Forest.plant(CUT_RULE).build(expected)
    assert await forest.read(applied.metarange_id) == expected


async def test_a_diff_reads_no_range_that_both_trees_have() -> None:
    forest, model = Forest.plant(), model_of(dict.fromkeys(range(1000), 1))
    left = await forest.build(model)
    right = (await forest.apply(left, {b"k500": row(b"k500", 2)})).metarange_id
    forest = forest.reopened()

    await forest.diff(left, right)

    assert len(forest.range_reads()) == 2


async def test_a_merge_of_changes_in_different_ranges_reads_none_of_them_to_merge() -> None:
    forest, base = Forest.plant(), model_of(dict.fromkeys(range(1000), 1))
    source, destination = edited(base, {100: 2, 101: 0}), edited(base, {900: 2, 901: 0})
    ids = [await forest.build(model) for model in (base, source, destination)]
    before = set(forest.objectstore.objects)
    forest = forest.reopened()

    merged = await forest.trees.merge(base=ids[0], source=ids[1], destination=ids[2], strategy="none")

    assert merged.metarange_id == await forest.build(edited(source, {900: 2, 901: 0}))
    assert {key for key in set(forest.objectstore.objects) - before if "/ranges/" in key} == set()


async def test_only_the_first_thousand_conflicts_are_listed_and_all_are_counted() -> None:
    forest = Forest.plant()
    keys = [b"%04d" % number for number in range(1200)]
    models = [{key: row(key, version) for key in keys} for version in (1, 2, 3)]

    merged = await forest.merge(models[0], models[1], models[2])

    assert merged.conflicts == keys[:1000]
    assert merged.conflict_count == 1200


async def test_the_same_change_on_both_sides_is_no_conflict() -> None:
    forest, base = Forest.plant(), model_of(dict.fromkeys(range(100), 1))
    both = edited(base, {5: 2, 6: 0, 120: 1})

    merged = await forest.merge(base, both, both)

    assert merged.conflict_count == 0
    assert merged.metarange_id == await forest.build(both)


@pytest.mark.parametrize("damage", ["missing", "short", "flipped", "swapped"])
async def test_a_damaged_range_is_named_with_its_namespace_and_nothing_of_it_is_kept(damage: str) -> None:
    forest, model = Forest.plant(), model_of(dict.fromkeys(range(100), 1))
    tree = await forest.build(model)
    first, second = (await forest.trees.ranges(tree))[:2]
    key = f"_lakefs/ranges/{first.id}.parquet"
    good = await forest.objectstore.get(key)
    bad = {
        "missing": None,
        "short": good[:-1],
        "flipped": good[:40] + bytes([good[40] ^ 1]) + good[41:],
        "swapped": await forest.objectstore.get(f"_lakefs/ranges/{second.id}.parquet"),
    }[damage]
    await MemoryDeleter(forest.objectstore).delete([key])
    if bad is not None:
        await forest.objectstore.put(key, bad)
    forest = forest.reopened()

    for attempt in (
        lambda: forest.trees.lookup(tree, first.min_key),
        lambda: forest.trees.lookup_many(tree, [first.min_key]),
        lambda: forest.trees.scan(tree, b"", 10),
        lambda: forest.trees.first_key(tree, first.min_key + b"\0", bytes),
        lambda: forest.apply(tree, {first.min_key: row(first.min_key, 3)}),
        lambda: forest.diff(tree, EMPTY_METARANGE),
    ):
        with pytest.raises(RangeCorrupt) as caught:
            await attempt()
        assert caught.value.facts["range_id"] == first.id
        assert caught.value.facts["namespace"] == "mem://counted"
    await forest.objectstore.put(key, good)
    assert await forest.trees.lookup(tree, first.min_key) == model[first.min_key]


async def test_a_first_key_is_read_once_from_a_part_of_its_range_and_at_last_from_the_whole() -> None:
    forest, model = Forest.plant(), model_of(dict.fromkeys(range(100), 1))
    tree = await forest.build(model)
    [info, *_] = [info for info in await forest.trees.ranges(tree) if info.count > PARTS_MAX + 2]
    keys = [key for key in model if info.min_key <= key <= info.max_key]
    forest = forest.reopened()
    file, read = f"_lakefs/ranges/{info.id}.parquet", forest.objectstore.read

    assert await forest.trees.first_key(tree, info.min_key, bytes) == info.min_key
    assert read.count(file) == 0, "the list of ranges has it"
    for number, key in enumerate(keys[:PARTS_MAX]):
        for _ in range(2):
            assert await forest.trees.first_key(tree, key + b"\0", bytes) == keys[number + 1]
            assert await forest.trees.first_key(tree, key + b"\1", bytes) == keys[number + 1], "no key lies between"
        assert read.count(file) == number + 1
    assert await forest.trees.first_key(tree, keys[PARTS_MAX] + b"\0", bytes) is None, (
        "parts cost more than the whole by now"
    )
    assert await forest.trees.first_key(tree, keys[0] + b"\0", bytes) == keys[1]
    await forest.trees.lookup(tree, keys[0])
    assert await forest.trees.first_key(tree, keys[0] + b"\0", bytes) is None, "the cache has the whole range"
    assert await forest.trees.first_key(tree, keys[0] + b"\0", lambda key: key[:1]) == keys[1], "all are in a folder"
    assert await forest.trees.first_key(tree, b"z", bytes) is None


async def test_a_missing_metarange_is_named_with_its_namespace() -> None:
    forest = Forest.plant()
    with pytest.raises(MetarangeCorrupt) as caught:
        await forest.trees.lookup(MetarangeId("ab" * 32), b"k")

    assert caught.value.facts["metarange_id"] == "ab" * 32
    assert caught.value.facts["namespace"] == "mem://counted"


async def test_those_who_miss_a_range_at_the_same_time_load_it_once() -> None:
    forest, model = Forest.plant(), model_of(dict.fromkeys(range(5), 1))
    tree = await forest.build(model)
    forest = forest.reopened()

    rows = await asyncio.gather(*[forest.trees.lookup(tree, b"k003") for _ in range(10)])

    assert rows == [model[b"k003"]] * 10
    assert len(forest.objectstore.read) == 2


@pytest.mark.parametrize("rule", [SMALL, WIDE])
async def test_files_are_written_under_ids_that_nobody_gave_up(rule: CutRule) -> None:
    """Salted as often as it takes; the tree holds the same, and whoever makes it makes the same."""
    forest = Forest.plant(rule)
    model = model_of(dict.fromkeys(range(200), 1))
    plain = await forest.build(model)
    given_up: dict[str, str] = {plain: "r1"}
    given_up |= {info.id: "r1" for info in await forest.trees.ranges(plain)}
    given_up |= {info.id: "r1" for info in await forest.trees.sublists(plain)}
    changes = changes_from_rows(list(model), list(model.values()))

    async def salts(ids: Sequence[str]) -> list[str]:
        return [given_up.get(id_, "") for id_ in ids]

    async def build() -> MetarangeId:
        return (await forest.trees.apply(EMPTY_METARANGE, changes, retired_by=salts)).metarange_id

    salted = await build()
    ranges = [info.id for info in await forest.trees.ranges(salted)]
    lists = {info.id for info in await forest.trees.sublists(salted)}
    given_up |= {ranges[0]: "r2", salted: "r2"} | dict.fromkeys(sorted(lists)[:1], "r2")
    again = await build()

    anew = [info.id for info in await forest.trees.ranges(again)]
    assert len({plain, salted, again}) == 3
    assert len(ranges) > 2 * TOGETHER
    relisted = {info.id for info in await forest.trees.sublists(again)}
    assert bool(lists) == bool(relisted) == (rule is WIDE)
    assert not {again, *anew, *relisted} & given_up.keys()
    assert anew[1:] == ranges[1:]
    assert await build() == again
    for tree in (salted, again):
        assert await forest.reopened().read(tree) == model


@settings(searched, max_examples=8)
@given(dense, edits, edits, st.sampled_from([["ranges"], ["sublists"], ["metaranges"]]), st.integers(1, 2))
def test_no_change_and_no_merge_writes_under_an_id_that_was_given_up(
    model: Model, edit: Mapping[int, int], other: Mapping[int, int], kinds: list[str], each: int
) -> None:
    """Of ranges, sublists and metaranges. What the trees before have stays as it is, given up or not."""

    async def story() -> None:
        forest, elsewhere = Forest.plant(WIDE), Forest.plant(WIDE)
        after = edited(model, edit)
        both, _ = merged_model(model, edited(model, other), after, "dest-wins")
        trees = [await elsewhere.build(one) for one in (after, both)]
        given_up = {id_ for tree in trees for id_ in (await elsewhere.names(tree, *kinds))[::each]}

        async def salts(ids: Sequence[str]) -> list[str]:
            return ["r1" if id_ in given_up else "" for id_ in ids]

        base, source = await forest.build(model), await forest.build(edited(model, other))
        kept = {*await forest.names(base), *await forest.names(source)}
        forest = forest.reopened()
        changes = {b"k%03d" % number: after.get(b"k%03d" % number) for number in edit}
        rows = changes_from_rows(sorted(changes), [changes[key] for key in sorted(changes)])
        changed = (await forest.trees.apply(base, rows, retired_by=salts)).metarange_id
        merged = (
            await forest.trees.merge(
                base=base, source=source, destination=changed, strategy="dest-wins", retired_by=salts
            )
        ).metarange_id

        written = {key.rpartition("/")[2].removesuffix(".parquet") for key in forest.objectstore.written}
        assert not written & given_up
        for tree, expected in ((changed, after), (merged, both)):
            assert not {*await forest.names(tree)} & given_up - kept
            assert await forest.reopened().read(tree) == expected

    asyncio.run(story())


@pytest.mark.parametrize("what", ["change", "merge"])
async def test_a_range_is_encoded_in_a_turn_of_its_own(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Decoding, changing, merging and encoding a range take some ms each, and others wait meanwhile."""
    forest, count = Forest.plant(CUT_RULE), 40_000
    tree = await forest.build({b"%06d" % number: row(b"", 1) for number in range(count)})
    assert (await forest.trees.ranges(tree))[-1].count > ROWS_APART, "it is read, and what follows is added to it"
    sides = [
        (await forest.apply(tree, {b"%06d" % number: row(b"", 2) for number in keys})).metarange_id
        for keys in (range(0, count, 20), range(1, count, 20))
    ]
    forest = forest.reopened()
    turns, steps = 0, list[tuple[str, int]]()

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    def noted(place: object, name: str, rows: Callable[[Any, Any], int]) -> None:
        step = getattr(place, name)

        def taken(*args: Any, **options: Any) -> Any:
            done = step(*args, **options)
            if rows(args, done) >= ROWS_APART:
                steps.append((name, turns))
            return done

        monkeypatch.setattr(place, name, taken)

    noted(RangeFile, "table", lambda _, table: table.num_rows)
    noted(trees, "apply_changes", lambda _, change: change.entries.num_rows)
    noted(trees.merge, "merge_tables", lambda _, merged: merged.entries.num_rows)
    noted(builder, "encode_range", lambda args, _: args[0].num_rows)
    task = asyncio.create_task(others())
    if what == "change":
        await forest.apply(tree, {b"%06d" % number: row(b"", 2) for number in range(count - 1, 2 * count)})
    else:
        await forest.trees.merge(base=tree, source=sides[0], destination=sides[1], strategy="none")
    task.cancel()

    changing = "apply_changes" if what == "change" else "merge_tables"
    assert {name for name, _ in steps} == {"table", changing, "encode_range"}
    together = {(one[0], other[0]) for one, other in pairwise(steps) if one[1] == other[1]}
    assert together <= {("table", "table"), ("table", "merge_tables")}
