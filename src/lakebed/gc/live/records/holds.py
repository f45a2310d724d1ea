"""Keep the legal holds of a repository: a versioned setting (settings.py), and a mark in the object store.

Each change writes a small file named by its version before it is acknowledged. A sweep checks for a later version
before each delete.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

import msgspec
from msgspec.structs import replace

from lakebed.base import CommitId, Conflict, Invalid, NotFound, RunId, RunState, is_commit_id
from lakebed.gc.messages import HOLDS_KEY, HOLDS_PREFIX, NewHold, holds_mark
from lakebed.gc.rules import Hold, Holds, InvalidSelection, check_globs
from lakebed.versions import RefNotFound, RunRecord, Versions, decode_record, keys

from .settings import VersionedSetting, VersionRecord

__all__ = ["HoldBook", "HoldExists", "HoldNotFound", "HoldsRecord", "InvalidHold"]

_MARK: Final = re.compile(HOLDS_KEY, re.ASCII)
RUN_ID: Final = RunId("hard-delete")
"""Stands for a run id in the ledger and in answers. Means the worker of hard delete."""
HOLDS_MAX: Final = 200
BYTES_MAX: Final = 100_000
"""A limit, because all holds are one value of the key-value store, and every version is kept."""
NAME_MAX: Final = 64
WHY_MAX: Final = 1_000


class InvalidHold(Invalid):
    """The hold is empty or too large, or its name, reason or globs are invalid."""


class HoldExists(Conflict):
    """Another hold has this name."""


class HoldNotFound(NotFound):
    """No hold has this name."""


class HoldsRecord(VersionRecord, frozen=True, kw_only=True, omit_defaults=True):
    """Hold one version of the holds. `what` describes the change in words."""

    holds: tuple[Hold, ...] = ()
    what: str = ""


class HoldBook(VersionedSetting[HoldsRecord]):
    def __init__(self, versions: Versions) -> None:
        empty = HoldsRecord(version=0, changed_ms=0)
        super().__init__(versions, keys.LEGAL_HOLDS, noun="the legal holds", empty=empty, decode=_decode)

    async def in_force(self) -> Holds:
        record = await self.read()
        return Holds(version=record.version, holds=record.holds)

    async def add(self, hold: NewHold, *, by: str = "") -> tuple[HoldsRecord, tuple[RunId, ...]]:
        """Add a hold, and return the runs for which it comes too late. Adding the same hold again changes nothing.

        Raises:
            InvalidHold: see there.
            HoldExists: another hold has this name.
            NotFound: a commit or a tag does not exist.
            CommitExpired: one of the commits is swept or expiring.
        """
        _check(hold)
        # Sorted and without duplicates, so that the same hold again compares equal.
        made = Hold(
            name=hold.name,
            globs=tuple(sorted(set(hold.globs))),
            commits=tuple(sorted([await self._commit_id(expression) for expression in set(hold.commits)])),
            tags={tag: await self._versions.refs.get_tag(tag) for tag in sorted(set(hold.tags))},
            why=hold.why,
            by=by,
            at_ms=self._versions.ports.clock.now_ms(),
            keeps_uncommitted=hold.keeps_uncommitted,
        )

        def with_it(before: tuple[Hold, ...]) -> tuple[Hold, ...]:
            for one in before:
                if one.name == made.name:
                    if msgspec.structs.replace(one, by=made.by, at_ms=made.at_ms) == made:
                        return before
                    raise HoldExists(f"there is a hold {one.name} already, on {one.text()}", name=one.name)
            return (*before, made)

        # Before the record: a hold cannot keep a commit that a run has already published.
        await self._versions.retired.check_not_expiring(map(CommitId, made.commit_ids()))
        written = await self._write(with_it, by=by, what=f"added {made.name}: {made.why}")
        # After the record: a run that publishes from now on reads the holds before it deletes. A worker of hard delete
        # reads them before each page.
        runs = await self.counts_after()
        return written, (*runs, RUN_ID) if await self._versions.hard_delete.is_deleting() else runs

    async def _commit_id(self, expression: str) -> CommitId:
        """Return the commit that `expression` names. A full commit id never names a branch or tag.

        Raises:
            RefNotFound: no commit matches.
        """
        commit_id = await self._versions.refs.resolve_commit(expression)
        if is_commit_id(expression) and commit_id != expression:
            raise RefNotFound("not found", ref=expression)
        return commit_id

    def _is_too_late_for(self, run: RunRecord) -> bool:
        """Return whether the run may have begun a delete without seeing the hold."""
        # A run of uncommitted data publishes nothing: it deletes after its apply began. A deferred run deletes after
        # its purge began, and a later purge reads the holds.
        deletes = run.state in (RunState.EXPIRING, RunState.SWEEPING) or (run.state is RunState.MARKED and run.began)
        return deletes and (not run.until_ms or run.purging)

    async def release(self, name: str, *, why: str, by: str = "") -> HoldsRecord:
        """Release a hold.

        Raises:
            HoldNotFound: no hold has this name.
            InvalidHold: the reason is empty or too long.
        """
        _check_why(why)

        def without_it(before: tuple[Hold, ...]) -> tuple[Hold, ...]:
            left = tuple(hold for hold in before if hold.name != name)
            if len(left) == len(before):
                raise HoldNotFound(f"there is no hold {name}", name=name)
            return left

        return await self._write(without_it, by=by, what=f"released {name}: {why}")

    async def adopt(self, *, by: str) -> None:
        """Raise the version of the holds above every mark in the namespace, after an older backup was restored."""
        # Otherwise every sweep finds a later mark than its own version, and refuses.
        pages = self._versions.objectstore.list(HOLDS_PREFIX, start_after=holds_mark((await self.read()).version))
        keys_after = [stat.key async for page in pages for stat in page]
        latest = max([int(key[len(HOLDS_PREFIX) :][:12]) for key in keys_after if _MARK.fullmatch(key)], default=0)

        def next_of(before: HoldsRecord) -> HoldsRecord:
            if before.version >= latest:
                return before
            what = f"adopted: what versions {before.version + 1} to {latest} changed is not known"
            now_ms = self._versions.ports.clock.now_ms()
            return replace(before, version=latest + 1, changed_ms=now_ms, changed_by=by, what=what)

        if latest:
            written = await self.change(next_of)
            await self._mark(written)

    async def _mark(self, written: HoldsRecord) -> None:
        # In the object store, because the tasks of a sweep reach only that.
        await self._versions.objectstore.put(holds_mark(written.version), msgspec.json.encode({"what": written.what}))

    async def _write(
        self, change: Callable[[tuple[Hold, ...]], tuple[Hold, ...]], *, by: str, what: str
    ) -> HoldsRecord:
        def next_of(before: HoldsRecord) -> HoldsRecord:
            holds = change(before.holds)
            if holds == before.holds:
                return before
            if len(holds) > HOLDS_MAX or len(msgspec.msgpack.encode(holds)) > BYTES_MAX:
                raise InvalidHold(f"at most {HOLDS_MAX} holds of {BYTES_MAX:,} bytes together")
            now_ms = self._versions.ports.clock.now_ms()
            return HoldsRecord(version=before.version + 1, holds=holds, changed_ms=now_ms, changed_by=by, what=what)

        written = await self.change(next_of)
        # Also if nothing changed: the writer of this version may have died before it wrote the mark.
        await self._mark(written)
        return written


def _check(hold: NewHold) -> None:
    if not hold.name or len(hold.name) > NAME_MAX or not hold.name.isprintable() or "/" in hold.name:
        raise InvalidHold(f"a hold's name has 1 to {NAME_MAX} printable characters, and no slash", name=hold.name)
    if not (hold.globs or hold.commits or hold.tags):
        raise InvalidHold("nothing is held: name paths, commits or tags", name=hold.name)
    _check_why(hold.why)
    try:
        check_globs(hold.globs)
    except InvalidSelection as error:
        raise InvalidHold(str(error), name=hold.name) from error


def _check_why(why: str) -> None:
    if not why.strip() or len(why) > WHY_MAX:
        raise InvalidHold(f"say why, in 1 to {WHY_MAX:,} characters")


def _decode(data: bytes) -> HoldsRecord:
    return decode_record(HoldsRecord, data)
