"""Which runs are unfinished, and how they were begun: what their folders say, of this release and of older ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import msgspec
import pytest
from msgspec.structs import replace

from lakebed.base import LakebedError, RunId, Unavailable
from lakebed.gc import PurgeReport
from lakebed.gc.api.collector import silent
from lakebed.gc.api.running import then_purge
from lakebed.gc.engines.failures import TaskStopped
from lakebed.gc.engines.files import Files, Lake
from lakebed.gc.live import RulesChanged
from lakebed.gc.messages import (
    BadInput,
    Plan,
    PlanMissing,
    RunAbandoned,
    RunKind,
    RunReport,
    RunState,
    RunView,
    Service,
    Totals,
    run_folder,
)
from lakebed.gc.runs import resume
from lakebed.gc.runs.context import Overtaken, write_plan
from lakebed.gc.runs.resume import NotFinished, OtherUnfinished, UnfinishedRun, WindowTooLate, finish_each
from lakebed.gc.runs.status import RunStatus, left_off
from lakebed.objectstore import ObjectStore, ObjectStoreOptions
from lakebed.runtime import LiveTasks
from tests.cli.gc.test_telling import plan
from tests.gc.garbage import context_of

NOW = 1_790_000_000_000
PURGED = PurgeReport(purged=(), waiting=(), objects_purged=0, bytes_purged=0, objects_failed=0)


@pytest.fixture
def files(tmp_path: Path) -> Iterator[Files]:
    lake = Lake(uri="local://lake/repo", options=ObjectStoreOptions(local_root=tmp_path, local_durable=False))
    with Files(lake) as opened:
        yield opened


def begin(files: Files, plan: Plan, window: str | None) -> str | None:
    return files.act(lambda store: resume.begin(context_of(store), plan, window))


def unfinished_runs(files: Files, views: list[RunView]) -> list[UnfinishedRun]:
    return files.act(lambda store: resume.unfinished_runs(store, LiveTasks(), views))


def check_beside(files: Files, views: list[RunView], plan: Plan, window: str | None) -> None:
    files.act(lambda store: resume.check_beside(context_of(store), views, plan, window))


def put(files: Files, made: Plan) -> None:
    files.act(lambda store: write_plan(store, made))


def take_turn(files: Files, views: list[RunView], plan: Plan, *, wanted: str | None, asked: str | None) -> str | None:
    class Runs:
        async def runs(self) -> tuple[RunView, ...]:
            return tuple(views)

    async def act(store: ObjectStore) -> str | None:
        context = dataclasses.replace(context_of(store), service=cast("Service", Runs()))
        return await resume.take_turn(context, plan, asked=asked, wanted=wanted)

    return files.act(act)


def view(run_id: str, state: RunState = RunState.MARKED, kind: RunKind = RunKind.UNCOMMITTED) -> RunView:
    return RunView(run_id=run_id, kind=kind, state=state, started_ms=NOW, plan="x")


def in_folder(run_id: str, name: str) -> str:
    return f"{run_folder(RunKind.UNCOMMITTED, RunId(run_id))}{name}"


def test_a_run_goes_on_as_it_was_begun_until_another_window_is_asked_for(files: Files) -> None:
    assert begin(files, plan(), None) is None
    assert begin(files, plan(), "7d") == "7d"
    assert begin(files, plan(), None) == "7d"
    assert begin(files, plan(), "9d") == "9d"
    assert begin(files, plan(), None) == "9d"


def test_a_plan_is_unfinished_once_an_apply_began_and_a_run_that_sweeps_in_any_case(files: Files) -> None:
    files.write(in_folder("begun", "apply.json"), b'{"began_ms":5,"window":"7d"}')
    views = [view("nobody-applied"), view("begun"), view("over", RunState.ENDED)]
    sweeping = view("sweeping", RunState.SWEEPING, RunKind.COMMITTED)

    found = unfinished_runs(files, [sweeping, *views])

    # What moves aside goes first, so that nothing is deleted for good that it holds too.
    assert [(run.run_id, run.began_ms, run.window) for run in found] == [("begun", 5, "7d"), ("sweeping", NOW, "")]


def test_a_deferred_run_is_not_unfinished_until_its_window_is_over(files: Files) -> None:
    for run_id in ("waits", "purges"):
        files.write(in_folder(run_id, "apply.json"), b'{"began_ms":5,"window":"7d"}')
    waits = replace(view("waits"), until_ms=NOW)
    purges = replace(view("purges"), until_ms=NOW, is_purging=True)

    found = unfinished_runs(files, [waits, purges])

    assert [(run.run_id, run.window, run.is_purging) for run in found] == [("purges", "", True)]


def test_a_file_that_does_not_say_how_a_run_was_begun_stops_and_the_run_is_named(files: Files) -> None:
    for data in (b"", b"{}", msgspec.json.encode({"began_ms": "x"}), b"\xff"):
        files.write(in_folder("r7", "apply.json"), data)

        with pytest.raises(BadInput, match="how run r7 was begun is unreadable"):
            unfinished_runs(files, [view("r7")])


# Finishing, and applying beside one that is unfinished


def uncommitted(run_id: str, *, beside: tuple[str, ...] = ()) -> Plan:
    return replace(plan(), kind=RunKind.UNCOMMITTED, run_id=run_id, beside=beside, expired=None, totals=Totals())


def test_a_nightly_run_with_a_window_moves_aside_what_was_begun_without_one() -> None:
    begun = [
        UnfinishedRun(run_id="r1", kind=RunKind.COMMITTED, state=RunState.SWEEPING, began_ms=1, window=""),
        UnfinishedRun(run_id="r2", kind=RunKind.COMMITTED, state=RunState.SWEEPING, began_ms=1, window="9d"),
        UnfinishedRun(run_id="r3", kind=RunKind.METADATA, state=RunState.SWEEPING, began_ms=1, window=""),
    ]
    asked: dict[str, str | None] = {}
    said: list[str] = []

    def apply(run_id: str, window: str | None) -> RunReport:
        asked[run_id] = window
        raise RunAbandoned("over")

    assert list(finish_each(begun, apply, said.append, [], window="7d")) == []
    assert asked == {"r1": "7d", "r2": None, "r3": None}
    assert [line.rpartition("ended")[2] for line in said if line.startswith("finishing")] == [
        ", deferring for 7d",
        ", deferring for 9d",
        "",
    ]


@pytest.mark.parametrize("error", [OtherUnfinished("x"), RulesChanged("x"), BadInput("x"), PlanMissing("x")])
def test_a_run_that_cannot_be_finished_stops_no_other(error: Exception) -> None:
    begun = [
        UnfinishedRun(run_id=run_id, kind=RunKind.COMMITTED, state=RunState.SWEEPING, began_ms=1, window="")
        for run_id in ("r1", "r2")
    ]
    left: list[str] = []

    def apply(run_id: str, _: str | None) -> RunReport:
        raise error

    assert list(finish_each(begun, apply, lambda _: None, left)) == []
    assert left == ["run r1 could not be finished: x", "run r2 could not be finished: x"]


@pytest.mark.parametrize("error", [Overtaken("x"), TaskStopped("x")])
def test_who_is_overtaken_finishes_nothing_more(error: Exception) -> None:
    begun = [UnfinishedRun(run_id="r1", kind=RunKind.COMMITTED, state=RunState.SWEEPING, began_ms=1, window="")]

    def apply(run_id: str, _: str | None) -> RunReport:
        raise error

    with pytest.raises(type(error)):
        list(finish_each(begun, apply, lambda _: None, []))


def test_two_plans_are_apart_if_either_was_made_knowing_the_other(files: Files) -> None:
    first, second, third = uncommitted("a1", beside=("b1",)), uncommitted("b1"), uncommitted("c1")
    files.act(lambda store: write_plan(store, first))
    begin(files, first, "7d")
    views = [view("a1"), view("b1"), view("c1")]

    check_beside(files, views, second, None)
    check_beside(files, views, uncommitted("d1", beside=("a1",)), None)
    for window in (None, "7d"):
        with pytest.raises(OtherUnfinished, match="run a1 keeps objects until the end of a window"):
            check_beside(files, views, third, window)


def test_a_window_is_refused_beside_a_run_that_deletes_what_the_plan_may_hold(files: Files) -> None:
    first, second = uncommitted("a1"), uncommitted("b1")
    files.act(lambda store: write_plan(store, first))
    begin(files, first, None)
    views = [view("a1"), view("b1")]

    check_beside(files, views, second, None)
    with pytest.raises(OtherUnfinished, match="run a1 has begun to delete"):
        check_beside(files, views, second, "7d")


@pytest.mark.parametrize("first_is_deferred", [False, True])
def test_of_two_runs_that_both_died_when_they_had_begun_one_goes_first(files: Files, first_is_deferred: bool) -> None:
    """Neither saw the other when it was applied, and one of them keeps its objects for a window."""
    plans = [uncommitted("a1"), uncommitted("b1")]
    windows = ["7d", None] if first_is_deferred else [None, "7d"]
    views = [view("a1"), view("b1")]
    for made, window in zip(plans, windows, strict=True):
        put(files, made)
        begin(files, made, window)
        check_beside(files, views, made, window)
    (first, second), (its_window, other) = plans, windows

    assert take_turn(files, views, first, wanted=its_window, asked=None) == its_window
    with pytest.raises(OtherUnfinished):
        take_turn(files, views, second, wanted=other, asked=None)
    assert take_turn(files, views, first, wanted=its_window, asked=None) == its_window
    views[0] = view("a1", RunState.ENDED)
    assert take_turn(files, views, second, wanted=other, asked=None) == other


def test_a_run_keeps_the_turn_that_it_took(files: Files) -> None:
    deletes, waits = uncommitted("a1"), uncommitted("b1")

    assert take_turn(files, [], deletes, wanted=None, asked=None) is None
    assert take_turn(files, [], deletes, wanted="7d", asked=None) is None
    with pytest.raises(WindowTooLate):
        take_turn(files, [], deletes, wanted="7d", asked="7d")
    assert take_turn(files, [], waits, wanted="7d", asked="7d") == "7d"
    with pytest.raises(Overtaken):
        take_turn(files, [], waits, wanted=None, asked=None)


@pytest.mark.parametrize("kind", [RunKind.UNCOMMITTED, RunKind.COMMITTED])
def test_a_lost_plan_of_a_run_with_a_window_is_told_with_its_name(files: Files, kind: RunKind) -> None:
    begin(files, replace(plan(), kind=kind, run_id="a1"), "7d")

    with pytest.raises(BadInput, match="run a1 keeps objects until the end of a window, and what it takes is unknown"):
        check_beside(files, [view("a1", RunState.SWEEPING, kind)], replace(plan(), kind=kind, run_id="c1"), None)


def test_what_a_run_holds_is_unknown_where_its_plan_is_not_that_of_its_record(files: Files) -> None:
    begun = uncommitted("a1")
    files.act(lambda store: write_plan(store, begun))
    begin(files, begun, None)
    of_record, of_another = (replace(view("a1"), plan=plan) for plan in (begun.garbage.digest(), "x"))

    assert files.act(lambda store: resume.held_tables(context_of(store), [of_record], ())) == {"a1": begun.garbage}
    with pytest.raises(BadInput, match="run a1 may be deleting, and its plan is not that of its record"):
        files.act(lambda store: resume.held_tables(context_of(store), [of_another], ()))


def test_a_run_that_lost_its_plan_deletes_nothing_more_and_hinders_no_window(files: Files) -> None:
    begin(files, uncommitted("a1"), None)

    check_beside(files, [view("a1"), view("b1")], uncommitted("b1"), "7d")


@pytest.mark.parametrize("error", [NotFinished("x"), BadInput("x"), RunAbandoned("x")])
def test_a_command_comes_to_its_purge_whatever_could_not_be_done(error: LakebedError) -> None:
    def each() -> Iterator[RunReport]:
        raise error
        yield

    done: list[object] = []
    with pytest.raises(type(error)) as raised:
        done.extend(then_purge(each(), lambda: PURGED, silent))

    assert raised.value is error
    assert done == [PURGED]


def test_a_command_ends_at_once_where_nobody_answers() -> None:
    def each() -> Iterator[RunReport]:
        raise Unavailable("nobody")
        yield

    with pytest.raises(Unavailable):
        next(then_purge(each(), lambda: PURGED, silent))


@pytest.mark.parametrize(
    ("state", "done", "told"),
    [
        (RunState.EXPIRING, None, "stopped before run r1 deleted anything; apply it again: go on"),
        (
            RunState.SWEEPING,
            0,
            (
                "stopped: 0 of 2 objects of run r1 recorded as done; "
                "the next `gc run` goes on with it, or at once: go on"
            ),
        ),
        (
            RunState.SWEEPING,
            None,
            "stopped: what was done of run r1 is recorded; the next `gc run` goes on with it, or at once: go on",
        ),
        (RunState.ENDED, 2, "stopped, and run r1 had ended"),
    ],
)
def test_who_stops_an_apply_is_told_whether_a_nightly_run_goes_on_with_it(
    state: RunState, done: int | None, told: str
) -> None:
    found = RunStatus(
        run_id="r1", kind=RunKind.COMMITTED, state=state, started_ms=1, began_ms=2, objects=2, objects_done=done
    )

    assert left_off(found, "go on") == told
