"""Where rules lie: versions, who set them, lost answers, the first form; and that runs go by them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from lakebed.base import NotFound, OutcomeUnknown
from lakebed.gc.live import RulesMoved
from lakebed.gc.live.records.settings import FORMER_RULES, RULES_KEY
from lakebed.gc.rules import BranchRule, InvalidRules, KeepLast, Rules, days_rules
from lakebed.kv import Predicate
from lakebed.kv.drivers.memory import MemoryStore
from lakebed.objectstore.drivers.memory import MemoryObjectStore
from lakebed.versions import RecordFormat
from tests.gc.conftest import Lake

if TYPE_CHECKING:
    from lakebed.versions import Versions

FULL = Rules(
    default="36h",
    branches=(BranchRule(pattern="main", period="6mo"), BranchRule(pattern="feature-*", period="2w")),
    keep_last=(KeepLast(pattern="*", commits=3),),
    tags_pin=False,
    uncommitted_min_age="2d",
)


def stored(**record: object) -> bytes:
    return b"\x01" + msgspec.msgpack.encode(record)


async def test_rules_read_back_as_they_were_written(lake: Lake) -> None:
    await lake.service.rules.write(FULL, by="ann")

    record = await lake.service.rules.read()

    assert (record.version, record.rules, record.changed_by) == (1, FULL, "ann")
    assert record.changed_ms == lake.clock.ms


async def test_every_version_can_be_read_with_who_set_it_and_when(lake: Lake) -> None:
    book = lake.service.rules
    await book.write(days_rules(1), by="ann")
    first_ms = lake.clock.ms
    lake.days(1)
    await book.write(None, by="bob")
    await book.write(days_rules(3), by="ann")

    found, has_more = await book.history()

    assert [(r.version, r.changed_by, r.rules and r.rules.default) for r in found] == [
        (3, "ann", "3d"),
        (2, "bob", None),
        (1, "ann", "1d"),
    ]
    assert found[2].changed_ms == first_ms
    assert not has_more
    assert await book.version(1) == found[2]


async def test_history_comes_in_pages(lake: Lake) -> None:
    book = lake.service.rules
    for days in range(1, 6):
        await book.write(days_rules(days))

    newest, more = await book.history(limit=2)
    rest, none = await book.history(before=newest[-1].version, limit=3)

    assert ([r.version for r in newest], more) == ([5, 4], True)
    assert ([r.version for r in rest], none) == ([3, 2, 1], False)
    assert await book.history(before=1) == ([], False)


async def test_a_repository_without_rules_has_no_history(lake: Lake) -> None:
    assert await lake.service.rules.history() == ([], False)


@pytest.mark.parametrize("version", [-1, 0, 2, 10**12])
async def test_a_version_that_never_was_is_not_found(lake: Lake, version: int) -> None:
    await lake.service.rules.write(days_rules(1))

    with pytest.raises(NotFound, match="do not exist"):
        await lake.service.rules.version(version)


async def test_who_read_an_older_version_does_not_overwrite_a_newer_one(lake: Lake) -> None:
    book = lake.service.rules
    await book.write(days_rules(1), expected=0)
    await book.write(days_rules(2), expected=1)

    with pytest.raises(RulesMoved, match="of version 2, not 1"):
        await book.write(days_rules(9), expected=1)

    assert (await book.read()).rules == days_rules(2)


async def test_rules_nobody_can_have_meant_are_not_written(lake: Lake) -> None:
    with pytest.raises(InvalidRules):
        await lake.service.rules.write(Rules(default="7"))

    assert (await lake.service.rules.read()).version == 0


class Forgetful(MemoryStore):
    """Does what it is told when rules are set, and then loses the answer, once; or does not, and loses it too."""

    def __init__(self, *, does: bool) -> None:
        super().__init__()
        self._does = does
        self._times = 1

    async def set_if(self, partition: bytes, key: bytes, value: bytes, predicate: Predicate | None) -> Predicate:
        if key == RULES_KEY and self._times:
            self._times -= 1
            if self._does:
                await super().set_if(partition, key, value, predicate)
            raise OutcomeUnknown("lost")
        return await super().set_if(partition, key, value, predicate)


@pytest.mark.parametrize("does", [True, False])
async def test_rules_whose_answer_was_lost_are_written_once(does: bool) -> None:
    lake = Lake(Forgetful(does=does), MemoryObjectStore("mem://tests"))
    await lake.versions.commits.initialise("main")

    written = await lake.service.rules.write(days_rules(1), by="ann", expected=0)

    assert written.version == 1
    assert [record.version for record in (await lake.service.rules.history())[0]] == [1]


async def test_a_writer_that_dies_before_it_replaces_the_rules_changes_nothing(lake: Lake) -> None:
    book = lake.service.rules
    await book.write(days_rules(1))
    held = await lake.store.get(lake.versions.partition, RULES_KEY)
    assert held is not None
    await lake.store.set(lake.versions.partition, FORMER_RULES + b"%012d" % 1, held.value)

    assert [record.version for record in (await book.history())[0]] == [1]


async def test_days_written_in_the_contracts_words_leave_pins(lake: Lake) -> None:
    await lake.service.rules.write(FULL)

    await lake.service.rules.write_days(2, {"main": 30})

    assert (await lake.service.rules.read()).rules == msgspec.structs.replace(
        FULL, branches=(BranchRule(pattern="main", period="30d"),)
    )


async def test_days_written_where_there_were_no_rules_are_all_there_is(lake: Lake) -> None:
    await lake.service.rules.write_days(2, {"main": 30})

    assert (await lake.service.rules.read()).rules == days_rules(2, {"main": 30})


# What an earlier release wrote


async def put(versions: Versions, value: bytes) -> None:
    await versions.store.set(versions.partition, RULES_KEY, value)


async def test_rules_in_their_first_form_are_read_as_what_they_meant(lake: Lake) -> None:
    rules = {"default_days": 7, "branch_days": {"main": 20}, "tags_pin": False}
    await put(lake.versions, stored(version=4, rules=rules, changed_ms=5, changed_by="ann"))

    record = await lake.service.rules.read()

    assert (record.version, record.changed_ms, record.changed_by) == (4, 5, "ann")
    assert record.rules == msgspec.structs.replace(days_rules(7, {"main": 20}), tags_pin=False)
    await lake.service.rules.write(days_rules(1))
    assert [found.version for found in (await lake.service.rules.history())[0]] == [5, 4]


@pytest.mark.parametrize(
    "rules", [{"default": "7d", "keep_what": 1}, {"default_days": 7, "more": 1}, {"default_days": "7"}, {}]
)
async def test_rules_in_a_form_that_nobody_knows_stop_every_run(lake: Lake, rules: dict[str, object]) -> None:
    await put(lake.versions, stored(version=1, rules=rules, changed_ms=5))

    with pytest.raises(RecordFormat):
        await lake.service.rules.read()


# Runs


async def old_and_new(lake: Lake, *, commits: int = 4) -> list[str]:
    """main with this number of commits, ten days apart, each with an object of its own that the next one replaces."""
    objects = []
    for number in range(commits):
        objects.append(await lake.put("main", "a", str(number)))
        await lake.commit("main")
        lake.days(10)
    return objects


async def test_the_last_commits_of_a_branch_stay_however_old_they_are(lake: Lake) -> None:
    objects = await old_and_new(lake)
    await lake.service.rules.write(Rules(default="1d", keep_last=(KeepLast(pattern="ma*", commits=2),)))

    await lake.collector().collect_committed()

    assert await lake.objects() == set(objects[2:])


async def test_a_tag_keeps_nothing_where_the_rules_say_so(lake: Lake) -> None:
    objects = await old_and_new(lake)
    await lake.versions.refs.create_tag("v1", "main~2")
    await lake.service.rules.write(Rules(default="1d"))
    await lake.collector().collect_committed()
    assert await lake.objects() == {objects[1], objects[3]}

    await lake.service.rules.write(Rules(default="1d", tags_pin=False))
    await lake.collector().collect_committed()

    assert await lake.objects() == {objects[3]}


async def test_a_glob_lets_its_branches_expire_and_no_others(lake: Lake) -> None:
    objects = await old_and_new(lake)
    rules = Rules(default="forever", branches=(BranchRule(pattern="feature-*", period="1d"),))
    await lake.service.rules.write(rules)
    assert (await lake.collector().collect_committed()).garbage == frozenset()

    await lake.service.rules.write(Rules(default="forever", branches=(BranchRule(pattern="m*", period="15d"),)))

    assert (await lake.collector().collect_committed()).garbage == set(objects[:2])


async def test_uncommitted_garbage_younger_than_the_rules_say_stays() -> None:
    clock = [0]
    lake = Lake(MemoryStore(), MemoryObjectStore("mem://tests", now_ms=lambda: clock[0]))
    await lake.versions.commits.initialise("main")
    clock[0] = lake.clock.ms
    old = await lake.put("main", "a", "1")
    clock[0] += 3_600_000
    young = await lake.put("main", "a", "2")
    await lake.put("main", "a", "3")
    lake.days(1)
    lake.clock.ms += 3_600_000
    await lake.service.rules.write(Rules(default="forever", uncommitted_min_age="1d"))

    assert (await lake.collector().collect_uncommitted()).garbage == {old}

    await lake.service.rules.write(Rules(default="forever"))
    assert (await lake.collector().collect_uncommitted()).garbage == {young}
