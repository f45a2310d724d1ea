"""For operators: the audit log, and the state of the server and its processes."""

from __future__ import annotations

import asyncio
import logging
import platform
import shutil
from collections.abc import Iterable
from typing import Final, TypedDict

from lakebed.base import LakebedError
from lakebed.operations import operators
from lakebed.server.http.requests import RestRequest, page_of
from lakebed.server.http.routing import Resource, serves
from lakebed.server.operate.audit import AuditQuery, query_time
from lakebed.server.operate.health import Probe
from lakebed.server.operate.metrics import Sample
from lakebed.server.operate.survey import SURVEY_S, Reclaimed
from lakebed.server.state import AppState
from lakebed.wire import AuditRecordList, CollectedKind, ReclaimedWeek, ServerProcess, ServerStatus, UpkeepStep

logger = logging.getLogger(__name__)

WEEKS: Final = 12
WEEK_MS: Final = 7 * 86_400_000
REPOSITORIES_MAX: Final = 200


class Audit(Resource):
    @serves(operators.LIST_AUDIT_RECORDS)
    async def list(self, request: RestRequest) -> AuditRecordList:
        query = AuditQuery(
            since=query_time(request.query("since")),
            until=query_time(request.query("until")),
            user=request.query("user"),
            operation=request.query("operation"),
            repository=request.query("repository"),
            is_denied=request.flag("denied"),
        )
        found, following = await asyncio.to_thread(
            self._state.audit.read, query, after=request.query("after"), limit=request.amount()
        )
        return AuditRecordList(pagination=page_of(found, has_more=bool(following), last=following), results=found)


class Status(Resource):
    def __init__(self, state: AppState) -> None:
        super().__init__(state)
        self._probe = Probe(state)
        self._collected = Collected(state)

    @serves(operators.GET_SERVER_STATUS)
    async def get(self, _: RestRequest) -> ServerStatus:
        readiness = await self._probe.look()
        try:
            disk = shutil.disk_usage(self._state.data_dir)
            disk_bytes, free_bytes = disk.total, disk.free
        except OSError:  # `checks` reports it.
            disk_bytes = free_bytes = 0
        by_process: dict[str, list[Sample]] = {}
        for sample in self._state.metrics.of_all_workers():
            by_process.setdefault(sample.labels[-1][1], []).append(sample)
        return ServerStatus(
            ready=readiness.ready,
            checks=readiness.checks,
            version=self._state.version,
            python=platform.python_version(),
            database=self._state.database,
            object_store=self._state.storage.blockstore_type,
            disk_bytes=disk_bytes,
            disk_free_bytes=free_bytes,
            audit_failures=round(sum(_values(by_process, "lakebed_audit_failures_total"))),
            processes=[_process(int(process), samples) for process, samples in sorted(by_process.items())],
            **await self._collected.look(),
        )


class Collected:
    """Ended collections of the first repositories, read at most once a minute."""

    def __init__(self, state: AppState) -> None:
        self._state = state
        self._reclaimed = Reclaimed()
        self._found: _Found = {"collections": [], "weeks": []}
        self._read_s = float("-inf")

    async def look(self) -> _Found:
        now_s = asyncio.get_running_loop().time()
        if now_s - self._read_s > SURVEY_S:
            self._read_s = now_s
            try:
                self._found = await self._read()
            except LakebedError as error:  # `checks` reports it
                logger.warning("status: the collections could not be read: %s", error)
        return self._found

    async def _read(self) -> _Found:
        now_ms = self._state.ports.clock.now_ms()
        weeks = [0] * WEEKS
        kinds: list[CollectedKind] = []
        read = 0
        async for repository in self._state.catalog.each():
            if read == REPOSITORIES_MAX:
                break
            read += 1
            await self._reclaimed.read(repository)
            for kind, by_run in self._reclaimed.by_kind(repository):
                newest_ms = max(one.started_ms for one in by_run.values())
                kinds.append(
                    CollectedKind(
                        repository=str(repository.id),
                        kind=kind.value,
                        lag_seconds=max(0, now_ms - newest_ms) // 1000,
                        reclaimed_bytes=sum(one.size_bytes for one in by_run.values()),
                    )
                )
                for one in by_run.values():
                    if 0 <= (ago := max(0, now_ms - one.started_ms) // WEEK_MS) < WEEKS:
                        weeks[ago] += one.size_bytes
        return {
            "collections": sorted(kinds, key=lambda one: (one.repository, one.kind)),
            "weeks": [
                ReclaimedWeek(start=(now_ms - (ago + 1) * WEEK_MS) // 1000, reclaimed_bytes=weeks[ago])
                for ago in reversed(range(WEEKS))
            ],
        }


class _Found(TypedDict):
    collections: list[CollectedKind]
    weeks: list[ReclaimedWeek]


def _values(by_process: dict[str, list[Sample]], family: str) -> Iterable[float]:
    return (sample.value for samples in by_process.values() for sample in samples if sample.family == family)


def _process(process: int, samples: list[Sample]) -> ServerProcess:
    sums: dict[str, float] = {}
    done: dict[str, int] = {}
    failures: dict[str, int] = {}
    for sample in samples:
        sums[sample.family] = sums.get(sample.family, 0.0) + sample.value
        if sample.family == "lakebed_upkeep_done_seconds":
            done[sample.labels[0][1]] = int(sample.value)
        elif sample.family == "lakebed_upkeep_failures_total":
            failures[sample.labels[0][1]] = int(sample.value)
    return ServerProcess(
        process=process,
        started=int(sums["process_start_time_seconds"]),
        cpu_seconds=round(sums["process_cpu_seconds_total"], 2),
        memory_bytes=int(sums["process_resident_memory_bytes"]),
        requests=int(sums.get("lakebed_requests_total", 0)),
        in_progress=int(sums["lakebed_requests_in_progress"]),
        draining=bool(sums.get("lakebed_draining", 0)),
        upkeep=[
            UpkeepStep(name=name, done=done.get(name, 0), failures=failures.get(name, 0))
            for name in sorted(done.keys() | failures.keys())
        ],
    )
