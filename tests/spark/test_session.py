"""The session itself: which Java, which sockets, and what is left behind."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from bench.http import family
from lakebed.gc import LocalSession, SessionOptions, SessionRunning, local_session
from lakebed.gc.engines.spark import TASKS_MIN, deals_in_turn, spread
from tests.kv.servers import is_alive


def test_every_socket_of_the_session_listens_on_this_machine_only(session: LocalSession) -> None:
    session.spark.range(1).count()

    listening = listening_addresses(family(os.getpid()))

    assert listening <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}
    assert listening


def test_neither_spark_nor_its_workers_inherit_a_token(session: LocalSession) -> None:
    session.spark.range(1).mapInArrow(lambda batches: batches, "id long").count()  # so that a worker runs

    inherited = {}
    for pid in family(os.getpid())[1:]:
        with contextlib.suppress(ProcessLookupError, FileNotFoundError):  # it ended
            inherited[pid] = Path(f"/proc/{pid}/environ").read_bytes()

    assert len(inherited) > 1  # the JVM
    assert any(b"PYTHON_WORKER_FACTORY_SECRET=" in one for one in inherited.values())  # and what its workers come from
    assert not [pid for pid, one in inherited.items() if b"LAKEBED_TOKEN=" in one]


def test_times_are_utc_and_nothing_else_is_running(session: LocalSession) -> None:
    conf = session.spark.conf

    assert conf.get("spark.sql.session.timeZone") == "UTC"
    assert conf.get("spark.ui.enabled") == "false"


@pytest.mark.parametrize(("given", "tasks"), [(None, TASKS_MIN), (3, 3), (1_000, 100)])
def test_work_is_dealt_by_the_cores_of_the_session_unless_a_number_is_given(
    session: LocalSession, given: int | None, tasks: int
) -> None:
    rows = pa.table({"row": pa.array(range(100))})

    assert spread(session.spark, rows, tasks=given).rdd.getNumPartitions() == tasks


def test_rows_of_a_step_are_dealt_to_tasks_in_turn(session: LocalSession) -> None:
    rows = pa.table({"row": pa.array(range(25))})

    def counted(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"rows": pa.array([sum(batch.num_rows for batch in batches)])})

    dealt = spread(session.spark, rows, tasks=16).mapInArrow(counted, "rows long")

    assert [one.rows for one in dealt.collect()] == [2] * 9 + [1] * 7


@pytest.mark.parametrize(
    ("version", "in_turn"), [("4.0.2", False), ("4.1.0", True), ("4.10.0-amzn-1", True), ("5.0", True), ("dev", False)]
)
def test_a_spark_that_cannot_deal_in_turn_deals_by_chance(version: str, in_turn: bool) -> None:
    assert deals_in_turn(version) is in_turn


def test_a_second_session_in_one_process_is_refused(session: LocalSession) -> None:
    with pytest.raises(SessionRunning), local_session(SessionOptions(), os.environ):
        pass


INTERRUPTED = """
import os, signal, sys
from lakebed.gc import SessionOptions, local_session
try:
    with local_session(SessionOptions(cores=1), os.environ):
        signal.pause()  # a quick machine has started it before the interrupt comes
except KeyboardInterrupt:
    sys.exit(130)
"""


@pytest.mark.parametrize("delay_s", [0, 1, 4])
def test_an_interrupt_while_spark_starts_ends_it_at_once_without_a_word_of_spark(delay_s: float) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    while process.poll() is None and len(family(process.pid)) == 1:
        time.sleep(0.05)
    time.sleep(delay_s)
    started = family(process.pid)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate()

    assert (process.returncode, out, err) == (130, "", "")
    while any(is_alive(pid) for pid in started):
        time.sleep(0.05)


INTERRUPTED_AND_FAILED = """
import os, signal, sys
from lakebed.gc.engines.session import _killed_by_signals
try:
    with _killed_by_signals():
        try:
            os.kill(os.getpid(), signal.SIGINT)
        finally:
            raise ConnectionRefusedError("a context that stops itself asks a JVM that is gone")
except KeyboardInterrupt as error:
    sys.exit(130 if error.__suppress_context__ else 1)
"""


def test_an_interrupt_stays_one_where_spark_fails_at_stopping_what_it_interrupted() -> None:
    done = subprocess.run([sys.executable, "-c", INTERRUPTED_AND_FAILED], check=False, capture_output=True, text=True)

    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


CLASSES = """
import os, pathlib
from lakebed.gc import local_session, session_options
with local_session(session_options(os.environ), os.environ):
    children = pathlib.Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    print(any(".classes" in pathlib.Path(f"/proc/{child}/maps").read_text() for child in children))
"""


@pytest.mark.slow
def test_a_session_begins_with_the_classes_that_an_earlier_one_left(tmp_path: Path) -> None:
    folder = tmp_path / "with a space"
    environment = os.environ | {"LAKEBED_GC_CLASSES": str(folder), "LAKEBED_GC_CORES": "1"}

    told = [
        subprocess.run(
            [sys.executable, "-c", CLASSES], env=environment, check=True, capture_output=True, text=True
        ).stdout
        for _ in range(2)
    ]

    assert told == ["False\n", "True\n"]
    assert len(list(folder.iterdir())) == 1


def listening_addresses(pids: Sequence[int]) -> set[str]:
    inodes = set()
    for pid in pids:
        for link in Path(f"/proc/{pid}/fd").glob("*"):
            try:
                target = str(link.readlink())
            except OSError:
                continue
            if target.startswith("socket:["):
                inodes.add(target[8:-1])
    found = set()
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                found.add(readable(fields[1].split(":")[0]))
    return found


def readable(text: str) -> str:
    """The kernel writes addresses as words in the machine's own byte order."""
    data = b"".join(bytes.fromhex(text[at : at + 8])[::-1] for at in range(0, len(text), 8))
    return (
        str(ipaddress.ip_address(data))
        if len(data) == 4 or not data.startswith(b"\0" * 10 + b"\xff\xff")
        else (f"::ffff:{ipaddress.ip_address(data[12:])}")
    )
