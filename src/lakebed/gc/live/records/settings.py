"""Keep every version of a repository's settings: retention rules, the lifecycle policy and legal holds.

A version number is never reused, even after a deletion (then the record is empty). So a plan can name its version, and
a run detects a change (docs/design/protocols.md, "Rules").

A change first copies the current version to its own key, then replaces the setting with `set_if`. So every version ever
in force stays readable, with its author and time. Versions are never removed: each is small and written by hand.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Generic, TypeAlias, TypeVar

import msgspec
from msgspec.structs import replace

from lakebed.base import CommitId, Conflict, Invalid, NotFound, OutcomeUnknown, RunId, RunState, is_commit_id
from lakebed.gc.live.errors import PolicyNotFound, RulesMoved
from lakebed.gc.messages import HOLDS_KEY, HOLDS_PREFIX, NewHold, RulesVersion, holds_mark
from lakebed.gc.rules import Hold, Holds, InvalidSelection, Rules, check_globs, check_rules, days_rules, with_days
from lakebed.gc.rules.lifecycle import Policy, Problem, check_policy, read_policy
from lakebed.kv import PredicateFailed
from lakebed.versions import (
    BranchRecord,
    Record,
    RecordFormat,
    RefNotFound,
    RunRecord,
    Versions,
    decode_record,
    encode_record,
    keys,
)

__all__ = [
    "HoldBook",
    "HoldsRecord",
    "InvalidHold",
    "PolicyBook",
    "PolicyRecord",
    "RuleBook",
    "RulesRecord",
    "RulesSet",
    "rules_version",
]

PAGE_MAX: Final = 1_000

_TAKING: Final = frozenset({RunState.EXPIRING, RunState.SWEEPING})


class VersionRecord(Record, frozen=True, kw_only=True, omit_defaults=True):
    """Hold one version of a setting. `version` counts changes, including deletions. `changed_by` is a user's id."""

    version: int
    changed_ms: int
    changed_by: str = ""


R = TypeVar("R", bound=VersionRecord)


class VersionedSetting(Generic[R]):
    """Read and change one setting. `noun` appears in messages. `empty` is the initial value, version 0."""

    def __init__(self, versions: Versions, key: bytes, *, noun: str, empty: R, decode: Callable[[bytes], R]) -> None:
        self._versions = versions
        self._key = key
        self._noun = noun
        self._empty = empty
        self._decode = decode

    async def read(self) -> R:
        """Return the version in force."""
        held = await self._versions.context.get(self._key)
        return self._empty if held is None else self._decode(held.value)

    async def version(self, version: int) -> R:
        """Return this version of the setting, or raise NotFound."""
        current = await self.read()
        if version == current.version:
            return current
        former = await self._former(range(version, version + 1)) if 0 < version < current.version else []
        if not former:
            raise NotFound(f"{self._noun} of version {version} do not exist", version=version)
        return former[0]

    async def history(self, *, before: int | None = None, limit: int = PAGE_MAX) -> tuple[list[R], bool]:
        """Return at most `limit` versions (older than `before`, if given), newest first, and whether more exist."""
        current = await self.read()
        newest = current.version if before is None else min(current.version, before - 1)
        oldest = max(1, newest - limit + 1)
        versions = [current] if oldest <= current.version <= newest else []
        versions += await self._former(range(min(newest, current.version - 1), oldest - 1, -1))
        return versions, oldest > 1

    async def _former(self, versions: range) -> list[R]:
        held = await self._versions.context.get_many([self._former_key(version) for version in versions])
        return [self._decode(found.value) for found in held if found is not None]

    async def change(self, next_of: Callable[[R], R], *, expected: int | None = None) -> R:
        """Replace the version in force by `next_of` of it, and return the new version.

        Every later read returns this version or a newer one. `next_of` is called again after a lost race.

        Raises:
            RulesMoved: the version in force is not `expected`.
        """
        versions = self._versions
        sent: R | None = None
        while True:
            held = await versions.context.get(self._key)
            before = self._empty if held is None else self._decode(held.value)
            if sent is not None and before == sent:
                return sent  # The write succeeded, but its answer was lost.
            if expected is not None and before.version != expected:
                raise RulesMoved(
                    f"{self._noun} are of version {before.version}, not {expected}: another user changed them",
                    version=before.version,
                    expected=expected,
                )
            record = next_of(before)
            # Copy first: after the replacement no other record has this version. A writer that dies in between leaves
            # only a copy of the current version.
            if held is not None:
                await versions.context.set(self._former_key(before.version), before)
            predicate = None if held is None else held.predicate
            try:
                await versions.context.set_if(self._key, encode_record(record), predicate)
            except PredicateFailed:
                continue
            except OutcomeUnknown:
                sent = record
                continue
            return record

    async def counts_after(self) -> tuple[RunId, ...]:
        """Return the runs that expire or sweep by a former version. Call it after the change."""
        # A run that reads the setting later sees the change. A run that read the setting earlier published its commits
        # before that read, so this call sees the run.
        runs = await self._versions.retired.runs()
        return tuple(run for run, record in runs if self._is_too_late_for(record))

    def _is_too_late_for(self, run: RunRecord) -> bool:
        # A deferred run decided long ago. New rules do not affect it.
        return run.state in _TAKING and not run.until_ms

    def _former_key(self, version: int) -> bytes:
        return self._key + b"/%012d" % version


RULES_KEY: Final = keys.SETTING + b"gc_rules"
FORMER_RULES: Final = RULES_KEY + b"/"

Edit: TypeAlias = Callable[[Rules | None], Rules | None]


class RulesRecord(VersionRecord, frozen=True, kw_only=True, omit_defaults=True):
    """Hold one version of the rules. `rules` is None if they were deleted."""

    rules: Rules | None = None


class _Stored(Record, frozen=True, kw_only=True, omit_defaults=True):
    """Decode a record whose rules may have the old or the new form."""

    version: int
    rules: dict[str, Any] | None = None
    changed_ms: int
    changed_by: str = ""


@dataclass(frozen=True, slots=True)
class RulesSet:
    """Hold the new version, and in `counts_after` the runs that still expire or sweep by former rules."""

    version: int
    counts_after: tuple[RunId, ...]


class RuleBook(VersionedSetting[RulesRecord]):
    def __init__(self, versions: Versions) -> None:
        empty = RulesRecord(version=0, changed_ms=0)
        super().__init__(versions, RULES_KEY, noun="the retention rules", empty=empty, decode=decode_rules)

    async def write(self, rules: Rules | None, *, by: str = "", expected: int | None = None) -> RulesSet:
        """Replace the rules, or delete them with None. Every later read returns these rules or newer ones.

        Raises:
            InvalidRules: the rules have a duplicate pattern, a bad duration, or too many patterns.
            RulesMoved: the version in force is not `expected`.
        """
        return await self.edit(lambda _: rules, by=by, expected=expected)

    async def write_days(self, default_days: int, branch_days: Mapping[str, int], *, by: str = "") -> RulesSet:
        """Set the periods in days, as the contract does (`lakebed.gc.rules.with_days`). Pins and the least age stay.

        Raises:
            InvalidRules: see `write`.
        """
        return await self.edit(lambda rules: with_days(rules, default_days, branch_days), by=by)

    async def edit(self, edit: Edit, *, by: str = "", expected: int | None = None) -> RulesSet:
        """Replace the rules by `edit` of them. `edit` is called again after a lost race.

        Raises:
            InvalidRules, RulesMoved: see `write`.
        """

        def next_of(before: RulesRecord) -> RulesRecord:
            rules = edit(before.rules)
            return RulesRecord(
                version=before.version + 1,
                rules=None if rules is None else check_rules(rules),
                changed_ms=self._versions.ports.clock.now_ms(),
                changed_by=by,
            )

        written = await self.change(next_of, expected=expected)
        return RulesSet(written.version, await self.counts_after())


def rules_version(record: RulesRecord) -> RulesVersion:
    return RulesVersion(
        version=record.version, rules=record.rules, changed_ms=record.changed_ms, changed_by=record.changed_by
    )


def decode_rules(data: bytes) -> RulesRecord:
    """Decode a record. Convert rules of the first form, which had only days.

    Raises:
        RecordFormat: the bytes have another format number, unknown rules, or are not such a record.
    """
    stored = decode_record(_Stored, data)
    try:
        rules = None if stored.rules is None else _rules_of(stored.rules)
    except msgspec.ValidationError as error:
        raise RecordFormat(f"retention rules of version {stored.version} do not decode: {error}") from error
    return RulesRecord(version=stored.version, rules=rules, changed_ms=stored.changed_ms, changed_by=stored.changed_by)


class _DayRules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    default_days: int
    branch_days: dict[str, int] = {}
    tags_pin: bool = True


def _rules_of(stored: dict[str, Any]) -> Rules:
    # Only the first form has `default_days`.
    if "default_days" not in stored:
        return msgspec.convert(stored, Rules)
    days = msgspec.convert(stored, _DayRules)
    return msgspec.structs.replace(days_rules(days.default_days, days.branch_days), tags_pin=days.tags_pin)


POLICY_KEY: Final = keys.LIFECYCLE


class PolicyRecord(VersionRecord, frozen=True, kw_only=True, omit_defaults=True):
    """Hold one version of the policy: JSON as its author sent it, parsed at each use. None if it was deleted."""

    policy: bytes | None = None


class PolicyBook(VersionedSetting[PolicyRecord]):
    def __init__(self, versions: Versions) -> None:
        empty = PolicyRecord(version=0, changed_ms=0)
        super().__init__(
            versions,
            POLICY_KEY,
            noun="the lifecycle policies",
            empty=empty,
            decode=partial(decode_record, PolicyRecord),
        )

    async def check(self, policy: bytes) -> list[Problem]:
        """Return every problem of a policy, judged with the current branches."""
        return read_policy(policy, branches=await self._branches())[1]

    async def write(
        self, policy: bytes | None, *, by: str = "", expected: int | None = None
    ) -> tuple[PolicyRecord, list[Problem]]:
        """Replace the policy, or delete it with None. Return the version in force and its warnings.

        Raises:
            InvalidPolicy: the policy has errors. Nothing changed.
            RulesMoved: the version in force is not `expected`.
        """
        warnings: list[Problem] = []
        if policy is not None:
            branches = await self._branches()
            check_policy(policy, branches=branches)
            warnings = read_policy(policy, branches=branches)[1]

        def next_of(before: PolicyRecord) -> PolicyRecord:
            now_ms = self._versions.ports.clock.now_ms()
            return PolicyRecord(version=before.version + 1, policy=policy, changed_ms=now_ms, changed_by=by)

        return await self.change(next_of, expected=expected), warnings

    async def in_force(self) -> tuple[int, Policy]:
        """Return the version in force and its policy, or raise PolicyNotFound."""
        record = await self.read()
        if record.policy is None:
            raise PolicyNotFound("no lifecycle policy is set for this repository")
        return record.version, check_policy(record.policy)

    async def _branches(self) -> list[str]:
        return [name async for name, _ in self._versions.inventory.every(BranchRecord)]


# Legal holds: a setting, and a mark in the object store. Each change writes a small file named by its version before
# it is acknowledged. A sweep checks for a later version before each delete.

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
            Conflict: another hold has this name.
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
            for hold_before in before:
                if hold_before.name == made.name:
                    if msgspec.structs.replace(hold_before, by=made.by, at_ms=made.at_ms) == made:
                        return before
                    raise Conflict(
                        f"there is a hold {hold_before.name} already, on {hold_before.text()}", name=hold_before.name
                    )
            return (*before, made)

        # Before the record: a hold cannot keep a commit that a run has already published.
        await self._versions.retired.check_not_expiring(map(CommitId, made.commit_ids()))
        written = await self._write(with_it, by=by, what=f"added {made.name}: {made.why}")
        # After the record: a run that publishes from now on reads the holds before it deletes. A worker of hard delete
        # reads them before each page.
        runs = await self.counts_after()
        return written, (*runs, RUN_ID) if await self._versions.hard_delete.is_deleting() else runs

    async def _commit_id(self, expression: str) -> CommitId:
        """Return the commit that `expression` names. A full commit id never names a branch or tag."""
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
            NotFound: no hold has this name.
            InvalidHold: the reason is empty or too long.
        """
        _check_why(why)

        def without_it(before: tuple[Hold, ...]) -> tuple[Hold, ...]:
            left = tuple(hold for hold in before if hold.name != name)
            if len(left) == len(before):
                raise NotFound(f"there is no hold {name}", name=name)
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
