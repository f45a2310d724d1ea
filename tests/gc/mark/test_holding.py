"""Legal holds, met by every kind of collection, over a real repository, without HTTP. No Spark."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakebed.base import Conflict, Denied, NotFound, format_address
from lakebed.gc import HeldBack, Plan
from lakebed.gc.live import HoldBook, InvalidHold
from lakebed.gc.machine.sweep import BATCH_KEYS, BATCHES
from lakebed.gc.mark.holding import Held
from lakebed.gc.mark.inputs.selecting import selected
from lakebed.gc.messages import Fate, NewHold, PlanRequest, RunKind, holds_mark
from lakebed.gc.rules import DAY_MS, Selection, Spans
from lakebed.objectstore import DeleteFailure, MemoryDeleter, MemoryObjectStore
from lakebed.versions import RefNotFound, keys
from tests.gc.garbage import LEDGER, plan_of, sweep_part
from tests.spark.lakeside import Lakeside

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def hold(lake: Lakeside, *globs: str, name: str = "case-7", **fields: object) -> tuple[str, ...]:
    """The runs for which it comes too late."""
    made = NewHold(name=name, globs=globs, why="a lawsuit", **fields)  # type: ignore[arg-type]  # as each test says
    return lake.wait(HoldBook(lake.versions).add(made, by="ann"))[1]


def release(lake: Lakeside, name: str = "case-7") -> None:
    lake.wait(HoldBook(lake.versions).release(name, why="settled", by="ann"))


def address_of(lake: Lakeside, name: str) -> str:
    return lake.wait(lake.versions.staging.get("main", name.encode())).address


@pytest.fixture
def lakeside(tmp_path: Path) -> Iterator[Lakeside]:
    with Lakeside(tmp_path) as found:
        yield found


@pytest.fixture
def old(lakeside: Lakeside) -> dict[str, str]:
    return expired(lakeside)


def expired(lakeside: Lakeside) -> dict[str, str]:
    """Addresses by path: `legal/a` and `logs/a` of one commit, `logs/b` of another. All went, and expired."""
    found = {}
    for names in (("legal/a", "logs/a"), ("logs/b",)):
        for name in names:
            lakeside.upload(name)
            found[name] = address_of(lakeside, name)
        lakeside.commit(age_days=20)
        for name in names:
            lakeside.delete(name)
    lakeside.commit(age_days=19)
    lakeside.upload("data/now")
    lakeside.commit(age_days=1)
    lakeside.rules(10)
    return found


def plan(lake: Lakeside, spark: SparkSession | None, kind: RunKind = RunKind.COMMITTED) -> Plan:
    return lake.collector.plan(spark, kind)


class WithoutHolds(Lakeside):
    """Its user may plan, and may not read holds."""

    def call(self, method: str, path: str, *, json: object = None) -> object:
        if path.partition("?")[0].endswith("/holds"):
            raise Denied("insufficient permissions")
        return super().call(method, path, json=json)


@pytest.mark.parametrize("kind", [RunKind.COMMITTED, RunKind.UNCOMMITTED, RunKind.METADATA])
def test_who_may_not_read_holds_may_plan(tmp_path: Path, kind: RunKind) -> None:
    told: list[str] = []
    with WithoutHolds(tmp_path) as lake:
        expired(lake)
        collector = dataclasses.replace(lake.collector.on(None), progress=told.append)

        (made,) = collector.plan(PlanRequest(kinds=(kind,)))

    is_told = any(f"keep what run {made.run_id} would take is unknown: insufficient" in line for line in told)
    assert is_told == (kind is RunKind.UNCOMMITTED)


def test_a_held_commit_keeps_all_that_it_has(lakeside: Lakeside, old: dict[str, str]) -> None:
    first = list(lakeside.wait(lakeside.versions.history.log("main", limit=9))[0])[-2]
    lakeside.wait(lakeside.versions.refs.create_tag("audit", first.id))
    lakeside.rules(10)
    hold(lakeside, tags=("audit",))
    lakeside.wait(lakeside.versions.refs.delete_tag("audit"))

    lakeside.collector.apply(None, plan(lakeside, None).run_id)

    assert {old["legal/a"], old["logs/a"]} <= lakeside.addresses()
    assert old["logs/b"] not in lakeside.addresses()


def test_a_commit_is_held_by_its_id(lakeside: Lakeside, old: dict[str, str]) -> None:
    first = list(lakeside.wait(lakeside.versions.history.log("main", limit=9))[0])[-2]
    hold(lakeside, commits=(first.id,))

    lakeside.collector.apply(None, plan(lakeside, None).run_id)

    assert {old["legal/a"], old["logs/a"]} <= lakeside.addresses()
    assert old["logs/b"] not in lakeside.addresses()


def test_a_held_commit_is_the_one_of_this_id_and_never_a_branch_that_is_named_like_it(
    lakeside: Lakeside, old: dict[str, str]
) -> None:
    """A release before the check let a branch have such a name: the record of `main` stands for one here."""
    first = list(lakeside.wait(lakeside.versions.history.log("main", limit=9))[0])[-2]
    unknown = "0123456789abcdef" * 4
    branch = lakeside.wait(lakeside.versions.context.get(keys.BRANCH + b"main"))
    assert branch is not None
    for name in (first.id, unknown):
        key = keys.BRANCH + name.encode()
        lakeside.wait(lakeside.versions.store.set(lakeside.versions.partition, key, branch.value))

    with pytest.raises(RefNotFound):
        hold(lakeside, commits=(unknown,))
    hold(lakeside, commits=(first.id,))

    assert lakeside.wait(HoldBook(lakeside.versions).in_force()).holds[0].commits == (first.id,)


def test_a_hold_that_comes_after_the_plan_ends_the_run(lakeside: Lakeside, old: dict[str, str]) -> None:
    made = plan(lakeside, None)
    hold(lakeside, "legal/")

    with pytest.raises(Conflict, match="legal holds changed"):
        lakeside.collector.apply(None, made.run_id)

    assert set(old.values()) <= lakeside.addresses()


def test_a_hold_says_for_which_runs_it_comes_too_late(lakeside: Lakeside, old: dict[str, str]) -> None:
    made = plan(lakeside, None)
    found: list[tuple[str, ...]] = []
    lakeside.before["sweeping"] = lambda: found.append(hold(lakeside, "legal/"))

    lakeside.collector.apply(None, made.run_id)

    assert found == [(made.run_id,)]


def test_a_hold_on_another_path_of_the_object_keeps_it(lakeside: Lakeside, old: dict[str, str]) -> None:
    """The plan has it under another path in the first place."""
    lakeside.upload("logs/c")
    lakeside.commit(age_days=19)
    lakeside.copy("main", "logs/c", "legal/copy")
    shared = address_of(lakeside, "logs/c")
    lakeside.commit(age_days=18)
    for name in ("logs/c", "legal/copy"):
        lakeside.delete(name)
    lakeside.commit(age_days=17)
    lakeside.upload("data/next")
    lakeside.commit(age_days=1)
    lakeside.wait(lakeside.versions.cleanup.clean())
    made = plan(lakeside, None)
    assert shared in lakeside.collector.taken(made.run_id)
    lakeside.before["sweeping"] = lambda: hold(lakeside, "legal/copy")

    report = lakeside.collector.apply(None, made.run_id)

    assert report.objects_held == 1
    assert shared in lakeside.addresses()


def test_trees_of_a_run_that_a_hold_stopped_stay_for_its_next_look(lakeside: Lakeside, old: dict[str, str]) -> None:
    made = plan(lakeside, None)
    lakeside.before["sweeping"] = lambda: hold(lakeside, "legal/")
    lakeside.collector.apply(None, made.run_id)
    lakeside.clock.ms += 200 * DAY_MS

    lakeside.collector.apply(None, plan(lakeside, None, RunKind.METADATA).run_id)

    assert lakeside.collector.apply(None, made.run_id).objects_held == 1


def test_what_a_deferred_run_holds_stays_when_its_window_is_over(lakeside: Lakeside, old: dict[str, str]) -> None:
    made = plan(lakeside, None)
    lakeside.collector.apply(None, made.run_id, window="1d")
    hold(lakeside, "legal/")
    lakeside.end_window(made.run_id)

    purged = lakeside.collector.purge(None)

    assert (purged.objects_purged, purged.objects_failed) == (2, 1)
    assert old["legal/a"] in lakeside.addresses()
    release(lakeside)
    assert lakeside.collector.purge(None).objects_failed == 0
    assert old["legal/a"] not in lakeside.addresses()


def test_a_hold_on_paths_keeps_uncommitted_objects_for_their_paths_are_not_known(lakeside: Lakeside) -> None:
    lakeside.upload("legal/draft")
    draft = address_of(lakeside, "legal/draft")
    lakeside.delete("legal/draft")
    made = plan(lakeside, None, RunKind.UNCOMMITTED)
    assert draft in lakeside.collector.taken(made.run_id)
    hold(lakeside, "legal/")

    with pytest.raises(HeldBack, match="case-7"):
        lakeside.collector.apply(None, made.run_id)
    lakeside.collector.run(None, (RunKind.UNCOMMITTED,))

    assert draft in lakeside.addresses()
    release(lakeside)
    lakeside.collector.apply(None, made.run_id)
    assert draft not in lakeside.addresses()


def test_a_hold_on_committed_data_alone_lets_uncommitted_objects_go(lakeside: Lakeside) -> None:
    lakeside.upload("legal/draft")
    draft = address_of(lakeside, "legal/draft")
    lakeside.delete("legal/draft")
    hold(lakeside, "legal/", keeps_uncommitted=False)

    lakeside.collector.apply(None, plan(lakeside, None, RunKind.UNCOMMITTED).run_id)

    assert draft not in lakeside.addresses()


def test_the_same_hold_again_changes_nothing_and_another_of_its_name_is_refused(lakeside: Lakeside) -> None:
    hold(lakeside, "legal/")
    hold(lakeside, "legal/")

    with pytest.raises(Conflict, match="there is a hold"):
        hold(lakeside, "other/")

    assert lakeside.wait(HoldBook(lakeside.versions).in_force()).version == 1


def test_every_change_of_the_holds_is_kept_with_who_and_why(lakeside: Lakeside) -> None:
    hold(lakeside, "legal/")
    release(lakeside)

    versions, _ = lakeside.wait(HoldBook(lakeside.versions).history())

    assert [(one.what, one.changed_by) for one in versions] == [
        ("released case-7: settled", "ann"),
        ("added case-7: a lawsuit", "ann"),
    ]


@pytest.mark.parametrize("glob", ["", "a?", "***", "a*/", "x" * 2000])
def test_a_malformed_glob_holds_nothing(lakeside: Lakeside, glob: str) -> None:
    with pytest.raises(InvalidHold):
        hold(lakeside, glob)


def test_a_hold_says_what_and_why(lakeside: Lakeside) -> None:
    with pytest.raises(InvalidHold, match="nothing is held"):
        hold(lakeside)
    with pytest.raises(InvalidHold, match="say why"):
        lakeside.wait(HoldBook(lakeside.versions).add(NewHold(name="n", globs=("a",), why=" ")))


def test_an_unknown_hold_cannot_be_released(lakeside: Lakeside) -> None:
    with pytest.raises(NotFound, match="there is no hold"):
        release(lakeside)


def test_why_names_the_hold(lakeside: Lakeside, old: dict[str, str]) -> None:
    hold(lakeside, "legal/")

    held = lakeside.collector.why(address=old["legal/a"]).objects[0]
    free = lakeside.collector.why(address=old["logs/b"]).objects[0]

    assert (held.fate, held.holds) == (Fate.KEPT, ("case-7",))
    assert (free.fate, free.holds) == (Fate.EXPIRED, ())


NAMES = st.sampled_from(["a", "a/b", "a/c", "b", "ab"])
GLOBS = st.lists(st.sampled_from(["a", "a/", "*", "**", "a*", "b", "**/c"]), max_size=2)


@given(paths=st.lists(NAMES, max_size=5), chosen=GLOBS, named=st.sets(NAMES), digests=st.sets(st.sampled_from("xy")))
def test_rows_are_selected_as_the_rule_says(
    paths: list[str], chosen: list[str], named: set[str], digests: set[str]
) -> None:
    selection = Selection(paths=tuple(named), globs=tuple(chosen), digests=tuple(digests))
    sums = ["x", "y", "z", "x", "z"][: len(paths)]
    rows = pa.table(
        {"key": pa.array([path.encode() for path in paths], pa.binary()), "checksum": pa.array(sums, pa.string())}
    )

    found = selected(rows, selection).tolist()

    assert found == [selection.matches(path, checksum) for path, checksum in zip(paths, sums, strict=True)]
    spans = Spans(selection)
    if selection.is_by_path and any(found):
        assert spans.meets(min(paths).encode(), max(paths).encode())


class HeldMeanwhile(MemoryObjectStore):
    """Its own Deleter: while it deletes, the holds change."""

    async def delete(self, keys: Sequence[str]) -> Sequence[DeleteFailure]:
        await self.put(holds_mark(1), b"{}")
        return await MemoryDeleter(self).delete(keys)


async def test_a_hold_stops_every_delete_that_begins_after_it() -> None:
    store = HeldMeanwhile("mem://held")
    keys = [format_address(7, number) for number in range(BATCHES * BATCH_KEYS + 1)]
    for key in (keys[0], keys[-1]):
        await store.put(key, b"1234")
    plan = await plan_of(store, keys)

    swept = await sweep_part(store, store, plan, plan.parts[0], LEDGER)

    assert swept.objects_failed >= 1
    assert "legal holds changed" in swept.errors[0]
    assert [stat.key async for page in store.list("data/") for stat in page] == [keys[-1]]


def test_after_a_restored_backup_adopting_brings_the_holds_above_every_mark(lakeside: Lakeside) -> None:
    hold(lakeside, "legal/")
    before = lakeside.wait(lakeside.versions.context.get(keys.LEGAL_HOLDS))
    assert before is not None
    release(lakeside)
    hold(lakeside, "other/", name="case-8")
    lakeside.wait(lakeside.versions.store.set(lakeside.versions.partition, keys.LEGAL_HOLDS, before.value))

    stale = lakeside.wait(lakeside.service.holds_in_force())
    assert "gc adopt" in lakeside.wait(Held(holds=stale).refuses(lakeside.objectstore))
    lakeside.wait(lakeside.service.adopting())

    now = lakeside.wait(lakeside.service.holds_in_force())
    assert (now.version, now.holds) == (4, stale.holds)
    assert lakeside.wait(Held(holds=now).refuses(lakeside.objectstore)) == ""
