"""Run hooks on this server: scripts read through the catalog, with the permissions of the committer."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from lakebed.auth import NotPermitted, Permissions
from lakebed.base import Denied, Invalid, NotFound, RepositoryId, from_row, key_to_path
from lakebed.catalog import Catalog, Objects, Repository
from lakebed.hooks import AT_ONCE_MAX, HookOptions, RepositoryHooks
from lakebed.operations import AnyOperation, history, objects
from lakebed.versions import Versions

from .http.gate import ask, unreadable
from .http.requests import PAGE_MAX, RestRequest

OBJECT_BYTES_MAX: Final = 16 << 20
HOOKS_AT_ONCE: Final = 128
"""The limit for all repositories together. Most hooks wait for an answer. Threads start on demand."""


class ScriptReads:
    """Answer the calls of a script. Each function returns an HTTP status and a value, as scripts expect."""

    def __init__(self) -> None:
        self.catalog: Catalog | None = None
        """Set after the catalog is made, because the catalog needs the hooks."""

    async def ask(self, caller: object, name: str, arguments: list[Any]) -> tuple[int, Any]:
        try:
            match name:
                case "get_object":
                    return await self._get(caller, *_texts(arguments, 3))
                case "stat_object":
                    return await self._stat(caller, *_texts(arguments, 3))
                case "list_objects":
                    return await self._list(caller, *_texts(arguments, 5), limit=_number(arguments, 5))
                case "diff_refs":
                    return await self._diff(caller, *_texts(arguments, 6), limit=_number(arguments, 6))
        except (NotPermitted, Denied) as error:
            return 401, {"message": str(error)}
        except NotFound as error:
            return 404, {"message": str(error)}
        except Invalid as error:
            return 400, {"message": str(error)}
        raise Invalid(f"lakefs.{name} is not available to hooks")

    async def _open(self, caller: object, operation: AnyOperation, repository: str, **names: str) -> Repository:
        """Open the repository for a script, after checking the caller's permissions."""
        await ask(operation.permissions or (), _permissions(caller), {"repository": repository, **names})
        assert self.catalog is not None
        return await self.catalog.get(repository)

    async def _get(self, caller: object, repository: str, ref: str, path: str) -> tuple[int, Any]:
        opened = await self._open(caller, objects.GET_OBJECT, repository, ref=ref, path=path)
        entry = await opened.objects.get(ref, path)
        if entry.size_bytes > OBJECT_BYTES_MAX:
            return 413, {"message": f"{path} has more than {OBJECT_BYTES_MAX} bytes"}
        return 200, await opened.objects.read(entry)

    async def _stat(self, caller: object, repository: str, ref: str, path: str) -> tuple[int, Any]:
        opened = await self._open(caller, objects.STAT_OBJECT, repository, ref=ref, path=path)
        entry = await opened.objects.get(ref, path)
        return 200, {
            "path": path,
            "path_type": "object",
            "size_bytes": entry.size_bytes,
            "checksum": entry.checksum,
            "mtime": entry.modified_ms // 1000,
            "content_type": entry.content_type,
            "metadata": dict(entry.metadata),
            "physical_address": opened.full_address(entry.address),
        }

    async def _list(
        self, caller: object, repository: str, ref: str, after: str, prefix: str, delimiter: str, *, limit: int
    ) -> tuple[int, Any]:
        opened = await self._open(caller, objects.LIST_OBJECTS, repository, ref=ref)
        page = await opened.versions.staging.list(
            ref, prefix=prefix.encode(), after=after.encode(), delimiter=delimiter.encode(), limit=limit
        )
        hidden = await unreadable(_permissions(caller), repository, ref, (key for key, _ in page.items))
        results: list[dict[str, Any]] = []
        for key, row in page.items:
            if row is None:
                results.append({"path": key_to_path(key), "path_type": "common_prefix"})
            else:
                entry = from_row(row)
                path = key_to_path(key)
                checksum = "" if key in hidden else entry.checksum
                found = {"size_bytes": entry.size_bytes, "checksum": checksum, "mtime": entry.modified_ms // 1000}
                results.append({"path": path, "path_type": "object", **found})
        return 200, _page(results, page.has_more)

    async def _diff(
        self,
        caller: object,
        repository: str,
        left: str,
        right: str,
        after: str,
        prefix: str,
        delimiter: str,
        *,
        limit: int,
    ) -> tuple[int, Any]:
        opened = await self._open(caller, history.DIFF_REFS, repository, leftRef=left, rightRef=right)
        found, has_more = await opened.versions.history.diff_refs(
            left, right, prefix=prefix.encode(), after=after.encode(), delimiter=delimiter.encode(), limit=limit
        )
        results = [
            {
                "path": key_to_path(each.key),
                "type": str(each.kind),
                "path_type": "object" if each.row is not None else "common_prefix",
            }
            for each in found
        ]
        return 200, _page(results, has_more)


def _permissions(caller: object) -> Permissions:
    if not isinstance(caller, RestRequest):
        raise NotPermitted("no user made this change")
    return caller.permissions


def make_hooks(
    options: HookOptions, reads: ScriptReads, keep: Callable[[asyncio.Future[Any]], None]
) -> Callable[[RepositoryId, Versions, Objects], RepositoryHooks]:
    # Use separate threads: hooks that wait for slow webhooks must not block the server's file reads.
    pool = ThreadPoolExecutor(HOOKS_AT_ONCE, thread_name_prefix="hook")
    # Key by repository, not by handle: a change of its record makes a new handle, which must share the same turns.
    turns: defaultdict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(AT_ONCE_MAX))

    def make(repository: RepositoryId, versions: Versions, objects: Objects) -> RepositoryHooks:
        return RepositoryHooks(
            repository,
            versions,
            objects,
            options=options,
            ask=reads.ask,
            keep=keep,
            pool=pool,
            turns=turns[versions.uid],
        )

    return make


def _texts(arguments: list[Any], count: int) -> list[str]:
    """Return the first `count` arguments as texts. A missing argument becomes an empty text."""
    padded = [*arguments, *([None] * count)][:count]
    return ["" if each is None else str(each) for each in padded]


def _number(arguments: list[Any], index: int) -> int:
    given = arguments[index] if len(arguments) > index else None
    return min(int(given), PAGE_MAX) if isinstance(given, int | float) and given > 0 else PAGE_MAX


def _page(results: list[dict[str, Any]], has_more: bool) -> dict[str, Any]:
    following = results[-1]["path"] if has_more and results else ""
    return {"results": results, "pagination": {"has_more": has_more, "next_offset": following, "results": len(results)}}
