"""Turn commits into metaranges, and collect every named address: of ranges, of records, and of unfinished runs.

Each of the three is a `Source`: in a task it reads the addresses that its rows name, and yields them in pieces. Two
sinks write any source into the run's folder in buckets (gc/mark/sets/bucketed.py):

    deal_live   LIVE: a bitmap for each slice, and foreign keys if they are wanted
    deal_keys   NAMED: foreign keys alone
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakebed.base import FOREIGN_SLICE
from lakebed.gc import messages
from lakebed.gc.engines import Effort, Engine, Task
from lakebed.gc.engines.engine import (
    CANDIDATES,
    LIVE,
    METARANGES,
    PARTS,
    Table,
    check_table,
    check_whole,
    decode,
    encode,
    parts_of,
    read_part,
    rows_by_key,
    write_part,
)
from lakebed.gc.mark.sets.bucketed import (
    HELD_MAX,
    NAMED,
    Bucketed,
    Dealer,
    buckets_of,
    effort_of,
    files_of,
    in_shares,
    in_side,
    rows_of_shares,
)
from lakebed.gc.mark.sets.packing import Integers, bitmap_of, lists_of, starts_of
from lakebed.gc.mark.sets.places import Namespace
from lakebed.gc.messages import ExpiringCommit, Manifest, Pieces, Plan, StartedRun
from lakebed.gc.rules import EmptyLiveSet, Lines, Rules, kept_indices, lines_of, places_of, repeated
from lakebed.gc.runs.context import RunContext, folder_in
from lakebed.objectstore import ObjectStore

# Commits become the table METARANGES: kept or expired, with the reason. A million commits are small (a walk over them
# takes 0.04 s), so this runs on the driver, and no step here needs Spark. `lakebed.gc.rules` gives the verdict.

EXPIRED = "expired"
DANGLING = "dangling"
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Causes:
    """Give (reason, rule, branch) for each commit, by number. If several branches have a commit, the cause is the
    branch that would keep it longest."""

    distinct: list[tuple[str, str, str]]
    number_of: npt.NDArray[np.int64] | None

    def columns(self, rows: npt.NDArray[np.int64]) -> dict[str, pa.Array]:
        numbers = np.zeros(len(rows), np.int64) if self.number_of is None else self.number_of[rows]
        texts = zip(*self.distinct, strict=True)
        taken = [pa.array(text, pa.string()).take(pa.array(numbers)) for text in texts]
        return dict(zip(("reason", "rule", "branch"), taken, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """Hold every commit record and its verdict. A swept commit is neither `kept` nor `expired`."""

    commits: pa.Table
    kept: Flags
    expired: Flags
    metaranges: pa.Table
    """METARANGES, live and expired."""
    causes: Causes

    def expired_ids(self) -> pa.Array:
        return self.commits["id"].combine_chunks().filter(pa.array(self.expired))


def judge(commits: pa.Table, refs: pa.Table, rules: Rules, *, now_ms: int) -> Judged:
    """Judge COMMITS and REFS (tables of `lakebed.gc.messages`) by the retention rules, or raise BrokenHistory. Takes
    about 0.6 µs a commit.
    """
    ids = commits["id"].combine_chunks()
    first_parent, heads, pinned = _roots(ids, commits["parents"].combine_chunks(), refs, rules)
    created_ms = commits["creation_date"].cast(pa.int64()).to_numpy()
    lines = lines_of(first_parent=first_parent, heads=heads, rules=rules, now_ms=now_ms)
    kept = kept_indices(
        first_parent=first_parent,
        created_ms=created_ms,
        heads=heads,
        pinned=pinned,
        rules=rules,
        now_ms=now_ms,
        lines=lines,
    )
    causes = _causes(lines, rules)
    swept = commits["swept"].to_numpy()
    kept, expired = kept & ~swept, ~kept & ~swept
    return Judged(
        commits=commits,
        kept=kept,
        expired=expired,
        metaranges=_metaranges(commits, created_ms, kept, expired, causes),
        causes=causes,
    )


def only_active(commits: pa.Table, refs: pa.Table, rules: Rules, *, pinned: Collection[str], now_ms: int) -> pa.Table:
    """Return COMMITS, and mark commits that the retention rules expire as swept, except for `pinned` ones.

    Raises:
        BrokenHistory: see `judge`.
    """
    judged = spare(judge(commits, refs, rules, now_ms=now_ms), pinned)
    gone = pc.or_(commits["swept"], pa.chunked_array([judged.expired]))
    return commits.set_column(commits.schema.get_field_index("swept"), commits.schema.field("swept"), gone)


def spare(judged: Judged, held: Collection[str]) -> Judged:
    """Keep these commits, although the rules expire them."""
    if not held:
        return judged
    is_held = pc.is_in(judged.commits["id"], value_set=pa.array(sorted(held), pa.string()))
    # Only expired commits change: a swept commit has no data to keep.
    flags = is_held.to_numpy() & judged.expired
    kept, expired = judged.kept | flags, judged.expired & ~flags
    created_ms = judged.commits["creation_date"].cast(pa.int64()).to_numpy()
    metaranges = _metaranges(judged.commits, created_ms, kept, expired, judged.causes)
    return replace(judged, kept=kept, expired=expired, metaranges=metaranges)


def expiring(judged: Judged, *, limit: int) -> list[ExpiringCommit]:
    """Return expired commits with reasons, newest first, at most `limit`. They have no messages here."""
    rows = np.flatnonzero(judged.expired)
    created_ms = judged.commits["creation_date"].cast(pa.int64()).to_numpy()
    rows = rows[np.argsort(-created_ms[rows], kind="stable")[:limit]]
    columns = {"id": judged.commits["id"].combine_chunks().take(pa.array(rows)), **judged.causes.columns(rows)}
    return [
        ExpiringCommit(created_ms=made, **row)
        for made, row in zip(created_ms[rows].tolist(), pa.table(columns).to_pylist(), strict=True)
    ]


def metaranges_of_all(commits: pa.Table) -> pa.Table:
    """Return METARANGES of every unswept commit, reachable or not, all live."""
    # A run of uncommitted data must keep the objects of every commit.
    there = ~commits["swept"].to_numpy()
    return _metaranges(commits, np.zeros(len(there), np.int64), there, np.zeros(len(there), np.bool_), _NO_CAUSES)


def newly_kept(planned: pa.Table, now: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Return the METARANGES that a recheck must read: of commits kept only now, and of those kept in the plan, too.

    `planned` has the ids that the plan kept. `now` is COMMITS as the server wrote it when it published the expiry.
    """
    kept = ~now["expiring"].to_numpy() & ~now["swept"].to_numpy()
    known = pc.is_in(now["id"].combine_chunks(), value_set=planned["id"].combine_chunks()).to_numpy(
        zero_copy_only=False
    )
    none = np.zeros(len(kept), np.bool_)
    zeros = np.zeros(len(kept), np.int64)
    new = _metaranges(now, zeros, kept & ~known, none, _NO_CAUSES)
    old = _metaranges(now, zeros, kept & known, none, _NO_CAUSES)
    return new, old


def _roots(
    ids: pa.Array, parents: pa.Array, refs: pa.Table, rules: Rules
) -> tuple[npt.NDArray[np.int64], dict[str, int], list[int]]:
    """Return the first parents, the rows of branch heads by name, and the rows of pinned commits: holds, refs that are
    being made, and tags if they pin."""
    branches: list[str] = []
    pinned: list[tuple[str, str]] = []
    named: list[tuple[str, str]] = []
    for kind, name, commit, state in zip(
        *(refs[column].to_pylist() for column in ("kind", "name", "commit_id", "state")), strict=True
    ):
        if kind == "branch" and state == "active":
            branches.append(name)
            named.append((f"branch {name}", commit))
        elif kind != "tag" or state != "active" or rules.tags_pin:
            pinned.append(("a ref", commit))
    first_parent, rows = places_of(ids, parents, [*named, *pinned])
    return first_parent, dict(zip(branches, rows, strict=False)), rows[len(branches) :]


_NO_CAUSES: Final = Causes([("", "", "")], None)


def _causes(lines: Lines, rules: Rules) -> Causes:
    default = f"default: {rules.default}"
    distinct = []
    for branch in lines.branches:
        found = rules.rule_of(branch)
        distinct.append((EXPIRED, default if found is None else f"{found.pattern}: {found.period}", branch))
    # A dangling commit has the last cause.
    number_of = np.where(lines.branch_of < 0, len(distinct), lines.branch_of)
    return Causes([*distinct, (DANGLING, default, "")], number_of)


def _metaranges(
    commits: pa.Table, created_ms: npt.NDArray[np.int64], kept: Flags, expired: Flags, causes: Causes
) -> pa.Table:
    """Return one row a metarange of the commits in either set. It is live if any kept commit has it. Otherwise it has
    the cause of the newest commit."""
    names = commits["metarange_id"].combine_chunks()
    has_entries = pc.not_equal(names, "").to_numpy(zero_copy_only=False)
    chosen = np.flatnonzero((kept | expired) & has_entries)
    if len(chosen) < len(names):
        names = names.take(pa.array(chosen))
    last = _last_of_each(names, kept[chosen], created_ms[chosen])
    commit = chosen[last]
    return METARANGES.rows(
        {
            "metarange_id": names.take(pa.array(last)),
            "is_live": kept[commit],
            "seen_ms": created_ms[commit],
            **causes.columns(commit),
        }
    )


def _last_of_each(ids: pa.Array, kept: Flags, created_ms: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return one row for each id: a kept one if there is one, else the newest. Ascending."""
    rows, numbers = repeated(ids)
    # `lexsort` sorts by its last key first: by id, then kept, then date. So the last row of each id is the one to
    # return.
    order = np.lexsort((created_ms[rows], kept[rows], numbers))
    is_last = np.ones(len(ids), np.bool_)
    is_last[rows] = False
    is_last[rows[order[np.diff(numbers[order], append=-1) != 0]]] = True
    return np.flatnonzero(is_last)


def check_live(metaranges: pa.Table, live_ranges: int) -> None:
    """Check that kept commits with entries have ranges, or raise EmptyLiveSet."""
    if not live_ranges and pc.any(metaranges["is_live"]).as_py():
        raise EmptyLiveSet("commits with entries are kept, but no range of theirs was read")


DUE: Final = "due/"
STAYS: Final = "stays/"
"""The folders of a task's sides: candidates, and objects that stay."""


class LiveSet:
    """Collect the named objects of one task: a bitmap a slice, and foreign keys, in any order.

    Marks that compare millions of keys write them to files instead (gc/mark/sets/bucketed.py)."""

    def __init__(self) -> None:
        self._words: dict[int, npt.NDArray[np.uint64]] = {}
        self._keys: list[pa.Array] = []

    def room(self, slice_: int, words: int) -> npt.NDArray[np.uint64]:
        """Return the slice's bitmap, with at least `words` 64-bit words, to set bits in. Valid until the next call."""
        have = self._words.get(slice_)
        if have is None or len(have) < words:
            # Grow by doubling: a slice may arrive in many pieces, each a little longer.
            grown = np.zeros(max(words, 2 * len(have) if have is not None else 0), np.uint64)
            if have is not None:
                grown[: len(have)] = have
            self._words[slice_] = have = grown
        return have

    def add_numbers(self, slices: Integers, sequences: Integers) -> None:
        """Add objects of slices, as two parallel arrays."""
        order = np.argsort(slices, kind="stable")
        slices, sequences = slices[order], sequences[order]
        starts = starts_of(slices)
        for slice_, part in zip(slices[starts].tolist(), np.split(sequences, starts[1:]), strict=False):
            self.add_bits(slice_, bitmap_of(part))

    def add_bits(self, slice_: int, bits: npt.NDArray[np.uint8]) -> None:
        self.room(slice_, (len(bits) + 7) // 8).view(np.uint8)[: len(bits)] |= bits

    def add_addresses(self, addresses: pa.Array, namespace: Namespace) -> None:
        """Add foreign addresses, spelled as in entries."""
        keys, numbers = namespace.places_of(addresses)
        self._keys.append(keys)
        self._add_places(numbers)

    def add_entries(self, rows: pa.Table, namespace: Namespace) -> None:
        """Add the objects of a range's rows, by their slice and sequence, or their address."""
        slices = rows["slice"].to_numpy()
        own = slices != FOREIGN_SLICE
        self.add_numbers(slices[own], rows["sequence"].to_numpy()[own].astype(np.int64))
        if not own.all():
            self.add_addresses(rows["address"].filter(pa.array(~own)).combine_chunks(), namespace)

    def add_numbers_among(self, addresses: pa.Array, namespace: Namespace) -> None:
        """Add the foreign addresses that are another spelling of a slice and a sequence, and leave out the keys."""
        self._add_places(namespace.numbers_of(addresses))

    def _add_places(self, places: Sequence[tuple[int, int]]) -> None:
        if places:
            slices, sequences = np.array(places, np.int64).T
            self.add_numbers(slices, sequences)

    def add_rows(self, live: pa.Table) -> None:
        """Add LIVE rows without nulls."""
        for bucket, bitmap in zip(live["bucket"].to_pylist(), live["bitmap"].to_pylist(), strict=True):
            if bucket >= 0:
                self.add_bits(bucket, np.frombuffer(bitmap, np.uint8))
        self._keys += pc.list_flatten(live["addresses"]).chunks

    @property
    def keys_held(self) -> int:
        return sum(map(len, self._keys))

    def take_keys(self) -> pa.Table:
        """Return LIVE of the keys, one row a bucket, and drop the keys."""
        keys = pc.unique(pa.concat_arrays([pa.array([], pa.string()), *self._keys]))
        self._keys = []
        buckets = -1 - buckets_of(keys).astype(np.int64)
        order = np.argsort(buckets, kind="stable")
        starts = starts_of(buckets[order])
        return _live(buckets[order][starts], addresses=lists_of(keys, order, starts))

    def rows(self) -> pa.Table:
        """Return LIVE, one row a bucket, and drop the keys."""
        slices = sorted(self._words)
        # `room` grows bitmaps in steps. LIVE has no zero bytes at the end.
        bitmaps = [self._words[slice_].tobytes().rstrip(b"\0") for slice_ in slices]
        return pa.concat_tables([self.take_keys(), _live(slices, bitmap=bitmaps)])


def _live(buckets: Any, **columns: Any) -> pa.Table:
    """Return LIVE rows with one of the columns filled."""
    nothing: dict[str, Any] = {"bitmap": b"", "addresses": []}
    empty = {name: [value] * len(buckets) for name, value in nothing.items()}
    return LIVE.rows({"bucket": buckets, **empty, **columns})


class Named(NamedTuple):
    """Hold some named objects: `fill` adds addresses of slices to a set; `foreign` has the others, as spelled."""

    fill: Callable[[LiveSet], None]
    foreign: pa.Array | None


Source: TypeAlias = Callable[[Task, pa.Table], AsyncIterator[Named]]


class Sides:
    """Hold the results of one task, each side in a folder of its own: candidates, objects that stay, and others."""

    def __init__(self, folder: str, namespace: Namespace, others: Mapping[str, Table] = MappingProxyType({})) -> None:
        self._folder = folder
        self._namespace = namespace
        self._live = LiveSet()
        self._dealers = {side: Dealer(table) for side, table in {DUE: CANDIDATES, STAYS: LIVE, **others}.items()}

    def add(self, side: str, rows: pa.Table) -> None:
        if rows.num_rows:
            self._dealers[side].add(rows)

    def add_staying(self, entries: pa.Table) -> None:
        self._live.add_entries(entries, self._namespace)

    async def write(self, task: Task, *, held_max: int = 0) -> AsyncIterator[pa.Table]:
        """Write each side with at least `held_max` rows, by default all. Yield rows of PARTS that name the side."""
        stays = self._dealers[STAYS]
        if not held_max:
            stays.add(self._live.rows())
        elif self._live.keys_held >= held_max:
            stays.add(self._live.take_keys())
        for side, dealer in self._dealers.items():
            if dealer.held >= held_max and dealer.has_rows:
                yield in_side(side, await dealer.write(task.store, self._folder + side))


async def deal_live(
    engine: Engine, source: Source, rows: pa.Table, *, uri: str, folder: str, with_keys: bool, effort: Effort
) -> Bucketed:
    """Write LIVE of the objects that `source` reads from `rows` into `folder`.

    Other spellings of a slice's address are recognised with or without keys. A task holds a bitmap for each slice, and
    up to HELD_MAX keys if they are wanted.
    """
    namespace = Namespace(uri)

    async def work(task: Task, share: pa.Table) -> AsyncIterator[pa.Table]:
        live, dealer = LiveSet(), Dealer(LIVE)
        async for named in source(task, share):
            named.fill(live)
            if named.foreign is not None and with_keys:
                live.add_addresses(named.foreign, namespace)
                # Bitmaps are small and stay in memory. Keys may be millions, so write them early.
                if live.keys_held >= HELD_MAX:
                    dealer.add(live.take_keys())
                    yield await dealer.write(task.store, folder)
            elif named.foreign is not None:
                live.add_numbers_among(named.foreign, namespace)
        found = live.rows()
        if found.num_rows:
            dealer.add(found)
            yield await dealer.write(task.store, folder)

    return files_of(folder, await engine.run(work, rows, PARTS, effort=effort))


async def deal_keys(
    engine: Engine, source: Source, rows: pa.Table, *, uri: str, folder: str, effort: Effort
) -> Bucketed:
    """Write NAMED of the objects that `source` reads from `rows` into `folder`."""
    namespace = Namespace(uri)

    async def work(task: Task, share: pa.Table) -> AsyncIterator[pa.Table]:
        keys = Dealer(NAMED)
        async for named in source(task, share):
            if named.foreign is not None:
                keys.add_keys(namespace.places_of(named.foreign)[0])
            if keys.held >= HELD_MAX:
                yield await keys.write(task.store, folder)
        if keys.has_rows:
            yield await keys.write(task.store, folder)

    return files_of(folder, await engine.run(work, rows, PARTS, effort=effort))


async def merge_live(engine: Engine, dealt: Bucketed, *, folder: str) -> Pieces:
    """Write the LIVE rows of `dealt` into `folder`, each bucket in one row of one part."""

    async def work(task: Task, share: pa.Table) -> AsyncIterator[pa.Table]:
        async for buckets, (tables,) in in_shares(task, share, ([dealt], LIVE)):
            live = LiveSet()
            for rows in tables:
                check_whole(rows, "live objects")
                live.add_rows(rows)
            together = live.rows()
            # The buckets are in this share only, so the first one makes the name unique.
            name = f"bucket-{buckets.first:04d}.parquet"
            yield await write_part(task.store, folder, name, encode(LIVE, together), rows=together.num_rows, note=None)

    # One row a bucket takes an eighth of a byte for each object ever written. Tasks read all of it beside their
    # listing, which is a hundred times as large and is not moved.
    written = await engine.run(work, rows_of_shares(dealt), PARTS, effort=effort_of(dealt))
    return Pieces(folder=folder, parts=tuple(parts_of(written.sort_by("name"))))


async def read_live(store: ObjectStore, live: Pieces) -> pa.Table:
    """Read LIVE, or raise BadInput."""
    tables = [decode(LIVE, await read_part(store, live.folder, part), part) for part in live.parts]
    return pa.concat_tables([LIVE.schema.empty_table(), *tables]).combine_chunks()


def from_tables(tables: Sequence[Manifest], table: messages.Table) -> tuple[Source, pa.Table, Effort]:
    """Return the source of all addresses in these tables (UNCOMMITTED or GARBAGE), its rows, and their effort.

    Raises:
        BadInput: a manifest is of another table, or of an unknown version.
    """
    for manifest in tables:
        check_table(manifest, table)
    of_key = {one.folder + part.name: (one, part) for one in tables for part in one.parts}

    async def source(task: Task, share: pa.Table) -> AsyncIterator[Named]:
        for named in parts_of(share):
            manifest, part = of_key[named.name]
            data = await read_part(task.store, "", named)
            # Check every part against its manifest: a missing one would mean "no record names these objects".
            rows = messages.read_part(manifest, table, part, data, ["slice", "sequence"])
            is_foreign = pc.equal(rows["slice"], FOREIGN_SLICE)
            foreign = None
            if pc.any(is_foreign).as_py():
                # Addresses are most of the bytes, and only foreign ones are needed.
                texts = messages.read_part(manifest, table, part, data, ["address"])["address"]
                foreign = texts.filter(is_foreign).combine_chunks()
                rows = rows.filter(pc.invert(is_foreign))
            yield Named(_filler(rows["slice"].to_numpy(), rows["sequence"].to_numpy()), foreign)

    return source, rows_by_key(tables), Effort(size_bytes=sum(manifest.size_bytes for manifest in tables))


async def deal_tables(
    context: RunContext, run: StartedRun | Plan, tables: Sequence[Manifest], table: messages.Table, name: str
) -> Bucketed:
    """Deal the objects that these tables of one kind name. `name` keeps the folders of several looks apart."""
    source, rows, effort = from_tables(tables, table)
    return await deal_live(
        context.engine,
        source,
        rows,
        uri=run.namespace,
        folder=folder_in(run, f"{name}.tasks"),
        with_keys=True,
        effort=effort,
    )


def _filler(slices: Integers, sequences: Integers) -> Callable[[LiveSet], None]:
    return lambda live: live.add_numbers(slices, sequences)
