"""Check that only this key-value store goes with the namespace: a copy of it must not collect.

A backup that is brought up beside the living installation knows nothing of what that one wrote since; its collections
would take all of it. Nothing in the records tells the two apart, for they are equal. So each installation leaves a
trail in the namespace, `_lakefs/installation/<12 digits>-<mark>`, whose end its records know: the number, the mark,
and the mark before. Two copies that both go on leave different marks, or numbers that the other does not know.

A step, before each run and every STEP_MS besides: 1 check; 2 put the mark that the records end with, in case the
process that recorded it died; 3 `set_if` the records: the next number, a fresh mark; 4 put it; 5 check. A check lists
the trail from the last number but one, *then* reads the records. A mark is in the records before it is in the
namespace, so one that they do not know then is another installation's. Of two copies that put their marks and then
look, at least one sees the other.

Who sees another's mark says so before it stops: a mark of its own beside it, so that the other one stops too, and then
in its own records, so that it says so once. From then on neither collects, until a person lets one of them `adopt` the
namespace, which begins a new trail behind all marks, with the person's name in its first. Who finds a name in another's
mark stops and says nothing beside it: the choice is made. Which of the two is the living one, no program can know.

A crash between two steps may leave a mark that is recorded and not put: the next step puts it. Or it leaves a mark that
is put beside another's and not recorded: that is the same as if it were.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import msgspec
from msgspec.structs import replace

from lakebed.gc.live.errors import NotRestored, OtherInstallation
from lakebed.gc.messages import (
    APPLYING_PREFIX,
    CLAIM_ATTEMPTS_MAX,
    INSTALLATION_MARK,
    INSTALLATION_PREFIX,
    Claim,
    claims_in,
    next_claim,
)
from lakebed.kv import Held, PredicateFailed
from lakebed.objectstore import ObjectExists, ObjectMissing, ObjectOutcomeUnknown
from lakebed.versions import BranchRecord, Record, RefState, Versions, decode_record, encode_record, keys

INSTALLATION_KEY: Final = keys.SETTING + b"installation"
STEP_MS: Final = 6 * 3_600_000
"""How often an installation that is alive says so: what a copy that is younger than this takes goes unseen."""

_MARK: Final = re.compile(INSTALLATION_MARK, re.ASCII)


class InstallationRecord(Record, frozen=True, kw_only=True, omit_defaults=True):
    """The end of the trail: `mark` has `number`, `before` is the mark of the number before it, "" if that is another's.

    `is_stopped`: another installation was seen. `adopted_by` and `adopted_ms`: who last chose this one, and when.
    `awaits`: the repository was made bare, and nothing is collected before it has this branch.
    """

    number: int = 0
    mark: str = ""
    before: str = ""
    stepped_ms: int = 0
    is_stopped: bool = False
    adopted_by: str = ""
    adopted_ms: int = 0
    awaits: str = ""


class MarkFile(msgspec.Struct, frozen=True, kw_only=True):
    """Hold what a mark's file says for people: when it was made, and by whom if a person chose this installation."""

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
    def __init__(self, versions: Versions) -> None:
        self._versions = versions

    async def read(self) -> InstallationRecord:
        return (await self._read())[0]

    async def check(self) -> InstallationRecord:
        """Return the record. One listing of a few keys, and one record.

        Raises:
            OtherInstallation: another one has left marks here, now or before, and no administrator has chosen between
            the two.
        """
        first, _ = await self._read()
        found = await self._marks(first.number - 1)
        record, held = await self._read()
        if record.is_stopped:
            raise self._stopped()
        strange = [mark for mark in found if not _is_ours(mark, record)]
        if strange:
            await self._protest(strange)
            await self._stop(record, held)
            raise self._stopped()
        return record

    async def check_restored(self, record: InstallationRecord) -> None:
        """Succeed unless the repository was made bare and still awaits its default branch, which a restore makes last.

        Raises:
            NotRestored: it does. Commits that a restore wrote may have no ref yet.
        """
        if not record.awaits:
            return
        branch = await self._versions.inventory.find(BranchRecord, record.awaits)
        if branch is None or branch.state is not RefState.ACTIVE:
            raise NotRestored(
                f"the repository has no branch {record.awaits} yet: restore a dump into it first", branch=record.awaits
            )

    async def step(self) -> InstallationRecord:
        """Return the record.

        Raises:
            OtherInstallation: see `check`.
        """
        return (await self._step())[1]

    async def mark(self) -> str:
        """Take a step, and return the file of its mark.

        Raises:
            OtherInstallation: see `check`.
        """
        # Not the last mark of the records: another process may have recorded it, and not have put it yet.
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
        """Now and then, for each repository, so that a copy of the key-value store notices: take a step if the last
        one is STEP_MS ago and no other was seen. Else it costs one read.

        A server that starts takes one at once: it may be a copy, or may be ahead of one that was made while it was
        down.

        Raises:
            OtherInstallation: it is seen now.
        """
        if at_start:
            await self.step()
            return
        record = await self.read()
        age_ms = self._versions.ports.clock.now_ms() - record.stepped_ms
        if not record.is_stopped and not 0 <= age_ms < STEP_MS:
            await self.step()

    async def distrust(self, *, default_branch: str) -> None:
        """Leave a mark, and let nothing be collected here until a person has chosen: another repository may be alive in
        the namespace, and name what this one does not. That one stops too, at its next look.
        Nor is anything collected before this repository has its default branch.
        """
        while (found := await self._read())[0].awaits != default_branch:
            await self._write(replace(found[0], awaits=default_branch), found[1])
        with suppress(OtherInstallation):
            await self.step()
        while not (found := await self._read())[0].is_stopped:
            await self._stop(*found)
        await self._overtake()

    async def adopt(self, *, by: str) -> InstallationRecord:
        """This installation goes on, and any other one stops at its next look, whether it had looked before or not.
        Only a person calls this. Another one that is just taking a step stops both: then call it again.
        Of several the one that was chosen last goes on.
        """
        while True:
            record, held = await self._read()
            found = await self._marks(record.number - 1)
            number = max([record.number, *(mark.number for mark in found)]) + 2
            # A gap before it: one that goes on behind the old marks meanwhile is seen there.
            fresh = self._next(record, number, before="")
            after = replace(fresh, is_stopped=False, adopted_by=by, adopted_ms=fresh.stepped_ms)
            if await self._write(after, held):
                await self._put_end(after)
                await self._overtake()
                return after

    async def _overtake(self) -> None:
        """Stop each apply that is under way in the namespace, at its next look: it may be of a repository that was here
        before, which knows nothing of what this one names. After the marks: an apply that claims its number later asks
        the live side once more before it deletes, and that sees the marks.

        Raises:
            OtherInstallation: others begin without end.
        """
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
        """The mark that the records end with; once more, with the same name in it, where it was there."""
        adopted_by = "" if record.before else record.adopted_by
        await self._put(Mark(record.number, record.mark), adopted_by=adopted_by)

    async def _protest(self, strange: Sequence[Mark]) -> None:
        """A mark that the other one does not know, beside its last, and again if that was not its last any more; none
        where a person chose the other one."""
        beside, put = strange, 0
        while (last := max(beside).number) > put and not await self._has_adoption(beside):
            put = last
            await self._put(Mark(put, self._versions.ports.ids.fresh()))
            beside = await self._marks(put)

    async def _has_adoption(self, marks: Sequence[Mark]) -> bool:
        """Only what has a gap before it can be one, so few files are read. One that is unreadable tells nothing."""
        numbers = {mark.number for mark in marks}
        for mark in marks:
            if mark.number - 1 not in numbers:
                with suppress(ObjectMissing, msgspec.MsgspecError):
                    body = await self._versions.objectstore.get(mark.key)
                    if msgspec.json.decode(body, type=MarkFile).adopted_by:
                        return True
        return False

    async def _stop(self, record: InstallationRecord, held: Held | None) -> None:
        # Failed, another process of ours stepped, stopped or adopted: then the next check tells.
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
