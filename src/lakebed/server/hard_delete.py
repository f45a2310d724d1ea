"""Run the server's part of hard delete: queue the addresses that this process released, and delete due objects.

Every process works on every queue. Pages are idempotent, so other processes take over from one that dies. A queue
that is off costs one read a minute.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from lakebed.base import LakebedError
from lakebed.catalog import Catalog
from lakebed.gc.live import LINGER_MS, OtherInstallation, QueueWorker
from lakebed.objectstore import Deleter, ObjectStoreOptions, open_deleter
from lakebed.versions import Versions

from .operate.metrics import Sample

logger = logging.getLogger(__name__)

TICK_S: Final = 1.0
"""Seconds between writes of released addresses to the queue. A crash loses at most this much."""
WORK_S: Final = 5.0
ASK_S: Final = 60.0
"""Seconds between reads of a setting that was off."""
BACK_OFF_S: Final = 60.0
"""Seconds to leave a queue alone after an error."""


@dataclass(slots=True)
class _Queue:
    worker: QueueWorker
    deleter: Deleter
    next_s: float = 0.0


class HardDeleting:
    """The hard delete work of one server process."""

    def __init__(self, catalog: Catalog, options: ObjectStoreOptions) -> None:
        self._catalog = catalog
        self._options = options
        self._queues: dict[str, _Queue] = {}
        self._deleted: Counter[str] = Counter()
        self._failed: Counter[str] = Counter()
        self.linger_ms = LINGER_MS

    async def run(self) -> None:
        """Work on the queues, again and again, until cancelled."""
        while True:
            await asyncio.sleep(TICK_S * random.uniform(0.5, 1.5))  # noqa: S311  # no secret, only spread
            await self.step(asyncio.get_running_loop().time())

    async def step(self, now_s: float) -> None:
        """Queue the addresses that this process released, and work on each queue that is due."""
        for versions in self._catalog.opened():
            queue = self._queues.get(versions.uid) or self._open(versions)
            try:
                if now_s >= queue.next_s:
                    queue.next_s = now_s + await self._work(versions, queue.worker)
                elif versions.hard_delete.is_on:
                    await versions.hard_delete.flush()
            except OtherInstallation:
                queue.next_s = now_s + BACK_OFF_S  # Upkeep says so.
            except LakebedError as error:
                queue.next_s = now_s + BACK_OFF_S
                logger.warning("hard delete: repository %s: %s", versions.uid, error)
            except Exception:  # a bug in one queue must not end the others, nor the server
                queue.next_s = now_s + BACK_OFF_S
                logger.exception("hard delete: repository %s failed", versions.uid)

    def _open(self, versions: Versions) -> _Queue:
        deleter = open_deleter(versions.objectstore.uri, self._options)
        queue = self._queues[versions.uid] = _Queue(QueueWorker(versions, deleter, linger_ms=self.linger_ms), deleter)
        return queue

    async def _work(self, versions: Versions, worker: QueueWorker) -> float:
        """Work on one queue, and return the seconds until its next turn."""
        setting = await versions.hard_delete.setting()
        if not setting.changed_ms:
            return ASK_S
        done = await worker.work()
        self._deleted["objects"] += done.objects_deleted
        self._deleted["bytes"] += done.bytes_deleted
        self._failed.update(done.failed)
        return WORK_S if setting.is_on else ASK_S

    def samples(self) -> Iterable[Sample]:
        yield Sample("lakebed_hard_deleted_objects_total", "", (), self._deleted["objects"])
        yield Sample("lakebed_hard_deleted_bytes_total", "", (), self._deleted["bytes"])
        for reason, count in self._failed.items():
            yield Sample("lakebed_hard_delete_failures_total", "", (("reason", reason[:200]),), count)

    async def close(self) -> None:
        """Queue the remaining addresses. The offline collector deletes those that cannot be queued."""
        for versions in self._catalog.opened():
            try:
                await versions.hard_delete.flush()
            except LakebedError as error:
                logger.warning("hard delete: %s: what was let go last is left to a collection: %s", versions.uid, error)
        for queue in self._queues.values():
            await queue.deleter.close()
