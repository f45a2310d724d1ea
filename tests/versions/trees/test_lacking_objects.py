"""Find the objects that trees name and that are missing."""

from __future__ import annotations

import asyncio

from lakebed.base import EMPTY_METARANGE, Entry, MetarangeId, format_address, to_row
from lakebed.objectstore import MemoryObjectStore
from lakebed.ranges import CutRule, changes_from_rows
from lakebed.runtime import live_ports
from lakebed.versions import LackingObjects, Trees
from lakebed.versions.trees.cache import TreeCache

RULE = CutRule(strong=8, weak=3, weak_from=12, rows_max=20)


async def tree_of(trees: Trees, addresses: dict[str, str]) -> MetarangeId:
    rows = [
        (path.encode(), to_row(path.encode(), Entry(address=address, size_bytes=1, checksum="", modified_ms=1)))
        for path, address in sorted(addresses.items())
    ]
    return (
        await trees.apply(EMPTY_METARANGE, changes_from_rows([key for key, _ in rows], [row for _, row in rows]))
    ).metarange_id


async def test_each_missing_object_is_counted_and_the_first_ten_are_named() -> None:
    objectstore = MemoryObjectStore("mem://lake")
    trees = Trees(objectstore, TreeCache(1 << 20), live_ports(), rule=RULE)
    places = {f"p{number:03d}": format_address(7 + number % 3, number * 100) for number in range(100)}
    others = {"q/absolute": "mem://lake/other/1", "q/lost": "mem://lake/other/2", "q/outside": "mem://elsewhere/1"}
    first = await tree_of(trees, places | others)
    second = await tree_of(trees, {"again": places["p000"]})
    there = {address for path, address in places.items() if path < "p040"} | {"other/1"}
    for address in there:
        await objectstore.put(address, b"x")

    look = LackingObjects(objectstore, trees, live_ports())
    await look.look([first, second])

    assert (look.count, look.outside) == (61, 1)
    assert look.some == [(f"p{number:03d}", places[f"p{number:03d}"]) for number in range(40, 50)]


async def test_an_object_that_many_trees_and_paths_name_is_missing_once() -> None:
    objectstore = MemoryObjectStore("mem://lake")
    trees = Trees(objectstore, TreeCache(1 << 20), live_ports(), rule=RULE)
    one, lost = format_address(7, 1), "mem://lake/other/2"
    made = [
        await tree_of(trees, {"a": one, "b": one, "c": lost, f"d{number}": format_address(7, number + 2)})
        for number in range(6)
    ]
    for number in range(6):
        await objectstore.put(format_address(7, number + 2), b"x")

    look = LackingObjects(objectstore, trees, live_ports())
    await look.look(made)

    assert (look.count, look.some) == (2, [("a", one), ("c", "other/2")])


async def test_nothing_is_missing_where_all_objects_are_there() -> None:
    objectstore = MemoryObjectStore("mem://lake")
    trees = Trees(objectstore, TreeCache(1 << 20), live_ports(), rule=RULE)
    places = {f"p{number}": format_address(7, number) for number in range(30)}
    for address in places.values():
        await objectstore.put(address, b"x")

    look = LackingObjects(objectstore, trees, live_ports())
    await look.look([await tree_of(trees, places)])

    assert (look.count, look.some) == (0, [])


async def test_others_have_a_turn_after_each_range() -> None:
    objectstore = MemoryObjectStore("mem://lake")
    trees = Trees(objectstore, TreeCache(1 << 20), live_ports(), rule=RULE)
    tree = await tree_of(trees, {f"p{number:03d}": format_address(7, number) for number in range(100)})
    ranges = len(await trees.ranges(tree))
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    other = asyncio.create_task(count_turns())
    look = LackingObjects(objectstore, trees, live_ports())
    await look.look([tree])
    other.cancel()

    assert look.count == 100
    assert turns >= ranges > 5
