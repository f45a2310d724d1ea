"""Keep a record of each run, and the output of each of its hooks, in the repository's partition.

    hook-run/<run>              ActionRunRecord
    hook-output/<run>/<hook>    HookOutputRecord

Ids of runs sort by time, the newest first, which is the order of listings.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from lakebed.base import NotFound, newest_first
from lakebed.versions import Record, Versions

RUN: Final = b"hook-run/"
OUTPUT: Final = b"hook-output/"
KEPT_MS: Final = 90 * 24 * 3_600_000
"""Runs that are older are forgotten."""
RUNS_A_BATCH: Final = 100


class RunNotFound(NotFound):
    """There is no such run, or it has no such hook."""


class HookRunRecord(Record, frozen=True, kw_only=True, omit_defaults=True):
    """Record one hook that ran."""

    id: str
    action: str
    hook_id: str
    started_ms: int
    ended_ms: int
    failed: bool = False


class ActionRunRecord(Record, frozen=True, kw_only=True, omit_defaults=True):
    """Record the hooks of one event. `why` is the answer of a failed run."""

    event_type: str
    branch: str = ""
    tag: str = ""
    source_ref: str
    commit_id: str = ""
    committer: str = ""
    started_ms: int
    ended_ms: int
    failed: bool = False
    why: str = ""
    hooks: tuple[HookRunRecord, ...] = ()


class HookOutputRecord(Record, frozen=True, kw_only=True, omit_defaults=True):
    text: str = ""


class Runs:
    """The runs of one repository."""

    def __init__(self, versions: Versions) -> None:
        self._context = versions.context

    def fresh_id(self) -> str:
        """Return an id that sorts before all older ones."""
        return newest_first(self._context.ports.ids.fresh())

    async def write(self, run_id: str, record: ActionRunRecord, outputs: Sequence[str]) -> None:
        """Record a run. Its outputs go first, so that a run that is listed has them."""
        for hook, text in zip(record.hooks, outputs, strict=True):
            await self._context.set(_output_key(run_id, hook.id), HookOutputRecord(text=text))
        await self._context.set(RUN + run_id.encode(), record)

    async def name_commit(self, run_id: str, commit_id: str) -> None:
        """Record which commit came of the change that a run looked at: listings by commit then show the run."""
        key = RUN + run_id.encode()
        found = await self._context.read(ActionRunRecord, key)
        if found is not None:  # No other flow writes to a run that was recorded.
            await self._context.set(key, replace(found[0], commit_id=commit_id))

    async def list(
        self, *, after: str = "", limit: int = 100, branch: str = "", commit_id: str = ""
    ) -> tuple[Sequence[tuple[str, ActionRunRecord]], bool]:
        """List runs, the newest first, and whether more follow."""
        found: list[tuple[str, ActionRunRecord]] = []
        start = RUN + after.encode() + b"\x00" if after else b""
        async for key, record in self._context.records(ActionRunRecord, RUN, start=start):
            if branch not in {"", record.branch} or commit_id not in {"", record.commit_id}:
                continue
            if len(found) == limit:
                return found, True
            found.append((key[len(RUN) :].decode(), record))
        return found, False

    async def get(self, run_id: str) -> ActionRunRecord:
        """
        Raises:
            RunNotFound: there is none.
        """
        found = await self._context.read(ActionRunRecord, RUN + run_id.encode()) if run_id.isalnum() else None
        if found is None:
            raise RunNotFound("run not found", run=run_id)
        return found[0]

    async def output(self, run_id: str, hook_run_id: str) -> str:
        """
        Raises:
            RunNotFound: the run has no such hook.
        """
        if hook_run_id not in {hook.id for hook in (await self.get(run_id)).hooks}:
            raise RunNotFound("hook run not found", run=run_id, hook=hook_run_id)
        found = await self._context.read(HookOutputRecord, _output_key(run_id, hook_run_id))
        return "" if found is None else found[0].text

    async def clean(self) -> int:
        """Forget the runs that ended KEPT_MS ago, and return how many."""
        now_ms = self._context.ports.clock.now_ms()
        old = [
            (key, record)
            async for key, record in self._context.records(ActionRunRecord, RUN)
            if now_ms - record.ended_ms >= KEPT_MS
        ]
        store, partition = self._context.store, self._context.partition
        for start in range(0, len(old), RUNS_A_BATCH):
            batch = old[start : start + RUNS_A_BATCH]
            outputs = [_output_key(key[len(RUN) :].decode(), hook.id) for key, one in batch for hook in one.hooks]
            # The outputs first: without its run none would be found.
            if outputs:
                await store.delete_many(partition, outputs)
            await store.delete_many(partition, [key for key, _ in batch])
        return len(old)


def _output_key(run_id: str, hook_run_id: str) -> bytes:
    return OUTPUT + f"{run_id}/{hook_run_id}".encode()
