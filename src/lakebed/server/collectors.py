"""Run the collectors that clients request from this server process (`lakebed.gc.messages`, jobs.py), a process each.

A collector calls this server with a token of the requesting user, so this module decides nothing. The token allows
the actions of the job on its repository, and only while the job runs. A collector uses the server's object store
settings, which it gets as environment variables. The first line of its standard input is the request. The pipe stays
open. When it closes, because the job is stopped or this process died, the collector ends as well. The collector writes
progress to stderr and results to stdout, a JSON record a line.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from lakebed.auth import Authenticator, Delegation, Identity, NotAuthenticated
from lakebed.base import LakebedError, RunKind
from lakebed.catalog import Catalog, DeletedNotFound, RepositoryNotFound
from lakebed.gc import messages
from lakebed.gc.live import JobBook

logger = logging.getLogger(__name__)

PROGRAM: Final = (sys.executable, "-m", "lakebed.gc")
JOB: Final = "job"
"""The action that reads its request from standard input."""
TOKEN_LIFETIME_S: Final = 24 * 3600
"""The longest life of a job's token. The token ends with its job. A longer job is refused, and fails."""
BEAT_S: Final = 2.0
STOP_S: Final = 7.0
"""Seconds for a collector and its child processes to end by themselves. Shorter than the server's own stop time."""
LAST_WORDS_S: Final = 1.0
"""Seconds to wait for the last output after a kill."""
LINE_CHARACTERS_MAX: Final = 500
RECORD_BYTES_MAX: Final = 64 << 20
_NAMES: Final = frozenset(
    {
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR", "TMP", "TEMP", "VIRTUAL_ENV"),
        *("JAVA_HOME", "JAVA_OPTS", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "LD_LIBRARY_PATH", "LD_PRELOAD"),
        *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE"),
        *("CURL_CA_BUNDLE", "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", "STORAGE_EMULATOR_HOST", "CONDA_PREFIX"),
    }
)
_PREFIXES: Final = (
    *("LC_", "XDG_", "PYTHON", "OMP_", "ARROW_", "MALLOC_"),
    *("SPARK_", "PYSPARK_", "HADOOP_", "YARN_", "HIVE_", "KRB5", "KUBERNETES_", "LAKEBED_GC_"),
    *("AWS_", "AZURE_", "GOOGLE_", "GCE_METADATA_", "CLOUDSDK_", "IDENTITY_", "MSI_"),
    *("LAKEBED_BLOCKS_", "LAKEBED_S3_", "LAKEBED_AZURE_", "LAKEBED_GS_"),
)
"""A collector gets the variables of these names, and those that begin so: of the system, of Spark, of the object store.

A list of secrets to leave out would miss each new one: passwords of databases and of brokers have many names.
"""
_MORE_SETTING: Final = "LAKEBED_GC_ENVIRONMENT"
"""The names of more variables, with commas between them."""
AWS_NAMES: Final = frozenset({"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"})


class NoSpark(LakebedError):
    """This server has no Spark for a collector."""


class _Printed(msgspec.Struct, frozen=True, kw_only=True):
    """The fields that a job keeps of the records that a collector prints: a plan has `totals`, the report of a run
    `objects_deleted`, that of a purge `objects_purged`, a sweep `branches`, a certificate `objects_absent`, a
    simulation `simulation`."""

    run_id: str = ""
    kind: RunKind | None = None
    totals: messages.Totals | None = None
    objects_deleted: int | None = None
    bytes_deleted: int = 0
    garbage_objects: int = 0
    garbage_bytes: int = 0
    deferred_until_ms: int | None = None
    objects_purged: int | None = None
    bytes_purged: int = 0
    objects_failed: int = 0
    branches: tuple[messages.SweptBranch, ...] | None = None
    objects_absent: int | None = None
    stands: int = 0
    simulation: messages.SimulatedSums | None = None


class Collectors:
    """Collectors get some of `environment`, the server's address and a token. `program` is for tests."""

    def __init__(
        self, environment: Mapping[str, str], authenticator: Authenticator, *, program: Sequence[str] = PROGRAM
    ) -> None:
        self._environment = collector_environment(environment)
        self._authenticator = authenticator
        self._program = program
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closing = asyncio.Event()

    async def start(
        self,
        book: JobBook,
        request: messages.Request,
        *,
        repository: str,
        deleted: str = "",
        endpoint: str,
        identity: Identity,
        address: str,
        actions: tuple[str, ...],
        on_branches: tuple[str, ...] = (),
    ) -> messages.JobView:
        """Begin a job, which continues after this call. Its token allows these actions as far as its user may do them:
        those `on_branches` on each branch, the others on the repository.

        `deleted`: the uid of the repository if it is deleted.

        Raises:
            InvalidRequest, InvalidRunId, InvalidDuration, InvalidRules, BadWindow: see `check` of the request.
            NoSpark: the job needs Spark, and this server has none.
            JobRunning: a job is running in this repository.
            UserNotFound: the user was deleted meanwhile.
        """
        request.check()
        command = [*self._program, JOB, f"lakefs://{repository}", *(["--uid", deleted] if deleted else [])]
        engine = request.engine or messages.engine_from(self._environment)
        if self._program is PROGRAM and engine is messages.EngineName.SPARK and not messages.is_spark_installed():
            raise NoSpark("this server has no Spark: install lakebed[spark] there, or ask for the engine local")
        job = await book.begin(request, by=identity.user_id)
        try:
            token = await self._authenticator.issue_job_token(
                identity,
                Delegation(
                    job=job.id,
                    repository=repository,
                    deleted=deleted,
                    actions=actions,
                    on_branches=on_branches,
                    address=address,
                ),
                lifetime_s=TOKEN_LIFETIME_S,
            )
        except LakebedError as error:
            await book.finish(replace(job, state=messages.JobState.FAILED, error=str(error)))
            raise
        environment = {**self._environment, "LAKEBED_ENDPOINT": endpoint, "LAKEBED_TOKEN": token}
        task = asyncio.create_task(_Job(book, job, self._is_closing).run(command, environment))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return job

    async def close(self) -> None:
        """Stop all running jobs. They are recorded as failed."""
        self._is_closing.set()
        await asyncio.gather(*self._tasks)


def collector_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a collector needs. It opens no database and no broker, and gets no password of one."""
    # With our own variables set, the AWS variables would pass the store's credentials a second time.
    twice = AWS_NAMES if "LAKEBED_S3_SECRET_ACCESS_KEY" in environment else frozenset()
    more = {name.strip() for name in environment.get(_MORE_SETTING, "").split(",")}
    return {
        name: value
        for name, value in environment.items()
        if name in more or ((name.upper() in _NAMES or name.startswith(_PREFIXES)) and name not in twice)
    }


async def check_runs(catalog: Catalog, delegation: Delegation) -> None:
    """Check that the job of a delegated login still runs.

    Raises:
        NotAuthenticated: the job ended, or its server was silent for too long, so its token is no longer valid.
    """
    try:
        if delegation.deleted:
            versions = (await catalog.open_deleted(delegation.repository, delegation.deleted))[1]
        else:
            versions = (await catalog.get(delegation.repository)).versions
    except (RepositoryNotFound, DeletedNotFound) as error:
        raise NotAuthenticated("the job's repository is gone") from error
    if not await JobBook(versions).is_running(delegation.job):
        raise NotAuthenticated("the job has ended")


class _Job:
    """One collector process, from its start to its end."""

    def __init__(self, book: JobBook, job: messages.JobView, is_closing: asyncio.Event) -> None:
        self._book = book
        self._job = job
        self._is_closing = is_closing
        self._lines: deque[str] = deque(maxlen=messages.LINES_MAX)
        self._results: list[messages.JobResult] = []

    async def run(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        state, error = messages.JobState.FAILED, ""
        try:
            state, error = await self._collect(command, environment)
        except Exception as failure:  # whatever goes wrong, the next job must find room
            logger.exception("job %s failed", self._job.id)
            error = f"the server could not run it: {failure}"
        try:
            await self._book.finish(replace(self._seen(), state=state, error=error))
        except LakebedError as failure:
            logger.warning("the end of job %s is not recorded, it will count as lost: %s", self._job.id, failure)

    async def _collect(self, command: Sequence[str], environment: Mapping[str, str]) -> tuple[messages.JobState, str]:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            env=dict(environment),
            start_new_session=True,  # Ctrl-C is for the server, which stops its collectors in order.
            limit=RECORD_BYTES_MAX,
        )
        assert process.stdin is not None, "it is a pipe"
        process.stdin.write(msgspec.json.encode(self._job.request) + b"\n")
        heard = asyncio.create_task(self._listen(process))
        stopped = ""
        try:
            # A child process of the collector may keep the pipes open long after the collector ended.
            while not stopped and process.returncode is None and not heard.done():
                await asyncio.wait({heard}, timeout=BEAT_S)
                if self._is_closing.is_set():
                    stopped = "the server was stopped"
                elif not await self._may_go_on():
                    stopped = "a user asked it to stop"
            await _end(process, heard)
        finally:
            _kill(process)
            heard.cancel()
            # Close our ends: a process that left the group may keep the pipes open without limit.
            process._transport.close()  # type: ignore[attr-defined]  # noqa: SLF001 - no other way to let go of them
        if heard.done():
            await heard  # Its error is raised here.
        code = -signal.SIGKILL if process.returncode is None else process.returncode
        if stopped and code:
            return (messages.JobState.FAILED if self._is_closing.is_set() else messages.JobState.STOPPED), stopped
        if code:
            return messages.JobState.FAILED, self._last_words() or f"the collector ended with code {code}"
        return messages.JobState.DONE, ""

    def _last_words(self) -> str:
        """Return the collector's error, or its last line."""
        errors = [line for line in self._lines if line.startswith("error: ")]
        return next(reversed(errors or self._lines), "")

    async def _listen(self, process: Process) -> int:
        assert process.stdout is not None, "it is a pipe"
        assert process.stderr is not None, "it is a pipe"
        await asyncio.gather(self._read_lines(process.stderr), self._read_results(process.stdout))
        return await process.wait()

    async def _read_lines(self, stream: asyncio.StreamReader) -> None:
        async for line in stream:
            self._lines.append(line.decode(errors="replace").rstrip("\n")[:LINE_CHARACTERS_MAX])

    async def _read_results(self, stream: asyncio.StreamReader) -> None:
        async for line in stream:
            try:
                result = _result(msgspec.json.decode(line, type=_Printed))
            except msgspec.DecodeError:
                result = None
            if result is None:
                self._lines.append(line.decode(errors="replace").rstrip("\n")[:LINE_CHARACTERS_MAX])
            else:
                self._results.append(result)

    async def _may_go_on(self) -> bool:
        try:
            return await self._book.beat(self._seen())
        except LakebedError as error:
            # The collector calls this server for everything. If the store stays unavailable, the collector fails by
            # itself.
            logger.warning("the progress of job %s is not recorded: %s", self._job.id, error)
            return True

    def _seen(self) -> messages.JobView:
        return replace(self._job, lines=tuple(self._lines), results=tuple(self._results))


async def _end(process: Process, heard: asyncio.Task[int]) -> None:
    """Wait for the end of the process, and kill it after STOP_S. Keep output that arrives in time."""
    assert process.stdin is not None, "it is a pipe"
    process.stdin.close()
    await asyncio.wait({heard}, timeout=STOP_S)
    _kill(process)
    await asyncio.wait({heard}, timeout=LAST_WORDS_S)


def _kill(process: Process) -> None:
    """Kill the collector's process group, even if the collector itself ended. Do nothing if the group is empty."""
    with contextlib.suppress(ProcessLookupError):
        if process.returncode is not None and _is_alive(process.pid):
            return  # The number belongs to another process now, and its group's number may as well.
        os.killpg(process.pid, signal.SIGKILL)


def _is_alive(pid: int) -> bool:
    try:
        os.getpgid(pid)
    except ProcessLookupError:
        return False
    return True


def _result(printed: _Printed) -> messages.JobResult | None:
    """Return the job result in this record, or None if it is no result."""
    failed = printed.objects_failed
    if printed.totals is not None:
        deed, objects, size_bytes = messages.JobDeed.PLANNED, printed.totals.all.objects, printed.totals.all.size_bytes
    elif printed.objects_deleted is not None:
        is_deferred = printed.deferred_until_ms is not None
        deed, objects = messages.JobDeed.APPLIED, printed.garbage_objects if is_deferred else printed.objects_deleted
        size_bytes = printed.garbage_bytes if is_deferred else printed.bytes_deleted
    elif printed.objects_purged is not None:
        deed, objects, size_bytes = messages.JobDeed.PURGED, printed.objects_purged, printed.bytes_purged
    elif printed.branches is not None:
        deed, objects, size_bytes = messages.JobDeed.SWEPT, sum(one.is_deleted for one in printed.branches), 0
        failed = sum(map(messages.is_open, printed.branches))
    elif printed.objects_absent is not None:
        deed, objects, size_bytes, failed = messages.JobDeed.CERTIFIED, printed.objects_absent, 0, printed.stands
    elif printed.simulation is not None:
        deed, total = messages.JobDeed.SIMULATED, printed.simulation.total
        objects, size_bytes = total.objects, total.size_bytes
    else:
        return None
    return messages.JobResult(
        deed=deed,
        run_id=printed.run_id,
        kind=printed.kind,
        objects=objects,
        size_bytes=size_bytes,
        objects_failed=failed,
        simulation=printed.simulation,
    )
