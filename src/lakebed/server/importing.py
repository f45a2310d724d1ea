"""The imports that run in this process: tasks beside the requests, which end with the process."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from lakebed.base import LakebedError
from lakebed.catalog import CommitNote, ImportRecord, Imports, Location

logger = logging.getLogger(__name__)


class Importing:
    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, imports: Imports, begun: ImportRecord, locations: Sequence[Location], note: CommitNote) -> None:
        task = asyncio.create_task(_run(imports, begun, locations, note))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """End what runs, and record that it was not finished."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def _run(imports: Imports, begun: ImportRecord, locations: Sequence[Location], note: CommitNote) -> None:
    try:
        await imports.run(begun, locations, note)
    except asyncio.CancelledError:
        await _stop(imports, begun, "the server that imported was stopped: begin again")
    except LakebedError as error:
        logger.warning("the end of import %s is not recorded, it will count as lost: %s", begun.id, error)
    except Exception:  # a bug must not leave an import that seems to run
        logger.exception("import %s failed", begun.id)
        await _stop(imports, begun, "internal server error")


async def _stop(imports: Imports, begun: ImportRecord, why: str) -> None:
    try:
        await imports.stop(begun, why)
    except LakebedError as error:
        logger.warning("the end of import %s is not recorded, it will count as lost: %s", begun.id, error)
