"""List entries, staged copies, deferred runs and bucket settings that still have selected content, with reasons.

Serves certificates after an erasure (certifying.py), and a plan's outlook before it (foreseeing.py).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from lakebed.base import FOREIGN_SLICE, RangeId, RunState, count_of, format_address, key_inside, parse_address
from lakebed.gc.engines import Task
from lakebed.gc.engines.engine import Table, required
from lakebed.gc.kinds.erasure.erasing import RangesBySpan, at_selected_paths, deferred_runs, key_of, read_ranges_by_span
from lakebed.gc.mark.inputs.ranges import ListedRanges, get_range, ranges_in
from lakebed.gc.mark.inputs.selecting import Flags, paths_of, read_rows, selected
from lakebed.gc.messages import CLOCK_KEY, COMMITS, STANDING_MAX, PreparedCommits, StagedEntry, Standing, StartedRun
from lakebed.gc.rules import Holds, Selection, digests_in
from lakebed.gc.runs.context import RunContext, folder_in
from lakebed.objectstore import keeps_versions

from .contents import addresses_there, sources_of

NAMES: Final = Table(
    "an entry of a range: the object that it names, as a key or a full URI, the checksum of its content, and the"
    " address from which a restore copied it (empty where it is unknown)",
    required(
        ("range_id", pa.string()),
        ("path", pa.string()),
        ("address", pa.string()),
        ("checksum", pa.string()),
        ("size_bytes", pa.int64()),
        ("source", pa.string()),
    ),
)
_NO_DIGEST: Final = "no-digest"
"""A digest that no content has. A client may give it to an entry: the entry then may be reported as a copy."""
REMAINS: Final = (
    "paths stay as names in commits, ranges, plans and the ledger",
    "what earlier collections took at these paths is not among the objects if its commits are gone: the ledger has it",
    "bytes that come later to an address handed out before have no path on record until they are linked",
    "bytes that came to the paths after the plan, and left them again before a commit or a certificate saw them there",
    "of an object that was copied or moved while it was staged, only the paths where it is now are on record",
    "unfinished uploads that the bucket itself keeps, as S3 does until a rule of the bucket ends them",
    "files of other names than Lakebed gives, inside of slices and outside of data/, were not looked at",
    "copies with another checksum were not found: that of an upload in parts, or of an import, depends on how it came",
    "backups of the namespace or the key-value store, and copies in other buckets, were not looked at",
)


class Kept(NamedTuple):
    """An object that a deferred run keeps, with all its paths."""

    paths: Sequence[str]
    size_bytes: int
    standing: Standing


class Content(NamedTuple):
    """Hold erased content: its `own` checksums, all `checksums` with those of copies, and the `addresses` of both."""

    own: frozenset[str]
    checksums: frozenset[str]
    addresses: frozenset[str]

    def has(self, checksum: str, source: str) -> bool:
        return checksum in self.checksums or source in self.addresses

    def why(self, checksum: str, source: str) -> str:
        if checksum in self.own:
            return "has an erased checksum"
        return f"was restored from {source}" if source in self.addresses else "has the checksum of a restored copy"

    def closed(self, others: pa.Table, elsewhere: Iterable[StagedEntry], uri: str) -> Content:
        """Return the content with its copies in `others` (NAMES) and `elsewhere`, and copies of copies to any depth."""
        # Every client may write the mark of a restore. A forged mark adds a false copy, and never hides a true one.
        committed = zip(*(others[name].to_pylist() for name in ("address", "checksum", "source")), strict=True)
        rows = frozenset((*committed, *((key_of(entry, uri), entry.checksum, entry.source) for entry in elsewhere)))
        by_source: dict[str, list[tuple[str, str, str]]] = {}
        by_checksum: dict[str, list[tuple[str, str, str]]] = {}
        for row in rows:
            by_source.setdefault(row[2], []).append(row)
            by_checksum.setdefault(row[1], []).append(row)
        checksums, addresses = set(self.checksums), set(self.addresses)
        left = [row for row in rows if self.has(row[1], row[2])]
        while left:
            address, checksum, _ = left.pop()
            if address not in addresses:
                addresses.add(address)
                left += by_source.get(address, ())
            if checksum and checksum not in checksums:
                checksums.add(checksum)
                left += by_checksum.get(checksum, ())
        return self._replace(checksums=frozenset(checksums), addresses=frozenset(addresses))


def with_any(checksums: Sequence[str]) -> Selection:
    """Return a selection of entries with one of these checksums. Without checksums it selects none."""
    return Selection(digests=tuple(checksums) or (_NO_DIGEST,))


def addresses_of_parts(staged: Sequence[StagedEntry], uri: str) -> frozenset[str]:
    """Return the addresses of parts of uploads. No entry has the checksum of a part."""
    return frozenset(key_of(entry, uri) for entry in staged if entry.multipart_id)


def held_back(holds: Holds) -> str:
    names = ", ".join(holds.keeping_uncommitted())
    return f". A collection takes nothing while legal hold {names} is in force" if names else ""


async def copies_that_stand(
    context: RunContext, others: pa.Table, content: Content, known: Collection[str]
) -> list[Standing]:
    """Return a standing for each present object of `others` that is a copy of erased content and not `known`."""
    copies: dict[str, set[str]] = {}
    reasons: dict[str, str] = {}
    for path, address, checksum, source in zip(*(others[name].to_pylist() for name in NAMES_OF_COPIES), strict=True):
        if content.has(checksum, source) and address not in known:
            copies.setdefault(address, set()).add(path)
            reasons[address] = content.why(checksum, source)
    left = await addresses_there(context, copies)
    return [
        Standing(what="copy", where=address, why=f"{reasons[address]}, at {', '.join(sorted(copies[address])[:3])}")
        for address in sorted(left)
    ]


async def staged_elsewhere(
    context: RunContext, run_id: str, checksums: Collection[str], there: Collection[str]
) -> Sequence[StagedEntry]:
    """Return the staged entries that have one of these checksums, or are a restore's copy, or name an object `there`.

    Asks for at most STANDING_MAX objects.
    """
    # Without checksums ask once all the same, for restored copies and for objects `there`.
    asked = [*digests_in(sorted(checksums))] or [with_any(())]
    named = sorted(there)[:STANDING_MAX]
    answers = [
        await context.service.staged(run_id, selection, or_restored=True, addresses=named) for selection in asked
    ]
    return tuple(dict.fromkeys(entry for entries in answers for entry in entries))


def names_by_branch(
    elsewhere: Iterable[StagedEntry], uri: str, *, beside: Iterable[StagedEntry]
) -> dict[str, StagedEntry]:
    """Return one entry of `elsewhere` for each object, by address. Skip the entries in `beside`."""
    selected_ones = frozenset((entry.branch, entry.path) for entry in beside)
    return {key_of(entry, uri): entry for entry in elsewhere if (entry.branch, entry.path) not in selected_ones}


async def staged_copies(
    context: RunContext,
    elsewhere: Iterable[StagedEntry],
    content: Content,
    known: Collection[str],
    *,
    beside: Sequence[StagedEntry],
) -> list[Standing]:
    """Return the same for staged entries `elsewhere`. Skip the entries in `beside`, which are selected."""
    places = frozenset((entry.branch, entry.path) for entry in beside)
    copies = {
        entry: address
        for entry in elsewhere
        if content.has(entry.checksum, entry.source)
        and (entry.branch, entry.path) not in places
        and (address := key_of(entry, context.store.uri)) not in known
    }
    there = await addresses_there(context, frozenset(copies.values()))
    return [
        Standing(
            what="copy",
            where=address,
            why=f"{content.why(entry.checksum, entry.source)}, {entry.where} at {entry.path}",
        )
        for entry, address in copies.items()
        if address in there
    ]


async def kept_by_bucket(context: RunContext) -> tuple[list[Standing], list[str]]:
    """Return a standing if the bucket keeps versions, and a text if the store could not answer."""
    match await keeps_versions(context.store, CLOCK_KEY):
        case True:
            why = "keeps versions: a delete leaves the old"
            return [Standing(what="bucket", where=context.store.uri, why=why)], []
        case None:
            return [], ["whether the bucket keeps versions or locks objects could not be asked"]
        case False:
            return [], []


async def deferred_by_run(context: RunContext, selection: Selection) -> list[Standing]:
    """Return a standing for each deferred run that may keep selected objects, and has no record to tell which."""
    standings: list[Standing] = []
    for run in await deferred_runs(context):
        count, unknown = run.table.rows, "digests and metadata are not on record"
        if not run.has_all_paths:
            unknown = "an earlier release planned it, and not all of their paths are on record"
        elif not (selection.digests or selection.metadata):
            continue  # An erasure by path alone deletes the selected objects of deferred runs.
        elif selection.is_by_path:
            count = sum([rows.num_rows async for rows in at_selected_paths(context, run, selection)])
        if count:
            objects = count_of(count, "object")
            why = f"is deferred and may keep erased content: {objects}, {unknown}"
            standings.append(Standing(what="deferred", where=f"run {run.run_id}", why=why))
    return standings


async def kept_at_paths(
    context: RunContext, selection: Selection, holds: Holds, *, takes_shared: bool, known: Collection[str]
) -> dict[str, Kept]:
    """Return the objects of deferred runs at selected paths, by address. Leave out `known` and absent objects.

    A legal hold keeps such an object, or other paths share it, or its run was deferred while the erasure was planned.
    """
    left = frozenset(known)
    kept: dict[str, Kept] = {}
    for run in await deferred_runs(context):
        rows = [table async for table in at_selected_paths(context, run, selection)]
        each = {
            address: (paths, size)
            for table in rows
            for address, paths, size in zip(
                table["address"].to_pylist(), paths_of(table), table["size_bytes"].to_pylist(), strict=True
            )
        }
        # A restore or the end of the window may have removed an object of the table.
        for address in sorted(await addresses_there(context, each.keys() - left)):
            paths, size = each[address]
            reasons = [f"run {run.run_id} keeps it, it was at {', '.join(paths[:3])}"]
            others = [path for path in paths if not selection.selects_path(path)]
            if names := holds.at_any(paths):
                reasons.append(_held_by(names))
            elif others and not takes_shared:
                reasons.append(_named_by(others))
            kept[address] = Kept(paths, size, Standing(what="deferred", where=address, why="; ".join(reasons)))
    return kept


def _held_by(names: Sequence[str]) -> str:
    return f"legal hold {', '.join(names)} keeps it"


def _named_by(paths: Sequence[str]) -> str:
    return f"entries that are not selected name it: {', '.join(paths[:3])}"


class Commits(NamedTuple):
    """Hold prepared commits, their rows (COMMITS) and their ranges."""

    prepared: PreparedCommits
    rows: pa.Table
    ranges: RangesBySpan


async def commits_of(context: RunContext, run: StartedRun) -> PreparedCommits:
    """Return the commits in which outlooks and certificates look for content, those included that an undo brings back.

    A deferred run may have let an object off that only its commits name. Nothing collects that object while an undo can
    bring the commits back.
    """
    return await context.service.commits_for(run.run_id, run.kind, for_good=True)


async def read_commits(
    context: RunContext, run: StartedRun, prepared: PreparedCommits, selection: Selection, known: Commits | None = None
) -> Commits:
    """Read the ranges of the commits. Return the ranges of `known` if the commits are the same."""
    rows = await context.read(prepared.commits, COMMITS)
    if known and rows.equals(known.rows):
        return Commits(prepared, rows, known.ranges)
    folder = folder_in(run, "seen.tasks")
    return Commits(prepared, rows, await read_ranges_by_span(context.engine, rows, selection, folder=folder))


async def read_selected(
    context: RunContext, run: StartedRun, selection: Selection, known: Commits | None = None
) -> tuple[Commits, pa.Table]:
    """Return the commits of `commits_of`, and their selected entries (NAMES).

    With `known`, commits of a plan, ask for commits only if a run took some that an undo can bring back.
    """

    async def look(prepared: PreparedCommits) -> tuple[Commits, pa.Table]:
        seen = await read_commits(context, run, prepared, selection, known)
        return seen, await read_names(context, seen.ranges.meeting, selection, lambda rows: selected(rows, selection))

    # A run that has ended cannot be undone, and a run that took commits after the plan read them is no matter.
    runs = await context.service.runs() if known else ()
    if known and all(view.state is RunState.ENDED or not view.kind.can_wait for view in runs):
        return await look(known.prepared)
    return await context.reread(lambda: commits_of(context, run), look)


NAMES_OF_COPIES: Final = ("path", "address", "checksum", "source")


async def read_names(
    context: RunContext,
    ranges: ListedRanges,
    selection: Selection,
    choose: Callable[[pa.Table], Flags],
    *,
    also: Sequence[str] = (),
) -> pa.Table:
    """Return the rows (NAMES) that `choose` selects in these ranges. With `also`, give their `source` as well."""
    uri = context.store.uri.rstrip("/")

    async def work(task: Task, share: pa.Table) -> AsyncIterator[pa.Table]:
        read = await ranges_in(task, share)
        counts = dict(zip(read["range_id"].to_pylist(), read["count"].to_pylist(), strict=True))
        async for name, data in task.ahead([*counts], lambda id_: get_range(task.store, RangeId(id_))):
            rows = read_rows(RangeId(name), data, counts[name], selection, also=("checksum", "size_bytes", *also))
            chosen = rows.filter(pa.array(choose(rows)))
            if chosen.num_rows:
                yield NAMES.rows(
                    {
                        "range_id": [name] * chosen.num_rows,
                        "path": [key.decode(errors="replace") for key in chosen["key"].to_pylist()],
                        "address": _addresses(chosen, uri),
                        "checksum": chosen["checksum"],
                        "size_bytes": chosen["size_bytes"],
                        "source": sources_of(chosen) if also else [""] * chosen.num_rows,
                    }
                )

    return await context.engine.run(work, ranges.rows, NAMES, effort=ranges.effort_of_whole)


def _addresses(rows: pa.Table, uri: str) -> list[str]:
    # Use one spelling of each address. A full URI inside of the namespace becomes a key.
    columns = (rows[name].to_pylist() for name in ("slice", "sequence", "address"))
    return [
        format_address(slice_, sequence) if slice_ != FOREIGN_SLICE else key_inside(address, uri) or address
        for slice_, sequence, address in zip(*columns, strict=True)
    ]


def is_other(
    rows: pa.Table,
    selection: Selection,
    checksums: Selection,
    there: Collection[str],
    uri: str,
    *,
    restored: bool,
) -> Flags:
    """Choose rows outside of the selection that have an erased checksum or name an object `there`.

    With `restored`, choose the copies of every restore, too.
    """
    chosen = selected(rows, checksums)
    # The source of a restore may itself be a copy, so choose all restored rows.
    if restored:
        chosen |= [source != "" for source in sources_of(rows)]
    if there:
        wanted = frozenset(there)
        chosen |= [address in wanted for address in _addresses(rows, uri)]
    # A selection with metadata excludes no row here, so a selected object may be reported twice.
    is_by_name = bool(selection.paths or selection.globs or selection.digests) and not selection.metadata
    return chosen & ~selected(rows, selection) if is_by_name else chosen


def objects_that_stand(
    objects: Mapping[str, Sequence[str]],
    holds: Holds,
    others: pa.Table,
    staged: Mapping[str, StagedEntry],
    closed: Collection[int],
    otherwise: str,
) -> list[Standing]:
    """Return a standing for each selected object that is there, given with its paths, by address.

    `others` (NAMES) are entries of commits outside of the selection, `staged` such entries of branches by address.
    `otherwise`: the reason if none of these keeps the object.
    """

    def why(address: str, paths: Sequence[str]) -> str:
        if "://" in address:
            return "lies outside of the storage namespace"
        if names := holds.at_any(paths):
            return _held_by(names)
        rows = others.filter(pc.equal(others["address"], address))
        if shared := sorted(set(rows["path"].to_pylist()) - set(paths)):
            return _named_by(shared)
        if entry := staged.get(address):
            return f"an entry that is not selected names it: {entry.path}, which {entry.where}"
        numbers = parse_address(address)
        # Plans take objects of closed slices only.
        is_open = numbers is not None and numbers[0] not in closed
        return "its slice is still written to: plan again when its server has moved on" if is_open else otherwise

    return [Standing(what="object", where=at, why=why(at, paths)) for at, paths in sorted(objects.items())]
