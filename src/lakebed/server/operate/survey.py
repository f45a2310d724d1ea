"""Metrics of the repositories: staged objects and results of collections. Counted on request, and rarely.

A survey reads every staged cell, so it is kept for SURVEY_S and stops counting cells at CELLS_MAX.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from lakebed.base import LakebedError, RunId, RunState, StagingToken, Unavailable
from lakebed.catalog import Repository
from lakebed.gc.live import JobBook, count_queue
from lakebed.gc.messages import JobState, RunKind, RunRequest, action_of, decode_report, report_path
from lakebed.kv import Page
from lakebed.objectstore import ObjectMissing
from lakebed.server.state import AppState
from lakebed.versions import RunRecord, decode_cells, is_gone, keys

from .metrics import Sample

logger = logging.getLogger(__name__)

SURVEY_S: Final = 60.0
WAIT_S: Final = 5.0
"""A request waits this long for a survey, and then answers with the previous one."""
CELLS_MAX: Final = 500_000
PAGE: Final = 1000
AT_ONCE: Final = 16
"""Parallel scans. Requests use the same database connections meanwhile."""


class Survey:
    """The newest survey of this process."""

    def __init__(self, state: AppState) -> None:
        self._state = state
        self._samples: list[Sample] = []
        self._made_s = float("-inf")
        self._under_way: asyncio.Task[None] | None = None
        self._reclaimed = Reclaimed()

    async def samples(self) -> list[Sample]:
        """Return the metrics, at most SURVEY_S and one survey old. Empty if the first survey takes longer than
        WAIT_S.
        """
        loop = asyncio.get_running_loop()
        if loop.time() - self._made_s > SURVEY_S and self._under_way is None:
            self._under_way = asyncio.create_task(self._make())
        if self._under_way is not None:
            await asyncio.wait({self._under_way}, timeout=WAIT_S)
        if not self._samples:
            return []
        return [*self._samples, Sample("lakebed_survey_age_seconds", "", (), round(loop.time() - self._made_s, 1))]

    async def _make(self) -> None:
        try:
            self._samples = await self._count()
            self._made_s = asyncio.get_running_loop().time()
        except LakebedError as error:
            logger.warning("metrics: the repositories could not be counted: %s", error)
        finally:
            self._under_way = None

    async def _count(self) -> list[Sample]:
        found: list[Sample] = []
        repositories, cells_left = 0, CELLS_MAX
        async for repository in self._state.catalog.each():
            repositories += 1
            objects, size_bytes = 0, 0
            if cells_left > 0:
                objects, size_bytes, cells = await _staged(repository, cells_left)
                cells_left -= cells
            name = ("repository", str(repository.id))
            found.append(Sample("lakebed_staged_objects", "", (name,), objects))
            found.append(Sample("lakebed_staged_bytes", "", (name,), size_bytes))
            found += await self._runs(repository, name)
            found += await self._hard_delete(repository, name)
            found += await self._jobs(repository, name)
        found.append(Sample("lakebed_repositories", "", (), repositories))
        found.append(Sample("lakebed_survey_complete", "", (), int(cells_left > 0)))
        return found

    async def _runs(self, repository: Repository, name: tuple[str, str]) -> list[Sample]:
        states: Counter[tuple[str, str]] = Counter()
        newest_ms: dict[str, int] = {}
        for _, run in await self._reclaimed.read(repository):
            kind = run.kind.value
            states[kind, run.state.value] += 1
            if run.state is RunState.ENDED:
                newest_ms[kind] = max(newest_ms.get(kind, 0), run.started_ms)
        now_ms = self._state.ports.clock.now_ms()
        samples = [
            Sample("lakebed_runs", "", (name, ("kind", kind), ("state", state)), count)
            for (kind, state), count in states.items()
        ]
        for ended_kind, started_ms in newest_ms.items():
            labels = (name, ("kind", ended_kind))
            samples.append(Sample("lakebed_retention_lag_seconds", "", labels, max(0, now_ms - started_ms) / 1000))
        for reclaimed_kind, by_run in self._reclaimed.by_kind(repository):
            size_bytes = sum(one.size_bytes for one in by_run.values())
            labels = (name, ("kind", reclaimed_kind.value))
            samples.append(Sample("lakebed_reclaimed_bytes_total", "", labels, size_bytes))
        return samples

    async def _jobs(self, repository: Repository, name: tuple[str, str]) -> list[Sample]:
        newest_ms: dict[tuple[str, str], int] = {}
        for job in await JobBook(repository.versions).list():
            if job.state is JobState.DONE:
                sweeps = isinstance(job.request, RunRequest) and job.request.branches
                asked = (action_of(job.request), "yes" if sweeps else "no")
                newest_ms[asked] = max(newest_ms.get(asked, 0), job.started_ms)
        now_ms = self._state.ports.clock.now_ms()
        return [
            Sample(
                "lakebed_job_lag_seconds",
                "",
                (name, ("action", action), ("branches", branches)),
                max(0, now_ms - started_ms) / 1000,
            )
            for (action, branches), started_ms in newest_ms.items()
        ]

    async def _hard_delete(self, repository: Repository, name: tuple[str, str]) -> list[Sample]:
        queued = await count_queue(repository.versions)
        waits_ms = max(0, self._state.ports.clock.now_ms() - queued.oldest_ms) if queued.objects else 0
        return [
            Sample("lakebed_hard_delete_queued", "", (name,), queued.objects),
            Sample("lakebed_hard_delete_oldest_seconds", "", (name,), waits_ms / 1000),
        ]


class EndedRun(NamedTuple):
    """A run that deleted. A deferred one ends with its purge."""

    started_ms: int
    size_bytes: int


class Reclaimed:
    """Bytes that each ended run deleted, even if its record was removed since: a counter never decreases.

    The report of an ended run does not change, so it is read once.
    """

    def __init__(self) -> None:
        self._runs: dict[tuple[str, RunKind], dict[RunId, EndedRun]] = {}

    async def read(self, repository: Repository) -> Sequence[tuple[RunId, RunRecord]]:
        """Read the reports that are new, and return the records of the runs."""
        runs = await repository.versions.retired.runs()
        for run_id, run in runs:
            by_run = self._runs.setdefault((repository.record.uid, RunKind(run.kind)), {})
            if run.state is RunState.ENDED and run_id not in by_run:
                path = report_path(RunKind(run.kind), run_id)
                try:
                    report = decode_report(await repository.objectstore.get(path), name=path)
                except ObjectMissing:
                    continue  # A run may end without a report: it was abandoned, or it had no work.
                except LakebedError as error:
                    # The numbers of other repositories must not stand still for it, nor those of later runs.
                    logger.warning("metrics: repository %s: %s", repository.id, error)
                    if isinstance(error, Unavailable):
                        break
                    continue
                by_run[run_id] = EndedRun(run.started_ms, report.bytes_deleted)
        return runs

    def by_kind(self, repository: Repository) -> Iterator[tuple[RunKind, Mapping[RunId, EndedRun]]]:
        for (uid, kind), by_run in self._runs.items():
            if uid == repository.record.uid and by_run:
                yield kind, by_run


async def _staged(repository: Repository, cells_max: int) -> tuple[int, int, int]:
    """Return the staged objects, their size, and the cells read: at most AT_ONCE pages more than `cells_max`.

    Most tokens are empty or have one page, so the first pages of AT_ONCE tokens are read together.
    """
    versions = repository.versions
    tokens = [token for _, branch in await versions.context.branches.every() for token in branch.tokens()]
    objects = size_bytes = cells = 0

    async def scan(token: StagingToken, start: bytes = b"") -> Page:
        return await versions.store.scan(keys.token_partition(versions.uid, token), start, PAGE)

    for first in range(0, len(tokens), AT_ONCE):
        wave = tokens[first : first + AT_ONCE]
        pages = deque(
            zip(wave, await versions.context.ports.tasks.gather([scan(token) for token in wave]), strict=True)
        )
        while pages:
            token, page = pages.popleft()
            sizes = [row[4] for flags, row in decode_cells(page.values) if not is_gone(flags)]
            objects += len(sizes)
            size_bytes += sum(sizes)
            cells += len(page.values)
            if page.next_start is not None and cells < cells_max:
                pages.appendleft((token, await scan(token, page.next_start)))
        if cells >= cells_max:
            break
    return objects, size_bytes, cells
