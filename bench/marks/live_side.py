"""The live side of one repository in a bench's own process: it answers a collector as the server does, without HTTP."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec

from lakebed.gc.live import CollectionService
from lakebed.gc.messages import Apply, End, Mark, NotePlanned, PrepareCommits, ReadUncommitted, StartRun


async def answer(service: CollectionService, uri: str, method: str, path: str, json: object) -> object:
    """Return the answer to a request of a path below `/api/v1`, as plain values.

    Raises:
        LookupError: no collector of a bench asks that.
    """
    words, body = path.split("/")[5:], msgspec.to_builtins(json)
    actions: dict[str, Callable[[str], Awaitable[object]]] = {
        "uncommitted": lambda run: service.read_uncommitted(run, msgspec.convert(body, ReadUncommitted)),
        "commits": lambda run: service.prepare_commits(
            run, None if body is None else msgspec.convert(body, PrepareCommits)
        ),
        "planned": lambda run: service.note_planned(run, msgspec.convert(body, NotePlanned)),
        "marked": lambda run: service.mark(run, msgspec.convert(body, Mark)),
        "applying": lambda run: service.apply(run, msgspec.convert(body, Apply)),
        "ended": lambda run: service.end(run, msgspec.convert(body, End)),
        "abandoned": service.abandon,
    }
    result: object
    match method, words:
        case "GET", []:
            result = {"id": "bench", "storage_namespace": uri}
        case "GET", ["holds"]:
            result = await service.holds_in_force()
        case "POST", ["gc", "planning"]:
            result = {"has_rules": False}
        case "POST", ["gc", "purging"]:
            result = await service.purging()
        case "POST", ["gc", "runs"]:
            result = await service.start(msgspec.convert(body, StartRun))
        case "POST", ["gc", "runs", run, action]:
            result = await actions[action](run)
        case "GET", ["gc", "runs"]:
            result = await service.runs()
        case "GET", ["gc", "runs", run]:
            result = await service.run(run)
        case _:
            raise LookupError(f"{method} {path}")
    return msgspec.to_builtins(result)
