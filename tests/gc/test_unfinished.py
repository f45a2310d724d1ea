"""Which runs are unfinished, and how they were begun: what their folders say, of this release and of older ones."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from lakebed.base import RunId
from lakebed.blocks import BlockOptions
from lakebed.gc.files import Files, Lake
from lakebed.gc.unfinished import begin, unfinished_runs
from lakebed.handoff import (
    BadInput,
    Quarantine,
    RunKind,
    RunState,
    RunView,
    encode_quarantine,
    quarantine_path,
    run_folder,
)
from tests.gc.test_telling import plan

NOW = 1_790_000_000_000


@pytest.fixture
def files(tmp_path: Path) -> Iterator[Files]:
    lake = Lake(uri="local://lake/repo", options=BlockOptions(local_root=tmp_path, local_durable=False))
    with Files(lake) as opened:
        yield opened


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


def test_of_a_run_of_an_older_release_the_quarantine_says_how_it_was_begun(files: Files) -> None:
    files.write(in_folder("old", "sweep.json"), b'{"started_ms":5}')
    aside = Quarantine(run_id="old", ledger_date="2026-11-21", since_ms=1, until_ms=2, window="3d")
    files.write(quarantine_path("old"), encode_quarantine(aside))

    (found,) = unfinished_runs(files, [view("old")])

    assert (found.began_ms, found.window) == (5, "3d")


def test_a_file_that_does_not_say_how_a_run_was_begun_stops_and_the_run_is_named(files: Files) -> None:
    for data in (b"", b"{}", msgspec.json.encode({"began_ms": "x"}), b"\xff"):
        files.write(in_folder("r7", "apply.json"), data)

        with pytest.raises(BadInput, match="how run r7 was begun is unreadable"):
            unfinished_runs(files, [view("r7")])
