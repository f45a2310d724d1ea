"""What a restore asks for, looked for in the ledger: a bounded share of it in one request, however large it is.

A `Place` is where the next request goes on. First the run that is named is looked through, or, where none is, the runs
that have a quarantine, the latest first: for a path or an address up to one that holds it, for a folder all of them,
because each took some of it. What no run holds is looked for in the whole ledger, backwards, to say what became of it.
A request looks into so many files, and decodes each a row group at a time, no further than to the first that has
something: the event loop is held for one file at most. What an apply moved aside and has no ledger of (interrupted.py)
is found in the part of the table that it moved.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from lakebed.base import NotFound
from lakebed.gc.protocol import (
    LEDGER_PREFIX,
    QUARANTINED_PREFIX,
    LedgerState,
    Quarantine,
    Restore,
    check_run_id,
    decode_ledger,
    decode_quarantine,
    ledger_groups,
    quarantine_path,
    quarantined_run,
)
from lakebed.objectstore import ObjectMissing, ObjectStore

from .interrupted import Interrupted

PAGE_OBJECTS: Final = 500
PAGE_BYTES: Final = 256 << 20
"""A page ends with the object that makes it so large, so that its answer is not long in coming."""

FILES_LOOKED: Final = 8
"""So many files of the ledger a request looks into; with nothing found by then its page is empty, and has a token."""


class NotInQuarantine(NotFound):
    """Nothing of what was asked for lies in quarantine; the message says what became of it."""


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """The next row to look at, of this file of the run's ledger. `is_lost`: nothing lies in quarantine, and the files
    before this one are to say why. `restore` names the request with all its pages.
    """

    run_id: str
    restore: str = ""
    part: str = ""
    row: int = 0
    has_found: bool = False
    is_lost: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Rows that are asked for, perhaps none, and where to go on: None at the end."""

    run_id: str
    rows: list[dict[str, Any]]
    quarantine: Quarantine | None
    following: Place | None


class Restorable:
    def __init__(self, objectstore: ObjectStore) -> None:
        self._objectstore = objectstore
        self._interrupted = Interrupted(objectstore)

    async def begin(self, body: Restore, restore: str) -> Place:
        """Where a request of this name begins."""
        if body.run_id:
            return Place(run_id=check_run_id(body.run_id), restore=restore)
        nowhere = Place(run_id="", restore=restore)
        return (await self._earlier(nowhere) if body.path else None) or replace(nowhere, is_lost=True)

    async def find(self, body: Restore, place: Place) -> Found:
        """From this place on.

        Raises:
            NotInQuarantine: nothing that was asked for lies there: it was deleted for good, purged, or never taken.
            BadInput: the quarantine's record or the run's ledger is unreadable.
        """
        for _ in range(FILES_LOOKED):
            if place.is_lost:
                return Found(run_id=place.run_id, rows=[], quarantine=None, following=await self._tell(body, place))
            quarantine = await self._quarantine(place.run_id)
            rows: list[dict[str, Any]] = []
            if quarantine is not None:
                rows, following = await self._look(body, quarantine, place)
            elif body.run_id or place.part:
                following = replace(place, part="", is_lost=True)
            else:
                following = await self._earlier(place)
            if rows or following is None:
                return Found(run_id=place.run_id, rows=rows, quarantine=quarantine, following=following)
            place = following
        return Found(run_id=place.run_id, rows=[], quarantine=None, following=place)

    async def _earlier(self, place: Place) -> Place | None:
        """The run before this one, or the latest; None where there is none, and nothing is to be told."""
        names = [stat.key async for page in self._objectstore.list(QUARANTINED_PREFIX) for stat in page]
        runs = [quarantined_run(name.removeprefix(QUARANTINED_PREFIX)) for name in names]
        earlier = [run_id for run_id in runs if run_id is not None and (not place.run_id or run_id < place.run_id)]
        if earlier:
            return replace(place, run_id=max(earlier), part="", row=0)
        return None if place.has_found else replace(place, run_id="", part="", row=0, is_lost=True)

    async def _quarantine(self, run_id: str) -> Quarantine | None:
        try:
            return decode_quarantine(await self._objectstore.get(quarantine_path(run_id)), run_id)
        except ObjectMissing:
            return None

    async def _look(
        self, body: Restore, quarantine: Quarantine, place: Place
    ) -> tuple[list[dict[str, Any]], Place | None]:
        """In one part."""
        rows: list[dict[str, Any]] = []
        part, following = await self._parts(quarantine, place.part)
        if part:
            start = place.row if part == place.part else 0
            rows, end = await self._some(quarantine, part, body.path, start)
            place = replace(place, has_found=place.has_found or bool(rows))
            if end is not None:
                return rows, replace(place, part=part, row=end)
        if following:
            return rows, replace(place, part=following, row=0)
        if not body.run_id and (body.path.endswith("/") or not place.has_found):
            return rows, await self._earlier(place)
        return rows, None if place.has_found else replace(place, part="", is_lost=True)

    async def _parts(self, quarantine: Quarantine, first: str) -> tuple[str, str]:
        """The first part from this one on, and the one behind it, by the names of their ledger files; empty where there
        is none."""
        names = [part.name for part in quarantine.doomed.parts] if quarantine.doomed else []
        found = {key for key in map(quarantine.ledger_key, names) if key >= first}
        listed = 0
        async for page in self._objectstore.list(quarantine.ledger_prefix, start_after=first[:-1]):
            keys = [stat.key for stat in page if stat.key >= first]
            listed += len(keys)
            found.update(keys)
            if listed > 1:
                break
        parts = [*sorted(found)[:2], "", ""]
        return parts[0], parts[1]

    async def _some(
        self, quarantine: Quarantine, part: str, path: str, start: int
    ) -> tuple[list[dict[str, Any]], int | None]:
        """As `_some_of`, of a part that has a ledger file or has none yet."""
        try:
            return _some_of(await self._objectstore.get(part), part, path, start)
        except ObjectMissing:
            doomed = await self._interrupted.rows(quarantine, part)
        if doomed is None:
            return [], None
        places = pc.indices_nonzero(_named(doomed, path))
        places = places.filter(pc.greater_equal(places, start))
        found = await self._interrupted.aside(quarantine, doomed.take(places), limit=PAGE_OBJECTS)
        rows = _first_of([row for _, row in found])
        if len(rows) == len(found) < PAGE_OBJECTS:
            return rows, None
        return rows, places[found[len(rows) - 1][0]].as_py() + 1

    async def _tell(self, body: Restore, place: Place) -> Place:
        """Where to go on looking for what the ledger knows, the latest files first.

        Raises:
            NotInQuarantine: this is what it knows.
        """
        what = body.path or f"run {body.run_id}"
        own = f"/{body.run_id}-" if body.run_id else ""
        names = [stat.key async for page in self._objectstore.list(LEDGER_PREFIX) for stat in page if own in stat.key]
        names = sorted((name for name in names if not place.part or name < place.part), reverse=True)
        for name in names[:FILES_LOOKED]:
            for row in _gone(await self._objectstore.get(name), name, body.path):
                raise NotInQuarantine(f"{what} cannot be restored: {_said(row)}", run_id=row["run_id"])
        if len(names) > FILES_LOOKED:
            return replace(place, part=names[FILES_LOOKED - 1])
        raise NotInQuarantine(f"{what} does not lie in quarantine, and no ledger says that it was deleted", what=what)


def _some_of(data: bytes, name: str, path: str, start: int) -> tuple[list[dict[str, Any]], int | None]:
    """Of a part's rows, from this one on, some that lie in quarantine and are asked for, as many as fit into a page;
    and the row to go on with, None at the part's end."""
    groups = ledger_groups(data, name=name)
    for group, count in enumerate(groups):
        begin = sum(groups[:group])
        if begin + count <= start:
            continue
        rows = decode_ledger(data, name=name, group=group)
        is_aside = pc.equal(rows["state"], LedgerState.QUARANTINED.value)
        places = pc.indices_nonzero(pc.and_(is_aside, _named(rows, path))).to_pylist()
        places = [place for place in places if begin + place >= start][:PAGE_OBJECTS]
        if places:
            page = _first_of(rows.take(pa.array(places)).to_pylist())
            end = begin + places[len(page) - 1] + 1
            return page, end if end < sum(groups) else None
    return [], None


def _gone(data: bytes, name: str, path: str) -> Iterator[dict[str, Any]]:
    """The first row of this path whose object is gone for good, if there is one."""
    gone = pa.array([LedgerState.DELETED.value, LedgerState.PURGED.value])
    for group in range(len(ledger_groups(data, name=name))):
        rows = decode_ledger(data, name=name, group=group)
        yield from rows.filter(pc.and_(pc.is_in(rows["state"], gone), _named(rows, path))).slice(0, 1).to_pylist()


def _said(row: dict[str, Any]) -> str:
    run, when = row["run_id"], f"{row['deleted_at']:%Y-%m-%d %H:%M:%SZ}"
    rule = f" by the rule {row['rule']}" if row["rule"] else f" ({row['reason']})"
    if row["state"] == LedgerState.DELETED:
        return f"run {run} deleted it for good at {when}{rule}"
    return f"run {run} moved it aside{rule}, and it was purged at {when}"


def _named(rows: pa.Table, path: str) -> pa.ChunkedArray:
    """Which rows are of this path, of a path below it if it ends with a slash, or of this address. None: all are."""
    if not path:
        return pc.is_valid(rows["address"])
    if path.endswith("/"):
        return pc.starts_with(rows["path"], path)
    return pc.or_(pc.equal(rows["path"], path), pc.equal(rows["address"], path))


def _first_of(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """As many as a page may have bytes, at least one."""
    page: list[dict[str, Any]] = []
    size_bytes = 0
    for row in rows:
        page.append(row)
        size_bytes += row["size_bytes"]
        if size_bytes >= PAGE_BYTES:
            break
    return page
