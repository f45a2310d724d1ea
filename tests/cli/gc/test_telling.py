"""How plans are told: bars in a terminal, a page of HTML, differences, and the one line of an unforeseen failure."""

from __future__ import annotations

from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from lakebed.base import CommitId
from lakebed.cli.gc import apply_question
from lakebed.cli.gc.report import plan_html
from lakebed.cli.gc.rules import PlannedChange, planned_text
from lakebed.cli.gc.text import (
    applied_text,
    bar,
    bars,
    diff_text,
    outcome,
    plan_text,
    plan_texts,
    report_text,
    run_status_text,
    runs_text,
    state_text,
    swept_text,
    view_text,
)
from lakebed.cli.gc.why import why_text
from lakebed.cli.kit.output import human_time
from lakebed.cli.kit.progress import CLEAR, Line
from lakebed.gc import ListedRun, RunNotReady, RunStatus, SparkFailed, messages, run_status_by_record, unforeseen
from lakebed.gc.engines.failures import TaskCorrupt, marked, telling_line, translated
from lakebed.gc.machine.preflight import state_to_apply
from lakebed.gc.messages import (
    CommitCounts,
    CommitsDiffer,
    CommittedName,
    DifferingObject,
    Fate,
    Found,
    LedgerRow,
    LedgerState,
    OnlyIn,
    Plan,
    PlanDiff,
    RangeCounts,
    RunKind,
    RunReport,
    RunState,
    RunView,
    Side,
    Total,
    Totals,
    UncommittedName,
    WhyAnswer,
    WhyObject,
)
from lakebed.gc.rules import DAY_MS, RuleChange, Rules, Stay, StayKind
from lakebed.gc.runs.status import go_on_command

HOSTILE = "</td><script>alert(1)</script>\"' onload=x &amp; \x1b[2J\u202eevil\ud800"
NOW = 1_790_000_000_000


def plan(**more: object) -> Plan:
    manifest = messages.manifest_of(messages.COMMITS, "_lakefs/x/", [])
    small, large = Total(objects=3, size_bytes=10 << 20), Total(objects=1000, size_bytes=30 << 20)
    found = Plan(
        run_id="r1",
        kind=RunKind.COMMITTED,
        repository="repo",
        namespace="local://lake/repo",
        now_ms=NOW,
        closed_slices=2,
        rules=Rules(default="7d"),
        rules_version=3,
        commits=manifest,
        refs=manifest,
        expired=manifest,
        commit_counts=CommitCounts(all=30, kept=20, expired=9, swept=1),
        range_counts=RangeCounts(live=4, expired=5),
        garbage=manifest,
        totals=Totals(
            all=Total(objects=1003, size_bytes=40 << 20),
            by_reason={"expired": large, "dangling": small},
            by_age={">1y": small, "7-30d": large},
            by_prefix={"logs/": large, HOSTILE: small},
        ),
    )
    return msgspec.structs.replace(found, **more)


class Reader(HTMLParser):
    """What a browser would make of a page: its elements, and its words."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[str] = []
        self.attributes: set[str] = set()
        self.words = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        self.words += data


def test_the_page_shows_every_way_in_which_a_plan_is_counted() -> None:
    words = Reader(plan_html(plan())).words

    for said in ("1,003", "40 MiB", "expired", "dangling", "7-30d", "logs/", "9", "commits expire", "all branches 7d"):
        assert said in words


def test_commits_of_tables_are_not_said_to_have_gone_by_earlier_runs() -> None:
    assert swept_text(plan()) == "1 other left out: swept by earlier runs"
    assert "notes on tables" in swept_text(plan(kind=RunKind.ERASURE))


def test_names_of_other_people_put_no_element_and_no_control_into_the_page() -> None:
    page = plan_html(plan(unknown_files=(HOSTILE,), repository=HOSTILE))

    reader = Reader(page)

    assert "script" not in reader.elements
    assert not {name for name in reader.attributes if name.startswith("on")}
    assert "<script>alert(1)" in reader.words, "shown as it is named"
    assert not {"\x1b", "\u202e", "\ud800"} & set(page)
    page.encode()


def test_the_page_loads_nothing_and_runs_nothing() -> None:
    page = plan_html(plan(listing=Found(objects=2000, size_bytes=1 << 30, slices=3)))

    reader = Reader(page)

    assert "bytes listed" in page
    assert not {"script", "link", "img", "iframe", "object", "form", "a"} & set(reader.elements)
    assert not {"src", "href"} & reader.attributes
    assert "default-src 'none'" in page
    assert "http" not in page.replace("http-equiv", "")


def test_a_page_says_when_its_rules_were_only_supposed() -> None:
    assert "rules that were not saved" in plan_html(plan(what_if=True))
    assert "rules that were not saved" not in plan_html(plan())


def test_a_plan_of_before_without_ages_has_a_page() -> None:
    totals = Totals(all=Total(objects=1, size_bytes=1), by_reason={"expired": Total(objects=1, size_bytes=1)})

    assert "By age" not in plan_html(plan(totals=totals))


def test_bars_fill_the_width_and_no_line_is_wider() -> None:
    sums = {"logs/": Total(objects=5, size_bytes=100), "x" * 90: Total(objects=1, size_bytes=50)}

    for width in (20, 60, 100, 200):
        lines = [*bars("folder", sums, width=width)]
        assert len(lines) == 3
        if width > 80:
            assert max(map(len, lines)) <= width
            assert lines[1].count("█") == 2 * lines[2].count("█") > 0


def test_a_terminal_that_cannot_show_blocks_gets_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    class Plain:
        encoding = "ascii"

    monkeypatch.setattr("sys.stdout", Plain())

    assert bar(0.5, 10) == "#####"


def test_what_is_beyond_the_first_names_is_summed() -> None:
    sums = {f"{number:02}/": Total(objects=1, size_bytes=1) for number in range(15)}

    lines = [*bars("folder", sums, width=100)]

    assert len(lines) == 12
    assert [word for word in lines[-1].split() if "█" not in word] == ["(5", "more)", "5", "5", "B"]
    assert "█" in lines[-2]
    assert "█" not in lines[-1], "beside a bar of all the others those of the names would be as nothing"


def test_ranges_that_a_policy_reads_do_not_go() -> None:
    committed, lifecycle = ("\n".join(plan_text(plan(kind=kind))) for kind in (RunKind.COMMITTED, RunKind.LIFECYCLE))

    assert " go\n" in committed
    assert " go\n" not in lifecycle
    assert "may have entries that are due" in lifecycle


def test_ages_are_told_youngest_first_and_names_without_control_characters() -> None:
    text = "\n".join(plan_text(plan(), width=100))

    assert text.index("7-30d") < text.index(">1y")
    assert "\x1b" not in text


def test_runs_are_listed_with_what_they_take() -> None:
    runs = [
        ListedRun(run_id="r2", kind=RunKind.UNCOMMITTED, state="marking", started_ms=NOW),
        ListedRun(run_id="r1", kind=RunKind.COMMITTED, state="planned", started_ms=NOW, objects=1200, size_bytes=2048),
    ]

    lines = [*runs_text(runs)]

    assert lines[0].split() == ["RUN", "BEGAN", "KIND", "STATE", "OBJECTS", "SIZE", "PLANNED", "BY"]
    assert lines[1].split()[-3:] == ["-", "-", "-"]
    assert "1,200" in lines[2]
    assert "2.0 KiB" in lines[2]


def test_a_run_that_another_user_planned_says_so_below_its_row_where_there_is_no_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    facts: dict[str, Any] = {
        "kind": RunKind.UNCOMMITTED,
        "state": "planned",
        "started_ms": NOW,
        "objects": 1200,
        "size_bytes": 2048,
    }
    runs = [
        ListedRun(run_id="06gvsk16dis1i19se31g", planned_by="ann", **facts),
        ListedRun(run_id="06gvsk16dis1i19se31f", planned_by="kim", is_own=True, **facts),
    ]

    header, first, planner, second = runs_text(runs)
    monkeypatch.setenv("COLUMNS", "100")
    wide = [line.split()[-1] for line in runs_text(runs)]

    assert header.split() == ["RUN", "BEGAN", "KIND", "STATE", "OBJECTS", "SIZE"]
    assert (planner, max(map(len, (header, first, second))) <= 80) == ("    planned by: ann", True)
    assert wide == ["BY", "ann", "-"]


def report(**more: object) -> RunReport:
    found = RunReport(
        run_id="r1",
        kind=RunKind.COMMITTED,
        state=RunState.ENDED,
        repository="repo",
        namespace="local://lake/repo",
        run_start_time_ms=NOW,
        run_end_time_ms=NOW,
        dry_run=False,
        last_read_slice="",
        slices_listed=0,
        inputs={},
        garbage_objects=5,
        garbage_bytes=10,
        objects_deleted=4,
        bytes_deleted=9,
        objects_failed=0,
    )
    return msgspec.structs.replace(found, **more)


def test_states_are_told_by_what_they_mean_to_who_waits() -> None:
    told = {
        "planned": "planned",
        "marked": "planned",
        "marking": "planning",
        "supposed": "planned, rules not saved",
        "sweeping": "applying",
        "ended": "applied",
        "abandoned": "abandoned",
    }

    assert {state: state_text(state) for state in told} == told


def test_a_run_that_ended_without_deleting_does_not_look_as_if_it_had() -> None:
    view = RunView(run_id="r1", kind=RunKind.COMMITTED, state=RunState.ENDED, started_ms=NOW)
    run = ListedRun(run_id="r1", kind=RunKind.COMMITTED, state="ended", started_ms=NOW, nothing_deleted=True)

    assert "ended: nothing deleted" in "\n".join(view_text(view))
    assert [*runs_text([run])][1].endswith("ended: nothing deleted  -        -     -")


def test_a_run_that_is_being_applied_says_how_far_it_is_and_what_goes_on_with_it() -> None:
    found = RunStatus(
        run_id="r1",
        kind=RunKind.UNCOMMITTED,
        state="marked",
        started_ms=NOW,
        objects=4200,
        size_bytes=1 << 20,
        objects_done=728,
        began_ms=NOW,
        window="7d",
    )
    lines = [*run_status_text(found, "lakebed gc apply lakefs://lake r1")]

    assert "state:   applying" in lines
    assert "done:    728 of 4,200 objects" in lines
    assert "window:  7d" in lines
    assert lines[-1] == "if it died, apply it again: lakebed gc apply lakefs://lake r1"


def test_a_plan_of_uncommitted_data_that_a_collection_of_metadata_took_says_so_when_it_is_applied() -> None:
    view = RunView(run_id="r1", kind=RunKind.UNCOMMITTED, state=RunState.ENDED, started_ms=NOW)

    with pytest.raises(RunNotReady, match="r1 ended without deleting anything: plan again"):
        state_to_apply(view, msgspec.structs.replace(plan(), kind=RunKind.UNCOMMITTED))


def test_commits_are_counted_only_while_they_are_expiring() -> None:
    view = RunView(run_id="r1", kind=RunKind.COMMITTED, state=RunState.ENDED, started_ms=NOW, plan="x")

    assert "expires" not in "\n".join(view_text(view))
    assert "expires:  2 commits" in "\n".join(
        view_text(msgspec.structs.replace(view, state=RunState.SWEEPING, expiring=2))
    )


def test_a_run_that_is_over_is_told_as_of_then() -> None:
    view = RunView(run_id="r1", kind=RunKind.COMMITTED, state=RunState.ENDED, started_ms=NOW, plan="x")
    applied = f"applied {human_time(NOW // 1000)}: deleted 4 objects, 9 B"

    assert applied_text(report()) == f"r1 was {applied}"
    assert f"state:    {applied}" in [*plan_text(plan(), state=outcome(run_status_by_record(view), report()))]


def test_the_page_of_an_applied_plan_says_so_and_tells_until_when_it_is_deferred() -> None:
    deferred = report(garbage_objects=5, garbage_bytes=18 << 10, objects_deleted=0, deferred_until_ms=NOW + DAY_MS)
    words = Reader(plan_html(plan(), deferred)).words

    assert f"deferred5 objects, 18 KiB, until {human_time((NOW + DAY_MS) // 1000)}" in words
    assert "This plan was applied" in words
    assert "A plan deletes nothing" not in words


@pytest.mark.parametrize(
    ("kind", "window", "begun_with", "until_ms", "asked"),
    [
        (RunKind.COMMITTED, "", "", None, "for good?"),
        (RunKind.COMMITTED, "7d", "", None, "Defer"),
        (RunKind.COMMITTED, "", "7d", None, "to be deleted after 7d?"),
        (RunKind.METADATA, "7d", "", None, "for good?"),
        (RunKind.COMMITTED, "", "7d", 2**45, "until then they can be restored"),
        (RunKind.COMMITTED, "14d", "7d", 2**45, "to be deleted after 14d?"),
        (RunKind.COMMITTED, "", "7d", 1, "for good?"),
    ],
)
def test_apply_asks_for_good_only_where_it_deletes(
    kind: RunKind, window: str, begun_with: str, until_ms: int | None, asked: str
) -> None:
    status = RunStatus(run_id="r1", kind=kind, state="x", started_ms=0, window=begun_with, until_ms=until_ms)

    text = apply_question("lakefs://lake", plan(kind=kind), status, window)

    assert (asked in text, "for good" in text) == (True, asked == "for good?")


def test_a_deferred_run_says_until_when() -> None:
    view = RunView(
        run_id="r1", kind=RunKind.COMMITTED, state=RunState.SWEEPING, started_ms=NOW, plan="x", until_ms=NOW + DAY_MS
    )

    lines = [*view_text(view)]

    assert "state:  deferred" in lines
    assert f"until:  {human_time((NOW + DAY_MS) // 1000)}" in lines
    assert "deferred" not in "\n".join(view_text(msgspec.structs.replace(view, is_purging=True)))
    assert report_text(report(garbage_objects=5, garbage_bytes=9, deferred_until_ms=NOW)) == (
        f"r1 (committed): deferred 5 objects, 9 B, until {human_time(NOW // 1000)}"
    )


def gc_apply(run_ids: Sequence[str], kind: RunKind) -> str:
    return go_on_command("repo", run_ids, kind, ["--data", "/my lake"])


def test_plans_of_one_command_stand_apart() -> None:
    assert [*plan_texts([plan(), plan()], command=gc_apply)].count("plan:     r1 (committed)") == 2
    lines = [*plan_texts([plan(), plan()], command=gc_apply)]
    assert lines[lines.index("plan:     r1 (committed)", 1) - 1] == ""


def test_progress_is_erased_once_before_an_answer(capsys: pytest.CaptureFixture[str]) -> None:
    line = Line(visible=True)

    line.update(lambda: "4 of 10 tasks")
    line.erase()
    line.erase()

    assert capsys.readouterr().err == f"{CLEAR}4 of 10 tasks{CLEAR}"


def test_a_difference_is_told_by_objects_bytes_and_commits() -> None:
    found = PlanDiff(
        a="r1",
        b="r2",
        kind=RunKind.COMMITTED,
        only_a=OnlyIn(),
        only_b=OnlyIn(all=Total(objects=2, size_bytes=2048), by_rule={"main: 1d": Total(objects=2, size_bytes=2048)}),
        both=Total(objects=7, size_bytes=70),
        commits=CommitsDiffer(a=0, b=4, both=9),
        by_branch={"main": (Total(objects=7), Total(objects=9))},
        objects=(
            DifferingObject(
                side=Side.B, address="data/x", size_bytes=9, reason="r", rule="main: 1d", last_seen_ms=NOW, path=HOSTILE
            ),
        ),
    )

    text = "\n".join(diff_text(found))

    assert "only the second, r2        2  2.0 KiB        4" in text
    assert "main: 1d" in text
    assert "\x1b" not in text


def why(found: WhyObject, **more: object) -> str:
    answer = WhyAnswer(
        repository_uri="local://lake/repo",
        now_ms=NOW,
        rules_version=1,
        has_rules=True,
        objects=(found,),
        objects_count=1,
    )
    return "\n".join(why_text(msgspec.structs.replace(answer, **more), repository="lake"))


def test_why_says_who_keeps_it_until_when_and_by_which_rule() -> None:
    stay = Stay(
        kind=StayKind.BRANCH,
        name="main",
        commit=CommitId("c" * 64),
        rule="main: 20d",
        period="20d",
        counted_by=CommitId("d" * 64),
        counted_ms=NOW - 10 * DAY_MS,
        until_ms=NOW + 10 * DAY_MS,
    )
    name = CommittedName(commit="c" * 64, created_ms=NOW, path=HOSTILE)
    found = WhyObject(
        address="data/x", fate=Fate.KEPT, goes_ms=NOW + 10 * DAY_MS, stays=(stay,), stays_count=1, commits=(name,)
    )

    text = why(found)

    assert "stays until 2026-10-01" in text
    assert "branch main until 2026-10-01" in text
    assert "by rule main: 20d from 2026-09-11" in text
    assert "\x1b" not in text


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (WhyObject(address="x", fate=Fate.EXPIRED, goes_ms=NOW), "next run of committed data"),
        (WhyObject(address="x", fate=Fate.UNREFERENCED, goes_ms=NOW), "next run of uncommitted data"),
        (WhyObject(address="x", fate=Fate.YOUNG, goes_ms=NOW), "stays for its age until 2026-09-21"),
        (WhyObject(address="x", fate=Fate.MISSING), "is not in the object store"),
        (WhyObject(address="x", fate=Fate.UNKNOWN), "and nothing names it"),
        (WhyObject(address="x", fate=Fate.OUTSIDE), "outside of this repository"),
        (WhyObject(address="x", fate=Fate.OWN), "only a run of metadata"),
        (
            WhyObject(
                address="x",
                fate=Fate.KEPT,
                uncommitted=(UncommittedName(source="staging", branch="dev", path="p", since_ms=NOW),),
            ),
            "branch dev at p",
        ),
        (
            WhyObject(
                address="x",
                fate=Fate.TAKEN,
                taken=(
                    LedgerRow(
                        run_id="r7",
                        address="x",
                        path="p",
                        size_bytes=1,
                        reason="expired",
                        rule="main: 1d",
                        state=LedgerState.DELETED,
                        deleted_ms=NOW,
                        error="",
                    ),
                ),
            ),
            f"r7: deleted {human_time(NOW // 1000)}, expired, by rule main: 1d, at p",
        ),
    ],
)
def test_why_says_what_becomes_of_it(found: WhyObject, said: str) -> None:
    assert said in why(found)


def test_why_says_that_nothing_committed_goes_without_rules() -> None:
    assert "no retention rules are set" in why(WhyObject(address="x", fate=Fate.KEPT), has_rules=False)


TRACE = """An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "worker.py", line 1, in main
    process()
  File "job.py", line 7, in work
    raise ValueError("no such thing")
ValueError: no such thing

\tat org.apache.spark.api.python.BasePythonRunner.handlePythonException(PythonRunner.scala:581)
Caused by: org.apache.spark.SparkException: Job aborted
"""


def test_of_an_unforeseen_failure_the_workers_own_error_is_told() -> None:
    assert telling_line(TRACE) == "ValueError: no such thing"
    assert telling_line("java.lang.OutOfMemoryError: Java heap space\n\tat x") == "OutOfMemoryError: Java heap space"
    assert telling_line("") == "no reason given"
    assert len(telling_line("x" * 9000)) == 300


@pytest.mark.parametrize("module", ["lakebed", "lakebed.gc"])
def test_a_worker_without_this_package_says_which_command_makes_it(module: str) -> None:
    trace = TRACE.replace("ValueError: no such thing", f"ModuleNotFoundError: No module named '{module}'")

    assert "`lakebed gc package`, and name it with --py-files or spark.submit.pyFiles" in telling_line(trace)


def test_a_worker_without_a_package_that_ours_needs_says_which() -> None:
    trace = TRACE.replace("ValueError: no such thing", "ModuleNotFoundError: No module named 'msgspec'")

    assert telling_line(trace).endswith("lack the Python package msgspec: they need msgspec, numpy, obstore, pyarrow")


def test_an_error_of_a_task_comes_to_the_driver_with_its_family_its_message_and_its_facts() -> None:
    with pytest.raises(RuntimeError) as left, marked():
        raise messages.BadInput("in/part-0 is missing", missing="in/part-0", rows=3, cause=ValueError())

    with pytest.raises(TaskCorrupt, match=r"^in/part-0 is missing$") as came, translated():
        raise PySparkException(TRACE.replace("ValueError: no such thing", f"RuntimeError: {left.value}"))

    assert came.value.facts == {"missing": "in/part-0", "rows": 3}


def test_an_unforeseen_failure_is_one_line_and_a_file_with_all_of_it(tmp_path: Path) -> None:
    with pytest.raises(SparkFailed, match=r"^Spark failed: ValueError: no such thing") as told, unforeseen(tmp_path):
        raise Py4JError(TRACE)

    (log,) = tmp_path.iterdir()
    assert str(log) in str(told.value)
    assert "PythonRunner.scala:581" in log.read_text()
    assert "\n" not in str(told.value)


def test_a_change_of_rules_is_told_with_what_it_would_take() -> None:
    total = Total(objects=2, size_bytes=2048)
    diff = PlanDiff(
        a="r1",
        b="r2",
        kind=RunKind.COMMITTED,
        only_a=OnlyIn(),
        only_b=OnlyIn(all=total),
        both=Total(),
        commits=CommitsDiffer(b=3),
        by_branch={},
        objects=(),
    )
    change = RuleChange(what="default", pattern="", before="7d", after="2d")

    text = "\n".join(planned_text(PlannedChange(changes=[change], plan=diff)))

    assert "default           7d      2d" in text
    assert "r1 is by the rules before, r2 by those after" in text
    assert "only the second, r2        2  2.0 KiB        3" in text


def test_a_plan_ends_with_the_command_that_carries_it_out() -> None:
    supposed = msgspec.structs.replace(plan(), what_if=True)

    assert (
        list(plan_texts([plan()], command=gc_apply))[-1]
        == "to carry it out: lakebed gc apply lakefs://repo r1 --data '/my lake'"
    )
    assert not any("gc apply" in line for line in plan_texts([supposed], command=gc_apply))


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (StayKind.HEAD, "stays: it is in the head of branch x"),
        (StayKind.TAG, "stays: tag x names a commit that has it"),
        (StayKind.INTENT, "stays while what keeps it is there"),
    ],
)
def test_what_stays_without_an_end_says_by_what(kind: StayKind, told: str) -> None:
    found = WhyObject(
        address="a", fate=Fate.KEPT, stays=(Stay(kind=kind, name="x", commit=CommitId("c" * 64)),), stays_count=1
    )
    answer = WhyAnswer(
        repository_uri="u", now_ms=NOW, rules_version=1, has_rules=True, objects=(found,), objects_count=1
    )

    assert any(told in line for line in why_text(answer, repository="lake"))


def test_of_several_plans_one_command_applies_all_that_take_something() -> None:
    plans = [
        plan(run_id=run_id, totals=Totals(all=Total(objects=objects, size_bytes=1)))
        for run_id, objects in (("a" * 20, 1), ("b" * 20, 0), ("c" * 20, 2))
    ]

    def command(runs: Sequence[str], kind: RunKind) -> str:
        # Not even a folder of such a name is taken for a run.
        return go_on_command("lake", runs, kind, ["--data", f"/RUN-{'a' * 20}"])

    *_, last = plan_texts(plans, command=command)

    assert last == (f"to carry out all: lakebed gc apply lakefs://lake {'a' * 20} {'c' * 20} --data /RUN-{'a' * 20}")
    assert "all:" not in "".join(plan_texts(plans[:2], command=command))
