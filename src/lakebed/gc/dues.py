"""From when each object of a slice is due by a lifecycle policy: what a run works out once and saves for the next.

For each slice one array has an hour for each sequence: the latest of all occurrences in commits. What is not named has
UNKNOWN, what is never due NEVER, what an earlier run took TAKEN. So a run needs of the ranges only these:

- those that no run read yet, or whose terms now let less go: the later hour counts
- where terms let more go, or a range is in no tree any more: all that share a slice with it, for that slice begins anew
- those with rows due at an hour that has come: only they say under which paths the objects go

Foreign keys have no place here: ranges that have some are read by each run.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakebed.base import FOREIGN_SLICE, RangeId
from lakebed.gc.protocol import BadInput, Pieces
from lakebed.gc.rules import HOUR_MS
from lakebed.gc.rules.lifecycle import Policy, parse_period
from lakebed.objectstore import ObjectStore

from .due import DUE_RANGES, Periods, Ranges, match_rules, read_rows
from .engines import Engine, Task
from .packing import Integers, LiveSet
from .places import Namespace
from .ranges import effort_of_whole, get_range, read_summary
from .tables import PARTS, Table, decode, encode, parts_of, read_part, required, write_part

UNKNOWN: Final = 0
NEVER: Final = (1 << 31) - 2
TAKEN: Final = (1 << 31) - 1
"""After NEVER, for the later counts: what was taken stays so."""

SEQUENCES_MAX: Final = 1 << 22
"""A slice has some ten thousand; an array up to a larger one would be empty for the most part."""
ROWS_MAX: Final = 400_000_000
"""Their hours take 1.6 GB in the driver."""
HELD_MAX: Final = 4_000_000
SLICES_A_PART: Final = 256
WHOLE: Final = -1
"""In place of the number of terms: nothing in the range is ever due."""

DUES: Final = Table(
    "packed: objects of a slice, and the hour since 1970 from which each is due; a slice may come several times",
    required(("slice", pa.int64()), ("sequences", pa.binary()), ("hours", pa.binary())),  # uint32 and int32
)
HOURS: Final = Table(
    "a slice, with the hour of each sequence from 0 on; the first row of a part has the least",
    required(("slice", pa.int64()), ("hours", pa.binary())),
)
_HOURS: Final = pa.list_(pa.field("element", pa.int32(), nullable=False))
_SLICES: Final = pa.list_(pa.field("element", pa.int64(), nullable=False))
READ_RANGES: Final = Table(
    "a range that was read: by which terms, the slices that it names, and the hours at which rows of it are due",
    required(
        ("range_id", pa.string()),
        ("terms", pa.int32()),
        ("has_foreign", pa.bool_()),
        ("slices", _SLICES),
        ("hours", _HOURS),
    ),
)

Hours = npt.NDArray[np.int32]


class TooSparse(BadInput):
    """A sequence is so large that hours cannot be kept as arrays."""


@dataclass(frozen=True, slots=True)
class ReadRange:
    """A row of READ_RANGES. `periods` None: nothing in it is ever due."""

    periods: tuple[Periods, ...] | None
    has_foreign: bool
    slices: tuple[int, ...]
    hours: tuple[int, ...]

    def keeps_less_than(self, periods: tuple[Periods, ...] | None) -> bool:
        """Return whether these periods keep all rows at least as long as its own did."""
        if periods is None:
            return True
        if self.periods is None:
            return False
        return all(
            new is None or (old is not None and {*old} <= {*new})
            for old, new in zip(self.periods, periods, strict=True)
        )


@dataclass(slots=True)
class Dues:
    """The hours of every slice."""

    hours: dict[int, Hours] = field(default_factory=dict)

    def add(self, slice_: int, sequences: npt.NDArray[Any], hours: Hours | int) -> None:
        """Let the later count."""
        if not len(sequences):
            return
        last = int(sequences.max())
        if last >= SEQUENCES_MAX:
            raise TooSparse(f"slice {slice_} has the sequence {last}", slice=slice_)
        have = self.hours.get(slice_)
        if have is None or len(have) <= last:
            grown = np.zeros(max(last + 1, 0 if have is None else min(2 * len(have), SEQUENCES_MAX)), np.int32)
            if have is not None:
                grown[: len(have)] = have
            self.hours[slice_] = have = grown
        np.maximum.at(have, sequences, hours)

    def add_rows(self, rows: pa.Table) -> None:
        """DUES."""
        for slice_, sequences, hours in zip(*(rows[name].to_pylist() for name in DUES.schema.names), strict=True):
            self.add(slice_, np.frombuffer(sequences, "<u4"), np.frombuffer(hours, "<i4"))

    def take(self, slices: Integers, sequences: Integers) -> None:
        for slice_ in np.unique(slices).tolist():
            self.add(slice_, sequences[slices == slice_], TAKEN)

    def begin_anew(self, slices: Iterable[int]) -> None:
        for slice_ in slices:
            have = self.hours.get(slice_)
            if have is not None:
                have[have != TAKEN] = UNKNOWN

    def going(self, now_ms: int) -> dict[int, Hours]:
        """Return the slices of which something is due, each with the hours at which it was."""
        hour, found = now_ms // HOUR_MS, {}
        for slice_, hours in self.hours.items():
            due = hours[(hours > UNKNOWN) & (hours <= hour)]
            if len(due):
                found[slice_] = np.unique(due)
        return found

    def hours_before(self, now_ms: int) -> set[int]:
        """Return the hours at which something was due that did not go yet."""
        return {hour for hours in self.going(now_ms).values() for hour in hours.tolist()}

    def staying(self, slices: Iterable[int], now_ms: int) -> LiveSet:
        """Return all that is not due in these slices, or was taken."""
        live = LiveSet()
        for slice_ in slices:
            if slice_ in self.hours:
                stays = np.flatnonzero(self.hours[slice_] > now_ms // HOUR_MS)
                live.add_numbers(np.full(len(stays), slice_, np.int64), stays)
        return live


async def read_dues(
    engine: Engine, ranges: pa.Table, periods: Sequence[tuple[Periods, ...]], policy: Policy, *, uri: str, folder: str
) -> tuple[Pieces, Pieces]:
    """Read DUE_RANGES (WHOLE as terms: at their ends) and write what they say: DUES and READ_RANGES in `folder`."""
    namespace = Namespace(uri)

    async def work(task: Task, share: pa.Table) -> AsyncIterator[pa.Table]:
        facts = {row["range_id"]: row for row in share.to_pylist()}
        reading = _Reading()

        async def read(name: str) -> Any:
            if facts[name]["terms"] == WHOLE:
                return await read_summary(task.store, RangeId(name), facts[name]["file_bytes"])
            return await get_range(task.store, RangeId(name))

        async for name, found in task.ahead([*facts], read):
            number = facts[name]["terms"]
            if number == WHOLE:
                summary, addresses = found
                reading.begin(name, number, has_foreign=bool(summary.foreign))
                for bitmap in summary.bitmaps:
                    reading.add(bitmap.slice, bitmap.sequences(), NEVER)
                for slice_, sequence in [] if addresses is None else namespace.numbers_of(addresses):
                    reading.add(slice_, np.array([sequence], np.uint32), NEVER)
            else:
                rows = read_rows(RangeId(name), found, facts[name]["count"], policy)
                slices, sequences = rows["slice"].to_numpy(), rows["sequence"].to_numpy().astype(np.uint32)
                is_foreign = slices == FOREIGN_SLICE
                reading.begin(name, number, has_foreign=bool(is_foreign.any()))
                hours = hours_of(rows, match_rules(rows, policy), periods[number])
                if is_foreign.any():
                    for at in np.flatnonzero(is_foreign).tolist():
                        place = namespace.place_of(rows["address"][at].as_py())
                        if isinstance(place, tuple):
                            reading.add(place[0], np.array([place[1]], np.uint32), hours[at : at + 1])
                    slices, sequences, hours = slices[~is_foreign], sequences[~is_foreign], hours[~is_foreign]
                reading.add_rows(slices, sequences, hours)
            if reading.held >= HELD_MAX:
                async for row in reading.write(task.store, folder):
                    yield row
                reading = _Reading()
        async for row in reading.write(task.store, folder):
            yield row

    written = await engine.run(work, ranges, PARTS, effort=effort_of_whole(ranges))
    is_read = pc.starts_with(written["name"], "read-")
    dues, facts = (parts_of(written.filter(some).sort_by("name")) for some in (pc.invert(is_read), is_read))
    return Pieces(folder=folder, parts=tuple(dues)), Pieces(folder=folder, parts=tuple(facts))


class _Reading:
    """Hold what a task found in some ranges."""

    def __init__(self) -> None:
        self.held = 0
        self._found: dict[int, list[tuple[npt.NDArray[np.uint32], Hours]]] = {}
        self._ranges: list[tuple[str, int, bool, set[int], set[int]]] = []

    def begin(self, name: str, terms: int, *, has_foreign: bool) -> None:
        self._ranges.append((name, terms, has_foreign, set(), set()))

    def add_rows(self, slices: Integers, sequences: npt.NDArray[np.uint32], hours: Hours) -> None:
        if len(slices) and (slices == slices[0]).all():
            self.add(int(slices[0]), sequences, hours)
            return
        order = np.argsort(slices, kind="stable")
        slices, sequences, hours = slices[order], sequences[order], hours[order]
        starts = np.flatnonzero(np.r_[True, slices[1:] != slices[:-1]]) if len(slices) else slices
        for start, end in zip(starts.tolist(), [*starts[1:].tolist(), len(slices)], strict=False):
            self.add(int(slices[start]), sequences[start:end], hours[start:end])

    def add(self, slice_: int, sequences: npt.NDArray[np.uint32], hours: Hours | int) -> None:
        """To the range that was begun last."""
        _, _, _, slices, due = self._ranges[-1]
        slices.add(slice_)
        if isinstance(hours, int):
            hours = np.full(len(sequences), hours, np.int32)
        else:
            due.update(np.unique(hours[hours != NEVER]).tolist())
        self._found.setdefault(slice_, []).append((sequences, hours))
        self.held += len(sequences)

    async def write(self, store: ObjectStore, folder: str) -> AsyncIterator[pa.Table]:
        if not self._ranges:
            return
        ordered = sorted(self._found)
        rows = DUES.rows(
            {
                "slice": ordered,
                "sequences": [_joined([one for one, _ in self._found[slice_]], "<u4") for slice_ in ordered],
                "hours": [_joined([one for _, one in self._found[slice_]], "<i4") for slice_ in ordered],
            }
        )
        names, terms, foreign, slices, hours = zip(*self._ranges, strict=True)
        columns = {"range_id": names, "terms": terms, "has_foreign": foreign}
        lists = {"slices": [sorted(one) for one in slices], "hours": [sorted(one) for one in hours]}
        facts = READ_RANGES.rows({**columns, **lists})
        for what, table, found in (("dues", DUES, rows), ("read", READ_RANGES, facts)):
            data = encode(table, found)
            # A task may run twice, and writes equal bytes under equal names.
            name = f"{what}-{hashlib.sha256(data).hexdigest()[:24]}.parquet"
            yield await write_part(store, folder, name, data, rows=found.num_rows, note=None)


def _joined(arrays: Sequence[npt.NDArray[Any]], kind: str) -> bytes:
    return np.concatenate(arrays).astype(kind).tobytes()


def hours_of(rows: pa.Table, rule_of: Integers, periods: tuple[Periods, ...]) -> Hours:
    """Return for each row the hour from which it is due by its rule (-1: none) on all branches."""
    modified_ms = rows["modified_ms"].to_numpy()
    found = np.full(rows.num_rows, NEVER, np.int32)
    for rule in np.unique(rule_of).tolist():
        of_rule = None if rule < 0 else periods[rule]
        if of_rule is not None:
            chosen = rule_of == rule
            written_ms = modified_ms[chosen]
            due_ms = np.max([parse_period(period).due_all(written_ms) for period in of_rule], axis=0)
            # What was due before 1970 is due.
            found[chosen] = np.clip(due_ms // HOUR_MS, UNKNOWN + 1, NEVER)
    return found


async def read_pieces(store: ObjectStore, pieces: Pieces, table: Table) -> AsyncIterator[pa.Table]:
    """Yield a part at a time.

    Raises:
        BadInput: one is missing or altered.
    """
    for part in pieces.parts:
        yield decode(table, await read_part(store, pieces.folder, part), part)


async def write_hours(store: ObjectStore, folder: str, dues: Dues) -> Pieces:
    """Write HOURS, slices in their order."""
    parts = []
    ordered = sorted(dues.hours)
    for start in range(0, len(ordered), SLICES_A_PART):
        some = ordered[start : start + SLICES_A_PART]
        rows = HOURS.rows({"slice": some, "hours": [dues.hours[slice_].astype("<i4").tobytes() for slice_ in some]})
        data = encode(HOURS, rows)
        name = f"hours-{start // SLICES_A_PART:05d}.parquet"
        parts += parts_of(await write_part(store, folder, name, data, rows=len(some), note=None))
    return Pieces(folder=folder, parts=tuple(parts))


async def read_hours(store: ObjectStore, pieces: Pieces) -> Dues:
    dues = Dues()
    async for rows in read_pieces(store, pieces, HOURS):
        for slice_, hours in zip(rows["slice"].to_pylist(), rows["hours"].to_pylist(), strict=True):
            dues.hours[slice_] = np.frombuffer(hours, "<i4").astype(np.int32)
    return dues


@dataclass(frozen=True, slots=True, kw_only=True)
class ToRead:
    """Say what a run has to read beside what it knows: DUE_RANGES, with WHOLE as terms where nothing is ever due.

    `anew` are slices that begin anew. `known` are the ranges that stay as they were read.
    """

    ranges: pa.Table
    anew: frozenset[int]
    known: dict[str, ReadRange]


def to_read(ranges: Ranges, known: Mapping[str, ReadRange]) -> ToRead:
    """Compare the ranges of a history with those that a run before has read."""
    periods = [terms.periods for terms in ranges.terms]
    now: dict[str, tuple[Periods, ...] | None] = dict.fromkeys(ranges.whole["range_id"].to_pylist())
    now |= dict(
        zip(ranges.due["range_id"].to_pylist(), [periods[n] for n in ranges.due["terms"].to_pylist()], strict=True)
    )
    anew: set[int] = set()
    for id_, read in known.items():
        if id_ not in now or not read.keeps_less_than(now[id_]):
            anew.update(read.slices)
    stays = {
        id_: read
        for id_, read in known.items()
        if id_ in now and now[id_] == read.periods and (not anew or anew.isdisjoint(read.slices))
    }
    whole = ranges.whole.set_column(3, "terms", pa.array([WHOLE] * ranges.whole.num_rows, pa.int32()))
    every = pa.concat_tables([ranges.due, whole.cast(DUE_RANGES.schema)])
    is_known = pc.is_in(every["range_id"], value_set=pa.array([*stays], pa.string()))
    return ToRead(ranges=every.filter(pc.invert(is_known)), anew=frozenset(anew), known=stays)


def known_ranges(rows: pa.Table, periods: Sequence[tuple[Periods, ...]]) -> dict[str, ReadRange]:
    """READ_RANGES by id."""
    return {
        row["range_id"]: ReadRange(
            periods=None if row["terms"] == WHOLE else periods[row["terms"]],
            has_foreign=row["has_foreign"],
            slices=tuple(row["slices"]),
            hours=tuple(row["hours"]),
        )
        for row in rows.to_pylist()
    }


def rows_of_known(known: Mapping[str, ReadRange]) -> tuple[pa.Table, tuple[tuple[Periods, ...], ...]]:
    """Return READ_RANGES, and the terms by number."""
    numbers: dict[tuple[Periods, ...], int] = {}
    terms = [WHOLE if one.periods is None else numbers.setdefault(one.periods, len(numbers)) for one in known.values()]
    rows = READ_RANGES.rows(
        {
            "range_id": [*known],
            "terms": terms,
            "has_foreign": [one.has_foreign for one in known.values()],
            "slices": [one.slices for one in known.values()],
            "hours": [one.hours for one in known.values()],
        }
    )
    return rows, tuple(numbers)


def with_hours(known: Mapping[str, ReadRange], hours: Collection[int]) -> list[str]:
    """Return the ranges that have rows due at one of these hours, and those with foreign keys."""
    return [id_ for id_, one in known.items() if one.has_foreign or not set(hours).isdisjoint(one.hours)]
