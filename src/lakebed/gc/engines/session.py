"""Start Lakebed's own Spark session, on a machine that may have neither Spark nor Java installed.

On a cluster pass its session to `lakebed.gc.plan` instead. Elsewhere `local_session` starts Spark on this machine, and
stops it without leftovers:

- every socket (driver, block manager, Python workers) listens on 127.0.0.1 only, and there is no web UI;
- times are UTC, workers run this Python, and data reaches them as Arrow;
- Spark writes its files (spark-warehouse, metastore_db, derby.log, artifacts) into a temporary folder, which is deleted
  with the session; the JVM has ended when the block ends; it logs errors only.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from lakebed.base import Invalid, NotFound, Unavailable
from lakebed.gc.messages import EngineName, is_spark_installed

from .java import Java, find_java, shim_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOG4J = """
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = spark: %p %c{1}: %m%n%ex
"""


NO_SPARK = "Spark is not installed: pip install 'lakebed[spark]', or use --engine local"


HIDDEN: Final = (
    "LAKEBED_TOKEN",
    "LAKEBED_SECRET_ACCESS_KEY",
    "LAKEBED_S3_SECRET_ACCESS_KEY",
    "LAKEBED_S3_SESSION_TOKEN",
)
"""Neither Spark's JVM nor its workers get these variables. Only this process calls the server, and tasks bring
their own credentials of the object store."""


class SessionRunning(Invalid):
    """This process already has a Spark session. A second one would share its settings and its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionOptions:
    """`cores` 0 uses all. `memory_mb` bounds the JVM's heap, without the memory of Python workers."""

    cores: int = 0
    memory_mb: int = 1024
    shuffle_partitions: int = 8
    bundled_java: bool = False

    @property
    def tasks(self) -> int:
        """Return the number of tasks on this machine: two a core."""
        # Two keep all cores busy to the end. Each further task costs a worker a tenth of a second (bench/README.md,
        # `mark`).
        return 2 * (self.cores or os.cpu_count() or 1)


def session_options(environ: Mapping[str, str]) -> SessionOptions:
    """Read LAKEBED_GC_JAVA (`bundled` ignores the machine's Java), LAKEBED_GC_CORES and LAKEBED_GC_MEMORY_MB.

    Raises:
        Invalid: an invalid value.
    """
    java = environ.get("LAKEBED_GC_JAVA", "")
    if java not in {"", "machine", "bundled"}:
        raise Invalid(f"LAKEBED_GC_JAVA is {java!r}: machine or bundled", name="LAKEBED_GC_JAVA")
    default = SessionOptions()
    return SessionOptions(
        cores=_number(environ, "LAKEBED_GC_CORES", default.cores, least=1),
        memory_mb=_number(environ, "LAKEBED_GC_MEMORY_MB", default.memory_mb, least=512),
        bundled_java=java == "bundled",
    )


def _number(environ: Mapping[str, str], name: str, default: int, *, least: int) -> int:
    text = environ.get(name, "")
    if not text:
        return default
    if not text.isascii() or not text.isdigit() or int(text) < least:
        raise Invalid(f"{name} is {text!r}: must be a number, at least {least}", name=name)
    return int(text)


class NoSpark(NotFound):
    """Spark is not installed."""


def check_spark(environ: Mapping[str, str], engine: EngineName) -> None:
    """Check that a session could start here, without starting one. Only checks for the engine `spark`.

    Raises:
        NoSpark, NotFound: the message names the package to install.
    """
    if engine is not EngineName.SPARK:
        return
    if not is_spark_installed():
        raise NoSpark(NO_SPARK)
    find_java(environ, bundled_only=session_options(environ).bundled_java)


@contextlib.contextmanager
def session_on_demand(
    start: Callable[[], contextlib.AbstractContextManager[SparkSession]],
) -> Iterator[Callable[[], SparkSession]]:
    """Yield a function whose first call starts the session. The session ends with the block."""
    with contextlib.ExitStack() as running:
        yield functools.cache(lambda: running.enter_context(start()))


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSession:
    spark: SparkSession
    java: Java
    start_s: float
    """Seconds that the start took, by the wall clock."""


@contextlib.contextmanager
def local_session(options: SessionOptions, environ: Mapping[str, str]) -> Iterator[LocalSession]:
    """Start a session on this machine. Its JVM and files end with the block, also after an error.

    During the start, this process has its own JAVA_HOME and PYSPARK_PYTHON, which Spark reads, and none of HIDDEN.
    Afterwards all variables are as before.

    Raises:
        NoSpark: Spark is not installed.
        NotFound: no Java runs it.
        Unavailable: the JVM did not start.
        SessionRunning: this process has a session.
    """
    if not is_spark_installed():
        raise NoSpark(NO_SPARK)
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    if SparkContext._active_spark_context is not None:  # noqa: SLF001 - the public question would start one
        raise SessionRunning("this process has a Spark session already: pass it on instead of starting another")
    java = find_java(environ, bundled_only=options.bundled_java)
    with (
        tempfile.TemporaryDirectory(prefix="lakebed-spark-", ignore_cleanup_errors=True) as folder,
        _quiet_gateway(),
        contextlib.ExitStack() as stopping,
    ):
        started = time.perf_counter()
        place = Path(folder)
        variables = {"JAVA_HOME": str(shim_home(java, place / "java")), "PYSPARK_PYTHON": sys.executable}
        with _killed_by_signals() as processes, _variables({**variables, **dict.fromkeys(HIDDEN)}):
            gateway = _launch(_settings(options, place), place / "spark.log", processes)
            with _own_handler():
                context = SparkContext(gateway=gateway)
            spark = SparkSession(context)
            stopping.callback(_stop, spark, gateway)
        yield LocalSession(spark=spark, java=java, start_s=time.perf_counter() - started)


def _settings(options: SessionOptions, folder: Path) -> dict[str, str]:
    log4j = folder / "log4j2.properties"
    log4j.write_text(_LOG4J)
    java_options = (
        f"-Dlog4j2.configurationFile=file:{log4j} -Djava.io.tmpdir={folder} -Dderby.system.home={folder}"
        " -Djava.net.preferIPv4Stack=true -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:-UsePerfData"
    )
    return {
        "spark.master": f"local[{options.cores or '*'}]",
        "spark.app.name": "lakebed gc",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": f"{options.memory_mb}m",
        "spark.driver.extraJavaOptions": java_options,
        "spark.local.dir": str(folder),
        "spark.python.daemon.module": "lakebed.gc.api.daemon",
        "spark.log.level": "ERROR",
        "spark.sql.artifact.copyFromLocalToFs.allowDestLocal": "false",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(options.shuffle_partitions),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.submit.deployMode": "client",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }


@contextlib.contextmanager
def _variables(values: Mapping[str, str | None]) -> Iterator[None]:
    """Set these variables inside; None removes one."""
    before = {name: os.environ.get(name) for name in values}
    _set_variables(values)
    try:
        yield
    finally:
        _set_variables(before)


def _set_variables(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _launch(settings: Mapping[str, str], log: Path, processes: _Processes) -> Any:
    """Start the JVM and return the gateway to it. Its output is written to `log`, and read if the start fails."""
    from pyspark import SparkConf, java_gateway
    from pyspark.errors import PySparkRuntimeError

    conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
    module: Any = java_gateway
    with log.open("wb") as output:
        before = module.Popen
        # The launcher hides its process until the JVM answers. A signal must be able to end it before that.
        module.Popen = processes.start
        try:
            return module.launch_gateway(conf, popen_kwargs={"stdout": output, "stderr": output})
        except PySparkRuntimeError as error:
            raise Unavailable(f"Spark's JVM did not start: {log.read_text(errors='replace')[-2000:]}") from error
        finally:
            module.Popen = before


class _Processes:
    """Hold the processes that a start of Spark began."""

    def __init__(self) -> None:
        self.handlers: dict[int, Any] = {}
        self._started: list[subprocess.Popen[bytes]] = []
        self._is_starting = False
        self._received = 0
        self.interruption: BaseException | None = None
        """The exception that a signal raised."""

    def start(self, *command: Any, **options: Any) -> subprocess.Popen[bytes]:
        self._is_starting = True
        process = subprocess.Popen(*command, **options)  # noqa: S603 - Spark's own launcher
        self._started.append(process)
        self._is_starting = False
        if self._received:
            self.receive(self._received, None)
        return process

    def receive(self, number: int, _frame: FrameType | None) -> None:
        """Kill the started process, then run the signal's former handler. `start` repeats an early call."""
        self._received = number
        if not self._is_starting:
            self.kill()
            signal.signal(number, self.handlers[number])
            try:
                signal.raise_signal(number)
            except BaseException as error:
                self.interruption = error
                raise

    def kill(self) -> None:
        for process in self._started:
            # The script that becomes the JVM runs a small JVM of its own for a while.
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
            pids = [int(pid) for pid in children.read_text().split()] if children.exists() else []
            process.kill()
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.wait()
        self._started.clear()


@contextlib.contextmanager
def _killed_by_signals() -> Iterator[_Processes]:
    """Let a signal inside kill the starting JVM, and interrupt at once."""
    from pyspark import SparkContext

    processes = _Processes()
    is_main = threading.current_thread() is threading.main_thread()  # only the main thread receives signals
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if is_main else ()
    processes.handlers = {number: signal.signal(number, processes.receive) for number in numbers}
    try:
        yield processes
    except BaseException:
        # Kill it after any interruption: such a JVM never ends, but waits to report to a deleted file.
        processes.kill()
        SparkContext._gateway = None  # noqa: SLF001 - so that a later session starts a JVM of its own
        SparkContext._jvm = None  # noqa: SLF001 - the same
        if processes.interruption is not None:
            # A context that is interrupted during its start stops itself, and fails because its JVM is gone.
            raise processes.interruption from None
        raise
    finally:
        for number, handler in processes.handlers.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _own_handler() -> Iterator[None]:
    """Restore the handler of SIGINT that Spark replaces inside."""
    # Spark's handler calls the JVM in the middle of another call, and fails with long traces. Stopping the session ends
    # jobs, too.
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def _quiet_gateway() -> Iterator[None]:
    """Suppress Py4J's logs of interruptions, at the root logger and its own: the raised error is enough."""

    def from_elsewhere(record: logging.LogRecord) -> bool:
        return "py4j" not in Path(record.pathname).parts

    root, own = logging.getLogger(), logging.getLogger("py4j")
    propagates, own.propagate = own.propagate, False
    root.addFilter(from_elsewhere)
    try:
        yield
    finally:
        root.removeFilter(from_elsewhere)
        own.propagate = propagates


def _stop(spark: SparkSession, gateway: Any) -> None:
    """Stop Spark, then its JVM. `SparkSession.stop` alone leaves the JVM and its sockets until Python ends."""
    from pyspark import SparkContext

    with warnings.catch_warnings():
        # Spark warns if a call was interrupted. The JVM is ended below in any case.
        warnings.simplefilter("ignore", RuntimeWarning)
        spark.stop()
    gateway.shutdown()
    SparkContext._gateway = None  # noqa: SLF001 - so that a later session starts a JVM of its own
    SparkContext._jvm = None  # noqa: SLF001 - the same
    gateway.proc.stdin.close()  # the JVM ends when this pipe does
    gateway.proc.wait()
