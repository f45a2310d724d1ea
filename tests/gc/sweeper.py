"""Sweeps in processes that really die: `python -m tests.gc.sweeper FOLDER`. One start of Python, many forks.

Each child does one thing to a local folder and is killed by SIGKILL just before or just after its n-th change; then the
next one goes on. What must be true after each is asserted here, so that a failure is an exit code. Ends with a line of
JSON: how many processes died.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import stat
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lakebed.gc import messages
from lakebed.gc.machine.sweep import remove_with
from lakebed.gc.mark.inputs.named import deal_keys, from_tables
from lakebed.gc.mark.sets.bucketed import BUCKETS, NAMED, Share, read_bucketed
from lakebed.gc.runs.context import claim
from lakebed.gc.runs.recording import Ledger, Swept
from lakebed.objectstore import DeleteFailure, Deleter, ObjectStore, ObjectStoreOptions, open_deleter, open_objectstore
from lakebed.runtime import LiveClock
from tests.gc.garbage import context_of, plan_of, sweep_part, task_of

LEDGER = Ledger(run_id="r1", date="2026-11-21")
PARTS = {"part-0.parquet": ["data/s/a001", "data/s/a002", "data/t/a003"], "part-1.parquet": ["data/t/b001"]}
KEPT = "data/s/kept"
NOBODY = 65_534
STEPS_MAX = 60


@dataclass
class Killed:
    """A store and its deleter that kill the process at its n-th change. Reads go straight to the folder."""

    store: ObjectStore
    deleter: Deleter
    step: int
    after: bool
    changes: int = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    async def put(self, key: str, body: bytes, *, if_absent: bool = False) -> None:
        self._die(after=False)
        await self.store.put(key, body, if_absent=if_absent)
        self._die(after=True)

    async def copy(self, source: str, target: str) -> None:
        self._die(after=False)
        await self.store.copy(source, target)
        self._die(after=True)

    async def delete(self, keys: Sequence[str]) -> Sequence[DeleteFailure]:
        self._die(after=False)
        failures = await self.deleter.delete(keys)
        self._die(after=True)
        return failures

    def _die(self, *, after: bool) -> None:
        self.changes += after is self.after
        if self.changes == self.step and after is self.after:
            os.kill(os.getpid(), signal.SIGKILL)


def opened(folder: Path) -> ObjectStore:
    return open_objectstore("local://lake", options_of(folder))


def opened_deleter(folder: Path) -> Deleter:
    return open_deleter("local://lake", options_of(folder))


def options_of(folder: Path) -> ObjectStoreOptions:
    return ObjectStoreOptions(local_root=folder, local_durable=False)


async def prepare(store: ObjectStore) -> list[messages.Manifest]:
    for key in [*(key for keys in PARTS.values() for key in keys), KEPT]:
        await store.put(key, key[-4:].encode())
    return [await plan_of(store, keys, part=part) for part, keys in PARTS.items()]


async def apply(store: Any, deleter: Any, plans: Sequence[messages.Manifest]) -> Swept:
    """What an apply does besides asking the server and starting Spark."""
    fence, outdated = await claim(store, LiveClock(), "r1")
    await remove_with(deleter, outdated)
    swept = Swept()
    for plan in plans:
        swept = swept.plus(await sweep_part(store, deleter, plan, plan.parts[0], LEDGER, fence))
        await fence.check(store)
    return swept


def fork(folder: Path, plans: Sequence[messages.Manifest], step: int, after: bool) -> int:
    """The signal that ended the child, or 0."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            killed = Killed(opened(folder), opened_deleter(folder), step, after)
            swept = asyncio.run(apply(killed, killed, plans))
            code = 0 if swept.objects_failed == 0 else 1
        finally:
            os._exit(code)
    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert ended <= 0, f"step {step} after={after}: a child failed"
    return -ended


def check(folder: Path, *, is_done: bool) -> None:
    root = folder / "lake"
    assert (root / KEPT).read_bytes() == b"kept"
    for part, keys in PARTS.items():
        rows = states(root, LEDGER.key(part))
        assert not is_done or len(rows) == len(keys)
        for key in keys:
            assert rows.get(key) in ({"deleted"} if is_done else {None, "deleted"}), rows
            assert not (key in rows and (root / key).exists())


def states(root: Path, key: str) -> dict[str, str]:
    """By address, each once."""
    names = [str(path) for path in sorted((root / key).parent.glob(f"{Path(key).name.partition('.')[0]}.*"))]
    if not names:
        return {}
    rows = messages.decode_record(names, [Path(name).read_bytes() for name in names]).to_pylist()
    assert len({row["address"] for row in rows}) == len(rows)
    return {row["address"]: row["state"] for row in rows}


def collect_beside(folder: Path, plans: Sequence[messages.Manifest]) -> None:
    """What a run of uncommitted data does meanwhile: delete for good what no unfinished run holds."""

    async def collect() -> None:
        store = opened(folder)
        source, rows, effort = from_tables(plans, messages.GARBAGE)
        engine = context_of(store).engine
        held = await deal_keys(engine, source, rows, uri=store.uri, folder="_lakefs/held/", effort=effort)
        tables = await read_bucketed(task_of(store), held, Share(0, BUCKETS), NAMED)
        named = {KEPT, *(key for table in tables for key in table["key"].to_pylist())}
        listed = [stat.key async for page in store.list("data/") for stat in page]
        await opened_deleter(folder).delete([key for key in listed if key not in named])

    asyncio.run(collect())


def die_everywhere(folder: Path) -> int:
    """Every step, before and after, from a fresh start; then the same folder is gone on with, to its end."""
    died = 0
    for after in (False, True):
        for step in range(1, STEPS_MAX):
            place = folder / f"{after}-{step}"
            plans = asyncio.run(prepare(opened(place)))
            ended = fork(place, plans, step, after)
            check(place, is_done=ended == 0)
            if ended == 0:
                break
            assert ended == signal.SIGKILL
            died += 1
            collect_beside(place, plans)
            check(place, is_done=False)
            assert fork(place, plans, 0, after) == 0
            check(place, is_done=True)
    return died


def without_permission(folder: Path) -> Swept:
    """A sweep by somebody who may read and write, and not delete objects; then the same by its owner."""
    plans = asyncio.run(prepare(opened(folder)))
    root = folder / "lake"
    folder.chmod(0o755)
    for path in [root, *root.glob("**/*")]:
        path.chmod(0o777 if path.is_dir() else 0o666)
    for path in root.glob("data/*"):
        path.chmod(0o555)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        if os.getuid() == 0:
            os.setuid(NOBODY)
        swept = asyncio.run(apply(opened(folder), opened_deleter(folder), plans))
        os.write(writing, json.dumps([swept.objects_deleted, swept.objects_failed]).encode())
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    deleted, failed = json.loads(os.read(reading, 1000))
    assert (deleted, failed) == (0, sum(map(len, PARTS.values())))
    assert all((root / key).exists() for keys in PARTS.values() for key in keys)
    for path in root.glob("data/*"):
        path.chmod(stat.S_IRWXU)
    for path in root.glob("_lakefs/**/*.parquet"):
        path.chmod(0o666)
    return asyncio.run(apply(opened(folder), opened_deleter(folder), plans))


if __name__ == "__main__":
    place = Path(sys.argv[1])
    swept = without_permission(place / "powerless")
    assert (swept.objects_deleted, swept.objects_failed) == (4, 0), swept
    check(place / "powerless", is_done=True)
    sys.stdout.write(json.dumps({"died": die_everywhere(place)}) + "\n")
