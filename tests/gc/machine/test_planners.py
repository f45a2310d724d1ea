"""Plans that another user made, or forged: an apply looks again, and deletes nothing that is alive."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from lakebed.base import Conflict
from lakebed.gc import messages
from lakebed.gc.messages import (
    Deferred,
    Mode,
    Plan,
    RunKind,
    RunMode,
    RunState,
    decode_plan,
    decode_saved,
    encode_deferred,
    encode_plan,
    encode_saved,
    plan_path,
    purge_path,
    saved_path,
)
from lakebed.gc.messages.run.plans import Pieces
from lakebed.gc.rules import DAY_MS
from lakebed.gc.runs.context import write_input
from tests.gc.garbage import forged
from tests.gc.kinds.erasure.test_plan import erase
from tests.spark.collecting import Collecting
from tests.spark.lakeside import Lakeside
from tests.spark.test_lifecycle import set_policy


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lakeside]:
    with Lakeside(tmp_path) as found:
        yield found


def garbage_of(lake: Lakeside, folder: str, *addresses: str) -> messages.Manifest:
    """Write a table that lists these objects, as a planner could forge it."""
    table = forged(addresses, seen_ms=lake.clock.ms)
    return lake.wait(write_input(lake.objectstore, folder, messages.GARBAGE, table))


def forge(lake: Lakeside, plan: Plan, *addresses: str, **more: Any) -> Plan:
    """Put a plan of these objects in the place of this one, and have its maker put it on record where it can be."""
    garbage = garbage_of(lake, f"{plan.folder}garbage.forged/", *addresses)
    changed = msgspec.structs.replace(plan, garbage=garbage, **more)
    lake.wait(lake.objectstore.put(plan_path(plan.kind, plan.run_id), encode_plan(changed)))
    return changed


def lives_of_all_kinds(lake: Lakeside) -> tuple[dict[str, str], dict[str, str]]:
    """Return live objects and garbage of each kind, by name."""
    live, gone = {}, {}
    gone["committed"] = lake.upload("old")
    lake.commit(age_days=30)
    lake.delete("old")
    live["kept"] = lake.upload("new")
    lake.commit(age_days=20)
    lake.rules(10)
    gone["uncommitted"] = lake.upload("draft")
    lake.delete("draft")
    live["staged"] = lake.upload("staged")
    return live, gone


class Stopped(Exception):
    """The process of an apply died."""


def stop() -> None:
    raise Stopped


KINDS = (RunKind.UNCOMMITTED, RunKind.COMMITTED, RunKind.LIFECYCLE)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("noted", [True, False])
def test_a_forged_plan_deletes_nothing_that_is_alive(lake: Lakeside, kind: RunKind, noted: bool) -> None:
    live, _ = lives_of_all_kinds(lake)
    if kind is RunKind.LIFECYCLE:
        set_policy(lake, {"tmp": {"prefix": "tmp/", "days": 1}})
    planner = lake.by("alice")
    plan = forge_whole(lake, planner, kind, live.values(), noted=noted)
    report = lake.by("bob").apply(None, plan.run_id)

    assert set(live.values()) <= lake.addresses()
    assert report.objects_deleted == 0


def forge_whole(lake: Lakeside, planner: Collecting, kind: RunKind, addresses: Iterable[str], *, noted: bool) -> Plan:
    """Plan as the collector does, but with a table of one's own: the server is asked to mark and to note that one."""
    if kind is RunKind.UNCOMMITTED:
        made = lake.plan_of(*addresses)
    else:
        honest = planner.plan(None, kind)
        # The same run id cannot be put on record twice, so the forger plans under a fresh one.
        run_id = f"{honest.run_id[:-4]}0000"
        folder = honest.folder.replace(honest.run_id, run_id)
        garbage = garbage_of(lake, f"{folder}garbage/", *addresses)
        made = msgspec.structs.replace(honest, run_id=run_id, garbage=garbage)
        lake.wait(lake.objectstore.put(plan_path(kind, run_id), encode_plan(made)))
    if noted:
        data = lake.wait(lake.objectstore.get(plan_path(kind, made.run_id)))
        note = messages.NotePlanned(kind=kind, plan=hashlib.sha256(data).hexdigest())
        lake.wait(lake.service.note_planned(made.run_id, note))
    return made


@pytest.mark.parametrize("kind", KINDS)
def test_an_honest_plan_of_another_user_is_carried_out(lake: Lakeside, kind: RunKind) -> None:
    live, _ = lives_of_all_kinds(lake)
    if kind is RunKind.LIFECYCLE:
        live.pop("kept")
        set_policy(lake, {"all": {"prefix": "", "days": 1}})
    plan = lake.by("alice").plan(None, kind)
    taken = lake.collector.taken(plan.run_id)
    report = lake.by("bob").apply(None, plan.run_id)

    assert report.state is RunState.ENDED
    assert report.objects_deleted == len(taken) > 0
    assert not taken & lake.addresses()
    assert set(live.values()) <= lake.addresses()


@pytest.mark.parametrize("kind", [RunKind.UNCOMMITTED, RunKind.COMMITTED])
def test_what_came_to_be_garbage_after_the_plan_stays(lake: Lakeside, kind: RunKind) -> None:
    lives_of_all_kinds(lake)
    plan = lake.by("alice").plan(None, kind)
    taken = lake.collector.taken(plan.run_id)
    later = lake.upload("later")
    lake.delete("later")
    lake.by("bob").apply(None, plan.run_id)

    assert later in lake.addresses()
    assert not taken & lake.addresses()


def test_a_metadata_plan_of_another_user_is_carried_out(lake: Lakeside) -> None:
    lives_of_all_kinds(lake)
    plan = lake.by("alice").plan(None, RunKind.METADATA)
    report = lake.by("bob").apply(None, plan.run_id)
    assert report.state is RunState.ENDED


@pytest.mark.parametrize("window", [None, "7d"])
def test_ones_own_plan_needs_no_second_look(lake: Lakeside, window: str | None) -> None:
    lives_of_all_kinds(lake)
    alice = lake.by("alice")
    plan = alice.plan(None, RunKind.UNCOMMITTED)
    runs = len(lake.collector.runs())
    alice.apply(None, plan.run_id, window=window)
    assert len(lake.collector.runs()) == runs


def test_a_plan_that_a_job_of_the_server_made_needs_no_second_look(lake: Lakeside) -> None:
    lives_of_all_kinds(lake)
    plan = lake.by("alice", is_job=True).plan(None, RunKind.UNCOMMITTED)
    bob = lake.by("bob")
    runs = len(bob.runs())
    assert bob.apply(None, plan.run_id).objects_deleted == 1
    assert len(bob.runs()) == runs


def test_ones_own_plan_that_another_user_changed_is_looked_at_again(lake: Lakeside) -> None:
    live, _ = lives_of_all_kinds(lake)
    plan = lake.by("bob").plan(None, RunKind.COMMITTED)
    forge(lake, plan, *live.values())
    lake.by("bob").apply(None, plan.run_id)
    assert set(live.values()) <= lake.addresses()


def test_a_forged_policy_or_date_makes_nothing_due(lake: Lakeside) -> None:
    live, _ = lives_of_all_kinds(lake)
    set_policy(lake, {"all": {"prefix": "tmp/", "days": 1}})
    plan = lake.by("alice").plan(None, RunKind.LIFECYCLE)
    forge(lake, plan, *live.values(), policy=plan.policy.replace("tmp/", ""), now_ms=plan.now_ms + 9000 * DAY_MS)
    lake.by("bob").apply(None, plan.run_id)
    assert set(live.values()) <= lake.addresses()


def test_an_erasure_is_applied_only_as_its_maker_put_it_on_record(lake: Lakeside) -> None:
    erased, other = lake.upload("users/ann"), lake.upload("all/list")
    lake.commit()
    lake.by("alice")
    plan = erase(lake, "users/ann")
    forge(lake, plan, other)
    lake.by("bob")
    with pytest.raises(Conflict, match="no such plan on record"):
        lake.collector.apply(None, plan.run_id)
    assert {erased, other} <= lake.addresses()

    again = erase(lake, "users/ann")
    lake.by("carol").apply(None, again.run_id)
    assert lake.addresses() == {other}


def test_a_deferred_plan_of_another_user_is_looked_at_before_and_after_its_window(lake: Lakeside) -> None:
    live, gone = lives_of_all_kinds(lake)
    taken = (*live.values(), gone["uncommitted"])
    plan = forge_whole(lake, lake.by("alice"), RunKind.UNCOMMITTED, taken, noted=True)
    bob = lake.by("bob")
    bob.apply(None, plan.run_id, window="7d")
    lake.end_window(plan.run_id)
    assert bob.purge(None).objects_purged == 1
    assert set(live.values()) <= lake.addresses()
    assert gone["uncommitted"] not in lake.addresses()


def test_a_forged_list_of_a_purge_counts_for_nothing(lake: Lakeside) -> None:
    """A planner also forges a ledger, so that it seems to be the list of a purge that began."""
    live, gone = lives_of_all_kinds(lake)
    bob = lake.by("bob")
    plan = bob.plan(None, RunKind.COMMITTED)
    bob.apply(None, plan.run_id, window="7d")
    lake.end_window(plan.run_id)
    garbage = garbage_of(lake, f"{plan.folder}garbage.forged/", *live.values())
    listed = encode_deferred(Deferred(run_id=plan.run_id, kind=plan.kind, garbage=garbage))
    lake.wait(lake.objectstore.put(purge_path(plan.kind, plan.run_id), listed))
    lake.wait(lake.objectstore.put(f"{plan.folder}sweep.json", msgspec.json.encode({"started_ms": lake.clock.ms})))
    date = "2026-09-21"
    name = f"_lakefs/retention/gc/ledger/date={date}/{plan.run_id}-part-99999-00000.parquet"
    lake.wait(lake.objectstore.put(name, b"x"))

    bob.purge(None)
    assert set(live.values()) <= lake.addresses()
    assert gone["committed"] not in lake.addresses()


def test_a_forged_saved_state_makes_the_next_run_a_clean_one(lake: Lakeside) -> None:
    """It says that commits name nothing, of all that a run before listed."""
    live, _ = lives_of_all_kinds(lake)
    bob = lake.by("bob")
    first = bob.plan(None, RunKind.UNCOMMITTED)
    bob.apply(None, first.run_id)
    assert bob.plan(None, RunKind.UNCOMMITTED, mode=Mode.AUTOMATIC).mode is RunMode.OPTIMISED
    name = saved_path(first.run_id, first.kind)
    saved = decode_saved(lake.wait(lake.objectstore.get(name)), first.run_id)
    keeps = msgspec.structs.replace(saved.keeps, committed=Pieces(folder=saved.keeps.committed.folder))
    lake.wait(lake.objectstore.put(name, encode_saved(msgspec.structs.replace(saved, keeps=keeps))))

    plan = bob.plan(None, RunKind.UNCOMMITTED, mode=Mode.AUTOMATIC)
    assert plan.mode is RunMode.CLEAN
    assert "not the one that its apply wrote" in plan.mode_note
    bob.apply(None, plan.run_id)
    assert set(live.values()) <= lake.addresses()


def test_the_plan_of_another_user_leaves_nothing_to_go_on_from(lake: Lakeside) -> None:
    lives_of_all_kinds(lake)
    plan = lake.by("alice").plan(None, RunKind.UNCOMMITTED)
    lake.by("bob").apply(None, plan.run_id)
    assert not lake.files(saved_path(plan.run_id, plan.kind))


def test_a_stopped_apply_of_anothers_plan_goes_on_with_the_table_of_its_look(lake: Lakeside) -> None:
    live, gone = lives_of_all_kinds(lake)
    more = lake.upload("more")
    lake.delete("more")
    plan = lake.by("alice").plan(None, RunKind.UNCOMMITTED)
    bob = lake.by("bob")
    lake.before["ended"] = stop
    with pytest.raises(Stopped):
        bob.apply(None, plan.run_id)
    report = bob.apply(None, plan.run_id)
    assert report.objects_deleted == 2
    assert sorted(row["address"] for row in lake.ledger()) == sorted([gone["uncommitted"], more])
    assert set(live.values()) <= lake.addresses()


def test_runs_say_who_planned_them(lake: Lakeside) -> None:
    lives_of_all_kinds(lake)
    mine = lake.by("alice").plan(None, RunKind.UNCOMMITTED)
    theirs = lake.by("bob").plan(None, RunKind.COMMITTED)
    listed = lake.by("alice").on(None).listed()
    assert {one.run_id: (one.planned_by, one.is_own) for one in listed} == {
        mine.run_id: ("alice", True),
        theirs.run_id: ("bob", False),
    }
    assert decode_plan(lake.wait(lake.objectstore.get(plan_path(mine.kind, mine.run_id))), mine.run_id) == mine
    assert lake.collector.status(mine.run_id).planned_by == "alice"
