"""Metrics of one server process for Prometheus: counters while it serves, and the text of `/metrics`.

The workers of one server share a port, and Prometheus may reach any of them. Each writes its figures to a folder of
the parent every SHARE_S. The worker that answers adds the figures of the others. A label names the process, so that a
rate over the sum is right although processes end and start.
"""

from __future__ import annotations

import asyncio
import os
import resource
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import accumulate
from pathlib import Path
from time import perf_counter
from typing import Final, TypeVar

import msgspec

from lakebed.base import Conflict, LakebedError
from lakebed.kv import Held, Page, Predicate, Store

T = TypeVar("T")

SHARE_S: Final = 2.0
BUCKETS_S: Final = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

FAMILIES: Final[dict[str, tuple[str, str]]] = {
    "lakebed_requests_total": ("counter", "Requests answered, by operation and status."),
    "lakebed_request_seconds": ("histogram", "Time from a request's head to the end of its answer, by operation."),
    "lakebed_requests_in_progress": ("gauge", "Requests that are being answered."),
    "lakebed_kv_seconds": ("histogram", "Time of one operation of the key-value store."),
    "lakebed_kv_failures_total": ("counter", "Operations of the key-value store that failed, or lost a race."),
    "lakebed_commit_queue": ("gauge", "Commits and merges that wait for their branch's turn."),
    "lakebed_draining": ("gauge", "1 while the process ends."),
    "lakebed_audit_failures_total": ("counter", "Lines of the audit log that could not be written."),
    "lakebed_upkeep_done_seconds": ("gauge", "When a step of the upkeep last ended well, in Unix time."),
    "lakebed_upkeep_failures_total": ("counter", "How often a step of the upkeep failed."),
    "process_cpu_seconds_total": ("counter", "CPU time, user and system."),
    "process_resident_memory_bytes": ("gauge", "Resident memory."),
    "process_start_time_seconds": ("gauge", "When the process started, in Unix time."),
    "lakebed_repositories": ("gauge", "Repositories of the installation."),
    "lakebed_staged_objects": ("gauge", "Staged changes of a repository's branches that no commit has."),
    "lakebed_staged_bytes": ("gauge", "Size of the staged objects."),
    "lakebed_runs": ("gauge", "Collection runs by kind and state."),
    "lakebed_reclaimed_bytes_total": ("counter", "Bytes that collections deleted, by the reports of ended runs."),
    "lakebed_retention_lag_seconds": ("gauge", "Age of the newest collection that ended, by kind."),
    "lakebed_hard_deleted_objects_total": ("counter", "Replaced objects that this process deleted at once."),
    "lakebed_hard_deleted_bytes_total": ("counter", "Their size."),
    "lakebed_hard_delete_failures_total": ("counter", "Replaced objects that could not be deleted, by reason."),
    "lakebed_hard_delete_queued": ("gauge", "Replaced objects that wait to be deleted at once."),
    "lakebed_hard_delete_oldest_seconds": ("gauge", "How long the oldest of them waits."),
    "lakebed_aside_total": ("counter", "Pieces of large work given to the process for it, by outcome."),
    "lakebed_swept_branches_total": ("counter", "Branches of sweeps that this process was asked for, by outcome."),
    "lakebed_job_lag_seconds": ("gauge", "Age of the newest job that is done, by what it was asked."),
    "lakebed_survey_age_seconds": ("gauge", "Age of the figures of repositories: they are counted now and then."),
    "lakebed_survey_complete": ("gauge", "0 where there was more than one survey counts."),
}


class Sample(msgspec.Struct, frozen=True, array_like=True):
    """One line of the text. `family` is a key of FAMILIES; `suffix` belongs to histograms."""

    family: str
    suffix: str
    labels: tuple[tuple[str, str], ...]
    value: float


class Timings:
    """A histogram of seconds."""

    __slots__ = ("counts", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS_S) + 1)
        self.sum_s = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(BUCKETS_S, seconds)] += 1
        self.sum_s += seconds

    def add_all(self, other: Timings) -> None:
        self.counts = [mine + its for mine, its in zip(self.counts, other.counts, strict=True)]
        self.sum_s += other.sum_s

    def samples(self, family: str, *labels: tuple[str, str]) -> Iterable[Sample]:
        totals = list(accumulate(self.counts))
        for bound, total in zip((*map(str, BUCKETS_S), "+Inf"), totals, strict=True):
            yield Sample(family, "_bucket", (*labels, ("le", bound)), total)
        yield Sample(family, "_sum", labels, self.sum_s)
        yield Sample(family, "_count", labels, totals[-1])


class Metrics:
    """Count the work of one process."""

    def __init__(self) -> None:
        self.requests: dict[tuple[str, int], Timings] = {}
        self.in_progress = 0
        self.kv_seconds: dict[str, Timings] = {}
        self.kv_failures: Counter[tuple[str, str]] = Counter()
        self.swept_branches: Counter[str] = Counter()
        self.aside: Counter[str] = Counter()
        self.upkeep_done_s: dict[str, float] = {}
        self.upkeep_failures: Counter[str] = Counter()
        self.gauges: dict[str, Callable[[], float]] = {}
        """Functions that return the current value, called when the metrics are read."""
        self.sources: list[Callable[[], Iterable[Sample]]] = []
        """Functions that return samples with labels, called when the metrics are read."""
        self._started_s = time.time()
        self._folder: Path | None = None

    def count_request(self, operation: str, status: int, seconds: float) -> None:
        timings = self.requests.get((operation, status))
        if timings is None:
            timings = self.requests[operation, status] = Timings()
        timings.add(seconds)

    def samples(self) -> list[Sample]:
        found: list[Sample] = []
        of_operations: dict[str, Timings] = {}
        for (operation, status), timings in self.requests.items():
            labels = (("operation", operation), ("status", str(status)))
            found.append(Sample("lakebed_requests_total", "", labels, sum(timings.counts)))
            of_operations.setdefault(operation, Timings()).add_all(timings)
        for operation, timings in of_operations.items():
            found += timings.samples("lakebed_request_seconds", ("operation", operation))
        for name, timings in self.kv_seconds.items():
            found += timings.samples("lakebed_kv_seconds", ("operation", name))
        for (name, reason), count in self.kv_failures.items():
            found.append(Sample("lakebed_kv_failures_total", "", (("operation", name), ("reason", reason)), count))
        for outcome, count in self.swept_branches.items():
            found.append(Sample("lakebed_swept_branches_total", "", (("outcome", outcome),), count))
        for outcome, count in self.aside.items():
            found.append(Sample("lakebed_aside_total", "", (("outcome", outcome),), count))
        for step, done_s in self.upkeep_done_s.items():
            found.append(Sample("lakebed_upkeep_done_seconds", "", (("step", step),), done_s))
        for step, count in self.upkeep_failures.items():
            found.append(Sample("lakebed_upkeep_failures_total", "", (("step", step),), count))
        for source in self.sources:
            found += source()
        usage = resource.getrusage(resource.RUSAGE_SELF)
        single = {
            "lakebed_requests_in_progress": self.in_progress,
            "process_cpu_seconds_total": usage.ru_utime + usage.ru_stime,
            "process_resident_memory_bytes": _resident_bytes(),
            "process_start_time_seconds": self._started_s,
            **{name: read() for name, read in self.gauges.items()},
        }
        return [*found, *(Sample(name, "", (), value) for name, value in single.items())]

    # Other workers

    async def share(self, folder: Path) -> None:
        """Write the figures to a file of this process, again and again, until cancelled."""
        self._folder = folder
        mine, draft = folder / str(os.getpid()), folder / f"{os.getpid()}.draft"
        while True:
            draft.write_bytes(msgspec.json.encode(self.samples()))
            draft.replace(mine)
            await asyncio.sleep(SHARE_S)

    def of_all_workers(self) -> list[Sample]:
        """Return the samples of this process and of each other live worker, with a label for the process."""
        found = _of_process(os.getpid(), self.samples())
        for file in sorted(self._folder.iterdir()) if self._folder is not None else []:
            if file.name.isdigit() and int(file.name) != os.getpid():
                if _is_alive(int(file.name)):
                    found += _of_process(int(file.name), msgspec.json.decode(file.read_bytes(), type=list[Sample]))
                else:
                    file.unlink(missing_ok=True)
        return found


def _of_process(pid: int, samples: Iterable[Sample]) -> list[Sample]:
    label = ("process", str(pid))
    return [Sample(each.family, each.suffix, (*each.labels, label), each.value) for each in samples]


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _resident_bytes() -> int:
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    except OSError:  # Linux alone has it.
        return 0


def as_text(samples: Iterable[Sample]) -> str:
    """Return the samples in the exposition format of Prometheus, families in the order of FAMILIES."""
    by_family: dict[str, list[Sample]] = {name: [] for name in FAMILIES}
    for sample in samples:
        by_family[sample.family].append(sample)
    lines: list[str] = []
    for name, found in by_family.items():
        if found:
            kind, meaning = FAMILIES[name]
            lines += [f"# HELP {name} {meaning}", f"# TYPE {name} {kind}"]
            lines += [_line(sample) for sample in found]
    return "\n".join(lines) + "\n"


def _line(sample: Sample) -> str:
    labels = ",".join([f'{name}="{_escaped(value)}"' for name, value in sample.labels])
    value = int(sample.value) if float(sample.value).is_integer() else sample.value
    return f"{sample.family}{sample.suffix}{'{' + labels + '}' if labels else ''} {value}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


class MeasuredStore:
    """A Store that counts and times each operation of another Store."""

    def __init__(self, store: Store, metrics: Metrics) -> None:
        self._store = store
        self.shares_reads = store.shares_reads
        self._failures = metrics.kv_failures
        self._timings = {name: Timings() for name in _OPERATIONS}
        self._gets, self._get_manys, self._set_ifs = (self._timings[name] for name in ("get", "get_many", "set_if"))
        metrics.kv_seconds = self._timings

    def _note(self, name: str, began_s: float, error: LakebedError | None = None) -> None:
        self._timings[name].add(perf_counter() - began_s)
        if error is not None:
            self._failures[name, "lost race" if isinstance(error, Conflict) else type(error).__name__] += 1

    async def _timed(self, name: str, work: Awaitable[T]) -> T:
        began_s = perf_counter()
        try:
            found = await work
        except LakebedError as error:
            self._note(name, began_s, error)
            raise
        self._note(name, began_s)
        return found

    async def get(self, partition: bytes, key: bytes) -> Held | None:
        # Inline the timing: each request calls this several times, and `_timed` would add a coroutine.
        began_s = perf_counter()
        try:
            found = await self._store.get(partition, key)
        except LakebedError as error:
            self._note("get", began_s, error)
            raise
        self._gets.add(perf_counter() - began_s)
        return found

    async def get_many(self, partition: bytes, keys: Sequence[bytes]) -> list[Held | None]:
        began_s = perf_counter()
        try:
            found = await self._store.get_many(partition, keys)
        except LakebedError as error:
            self._note("get_many", began_s, error)
            raise
        self._get_manys.add(perf_counter() - began_s)
        return found

    async def scan(self, partition: bytes, start: bytes, limit: int) -> Page:
        return await self._timed("scan", self._store.scan(partition, start, limit))

    async def set(self, partition: bytes, key: bytes, value: bytes) -> None:
        await self._timed("set", self._store.set(partition, key, value))

    async def set_many(self, partition: bytes, items: Sequence[tuple[bytes, bytes]]) -> None:
        await self._timed("set_many", self._store.set_many(partition, items))

    async def set_if(self, partition: bytes, key: bytes, value: bytes, predicate: Predicate | None) -> Predicate:
        began_s = perf_counter()
        try:
            found = await self._store.set_if(partition, key, value, predicate)
        except LakebedError as error:
            self._note("set_if", began_s, error)
            raise
        self._set_ifs.add(perf_counter() - began_s)
        return found

    async def delete(self, partition: bytes, key: bytes) -> None:
        await self._timed("delete", self._store.delete(partition, key))

    async def delete_many(self, partition: bytes, keys: Sequence[bytes]) -> None:
        await self._timed("delete_many", self._store.delete_many(partition, keys))

    async def delete_if(self, partition: bytes, key: bytes, predicate: Predicate) -> None:
        await self._timed("delete_if", self._store.delete_if(partition, key, predicate))

    async def close(self) -> None:
        await self._store.close()


_OPERATIONS: Final = ("get", "get_many", "scan", "set", "set_many", "set_if", "delete", "delete_many", "delete_if")
