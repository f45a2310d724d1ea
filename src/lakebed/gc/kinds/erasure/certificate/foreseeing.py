"""Foresee an erasure: list the selected content and copies that its plan would leave. Publish and delete nothing.

Makes the checks of a certificate (standing.py) early. Reads all ranges only if they have few rows, or on request.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from lakebed.base import NotFound, count_of, human_size
from lakebed.gc import messages
from lakebed.gc.engines.engine import Effort, Table, Task, required, without
from lakebed.gc.kinds.erasure.erasing import RangesBySpan, key_of
from lakebed.gc.mark.holding import metaranges_of
from lakebed.gc.mark.inputs.ranges import read_metaranges, read_sublists
from lakebed.gc.mark.inputs.selecting import matching, selected
from lakebed.gc.messages import (
    COPIES_ROWS_MAX,
    STANDING_MAX,
    ErasureOrder,
    InBranch,
    Manifest,
    Outlook,
    PreparedCommits,
    StagedEntry,
    Standing,
    StartedRun,
)
from lakebed.gc.rules import Holds, Selection, Spans
from lakebed.gc.runs.context import RunContext, slice_numbers

from .contents import addresses_there, deferred_copies, read_checksums
from .standing import (
    NAMES,
    REMAINS,
    Commits,
    Content,
    addresses_of_parts,
    copies_that_stand,
    deferred_by_run,
    held_back,
    is_other,
    kept_at_paths,
    kept_by_bucket,
    names_by_branch,
    objects_that_stand,
    read_names,
    read_selected,
    staged_copies,
    staged_elsewhere,
    with_any,
)

GARBAGE_STAYS: Final = (
    "bytes that were overwritten, deleted or reset away before a commit had them have no path on record: apply with"
    " --everywhere, which deletes for good all that no entry of the repository names, whatever its path was"
)


async def foresee(
    context: RunContext,
    run: StartedRun,
    order: ErasureOrder,
    planned: Commits,
    *,
    queued: Sequence[StagedEntry],
    garbage: Manifest,
) -> tuple[Outlook, dict[str, str]]:
    """Return the standings that an apply of this plan would leave, and checksums of its objects by address.

    Looks into the commits of a certificate: those of the plan (`planned`), and those that an undo can bring back.
    Reads ranges that meet the selection again. Reads the other ranges only if an object is shared, or to find copies.
    The checksums are of the objects for which no entry on record has one.

    Raises:
        NothingSelected: the order selects no object of the repository.
    """
    prepared = planned.prepared
    seen, selected_names = await read_selected(context, run, order.selection, planned)
    meant = await _meant(context, order, planned, queued, garbage, seen, selected_names)
    found, taken, deferred = meant.named, meant.taken, meant.deferred
    left = _left(found, (*order.staged, *queued), taken["address"])
    there = await addresses_there(context, left)
    far = await _seek_copies(context, run, order, seen.ranges, meant, there)
    others, elsewhere = far.others, far.elsewhere
    stands = _left_there(context, run, order, meant, {address: left[address] for address in there}, far, prepared.holds)
    known = frozenset((*found["address"].to_pylist(), *(entry.address for entry in order.staged)))
    # Report each object once. Commits of a deferred run name what it keeps: that stands as deferred, and as no copy.
    reported = {*known, *taken["address"].to_pylist(), *(standing.where for standing in deferred)}
    contents = _sizes_of(found, taken, order.staged, meant.read) if far.has_sought else ()
    deferred += await deferred_copies(context, contents, reported)
    known |= {standing.where for standing in deferred}
    stands += await copies_that_stand(context, others, far.content, known)
    stands += await staged_copies(context, elsewhere, far.content, known, beside=order.staged)
    stands += [
        Standing(what="staged", where=entry.path, why=f"a commit of branch {entry.branch} may be taking it: plan again")
        for entry in order.staged
        if entry.is_sealed
    ]
    stands += deferred
    bucket, unknown = await kept_by_bucket(context)
    # Never cut off the bucket's standing: no second plan can mend that one.
    named = (*bucket, *stands[:STANDING_MAX])
    outlook = Outlook(
        stands=named,
        stands_count=len(stands) + len(bucket),
        unmatched=meant.unmatched,
        remains=(*far.missing, _garbage_stays(prepared.holds), *REMAINS, *unknown),
        by_branch=await count_by_branch(
            context, prepared, order.selection, found=found, taken=taken, staged=order.staged
        ),
    )
    return outlook, meant.read


class _Meant(NamedTuple):
    """Hold the objects that an order selects. `named` are entries of commits (NAMES), `taken` the plan's objects
    (GARBAGE), `deferred` standings of deferred runs, `read` checksums that no entry has, by address. An undo brings
    back the only commits that have a `returnable` object.
    """

    named: pa.Table
    returnable: frozenset[str]
    taken: pa.Table
    checksums: pa.Array
    deferred: list[Standing]
    unmatched: tuple[str, ...]
    read: dict[str, str]


async def _meant(
    context: RunContext,
    order: ErasureOrder,
    planned: Commits,
    queued: Sequence[StagedEntry],
    garbage: Manifest,
    seen: Commits,
    named: pa.Table,
) -> _Meant:
    """Find the objects of deferred runs beside the selected entries, `named` (NAMES), of the commits `seen`.

    Read the bytes of objects without a checksum.

    Raises:
        NothingSelected: the order selects no object of the repository.
    """
    selection = order.selection
    own = named
    if seen.ranges is not planned.ranges:
        meeting = planned.ranges.meeting
        own = await read_names(context, meeting, selection, lambda rows: selected(rows, selection))
    taken = await context.read(garbage, messages.GARBAGE)
    met = frozenset((*own["address"].to_pylist(), *taken["address"].to_pylist()))
    returnable = frozenset(named["address"].to_pylist()) - met
    paths = _texts(named["path"], taken["path"], [entry.path for entry in (*order.staged, *queued)])
    checksums = _texts(named["checksum"], [entry.checksum for entry in order.staged])
    deferred = await deferred_by_run(context, selection)
    # Tables of deferred runs have no metadata, so an object at a selected path may not be selected.
    if not selection.metadata:
        holds = planned.prepared.holds
        kept = await kept_at_paths(context, selection, holds, takes_shared=order.takes_shared, known=met)
        paths = _texts(paths, [path for item in kept.values() for path in item.paths])
        deferred += [item.standing for item in kept.values()]
        # What a run keeps stands as deferred.
        named = without(named, kept)
        returnable -= kept.keys()
    unmatched = _unmatched(selection, paths, checksums)
    # Read the bytes now: after an apply, the certificate could not tell copies of these objects. Those of entries that
    # only an undo brings back, too: such entries are gone once the purge begins.
    read = await _of_no_entry(context, order.staged, own, taken)
    if not (len(paths) or deferred):
        raise NothingSelected(
            "no commit, branch or deferred run has what is selected: nothing was planned. Bytes that no entry names"
            f" have no path on record: `lakebed gc run lakefs://{context.repository} --uncommitted --clean` deletes all"
            " of them"
        )
    return _Meant(named, returnable, taken, checksums, deferred, unmatched, read)


def _left_there(
    context: RunContext,
    run: StartedRun,
    order: ErasureOrder,
    meant: _Meant,
    left: Mapping[str, Sequence[str]],
    far: _Far,
    holds: Holds,
) -> list[Standing]:
    """Return a standing for each object in `left`, all of which are there: the plan does not delete them."""
    closed, uri = frozenset(slice_numbers(run.closed_slices)), context.store.uri.rstrip("/")
    names = names_by_branch(far.elsewhere, uri, beside=order.staged)
    returnable = {at: paths for at, paths in left.items() if at in meant.returnable}
    others = {at: paths for at, paths in left.items() if at not in meant.returnable}
    return [
        *objects_that_stand(others, holds, far.others, names, closed, _held_or_unknown(holds)),
        *objects_that_stand(returnable, holds, far.others, names, closed, _RETURNABLE),
    ]


class _Far(NamedTuple):
    """Hold entries that name an object of the plan or have its content: `others` (NAMES) of commits, and staged ones
    `elsewhere`. `missing` has a text if no search for copies was made.
    """

    others: pa.Table
    elsewhere: Iterable[StagedEntry]
    content: Content
    has_sought: bool
    missing: tuple[str, ...]


async def _seek_copies(
    context: RunContext,
    run: StartedRun,
    order: ErasureOrder,
    ranges: RangesBySpan,
    meant: _Meant,
    there: Collection[str],
) -> _Far:
    """Look for entries at other paths, staged and in all ranges. Copies only on request, or if ranges have few rows."""
    selection, uri = order.selection, context.store.uri.rstrip("/")
    # A selection by digest alone selects every entry with the content, so it leaves no copies.
    finds_copies = selection.is_by_path or bool(selection.metadata)
    looks_far = finds_copies and (order.finds_copies or ranges.all.entries <= COPIES_ROWS_MAX)
    wanted = sorted({*meant.checksums.to_pylist(), *meant.read.values()} - {""}) if looks_far else []
    erased = frozenset(meant.taken["address"].to_pylist()) if looks_far else frozenset()
    content = Content(frozenset(wanted), frozenset(wanted), erased)
    whole = with_any(wanted)
    others = NAMES.schema.empty_table()
    looks = bool(there or wanted or erased)
    if looks:
        others = await read_names(
            context,
            ranges.all,
            whole,
            lambda rows: is_other(rows, selection, whole, there, uri, restored=bool(erased)),
            also=("metadata",) if erased else (),
        )
    elsewhere = await staged_elsewhere(context, run.run_id, wanted, there) if looks else ()
    missing = () if looks_far or not finds_copies else (_NO_COPIES,)
    return _Far(others, elsewhere, content.closed(others, elsewhere, uri), bool(wanted), missing)


def _sizes_of(
    named: pa.Table, taken: pa.Table, staged: Sequence[StagedEntry], read: Mapping[str, str]
) -> frozenset[tuple[str, int]]:
    """Return each checksum with its size: of entries `named` (NAMES), of staged entries, and of objects `read`."""
    sizes = dict(zip(taken["address"].to_pylist(), taken["size_bytes"].to_pylist(), strict=True))
    each = [
        *zip(named["checksum"].to_pylist(), named["size_bytes"].to_pylist(), strict=True),
        *((entry.checksum, entry.size_bytes) for entry in staged),
        *((checksum, sizes[address]) for address, checksum in read.items()),
    ]
    return frozenset(content for content in each if content[0])


async def _of_no_entry(
    context: RunContext, staged: Sequence[StagedEntry], named: pa.Table, taken: pa.Table
) -> dict[str, str]:
    """Return checksums, by address, of objects `taken` without one in an entry. Leave out unreadable objects.

    Objects of deferred runs and of the queue of hard delete have no such entry.
    """
    uri = context.store.uri
    known = {row["address"] for row in named.select(["address", "checksum"]).to_pylist() if row["checksum"]}
    # No entry has the checksum of a part, so do not read parts.
    known |= {key_of(entry, uri) for entry in staged if entry.checksum} | addresses_of_parts(staged, uri)
    sizes = zip(taken["address"].to_pylist(), taken["size_bytes"].to_pylist(), strict=True)
    asked = {address: size for address, size in sizes if address not in known}
    if asked:
        whole = f"{count_of(len(asked), 'object')}, {human_size(sum(max(size, 0) for size in asked.values()))}"
        context.progress(f"reading {whole}, for checksums: no entry has them")
    return await read_checksums(context.engine, asked)


def _garbage_stays(holds: Holds) -> str:
    return f"{GARBAGE_STAYS}{held_back(holds)}"


_UNKNOWN: Final = "something else keeps it: `lakebed gc why` says what"
_RETURNABLE: Final = (
    "only commits have it that `gc restore --undo` can bring back; `lakebed gc why` names the run. Once its window is"
    " over, a collection deletes it"
)
_NO_COPIES: Final = "copies at other paths were not looked for: --copies does, and reads every checksum"


class NothingSelected(NotFound):
    """The order selects no object that the repository has or had. No plan was written."""


def _texts(*columns: pa.ChunkedArray | pa.Array | list[str]) -> pa.Array:
    """Return the distinct texts of these columns."""
    return pc.unique(pa.chunked_array([piece for column in columns for piece in _pieces(column)], pa.string()))


def _pieces(column: pa.ChunkedArray | pa.Array | list[str]) -> list[pa.Array]:
    if isinstance(column, pa.ChunkedArray):
        return [*column.chunks]
    return [column if isinstance(column, pa.Array) else pa.array(column, pa.string())]


def _unmatched(selection: Selection, paths: pa.Array, checksums: pa.Array) -> tuple[str, ...]:
    """Return the paths, globs and digests of a selection that match no path and no checksum of these."""
    texts = frozenset((*paths.to_pylist(), *checksums.to_pylist()))
    names = [name for name in (*selection.paths, *selection.digests) if name not in texts]
    patterns = zip(selection.globs, selection.patterns(), strict=True)
    return (*names, *(glob for glob, pattern in patterns if not matching(paths, pattern).any()))


def _left(named: pa.Table, staged: Sequence[StagedEntry], goes: pa.ChunkedArray) -> dict[str, tuple[str, ...]]:
    """Return the paths of each selected object that the plan does not delete. `goes`: addresses that it deletes."""
    rows = without(named, goes)
    left: dict[str, set[str]] = {}
    for address, path in zip(rows["address"].to_pylist(), rows["path"].to_pylist(), strict=True):
        left.setdefault(address, set()).add(path)
    taken = frozenset(goes.to_pylist()) if staged else frozenset()
    for entry in staged:
        # A sealed entry has a standing of its own.
        if entry.address not in taken and not entry.is_sealed:
            left.setdefault(entry.address, set()).add(entry.path)
    return {address: tuple(sorted(paths)) for address, paths in left.items()}


def _held_or_unknown(holds: Holds) -> str:
    names = ", ".join(hold.name for hold in holds.holds if hold.commit_ids())
    return f"a commit that has it is held by {names}" if names else _UNKNOWN


# Count the objects by the branches whose heads or staged entries name them. First read which ranges with selected
# entries each distinct tree of a head has. Then add up the objects of each distinct set of ranges: branches share it.

TREES_MAX: Final = 1_000
"""Count by branch only if the heads have at most this many trees. A task reads each by itself."""
ROWS_MAX: Final = 5_000_000
"""Count only if the sets of ranges name at most this many objects in all."""
BRANCHES_MAX: Final = 100
"""Name at most this many branches, those with the most bytes."""

_OF_TREES: Final = Table(
    "a range with selected entries, and a tree that has it",
    required(("metarange_id", pa.string()), ("range_id", pa.string())),
)


async def count_by_branch(
    context: RunContext,
    prepared: PreparedCommits,
    selection: Selection,
    *,
    found: pa.Table,
    taken: pa.Table,
    staged: Iterable[StagedEntry],
) -> tuple[InBranch, ...] | None:
    """Return the objects of `taken` (GARBAGE) that each branch names, the largest first; an object may be in several.

    The last row, without a name, has those of no branch: commits or tags name them. `found` (NAMES) are the selected
    entries. None if there are too many trees or objects.
    """
    trees = await _trees(context, prepared)
    if len(set(trees.values())) > TREES_MAX:
        return None
    sizes: dict[str, int] = dict(zip(taken["address"].to_pylist(), taken["size_bytes"].to_pylist(), strict=True))
    in_ranges: dict[str, set[str]] = {}
    goes = found.filter(pc.is_in(found["address"], value_set=taken["address"].combine_chunks()))
    for range_id, address in zip(goes["range_id"].to_pylist(), goes["address"].to_pylist(), strict=True):
        in_ranges.setdefault(range_id, set()).add(address)
    ranges_of = await _ranges_of_trees(context, set(trees.values()), selection)
    by_set: dict[frozenset[str], set[str]] = {}
    names: dict[str, set[str]] = {}
    rows = 0
    for branch, tree in trees.items():
        ranges = frozenset(ranges_of.get(tree, set()) & in_ranges.keys())
        if ranges not in by_set:
            by_set[ranges] = set().union(*(in_ranges[each] for each in ranges))
            if (rows := rows + len(by_set[ranges])) > ROWS_MAX:
                return None
        names[branch] = by_set[ranges]
    for entry in staged:
        if (address := key_of(entry, context.store.uri)) in sizes and entry.branch:
            names[entry.branch] = names.get(entry.branch, set()) | {address}
    totals = [_total(branch, named, sizes) for branch, named in names.items() if named]
    totals.sort(key=lambda row: (-row.size_bytes, row.branch))
    nowhere = sizes.keys() - set().union(*by_set.values(), *names.values())
    return (*totals[:BRANCHES_MAX], *([_total("", nowhere, sizes)] if nowhere else []))


async def _trees(context: RunContext, prepared: PreparedCommits) -> dict[str, str]:
    """Return the tree of each branch's head. Leave out branches without entries."""
    refs = (await context.read(prepared.refs, messages.REFS)).to_pylist()
    heads = {row["name"]: row["commit_id"] for row in refs if row["kind"] == "branch"}
    commits = await context.read(prepared.commits, messages.COMMITS)
    wanted = commits.filter(pc.is_in(commits["id"], value_set=pa.array(sorted(set(heads.values())), pa.string())))
    tree_of = {row["id"]: row["metarange_id"] for row in wanted.to_pylist() if not row["swept"]}
    return {branch: tree for branch, commit in sorted(heads.items()) if (tree := tree_of.get(commit))}


async def _ranges_of_trees(context: RunContext, trees: Iterable[str], selection: Selection) -> Mapping[str, set[str]]:
    """Return for each tree its ranges that may have selected entries."""
    spans = Spans(selection)

    def meets(min_key: bytes, max_key: bytes, _: bool) -> bool | None:
        return True if spans.meets(min_key, max_key) else None

    async def work(task: Task, share: pa.Table) -> AsyncIterator[pa.Table]:
        for at in range(share.num_rows):
            tree = share.slice(at, 1)
            ranges, sublists = await read_metaranges(task, tree, meets)
            more = await read_sublists(task, sublists, meets) if sublists.num_rows else ranges.slice(0, 0)
            ids = [*ranges["range_id"].to_pylist(), *more["range_id"].to_pylist()]
            yield _OF_TREES.rows({"metarange_id": tree["metarange_id"].to_pylist() * len(ids), "range_id": ids})

    metaranges = metaranges_of(dict.fromkeys(sorted(trees), True))
    rows = await context.engine.run(work, metaranges, _OF_TREES, effort=Effort(requests=4 * metaranges.num_rows))
    of_trees: dict[str, set[str]] = {}
    for row in rows.to_pylist():
        of_trees.setdefault(row["metarange_id"], set()).add(row["range_id"])
    return of_trees


def _total(branch: str, addresses: Iterable[str], sizes: Mapping[str, int]) -> InBranch:
    named = [sizes[address] for address in addresses]
    return InBranch(branch=branch, objects=len(named), size_bytes=sum(named))
