"""Planted bugs in what holds addresses that are in no cell yet, in cleaning and in freezes.

Each names the scenes of `worlds.py` that it is hunted in: they are the smallest in which its guard has work to do.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

from msgspec.structs import replace

from lakebed.base import OutcomeUnknown, from_row, to_row
from lakebed.kv import PredicateFailed
from lakebed.versions import (
    ClaimRecord,
    CopyRecord,
    CopyState,
    SliceRecord,
    SliceState,
    UploadRecord,
    UploadState,
    Versions,
    encode_record,
    keys,
)
from lakebed.versions import RunState as StoredState
from lakebed.versions.tracking import _copied, _upload_key

from .planting import mutant, patches

Repo: TypeAlias = Any
"""A `Versions`, seen from inside."""

# Addresses on their way


async def _open_without_looking(_: Repo, __: Any) -> bool:
    return True


async def _link_while_issued(self: Repo, branch: str, key: bytes, entry: Any, **_: Any) -> Any:
    record, held = await self._upload(entry.address)
    await self._write(branch, key, 2, to_row(key, entry))
    await self._move_upload(entry.address, replace(record, state=UploadState.LINKED), held)
    return entry


async def _link_without_second_look(self: Repo, branch: str, key: bytes, entry: Any, **_: Any) -> Any:
    record, held = await self._upload(entry.address)
    await self._cached(branch)
    linking = replace(record, state=UploadState.LINKING, attempt=self.ports.ids.fresh())
    held = await self._move_upload(entry.address, linking, held)
    await self._write(branch, key, 2, to_row(key, entry))
    await self._move_upload(entry.address, replace(linking, state=UploadState.LINKED), held)
    return entry


async def _link_blindly(self: Repo, address: str, record: UploadRecord, held: Any) -> Any:
    await self.store.set(self.partition, _upload_key(address), encode_record(record))
    return held


def _copying(*, record: str, looks: bool = True, checks: bool = True) -> Any:
    """A shallow copy whose record is written "first", "late" (after the second look) or "never"."""

    async def copy_shallow(
        self: Repo, source_ref: str, source_key: bytes, branch: str, key: bytes, alter: Any, *_: Any
    ) -> Any:  # surgery
        while True:
            source = await self._find_source(source_ref, source_key)
            entry = from_row(source.row)
            await self._fresh(branch)
            copy_key = keys.COPY + self.ports.ids.fresh().encode()
            pending = CopyRecord(
                state=CopyState.PENDING,
                address=entry.address,
                branch=branch,
                started_ms=self.ports.clock.now_ms(),
                attempt=self.ports.ids.fresh(),
            )  # surgery
            if record == "first":
                held = await self._new_record(copy_key, encode_record(pending))
            if looks and not await self._hold_source(source_ref, source_key, source):
                if record == "first":
                    await self.store.delete_if(self.partition, copy_key, held.predicate)
                continue
            if record == "late":
                held = await self._new_record(copy_key, encode_record(pending))
            break

        async def still_pending(_: Any) -> None:
            now = await self._read(CopyRecord, copy_key)
            if now is None or now[0] != pending:
                raise PredicateFailed("given up")

        target = _copied(entry, alter, entry.address, entry.modified_ms)
        await self._write(branch, key, 0, to_row(key, target), before=still_pending if checks else None)
        if record != "never":
            await self._finish_copy(copy_key, replace(pending, state=CopyState.DONE), held)
        return target

    return copy_shallow


async def _hold_source_unchecked(self: Repo, ref: str, key: bytes, source: Any) -> bool:
    return source.token is None or bool(await _real_hold_source(self, ref, key, source))


_real_hold_source: Any = Versions._hold_source  # noqa: SLF001  # the real one, to call from the changed one


# Cleaning


async def _clean_records_after_runs(self: Repo) -> int:
    marking = tuple(run for run, record in await self.runs() if record.state in _MARKING)
    return await _remove_all_finished(self, marking)


async def _clean_records_without_runs(self: Repo) -> int:
    return await _remove_all_finished(self, ())


async def _remove_all_finished(self: Repo, marking: tuple[str, ...]) -> int:
    found: list[tuple[bytes, Any]] = [item async for item in self._records(UploadRecord, keys.UPLOAD)]
    found += [item async for item in self._records(CopyRecord, keys.COPY)]
    done = [item for item in found if item[1].state in (UploadState.LINKED, UploadState.EXPIRED, CopyState.DONE)]
    return sum([await self._remove_finished(key, record, marking) for key, record in done])


async def _wait_for_one_run(self: Repo, key: bytes, record: Any, marking: tuple[str, ...]) -> Any:
    return await _real_remove_finished(self, key, record, marking[:1])


_real_remove_finished: Any = Versions._remove_finished  # noqa: SLF001  # the real one, to call from the changed one
_MARKING: Final = (StoredState.MARKING, StoredState.CONDEMNING)


async def _clean_claims_without_touch(self: Repo) -> tuple[int, int]:
    now = self.ports.clock.now_ms()
    claims = [item async for item in self._records(ClaimRecord, keys.CLAIM)]
    for key, claim in claims:
        held = await self._tokens_of(claim.branch)
        for token in claim.tokens:
            if token not in held:
                await self._wipe(token)
        if now - claim.created_ms >= self.options.claim_age_ms_max:
            await self.store.delete(self.partition, key)
    return 0, 0


# Giving up


async def _no_freeze(_: Repo, __: str) -> None:
    return


async def _freeze_that_seals_only(self: Repo, branch: str) -> None:
    await self._seal(branch)


async def _freeze_without_claim(self: Repo, branch: str, seen: Any, start: Any) -> None:
    if seen.record.staging_token in start:
        await _real_freeze_once(self, branch, seen, start)
        return
    frozen = self._fresh_token()
    retired = [item.token for item in seen.record.sealed]
    await self._copy_overlay(retired, frozen)
    await self._claim(self.ports.ids.fresh(), 1, branch, retired)
    stands_for = tuple(token for item in seen.record.sealed for token in (item.token, *item.stands_for))
    sealed = (type(seen.record.sealed[0])(frozen, stands_for),)
    try:
        await self._set_branch(branch, replace(seen.record, sealed=sealed), seen)
    except (PredicateFailed, OutcomeUnknown):
        return


async def _freeze_that_stands_for_nobody(self: Repo, branch: str, record: Any, seen: Any) -> Any:
    if record.sealed and record.sealed[0].stands_for and not (seen.record.sealed and seen.record.sealed[0].stands_for):
        record = replace(record, sealed=tuple(replace(item, stands_for=("nobody",)) for item in record.sealed))
    return await _real_set_branch(self, branch, record, seen)


_real_freeze_once: Any = Versions._freeze_once  # noqa: SLF001  # the real one, to call from the changed one
_real_set_branch: Any = Versions._set_branch  # noqa: SLF001  # the same


async def _settle_without_fence(self: Repo, slice_keys: Any) -> Any:
    for name, _ in await self.branch_records():
        await self.freeze(name)
    moves = {SliceState.OPEN: SliceState.SETTLED, SliceState.FENCED: SliceState.SETTLED}
    for key in slice_keys:
        await self._move(SliceRecord, key, moves)
    return slice_keys


_UPLOAD = ("uploader, run that gives up",)
_GIVEN_UP = ("linker, run after giving up and cleaning",)
_LINK_CLEAN = ("linker, record cleaner, run",)
_COPY = ("copier that deletes, cleaner, run", "copier, deleter, run")


ADDRESS_MUTANTS: Final = (
    mutant(
        "slice-unread", "the slice is read before each cell", _UPLOAD, patches(Versions, _is_open=_open_without_looking)
    ),
    mutant(
        "link-issued",
        "linking, before the cell",
        ("linker, expirer that runs",),
        patches(Versions, link_upload=_link_while_issued),
    ),
    mutant(
        "link-once",
        "still linking, before each cell",
        _GIVEN_UP,
        patches(Versions, link_upload=_link_without_second_look),
    ),
    mutant(
        "link-blind",
        "an upload's record moves by set_if",
        ("linker, expirer that runs",),
        patches(Versions, _move_upload=_link_blindly),
    ),
    mutant(
        "copy-untracked",
        "a copy has a record",
        _COPY,
        patches(Versions, _copy_shallow=_copying(record="never", checks=False)),
    ),
    mutant(
        "copy-late",
        "the record before the second look",
        _COPY,
        patches(Versions, _copy_shallow=_copying(record="late")),
    ),
    mutant(
        "copy-once",
        "the source is looked at again",
        _COPY,
        patches(Versions, _copy_shallow=_copying(record="first", looks=False)),
    ),
    mutant(
        "copy-unchecked",
        "still pending, before each cell",
        ("copier, run after giving up and cleaning",),
        patches(Versions, _copy_shallow=_copying(record="first", checks=False)),
    ),
    mutant(
        "copy-condemned",
        "a copy's commit is not condemned",
        ("copier from a commit, committed run",),
        patches(Versions, _hold_source=_hold_source_unchecked),
    ),
    mutant(
        "clean-runs-first",
        "records are read before the runs",
        _LINK_CLEAN,
        patches(Versions, _clean_records=_clean_records_after_runs),
    ),
    mutant(
        "clean-unstamped",
        "finished records wait for runs that mark",
        _LINK_CLEAN,
        patches(Versions, _clean_records=_clean_records_without_runs),
    ),
    mutant(
        "stamp-one",
        "finished records wait for all runs that mark",
        ("copier that deletes, cleaner, two runs",),
        patches(Versions, _remove_finished=_wait_for_one_run),
    ),
    mutant(
        "clean-untouched",
        "touch, before a freeze's token is wiped",
        ("freezer, impatient cleaner",),
        patches(Versions, _clean_claims=_clean_claims_without_touch),
    ),
    mutant("freeze-none", "giving up freezes", (*_UPLOAD, *_GIVEN_UP), patches(Versions, freeze=_no_freeze)),
    mutant(
        "freeze-seals",
        "a late write hits a token nobody reads",
        (*_UPLOAD, *_GIVEN_UP),
        patches(Versions, freeze=_freeze_that_seals_only),
    ),
    mutant(
        "freeze-unclaimed",
        "a freeze claims the token it fills",
        ("freezer that cleans, run",),
        patches(Versions, _freeze_once=_freeze_without_claim),
    ),
    mutant(
        "freeze-anonymous",
        "frozen tokens name what they stand for",
        ("writer, committer, freezer",),
        patches(Versions, _set_branch=_freeze_that_stands_for_nobody),
    ),
    mutant(
        "settle-unfenced",
        "fence, then freeze, then settle",
        _UPLOAD,
        patches(Versions, give_up_slices=_settle_without_fence),
    ),
)
