"""Compute the hour from which each object is due by a lifecycle policy. A run saves the hours for the next run.

Each sequence of a slice has the latest hour of its occurrences in commits: UNKNOWN if none names it, NEVER if it is
never due, TAKEN if an earlier run deleted it. So a run reads only

- ranges that no run read yet, or whose rows now stay longer
- all ranges of a slice that begins anew
- row groups with rows that are due now: only these give the paths of the objects

Foreign keys have no hours: each run reads their ranges.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakebed.base import FOREIGN_SLICE, RangeId
from lakebed.gc.engines import Engine, Task
from lakebed.gc.engines.engine import PARTS, Table, decode, encode, parts_of, read_part, required, write_part
from lakebed.gc.mark.inputs.named import LiveSet
from lakebed.gc.mark.inputs.ranges import effort_of_whole, get_range, read_summary
from lakebed.gc.mark.sets.packing import Integers, in_slices
from lakebed.gc.mark.sets.places import Namespace
from lakebed.gc.messages import BadInput, Part, Pieces
from lakebed.gc.rules import HOUR_MS
from lakebed.gc.rules.lifecycle import Policy, latest_due, parse_period
from lakebed.objectstore import ObjectStore
from lakebed.ranges import RangeFile, SliceSummary

from .reaching import DUE_RANGES, Periods, Ranges
from .rows import MIXED, match_rules, open_range, read_columns

UNKNOWN: Final = 0
NEVER: Final = (1 << 31) - 2
TAKEN: Final = (1 << 31) - 1
"""Greater than NEVER, because the later hour applies: a taken object stays taken."""

SEQUENCES_MAX: Final = 1 << 22
"""No hours for sequences from here on. A slice has some ten thousand, so a longer array would be mostly empty."""
ROWS_MAX: Final = 400_000_000
"""No hours for a history with more entries: hours of this many take 1.6 GB in the driver."""
HELD_MAX: Final = 4_000_000
PART_VALUES: Final = 1 << 22
WHOLE: Final = -1
"""In place of the number of terms: no row of the range is ever due."""

HOURS: Final = Table(
    "a slice, with runs of sequences of one hour since 1970: where each ends, and its hour; without ends each is of "
    "one sequence. A slice may come several times",
    required(("slice", pa.int64()), ("ends", pa.binary()), ("hours", pa.binary())),  # uint32 and int32
)
_INTEGERS: Final = pa.list_(pa.field("element", pa.int32(), nullable=False))
_SLICES: Final = pa.list_(pa.field("element", pa.int64(), nullable=False))
READ_RANGES: Final = Table(
    "a range that was read: by which terms, the slices that it names, and its row groups: for each 32 bytes that name "
    "it, the hours at which rows of it are due, and where these end",
    required(
        ("range_id", pa.string()),
        ("terms", pa.int32()),
        ("has_foreign", pa.bool_()),
        ("slices", _SLICES),
        ("groups", pa.binary()),
        ("hours", _INTEGERS),
        ("ends", _INTEGERS),
    ),
)
TO_READ: Final = Table(
    "a range to read, by which terms, and the rule of all its rows: MIXED where that differs",
    pa.schema([*DUE_RANGES.schema, pa.field("rule", pa.int32(), nullable=False)]),
)

Hours = npt.NDArray[np.int32]
GroupName = bytes
_NAME_BYTES: Final = 32


class TooSparse(BadInput):
    """A sequence is too large to keep the hours of its slice as an array."""


class Group(NamedTuple):
    """A row group, and the hours at which rows of it are due by the terms of its range."""

    name: GroupName
    hours: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ReadRange:
    """Hold a row of READ_RANGES. With `periods` None no row is ever due, and the groups are unknown."""

    periods: tuple[Periods, ...] | None
    has_foreign: bool
    slices: tuple[int, ...]
    groups: tuple[Group, ...]

    def keeps_less_than(self, periods: tuple[Periods, ...] | None) -> bool:
        """Return whether `periods` keep all rows at least as long as the range's own periods."""
        if periods is None:
            return True
        if self.periods is None:
            return False
        return all(
            new is None or (old is not None and {*old} <= {*new})
            for old, new in zip(self.periods, periods, strict=True)
        )


@dataclass(frozen=True, slots=True)
class Runs:
    """Hold the hours of a slice as runs, each with its end and hour. Without ends each run is one sequence."""

    ends: npt.NDArray[np.uint32]
    hours: Hours

    @classmethod
    def of(cls, hours: Hours) -> Runs:
        ends = np.append(np.flatnonzero(hours[1:] != hours[:-1]) + 1, len(hours)).astype(np.uint32)
        return cls(ends[:0], hours) if 2 * len(ends) > len(hours) else cls(ends, hours[ends - 1])

    def __len__(self) -> int:
        return int(self.ends[-1]) if len(self.ends) else len(self.hours)

    def each(self) -> Hours:
        """Return the hour of each sequence, from 0 on."""
        return np.repeat(self.hours, np.diff(self.ends, prepend=np.uint32(0))) if len(self.ends) else self.hours.copy()


@dataclass(slots=True)
class Dues:
    """Hold the hours of every slice: as `runs` while they are unchanged, and as `hours` once they are not."""

    # Most slices do not change from run to run, and runs take less memory.

    runs: dict[int, Runs] = field(default_factory=dict)
    hours: dict[int, Hours] = field(default_factory=dict)

    def slices(self) -> list[int]:
        return sorted(self.runs.keys() | self.hours.keys())

    def add(self, slice_: int, sequences: npt.NDArray[Any], hours: Hours | int) -> None:
        """Set the hours of these sequences where they have none, or earlier ones."""
        if not len(sequences):
            return
        last = int(sequences.max())
        if last >= SEQUENCES_MAX:
            raise TooSparse(f"slice {slice_} has the sequence {last}", slice=slice_)
        have = self._opened(slice_)
        if have is None or len(have) <= last:
            # Grow by doubling: sequences arrive in any order.
            grown = np.zeros(max(last + 1, 0 if have is None else min(2 * len(have), SEQUENCES_MAX)), np.int32)
            if have is not None:
                grown[: len(have)] = have
            self.hours[slice_] = have = grown
        if (sequences[1:] > sequences[:-1]).all():
            # No sequence repeats here. This takes a fifth of the time of `maximum.at`.
            have[sequences] = np.maximum(have[sequences], hours)
        else:
            np.maximum.at(have, sequences, hours)

    def add_rows(self, rows: pa.Table) -> None:
        """Add rows of HOURS. Of two hours of a sequence keep the later."""
        for slice_, ends, hours in zip(*(rows[name].to_pylist() for name in HOURS.schema.names), strict=True):
            self._merge(slice_, Runs(np.frombuffer(ends, "<u4"), np.frombuffer(hours, "<i4")))

    def _merge(self, slice_: int, runs: Runs) -> None:
        if len(runs) > SEQUENCES_MAX:
            raise TooSparse(f"slice {slice_} has the sequence {len(runs) - 1}", slice=slice_)
        have = self._opened(slice_)
        if have is None:
            self.runs[slice_] = runs
            return
        have, new = sorted((have, runs.each()), key=len, reverse=True)
        have[: len(new)] = np.maximum(have[: len(new)], new)
        self.hours[slice_] = have

    def take(self, slices: Integers, sequences: Integers) -> None:
        for slice_, part in in_slices(slices):
            self.add(slice_, sequences[part], TAKEN)

    def begin_anew(self, slices: Iterable[int]) -> None:
        for slice_ in slices:
            have = self._opened(slice_)
            if have is not None:
                have[have != TAKEN] = UNKNOWN

    def going(self, now_ms: int) -> dict[int, Hours]:
        """Return the slices with due objects, each with the distinct hours from which these are due."""
        hour, found = now_ms // HOUR_MS, {}
        for slice_, hours in [*((slice_, one.hours) for slice_, one in self.runs.items()), *self.hours.items()]:
            due = hours[(hours > UNKNOWN) & (hours <= hour)]
            if len(due):
                found[slice_] = distinct(due)
        return found

    def bitmaps(self, slices: Iterable[int], now_ms: int) -> LiveSet:
        """Return the due objects of these slices. Leave out those that an earlier run deleted."""
        going, hour = LiveSet(), now_ms // HOUR_MS
        for slice_ in slices:
            hours = self._each(slice_)
            if hours is not None:
                going.add_bits(slice_, np.packbits((hours > UNKNOWN) & (hours <= hour), bitorder="little"))
        return going

    def staying(self, slices: Iterable[int], now_ms: int) -> LiveSet:
        """Return the objects of these slices that are not due, or that an earlier run deleted."""
        live, hour = LiveSet(), now_ms // HOUR_MS
        for slice_ in slices:
            hours = self._each(slice_)
            if hours is not None:
                live.add_bits(slice_, np.packbits(hours > hour, bitorder="little"))
        return live

    def rows(self) -> Iterator[tuple[int, Runs]]:
        """Yield all slices, ascending."""
        for slice_ in self.slices():
            yield slice_, self.runs[slice_] if slice_ in self.runs else Runs.of(self.hours[slice_])

    def _opened(self, slice_: int) -> Hours | None:
        """Return the hours of a slice as an array to change, or None."""
        runs = self.runs.pop(slice_, None)
        if runs is not None:
            self.hours[slice_] = runs.each()
        return self.hours.get(slice_)

    def _each(self, slice_: int) -> Hours | None:
        return self.runs[slice_].each() if slice_ in self.runs else self.hours.get(slice_)


def distinct(hours: Hours) -> Hours:
    """Return these hours (at least one), ascending, each once."""
    first, last = int(hours.min()), int(hours.max())
    if first == last:
        return hours[:1]
    if last - first > _SPREAD_MAX:
        return np.unique(hours)
    # Most hours are of one day. Counting them takes a tenth of the time of sorting.
    return (np.flatnonzero(np.bincount(hours - first)) + first).astype(np.int32)


_SPREAD_MAX: Final = 100_000


async def read_dues(
    engine: Engine,
    ranges: pa.Table,
    periods: Sequence[tuple[Periods, ...]],
    policy: Policy,
    *,
    known: Mapping[tuple[Periods, ...], Mapping[GroupName, Group]],
    uri: str,
    folder: str,
) -> tuple[Pieces, Pieces]:
    """Read the ranges in TO_READ, and write their HOURS and READ_RANGES into `folder`.

    Read only the end of a range with the terms WHOLE. Skip row groups that are `known` with the same periods.
    """
    # A new version of a range shares most row groups with the version before. A group's name is made from its rows.
    namespace = Namespace(uri)

    async def work(task: Task, share: pa.Table) -> AsyncIterator[pa.Table]:
        facts = {row["range_id"]: row for row in share.to_pylist()}
        reading = _Reading()
        # Skip groups that this task read already, too: it writes their hours in any case.
        own = [dict(known.get(of_terms, {})) for of_terms in periods]

        async def read(name: str) -> Any:
            if facts[name]["terms"] == WHOLE:
                return await read_summary(task.store, RangeId(name), facts[name]["file_bytes"])
            return await get_range(task.store, RangeId(name))

        async for name, found in task.ahead([*facts], read):
            number, rule = facts[name]["terms"], facts[name]["rule"]
            if number == WHOLE:
                summary, addresses = found
                reading.add_summary(summary)
                for slice_, sequence in [] if addresses is None else namespace.numbers_of(addresses):
                    reading.add(slice_, np.array([sequence], np.uint32), NEVER)
                reading.end(name, number, (), has_foreign=bool(summary.foreign))
                continue
            file = open_range(RangeId(name), found, facts[name]["count"])
            summary = file.summary
            groups = _read_groups(reading, file, policy, periods[number], own[number], rule=rule, namespace=namespace)
            if not summary.foreign:
                own[number] |= {group.name: group for group in groups}
            slices = {bitmap.slice for bitmap in summary.bitmaps}
            reading.end(name, number, groups, slices, has_foreign=bool(summary.foreign))
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


def _read_groups(
    reading: _Reading,
    file: RangeFile,
    policy: Policy,
    periods: tuple[Periods, ...],
    known: Mapping[GroupName, Group],
    *,
    rule: int,
    namespace: Namespace,
) -> list[Group]:
    """Add the rows of unknown row groups, and return every group of the range."""
    names, has_foreign = file.group_names(), bool(file.summary.foreign)
    groups = {at: known[group] for at, group in enumerate(names) if not has_foreign and group in known}
    new = [at for at in range(len(names)) if at not in groups]
    if new:
        rows = read_columns(file, policy, groups=new, rule=rule, with_addresses=has_foreign)
        hours = hours_of(rows, match_rules(rows, policy) if rule == MIXED else rule, periods)
        _add_rows(reading, rows, hours, namespace)
        ends = np.cumsum([file.group_rows[at] for at in new])
        for at, part in zip(new, np.split(hours, ends[:-1]), strict=True):
            groups[at] = Group(names[at], _due_hours(part))
    return [groups[at] for at in range(len(names))]


def _add_rows(reading: _Reading, rows: pa.Table, hours: Hours, namespace: Namespace) -> None:
    slices, sequences = rows["slice"].to_numpy(), rows["sequence"].to_numpy().astype(np.uint32)
    is_foreign = slices == FOREIGN_SLICE
    if is_foreign.any():
        for at in np.flatnonzero(is_foreign).tolist():
            place = namespace.place_of(rows["address"][at].as_py())
            if isinstance(place, tuple):
                reading.add(place[0], np.array([place[1]], np.uint32), hours[at : at + 1])
        slices, sequences, hours = slices[~is_foreign], sequences[~is_foreign], hours[~is_foreign]
    for slice_, part in in_slices(slices):
        reading.add(slice_, sequences[part], hours[part])


def _due_hours(hours: Hours) -> tuple[int, ...]:
    due = hours[hours != NEVER]
    return tuple(distinct(due).tolist()) if len(due) else ()


class _Reading:
    """Hold the hours and facts of the ranges that a task read."""

    def __init__(self) -> None:
        self.held = 0
        self._dues = Dues()
        self._slices: set[int] = set()
        self._sparse: dict[int, int] = {}
        """Slices whose hours do not fit into arrays, each with its last sequence."""
        self._ranges: list[tuple[str, int, bool, list[int], Sequence[Group]]] = []

    def add_summary(self, summary: SliceSummary) -> None:
        """Add the objects of the summary as never due."""
        for bitmap in summary.bitmaps:
            self.add(bitmap.slice, bitmap.sequences(), NEVER)

    def add(self, slice_: int, sequences: npt.NDArray[np.uint32], hours: Hours | int) -> None:
        """Add hours of the range that `end` names next."""
        self._slices.add(slice_)
        if slice_ in self._sparse:
            return
        self.held += len(sequences)
        try:
            self._dues.add(slice_, sequences, hours)
        except TooSparse:
            self._sparse[slice_] = int(sequences.max())

    def end(
        self, name: str, terms: int, groups: Sequence[Group], slices: Iterable[int] = (), *, has_foreign: bool
    ) -> None:
        """Record the facts of a range. `slices` are further ones that it names, in groups that were not read."""
        self._ranges.append((name, terms, has_foreign, sorted(self._slices.union(slices)), groups))
        self._slices = set()

    async def write(self, store: ObjectStore, folder: str) -> AsyncIterator[pa.Table]:
        if not self._ranges:
            return
        for slice_, last in self._sparse.items():
            # Write a run that ends after the last sequence: the driver raises TooSparse on it. Raised in `add`, the
            # error would fail the task.
            self._dues.hours.pop(slice_, None)
            self._dues.runs[slice_] = Runs(np.array([last + 1], np.uint32), np.array([NEVER], np.int32))
        rows, facts = _rows_of_hours(self._dues.rows()), _rows_of_read(self._ranges)
        for what, table, found in (("dues", HOURS, rows), ("read", READ_RANGES, facts)):
            data = encode(table, found)
            # Name the file by its bytes, because a task may run twice.
            name = f"{what}-{hashlib.sha256(data).hexdigest()[:24]}.parquet"
            yield await write_part(store, folder, name, data, rows=found.num_rows, note=None)


def _rows_of_hours(found: Iterable[tuple[int, Runs]]) -> pa.Table:
    """Return rows of HOURS."""
    rows = [(slice_, runs.ends.astype("<u4").tobytes(), runs.hours.astype("<i4").tobytes()) for slice_, runs in found]
    slices, ends, hours = zip(*rows, strict=True) if rows else [()] * 3
    return HOURS.rows({"slice": slices, "ends": ends, "hours": hours})


def _rows_of_read(ranges: Sequence[tuple[str, int, bool, Sequence[int], Sequence[Group]]]) -> pa.Table:
    """Return rows of READ_RANGES."""
    names, terms, foreign, slices, groups = zip(*ranges, strict=True) if ranges else [()] * 5
    return READ_RANGES.rows(
        {
            "range_id": names,
            "terms": terms,
            "has_foreign": foreign,
            "slices": slices,
            "groups": [b"".join([group.name for group in one]) for one in groups],
            "hours": [[hour for group in one for hour in group.hours] for one in groups],
            "ends": [[*accumulate(len(group.hours) for group in one)] for one in groups],
        }
    )


def hours_of(rows: pa.Table, rule_of: Integers | int, periods: tuple[Periods, ...]) -> Hours:
    """Return for each row the hour from which its rule makes it due on all branches. Rule -1 makes no row due."""
    modified_ms = rows["modified_ms"].to_numpy()
    found = np.full(rows.num_rows, NEVER, np.int32)
    for rule in [rule_of] if isinstance(rule_of, int) else np.unique(rule_of).tolist():
        of_rule = None if rule < 0 else periods[rule]
        if of_rule is not None:
            chosen: Any = slice(None) if isinstance(rule_of, int) else rule_of == rule
            written_ms = modified_ms[chosen]
            due_ms = latest_due([parse_period(period) for period in of_rule], written_ms)
            # A row that was due before 1970 is due. UNKNOWN would mean that no commit names it.
            found[chosen] = np.clip(due_ms // HOUR_MS, UNKNOWN + 1, NEVER)
    return found


async def read_pieces(store: ObjectStore, pieces: Pieces, table: Table) -> AsyncIterator[pa.Table]:
    """Yield a table for each part, or raise BadInput."""
    for part in pieces.parts:
        yield decode(table, await read_part(store, pieces.folder, part), part)


async def write_hours(store: ObjectStore, folder: str, dues: Dues) -> Pieces:
    """Write HOURS in the order of slices."""
    parts: list[Part] = []
    some: list[tuple[int, Runs]] = []
    held = 0

    async def write() -> None:
        data = encode(HOURS, _rows_of_hours(some))
        name = f"hours-{len(parts):05d}.parquet"
        parts.extend(parts_of(await write_part(store, folder, name, data, rows=len(some), note=None)))
        some.clear()

    for slice_, runs in dues.rows():
        some.append((slice_, runs))
        held += len(runs.ends) + len(runs.hours)
        if held >= PART_VALUES:
            await write()
            held = 0
    if some:
        await write()
    return Pieces(folder=folder, parts=tuple(parts))


async def read_hours(store: ObjectStore, pieces: Pieces) -> Dues:
    dues = Dues()
    async for rows in read_pieces(store, pieces, HOURS):
        dues.add_rows(rows)
    return dues


@dataclass(frozen=True, slots=True, kw_only=True)
class ToRead:
    """Hold the `ranges` (TO_READ) that a run must read. The terms are WHOLE if no row is ever due.

    `anew` are slices that begin anew. `known` are unchanged ranges that need no read, `groups` their row groups.
    """

    ranges: pa.Table
    anew: frozenset[int]
    known: dict[str, ReadRange]
    groups: dict[tuple[Periods, ...], dict[GroupName, Group]]


def groups_of(ranges: Iterable[ReadRange]) -> dict[tuple[Periods, ...], dict[GroupName, Group]]:
    """Return the row groups of these ranges by the periods that they were read by."""
    found: dict[tuple[Periods, ...], dict[GroupName, Group]] = {}
    for one in ranges:
        if one.periods is not None:
            found.setdefault(one.periods, {}).update({group.name: group for group in one.groups})
    return found


def to_read(ranges: Ranges, known: Mapping[str, ReadRange], rules_of: Callable[[pa.ChunkedArray], Hours]) -> ToRead:
    """Compare the ranges of a history with those that an earlier run read.

    `rules_of` returns for each id the rule of all rows of its range, or MIXED.
    """
    whole = ranges.whole.set_column(3, "terms", pa.array([WHOLE] * ranges.whole.num_rows, pa.int32()))
    every = pa.concat_tables([ranges.due, whole.cast(DUE_RANGES.schema)])
    # Make Python objects of the known ranges only: a history may have a million ranges.
    at = pc.index_in(pa.array([*known], pa.string()), value_set=every["range_id"])
    periods = {**{number: terms.periods for number, terms in enumerate(ranges.terms)}, WHOLE: None}
    numbers = every["terms"].take(at).to_pylist()
    now = {id_: periods[number] for id_, number in zip(known, numbers, strict=True) if number is not None}
    anew: set[int] = set()
    # A slice has the latest hour of all ranges. If a range is gone, or its rows stay less long, the slice begins anew:
    # read all ranges that name it.
    for id_, read in known.items():
        if id_ not in now or not read.keeps_less_than(now[id_]):
            anew.update(read.slices)
    stays = {
        id_: read
        for id_, read in known.items()
        if id_ in now and now[id_] == read.periods and (not anew or anew.isdisjoint(read.slices))
    }
    is_known = pc.is_in(every["range_id"], value_set=pa.array([*stays], pa.string()))
    rows = every.filter(pc.invert(is_known))
    return ToRead(
        ranges=rows.append_column(TO_READ.schema.field("rule"), pa.array(rules_of(rows["range_id"]))),
        anew=frozenset(anew),
        known=stays,
        groups=groups_of(stays.values()),
    )


def known_ranges(rows: pa.Table, periods: Sequence[tuple[Periods, ...]]) -> dict[str, ReadRange]:
    """Return the rows of READ_RANGES by id."""
    columns = (rows[name].to_pylist() for name in READ_RANGES.schema.names)
    return {
        id_: ReadRange(
            periods=None if terms == WHOLE else periods[terms],
            has_foreign=has_foreign,
            slices=tuple(slices),
            groups=tuple(
                Group(names[_NAME_BYTES * at : _NAME_BYTES * (at + 1)], tuple(hours[start:end]))
                for at, (start, end) in enumerate(pairwise([0, *ends]))
            ),
        )
        for id_, terms, has_foreign, slices, names, hours, ends in zip(*columns, strict=True)
    }


def rows_of_known(known: Mapping[str, ReadRange]) -> tuple[pa.Table, tuple[tuple[Periods, ...], ...]]:
    """Return READ_RANGES, and the terms by number."""
    numbers: dict[tuple[Periods, ...], int] = {}
    rows = [
        (
            id_,
            WHOLE if one.periods is None else numbers.setdefault(one.periods, len(numbers)),
            one.has_foreign,
            one.slices,
            one.groups,
        )
        for id_, one in known.items()
    ]
    return _rows_of_read(rows), tuple(numbers)


def with_due(known: Mapping[str, ReadRange], going: Mapping[int, Hours]) -> dict[str, list[int]]:
    """Return the ranges that name slices with due objects, each with the numbers of the row groups to read.

    Of equal groups choose one, and of a range with foreign keys all groups. `going` has for each slice the hours from
    which its objects are due.
    """
    found: dict[str, list[int]] = {}
    hours = {slice_: frozenset(some.tolist()) for slice_, some in going.items()}
    seen: set[GroupName] = set()
    for id_, one in known.items():
        # Foreign keys have no hours.
        if one.has_foreign:
            found[id_] = [*range(len(one.groups))]
            continue
        wanted = frozenset[int]().union(*(hours[slice_] for slice_ in one.slices if slice_ in hours))
        for at, group in enumerate(one.groups if wanted else ()):
            # An object to delete is due wherever it is named, so one of several equal groups is enough.
            if not wanted.isdisjoint(group.hours) and group.name not in seen:
                seen.add(group.name)
                found.setdefault(id_, []).append(at)
    return found
