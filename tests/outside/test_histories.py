"""The judges of histories catch each anomaly by its name. Real servers, whole or with a planted fault, are judged."""

from __future__ import annotations

import asyncio
import itertools
import json
from pathlib import Path
from typing import Literal

import pytest

from lakebed.kv import sqlite_uri, store_partitions
from tests.outside.histories.__main__ import main
from tests.outside.histories.events import (
    BadRecording,
    Call,
    Event,
    Micro,
    calls_of,
    elle_lines,
    read_events,
    write_events,
)
from tests.outside.histories.judging import Verdict, judge
from tests.outside.histories.lists import check_across, check_lists
from tests.outside.histories.recording import Plan, Recording, record
from tests.outside.histories.registers import check_registers, linearize
from tests.outside.servers import Patch, patched_copy

_PROCESSES = itertools.count()


def call(
    began: float, ended: float, *value: Micro, outcome: Literal["ok", "fail", "info"] = "ok", f: str = "txn"
) -> Call:
    process = next(_PROCESSES)
    return Call(outcome, f, process, began, ended if outcome != "info" else float("inf"), value)


def append(value: int, key: str = "b") -> Micro:
    return ("append", key, value)


def log(*values: int, key: str = "b") -> Micro:
    return ("r", key, list(values))


def write(value: int | None, path: str = "d/x") -> Micro:
    return ("w", path, value)


def get(value: int | None, path: str = "d/x") -> Micro:
    return ("get", path, value)


def names(calls: list[Call]) -> list[str]:
    verdict = judge(calls)
    return [anomaly.name for anomaly in (*verdict.forbidden, *verdict.allowed)]


def _logs(*logs: list[int]) -> list[Call]:
    return [call(0, 9, log(*values)) for values in logs]


class TestLogs:
    def test_commits_and_reads_one_after_the_other_are_fine(self) -> None:
        calls = [
            call(0, 1, append(1)),
            call(2, 3, log(1)),
            call(4, 5, append(2)),
            call(4, 6, append(3)),
            call(7, 8, log(1, 3, 2)),
        ]

        assert names(calls) == []

    def test_a_commit_without_an_answer_may_be_there_or_not(self) -> None:
        gone = [call(0, 1, append(1), outcome="info"), call(2, 3, log())]
        there = [call(0, 1, append(1), outcome="info"), call(2, 3, log()), call(4, 5, log(1))]

        assert names(gone) == names(there) == []

    @pytest.mark.parametrize(
        ("name", "calls"),
        [
            ("lost-append", [call(0, 1, append(1)), call(2, 3, log())]),
            ("duplicate-append", [call(0, 1, append(1)), call(2, 3, log(1, 1))]),
            ("garbage-read", [call(0, 1, append(1)), call(2, 3, log(1, 7))]),
            ("incompatible-order", [call(0, 9, append(1)), call(0, 9, append(2)), *_logs([1, 2], [2])]),
            ("G1a", [call(0, 1, append(1), outcome="fail"), call(2, 3, log(1))]),
            ("G1b", [call(0, 9, append(1), append(2)), call(0, 9, log(1)), call(0, 9, log(1, 2))]),
            ("internal", [call(0, 1, append(1)), call(2, 9, append(2), log(1)), call(10, 11, log(1, 2))]),
            # The second was acknowledged before the first began.
            ("G0-realtime", [call(2, 3, append(1)), call(0, 1, append(2)), call(0, 9, log(1, 2))]),
            # The log was read whole before the commit in it began.
            ("G1c-realtime", [call(2, 3, append(1)), call(0, 1, log(1))]),
            # An older log after a newer one.
            ("G-single-realtime", [call(0, 9, append(1)), call(1, 2, log(1)), call(3, 4, log())]),
        ],
    )  # fmt: skip  # a history a line
    def test_an_anomaly_of_one_branch_has_its_name(self, name: str, calls: list[Call]) -> None:
        assert name in [anomaly.name for anomaly in check_lists(calls)]
        assert not judge(calls).is_valid

    @pytest.mark.parametrize(
        ("name", "is_allowed", "calls"),
        [
            (
                "G0",
                False,
                [
                    call(0, 9, append(1, "a"), append(2, "b")),
                    call(0, 9, append(3, "a"), append(4, "b")),
                    call(10, 11, log(1, 3, key="a")),
                    call(10, 11, log(4, 2, key="b")),
                ],
            ),
            (
                "G1c",
                False,
                [
                    call(0, 9, append(1, "a"), log(2, key="b")),
                    call(0, 9, append(2, "b"), log(1, key="a")),
                ],
            ),
            (
                "G-single",
                True,
                [
                    call(0, 9, append(1, "a"), append(2, "b")),
                    call(0, 9, log(key="a"), log(2, key="b")),
                    call(10, 11, log(1, key="a")),
                ],
            ),
            (
                "G2-item",
                True,
                [
                    call(0, 9, append(1, "a"), log(key="b")),
                    call(0, 9, append(2, "b"), log(key="a")),
                    call(10, 11, log(1, key="a"), log(2, key="b")),
                ],
            ),
        ],
    )
    def test_an_anomaly_across_branches_has_its_name(self, name: str, is_allowed: bool, calls: list[Call]) -> None:
        assert check_lists(calls) == []
        assert [anomaly.name for anomaly in check_across(calls)] == [name]
        assert judge(calls).is_valid is is_allowed

    def test_a_merge_that_read_an_older_log_than_was_acknowledged_is_caught(self) -> None:
        calls = [call(0, 1, append(1, "work")), call(2, 3, append(2, "trunk"), log(key="work"))]
        calls.append(call(4, 5, log(1, key="work")))

        assert [anomaly.name for anomaly in judge(calls).forbidden] == ["G-single-realtime"]


class TestRegisters:
    def test_reads_during_a_write_show_the_old_or_the_new(self) -> None:
        calls = [call(0, 1, write(1)), call(2, 9, write(2)), call(3, 4, get(1)), call(5, 6, get(2)), call(7, 8, get(2))]

        assert names(calls) == []

    def test_a_write_without_an_answer_may_come_late_or_never(self) -> None:
        calls = [call(0, 1, write(1)), call(2, 3, write(2), outcome="info"), call(4, 5, get(1)), call(6, 7, get(2))]

        assert names(calls) == []
        assert names(calls[:3]) == []

    def test_a_deleted_path_is_empty_until_it_is_written_again(self) -> None:
        calls = [call(0, 1, write(1)), call(2, 3, write(None)), call(4, 5, get(None)), call(6, 7, write(2))]

        assert names([*calls, call(8, 9, get(2))]) == []
        assert names([*calls, call(8, 9, get(None))]) == ["stale-read"]

    @pytest.mark.parametrize(
        ("name", "calls"),
        [
            ("stale-read", [call(0, 1, write(1)), call(2, 3, write(2)), call(4, 5, get(1))]),
            ("stale-read", [call(0, 1, write(1)), call(4, 5, get(None))]),
            ("aborted-read", [call(0, 1, write(1), outcome="fail"), call(2, 3, get(1))]),
            ("garbage-read", [call(0, 1, get(7))]),
            ("future-read", [call(2, 3, write(1)), call(0, 1, get(1))]),
            # Each read by itself is right; both together show that the order of the writes changed. Both writes were
            # over by then, so neither can have taken effect again.
            (
                "not-linearizable",
                [call(0, 3, write(1)), call(0, 3, write(2)), call(4, 5, get(1)), call(6, 7, get(2))],
            ),
        ],
    )
    def test_an_anomaly_of_one_path_has_its_name(self, name: str, calls: list[Call]) -> None:
        assert [anomaly.name for anomaly in check_registers(calls)] == [name]
        assert not judge(calls).is_valid

    def test_a_write_that_takes_effect_again_before_its_answer_is_told_apart(self) -> None:
        calls = [call(0, 9, write(1)), call(1, 2, get(1)), call(3, 4, write(2)), call(5, 6, get(2)), call(7, 8, get(1))]

        assert names(calls) == ["repeated-write"]
        assert judge(calls).is_valid

    def test_a_write_that_is_not_seen_for_a_while_before_its_answer_is_told_apart(self) -> None:
        calls = [
            call(0, 1, write(1)),
            call(2, 9, write(2)),
            call(3, 4, get(2)),
            call(5, 6, get(1)),
            call(10, 11, get(2)),
        ]

        assert names(calls) == ["withdrawn-write"]
        assert judge(calls).is_valid

    def test_a_write_that_is_not_seen_after_its_answer_is_forbidden(self) -> None:
        calls = [call(0, 1, write(1)), call(2, 6, write(2)), call(3, 4, get(2)), call(7, 8, get(1))]

        assert names(calls) == ["stale-read"]
        assert not judge(calls).is_valid

    def test_a_path_goes_back_to_what_the_write_under_way_replaced_and_to_nothing_else(self) -> None:
        over = [call(0, 5, write(1)), call(0, 4, write(2)), call(0, 20, write(3)), call(6, 7, get(2))]

        assert names([*over, call(8, 9, get(3)), call(10, 11, get(2))]) == ["withdrawn-write"]
        assert names([*over, call(8, 9, get(3)), call(10, 11, get(1))]) == ["not-linearizable"]

    def test_a_listing_has_one_moment_for_all_paths_of_a_folder(self) -> None:
        writes = [call(0, 1, write(1, "d/x")), call(2, 3, write(2, "d/y")), call(4, 9, write(3, "d/x"))]
        writes.append(call(10, 11, write(4, "d/y")))

        assert names([*writes, call(5, 12, get(3, "d/x"), get(2, "d/y"))]) == []
        assert names([*writes, call(5, 20, get(1, "d/x"), get(4, "d/y"))]) == ["torn-listing"]

    def test_many_writes_at_once_are_still_judged(self) -> None:
        writes = [call(0, 100, write(number)) for number in range(12)]
        calls = [*writes, *[call(number + 1, number + 1.5, get(number)) for number in range(12)]]

        assert linearize([(each, list(each.value)) for each in calls]) is None


class TestRecordings:
    def test_a_recording_is_read_back_as_it_was_written(self, tmp_path: Path) -> None:
        events = [
            Event(index=0, type="invoke", process=1, time=5, f="log", value=[("r", "b", None)]),
            Event(index=1, type="ok", process=1, time=9, f="log", value=[("r", "b", [1])]),
            Event(index=2, type="invoke", process=1, time=10, f="merge", value=[("append", "b", 2), ("r", "a", None)]),
        ]
        write_events(tmp_path / "history.jsonl", events)

        read = calls_of(read_events(tmp_path / "history.jsonl"))

        assert [(each.outcome, each.began, each.ended) for each in read] == [("ok", 5, 9), ("info", 10, float("inf"))]
        assert elle_lines(events).splitlines()[1] == (
            b'{"index":1,"type":"ok","process":1,"time":9,"f":"txn","value":[["r","b",[1]]]}'
        )
        assert b'"value":[["append","b",2]]' in elle_lines(events, alone=True)

    def test_a_process_that_calls_twice_at_once_is_no_process(self) -> None:
        first = Event(index=0, type="invoke", process=1, time=5, f="log", value=[])

        with pytest.raises(BadRecording):
            calls_of([first, first])

    def test_a_patch_that_does_not_fit_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="0 times"):
            patched_copy([Patch("base/names.py", "no such line", "")], tmp_path)


PLANTED = {
    "a head is published whatever it is by now": Patch(
        "versions/context.py",
        "value, seen.held.predicate)",
        "value, (await self._context.get(keys.BRANCH + branch.encode())).predicate)",
    ),
    "a writer does not look whether its token was sealed": Patch(
        "versions/staging/entries.py",
        "if again.record.staging_token == seen.record.staging_token:",
        "if again is not None:",
    ),
    "a fresh read of a branch comes from the cache": Patch(
        "versions/context.py",
        "        held = await self._context.get_shared(keys.BRANCH + branch.encode())\n",
        "        if branch in self._cache and self._context.ports.clock.now_ms() - self._cache[branch][1] < 500:\n"
        "            return self._cache[branch][0]\n"
        "        held = await self._context.get_shared(keys.BRANCH + branch.encode())\n",
    ),
}


def recorded(folder: Path, plan: Plan) -> tuple[Recording, Verdict]:
    recording = asyncio.run(record(plan, folder))
    return recording, judge(calls_of(recording.events))


def test_servers_that_are_killed_keep_every_promise_on_the_database_that_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    uri = sqlite_uri(tmp_path / "kv.db")
    command = ["--seconds", "4", "--processes", "2", "--kill", "--kv", uri]

    code = main([*command, "--out", str(tmp_path), "--json"])

    shown = capsys.readouterr().out
    found = json.loads(shown.splitlines()[-1])
    verdict = judge(calls_of(read_events(tmp_path / "history.jsonl")))
    assert (code, found["violations"], found["server_errors"]) == (0, 0, 0), shown
    assert found["kills"] > 0
    assert all(verdict.calls[f"{f} ok"] for f in ("commit", "merge", "log", "upload", "delete", "read", "list"))
    held = store_partitions(uri)
    assert len(held) > 1
    with pytest.raises(SystemExit):
        main(command)
    assert "--kv: the store holds" in capsys.readouterr().err
    assert store_partitions(uri) == held


@pytest.mark.slow
@pytest.mark.parametrize("fault", PLANTED)
def test_a_fault_planted_in_the_server_is_seen_from_outside(tmp_path: Path, fault: str) -> None:
    """Schedules differ from run to run, so several recordings may be needed."""

    def is_seen(attempt: int) -> bool:
        plan = Plan(seconds=3, processes=2, seed=attempt, patches=[PLANTED[fault]])
        return not recorded(tmp_path / str(attempt), plan)[1].is_valid

    assert any(is_seen(attempt) for attempt in range(5))


def test_the_command_judges_a_kept_recording(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    events = [
        Event(index=0, type="invoke", process=1, time=5, f="commit", value=[append(1)]),
        Event(index=1, type="ok", process=1, time=9, f="commit", value=[append(1)]),
        Event(index=2, type="invoke", process=1, time=10, f="log", value=[("r", "b", None)]),
        Event(index=3, type="ok", process=1, time=11, f="log", value=[log()]),
    ]
    write_events(tmp_path / "history.jsonl", events)

    code = main(["--check", str(tmp_path / "history.jsonl"), "--json"])

    assert code == 1
    assert "FORBIDDEN: lost-append on b" in capsys.readouterr().out
