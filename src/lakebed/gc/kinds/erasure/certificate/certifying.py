"""Certify an erasure: list the objects that still have the selected content, and the reasons. Delete nothing.

1. Add the objects of other certificates at the same paths.
2. List objects of deferred runs, then staged entries. Then read every range whose span may have selected entries.
3. Ask the store for each of these objects, and for each object of the plan.
4. Look for copies, staged first, then in all ranges. Read the bytes of deferred objects that have an erased size.
5. Check the queue of hard delete, deferred runs again, legal holds, and whether the bucket keeps versions.
6. Find the run which proves that no garbage is left from before the erasure (proving.py).
7. Report each folder of `data/` without a slice record.

A plan's outlook makes the same checks before anything is deleted (foreseeing.py).
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

import pyarrow as pa
from msgspec.structs import replace

from lakebed.base import Corrupt, NotFound, RunKind, count_of
from lakebed.gc.engines.engine import without
from lakebed.gc.kinds.erasure.erasing import key_of
from lakebed.gc.messages import (
    DATA_PREFIX,
    LEDGER_PREFIX,
    PROOF,
    STANDING_MAX,
    BadInput,
    Certificate,
    Collected,
    ErasedObject,
    PreparedCommits,
    StagedEntry,
    Standing,
    StartedRun,
    certificate_path,
    decode_certificate,
    encode_certificate,
)
from lakebed.gc.rules import Holds, Matcher, Selection
from lakebed.gc.runs.context import RunContext, find, read_plan, slice_numbers
from lakebed.objectstore import Level

from .contents import addresses_there, deferred_copies, read_checksums
from .earlier import planned_of, with_earlier
from .proving import find_proof
from .standing import (
    REMAINS,
    Commits,
    Content,
    Kept,
    commits_of,
    copies_that_stand,
    deferred_by_run,
    held_back,
    is_other,
    kept_at_paths,
    kept_by_bucket,
    names_by_branch,
    objects_that_stand,
    read_commits,
    read_names,
    read_selected,
    staged_copies,
    staged_elsewhere,
    with_any,
)

_GARBAGE: Final = "bytes that no entry names may have been at these paths"
_ON_NO_RECORD: Final = (
    "No collection takes a slice without a record. `lakebed gc adopt --slices` puts it on record, or remove it with the"
    " store's own tools. Of the rest `lakebed gc run --uncommitted --old-layout` takes what nothing names"
)
_TURNS_MAX: Final = 3  # Copies, then copies of restored copies. Hardly anything but forged marks needs a third turn.
_LEFT_RUN: Final = "it left its run while this was asked, and may be restored: verify again"


async def certify(context: RunContext, run_id: str, *, by: str) -> Certificate:
    """Certify an erasure that was applied, and write the certificate into the namespace.

    Raises:
        PlanMissing: the run has no plan.
        BadInput: the run is not an erasure, or a part of its plan is missing.
    """
    plan = await read_plan(context.store, run_id)
    if plan.erasure is None:
        raise BadInput(f"run {run_id} is not an erasure", run_id=run_id)
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
        objects=await planned_of(context, plan, plan.erasure),
        collected=await _proven(context, run_id),
    )
    made = await context.service.sign_certificate(await _looked(context, made, by=by))
    await context.store.put(certificate_path(run_id), encode_certificate(made))
    return made


async def _proven(context: RunContext, run_id: str) -> Collected | None:
    """Return the proof of the run's earlier certificate, if the server signed it. None without one.

    The files of the proving run may have been deleted since, so the proof could not be found again.
    """
    data = await find(context.store, certificate_path(run_id))
    if data is None:
        return None
    # Check the signature. Otherwise a user who may write to the store could make the server sign a false proof.
    with suppress(BadInput, Corrupt, NotFound):
        before = decode_certificate(data)
        await context.service.check_certificate(before)
        return before.collected
    return None


async def verify(context: RunContext, before: Certificate, *, by: str) -> Certificate:
    """Make a certificate again from the present state, and return it signed.

    Writes working files of a run, and the file that shows the store's time, but no certificate.

    Raises:
        BadInput: the certificate is of another namespace.
        NotFound, Corrupt: the server did not sign these bytes, or they disagree with the records of the run.
    """
    if before.namespace != context.store.uri.rstrip("/"):
        raise BadInput(f"the certificate is of {before.namespace}, not of {context.store.uri}", input="certificate")
    await context.service.check_certificate(before)
    return await context.service.sign_certificate(await _looked(context, before, by=by))


async def _looked(context: RunContext, before: Certificate, *, by: str) -> Certificate:
    """Return the certificate with objects, standings and proof as they are now. Unsigned."""
    before, unread, left_out = await with_earlier(context, before)
    # List folders before `start` lists slices. A slice has its record before its first object, so a folder that `start`
    # does not know has no record.
    data = await context.store.level(DATA_PREFIX)
    run = await context.service.start(RunKind.ERASURE)
    # Ask for deferred runs, then for staged entries, then for deferred runs again. A restore moves an object from a run
    # to a branch: asked the other way round, both answers could miss it.
    first = await _deferred_now(context, before)
    before = await _with_kept(context, before, first)
    # Read staged entries before commits: an entry that is committed in between would be in neither.
    staged = await context.service.staged(run.run_id, before.selection)

    seen, committed = await read_selected(context, run, before.selection)
    committed = without(committed, first.at_paths)
    objects = _with_named(before, staged, committed)
    context.progress(f"asking the store for {count_of(len(objects), 'object')}")
    there = await addresses_there(context, objects)
    read: dict[str, str] = {}
    first = first._replace(copies=await deferred_copies(context, _contents_of(objects), objects, read))
    copies = await _find_copies(context, run, before.selection, seen, objects, there)
    last = await _deferred_now(context, before)
    # Commits of a deferred run name what it keeps: that stands as deferred, and as no copy besides.
    named = {*copies.others["address"].to_pylist()} - {one.where for one in first.copies}
    told = {*objects, *named, *last.at_paths}
    last = last._replace(copies=await deferred_copies(context, _contents_of(objects), told, read))
    made = await _look(context, before, run, data, staged, objects, there, copies, first.joined(last), by=by)
    return replace(made, stands=(*made.stands, *unread), remains=(*made.remains, *left_out))


class _Deferred(NamedTuple):
    """Hold one look at deferred runs. `runs` may keep selected objects. `at_paths` has the objects at selected paths,
    by address. `copies` have erased content.
    """

    runs: Sequence[Standing]
    at_paths: Mapping[str, Kept]
    copies: Sequence[Standing] = ()

    def joined(self, last: _Deferred) -> Sequence[Standing]:
        """Return the standings of the later look, and those that only this look has: a restore may have moved these."""
        mine, later = self._standings(), last._standings()
        left = mine.keys() - later.keys()
        return [
            *last.runs,
            *[kept.standing for kept in last.at_paths.values()][:STANDING_MAX],
            *last.copies[:STANDING_MAX],
            *[replace(mine[where], why=f"{mine[where].why}; {_LEFT_RUN}") for where in sorted(left)][:STANDING_MAX],
        ]

    def _standings(self) -> dict[str, Standing]:
        each = (*self.runs, *(kept.standing for kept in self.at_paths.values()), *self.copies)
        return {standing.where: standing for standing in each}


async def _deferred_now(context: RunContext, before: Certificate) -> _Deferred:
    selection = before.selection
    runs = await deferred_by_run(context, selection)
    # Tables of deferred runs have neither digests nor metadata. Then `runs` has the whole runs.
    if selection.digests or selection.metadata:
        return _Deferred(runs, {})
    known = frozenset(erased.address for erased in before.objects if not erased.is_kept)
    holds = await context.service.holds()
    return _Deferred(
        runs, await kept_at_paths(context, selection, holds, takes_shared=before.takes_shared, known=known)
    )


async def _with_kept(context: RunContext, before: Certificate, deferred: _Deferred) -> Certificate:
    """Return the certificate with the objects of deferred runs at the paths, and their checksums.

    Once such a run ends, no record has the paths of its objects. Only a certificate that names the objects can look for
    restored copies.
    """
    objects = {erased.address: erased for erased in before.objects}
    fresh = {address: kept for address, kept in deferred.at_paths.items() if address not in objects}
    checksums = await read_checksums(context.engine, {address: kept.size_bytes for address, kept in fresh.items()})
    matcher = Matcher(before.selection)
    for address, kept in fresh.items():
        objects[address] = ErasedObject(
            address=address,
            paths=tuple(sorted(filter(matcher.selects_path, kept.paths))),
            size_bytes=kept.size_bytes,
            checksum=checksums.get(address, ""),
            is_kept=True,
        )
    return replace(before, objects=tuple(objects.values()))


def _contents_of(objects: Mapping[str, ErasedObject]) -> frozenset[tuple[str, int]]:
    return frozenset((erased.checksum, erased.size_bytes) for erased in objects.values() if erased.checksum)


class _Copies(NamedTuple):
    """Hold the result of a search for copies.

    `others` (NAMES) and the staged entries `elsewhere` may be copies, or name an object that is there. The search did
    not look for the checksums in `unsought`.
    """

    seen: Commits
    others: pa.Table
    elsewhere: Collection[StagedEntry]
    content: Content
    unsought: Collection[str]


async def _find_copies(
    context: RunContext,
    run: StartedRun,
    selection: Selection,
    seen: Commits,
    objects: Mapping[str, ErasedObject],
    there: Collection[str],
) -> _Copies:
    """Look for copies at any path, in at most _TURNS_MAX turns. A copy with a new checksum causes another turn."""
    uri = context.store.uri.rstrip("/")
    own = frozenset(erased.checksum for erased in objects.values()) - {""}
    content, sought = Content(own, own, frozenset(objects)), frozenset[str]()
    elsewhere: dict[StagedEntry, None] = {}
    for _ in range(_TURNS_MAX):
        # Read staged entries before commits: an entry that is committed in between would be in neither.
        elsewhere |= dict.fromkeys(await staged_elsewhere(context, run.run_id, content.checksums - sought, there))
        sought = content.checksums
        # Copies may be at any path, so read all ranges.
        whole = with_any(sorted(sought))

        async def look(
            prepared: PreparedCommits, known: Commits = seen, whole: Selection = whole
        ) -> tuple[Commits, pa.Table]:
            now = await read_commits(context, run, prepared, selection, known)
            return now, await read_names(
                context,
                now.ranges.all,
                whole,
                lambda rows: is_other(rows, selection, whole, there, uri, restored=True),
                also=("metadata",),
            )

        seen, others = await context.reread(lambda: commits_of(context, run), look)
        content = content.closed(others, elsewhere, uri)
        if content.checksums == sought:
            break
    return _Copies(seen, others, elsewhere, content, content.checksums - sought)


async def _look(
    context: RunContext,
    before: Certificate,
    run: StartedRun,
    data: Level,
    staged: Sequence[StagedEntry],
    objects: Mapping[str, ErasedObject],
    there: Collection[str],
    copies: _Copies,
    deferred: Sequence[Standing],
    *,
    by: str,
) -> Certificate:
    """Return the certificate. `staged` are the selected staged entries, `deferred` the standings of deferred runs."""
    run_id, closed = run.run_id, frozenset(slice_numbers(run.closed_slices))
    holds, others = copies.seen.prepared.holds, copies.others
    names = names_by_branch(copies.elsewhere, before.namespace, beside=staged)
    kept = {standing.where for standing in deferred}
    stands = objects_that_stand(
        {address: objects[address].paths for address in frozenset(there) - kept},
        holds,
        others,
        names,
        closed,
        _not_yet(holds),
    )
    stands += (await copies_that_stand(context, others, copies.content, objects.keys() | kept))[:STANDING_MAX]
    stands += _unsought(objects, there)
    stands += (await staged_copies(context, copies.elsewhere, copies.content, objects, beside=staged))[:STANDING_MAX]
    if copies.unsought:
        why = f"copies were not sought of {count_of(len(copies.unsought), 'more checksum')} that restored copies have"
        stands.append(Standing(what="copy", where=context.store.uri, why=why))
    stands += [Standing(what="staged", where=entry.path, why=entry.where) for entry in staged]
    stands += await _in_queue(context, run_id, before.selection, objects)
    stands += deferred
    # A proof of this release is final. The files that it was found in may be gone.
    is_proven = before.collected is not None and before.collected.proof == PROOF
    unlisted = await _on_no_record(context, data, run)
    proof = (
        before.collected if is_proven else await find_proof(context, before.run_id, run, has_unlisted=bool(unlisted))
    )
    collected = proof if isinstance(proof, Collected) else None
    if isinstance(proof, str):
        why = f"{_GARBAGE}: {proof}{held_back(holds)}"
        stands.append(Standing(what="garbage", where=context.store.uri, why=why))
    stands += unlisted
    bucket, unknown = await kept_by_bucket(context)
    stands += bucket
    return replace(
        before,
        made_ms=context.ports.clock.now_ms(),
        made_by=by,
        commits_read=copies.seen.rows.num_rows,
        objects=tuple(replace(erased, is_absent=address not in there) for address, erased in sorted(objects.items())),
        stands=tuple(stands),
        remains=(*REMAINS, *unknown),
        collected=collected,
    )


async def _in_queue(
    context: RunContext, run_id: str, selection: Selection, objects: Mapping[str, ErasedObject]
) -> list[Standing]:
    """Return the selected objects in the queue of hard delete that the erasure did not name."""
    queued = {entry.address: entry.path for entry in await queued_of(context, run_id, selection, narrowed=True)}
    waiting = await addresses_there(context, queued.keys() - objects.keys())
    return [
        Standing(what="queued", where=address, why=f"waits in the queue of hard delete, was at {queued[address]}")
        for address in sorted(waiting)
    ]


_LATER: Final = "is not deleted yet: it was staged, under way, held by a commit, or came after the plan; plan again"


def _not_yet(holds: Holds) -> str:
    """Return the reason that no record names. Only a plan reads which objects the held commits have."""
    names = ", ".join(hold.name for hold in holds.holds if hold.commit_ids())
    if not names:
        return _LATER
    return f"is not deleted yet: legal hold {names} may keep a commit that has it. A new plan says so, or takes it"


def _unsought(objects: Mapping[str, ErasedObject], there: Collection[str]) -> list[Standing]:
    """Return a standing if absent objects have no known checksum: no search can find their copies."""
    # An object that is there has a standing of its own. A part of an upload has no checksum.
    left = sorted(
        address for address, erased in objects.items() if not (erased.checksum or erased.is_part or address in there)
    )
    if not left:
        return []
    why = f"copies were not sought of {count_of(len(left), 'erased object')}: no record has the checksum"
    return [Standing(what="copy", where=", ".join(left[:3]), why=why)]


async def _on_no_record(context: RunContext, data: Level, run: StartedRun) -> list[Standing]:
    """Return the folders and files of `data/` that no slice record names: collections do not list them as slices.

    A restore of a dump or a backup leaves such folders: it has no records of slices that were made later.
    """
    names = run.closed_slices if (listed := run.all_slices()) is None else listed
    known = frozenset(f"{DATA_PREFIX}{name}/" for name in names)

    async def has_objects(folder: str) -> bool:
        # Some stores show a folder for a while after its last object was deleted.
        async for _ in context.store.list(folder):
            return True
        return False

    folders = [folder for folder in data.folders if folder not in known]
    found_in = [folder async for folder, is_used in context.ports.tasks.ahead(folders, has_objects) if is_used]
    left = [*sorted(found_in), *data.keys]
    if not left:
        return []
    why = f"{_GARBAGE}: no slice record names {count_of(len(left), 'folder or file', 'folders or files')} of data/"
    return [Standing(what="unlisted", where=", ".join(left[:3]), why=f"{why}. {_ON_NO_RECORD}")]


async def queued_of(
    context: RunContext, run_id: str, selection: Selection, *, narrowed: bool = False
) -> Sequence[StagedEntry]:
    """Return the entries in the queue of hard delete that were at a selected path.

    The queue records neither digests nor metadata. If the selection has metadata, return no entry, or with `narrowed`
    every entry at its paths.
    """
    if not (selection.paths or selection.globs) or (selection.metadata and not narrowed):
        return ()
    return await context.service.staged(run_id, selection, in_queue=True)


def _with_named(before: Certificate, staged: Sequence[StagedEntry], committed: pa.Table) -> dict[str, ErasedObject]:
    """Return every selected object by address: those of the certificate, of staged entries, and of commits (NAMES).

    Once an entry is overwritten, no record has the path of its object. Only a certificate that names the object can ask
    for it again.
    """
    objects = {known.address: known for known in before.objects}
    seen = [
        ErasedObject(
            address=key_of(entry, before.namespace),
            paths=(entry.path,),
            size_bytes=entry.size_bytes,
            checksum=entry.checksum,
            is_part=bool(entry.multipart_id),
        )
        for entry in staged
    ]
    seen += [
        ErasedObject(
            address=row["address"], paths=(row["path"],), size_bytes=row["size_bytes"], checksum=row["checksum"]
        )
        for row in committed.to_pylist()
    ]
    for named in seen:
        known = objects.get(named.address, named)
        paths = tuple(sorted({*named.paths, *known.paths} - {""}))
        objects[named.address] = replace(named, paths=paths, checksum=named.checksum or known.checksum)
    return objects


async def _ledger(context: RunContext, run_id: str) -> dict[str, str]:
    """Return the digest of each ledger file of the run."""
    keys = [stat.key async for page in context.store.list(LEDGER_PREFIX) for stat in page if f"/{run_id}-" in stat.key]
    return {key: hashlib.sha256(await context.store.get(key)).hexdigest() for key in keys}
