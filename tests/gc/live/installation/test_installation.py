"""Two copies of one key-value store and one namespace: neither collects what the other one names."""

from __future__ import annotations

import copy

import pytest

from lakebed.gc.live import Installation, OtherInstallation
from lakebed.gc.live.installation.installation import Mark
from lakebed.gc.messages import INSTALLATION_PREFIX, RunKind, StartRun
from lakebed.kv.drivers.memory import MemoryStore
from lakebed.objectstore import Body, MemoryObjectStore, ObjectStoreUnavailable, Stored
from tests.gc.conftest import Lake


def clone(lake: Lake) -> Lake:
    """A backup of the key-value store, brought up elsewhere with the same bucket."""
    store = MemoryStore()
    for name, value in vars(lake.store).items():
        if isinstance(value, dict):
            setattr(store, name, copy.deepcopy(value))
    other = Lake(store, lake.objectstore)
    other.clock.ms = lake.clock.ms
    return other


async def marks(lake: Lake) -> list[str]:
    return [stat.key async for page in lake.objectstore.list(INSTALLATION_PREFIX) for stat in page]


async def test_a_copy_takes_nothing_once_the_living_one_said_that_it_lives(lake: Lake) -> None:
    await lake.put("main", "a")
    copied = clone(lake)
    await lake.put("main", "b")
    await lake.commit("main")
    before = await lake.objects()
    for one in (lake, copied):
        one.days(1.1)
    await lake.service.installation.say_alive()

    with pytest.raises(OtherInstallation):
        await copied.collector().collect_uncommitted()

    assert await lake.objects() == before


async def test_a_copy_whose_run_had_begun_is_stopped_before_it_deletes(lake: Lake) -> None:
    await lake.put("main", "a")
    copied = clone(lake)
    started = await copied.service.start(StartRun(kind=RunKind.UNCOMMITTED))

    with pytest.raises(OtherInstallation):
        await lake.service.installation.say_alive()

    for service in (copied.service, lake.service):
        with pytest.raises(OtherInstallation):
            await service.purging()
        with pytest.raises(OtherInstallation):
            await service.start(StartRun(kind=RunKind.METADATA))
    assert started.run_id


async def test_of_two_that_step_at_the_same_moment_both_stop(lake: Lake) -> None:
    await Installation(lake.versions).step()
    copied = clone(lake)
    # Both have recorded the next mark, and put it, before either looks.
    late = clone(copied)
    await Installation(copied.versions).step()
    theirs = await Installation(copied.versions).read()
    await lake.deleter.delete([key for key in await marks(lake) if theirs.mark in key])
    await Installation(late.versions).step()
    await lake.objectstore.put(f"{INSTALLATION_PREFIX}{theirs.number:012d}-{theirs.mark}", b"{}")

    for one in (copied, late):
        with pytest.raises(OtherInstallation):
            await Installation(one.versions).check()


async def test_whom_a_person_chooses_goes_on_and_the_other_one_stays_silent(lake: Lake) -> None:
    await lake.service.installation.say_alive()
    copied = clone(lake)
    await lake.service.start(StartRun(kind=RunKind.METADATA))
    with pytest.raises(OtherInstallation):
        await copied.service.start(StartRun(kind=RunKind.METADATA))
    with pytest.raises(OtherInstallation):
        await lake.service.purging()

    adopted = await lake.service.adopting()

    assert (adopted.adopted_by, adopted.adopted_ms) == ("ann", lake.clock.ms)
    assert b'"adopted_by":"ann"' in await lake.objectstore.get((await marks(lake))[-1])
    copied.days(2)
    await copied.service.installation.say_alive()
    with pytest.raises(OtherInstallation):
        await copied.collector().collect_uncommitted()
    await lake.collector().collect_uncommitted()


@pytest.mark.parametrize("steps", [0, 1, 5])
@pytest.mark.parametrize("copy_steps", [0, 1])
async def test_whom_a_person_chose_is_not_stopped_by_one_that_had_not_looked(
    lake: Lake, steps: int, copy_steps: int
) -> None:
    await lake.service.installation.say_alive()
    copied = clone(lake)
    for _ in range(copy_steps):
        copied.days(1)
        await copied.service.installation.say_alive()
        with pytest.raises(OtherInstallation):
            await lake.service.purging()
    await lake.service.adopting()
    for _ in range(steps):
        await Installation(lake.versions).step()

    with pytest.raises(OtherInstallation):
        await copied.service.purging()

    await lake.collector().collect_uncommitted()
    with pytest.raises(OtherInstallation):
        await copied.collector().collect_uncommitted()


async def test_who_has_not_looked_stops_the_one_that_nobody_chose_since(lake: Lake) -> None:
    await lake.service.adopting()
    copied = clone(lake)
    await Installation(lake.versions).step()
    with pytest.raises(OtherInstallation):
        await copied.service.purging()

    with pytest.raises(OtherInstallation):
        await lake.service.purging()


async def test_of_two_that_were_chosen_the_last_goes_on(lake: Lake) -> None:
    await lake.service.installation.say_alive()
    copied = clone(lake)
    await lake.service.adopting()
    await copied.service.adopting()

    with pytest.raises(OtherInstallation):
        await lake.service.purging()

    await copied.collector().collect_uncommitted()


async def test_of_two_that_were_chosen_at_the_same_moment_both_stop(lake: Lake) -> None:
    await lake.service.installation.say_alive()
    copied = clone(lake)
    before = await marks(lake)
    await copied.service.adopting()
    (theirs,) = set(await marks(lake)).difference(before)
    body = await lake.objectstore.get(theirs)
    await lake.deleter.delete([theirs])
    await lake.service.adopting()
    await lake.objectstore.put(theirs, body)

    for one in (lake, copied):
        with pytest.raises(OtherInstallation):
            await one.service.purging()


async def test_who_is_chosen_during_a_protest_is_not_stopped_by_it(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    await lake.service.installation.say_alive()
    copied = clone(lake)
    await Installation(lake.versions).step()
    installation = Installation(copied.versions)
    put = installation._put

    async def slowly(mark: Mark, *, adopted_by: str = "") -> None:
        await lake.service.adopting()
        await put(mark, adopted_by=adopted_by)

    monkeypatch.setattr(installation, "_put", slowly)
    with pytest.raises(OtherInstallation):
        await installation.check()

    await lake.collector().collect_uncommitted()


@pytest.mark.parametrize("body", [b"", b"{", b'{"made_ms": 1}', b'{"adopted_by": "ann"}'])
async def test_a_mark_that_names_nobody_chooses_nobody(lake: Lake, body: bytes) -> None:
    await lake.service.installation.say_alive()
    copied = clone(lake)
    await lake.service.adopting()
    await lake.objectstore.put((await marks(lake))[-1], body)

    for one in (copied, lake):
        with pytest.raises(OtherInstallation):
            await one.service.purging()


async def test_the_name_is_still_in_the_mark_after_a_crash_and_after_the_next_step(lake: Lake) -> None:
    objectstore = Dying("mem://chosen")
    here = Lake(MemoryStore(), objectstore)
    await here.versions.commits.initialise("main")
    objectstore.left = 0
    with pytest.raises(ObjectStoreUnavailable):
        await here.service.adopting()
    objectstore.left = 100
    for _ in range(2):
        await Installation(here.versions).step()

    bodies = [b'"adopted_by":"ann"' in await objectstore.get(key) for key in await marks(here)]
    assert bodies == [True, False, False]


async def test_a_restored_older_store_goes_on_once_it_is_adopted(lake: Lake) -> None:
    await lake.service.installation.say_alive()
    restored = clone(lake)
    for _ in range(3):
        lake.days(1)
        await lake.service.installation.say_alive()
    restored.days(4)
    with pytest.raises(OtherInstallation):
        await restored.service.installation.say_alive()

    await restored.service.adopting()

    await restored.collector().collect_uncommitted()
    with pytest.raises(OtherInstallation):
        await lake.collector().collect_uncommitted()


async def test_runs_of_one_installation_do_not_disturb_each_other(lake: Lake) -> None:
    first, second = Installation(lake.versions), Installation(lake.server())
    for _ in range(3):
        await first.step()
        await second.step()
        await first.check()

    await lake.collector().collect_uncommitted()


class Dying(MemoryObjectStore):
    """Takes this many marks more."""

    left = 100

    async def put(self, key: str, body: Body, *, size_bytes: int | None = None, if_absent: bool = False) -> Stored:
        if key.startswith(INSTALLATION_PREFIX):
            self.left -= 1
            if self.left < 0:
                raise ObjectStoreUnavailable("gone")
        return await super().put(key, body, size_bytes=size_bytes, if_absent=if_absent)


@pytest.mark.parametrize("left", [0, 1])
async def test_who_dies_between_its_records_and_its_mark_needs_nobody(left: int) -> None:
    objectstore = Dying("mem://dying")
    lake = Lake(MemoryStore(), objectstore)
    await lake.versions.commits.initialise("main")
    await lake.service.installation.say_alive()
    objectstore.left = left
    with pytest.raises(ObjectStoreUnavailable):
        await Installation(lake.versions).step()
    objectstore.left = 100

    await lake.collector().collect_uncommitted()

    assert len(await marks(lake)) == (await Installation(lake.versions).read()).number


async def test_who_sees_another_and_dies_over_it_sees_it_again(lake: Lake) -> None:
    objectstore = Dying("mem://seen")
    here = Lake(MemoryStore(), objectstore)
    await here.versions.commits.initialise("main")
    copied = clone(here)
    await copied.service.installation.say_alive()
    objectstore.left = 0
    with pytest.raises(ObjectStoreUnavailable):
        await here.service.installation.say_alive()
    objectstore.left = 100

    with pytest.raises(OtherInstallation):
        await here.service.purging()
    with pytest.raises(OtherInstallation):
        await copied.service.purging()


async def test_an_installation_says_so_a_few_times_a_day_and_not_more(lake: Lake) -> None:
    for _ in range(3):
        await lake.service.installation.say_alive()
    lake.days(0.26)
    await lake.service.installation.say_alive()

    assert len(await marks(lake)) == 2


async def test_what_else_lies_there_is_no_mark(lake: Lake) -> None:
    await lake.objectstore.put(INSTALLATION_PREFIX + "readme", b"")
    await lake.objectstore.put(INSTALLATION_PREFIX + "9" * 13, b"")

    await lake.collector().collect_uncommitted()
