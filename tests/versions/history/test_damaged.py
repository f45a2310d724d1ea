"""The log of a path where a file of some tree is damaged."""

from __future__ import annotations

import pytest

from lakebed.kv.drivers.memory import MemoryStore
from lakebed.objectstore import MemoryObjectStore
from lakebed.ranges import CutRule, FileCorrupt, range_key, sublist_key
from tests.gc.conftest import Lake

ONE_ROW = CutRule(strong=1, weak=1, weak_from=1, rows_max=1)
WIDE = CutRule(strong=1, weak=1, weak_from=1, rows_max=1, listed=1, sublists_min=2)


@pytest.mark.parametrize(("rule", "folder"), [(ONE_ROW, "ranges"), (WIDE, "ranges"), (WIDE, "sublists")])
async def test_a_log_by_path_opens_only_files_that_may_hold_the_path(rule: CutRule, folder: str) -> None:
    lake = Lake(MemoryStore(), MemoryObjectStore("mem://tests"), rule=rule)
    await lake.versions.commits.initialise("main")
    for path in ("a", "m/1", "z"):
        await lake.put("main", path)
    await lake.commit("main")
    before = {stat.key async for page in lake.objectstore.list(f"_lakefs/{folder}/") for stat in page}
    for path in ("m/1", "z"):
        await lake.put("main", path, "other")
    made = await lake.commit("main")
    trees = lake.server().context.trees
    if folder == "sublists":
        [key] = [sublist_key(one.id) for one in await trees.sublists(made.metarange_id) if one.max_key == b"z"]
    else:
        [key] = [range_key(one.id) for one in await trees.ranges(made.metarange_id) if one.max_key == b"z"]
    assert key not in before
    assert await lake.objectstore.get(key)
    await lake.objectstore.put(key, b"not a file of ours")

    by_path, _ = await lake.server().history.log("main", objects=[b"m/1"], limit=1)
    by_prefix, _ = await lake.server().history.log("main", prefixes=[b"m/"], limit=1)

    assert [commit.id for commit in by_path] == [commit.id for commit in by_prefix] == [made.id]
    with pytest.raises(FileCorrupt):
        await lake.server().history.log("main", objects=[b"z"], limit=1)
