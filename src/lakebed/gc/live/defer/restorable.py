"""Find the objects of a restore in the tables of deferred runs: a bounded share in one request.

A `Place` is where the next request goes on. The run that is named is looked through or, where none is, every deferred
run, the latest first. A path or an address ends the search at the first run that holds what was seen last there; a
folder does not, because each run may hold some of it. What no run holds is looked for in the whole ledger, backwards,
to say what became of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from lakebed.base import NotFound, RunId
from lakebed.gc.messages import (
    LEDGER_PREFIX,
    LedgerState,
    Restore,
    check_run_id,
    decode_ledger,
    ledger_groups,
)
from lakebed.versions import Versions

from .deferring import DeferredRun, DeferredRuns

PAGE_OBJECTS: Final = 500
PAGE_BYTES: Final = 256 << 20
"""A page ends with the object that makes it so large, so that its answer is not long in coming."""

FILES_LOOKED: Final = 8
"""A request looks into at most this many files. With nothing found by then its page is empty, and has a token."""


NOT_LAST: Final = "not_last"
"""A row with this is at a path where its object was not seen last."""


class NotRestorable(NotFound):
    """No deferred run holds the objects; the message says what happened to them."""


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """The next row to look at, of this part of the run's table. `has_last`: an object was found that was seen last at
    the path. `is_lost`: no run holds it, and the files of the ledger before this one are to say why. `restore` names
    the request with all its pages.
    """

    run_id: str
    restore: str = ""
    part: int = 0
    row: int = 0
    has_found: bool = False
    has_last: bool = False
    is_lost: bool = False
    ledger: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Rows of GARBAGE that are asked for, perhaps none, and where to go on: None at the end."""

    run_id: str
    rows: list[dict[str, Any]]
    following: Place | None


class Restorable:
    def __init__(self, versions: Versions) -> None:
        self._objectstore = versions.objectstore
        self._retired = versions.retired
        self._deferred = DeferredRuns(versions)

    def begin(self, body: Restore, restore: str) -> Place:
        """Return where a request of this name begins."""
        if body.run_id:
            return Place(run_id=check_run_id(body.run_id), restore=restore)
        return Place(run_id="", restore=restore, is_lost=not body.path)

    async def find(self, body: Restore, place: Place) -> Found:
        """From this place on.

        Raises:
            NotRestorable: no deferred run holds the objects: they were deleted, or never taken.
            BadInput: the table of a deferred run is unreadable.
        """
        for _ in range(FILES_LOOKED):
            if place.is_lost:
                return Found(run_id=place.run_id, rows=[], following=await self._tell(body, place))
            run = await self._run_at(place.run_id, is_named=bool(body.run_id))
            if run is None:
                place = replace(place, is_lost=True)
                continue
            if run.run_id != place.run_id:
                # The first run of all, or the next one where the run of this place ended meanwhile.
                place = replace(place, run_id=run.run_id, part=0, row=0)
            rows, following = await self._look(body, run, place)
            if rows or following is None:
                return Found(run_id=run.run_id, rows=rows, following=following)
            place = following
        return Found(run_id=place.run_id, rows=[], following=place)

    async def _run_at(self, run_id: str, *, is_named: bool) -> DeferredRun | None:
        """This run or, where none is named, this one or the latest before it; empty: the latest."""
        for run in await self._deferred.runs():
            if run.run_id == run_id or (not is_named and (not run_id or run.run_id < run_id)):
                return run
        return None

    async def _look(self, body: Restore, run: DeferredRun, place: Place) -> tuple[list[dict[str, Any]], Place | None]:
        """In one part."""
        garbage = await self._deferred.table_of(run)
        rows: list[dict[str, Any]] = []
        parts = () if garbage is None else garbage.parts
        if garbage is not None and place.part < len(parts):
            table = await self._deferred.part(garbage, parts[place.part])
            rows, end = _some_of(table, body.path, place.row)
            place = replace(
                place,
                has_found=place.has_found or bool(rows),
                has_last=place.has_last or any(NOT_LAST not in row for row in rows),
            )
            if end is not None:
                return rows, replace(place, row=end)
        if place.part + 1 < len(parts):
            return rows, replace(place, part=place.part + 1, row=0)
        if not body.run_id and (body.path.endswith("/") or not place.has_last):
            return rows, await self._earlier(place)
        return rows, None if place.has_found else replace(place, is_lost=True)

    async def _earlier(self, place: Place) -> Place | None:
        """The run before this one; None where there is none, and nothing is to be reported."""
        earlier = [run.run_id for run in await self._deferred.runs() if run.run_id < place.run_id]
        if earlier:
            return replace(place, run_id=earlier[0], part=0, row=0)
        return None if place.has_found else replace(place, is_lost=True)

    async def _tell(self, body: Restore, place: Place) -> Place:
        """Return where to go on looking for what the ledger knows, the latest files first.

        Raises:
            NotRestorable: this is what it knows.
        """
        what = body.path or f"run {body.run_id}"
        if body.run_id and await self._retired.undone([RunId(body.run_id)]):
            what = f"run {body.run_id} was undone: it holds nothing, and what it took can be read where it was"
            raise NotRestorable(what, run_id=body.run_id)
        own = f"/{body.run_id}-" if body.run_id else ""
        names = [stat.key async for page in self._objectstore.list(LEDGER_PREFIX) for stat in page if own in stat.key]
        names = sorted((name for name in names if not place.ledger or name < place.ledger), reverse=True)
        for name in names[:FILES_LOOKED]:
            for row in _gone(await self._objectstore.get(name), name, body.path):
                raise NotRestorable(f"{what} cannot be restored: {_said(row)}", run_id=row["run_id"])
        if len(names) > FILES_LOOKED:
            return replace(place, ledger=names[FILES_LOOKED - 1])
        raise NotRestorable(f"no deferred run holds {what}, and no ledger says that it was deleted", what=what)


def _some_of(rows: pa.Table, path: str, start: int) -> tuple[list[dict[str, Any]], int | None]:
    """Return those of a part's rows, from this one on, that are asked for, as many as fit into a page; and the row to
    go on with, None at the part's end.
    """
    places = pc.indices_nonzero(named(rows, path))
    places = places.filter(pc.greater_equal(places, start)).slice(0, PAGE_OBJECTS)
    page = _first_of(rows.take(places).to_pylist())
    asked = [one for row in page for one in _at_asked(row, path)]
    if len(page) < min(len(places), PAGE_OBJECTS) or len(places) == PAGE_OBJECTS:
        return asked, places[len(page) - 1].as_py() + 1
    return asked, None


def _at_asked(row: dict[str, Any], path: str) -> list[dict[str, Any]]:
    """Return the row as it is, if its own path or address is asked for; and once at each other path that is.

    When commits had it there last is on no record. So what was seen last at such a path comes before it.
    """
    if not path or row["address"] == path:
        return [row]
    others = [{**row, "path": other, NOT_LAST: True} for other in row["other_paths"] or () if _is_at(other, path)]
    return [row, *others] if _is_at(row["path"], path) else others


def _is_at(own: str, path: str) -> bool:
    return own.startswith(path) if path.endswith("/") else own == path


def _gone(data: bytes, name: str, path: str) -> Iterator[dict[str, Any]]:
    """The first row of this path whose object is gone, if there is one."""
    for group in range(len(ledger_groups(data, name=name))):
        rows = decode_ledger(data, name=name, group=group)
        is_gone = pc.equal(rows["state"], LedgerState.DELETED.value)
        yield from rows.filter(pc.and_(is_gone, named(rows, path))).slice(0, 1).to_pylist()


def _said(row: dict[str, Any]) -> str:
    rule = f" by the rule {row['rule']}" if row["rule"] else f" ({row['reason']})"
    return f"run {row['run_id']} deleted it at {row['deleted_at']:%Y-%m-%d %H:%M:%SZ}{rule}"


def named(rows: pa.Table, path: str) -> pa.ChunkedArray:
    """Return which rows are of this path, of a path below it if it ends with a slash, or of this address. Empty: all
    are.
    """
    if not path:
        return pc.is_valid(rows["address"])
    return pc.or_(at_path(rows, path), pc.equal(rows["address"], path))


def at_path(rows: pa.Table, path: str) -> pa.ChunkedArray:
    """Return which rows have this path, or one below it if it ends with a slash, among those that are on record."""
    found = _at(rows["path"], path)
    others = rows["other_paths"].combine_chunks() if "other_paths" in rows.schema.names else None
    if others is None or others.null_count == len(others):
        return found
    places = pc.unique(pc.list_parent_indices(others).filter(_at(pc.list_flatten(others), path)))
    return pc.or_(found, pc.is_in(pa.array(range(rows.num_rows), places.type), value_set=places))


def _at(paths: pa.ChunkedArray | pa.Array, path: str) -> pa.ChunkedArray | pa.Array:
    return pc.starts_with(paths, path) if path.endswith("/") else pc.equal(paths, path)


def _first_of(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Take as many as a page may have bytes, at least one."""
    page: list[dict[str, Any]] = []
    size_bytes = 0
    for row in rows:
        page.append(row)
        size_bytes += row["size_bytes"]
        if size_bytes >= PAGE_BYTES:
            break
    return page
