"""Check that only this key-value store uses the namespace: a copy of it must not collect.

A restored backup beside the living installation does not know later writes, and its collections would delete their
objects. Their records are equal. So each installation leaves marks `_lakefs/installation/<12 digits>-<mark>`, and its
record knows the last number, its mark, and the mark before. Two active copies leave marks unknown to each other.

A *step*, before each run and every STEP_MS: check; put the recorded mark, in case its process died; `set_if` the record
with the next number and a fresh mark; put that mark; check. A check lists the last marks, *then* reads the record.
A crash between two steps may leave a recorded mark that is not put, which the next step puts. Or it leaves a protest
without a stopped record, which has the same effect.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import msgspec
from msgspec.structs import replace

from lakebed.base import Conflict
from lakebed.gc.live.errors import OtherInstallation
from lakebed.gc.messages import (
    APPLYING_PREFIX,
    CLAIM_ATTEMPTS_MAX,
    INSTALLATION_MARK,
    INSTALLATION_PREFIX,
    Claim,
    Purging,
    claims_in,
    next_claim,
)
from lakebed.kv import Held, PredicateFailed
from lakebed.objectstore import ObjectExists, ObjectMissing, ObjectOutcomeUnknown
from lakebed.versions import BranchRecord, Record, RefState, Versions, decode_record, encode_record, keys

__all__ = ["Installation", "InstallationRecord"]

INSTALLATION_KEY: Final = keys.SETTING + b"installation"
STEP_MS: Final = 6 * 3_600_000
"""Interval of the steps of an idle installation. Deletes by a copy younger than this go undetected."""

_MARK: Final = re.compile(INSTALLATION_MARK, re.ASCII)


class InstallationRecord(Record, frozen=True, kw_only=True, omit_defaults=True):
    """Hold the last mark: `number`, `mark`, and `before`, the mark of the number before, "" after an adoption."""

    number: int = 0
    mark: str = ""
    before: str = ""
    stepped_ms: int = 0
    # Another installation was seen.
    is_stopped: bool = False
    # The user who last chose this installation, and the time.
    adopted_by: str = ""
    adopted_ms: int = 0
    # The repository was created bare, and must have this branch before any collection.
    awaits: str = ""


class MarkFile(msgspec.Struct, frozen=True, kw_only=True):
    """Hold the contents of a mark's file: its time, and the user if it marks an adoption."""

    made_ms: int
    adopted_by: str = ""


@dataclass(frozen=True, slots=True, order=True)
class Mark:
    number: int
    mark: str

    @property
    def key(self) -> str:
        return f"{INSTALLATION_PREFIX}{self.number:012d}-{self.mark}"


class Installation:
    """Every method that checks or takes a step raises OtherInstallation if another one is seen: see `check`."""

    def __init__(self, versions: Versions) -> None:
        self._versions = versions

    async def read(self) -> InstallationRecord:
        return (await self._read())[0]

    async def check(self) -> InstallationRecord:
        """Return the record. Costs a listing of a few keys and two reads of the record.

        Raises:
            OtherInstallation: another installation left marks here, and no administrator has chosen between the two.
        """
        # List first, then read: a mark is in the record before it is in the namespace. So a mark that the record does
        # not know then is another installation's. Of two copies that put marks and then check, one sees the other.
        first, _ = await self._read()
        marks = await self._marks(first.number - 1)
        record, held = await self._read()
        if record.is_stopped:
            raise self._stopped()
        strange = [mark for mark in marks if not _is_ours(mark, record)]
        if strange:
            # Protest first, so that the other stops too. Then record it, so that one protest is enough. Neither
            # collects until an administrator lets one of them `adopt` the namespace.
            await self._protest(strange)
            await self._stop(record, held)
            raise self._stopped()
        return record

    async def check_restored(self, record: InstallationRecord) -> None:
        """Check that a bare repository has its default branch, which a restore makes last.

        Raises:
            Conflict: the branch is missing. Restored commits may not have a ref yet.
        """
        if not record.awaits:
            return
        branch = await self._versions.inventory.find(BranchRecord, record.awaits)
        if branch is None or branch.state is not RefState.ACTIVE:
            raise Conflict(
                f"the repository has no branch {record.awaits} yet: restore a dump into it first", branch=record.awaits
            )

    async def purging(self) -> Purging:
        """Return the namespace where the caller may delete, with a fresh mark that identifies the store."""
        # Fresh, because an older copy of the store does not have it.
        return Purging(namespace=self._versions.objectstore.uri, mark=await self.mark())

    async def step(self) -> InstallationRecord:
        """Take a step, and return the record."""
        return (await self._step())[1]

    async def mark(self) -> str:
        """Take a step, and return the key of its mark."""
        # Not the record's last mark: another process may have recorded it without putting it yet.
        return (await self._step())[0].key

    async def _step(self) -> tuple[Mark, InstallationRecord]:
        while True:
            await self.check()
            record, held = await self._read()
            if record.is_stopped:
                continue
            if record.number:
                await self._put_end(record)
            after = self._next(record, record.number + 1, before=record.mark)
            if await self._write(after, held):
                await self._put_end(after)
                return Mark(after.number, after.mark), await self.check()

    async def say_alive(self, *, at_start: bool = False) -> None:
        """Take a step if the last is STEP_MS ago and this installation is not stopped, so that copies notice.

        The server calls this for each repository. Costs one read if no step is due.

        Raises:
            OtherInstallation: another installation is seen now.
        """
        # A server that starts may be a copy, or a copy may have been made while it was down.
        if at_start:
            await self.step()
            return
        record = await self.read()
        age_ms = self._versions.ports.clock.now_ms() - record.stepped_ms
        if not record.is_stopped and not 0 <= age_ms < STEP_MS:
            await self.step()

    async def distrust(self, *, default_branch: str) -> None:
        """Leave a mark, and stop collections until an administrator has chosen and the default branch exists."""
        # Another repository may be alive in the namespace, and name objects unknown here. The mark stops it too.
        while (found := await self._read())[0].awaits != default_branch:
            await self._write(replace(found[0], awaits=default_branch), found[1])
        with suppress(OtherInstallation):
            await self.step()
        while not (found := await self._read())[0].is_stopped:
            await self._stop(*found)
        await self._overtake()

    async def adopt(self, *, by: str) -> InstallationRecord:
        """Choose this installation. Every other stops at its next check. The last one chosen continues.

        Only an administrator calls this, because no program can know the living installation. If another installation
        takes a step at the same time, both stop: call it again.
        """
        while True:
            record, held = await self._read()
            marks = await self._marks(record.number - 1)
            number = max([record.number, *(mark.number for mark in marks)]) + 2
            # Leave a gap: an installation that continues after the old marks meanwhile is seen there.
            fresh = self._next(record, number, before="")
            after = replace(fresh, is_stopped=False, adopted_by=by, adopted_ms=fresh.stepped_ms)
            if await self._write(after, held):
                await self._put_end(after)
                await self._overtake()
                return after

    async def _overtake(self) -> None:
        """Stop each apply in progress in the namespace at its next check. Call it after the marks are put."""
        # An apply may belong to an earlier repository that does not know this one's names. An apply that claims its
        # number later asks the live side again before it deletes, which sees the marks.
        store = self._versions.objectstore
        claim = msgspec.json.encode(Claim(run_id="", started_ms=self._versions.ports.clock.now_ms()))
        for _ in range(CLAIM_ATTEMPTS_MAX):
            there = claims_in([stat.key async for page in store.list(APPLYING_PREFIX) for stat in page])
            with suppress(ObjectExists, ObjectOutcomeUnknown):
                await store.put(next_claim(there), claim, if_absent=True)
                return
        raise OtherInstallation(f"{CLAIM_ATTEMPTS_MAX} applies began in {store.uri} before this could stop them")

    async def _read(self) -> tuple[InstallationRecord, Held | None]:
        held = await self._versions.context.get(INSTALLATION_KEY)
        return (InstallationRecord() if held is None else decode_record(InstallationRecord, held.value)), held

    async def _write(self, record: InstallationRecord, before: Held | None) -> bool:
        predicate = None if before is None else before.predicate
        try:
            await self._versions.context.set_if(INSTALLATION_KEY, encode_record(record), predicate)
        except PredicateFailed:
            return False
        return True

    def _next(self, record: InstallationRecord, number: int, *, before: str) -> InstallationRecord:
        ports = self._versions.ports
        mark, now_ms = ports.ids.fresh(), ports.clock.now_ms()
        return replace(record, number=number, mark=mark, before=before, stepped_ms=now_ms)

    async def _marks(self, since: int) -> Sequence[Mark]:
        start_after = f"{INSTALLATION_PREFIX}{max(since, 0):012d}"
        pages = self._versions.objectstore.list(INSTALLATION_PREFIX, start_after=start_after)
        matches = [_MARK.fullmatch(stat.key) async for page in pages for stat in page]
        return [Mark(int(match[1]), match[2]) for match in matches if match]

    async def _put(self, mark: Mark, *, adopted_by: str = "") -> None:
        body = MarkFile(made_ms=self._versions.ports.clock.now_ms(), adopted_by=adopted_by)
        await self._versions.objectstore.put(mark.key, msgspec.json.encode(body))

    async def _put_end(self, record: InstallationRecord) -> None:
        """Put the record's last mark, with the administrator's name if it marks an adoption."""
        adopted_by = "" if record.before else record.adopted_by
        await self._put(Mark(record.number, record.mark), adopted_by=adopted_by)

    async def _protest(self, strange: Sequence[Mark]) -> None:
        """Put a mark beside the other installation's last mark, so that it stops too. Repeat if it moved on.

        Put no mark if the other installation was adopted: the choice is made.
        """
        beside, put = strange, 0
        while (last := max(beside).number) > put and not await self._has_adoption(beside):
            put = last
            await self._put(Mark(put, self._versions.ports.ids.fresh()))
            beside = await self._marks(put)

    async def _has_adoption(self, marks: Sequence[Mark]) -> bool:
        """Return whether one of these marks is an adoption. Ignores unreadable files."""
        # Only a mark after a gap can be an adoption, so few files are read.
        numbers = {mark.number for mark in marks}
        for mark in marks:
            if mark.number - 1 not in numbers:
                with suppress(ObjectMissing, msgspec.MsgspecError):
                    body = await self._versions.objectstore.get(mark.key)
                    if msgspec.json.decode(body, type=MarkFile).adopted_by:
                        return True
        return False

    async def _stop(self, record: InstallationRecord, held: Held | None) -> None:
        # If this fails, another process of ours stepped, stopped or adopted. The next check decides again.
        await self._write(replace(record, is_stopped=True), held)

    def _stopped(self) -> OtherInstallation:
        uri = self._versions.objectstore.uri
        return OtherInstallation(
            f"{uri} is not this installation's alone, or its key-value store is older than the namespace (a copy, or a"
            " restored backup): nothing is collected until a person has chosen with `lakebed gc adopt`",
            namespace=uri,
        )


def _is_ours(mark: Mark, record: InstallationRecord) -> bool:
    if mark.number == record.number:
        return mark.mark == record.mark
    if mark.number == record.number - 1:
        return mark.mark == record.before
    return mark.number < record.number
