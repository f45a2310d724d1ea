"""Find the objects of a restore in the tables of deferred runs: a bounded number of files in each request.

A `Place` marks where the next request continues. A search reads the named run, or every deferred run, newest first.
A path or an address ends the search at the first run with the object last seen there. A folder reads all runs, because
each may have some of its objects. If no run has the objects, the search reads the whole ledger backwards for the
reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from lakebed.base import Invalid, NotFound, RunId
from lakebed.gc.messages import LEDGER_PREFIX, LedgerState, Restore, check_run_id, decode_ledger, ledger_groups
from lakebed.versions import Versions

from .deferring import DeferredRun, DeferredRuns
from .entries import LAST_PATH

__all__ = ["NotRestorable"]

PAGE_OBJECTS: Final = 500
PAGE_BYTES: Final = 256 << 20
"""End a page with the object that exceeds this size, so that its answer comes soon."""

FILES_LOOKED: Final = 8
"""Read at most this many files in a request. Without a match, return an empty page with a token."""


class NotRestorable(NotFound):
    """No deferred run has the objects. The message gives their fate."""


class NothingNamed(Invalid):
    """The request names neither objects nor a run."""


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Mark the next row of a part of the run's table. `restore` names the request with all its pages."""

    run_id: str
    restore: str = ""
    part: int = 0
    row: int = 0
    # A row matched.
    has_found: bool = False
    # A matched object was last seen at the path.
    has_last: bool = False
    # No run has the object, and the search continues in ledger files before `ledger`.
    is_lost: bool = False
    ledger: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Hold the requested rows of GARBAGE, perhaps zero, and the next place: None at the end."""

    run_id: str
    rows: list[dict[str, Any]]
    following: Place | None


class Restorable:
    def __init__(self, versions: Versions) -> None:
        self._objectstore = versions.objectstore
        self._retired = versions.retired
        self._deferred = DeferredRuns(versions)

    def begin(self, body: Restore, restore: str) -> Place:
        """Return the first place of a request of this name.

        Raises:
            NothingNamed: the request has neither a path nor a run.
        """
        if not (body.path or body.run_id):
            raise NothingNamed("name `path` (an object, a folder or an address), `run_id`, or both")
        if body.run_id:
            return Place(run_id=check_run_id(body.run_id), restore=restore)
        return Place(run_id="", restore=restore)

    async def find(self, body: Restore, position: Place) -> Found:
        """Find the requested rows from this place on.

        Raises:
            NotRestorable: no deferred run has the objects: they were deleted, or no run selected them.
            BadInput: the table of a deferred run is unreadable.
        """
        for _ in range(FILES_LOOKED):
            if position.is_lost:
                return Found(run_id=position.run_id, rows=[], following=await self._tell(body, position))
            run = await self._run_at(position.run_id, is_named=bool(body.run_id))
            if run is None:
                position = replace(position, is_lost=True)
                continue
            if run.run_id != position.run_id:
                # The search begins, or the run of this place ended meanwhile: continue at the next run.
                position = replace(position, run_id=run.run_id, part=0, row=0)
            rows, following = await self._look(body, run, position)
            if rows or following is None:
                return Found(run_id=run.run_id, rows=rows, following=following)
            position = following
        return Found(run_id=position.run_id, rows=[], following=position)

    async def _run_at(self, run_id: str, *, is_named: bool) -> DeferredRun | None:
        """Return the run `run_id`. Without a named run, return it or the newest before it; if empty, the newest."""
        for run in await self._deferred.runs():
            if run.run_id == run_id or (not is_named and (not run_id or run.run_id < run_id)):
                return run
        return None

    async def _look(
        self, body: Restore, run: DeferredRun, position: Place
    ) -> tuple[list[dict[str, Any]], Place | None]:
        """Find the requested rows in one part."""
        garbage = await self._deferred.table_of(run)
        rows: list[dict[str, Any]] = []
        parts = () if garbage is None else garbage.parts
        if garbage is not None and position.part < len(parts):
            table = await self._deferred.part(garbage, parts[position.part])
            rows, end = _some_of(table, body.path, position.row)
            position = replace(
                position,
                has_found=position.has_found or bool(rows),
                has_last=position.has_last or any(LAST_PATH not in row for row in rows),
            )
            if end is not None:
                return rows, replace(position, row=end)
        if position.part + 1 < len(parts):
            return rows, replace(position, part=position.part + 1, row=0)
        # Older runs may have more objects of a folder, or a version last seen at this path.
        if not body.run_id and (body.path.endswith("/") or not position.has_last):
            return rows, await self._earlier(position)
        return rows, None if position.has_found else replace(position, is_lost=True)

    async def _earlier(self, position: Place) -> Place | None:
        """Return the place of the run before this one. Without an earlier run: None, or a search of the ledger."""
        earlier = [run.run_id for run in await self._deferred.runs() if run.run_id < position.run_id]
        if earlier:
            return replace(position, run_id=earlier[0], part=0, row=0)
        return None if position.has_found else replace(position, is_lost=True)

    async def _tell(self, body: Restore, position: Place) -> Place:
        """Search some ledger files, newest first, for the fate of the objects, and return the next place."""
        what = body.path or f"run {body.run_id}"
        # The ledger does not have an undone run: it deleted no object.
        if body.run_id and await self._retired.undone([RunId(body.run_id)]):
            what = f"run {body.run_id} was undone: it holds nothing, and what it took can be read where it was"
            raise NotRestorable(what, run_id=body.run_id)
        own = f"/{body.run_id}-" if body.run_id else ""
        names = [stat.key async for page in self._objectstore.list(LEDGER_PREFIX) for stat in page if own in stat.key]
        names = sorted((name for name in names if not position.ledger or name < position.ledger), reverse=True)
        for name in names[:FILES_LOOKED]:
            for row in _gone(await self._objectstore.get(name), name, body.path):
                raise NotRestorable(f"{what} cannot be restored: {_said(row)}", run_id=row["run_id"])
        if len(names) > FILES_LOOKED:
            return replace(position, ledger=names[FILES_LOOKED - 1])
        if body.path:
            raise NotRestorable(f"no deferred run holds {what}, and no ledger says that it was deleted", what=what)
        raise NotRestorable(f"{what} holds no object, and no ledger says that it deleted one", what=what)


def _some_of(rows: pa.Table, path: str, start: int) -> tuple[list[dict[str, Any]], int | None]:
    """Return a page of requested rows of a part, from row `start` on, and the next row: None at the part's end."""
    places = pc.indices_nonzero(named(rows, path))
    places = places.filter(pc.greater_equal(places, start)).slice(0, PAGE_OBJECTS)
    page = _first_of(rows.take(places).to_pylist())
    asked = [chosen for row in page for chosen in _at_asked(row, path)]
    # The page is full, by bytes or by rows. Otherwise the part has no more matching rows.
    if len(page) < min(len(places), PAGE_OBJECTS) or len(places) == PAGE_OBJECTS:
        return asked, places[len(page) - 1].as_py() + 1
    return asked, None


def _at_asked(row: dict[str, Any], path: str) -> list[dict[str, Any]]:
    """Return the row if the request matches its path or address, and a copy for each other path that matches.

    GARBAGE has no date for other paths. So an object last seen at such a path is newer than these copies.
    """
    if not path or row["address"] == path:
        return [row]
    others = [
        {**row, "path": other, LAST_PATH: row["path"]} for other in row["other_paths"] or () if _is_at(other, path)
    ]
    return [row, *others] if _is_at(row["path"], path) else others


def _is_at(own: str, path: str) -> bool:
    return own.startswith(path) if path.endswith("/") else own == path


def _gone(data: bytes, name: str, path: str) -> Iterator[dict[str, Any]]:
    """Yield the first row of a deleted object at this path in each row group."""
    for group in range(len(ledger_groups(data, name=name))):
        rows = decode_ledger(data, name=name, group=group)
        is_gone = pc.equal(rows["state"], LedgerState.DELETED.value)
        yield from rows.filter(pc.and_(is_gone, named(rows, path))).slice(0, 1).to_pylist()


def _said(row: dict[str, Any]) -> str:
    rule = f" by the rule {row['rule']}" if row["rule"] else f" ({row['reason']})"
    return f"run {row['run_id']} deleted it at {row['deleted_at']:%Y-%m-%d %H:%M:%SZ}{rule}"


def named(rows: pa.Table, path: str) -> pa.ChunkedArray:
    """Return the rows at this path, below it if it ends with a slash, or at this address. If empty, return all rows."""
    if not path:
        return pc.is_valid(rows["address"])
    return pc.or_(at_path(rows, path), pc.equal(rows["address"], path))


def at_path(rows: pa.Table, path: str) -> pa.ChunkedArray:
    """Return a flag for each row: one of its recorded paths matches (below it, if it ends with a slash)."""
    flags = _at(rows["path"], path)
    others = rows["other_paths"].combine_chunks() if "other_paths" in rows.schema.names else None
    # Most parts have no second path for an object: skip the slow part.
    if others is None or others.null_count == len(others):
        return flags
    places = pc.unique(pc.list_parent_indices(others).filter(_at(pc.list_flatten(others), path)))
    return pc.or_(flags, pc.is_in(pa.array(range(rows.num_rows), places.type), value_set=places))


def _at(paths: pa.ChunkedArray | pa.Array, path: str) -> pa.ChunkedArray | pa.Array:
    return pc.starts_with(paths, path) if path.endswith("/") else pc.equal(paths, path)


def _first_of(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the first rows, at least one, until PAGE_BYTES is reached."""
    page: list[dict[str, Any]] = []
    size_bytes = 0
    for row in rows:
        page.append(row)
        size_bytes += row["size_bytes"]
        if size_bytes >= PAGE_BYTES:
            break
    return page
