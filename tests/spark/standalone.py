"""A standalone cluster of Spark on this machine: a master and workers of one core each, all of it on 127.0.0.1.

The workers' Python has what tasks need installed, and not our package: that they must get with the application.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import signal
import subprocess
import sys
import time
import venv
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pyspark

from bench.http import children
from lakebed.gc import NEEDED, find_java
from lakebed.gc.engines.java import shim_home

SPARK = Path(pyspark.__file__).parent
POLL_S = 0.05
PATIENCE_S = 600
"""What takes longer on the slowest machine never comes."""
LOG4J = """
rootLogger.level = info
rootLogger.appenderRef.stderr.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %c{1}: %m%n%ex
"""
SMALL = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", "-Xmx256m")


@dataclass(frozen=True, kw_only=True)
class Worker:
    """A worker: one core, and the executors that it starts as its children."""

    process: subprocess.Popen[bytes]
    log: Path

    def executors(self) -> dict[int, int]:
        """The pid of each executor that runs here, by the executor's number."""
        found = {}
        for pid in children(self.process.pid):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it ended
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                if b"--executor-id" in words:
                    found[int(words[words.index(b"--executor-id") + 1])] = pid
        return found


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """`start_worker` starts one more."""

    url: str
    workers: list[Worker]
    python: Path
    environ: dict[str, str]
    start_worker: Callable[[], Worker]

    def kill_an_executor(self) -> None:
        worker = self.workers[0]
        (victim,) = worker.executors().values()
        os.kill(victim, signal.SIGKILL)
        wait_until(lambda: victim not in worker.executors().values(), worker.log)

    def replace_worker(self, number: int) -> None:
        """Kill a worker as a power cut would, wait until its executors have ended, too, and start another."""
        lost = self.workers[number]
        executors = lost.executors().values()
        end(lost.process, signal.SIGKILL)
        wait_until(lambda: not any(map(is_running, executors)), lost.log)
        self.workers[number] = self.start_worker()

    def settings(self) -> dict[str, str]:
        """What an application says to use this cluster, as settings of Spark."""
        return {
            "spark.master": self.url,
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.extraJavaOptions": " ".join(SMALL[:-1]),
            "spark.driver.host": "127.0.0.1",
            "spark.executor.cores": "1",
            "spark.executor.extraJavaOptions": " ".join(SMALL[:-1]),
            "spark.executor.memory": "512m",
            "spark.pyspark.driver.python": sys.executable,
            "spark.pyspark.python": str(self.python),
            "spark.sql.shuffle.partitions": "2",
            "spark.ui.enabled": "false",
        }


@contextlib.contextmanager
def standalone(folder: Path, *, workers: int, packages: Sequence[str] = NEEDED) -> Iterator[Cluster]:
    """Start a cluster whose workers have these packages, and end all of its processes with the block. Ports are the
    system's choice."""
    java = shim_home(find_java({}, bundled_only=True), folder / "java")
    python = python_without_our_package(folder / "python", packages)
    (folder / "log4j2.properties").write_text(LOG4J)
    environ = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "LAKEBED_"))},
        "JAVA_HOME": str(java),
        "SPARK_HOME": str(SPARK),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_SCALA_VERSION": scala_version(),
    }
    java_command = [str(java / "bin" / "java"), *SMALL, f"-Dlog4j2.configurationFile=file:{folder}/log4j2.properties"]
    deploy = [*java_command, "-Dspark.master.rest.enabled=false", "-cp", f"{SPARK}/jars/*"]
    listening = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]

    with contextlib.ExitStack() as ending:
        # Ended behind the executors, also those that are started later.
        processes = ending.enter_context(contextlib.ExitStack())

        def started(name: str, *command: str) -> tuple[subprocess.Popen[bytes], Path]:
            log = folder / f"{name}.log"
            with log.open("wb") as output:
                process = subprocess.Popen(
                    [*deploy, *command], env=environ, cwd=folder, stdin=subprocess.DEVNULL, stdout=output, stderr=output
                )
            processes.callback(end, process, signal.SIGTERM)
            return process, log

        master, log = started("master", "org.apache.spark.deploy.master.Master", *listening)
        url = line_of(master, log, r"Starting Spark master at (spark://127\.0\.0\.1:\d+)")
        numbers = itertools.count()

        def starting() -> tuple[subprocess.Popen[bytes], Path]:
            name = f"worker-{next(numbers)}"
            place = ["--cores", "1", "--memory", "600m", "--work-dir", str(folder / name), url]
            return started(name, "org.apache.spark.deploy.worker.Worker", *listening, *place)

        def registered(process: subprocess.Popen[bytes], log: Path) -> Worker:
            line_of(process, log, r"(Successfully registered with master)")
            return Worker(process=process, log=log)

        running = [registered(*one) for one in [starting() for _ in range(workers)]]
        ending.callback(end_executors, running)
        yield Cluster(
            url=url,
            workers=running,
            python=python,
            environ=environ,
            start_worker=lambda: registered(*starting()),
        )


def scala_version() -> str:
    """What Spark's scripts find out, and a worker that was started without them does not."""
    (core,) = SPARK.glob("jars/spark-core_*.jar")
    return core.name.partition("_")[2].partition("-")[0]


def python_without_our_package(folder: Path, packages: Sequence[str] = NEEDED) -> Path:
    """An environment that has these packages and what they bring, by links to what is installed here."""
    venv.create(folder, with_pip=False, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    for name in packages:
        tops = {file.parts[0] for file in distribution(name).files or () if file.parts[0] != ".."}
        for top in tops:
            (site / top).symlink_to(Path(str(distribution(name).locate_file(top))))
    return folder / "bin" / "python"


def line_of(process: subprocess.Popen[Any], log: Path, pattern: str) -> str:
    """Wait for a line of the log, and return the group of the pattern."""

    def found() -> re.Match[str] | None:
        return re.search(pattern, log.read_text(errors="replace"))

    wait_until(lambda: process.poll() is not None or found() is not None, log)
    line = found()
    assert line is not None, log.read_text(errors="replace")
    return line[1]


def wait_until(has_come: Callable[[], bool], log: Path) -> None:
    """Fail with what the log says where it does not come."""
    deadline = time.monotonic() + PATIENCE_S
    while not has_come():
        assert time.monotonic() < deadline, f"nothing for {PATIENCE_S} s:\n{log.read_text(errors='replace')}"
        time.sleep(POLL_S)


def end_executors(workers: list[Worker]) -> None:
    for worker in workers:
        for pid in worker.executors().values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def is_running(pid: int) -> bool:
    """Return whether the process has not ended. Of one whose parent has not asked yet, only the number is left."""
    try:
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes())
    except (FileNotFoundError, ProcessLookupError):
        return False


def end(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    process.send_signal(number)
    process.wait()
