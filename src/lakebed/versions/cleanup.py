"""Delete the records that no flow needs any more: retired tokens, finished records, refs half made.

The order is that of the proof (docs/design/protocols.md, "Commit", step 5): read the claims, then each branch, then
remove the cells of tokens that are claimed and not held. A clock bounds the garbage, never the safety.

Where objects are deleted at once, the cleaner also dooms cells that own objects of no commit (`_let_go_owned`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Final, TypeVar

from msgspec.structs import replace

from lakebed.base import AT_ONCE, CommitId, OutcomeUnknown, RunState, StagingToken, in_waves
from lakebed.kv import Page, PredicateFailed
from lakebed.objectstore import ObjectMissing
from lakebed.ranges import FileCorrupt

from . import keys
from .cells import CONDITIONAL, DOOMED, Cell, decode_cell, decode_cells, encode_cell
from .context import Context, branch_of
from .errors import CommitNotFound
from .fencing import Fencing
from .hard_delete import HardDelete, LetGoBy, is_owner, same_address
from .records import (
    BranchRecord,
    ClaimReason,
    ClaimRecord,
    CopyRecord,
    CopyState,
    IntentRecord,
    RefState,
    TagRecord,
    UploadRecord,
    UploadState,
    decode_record,
    encode_record,
)
from .refs.reflog import Reflog
from .refs.refs import Refs
from .retired import Retired
from .staging.slices import Slices
from .staging.uploads import Uploads

A = TypeVar("A")
T = TypeVar("T")

MARKING = frozenset({RunState.MARKING, RunState.EXPIRING})
"""A run marks from its first record until its `set_if` after its last read."""


SEALED_MAX: Final = 32
"""Each commit that fails leaves a sealed token, and each of them costs every read one more. Where they are more than
committers at work can explain, a freeze makes one of them."""


WIPED_AT_ONCE: Final = 16
"""Claims whose tokens are wiped at once: each holds a page of cells."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleaned:
    """Count how many of each a pass removed."""

    cells: int = 0
    claims: int = 0
    records: int = 0
    refs: int = 0


@dataclass(frozen=True, slots=True)
class Wiped:
    """Count the cells that went. `is_whole`: none that was seen is left."""

    cells: int
    is_whole: bool


class Cleanup:
    def __init__(
        self,
        context: Context,
        *,
        retired: Retired,
        refs: Refs,
        reflog: Reflog,
        slices: Slices,
        uploads: Uploads,
        fencing: Fencing,
        hard_delete: HardDelete,
    ) -> None:
        self._context = context
        self._reflog = reflog
        self._retired = retired
        self._refs = refs
        self._slices = slices
        self._uploads = uploads
        self._fencing = fencing
        self._hard_delete = hard_delete

    async def clean(self) -> Cleaned:
        """One pass. Any number may run at once, and be stopped anywhere. Costs a scan of records and cells.

        Ends this instance's own slice too, if that is over its age.
        """
        await self._slices.end_old()
        cells, claims = await self._clean_claims()
        return Cleaned(cells=cells, claims=claims, records=await self._clean_records(), refs=await self._clean_refs())

    async def _clean_claims(self) -> tuple[int, int]:
        now = self._context.ports.clock.now_ms()
        is_on = (await self._hard_delete.setting()).is_on
        # First the claims, then the branches. A token is claimed before it leaves its branch, and never comes back.
        # So a token that is claimed and not held is retired, however late the reading.
        claims = await self._end_claims(await self._claims(), now_ms=now)
        branches = sorted({claim.branch for _, claim in claims})
        held = dict(zip(branches, await self._each(branches, self._tokens_of), strict=True))
        # Again, after the branches: a claim that comes later is of a publication that fails, for the token is gone.
        last = [claim for _, claim in await self._claims()] if is_on and claims else []

        async def clean(claim: ClaimRecord) -> Wiped:
            return await self._clean_claim(claim, held[claim.branch], last if is_on else None, now_ms=now)

        found = await self._each([claim for _, claim in claims], clean, most=WIPED_AT_ONCE)
        seen_retired: list[tuple[bytes, bytes]] = []
        over: list[bytes] = []
        for (key, claim), wiped in zip(claims, found, strict=True):
            if not wiped.is_whole:
                continue
            # The age of the claim itself proves nothing: its committer may have slept, and have published just now.
            if not claim.retired_ms:
                seen_retired.append((key, encode_record(replace(claim, retired_ms=now))))
            # A writer with an old record may still put a cell into a retired token, for as long as the branch cache
            # and the longest request last. So this pass has cleaned the tokens once more.
            elif claim.is_over:
                over.append(key)
        # Another cleaner may have removed such a claim since: then it comes back, and goes again later.
        if seen_retired:
            await self._context.store.set_many(self._context.partition, seen_retired)
        if over:
            await self._context.store.delete_many(self._context.partition, over)
        return sum([wiped.cells for wiped in found]), len(over)

    async def _end_claims(
        self, claims: Sequence[tuple[bytes, ClaimRecord]], *, now_ms: int
    ) -> list[tuple[bytes, ClaimRecord]]:
        """Note which claims are over, before any cell goes for that: a conditional writer that sleeps sees it."""
        since_ms = now_ms - self._context.options.claim_age_ms_max
        ended = [
            (key, replace(claim, is_over=True) if 0 < claim.retired_ms <= since_ms else claim) for key, claim in claims
        ]
        noted = [
            (key, encode_record(claim)) for (key, claim), old in zip(ended, claims, strict=True) if claim != old[1]
        ]
        if noted:
            await self._context.store.set_many(self._context.partition, noted)
        return ended

    async def _clean_claim(
        self, claim: ClaimRecord, held: Set[StagingToken], last: Sequence[ClaimRecord] | None, *, now_ms: int
    ) -> Wiped:
        """Remove the cells of those tokens of a claim that its branch does not hold."""
        is_old = now_ms - claim.created_ms >= self._context.options.claim_age_ms_max
        retired = [token for token in claim.tokens if token not in held]
        # The one token that is claimed before it is held: a freeze is filling it. Bump the branch first, so that a
        # freeze that sleeps fails.
        if claim.building and retired:
            if not is_old:
                return Wiped(0, is_whole=False)
            await self._fencing.bump(claim.branch)
            now_held = await self._tokens_of(claim.branch)
            retired = [token for token in retired if token not in now_held]
        wiped = [await self._wipe(token, last, spares=not claim.is_over) for token in retired]
        # A token that is held yet may leave the branch later, by the sleeping committer that wrote this very claim:
        # without the claim no cleaner would find its cells.
        is_whole = len(retired) == len(claim.tokens) and all(one.is_whole for one in wiped)
        return Wiped(sum([one.cells for one in wiped]), is_whole)

    async def _each(self, items: Sequence[A], act: Callable[[A], Awaitable[T]], *, most: int = AT_ONCE) -> list[T]:
        return await in_waves(self._context.ports.tasks, items, act, most=most)

    async def _tokens_of(self, branch: str) -> frozenset[StagingToken]:
        held = await self._context.get(keys.BRANCH + branch.encode())
        return frozenset() if held is None else frozenset(decode_record(BranchRecord, held.value).tokens())

    async def _claims(self) -> list[tuple[bytes, ClaimRecord]]:
        return [item async for item in self._context.records(ClaimRecord, keys.CLAIM)]

    async def _wipe(self, token: StagingToken, claims: Sequence[ClaimRecord] | None, *, spares: bool) -> Wiped:
        """Remove the cells of a retired token. With `claims`, queue their own objects that no claimed commit has.

        `spares`: leave cells of conditional writers. Another one that is under way may have to see that it was not
        first (staging/conditions.py). Such a cell goes once a claim of its token is over.
        """
        partition = self._context.token_partition(token)
        count, is_whole = 0, True
        start: bytes | None = b""
        while start is not None:
            page = await self._context.store.scan(partition, start, self._context.options.scan_page)
            start = page.next_start
            if spares:
                page = _without_conditional(page)
            gone = page.keys
            if claims is not None:
                left = await self._let_go_owned(token, page, _takers(token, claims))
                gone = [key for key in page.keys if key not in left]
                is_whole = is_whole and not left
            if gone:
                # Without a look: a cell that was set since is of a writer who finds it gone, and takes a fresh address.
                await self._context.store.delete_many(partition, gone)
            count += len(gone)
        return Wiped(count, is_whole)

    async def _let_go_owned(self, token: StagingToken, page: Page, takers: Sequence[CommitId] | None) -> Set[bytes]:
        """Doom the cells that own an address which no taker has at their path, then queue all that are doomed.

        Return the keys of cells that could not be doomed.
        """
        cells = dict(zip(page.keys, decode_cells(page.values), strict=True))
        doomed = {key: cell for key, cell in cells.items() if cell[0] & DOOMED}
        owned = [key for key, cell in cells.items() if takers is not None and is_owner(cell)]
        try:
            taken = await self._taken(takers or (), {key: cells[key] for key in owned})
        except (CommitNotFound, FileCorrupt, ObjectMissing):
            # Which cells a commit took cannot be known.
            taken = frozenset(owned)
        free = [key for key in owned if key not in taken]
        fates = await self._each(free, lambda key: self._doom(token, key, cells[key]))
        done = {key for key, is_doomed in zip(free, fates, strict=True) if is_doomed}
        doomed |= {key: cells[key] for key in free if key in done}
        # Before the cells go: without a cell or a record, only the offline collector would find the object.
        await self._hard_delete.put(
            [self._hard_delete.queued(cell, key, LetGoBy.CLEANER) for key, cell in doomed.items()]
        )
        # These changed, or an answer was lost. The next pass looks at them again.
        return {key for key in free if key not in done}

    async def _taken(self, takers: Sequence[CommitId], cells: Mapping[bytes, Cell]) -> Set[bytes]:
        """Return the keys at which one of these commits has the very address of the cell."""
        found: set[bytes] = set()
        names = sorted(cells)
        for commit_id in takers:
            rows = await self._context.trees.lookup_many(await self._context.commits.metarange(commit_id), names)
            pairs = zip(names, rows, strict=True)
            found |= {key for key, row in pairs if row is not None and same_address(row, cells[key][1])}
        return found

    async def _doom(self, token: StagingToken, key: bytes, cell: Cell) -> bool:
        """Replace exactly this cell by a doomed one, so that its writer and a copier find it gone."""
        partition = self._context.token_partition(token)
        held = await self._context.store.get(partition, key)
        if held is None or decode_cell(held.value) != cell:
            return False
        try:
            await self._context.store.set_if(partition, key, encode_cell(cell[0] | DOOMED, cell[1]), held.predicate)
        except (PredicateFailed, OutcomeUnknown):
            return False
        return True

    async def _clean_records(self) -> int:
        """Expire old records, give up stuck ones, and remove finished ones that no run may be looking for."""
        now = self._context.ports.clock.now_ms()
        finished: list[tuple[bytes, UploadRecord | CopyRecord]] = []
        expired: list[str] = []
        stuck: dict[type[UploadRecord] | type[CopyRecord], list[str]] = {UploadRecord: [], CopyRecord: []}
        async for key, upload in self._context.records(UploadRecord, keys.UPLOAD):
            if upload.state is UploadState.ISSUED and upload.expires_ms <= now:
                expired.append(key[len(keys.UPLOAD) :].decode())
            elif upload.state in (UploadState.LINKING, UploadState.REVOKED):
                if now - upload.expires_ms >= self._context.options.claim_age_ms_max:
                    stuck[UploadRecord].append(key[len(keys.UPLOAD) :].decode())
            elif upload.state is not UploadState.ISSUED:
                finished.append((key, upload))
        async for key, copy in self._context.records(CopyRecord, keys.COPY):
            if copy.state is CopyState.DONE:
                finished.append((key, copy))
            elif now - copy.started_ms >= self._context.options.claim_age_ms_max:
                stuck[CopyRecord].append(key[len(keys.COPY) :].decode())
        await self._each(expired, self._uploads.expire)
        for kind, names in stuck.items():
            await self._fencing.fence_records(kind, names)
        intents = self._context.records(IntentRecord, keys.INTENT)
        age_ms = self._context.options.claim_age_ms_max
        dead = [key async for key, intent in intents if now - intent.created_ms >= age_ms]
        await self._each(dead, self._fencing.revoke_intent)
        # The runs are read after the records, never before: a run that begins later reads the cells that the finished
        # records' owners wrote, a run that began earlier is seen here.
        marking = tuple(run for run, record in await self._retired.runs() if record.state in MARKING)
        return sum(await self._each(finished, lambda one: self._remove_finished(*one, marking)))

    async def _remove_finished(self, key: bytes, record: UploadRecord | CopyRecord, marking: tuple[str, ...]) -> bool:
        """Remove a finished record that no run watches any more."""
        held = await self._context.get(key)
        if held is None or decode_record(type(record), held.value) != record:
            return False
        # Runs that marked when a cleaner first saw it finished may still look for it.
        waiting_for = marking if record.watchers is None else tuple(run for run in record.watchers if run in marking)
        try:
            if not waiting_for:
                await self._context.delete_if(key, held.predicate)
                return True
            if record.watchers is None:
                watched = encode_record(replace(record, watchers=waiting_for))
                await self._context.set_if(key, watched, held.predicate)
        except (PredicateFailed, OutcomeUnknown):
            return False  # Another cleaner, or the next pass will see.
        return False

    async def _clean_refs(self) -> int:
        creating: list[tuple[bytes, type[BranchRecord] | type[TagRecord]]] = []
        long: list[str] = []
        async for key, branch in self._context.records(BranchRecord, keys.BRANCH):
            if branch.state is RefState.CREATING:
                creating.append((key, BranchRecord))
            elif len(branch.sealed) > SEALED_MAX:
                long.append(branch_of(key))
        async for key, tag in self._context.records(TagRecord, keys.TAG):
            if tag.state is RefState.CREATING:
                creating.append((key, TagRecord))
        await self._fencing.freeze_all(long)
        removed = sum(await self._each(creating, lambda one: self._refs.remove_dead(*one)))
        return removed + await self._refs.clean_deleted() + await self._reflog.clean()


def _without_conditional(page: Page) -> Page:
    """Return the cells of a page that no conditional writer set."""
    pairs = zip(page.keys, page.values, decode_cells(page.values), strict=True)
    rest = [(key, value) for key, value, (flags, _) in pairs if not flags & CONDITIONAL]
    return Page([key for key, _ in rest], [value for _, value in rest], page.next_start)


def _takers(token: StagingToken, claims: Sequence[ClaimRecord]) -> Sequence[CommitId] | None:
    """Return the commits that may have taken a token's cells. None: other cells may name the same objects."""
    mine = [claim for claim in claims if token in claim.tokens]
    # A freeze copies cells into another token.
    if not mine or any(claim.why is ClaimReason.FREEZE for claim in mine):
        return None
    return sorted({claim.commit_id for claim in mine if claim.commit_id})
