"""The session itself: which Java, which sockets, and what is left behind."""

from __future__ import annotations

import contextlib
import gc
import ipaddress
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from bench.http import family
from lakebed.gc import LocalSession, SessionOptions, SessionRunning, local_session
from lakebed.gc.engines import Effort, Task, spark
from lakebed.gc.engines.engine import Table, required
from lakebed.gc.engines.files import Lake
from lakebed.gc.engines.spark import TASKS_MIN, in_tasks, open_engine, spread
from lakebed.gc.messages import EngineName
from lakebed.objectstore import ObjectStoreOptions, open_objectstore
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


NUMBERS = Table("numbers", required(("number", pa.int64())))
SHARES = Table("a share and its numbers", required(("share", pa.int64()), ("numbers", pa.string())))


def numbered(share: int, numbers: Iterable[int]) -> dict[str, object]:
    return {"share": [share], "numbers": [" ".join(map(str, numbers))]}


@pytest.mark.parametrize(("given", "tasks"), [(None, TASKS_MIN), (3, 3), (1_000, 100)])
def test_work_is_dealt_by_the_cores_of_the_session_unless_a_number_is_given(
    session: LocalSession, given: int | None, tasks: int
) -> None:
    rows = NUMBERS.rows({"number": range(100)})
    dealt = spread(session.spark, rows, lambda _, share: iter(share.to_batches()), NUMBERS, tasks=given)

    assert dealt.rdd.getNumPartitions() == tasks
    assert sorted(one.number for one in dealt.collect()) == [*range(100)]


@pytest.mark.parametrize("padding", [1, 100_000])
def test_rows_of_a_step_are_dealt_to_tasks_in_turn(session: LocalSession, padding: int) -> None:
    """Also where they are so large that Spark sends them apart from the task."""
    rows = pa.table({"number": range(25), "padding": [bytes(padding)] * 25})

    def of_share(number: int, share: pa.Table) -> Iterator[pa.RecordBatch]:
        yield from SHARES.rows(numbered(number, share["number"].to_pylist())).to_batches()

    dealt = spread(session.spark, rows, of_share, SHARES, tasks=16)

    assert [(one.share, one.numbers) for one in dealt.collect()] == [
        (share, " ".join(map(str, range(share, 25, 16)))) for share in range(16)
    ]


@pytest.mark.parametrize(("limit", "most"), [("ROWS_A_JOB", 10), ("BYTES_A_JOB", 80)])
async def test_a_large_step_is_several_jobs_whose_shares_have_numbers_of_their_own(
    session: LocalSession, monkeypatch: pytest.MonkeyPatch, limit: str, most: int
) -> None:
    monkeypatch.setattr(spark, limit, most)  # 25 rows of 8 bytes
    engine = open_engine(
        EngineName.SPARK,
        Lake(uri="mem://many-rows", options=ObjectStoreOptions()),
        open_objectstore("mem://many-rows"),
        session=lambda: session.spark,
        tasks=4,
    )

    async def work(task: Task, share: pa.Table) -> AsyncIterator[pa.Table]:
        yield SHARES.rows(numbered(task.number, share["number"].to_pylist()))

    rows = NUMBERS.rows({"number": range(25)})
    found = await engine.run(work, rows, SHARES, effort=Effort(requests=1e6))

    assert sorted(int(number) for one in found["numbers"].to_pylist() for number in one.split()) == [*range(25)]
    assert sorted(found["share"].to_pylist()) == [0, 1, 2, 3, 10, 11, 12, 13, 20, 21, 22, 23]


def test_a_worker_searches_what_its_first_task_loaded_for_cycles_only_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark's daemon lets it search behind each task."""
    frozen: list[int] = []
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(1))
    spark._freeze_modules.cache_clear()

    async def work(_: Task, share: pa.Table) -> AsyncIterator[pa.Table]:
        yield share

    run = in_tasks(Lake(uri="mem://frozen", options=ObjectStoreOptions()), work, NUMBERS)
    for number in range(3):
        assert pa.Table.from_batches(run(number, NUMBERS.rows({"number": [number]})))["number"].to_pylist() == [number]

    assert frozen == [1]


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
