"""What nobody needs any more in the key-value store: retired tokens, finished records, refs half made.

Cells go in the order that the proof needs (docs/design/protocols.md, "Commit", step 5): first the claims, then each
branch, and what a branch still holds is left alone. A token leaves a branch once and never comes back, and it is
claimed before it leaves; so a token that is claimed and not held is retired, however late the reading. The one
exception is a token that a freeze is filling: it is claimed before it is held, and is cleaned only after the branch was
bumped, which makes a freeze that sleeps fail.

A claim is kept until a cleaner saw all its tokens retired for longer than the branch cache and the longest request:
a writer with an old record may still put a cell into a retired token. They are cleaned once more before it goes. The
age of the claim itself proves nothing: its committer may have slept, and have published just now. That clock bounds
garbage, never safety.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from lakebed.base import OutcomeUnknown, RunState, StagingToken
from lakebed.kv import PredicateFailed

from . import keys
from .context import Context, branch_of
from .fencing import Fencing
from .records import (
    BranchRecord,
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
from .refs import Refs
from .retired import Retired
from .staging.slices import Slices
from .staging.uploads import Uploads

MARKING = frozenset({RunState.MARKING, RunState.EXPIRING})
"""A run marks from its first record until its `set_if` after its last read."""


SEALED_MAX: Final = 32
"""Each commit that fails leaves a sealed token, and each of them costs every read one more. Where they are more than
committers at work can explain, a freeze makes one of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleaned:
    """Count how many of each a pass removed."""

    cells: int = 0
    claims: int = 0
    records: int = 0
    refs: int = 0


class Cleanup:
    def __init__(
        self, context: Context, *, retired: Retired, refs: Refs, slices: Slices, uploads: Uploads, fencing: Fencing
    ) -> None:
        self._context = context
        self._retired = retired
        self._refs = refs
        self._slices = slices
        self._uploads = uploads
        self._fencing = fencing

    async def clean(self) -> Cleaned:
        """One pass. Any number may run at once, and be stopped anywhere. Costs a scan of records and cells.

        Ends this instance's own slice too, if that is over its age.
        """
        await self._slices.end_old()
        cells, claims = await self._clean_claims()
        return Cleaned(cells=cells, claims=claims, records=await self._clean_records(), refs=await self._clean_refs())

    async def _clean_claims(self) -> tuple[int, int]:
        now = self._context.ports.clock.now_ms()
        claims = [item async for item in self._context.records(ClaimRecord, keys.CLAIM)]
        held: dict[str, frozenset[StagingToken]] = {}
        for branch in sorted({claim.branch for _, claim in claims}):
            held[branch] = await self._tokens_of(branch)
        cells = 0
        seen_retired: list[tuple[bytes, bytes]] = []
        over: list[bytes] = []
        for key, claim in claims:
            is_old = now - claim.created_ms >= self._context.options.claim_age_ms_max
            retired = [token for token in claim.tokens if token not in held[claim.branch]]
            if claim.building and retired:
                if not is_old:
                    continue
                await self._fencing.bump(claim.branch)
                now_held = await self._tokens_of(claim.branch)
                retired = [token for token in retired if token not in now_held]
            for token in retired:
                cells += await self._wipe(token)
            # A token that is held yet may leave the branch later, by the sleeping committer that wrote this very claim:
            # without the claim no cleaner would find its cells.
            if len(retired) < len(claim.tokens):
                continue
            if not claim.retired_ms:
                seen_retired.append((key, encode_record(replace(claim, retired_ms=now))))
            elif now - claim.retired_ms >= self._context.options.claim_age_ms_max:
                over.append(key)
        # Another cleaner may have removed such a claim since: then it comes back, and goes again later.
        if seen_retired:
            await self._context.store.set_many(self._context.partition, seen_retired)
        if over:
            await self._context.store.delete_many(self._context.partition, over)
        return cells, len(over)

    async def _tokens_of(self, branch: str) -> frozenset[StagingToken]:
        held = await self._context.get(keys.BRANCH + branch.encode())
        return frozenset() if held is None else frozenset(decode_record(BranchRecord, held.value).tokens())

    async def _wipe(self, token: StagingToken) -> int:
        partition = self._context.token_partition(token)
        count = 0
        start: bytes | None = b""
        while start is not None:
            page = await self._context.store.scan(partition, start, self._context.options.scan_page)
            if page.keys:
                await self._context.store.delete_many(partition, page.keys)
            count += len(page.keys)
            start = page.next_start
        return count

    async def _clean_records(self) -> int:
        """Expire what is out of date, give up what is stuck, remove what is finished and no run may be looking for."""
        now = self._context.ports.clock.now_ms()
        finished: list[tuple[bytes, UploadRecord | CopyRecord]] = []
        async for key, upload in self._context.records(UploadRecord, keys.UPLOAD):
            if upload.state is UploadState.ISSUED and upload.expires_ms <= now:
                await self._uploads.expire(key[len(keys.UPLOAD) :].decode())
            elif upload.state in (UploadState.LINKING, UploadState.REVOKED):
                if now - upload.expires_ms >= self._context.options.claim_age_ms_max:
                    await self._fencing.fence(UploadRecord, key[len(keys.UPLOAD) :].decode())
            elif upload.state is not UploadState.ISSUED:
                finished.append((key, upload))
        async for key, copy in self._context.records(CopyRecord, keys.COPY):
            if copy.state is CopyState.DONE:
                finished.append((key, copy))
            elif now - copy.started_ms >= self._context.options.claim_age_ms_max:
                await self._fencing.fence(CopyRecord, key[len(keys.COPY) :].decode())
        async for key, intent in self._context.records(IntentRecord, keys.INTENT):
            if now - intent.created_ms >= self._context.options.claim_age_ms_max:
                await self._fencing.revoke_intent(key)
        # The runs are read after the records, never before: a run that begins later reads the cells that the finished
        # records' owners wrote, a run that began earlier is seen here.
        marking = tuple(run for run, record in await self._retired.runs() if record.state in MARKING)
        return sum([await self._remove_finished(key, record, marking) for key, record in finished])

    async def _remove_finished(self, key: bytes, record: UploadRecord | CopyRecord, marking: tuple[str, ...]) -> bool:
        """Remove a finished record that no run watches any more.

        Its watchers are the runs that marked when a cleaner first saw it finished: they may look for it yet.
        """
        held = await self._context.get(key)
        if held is None or decode_record(type(record), held.value) != record:
            return False
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
        removed = 0
        async for key, branch in self._context.records(BranchRecord, keys.BRANCH):
            if branch.state is RefState.CREATING:
                removed += await self._refs.remove_dead(key, BranchRecord)
            elif len(branch.sealed) > SEALED_MAX:
                await self._fencing.freeze(branch_of(key))
        async for key, tag in self._context.records(TagRecord, keys.TAG):
            if tag.state is RefState.CREATING:
                removed += await self._refs.remove_dead(key, TagRecord)
        return removed
