"""Probes for load balancers and people: is this process alive (`/_health`), and can it serve (`/_ready`)?

Alive means that the event loop answers. Ready means that the key-value store, the object store and the disk work, and
that the process does not drain. Both are public, so an answer names no path, address or driver error.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
from collections.abc import Awaitable
from typing import Final

import msgspec
from starlette.responses import Response

from lakebed.base import LakebedError
from lakebed.objectstore import ObjectMissing, ObjectStore
from lakebed.server.http.requests import text
from lakebed.server.process.folder import OBJECTS_FOLDER, PROOF_HEADER, RESERVE_BYTES, proof_of
from lakebed.server.state import AppState

logger = logging.getLogger(__name__)

CHECK_S: Final = 2.0
"""A part that does not answer within this time is not ready."""
PLACES_MAX: Final = 8
"""Check at most this many buckets, the newest first."""
KEPT_S: Final = 1.0
"""Seconds to keep an answer. Any number of callers cost one check in this time."""
OK: Final = "ok"


class Readiness(msgspec.Struct, frozen=True, kw_only=True):
    """`checks` has `ok` or a reason for each part: `kv`, `objects`, `disk`, `process`."""

    ready: bool
    checks: dict[str, str]


class Probe:
    def __init__(self, state: AppState) -> None:
        self._state = state
        self._kept: Readiness | None = None
        self._looked_s = 0.0

    async def look(self) -> Readiness:
        """Check every part at once."""
        now_s = asyncio.get_running_loop().time()
        is_draining = self._state.drain.is_draining
        if self._kept is None or now_s - self._looked_s > KEPT_S or is_draining:
            kv, objects = await asyncio.gather(
                _within("the key-value store", self._ask_kv()), _within("the object store", self._ask_objects())
            )
            checks = {"kv": kv, "objects": objects, "disk": self._disk(), "process": "draining" if is_draining else OK}
            self._kept = Readiness(ready=all(found == OK for found in checks.values()), checks=checks)
            self._looked_s = now_s
        return self._kept

    async def _ask_kv(self) -> None:
        await self._state.store.get(b"probe", b"probe")

    async def _ask_objects(self) -> None:
        """Read a missing object in each bucket with open repositories. Without open repositories, check nothing."""
        places = {_bucket(one.objectstore.uri): one.objectstore for one in self._state.catalog.opened()}
        await asyncio.gather(*[_ask_for_nothing(store) for store in list(places.values())[-PLACES_MAX:]])

    def _disk(self) -> str:
        folder = self._state.data_dir
        try:
            if shutil.disk_usage(folder).free < RESERVE_BYTES:
                return "full"
        except OSError as error:
            logger.warning("not ready: the data folder: %s", error)
            return "unavailable"
        objects = folder / OBJECTS_FOLDER
        return OK if os.access(objects if objects.exists() else folder, os.W_OK) else "read-only"


def alive(key: str, nonce: str) -> Response:
    """Answer that the process is alive and, to a caller that sent a nonce, prove which server it is."""
    response = text("alive!")
    if key and nonce:
        response.headers[PROOF_HEADER] = proof_of(key, nonce)
    return response


def _bucket(uri: str) -> str:
    return "/".join(uri.split("/", 3)[:3])


async def _ask_for_nothing(store: ObjectStore) -> None:
    with contextlib.suppress(ObjectMissing):
        await store.stat("_lakefs/probe")


async def _within(part: str, work: Awaitable[None]) -> str:
    try:
        await asyncio.wait_for(work, CHECK_S)
    except TimeoutError:
        logger.warning("not ready: %s does not answer", part)
        return "no answer"
    except LakebedError as error:
        logger.warning("not ready: %s: %s", part, error)
        return "unavailable"
    return OK
