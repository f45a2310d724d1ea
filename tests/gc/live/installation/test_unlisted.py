"""Slices without a record, as after the restore of an older backup: put on record on request, and then collected."""

from __future__ import annotations

import pytest

from lakebed.base import Conflict, slice_name, slice_number
from lakebed.gc.live import OtherInstallation
from lakebed.versions import SliceRecord, keys
from tests.gc.conftest import Lake


async def lose_slices(lake: Lake) -> None:
    """Leave the records of a backup from before any slice was opened."""
    await lake.versions.slices.end()
    partition = lake.versions.partition
    page = await lake.store.scan(partition, keys.SLICE, 100)
    await lake.store.delete_many(partition, [key for key in page.keys if key.startswith(keys.SLICE)])


async def test_what_nothing_names_in_a_slice_without_a_record_goes_once_it_was_adopted(lake: Lake) -> None:
    kept = await lake.put("main", "a", "kept")
    await lake.commit("main")
    await lake.put("main", "b", "replaced")
    staged = await lake.put("main", "b", "staged")
    await lose_slices(lake)
    lake.days(1)
    await lake.service.adopting()
    await lake.collector().collect_uncommitted()
    assert len(await lake.objects()) == 3

    lake.days(1)
    found = await lake.service.find_slices()
    adopted = await lake.service.adopt_slices()
    again = await lake.service.adopt_slices()
    assert (found.slices, (await lake.service.find_slices()).slices) == (adopted.slices, ())
    await lake.collector().collect_uncommitted()
    assert len(await lake.objects()) == 3
    lake.days(2)
    await lake.collector().collect_uncommitted()

    assert (len(adopted.slices), again.slices) == (1, ())
    assert set(await lake.objects()) == {kept, staged}


async def test_slices_are_adopted_a_day_after_a_person_chose_this_installation(lake: Lake) -> None:
    await lake.put("main", "a")
    await lose_slices(lake)
    with pytest.raises(Conflict, match="was never chosen"):
        await lake.service.adopt_slices()
    lake.days(1)
    await lake.service.adopting()
    lake.days(0.9)

    with pytest.raises(Conflict, match="was chosen"):
        await lake.service.adopt_slices()

    lake.days(0.2)
    assert len((await lake.service.adopt_slices()).slices) == 1


async def test_no_slice_is_adopted_while_another_installation_writes(lake: Lake) -> None:
    await lake.put("main", "a")
    await lose_slices(lake)
    lake.days(1)
    await lake.service.adopting()
    lake.days(1)
    other = slice_name(slice_number(opened_at_ms=lake.clock.ms, random_bits=7))
    await lake.objectstore.put(f"data/{other}/00000000", b"theirs")

    with pytest.raises(Conflict, match=other):
        await lake.service.find_slices()
    with pytest.raises(Conflict, match=other):
        await lake.service.adopt_slices()

    assert [name async for name, _ in lake.versions.inventory.every(SliceRecord)] == []


async def test_no_slice_is_adopted_before_a_restore_is_at_its_end(lake: Lake) -> None:
    await lake.put("main", "a")
    await lose_slices(lake)
    branch = await lake.store.get(lake.versions.partition, keys.BRANCH + b"main")
    assert branch is not None
    await lake.store.delete(lake.versions.partition, keys.BRANCH + b"main")
    await lake.service.installation.distrust(default_branch="main")
    lake.days(1)
    await lake.service.adopting()
    lake.days(1.1)

    with pytest.raises(Conflict, match="yet: restore a dump into it first"):
        await lake.service.adopt_slices()

    await lake.store.set(lake.versions.partition, keys.BRANCH + b"main", branch.value)
    assert len((await lake.service.adopt_slices()).slices) == 1


async def test_no_slice_is_adopted_where_another_installation_was_seen(lake: Lake) -> None:
    await lake.service.installation.say_alive()
    await lake.objectstore.put("_lakefs/installation/000000000009-other", b"{}")

    with pytest.raises(OtherInstallation):
        await lake.service.adopt_slices()


async def test_a_slice_that_has_a_record_keeps_it(lake: Lake) -> None:
    await lake.put("main", "a")
    await lake.versions.slices.end()
    [(name, before)] = [one async for one in lake.versions.inventory.every(SliceRecord)]

    adopted = await lake.versions.slices.adopt(name)

    assert not adopted
    assert [one async for one in lake.versions.inventory.every(SliceRecord)] == [(name, before)]
