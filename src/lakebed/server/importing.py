"""The imports that run in this process: tasks beside the requests, which end with the process."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from typing import Final

from lakebed.base import LakebedError
from lakebed.catalog import ImportRecord, Imports, Location
from lakebed.versions import Note

logger = logging.getLogger(__name__)

BEAT_S: Final = 5.0
CLOSE_S: Final = 8.0
"""How long an import may take to end when the process does. A merge that it began is not broken off before."""


class Importing:
    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closing = False

    def start(self, imports: Imports, begun: ImportRecord, locations: Sequence[Location], note: Note) -> None:
        task = asyncio.create_task(self._run(imports, begun, locations, note))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """End what runs. One that does not end in time is left without a record of its end, and counts as lost."""
        self._is_closing = True
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=CLOSE_S)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    async def _run(self, imports: Imports, begun: ImportRecord, locations: Sequence[Location], note: Note) -> None:
        beating = asyncio.create_task(_beat(imports, begun))
        try:
            await imports.run(begun, locations, note, is_stopping=lambda: self._is_closing)
        except LakebedError as error:
            logger.warning("the end of import %s is not recorded, it will count as lost: %s", begun.id, error)
        except Exception:  # a bug must not leave an import that seems to run
            logger.exception("import %s failed", begun.id)
            with contextlib.suppress(LakebedError):
                await imports.stop(begun, "internal server error")
        finally:
            beating.cancel()


async def _beat(imports: Imports, begun: ImportRecord) -> None:
    """Parts and the merge may take longer than an import may be silent."""
    while True:
        await asyncio.sleep(BEAT_S)
        try:
            await imports.beat(begun)
        except LakebedError as error:
            logger.warning("import %s: %s", begun.id, error)
