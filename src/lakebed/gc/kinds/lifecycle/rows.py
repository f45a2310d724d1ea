"""Find due objects in the rows of the ranges that reaching.py selects.

A row is due, or it stays. An object is deleted if a row of it is due and no row of it stays (mark.py subtracts). Of a
range without due rows only the end is read: its slice summary has the objects that stay.

`gc/rules/lifecycle/due.py` is the specification; a property test compares both.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakebed.base import FOREIGN_SLICE, RangeId, format_address
from lakebed.gc.engines import Engine, Task
from lakebed.gc.engines.engine import PARTS, Table, required
from lakebed.gc.mark.inputs.named import DUE, STAYS, Sides, read_live
from lakebed.gc.mark.inputs.ranges import (
    ListedRanges,
    effort_of_whole,
    get_range,
    in_closed_slices,
    pack_rows,
    texts_of,
)
from lakebed.gc.mark.inputs.selecting import matching, with_metadata
from lakebed.gc.mark.sets.bucketed import HELD_MAX, Bucketed, effort_of, in_shares, rows_of_shares, side_of
from lakebed.gc.mark.sets.packing import Cause, Integers, in_slices, is_set
from lakebed.gc.mark.sets.places import Namespace
from lakebed.gc.messages import BadInput, Pieces
from lakebed.gc.rules.lifecycle import PathPattern, Policy, latest_due, parse_period
from lakebed.objectstore import ObjectStore
from lakebed.ranges import KeyColumn, RangeCorrupt, RangeFile, chunk, range_number

from .reaching import Terms
from .sorting import due_in

LIFECYCLE: Final = "lifecycle"
"""The reason in plans."""

MIXED: Final = -2
"""In place of a rule's number: the rows have different rules."""

VERSIONS: Final = Table(
    "a row of a range whose path has a rule that keeps versions; `rule` is -1 where the row is not due",
    required(
        ("path", pa.string()),
        ("key", pa.binary()),
        ("slice", pa.int64()),
        ("sequence", pa.int32()),
        ("address", pa.string()),
        ("size_bytes", pa.int64()),
        ("modified_ms", pa.int64()),
        ("seen_in", pa.int64()),
        ("rule", pa.int32()),
        ("terms", pa.int32()),
    ),
)

Bitmap = npt.NDArray[np.uint8]
_NO_BITS: Final = np.empty(0, np.uint8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judging:
    """Hold everything that tasks need to judge rows.

    With `until_ms`, judge as of that instant, and date each candidate by when it becomes due.
    """

    policy: Policy
    terms: Sequence[Terms]
    namespace: Namespace
    closed: pa.Array
    now_ms: int
    until_ms: int | None = None

    def cutoffs(self, number: int) -> list[int | None]:
        """Return the cut-off by rule: a row of these terms that was written before it is due. None: no row is due."""
        at_ms = self.now_ms if self.until_ms is None else self.until_ms
        return [
            None if periods is None else min(parse_period(period).cutoff_ms(at_ms) for period in periods)
            for periods in self.terms[number].periods
        ]

    def seen_ms(self, number: int, rule: int, written_ms: Integers) -> Integers:
        if self.until_ms is None:
            return written_ms
        periods = self.terms[number].periods[rule] or ()
        due: Integers = latest_due([parse_period(period) for period in periods], written_ms)
        return due

    def judge(self, rows: pa.Table, number: int) -> tuple[Integers, npt.NDArray[np.bool_]]:
        """Return for each row of these terms the number of its rule, -1 for none, and whether it is due."""
        rule_of = match_rules(rows, self.policy)
        return rule_of, due_rows(rows, rule_of, self.cutoffs(number))

    def add_due(self, sides: Sides, rows: pa.Table, rule_of: Integers, number: int, seen_in: Integers | int) -> None:
        """Add CANDIDATES of due rows, rule by rule. `seen_in`: the `range_number` of all rows, or of each."""
        ranges = np.broadcast_to(np.asarray(seen_in, np.int64), rows.num_rows)
        for rule in np.unique(rule_of).tolist():
            chosen = rule_of == rule
            part = rows.filter(pa.array(chosen))
            branch = self.terms[number].branches[rule]
            # Plans have no column for the branch. A simulation needs no reason, so it has the branch there.
            reason = LIFECYCLE if self.until_ms is None else branch
            cause = Cause(reason=reason, rule=self.policy.rules[rule].text(), branch=branch)
            seen_ms = self.seen_ms(number, rule, part["modified_ms"].to_numpy())
            for packed in pack_rows(part, cause, seen_ms, self.namespace, seen_in=ranges[chosen]):
                sides.add(DUE, in_closed_slices(packed, self.closed))


_OBJECT: Final = ["slice", "sequence", "address"]
_VERSIONS: Final = "versions/"


async def deal_due(engine: Engine, ranges: pa.Table, judging: Judging, *, folder: str) -> tuple[Bucketed, Bucketed]:
    """Write due objects of `Ranges.due` as CANDIDATES, and objects that stay as LIVE, into folders in `folder`.

    Leave out candidates in slices that are not closed.
    """
    policy = judging.policy
    counted = [rule.pattern for rule in policy.rules if rule.keep_versions]

    async def work(task: Task, share: pa.Table) -> AsyncIterator[pa.Table]:
        sides = Sides(folder, judging.namespace, {_VERSIONS: VERSIONS})
        facts = {row["range_id"]: row for row in (await due_in(task, share)).to_pylist()}
        async for name, data in task.ahead([*facts], lambda id_: get_range(task.store, RangeId(id_))):
            number, seen_in = facts[name]["terms"], range_number(RangeId(name))
            rows = read_rows(RangeId(name), data, facts[name]["count"], policy)
            rule_of, is_due = judging.judge(rows, number)
            # One range may not have all versions of a path. So deal these rows by path, and count them in a second map.
            if counted:
                is_counted = _any_matches(rows, counted)
                sides.add(_VERSIONS, _versions(rows, rule_of, is_due, number, np.flatnonzero(is_counted), seen_in))
                rest = pa.array(~is_counted)
                rows, rule_of, is_due = rows.filter(rest), rule_of[~is_counted], is_due[~is_counted]
            sides.add_staying(rows.select(_OBJECT).filter(pa.array(~is_due)))
            judging.add_due(sides, rows.filter(pa.array(is_due)), rule_of[is_due], number, seen_in)
            async for row in sides.write(task, held_max=HELD_MAX):
                yield row
        async for row in sides.write(task):
            yield row

    async def count_versions(task: Task, share: pa.Table) -> AsyncIterator[pa.Table]:
        sides = Sides(folder, judging.namespace)
        async for _, (tables,) in in_shares(task, share, ([versions], VERSIONS)):
            for due, rule_of, number in stale_versions(pa.concat_tables(tables), judging, sides.add_staying):
                judging.add_due(sides, due, rule_of, number, due["seen_in"].to_numpy())
            async for row in sides.write(task, held_max=HELD_MAX):
                yield row
        async for row in sides.write(task):
            yield row

    written = await engine.run(work, ranges, PARTS, effort=ListedRanges(ranges).effort_of_whole)
    if counted:
        versions = side_of(written, folder, _VERSIONS)
        more = await engine.run(count_versions, rows_of_shares(versions), PARTS, effort=effort_of(versions))
        written = pa.concat_tables([written, more])
    return side_of(written, folder, DUE), side_of(written, folder, STAYS)


async def deal_going(
    engine: Engine,
    ranges: pa.Table,
    judging: Judging,
    *,
    groups: Mapping[str, Sequence[int]],
    going: Pieces,
    folder: str,
) -> tuple[Bucketed, Bucketed]:
    """Write the objects of these row groups that are `going` as CANDIDATES. `going` is a bitmap (LIVE) for each slice.

    Judge foreign keys by their rows, as `deal_due` does. Write those that stay as LIVE.
    """
    policy = judging.policy

    async def work(task: Task, share: pa.Table) -> AsyncIterator[pa.Table]:
        sides = Sides(folder, judging.namespace)
        facts = {row["range_id"]: row for row in share.to_pylist()}
        bitmaps = await read_going(task.store, going)
        async for name, data in task.ahead([*facts], lambda id_: get_range(task.store, RangeId(id_))):
            number, file = facts[name]["terms"], open_range(RangeId(name), data, facts[name]["count"])
            goes = _goes(file.table(_OBJECT, groups[name]), bitmaps, judging.namespace)
            rows = rows_that_go(file, policy, groups[name], goes)
            rule_of, is_due = judging.judge(rows, number)
            is_foreign = rows["slice"].to_numpy() == FOREIGN_SLICE
            # The saved hours are wrong, so delete nothing by them.
            if not (is_due | is_foreign).all():
                raise BadInput(f"range {name} has rows that stay, and hours say that they go", range_id=name)
            sides.add_staying(rows.select(_OBJECT).filter(pa.array(~is_due)))
            seen_in = range_number(RangeId(name))
            judging.add_due(sides, rows.filter(pa.array(is_due)), rule_of[is_due], number, seen_in)
            async for row in sides.write(task, held_max=HELD_MAX):
                yield row
        async for row in sides.write(task):
            yield row

    written = await engine.run(work, ranges, PARTS, effort=effort_of_whole(ranges))
    return side_of(written, folder, DUE), side_of(written, folder, STAYS)


def rows_that_go(
    file: RangeFile,
    policy: Policy,
    groups: Sequence[int],
    goes: npt.NDArray[np.bool_],
    *,
    with_addresses: bool = True,
) -> pa.Table:
    """Return the columns for rules of the rows where `goes` is true. It has a flag for each row of these row groups."""
    sizes = np.array([file.group_rows[group] for group in groups])
    # Keys take the longest to read, and most row groups have no row to delete. So read only groups with such rows.
    has = np.add.reduceat(goes, np.cumsum(sizes) - sizes) > 0
    chosen = [group for group, some in zip(groups, has.tolist(), strict=True) if some]
    rows = read_columns(file, policy, groups=chosen, with_addresses=with_addresses)
    goes = goes[np.repeat(has, sizes)]
    return rows if goes.all() else rows.filter(pa.array(goes))


def _goes(rows: pa.Table, bitmaps: Mapping[int, Bitmap], namespace: Namespace) -> npt.NDArray[np.bool_]:
    """Return for each row whether a bitmap has its object. A foreign key outside of all slices gives True."""
    goes = goes_of(rows, bitmaps)
    is_foreign = rows["slice"].to_numpy() == FOREIGN_SLICE
    goes |= is_foreign
    for at in np.flatnonzero(is_foreign).tolist():
        place = namespace.place_of(rows["address"][at].as_py())
        if isinstance(place, tuple):
            goes[at] = is_set(bitmaps.get(place[0], _NO_BITS), np.array([place[1]]))[0]
    return goes


def goes_of(rows: pa.Table, bitmaps: Mapping[int, Bitmap]) -> npt.NDArray[np.bool_]:
    """Return for each row whether the bitmap of its slice has its sequence."""
    slices, sequences = rows["slice"].to_numpy(), rows["sequence"].to_numpy()
    goes = np.zeros(len(slices), np.bool_)
    for slice_, part in in_slices(slices):
        if slice_ in bitmaps:
            goes[part] = is_set(bitmaps[slice_], sequences[part])
    return goes


async def read_going(store: ObjectStore, going: Pieces) -> dict[int, Bitmap]:
    """Return the bitmap of each slice."""
    rows = await read_live(store, going)
    bitmaps = (np.frombuffer(bitmap, np.uint8) for bitmap in rows["bitmap"].to_pylist())
    return dict(zip(rows["bucket"].to_pylist(), bitmaps, strict=True))


def read_rows(id_: RangeId, data: bytes, count: int, policy: Policy) -> pa.Table:
    """Return the columns for rules of all rows, with objects and paths."""
    return read_columns(open_range(id_, data, count), policy)


def open_range(id_: RangeId, data: bytes, count: int) -> RangeFile:
    """Open a range with this number of entries."""
    file = RangeFile(id_, data)
    if len(file) != count:
        raise RangeCorrupt(id_, f"has {len(file)} entries instead of {count}")
    return file


def read_columns(
    file: RangeFile,
    policy: Policy,
    *,
    groups: Sequence[int] | None = None,
    rule: int = MIXED,
    with_addresses: bool = True,
) -> pa.Table:
    """Read the columns for rules. If one `rule` applies to all rows, leave out paths, sizes and metadata."""
    # Only foreign keys need addresses.
    columns = ["slice", "sequence", "modified_ms", *(["address"] if with_addresses else [])]
    if rule == MIXED:
        columns += ["key", "size_bytes"]
        if any(rule.metadata for rule in policy.rules):
            columns.append("metadata")
    return file.table(columns, groups)


def rule_of_span(policy: Policy, first: bytes, last: bytes) -> int:
    """Return the number of the rule that applies to all keys from the first to the last, -1 for none, or MIXED."""
    for prefix in policy.pins.prefixes:
        start = prefix.encode()
        if first[: len(start)] <= start <= last[: len(start)]:
            return MIXED
    # Rules are sorted. The most specific comes first and wins.
    for number, rule in enumerate(policy.rules):
        start = rule.pattern.literal_beginning()
        if first[: len(start)] <= start <= last[: len(start)]:
            is_for_all = rule.pattern.is_prefix and not rule.min_size and not rule.metadata
            return number if is_for_all and first.startswith(start) and last.startswith(start) else MIXED
    return -1


def match_rules(rows: pa.Table, policy: Policy) -> Integers:
    """Return for each row the number of the rule that applies, or -1 for none. Keys must ascend."""
    keys = KeyColumn(chunk(rows, "key"))
    found = np.full(rows.num_rows, -1, np.int64)
    # The most specific rule comes first and wins, so write it last.
    for number in reversed(range(len(policy.rules))):
        rule = policy.rules[number]
        part = stretch(keys, rule.pattern)
        chosen = _matching_in(rows, part, rule.pattern)
        if rule.min_size:
            chosen &= rows["size_bytes"].to_numpy()[part] >= rule.min_size
        if rule.metadata and chosen.any():
            chosen &= with_metadata(rows["metadata"].slice(part.start, len(chosen)), rule.metadata)
        found[part][chosen] = number
    # Pins override every rule.
    for prefix in policy.pins.prefixes:
        found[stretch(keys, PathPattern(prefix, True))] = -1
    return found


def stretch(keys: KeyColumn, pattern: PathPattern) -> slice:
    """Return the slice of ascending keys that begin as all paths of the pattern do. Of a prefix, all of them match."""
    start = pattern.literal_beginning()
    if not len(keys) or not keys[0][: len(start)] <= start <= keys[len(keys) - 1][: len(start)]:
        return slice(0, 0)
    first = bisect_left(keys, start)
    return slice(first, bisect_right(keys, start, first, key=lambda key: key[: len(start)]))


def _matching_in(rows: pa.Table, part: slice, pattern: PathPattern) -> npt.NDArray[np.bool_]:
    count = part.stop - part.start
    if pattern.is_prefix or not count:
        return np.full(count, True)
    return matching(texts_of(rows["key"].slice(part.start, count)), pattern)


def due_rows(rows: pa.Table, rule_of: Integers, cutoffs: Sequence[int | None]) -> npt.NDArray[np.bool_]:
    """Return for each row whether it is due: written before the cut-off of its rule."""
    # Rule -1 takes the last limit, before which no row was written.
    limits = np.array([*(_BEFORE_ALL if one is None else one for one in cutoffs), _BEFORE_ALL], np.int64)
    due: npt.NDArray[np.bool_] = rows["modified_ms"].to_numpy() < limits[rule_of]
    return due


_BEFORE_ALL: Final = -(1 << 63)


def _any_matches(rows: pa.Table, patterns: Sequence[PathPattern]) -> npt.NDArray[np.bool_]:
    paths = texts_of(rows["key"])
    found: npt.NDArray[np.bool_] = np.any([matching(paths, pattern) for pattern in patterns], axis=0)
    return found


def _versions(
    rows: pa.Table,
    rule_of: Integers,
    is_due: npt.NDArray[np.bool_],
    number: int,
    chosen: npt.NDArray[np.int64],
    seen_in: int,
) -> pa.Table:
    part = rows.take(pa.array(chosen))
    return VERSIONS.rows(
        {
            "path": texts_of(part["key"]),
            **{name: part[name] for name in ("key", "slice", "sequence", "address", "size_bytes", "modified_ms")},
            "seen_in": np.full(len(chosen), seen_in, np.int64),
            "rule": np.where(is_due[chosen], rule_of[chosen], -1).astype(np.int32),
            "terms": np.full(len(chosen), number, np.int32),
        }
    )


def stale_versions(
    rows: pa.Table, judging: Judging, keep: Callable[[pa.Table], None]
) -> Iterator[tuple[pa.Table, Integers, int]]:
    """Yield the due VERSIONS that are not among the newest of their path on any branch. Pass the others to `keep`.

    `rows` must have all versions of their paths.
    """
    objects = [_object_of(row, judging.namespace) for row in rows.select(_OBJECT).to_pylist()]
    facts = [rows[name].to_pylist() for name in ("path", "modified_ms", "terms", "rule")]
    dates: dict[tuple[str, int], dict[str, int]] = {}
    for object_, path, modified_ms, number, _ in zip(objects, *facts, strict=True):
        for class_ in judging.terms[number].classes:
            of_path = dates.setdefault((path, class_), {})
            of_path[object_] = max(modified_ms, of_path.get(object_, modified_ms))
    newest = {place: sorted(found, key=lambda object_: (-found[object_], object_)) for place, found in dates.items()}
    goes = np.zeros(rows.num_rows, np.bool_)
    for at, (object_, path, _, number, rule) in enumerate(zip(objects, *facts, strict=True)):
        if rule >= 0:
            count, classes = judging.policy.rules[rule].keep_versions, judging.terms[number].classes
            # Class 0 stands for unknown branches. Any version may be the newest there.
            goes[at] = not count or (
                0 not in classes and not any(object_ in newest[path, class_][:count] for class_ in classes)
            )
    keep(rows.filter(pa.array(~goes)))
    numbers, rules = rows["terms"].to_numpy(), rows["rule"].to_numpy()
    for number in np.unique(numbers[goes]).tolist():
        chosen = np.flatnonzero(goes & (numbers == number))
        # Packing needs ascending keys.
        part = rows.take(pa.array(chosen)).append_column("place", pa.array(chosen)).sort_by("key")
        yield part, rules[part["place"].to_numpy()], number


def _object_of(row: dict[str, Any], namespace: Namespace) -> str:
    """Return one name for both spellings of an address, so that they are one version."""
    if row["slice"] != FOREIGN_SLICE:
        return format_address(row["slice"], row["sequence"])
    place = namespace.place_of(row["address"])
    return format_address(*place) if isinstance(place, tuple) else place or str(row["address"])
