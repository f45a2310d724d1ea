"""Keep every version of a repository's settings: retention rules, the lifecycle policy and legal holds.

A version number is never reused, even after a deletion (then the record is empty). So a plan can name its version, and
a run detects a change (docs/design/protocols.md, "Rules").

A change first copies the current version to its own key, then replaces the setting with `set_if`. So every version ever
in force stays readable, with its author and time. Versions are never removed: each is small and written by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeAlias, TypeVar

import msgspec

from lakebed.base import OutcomeUnknown, RunId, RunState
from lakebed.gc.live.errors import PolicyNotFound, RulesMoved, RulesVersionNotFound
from lakebed.gc.messages import RulesVersion
from lakebed.gc.rules import Rules, check_rules, days_rules, with_days
from lakebed.gc.rules.lifecycle import Policy, Problem, check_policy, read_policy
from lakebed.kv import PredicateFailed
from lakebed.versions import BranchRecord, Record, RecordFormat, RunRecord, Versions, decode_record, encode_record, keys

__all__ = ["PolicyBook", "PolicyRecord", "RuleBook", "RulesRecord", "RulesSet", "rules_version"]

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
        """Return this version of the setting.

        Raises:
            RulesVersionNotFound: the setting never had this version.
        """
        current = await self.read()
        if version == current.version:
            return current
        former = await self._former(range(version, version + 1)) if 0 < version < current.version else []
        if not former:
            raise RulesVersionNotFound(f"{self._noun} of version {version} do not exist", version=version)
        return former[0]

    async def history(self, *, before: int | None = None, limit: int = PAGE_MAX) -> tuple[list[R], bool]:
        """Return at most `limit` versions (older than `before`, if given), newest first, and whether more exist."""
        current = await self.read()
        newest = current.version if before is None else min(current.version, before - 1)
        oldest = max(1, newest - limit + 1)
        found = [current] if oldest <= current.version <= newest else []
        found += await self._former(range(min(newest, current.version - 1), oldest - 1, -1))
        return found, oldest > 1

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
        return tuple(run for run, one in runs if self._is_too_late_for(one))

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
        super().__init__(versions, POLICY_KEY, noun="the lifecycle policies", empty=empty, decode=decode_policy)

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
        """Return the version in force and its policy.

        Raises:
            PolicyNotFound: no policy is set.
        """
        record = await self.read()
        if record.policy is None:
            raise PolicyNotFound("no lifecycle policy is set for this repository")
        return record.version, check_policy(record.policy)

    async def _branches(self) -> list[str]:
        return [name async for name, _ in self._versions.inventory.every(BranchRecord)]


def decode_policy(data: bytes) -> PolicyRecord:
    return decode_record(PolicyRecord, data)
