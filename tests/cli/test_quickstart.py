"""The quickstart: what it does, what it refuses, and that it leaves no process behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from lakebed.base import Unavailable
from lakebed.cli.kit.failures import Misuse
from lakebed.examples.quickstart import LocalServer
from lakebed.examples.quickstart.command import Ended, Folder, next_folder
from lakebed.examples.quickstart.data import only_late, read_flights, read_small_tables, with_cancelled

MARK = "LAKEBED_TEST_MARK"


class Run:
    """A quickstart as a process of its own, with everything it starts marked in its environment."""

    def __init__(self, folder: Path, *options: str) -> None:
        self._mark = uuid.uuid4().hex
        self.process = subprocess.Popen(
            [sys.executable, "-m", "lakebed", "quickstart", "--data", str(folder), *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, MARK: self._mark, "PYTHONUNBUFFERED": "1"},
            start_new_session=True,
        )

    def wait_for(self, words: str) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if words in line:
                return
        raise AssertionError(f"it never said {words!r}")

    def interrupt(self, number: int) -> int:
        """To the whole foreground group, as a terminal does; the exit code."""
        os.killpg(self.process.pid, number)
        self.process.communicate()
        return self.process.returncode

    def left_behind(self) -> list[str]:
        """Command lines of the processes with our mark that still run."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if self._mark.encode() in (folder / "environ").read_bytes():
                    found.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode())
            except OSError:
                continue  # It ended meanwhile, or is not ours.
        return found

    def close(self) -> None:
        if self.process.poll() is None:
            self.interrupt(signal.SIGTERM)


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Run]:
    run = Run(tmp_path / "quick")
    yield run
    run.close()


def test_folders_are_numbered(tmp_path: Path) -> None:
    names = []
    for _ in range(3):
        names.append(next_folder(tmp_path).name)
        next_folder(tmp_path).mkdir()

    assert names == ["lakebed-quickstart", "lakebed-quickstart-2", "lakebed-quickstart-3"]


def test_a_folder_with_something_else_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()

    with pytest.raises(Misuse, match=r"holds 'thesis\.tex': name a new folder"):
        Folder(tmp_path).prepare()


def test_a_folder_remembers_that_the_story_was_told(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.prepare()
    assert folder.ended() is None
    ended = Ended(repository="flights", objects_deleted=1, bytes_deleted=2, seconds=3.0)

    folder.write_ended(ended)
    folder.prepare()

    assert folder.ended() == ended


def test_the_data_is_a_year_of_days() -> None:
    days = read_flights()

    assert len(days) == 365
    assert sum(day.flights.num_rows for day in days) == 336_776
    assert (days[0].path, days[-1].path) == (
        "flights/year=2013/month=01/day=01/flights.parquet",
        "flights/year=2013/month=12/day=31/flights.parquet",
    )
    for day in (days[0], days[100]):
        assert set(day.flights["month"].to_pylist()) == {day.month}
        assert set(day.flights["day"].to_pylist()) == {day.day}


def test_the_changes_change_what_they_say() -> None:
    day = read_flights()[0]

    assert with_cancelled(day).flights["cancelled"].to_pylist().count(True) == 4
    assert 0 < only_late(day, over_minutes=30).flights.num_rows < only_late(day, over_minutes=15).flights.num_rows


def test_the_small_tables_are_not_empty() -> None:
    assert {path: table.num_rows > 10 for path, table in read_small_tables().items()} == {
        "airlines.parquet": True,
        "airports.parquet": True,
        "planes.parquet": True,
        "weather.parquet": True,
    }


def test_a_server_started_again_keeps_its_port(tmp_path: Path) -> None:
    server = LocalServer(data=tmp_path / "data", log=tmp_path / "log", port=0)
    try:
        server.start()
        first = server.endpoint
        server.stop()
        server.start()

        assert server.endpoint == first
    finally:
        server.stop()


def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "thesis.tex").touch()
    server = LocalServer(data=tmp_path / "data", log=tmp_path / "log", port=0)

    with pytest.raises(Unavailable, match="not a Lakebed data folder"):
        server.start()


def test_a_server_that_ends_is_noticed(tmp_path: Path) -> None:
    server = LocalServer(data=tmp_path / "data", log=tmp_path / "log", port=0)
    server.start()
    assert server.pid is not None
    os.kill(server.pid, signal.SIGKILL)

    with pytest.raises(Unavailable, match="-9"):
        server.wait()
    server.stop()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupt_leaves_no_process_behind(started: Run, number: int) -> None:
    started.wait_for("2. The flights")

    assert started.interrupt(number) == 130
    assert started.left_behind() == []


@pytest.mark.slow
@pytest.mark.spark
def test_an_interrupt_while_spark_starts_leaves_no_process_behind(started: Run) -> None:
    started.wait_for("5. Plan")
    while not any("java" in line for line in started.left_behind()):
        time.sleep(0.1)

    assert started.interrupt(signal.SIGINT) == 130
    assert started.left_behind() == []


@pytest.mark.slow
@pytest.mark.spark
def test_an_interrupt_while_spark_works_leaves_no_process_behind(started: Run) -> None:
    started.wait_for("What is never committed")

    assert started.interrupt(signal.SIGINT) == 130
    assert started.left_behind() == []


@pytest.mark.slow
@pytest.mark.spark
def test_the_whole_story_is_told_once_and_served_again(tmp_path: Path) -> None:
    first = Run(tmp_path / "quick", "--once")
    said, _ = first.process.communicate()

    assert first.process.returncode == 0, said
    assert "183 objects" in said
    assert "all read, all as they were written" in said
    assert "not one file of them is left" in said
    assert first.left_behind() == []

    again = Run(tmp_path / "quick")
    again.wait_for("The story ended")
    again.wait_for("until Ctrl-C")
    listed = subprocess.run(
        [sys.executable, "-m", "lakebed", "branch", "list", "lakefs://flights", "-o", "json"],
        env={**os.environ, "LAKEBED_CONFIG": str(tmp_path / "quick" / "config.toml")},
        capture_output=True,
        check=True,
    )
    assert [branch["id"] for branch in json.loads(listed.stdout)] == ["draft", "late-flights", "main"]
    assert again.interrupt(signal.SIGINT) == 0
    assert again.left_behind() == []
