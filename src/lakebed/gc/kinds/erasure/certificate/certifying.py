"""Certify an erasure, or foresee it: what still has the selected content, and why.

A certificate looks at the store for each object that was selected:

0. Add the objects of other certificates at the paths: their commits may be gone, and with these the checksums.
1. Ask what deferred runs keep, and then what is staged at the paths: before the commits, for a commit may take it
   meanwhile.
   Read every range again whose span may have selected entries, as commits are now: their objects, with checksums.
2. Ask the store for each of these objects, and for each that the plan named.
3. Ask which copies are staged, and for the commits once more, as these may have them by now. Read all ranges, for other
   entries that name an object that is there, that have an erased checksum, or that a restore copied from one: copies.
   Restores of these are copies too. Where one has a checksum of its own, look again for that.
4. Ask what waits in the queue of hard delete, once more what deferred runs keep, what legal holds keep, and whether the
   bucket keeps versions. Of deferred objects that have an erased size read the bytes, before step 3 and after it.
5. Find the collection which proves that no garbage is left from before the erasure (proving.py).
6. List the folders of `data/`. What lies in one that is on no record was in no collection.

A plan's outlook is the same look before anything goes, at what the plan does not take. It reads all ranges only where
these have few rows, or on request. It reads the bytes of what no entry names any more, for their checksums. Neither
publishes or deletes anything.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from lakebed.base import (
    FOREIGN_SLICE,
    Corrupt,
    NotFound,
    RangeId,
    RunKind,
    RunState,
    count_of,
    format_address,
    human_size,
    key_inside,
    parse_address,
)
from lakebed.gc import messages
from lakebed.gc.engines import Task
from lakebed.gc.engines.tables import Table, required
from lakebed.gc.kinds.erasure.erasing import RangesBySpan, at_selected_paths, deferred_runs, key_of, read_ranges_by_span
from lakebed.gc.mark.inputs.ranges import ListedRanges, get_range, ranges_in
from lakebed.gc.mark.inputs.selecting import Flags, matching, paths_of, read_rows, selected
from lakebed.gc.messages import (
    CERTIFICATES_PREFIX,
    CLOCK_KEY,
    COPIES_ROWS_MAX,
    DATA_PREFIX,
    LEDGER_PREFIX,
    PROOF,
    STANDING_MAX,
    BadInput,
    Certificate,
    Collected,
    ErasedObject,
    ErasureOrder,
    Manifest,
    Outlook,
    Plan,
    PlanMissing,
    PreparedCommits,
    StagedEntry,
    Standing,
    StartedRun,
    certificate_path,
    decode_certificate,
    encode_certificate,
)
from lakebed.gc.rules import Holds, Matcher, Selection, digests_in
from lakebed.gc.runs.context import RunContext, find, folder_in, read_plan, slice_numbers
from lakebed.objectstore import Level, keeps_versions

from .contents import addresses_there, deferred_copies, read_checksums, sources_of
from .proving import find_proof

NAMES: Final = Table(
    "an entry of a range: the object that it names, as a key or a full URI, the checksum of its content, and the"
    " address from which a restore copied it (empty where it is unknown)",
    required(
        ("path", pa.string()),
        ("address", pa.string()),
        ("checksum", pa.string()),
        ("size_bytes", pa.int64()),
        ("source", pa.string()),
    ),
)
_GARBAGE: Final = "bytes that no entry names may have been at these paths"
_ON_NO_RECORD: Final = (
    "No collection takes a slice without a record. `lakebed gc adopt --slices` puts it on record, or remove it with the"
    " store's own tools. Of the rest `lakebed gc run --uncommitted --old-layout` takes what nothing names"
)
_NO_DIGEST: Final = "no-digest"
"""No content has it. A client may give it to an entry, which then may be named as a copy."""
_TURNS_MAX: Final = 3  # copies, and copies of restored ones: hardly anything but forged marks takes a third
GARBAGE_STAYS: Final = (
    "bytes that were overwritten, deleted or reset away before a commit had them have no path on record: apply with"
    " --everywhere, which deletes for good all that no entry of the repository names, whatever its path was"
)
_UNREAD_EARLIER: Final = (
    "copies were not sought of all that certificates of earlier erasures name: this one cannot be read"
)
_LEFT_OUT: Final = "objects of other erasures, of which metadata alone select, or the plan is gone, were not looked at"
_UNREAD_PLAN: Final = "copies were not sought of what it took: it has no certificate, and its plan cannot be read"
_LEFT_RUN: Final = "it left its run while this was asked, and may be restored: verify again"
_APPLIED: Final = frozenset({RunState.SWEEPING, RunState.ENDED})
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


async def certify(context: RunContext, run_id: str, *, by: str) -> Certificate:
    """Certify an erasure that was applied, and write the certificate into the namespace.

    Raises:
        PlanMissing, BadInput: there is no plan of an erasure, or something of it is missing.
    """
    plan = await read_plan(context.store, run_id)
    if plan.erasure is None:
        raise BadInput(f"run {run_id} is no erasure", run_id=run_id)
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
        objects=await _planned(context, plan, plan.erasure),
        collected=await _proven(context, run_id),
    )
    made = await context.service.sign_certificate(await _looked(context, made, by=by))
    await context.store.put(certificate_path(run_id), encode_certificate(made))
    return made


async def _planned(context: RunContext, plan: Plan, order: ErasureOrder) -> tuple[ErasedObject, ...]:
    """Return the objects that a plan names: those that it takes, and those that it could not take.

    Raises:
        BadInput: something of the plan is missing.
    """
    garbage = await context.read(plan.garbage, messages.GARBAGE)
    columns = garbage["address"].to_pylist(), paths_of(garbage), garbage["size_bytes"].to_pylist()
    staged = {key_of(one, plan.namespace): one.checksum for one in order.staged}
    checksums = {**staged, **order.checksums}
    parts = _parts(order.staged, plan.namespace)
    planned = tuple(
        ErasedObject(
            address=address,
            paths=paths,
            size_bytes=size,
            checksum=checksums.get(address, ""),
            is_part=address in parts,
        )
        for address, paths, size in zip(*columns, strict=True)
    )
    # What the plan could not take is selected all the same: only the store says that it is gone.
    asked = frozenset(one.address for one in planned)
    others: dict[str, ErasedObject] = {}
    for one in order.staged:
        address = key_of(one, plan.namespace)
        if address not in asked:
            paths = tuple(sorted({one.path, *(others[address].paths if address in others else ())}))
            others[address] = ErasedObject(
                address=address,
                paths=paths,
                size_bytes=one.size_bytes,
                checksum=one.checksum,
                is_part=address in parts,
            )
    return (*planned, *others.values())


async def _proven(context: RunContext, run_id: str) -> Collected | None:
    """Return what an earlier certificate found. The files of a collection may be gone by now, its proof stays."""
    data = await find(context.store, certificate_path(run_id))
    if data is None:
        return None
    # Else whoever writes to the store could have the server sign a proof that is none.
    with suppress(BadInput, Corrupt, NotFound):
        before = decode_certificate(data)
        await context.service.check_certificate(before)
        return before.collected
    return None


async def verify(context: RunContext, before: Certificate, *, by: str) -> Certificate:
    """Ask again what a certificate says, as things are now, and return it signed. Writes working files of a run, and
    the file that tells the store's time, but no certificate.

    Raises:
        BadInput: it is of another namespace.
        NotFound, Corrupt: the server did not sign it as it is, or it disagrees with the records of its run.
    """
    if before.namespace != context.store.uri.rstrip("/"):
        raise BadInput(f"the certificate is of {before.namespace}, not of {context.store.uri}", input="certificate")
    await context.service.check_certificate(before)
    return await context.service.sign_certificate(await _looked(context, before, by=by))


async def _looked(context: RunContext, before: Certificate, *, by: str) -> Certificate:
    """Look at all that the certificate speaks of, as things are now."""
    before, unread, left_out = await _with_earlier(context, before)
    # First: a slice has its record before it has an object.
    data = await context.store.level(DATA_PREFIX)
    run = await context.service.start(RunKind.ERASURE)
    # Deferred runs first, then staging, then deferred runs again: a restore takes an object from a run to a branch, and
    # the end of the window deletes it there. Asked the other way round it is in neither.
    first = await _deferred_now(context, before)
    before = await _with_kept(context, before, first)
    # Before the commits: what is committed meanwhile would be in neither.
    staged = await context.service.staged(run.run_id, before.selection)

    async def find(prepared: PreparedCommits) -> tuple[_Commits, pa.Table]:
        seen = await _read_commits(context, run, prepared, before.selection)
        return seen, await _names(
            context, seen.ranges.meeting, before.selection, lambda rows: selected(rows, before.selection)
        )

    seen, found = await context.reread(lambda: context.service.commits_for(run.run_id, run.kind), find)
    objects = _objects(_with_staged(before, staged), found)
    context.progress(f"asking the store for {count_of(len(objects), 'object')}")
    there = await addresses_there(context, objects)
    read: dict[str, str] = {}
    first = first._replace(copies=await deferred_copies(context, _contents_of(objects), objects, read))
    copies = await _find_copies(context, run, before.selection, seen, objects, there)
    last = await _deferred_now(context, before)
    told = {*objects, *copies.others["address"].to_pylist(), *last.at_paths}
    last = last._replace(copies=await deferred_copies(context, _contents_of(objects), told, read))
    made = await _look(context, before, run, data, staged, objects, there, copies, first.joined(last), by=by)
    return replace(made, stands=(*made.stands, *unread), remains=(*made.remains, *left_out))


class _Kept(NamedTuple):
    """An object that a deferred run keeps, with all its paths."""

    paths: Sequence[str]
    size_bytes: int
    standing: Standing


class _Deferred(NamedTuple):
    """One look at deferred runs: those that may keep selected objects, what they keep at selected paths, by address,
    and copies of erased content.
    """

    runs: Sequence[Standing]
    at_paths: Mapping[str, _Kept]
    copies: Sequence[Standing] = ()

    def joined(self, last: _Deferred) -> Sequence[Standing]:
        """Return the standings of a later look, and those that only this one has: their objects may be restored."""
        mine, later = self._standings(), last._standings()
        left = mine.keys() - later.keys()
        return [
            *last.runs,
            *[one.standing for one in last.at_paths.values()][:STANDING_MAX],
            *last.copies[:STANDING_MAX],
            *[replace(mine[where], why=f"{mine[where].why}; {_LEFT_RUN}") for where in sorted(left)][:STANDING_MAX],
        ]

    def _standings(self) -> dict[str, Standing]:
        each = (*self.runs, *(one.standing for one in self.at_paths.values()), *self.copies)
        return {one.where: one for one in each}


async def _deferred_now(context: RunContext, before: Certificate) -> _Deferred:
    selection = before.selection
    runs = await _deferred(context, selection)
    if selection.digests or selection.metadata:  # Their tables have neither, so `runs` names them whole.
        return _Deferred(runs, {})
    known = frozenset(one.address for one in before.objects if not one.is_kept)
    holds = await context.service.holds()
    return _Deferred(
        runs, await _deferred_at_paths(context, selection, holds, takes_shared=before.takes_shared, known=known)
    )


async def _with_kept(context: RunContext, before: Certificate, found: _Deferred) -> Certificate:
    """Return the certificate with what deferred runs keep at the paths among its objects, with checksums.

    Once such a run ends, no record has the paths of its objects. Only a certificate that names them can ask for
    restored copies.
    """
    objects = {one.address: one for one in before.objects}
    fresh = {address: one for address, one in found.at_paths.items() if address not in objects}
    checksums = await read_checksums(context.engine, {address: one.size_bytes for address, one in fresh.items()})
    matcher = Matcher(before.selection)
    for address, one in fresh.items():
        objects[address] = ErasedObject(
            address=address,
            paths=tuple(sorted(filter(matcher.selects_path, one.paths))),
            size_bytes=one.size_bytes,
            checksum=checksums.get(address, ""),
            is_kept=True,
        )
    return replace(before, objects=tuple(objects.values()))


def _contents_of(objects: Mapping[str, ErasedObject]) -> frozenset[tuple[str, int]]:
    return frozenset((one.checksum, one.size_bytes) for one in objects.values() if one.checksum)


class _Earlier(NamedTuple):
    """The certificate with the objects of others; what of these stands as unread; and what was left out of it."""

    certificate: Certificate
    unread: Sequence[Standing]
    remains: Sequence[str]


async def _with_earlier(context: RunContext, before: Certificate) -> _Earlier:
    """Add the objects that other erasures named at its paths, or with its digests, so that copies of these are sought,
    too; and those that a certificate of the run itself named before: no other record may have them. Erasures are
    applied in any order, so those that were planned later count likewise. Of one without a certificate the plan counts.
    """
    applied = await _other_erasures(context, before.run_id)
    keys = sorted([stat.key async for page in context.store.list(CERTIFICATES_PREFIX) for stat in page])
    selection = before.selection
    is_selected, is_any = _at_paths(selection), not (selection.paths or selection.globs or selection.digests)

    async def read(key: str) -> Sequence[ErasedObject] | Standing | None:
        data = await find(context.store, key)
        try:
            earlier = None if data is None else decode_certificate(data)
        except BadInput:
            return Standing(what="copy", where=key, why=_UNREAD_EARLIER)
        if earlier is None:
            return ()
        same = earlier.run_id == before.run_id or earlier.selection == selection
        return chosen(earlier.objects, same=same)

    def chosen(objects: Sequence[ErasedObject], *, same: bool) -> Sequence[ErasedObject] | None:
        if same:
            return objects
        # Metadata are not on record: which of these objects have them is unknown.
        return None if is_any else is_selected(objects)

    async def read_planned(run_id: str) -> Sequence[ErasedObject] | Standing | None:
        try:
            plan = await read_plan(context.store, run_id)
            if plan.erasure is None:
                return ()
            objects = await _planned(context, plan, plan.erasure)
            return chosen(objects, same=plan.erasure.selection == selection)
        except PlanMissing:
            return None
        except BadInput as error:
            return Standing(what="copy", where=f"run {run_id}", why=f"{_UNREAD_PLAN}: {error}")

    joined = {one.address: one for one in before.objects}
    unread: list[Standing] = []
    left_out = 0

    def add(found: Sequence[ErasedObject] | Standing | None) -> bool:
        """Return whether it was added, or stands; not what was left out."""
        if isinstance(found, Standing):
            unread.append(found)
        for one in found if found and not isinstance(found, Standing) else ():
            joined[one.address] = _joined(joined.get(one.address, one), one)
        return found is not None

    async for _, found in context.ports.tasks.ahead(keys, read):
        left_out += not add(found)
    for run_id in applied:
        if certificate_path(run_id) not in keys:
            left_out += not add(await read_planned(run_id))
    erasures = count_of(left_out, "other erasure")
    remains = [f"{_LEFT_OUT}: {erasures}. Verify these by themselves"] if left_out else []
    return _Earlier(replace(before, objects=tuple(joined.values())), unread, remains)


async def _other_erasures(context: RunContext, run_id: str) -> list[str]:
    """Return the erasures that were applied, but this one."""
    views = await context.service.runs()
    return [
        view.run_id
        for view in views
        if view.kind is RunKind.ERASURE and view.state in _APPLIED and view.run_id != run_id
    ]


def _joined(known: ErasedObject, one: ErasedObject) -> ErasedObject:
    paths = tuple(sorted({*known.paths, *one.paths}))
    return replace(known, paths=paths, checksum=known.checksum or one.checksum)


def _at_paths(selection: Selection) -> Callable[[Sequence[ErasedObject]], list[ErasedObject]]:
    """Return what chooses objects that were at a selected path, with no path that is not selected, or that have a
    selected digest. What metadata narrow down counts as selected: they are not on record.
    """
    digests, is_selected = frozenset(selection.digests), Matcher(selection).selects_path

    def choose(objects: Sequence[ErasedObject]) -> list[ErasedObject]:
        met = [
            one if one.checksum in digests else replace(one, paths=tuple(filter(is_selected, one.paths)))
            for one in objects
        ]
        return [one for one in met if one.paths or one.checksum in digests]

    return choose


class _Commits(NamedTuple):
    """COMMITS with their ranges."""

    prepared: PreparedCommits
    rows: pa.Table
    ranges: RangesBySpan


async def _read_commits(
    context: RunContext, run: StartedRun, prepared: PreparedCommits, selection: Selection, known: _Commits | None = None
) -> _Commits:
    """Read which ranges the commits have. Where they are those that are `known`, nothing is read again."""
    rows = await context.read(prepared.commits, messages.COMMITS)
    if known and rows.equals(known.rows):
        return _Commits(prepared, rows, known.ranges)
    folder = folder_in(run, "ranges.tasks")
    return _Commits(prepared, rows, await read_ranges_by_span(context.engine, rows, selection, folder=folder))


class _Content(NamedTuple):
    """Erased content: the checksums that it has, and those of its copies as well; the addresses of all of these."""

    own: frozenset[str]
    checksums: frozenset[str]
    addresses: frozenset[str]

    def has(self, checksum: str, source: str) -> bool:
        return checksum in self.checksums or source in self.addresses

    def why(self, checksum: str, source: str) -> str:
        if checksum in self.own:
            return "has an erased checksum"
        return f"was restored from {source}" if source in self.addresses else "has the checksum of a restored copy"

    def closed(self, others: pa.Table, elsewhere: Iterable[StagedEntry], uri: str) -> _Content:
        """Return it with the copies that are among these NAMES and entries, copies of copies, and so on.

        Anybody may write that an object was restored: more is said to be a copy then, never less.
        """
        committed = zip(*(others[name].to_pylist() for name in ("address", "checksum", "source")), strict=True)
        rows = frozenset((*committed, *((key_of(one, uri), one.checksum, one.source) for one in elsewhere)))
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


class _Copies(NamedTuple):
    """`others` are the rows that may be copies, or name an object that is there, `elsewhere` what is staged and may be
    one. Copies with checksums in `unsought` were not looked for.
    """

    seen: _Commits
    others: pa.Table
    elsewhere: Collection[StagedEntry]
    content: _Content
    unsought: Collection[str]


async def _find_copies(
    context: RunContext,
    run: StartedRun,
    selection: Selection,
    seen: _Commits,
    objects: Mapping[str, ErasedObject],
    there: Collection[str],
) -> _Copies:
    """Look for copies at any path: staged first, then in commits as they are after that. So what is committed meanwhile
    is in one of them. If copies have checksums of their own, look for these likewise.
    """
    uri = context.store.uri.rstrip("/")
    own = frozenset(one.checksum for one in objects.values()) - {""}
    content, sought = _Content(own, own, frozenset(objects)), frozenset[str]()
    elsewhere: dict[StagedEntry, None] = {}
    for _ in range(_TURNS_MAX):
        elsewhere |= dict.fromkeys(await _staged_elsewhere(context, run.run_id, content.checksums - sought, there))
        sought = content.checksums
        # Erased content may lie at any path, so no range can be left out.
        whole = _with_any(sorted(sought))

        async def look(
            prepared: PreparedCommits, known: _Commits = seen, whole: Selection = whole
        ) -> tuple[_Commits, pa.Table]:
            now = await _read_commits(context, run, prepared, selection, known)
            return now, await _names(
                context,
                now.ranges.all,
                whole,
                lambda rows: _is_other(rows, selection, whole, there, uri, restored=True),
                also=("metadata",),
            )

        seen, others = await context.reread(lambda: context.service.commits_for(run.run_id, run.kind), look)
        content = content.closed(others, elsewhere, uri)
        if content.checksums == sought:
            break
    return _Copies(seen, others, elsewhere, content, content.checksums - sought)


def _with_any(checksums: Sequence[str]) -> Selection:
    """Select entries with one of these checksums; none where there are none."""
    return Selection(digests=tuple(checksums) or (_NO_DIGEST,))


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
    """Make the certificate. `staged` are the selected entries, `deferred` what deferred runs keep."""
    run_id, closed = run.run_id, frozenset(slice_numbers(run.closed_slices))
    holds, others = copies.seen.prepared.holds, copies.others
    names = _staged_names(copies.elsewhere, before.namespace, beside=staged)
    stands = [
        Standing(
            what="object",
            where=address,
            why=_why(address, objects[address].paths, holds, others, names, _open_or(address, closed, _LATER)),
        )
        for address in sorted(frozenset(there) - {one.where for one in deferred})
    ]
    stands += (await _copies(context, others, copies.content, objects))[:STANDING_MAX]
    stands += _unsought(objects, there)
    stands += (await _staged_copies(context, copies.elsewhere, copies.content, objects, beside=staged))[:STANDING_MAX]
    if copies.unsought:
        why = f"copies were not sought of {count_of(len(copies.unsought), 'more checksum')} that restored copies have"
        stands.append(Standing(what="copy", where=context.store.uri, why=why))
    stands += [Standing(what="staged", where=one.path, why=one.where) for one in staged]
    stands += await _in_queue(context, run_id, before.selection, objects)
    stands += deferred
    is_proven = before.collected is not None and before.collected.proof == PROOF
    unlisted = await _on_no_record(context, data, run)
    proof = (
        before.collected if is_proven else await find_proof(context, before.run_id, run, has_unlisted=bool(unlisted))
    )
    collected = proof if isinstance(proof, Collected) else None
    if isinstance(proof, str):
        why = f"{_GARBAGE}: {proof}{_held_back(holds)}"
        stands.append(Standing(what="garbage", where=context.store.uri, why=why))
    stands += unlisted
    bucket, unknown = await _bucket(context)
    stands += bucket
    return replace(
        before,
        made_ms=context.ports.clock.now_ms(),
        made_by=by,
        commits_read=copies.seen.rows.num_rows,
        objects=tuple(replace(one, is_absent=address not in there) for address, one in sorted(objects.items())),
        stands=tuple(stands),
        remains=(*REMAINS, *unknown),
        collected=collected,
    )


async def _in_queue(
    context: RunContext, run_id: str, selection: Selection, objects: Mapping[str, ErasedObject]
) -> list[Standing]:
    """Return the selected objects in the queue of hard delete that the erasure did not name."""
    queued = {one.address: one.path for one in await queued_of(context, run_id, selection, narrowed=True)}
    waiting = await addresses_there(context, queued.keys() - objects.keys())
    return [
        Standing(what="queued", where=address, why=f"waits in the queue of hard delete, was at {queued[address]}")
        for address in sorted(waiting)
    ]


async def foresee(
    context: RunContext,
    run: StartedRun,
    order: ErasureOrder,
    prepared: PreparedCommits,
    *,
    queued: Sequence[StagedEntry],
    ranges: RangesBySpan,
    garbage: Manifest,
) -> tuple[Outlook, dict[str, str]]:
    """List what an erasure of this plan would leave. RANGES that meet the selection are read again; the others only
    where an object is shared, or copies are looked for.

    Return with that the checksums, by address, of those of its objects that no entry on record has: their bytes are
    read now, while they are there.

    Raises:
        NothingSelected: there is nothing that the order selects.
    """
    meant = await _meant(context, order, prepared, queued, ranges, garbage)
    found, taken, deferred = meant.found, meant.taken, meant.deferred
    left = _left(found, (*order.staged, *queued), taken["address"])
    there = await addresses_there(context, left)
    far = await _seek_copies(context, run, order, ranges, meant, there)
    others, elsewhere = far.others, far.elsewhere
    closed, otherwise = frozenset(slice_numbers(run.closed_slices)), _held_or_unknown(prepared.holds)
    names = _staged_names(elsewhere, context.store.uri.rstrip("/"), beside=order.staged)
    stands = [
        Standing(
            what="object",
            where=address,
            why=_why(address, left[address], prepared.holds, others, names, _open_or(address, closed, otherwise)),
        )
        for address in sorted(there)
    ]
    known = frozenset((*found["address"].to_pylist(), *(one.address for one in order.staged)))
    stands += await _copies(context, others, far.content, known)
    stands += await _staged_copies(context, elsewhere, far.content, known, beside=order.staged)
    stands += [
        Standing(what="staged", where=one.path, why=f"a commit of branch {one.branch} may be taking it: plan again")
        for one in order.staged
        if one.is_sealed
    ]
    stands += deferred
    if far.has_sought:
        told = {*known, *taken["address"].to_pylist(), *others["address"].to_pylist(), *(one.where for one in deferred)}
        stands += await deferred_copies(context, _sizes_of(found, taken, order.staged, meant.read), told)
    bucket, unknown = await _bucket(context)
    # Never cut off: of all that stands this is the one that no second plan can mend.
    named = (*bucket, *stands[:STANDING_MAX])
    outlook = Outlook(
        stands=named,
        stands_count=len(stands) + len(bucket),
        unmatched=meant.unmatched,
        remains=(*far.missing, _garbage_stays(prepared.holds), *REMAINS, *unknown),
    )
    return outlook, meant.read


class _Meant(NamedTuple):
    """Hold what an order selects. `found` are the entries of commits (NAMES), `taken` the plan's objects (GARBAGE),
    `deferred` what deferred runs keep of it, `read` the checksums that no entry on record has.
    """

    found: pa.Table
    taken: pa.Table
    checksums: pa.Array
    deferred: list[Standing]
    unmatched: tuple[str, ...]
    read: dict[str, str]


async def _meant(
    context: RunContext,
    order: ErasureOrder,
    prepared: PreparedCommits,
    queued: Sequence[StagedEntry],
    ranges: RangesBySpan,
    garbage: Manifest,
) -> _Meant:
    """
    Raises:
        NothingSelected: there is nothing that the order selects.
    """
    selection = order.selection
    found = await _names(context, ranges.meeting, selection, lambda rows: selected(rows, selection))
    taken = await context.read(garbage, messages.GARBAGE)
    paths = _texts(found["path"], taken["path"], [one.path for one in (*order.staged, *queued)])
    checksums = _texts(found["checksum"], [one.checksum for one in order.staged])
    deferred = await _deferred(context, selection)
    if not selection.metadata:
        met = frozenset((*found["address"].to_pylist(), *taken["address"].to_pylist()))
        kept = await _deferred_at_paths(context, selection, prepared.holds, takes_shared=order.takes_shared, known=met)
        paths = _texts(paths, [path for one in kept.values() for path in one.paths])
        deferred += [one.standing for one in kept.values()]
    unmatched = _unmatched(selection, paths, checksums)
    read = await _of_no_entry(context, order.staged, found, taken)
    if not (len(paths) or deferred):
        raise NothingSelected(
            "no commit, branch or deferred run has what is selected: nothing was planned. Bytes that no entry names"
            " have no path on record: `lakebed gc run --uncommitted --clean` deletes all of them"
        )
    return _Meant(found, taken, checksums, deferred, unmatched, read)


class _Far(NamedTuple):
    """Hold the entries that name an object of the plan or have its content, in commits (NAMES) and staged. `missing`
    says that copies were not sought.
    """

    others: pa.Table
    elsewhere: Iterable[StagedEntry]
    content: _Content
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
    selection, uri = order.selection, context.store.uri.rstrip("/")
    # By digest alone every entry with the content is selected.
    finds_copies = selection.is_by_path or bool(selection.metadata)
    looks_far = finds_copies and (order.finds_copies or ranges.all.entries <= COPIES_ROWS_MAX)
    wanted = sorted({*meant.checksums.to_pylist(), *meant.read.values()} - {""}) if looks_far else []
    erased = frozenset(meant.taken["address"].to_pylist()) if looks_far else frozenset()
    content = _Content(frozenset(wanted), frozenset(wanted), erased)
    whole = _with_any(wanted)
    others = NAMES.schema.empty_table()
    looks = bool(there or wanted or erased)
    if looks:
        others = await _names(
            context,
            ranges.all,
            whole,
            lambda rows: _is_other(rows, selection, whole, there, uri, restored=bool(erased)),
            also=("metadata",) if erased else (),
        )
    elsewhere = await _staged_elsewhere(context, run.run_id, wanted, there) if looks else ()
    missing = () if looks_far or not finds_copies else (_NO_COPIES,)
    return _Far(others, elsewhere, content.closed(others, elsewhere, uri), bool(wanted), missing)


def _sizes_of(
    found: pa.Table, taken: pa.Table, staged: Sequence[StagedEntry], read: Mapping[str, str]
) -> frozenset[tuple[str, int]]:
    """Return each checksum and size of NAMES, of staged entries, and of what was READ of the objects TAKEN."""
    sizes = dict(zip(taken["address"].to_pylist(), taken["size_bytes"].to_pylist(), strict=True))
    each = [
        *zip(found["checksum"].to_pylist(), found["size_bytes"].to_pylist(), strict=True),
        *((one.checksum, one.size_bytes) for one in staged),
        *((checksum, sizes[address]) for address, checksum in read.items()),
    ]
    return frozenset(one for one in each if one[0])


def _parts(staged: Sequence[StagedEntry], uri: str) -> frozenset[str]:
    """Return the addresses of parts of uploads. The checksum of an entry is never that of a part."""
    return frozenset(key_of(one, uri) for one in staged if one.multipart_id)


async def _of_no_entry(
    context: RunContext, staged: Sequence[StagedEntry], found: pa.Table, taken: pa.Table
) -> dict[str, str]:
    """Return the checksums, by address, of the objects TAKEN whose checksum neither NAMES nor staged entries have: what
    deferred runs and the queue of hard delete keep. One that cannot be read is left out.
    """
    uri = context.store.uri
    known = {row["address"] for row in found.select(["address", "checksum"]).to_pylist() if row["checksum"]}
    known |= {key_of(one, uri) for one in staged if one.checksum} | _parts(staged, uri)
    sizes = zip(taken["address"].to_pylist(), taken["size_bytes"].to_pylist(), strict=True)
    asked = {address: size for address, size in sizes if address not in known}
    if asked:
        whole = f"{count_of(len(asked), 'object')}, {human_size(sum(max(size, 0) for size in asked.values()))}"
        context.progress(f"reading {whole}, for checksums: no entry has them")
    return await read_checksums(context.engine, asked)


def _garbage_stays(holds: Holds) -> str:
    return f"{GARBAGE_STAYS}{_held_back(holds)}"


def _held_back(holds: Holds) -> str:
    names = ", ".join(holds.keeping_uncommitted())
    return f". A collection takes nothing while legal hold {names} is in force" if names else ""


_LATER: Final = "is not deleted yet: it was staged, under way, held by a commit, or came after the plan; plan again"
_UNKNOWN: Final = "something else keeps it: `lakebed gc why` says what"
_NO_COPIES: Final = "copies at other paths were not looked for: --copies does, and reads every checksum"


class NothingSelected(NotFound):
    """Nothing that the repository has, or had, is selected. Nothing was planned."""


def _texts(*columns: pa.ChunkedArray | pa.Array | list[str]) -> pa.Array:
    """Return each text of these once."""
    return pc.unique(pa.chunked_array([piece for one in columns for piece in _pieces(one)], pa.string()))


def _pieces(column: pa.ChunkedArray | pa.Array | list[str]) -> list[pa.Array]:
    if isinstance(column, pa.ChunkedArray):
        return [*column.chunks]
    return [column if isinstance(column, pa.Array) else pa.array(column, pa.string())]


def _unmatched(selection: Selection, paths: pa.Array, checksums: pa.Array) -> tuple[str, ...]:
    """Return the paths, globs and digests of a selection at which nothing was found."""
    found = frozenset((*paths.to_pylist(), *checksums.to_pylist()))
    names = [name for name in (*selection.paths, *selection.digests) if name not in found]
    patterns = zip(selection.globs, selection.patterns(), strict=True)
    return (*names, *(glob for glob, pattern in patterns if not matching(paths, pattern).any()))


def _left(found: pa.Table, staged: Sequence[StagedEntry], goes: pa.ChunkedArray) -> dict[str, tuple[str, ...]]:
    """Return the paths of each selected object that is not among those that go."""
    rows = found.filter(pc.invert(pc.is_in(found["address"], value_set=goes.combine_chunks())))
    left: dict[str, set[str]] = {}
    for address, path in zip(rows["address"].to_pylist(), rows["path"].to_pylist(), strict=True):
        left.setdefault(address, set()).add(path)
    taken = frozenset(goes.to_pylist()) if staged else frozenset()
    for one in staged:
        if one.address not in taken and not one.is_sealed:
            left.setdefault(one.address, set()).add(one.path)
    return {address: tuple(sorted(paths)) for address, paths in left.items()}


def _open_or(address: str, closed: Collection[int], otherwise: str) -> str:
    place = parse_address(address)
    is_open = place is not None and place[0] not in closed
    return "its slice is still written to: plan again when its server has moved on" if is_open else otherwise


def _held_or_unknown(holds: Holds) -> str:
    names = ", ".join(one.name for one in holds.holds if one.commit_ids())
    return f"a commit that has it is held by {names}" if names else _UNKNOWN


async def _copies(context: RunContext, others: pa.Table, content: _Content, known: Collection[str]) -> list[Standing]:
    """Return the objects that are there, are copies of erased content, and are not known as selected."""
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


def _unsought(objects: Mapping[str, ErasedObject], there: Collection[str]) -> list[Standing]:
    """Return that copies of what is absent were not sought, where its checksum is unknown. What is there stands."""
    left = sorted(address for address, one in objects.items() if not (one.checksum or one.is_part or address in there))
    if not left:
        return []
    why = f"copies were not sought of {count_of(len(left), 'erased object')}: no record has the checksum"
    return [Standing(what="copy", where=", ".join(left[:3]), why=why)]


async def _staged_elsewhere(
    context: RunContext, run_id: str, checksums: Collection[str], there: Collection[str]
) -> Sequence[StagedEntry]:
    """Return the staged entries that have one of these checksums, are a copy that a restore made, or name an object
    that is `there`. Of the latter STANDING_MAX are asked for.
    """
    asked = [*digests_in(sorted(checksums))] or [_with_any(())]
    named = sorted(there)[:STANDING_MAX]
    found = [await context.service.staged(run_id, one, or_restored=True, addresses=named) for one in asked]
    return tuple(dict.fromkeys(entry for entries in found for entry in entries))


def _staged_names(
    elsewhere: Iterable[StagedEntry], uri: str, *, beside: Iterable[StagedEntry]
) -> dict[str, StagedEntry]:
    """Return one of the entries `elsewhere` for each object that they name, but for those `beside`."""
    selected_ones = frozenset((entry.branch, entry.path) for entry in beside)
    return {key_of(entry, uri): entry for entry in elsewhere if (entry.branch, entry.path) not in selected_ones}


async def _staged_copies(
    context: RunContext,
    elsewhere: Iterable[StagedEntry],
    content: _Content,
    known: Collection[str],
    *,
    beside: Sequence[StagedEntry],
) -> list[Standing]:
    """Return likewise what is staged `elsewhere`, but for the entries `beside`, which are selected."""
    places = frozenset((one.branch, one.path) for one in beside)
    copies = {
        one: address
        for one in elsewhere
        if content.has(one.checksum, one.source)
        and (one.branch, one.path) not in places
        and (address := key_of(one, context.store.uri)) not in known
    }
    there = await addresses_there(context, frozenset(copies.values()))
    return [
        Standing(
            what="copy",
            where=address,
            why=f"{content.why(one.checksum, one.source)}, {one.where} at {one.path}",
        )
        for one, address in copies.items()
        if address in there
    ]


async def _on_no_record(context: RunContext, data: Level, run: StartedRun) -> list[Standing]:
    """Return the folders and files of `data/` that no slice record names: no collection lists them as slices. As after
    a restore of a dump or a backup, for what was written later.
    """
    names = run.closed_slices if (found := run.all_slices()) is None else found
    known = frozenset(f"{DATA_PREFIX}{name}/" for name in names)

    async def has_objects(folder: str) -> bool:
        # Some stores show a folder for a while after the last object in it went.
        async for _ in context.store.list(folder):
            return True
        return False

    folders = [folder for folder in data.folders if folder not in known]
    found_in = [folder async for folder, found in context.ports.tasks.ahead(folders, has_objects) if found]
    left = [*sorted(found_in), *data.keys]
    if not left:
        return []
    why = f"{_GARBAGE}: no slice record names {count_of(len(left), 'folder or file', 'folders or files')} of data/"
    return [Standing(what="unlisted", where=", ".join(left[:3]), why=f"{why}. {_ON_NO_RECORD}")]


async def queued_of(
    context: RunContext, run_id: str, selection: Selection, *, narrowed: bool = False
) -> Sequence[StagedEntry]:
    """Return what waits in the queue of hard delete and was at a selected path.

    The queue knows neither digests nor metadata. So where metadata narrow a path down none of it is selected; with
    `narrowed` what may be is returned.
    """
    if not (selection.paths or selection.globs) or (selection.metadata and not narrowed):
        return ()
    return await context.service.staged(run_id, selection, in_queue=True)


async def _bucket(context: RunContext) -> tuple[list[Standing], list[str]]:
    """Return that the bucket keeps versions, or that this could not be asked."""
    match await keeps_versions(context.store, CLOCK_KEY):
        case True:
            why = "keeps versions: a delete leaves the old"
            return [Standing(what="bucket", where=context.store.uri, why=why)], []
        case None:
            return [], ["whether the bucket keeps versions or locks objects could not be asked"]
        case False:
            return [], []


async def _deferred(context: RunContext, selection: Selection) -> list[Standing]:
    """Return the deferred runs that may keep selected objects, as what selects these is not on their record."""
    found: list[Standing] = []
    for run in await deferred_runs(context):
        count, unknown = run.table.rows, "digests and metadata are not on record"
        if not run.has_all_paths:
            unknown = "an earlier release planned it, and not all of their paths are on record"
        elif not (selection.digests or selection.metadata):
            continue  # An erasure by path alone takes what they keep.
        elif selection.is_by_path:
            count = sum([rows.num_rows async for rows in at_selected_paths(context, run, selection)])
        if count:
            objects = count_of(count, "object")
            why = f"is deferred and may keep erased content: {objects}, {unknown}"
            found.append(Standing(what="deferred", where=f"run {run.run_id}", why=why))
    return found


async def _deferred_at_paths(
    context: RunContext, selection: Selection, holds: Holds, *, takes_shared: bool, known: Collection[str]
) -> dict[str, _Kept]:
    """Return what deferred runs keep at selected paths, by address: held, shared, or set aside while
    the erasure was planned. Leaves out what is `known`, and what is not there.
    """
    left = frozenset(known)
    found: dict[str, _Kept] = {}
    for run in await deferred_runs(context):
        rows = [one async for one in at_selected_paths(context, run, selection)]
        each = {
            address: (paths, size)
            for one in rows
            for address, paths, size in zip(
                one["address"].to_pylist(), paths_of(one), one["size_bytes"].to_pylist(), strict=True
            )
        }
        for address in sorted(await addresses_there(context, each.keys() - left)):
            paths, size = each[address]
            reasons = [f"run {run.run_id} keeps it, it was at {', '.join(paths[:3])}"]
            others = [path for path in paths if not selection.selects_path(path)]
            if names := holds.at_any(paths):
                reasons.append(_held_by(names))
            elif others and not takes_shared:
                reasons.append(_named_by(others))
            found[address] = _Kept(paths, size, Standing(what="deferred", where=address, why="; ".join(reasons)))
    return found


def _held_by(names: Sequence[str]) -> str:
    return f"legal hold {', '.join(names)} keeps it"


def _named_by(paths: Sequence[str]) -> str:
    return f"entries that are not selected name it: {', '.join(paths[:3])}"


NAMES_OF_COPIES: Final = ("path", "address", "checksum", "source")


def _with_staged(before: Certificate, staged: Sequence[StagedEntry]) -> Certificate:
    """Return the certificate with what is staged at the paths among its objects.

    Once such an entry is overwritten, no record has the path of its object. Only a certificate that names the object
    can ask for it again.
    """
    objects = {one.address: one for one in before.objects}
    for one in staged:
        address = key_of(one, before.namespace)
        known = objects.get(address)
        objects[address] = ErasedObject(
            address=address,
            paths=tuple(sorted({one.path, *(known.paths if known else ())})),
            size_bytes=one.size_bytes,
            checksum=one.checksum or (known.checksum if known else ""),
            is_part=bool(one.multipart_id),
        )
    return replace(before, objects=tuple(objects.values()))


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
            checksum=row["checksum"] or (known.checksum if known else ""),
        )
    return objects


async def _names(
    context: RunContext,
    ranges: ListedRanges,
    selection: Selection,
    choose: Callable[[pa.Table], Flags],
    *,
    also: Sequence[str] = (),
) -> pa.Table:
    """NAMES of the rows that `choose` selects, in these ranges. With the column `metadata` also their source."""
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
                        "path": [key.decode(errors="replace") for key in chosen["key"].to_pylist()],
                        "address": _addresses(chosen, uri),
                        "checksum": chosen["checksum"],
                        "size_bytes": chosen["size_bytes"],
                        "source": sources_of(chosen) if also else [""] * chosen.num_rows,
                    }
                )

    return await context.engine.run(work, ranges.rows, NAMES, effort=ranges.effort_of_whole)


def _addresses(rows: pa.Table, uri: str) -> list[str]:
    columns = (rows[name].to_pylist() for name in ("slice", "sequence", "address"))
    return [
        format_address(slice_, sequence) if slice_ != FOREIGN_SLICE else key_inside(address, uri) or address
        for slice_, sequence, address in zip(*columns, strict=True)
    ]


def _is_other(
    rows: pa.Table,
    selection: Selection,
    checksums: Selection,
    there: Collection[str],
    uri: str,
    *,
    restored: bool,
) -> Flags:
    """Choose rows that are not selected and name an object that is there, or have an erased checksum. With `restored`
    also all that a restore copied: what it copied may itself be a copy.
    """
    chosen = selected(rows, checksums)
    if restored:
        chosen |= [source != "" for source in sources_of(rows)]
    if there:
        wanted = frozenset(there)
        chosen |= [address in wanted for address in _addresses(rows, uri)]
    # By metadata alone these rows cannot be told from selected ones: they are told twice then.
    is_by_name = bool(selection.paths or selection.globs or selection.digests) and not selection.metadata
    return chosen & ~selected(rows, selection) if is_by_name else chosen


def _why(
    address: str,
    paths: Sequence[str],
    in_force: Holds,
    others: pa.Table,
    staged: Mapping[str, StagedEntry],
    otherwise: str,
) -> str:
    if "://" in address:
        return "lies outside of the storage namespace"
    if holds := in_force.at_any(paths):
        return _held_by(holds)
    rows = others.filter(pc.equal(others["address"], address))
    names = sorted(set(rows["path"].to_pylist()) - set(paths))
    if names:
        return _named_by(names)
    if entry := staged.get(address):
        return f"an entry that is not selected names it: {entry.path}, which {entry.where}"
    return otherwise


async def _ledger(context: RunContext, run_id: str) -> dict[str, str]:
    """Return the digest of each ledger file of the run."""
    keys = [stat.key async for page in context.store.list(LEDGER_PREFIX) for stat in page if f"/{run_id}-" in stat.key]
    return {key: hashlib.sha256(await context.store.get(key)).hexdigest() for key in keys}
