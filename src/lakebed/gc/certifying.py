"""Certify an erasure: look at the store for each object that was selected, and for what still has its content.

1. Read every range again whose span may have selected entries, as commits are now: their objects, with checksums.
2. Ask the store for each of these objects, and for each that the plan named.
3. Read all ranges, for other entries that name one that is there, or that have an erased checksum: copies.
4. Ask what is staged at the paths, what waits in the queue of hard delete, what deferred runs and legal
   holds keep, and whether the bucket keeps versions.

Publishes and deletes nothing, so it may be done at any time.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable, Collection
from typing import Final

import pyarrow as pa
from msgspec.structs import replace

from lakebed.base import FOREIGN_SLICE, RangeId, RunKind, count_of, format_address, key_inside
from lakebed.gc import protocol
from lakebed.gc.protocol import (
    CERTIFIED_MAX,
    CLOCK_KEY,
    LEDGER_PREFIX,
    BadInput,
    Certificate,
    ErasedObject,
    PreparedCommits,
    Standing,
    certificate_path,
    encode_certificate,
)
from lakebed.gc.rules import Selection
from lakebed.objectstore import ObjectMissing, keeps_versions

from .context import RunContext, read_plan
from .engines import Task
from .erasing import at_selected_paths, deferred_runs, read_ranges_by_span
from .ranges import effort_of_whole, get_range
from .resume import garbage_of
from .selecting import Flags, read_rows, selected
from .tables import Table, required

NAMES: Final = Table(
    "an entry of a range: the object that it names, as a key or a full URI, and the checksum of its content",
    required(("path", pa.string()), ("address", pa.string()), ("checksum", pa.string()), ("size_bytes", pa.int64())),
)
REMAINS: Final = (
    "paths stay as names in commits, ranges, plans and the ledger",
    "bytes that were overwritten or deleted before a commit had them have no path on record: collect uncommitted data",
    "backups of the namespace or the key-value store, and copies in other buckets, were not looked at",
)


async def certify(context: RunContext, run_id: str, *, by: str) -> Certificate:
    """Certify an erasure that was applied, and write the certificate into the namespace.

    Raises:
        PlanMissing, BadInput: there is no plan of an erasure, or something of it is missing.
    """
    plan = await read_plan(context.store, run_id)
    if plan.erasure is None:
        raise BadInput(f"run {run_id} is no erasure", run_id=run_id)
    garbage = await context.read(plan.garbage, protocol.GARBAGE)
    columns = (garbage[name].to_pylist() for name in ("address", "path", "size_bytes"))
    staged = {one.address: one.checksum for one in plan.erasure.staged}
    planned = tuple(
        ErasedObject(address=address, paths=(path,), size_bytes=size, checksum=staged.get(address, ""))
        for address, path, size in zip(*columns, strict=True)
    )
    made = Certificate(
        repository=plan.repository,
        namespace=plan.namespace,
        run_id=run_id,
        selection=plan.erasure.selection,
        why=plan.erasure.why,
        takes_shared=plan.erasure.takes_shared,
        planned_ms=plan.now_ms,
        plan=plan.garbage.digest(),
        ledger=await _ledger(context, run_id),
        objects=planned,
    )
    made = await verify(context, made, by=by)
    await context.store.put(certificate_path(run_id), encode_certificate(made))
    return made


async def verify(context: RunContext, before: Certificate, *, by: str) -> Certificate:
    """Ask again what a certificate says, as things are now. Writes nothing but the file that tells the store's time.

    Raises:
        BadInput: it is of another namespace.
    """
    if before.namespace != context.store.uri.rstrip("/"):
        raise BadInput(f"the certificate is of {before.namespace}, not of {context.store.uri}", input="certificate")
    run = await context.service.start(RunKind.ERASURE)

    async def look(prepared: PreparedCommits) -> Certificate:
        return await _look(context, before, prepared, run.run_id, by=by)

    return await context.reread(lambda: context.service.commits_for_erasure(run.run_id), look)


async def _look(
    context: RunContext, before: Certificate, prepared: PreparedCommits, run_id: str, *, by: str
) -> Certificate:
    commits = await context.read(prepared.commits, protocol.COMMITS)
    meeting, apart = await read_ranges_by_span(context.engine, commits, before.selection)
    found = await _names(context, meeting, before.selection, lambda rows: selected(rows, before.selection))
    objects = _objects(before, found)
    context.progress(f"asking the store for {len(objects):,} objects")
    there = await _there(context, objects)
    checksums = sorted({one.checksum for one in objects.values()} - {""})
    # Erased content may lie at any path, so no range can be left out.
    whole = Selection(digests=tuple(checksums) or ("-",))
    others = await _names(
        context,
        pa.concat_tables([meeting, apart]),
        whole,
        lambda rows: _is_other(rows, before.selection, whole, there, context.store.uri.rstrip("/")),
    )
    stands = [
        Standing(what="object", where=address, why=_why(address, objects[address], prepared, others))
        for address in sorted(there)
    ]
    copies: dict[str, list[str]] = {}
    for path, address, checksum in zip(*(others[name].to_pylist() for name in NAMES_OF_COPIES), strict=True):
        if checksum in checksums and address not in objects:
            copies.setdefault(address, []).append(path)
    left = await _there(context, copies)
    stands += [
        Standing(what="copy", where=address, why=f"has an erased checksum, at {', '.join(sorted(copies[address])[:3])}")
        for address in sorted(left)[:CERTIFIED_MAX]
    ]
    stands += [
        Standing(what="staged", where=one.path, why=f"is staged on branch {one.branch}")
        for one in await context.service.staged(run_id, before.selection)
    ]
    stands += [
        Standing(what="queued", where=one.address, why=f"waits in the queue of hard delete, was at {one.path}")
        for one in await context.service.staged(run_id, before.selection, in_queue=True)
    ]
    stands += await _deferred(context, before.selection)
    remains = list(REMAINS)
    match await keeps_versions(context.store, CLOCK_KEY):
        case True:
            stands.append(
                Standing(what="bucket", where=context.store.uri, why="keeps versions: a delete leaves the old")
            )
        case None:
            remains.append("whether the bucket keeps versions or locks objects could not be asked")
        case False:
            pass
    return replace(
        before,
        made_ms=context.ports.clock.now_ms(),
        made_by=by,
        commits_read=commits.num_rows,
        objects=tuple(replace(one, is_absent=address not in there) for address, one in sorted(objects.items())),
        stands=tuple(stands),
        remains=tuple(remains),
    )


async def _deferred(context: RunContext, selection: Selection) -> list[Standing]:
    """Return the deferred runs that may keep selected objects: of what they keep, only the paths are on record."""
    if not (selection.digests or selection.metadata):
        return []  # An erasure by path alone takes what they keep.
    found: list[Standing] = []
    for view in await deferred_runs(context):
        held = await garbage_of(context.store, view)
        count = held.rows
        if selection.is_by_path:
            count = sum([rows.num_rows async for rows in at_selected_paths(context, held, selection)])
        if count:
            objects = count_of(count, "object")
            why = f"is deferred and may keep erased content: {objects}, digests and metadata are not on record"
            found.append(Standing(what="deferred", where=f"run {view.run_id}", why=why))
    return found


NAMES_OF_COPIES: Final = ("path", "address", "checksum")


def _objects(before: Certificate, found: pa.Table) -> dict[str, ErasedObject]:
    """Every selected object by address: those of before, and those that commits have now."""
    objects = {one.address: one for one in before.objects}
    for row in found.to_pylist():
        known = objects.get(row["address"])
        paths = {row["path"], *(known.paths if known else ())} - {""}
        objects[row["address"]] = ErasedObject(
            address=row["address"],
            paths=tuple(sorted(paths)),
            size_bytes=row["size_bytes"],
            checksum=row["checksum"],
        )
    return objects


async def _names(
    context: RunContext, ranges: pa.Table, selection: Selection, choose: Callable[[pa.Table], Flags]
) -> pa.Table:
    """NAMES of the rows that `choose` selects, in these RANGES."""
    uri = context.store.uri.rstrip("/")

    async def work(task: Task, share: pa.Table) -> AsyncIterator[pa.Table]:
        counts = dict(zip(share["range_id"].to_pylist(), share["count"].to_pylist(), strict=True))
        async for name, data in task.ahead([*counts], lambda id_: get_range(task.store, RangeId(id_))):
            rows = read_rows(RangeId(name), data, counts[name], selection, also=("checksum", "size_bytes"))
            chosen = rows.filter(pa.array(choose(rows)))
            if chosen.num_rows:
                yield NAMES.rows(
                    {
                        "path": [key.decode(errors="replace") for key in chosen["key"].to_pylist()],
                        "address": _addresses(chosen, uri),
                        "checksum": chosen["checksum"],
                        "size_bytes": chosen["size_bytes"],
                    }
                )

    return await context.engine.run(work, ranges, NAMES, effort=effort_of_whole(ranges))


def _addresses(rows: pa.Table, uri: str) -> list[str]:
    columns = (rows[name].to_pylist() for name in ("slice", "sequence", "address"))
    return [
        format_address(slice_, sequence) if slice_ != FOREIGN_SLICE else key_inside(address, uri) or address
        for slice_, sequence, address in zip(*columns, strict=True)
    ]


def _is_other(rows: pa.Table, selection: Selection, checksums: Selection, there: Collection[str], uri: str) -> Flags:
    """Choose rows that are not selected and name an object that is there, or have an erased checksum."""
    chosen = selected(rows, checksums)
    if there:
        wanted = frozenset(there)
        chosen |= [address in wanted for address in _addresses(rows, uri)]
    # By metadata alone these rows cannot be told from selected ones: they are told twice then.
    is_by_name = bool(selection.paths or selection.globs or selection.digests) and not selection.metadata
    return chosen & ~selected(rows, selection) if is_by_name else chosen


async def _there(context: RunContext, addresses: Collection[str]) -> set[str]:
    """Return those of the addresses at which the store has something. Outside of the namespace it is not asked."""

    async def is_there(address: str) -> bool:
        if "://" in address:
            return True
        try:
            await context.store.stat(address)
        except ObjectMissing:
            return False
        return True

    return {address async for address, found in context.ports.tasks.ahead([*addresses], is_there) if found}


def _why(address: str, one: ErasedObject, prepared: PreparedCommits, others: pa.Table) -> str:
    if "://" in address:
        return "lies outside of the storage namespace"
    holds = sorted({name for path in one.paths for name in prepared.holds.of(path=path)})
    if holds:
        return f"legal hold {', '.join(holds)} keeps it"
    rows = zip(others["path"].to_pylist(), others["address"].to_pylist(), strict=True)
    names = sorted({path for path, other in rows if other == address} - set(one.paths))
    if names:
        return f"entries that are not selected name it: {', '.join(names[:3])}"
    return "is not deleted yet: it was staged, under way, held by a commit, or came after the plan; plan again"


async def _ledger(context: RunContext, run_id: str) -> dict[str, str]:
    """Return the digest of each ledger file of the run."""
    keys = [stat.key async for page in context.store.list(LEDGER_PREFIX) for stat in page if f"/{run_id}-" in stat.key]
    return {key: hashlib.sha256(await context.store.get(key)).hexdigest() for key in keys}
