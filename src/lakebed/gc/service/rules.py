"""Where the retention rules of a repository lie: one setting, versioned, never without a trace.

A version is never given twice, not even after the rules were deleted (then the setting holds none), so a plan can say
by which rules it was made, and a run can see that they changed (docs/design/protocols.md, "Rules").

History. Before a version is replaced it is copied, as it is, under a key of its own; then the setting is replaced with
`set_if`. So every version that ever counted can be read, with who set it and when, and a writer that dies between the
two leaves a copy of what still counts. All are kept: a version is some hundred bytes, and people set rules.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import msgspec

from lakebed.base import OutcomeUnknown, RunId, RunState
from lakebed.gc.rules import Rules, check_rules, days_rules, with_days
from lakebed.kv import PredicateFailed
from lakebed.versions import Record, RecordFormat, Versions, decode_record, encode_record, keys

from .errors import RulesMoved, RulesVersionNotFound

RULES_KEY: Final = keys.SETTING + b"gc_rules"
FORMER_RULES: Final = keys.SETTING + b"gc_rules/"
PAGE_MAX: Final = 1_000

_TAKING: Final = frozenset({RunState.CONDEMNING, RunState.SWEEPING})

Edit: TypeAlias = Callable[[Rules | None], Rules | None]


class RulesRecord(Record, frozen=True, kw_only=True, omit_defaults=True):
    """`rules` None: they were deleted. `version` counts every change, deletions too."""

    version: int
    rules: Rules | None = None
    changed_ms: int
    changed_by: str = ""


class _Stored(Record, frozen=True, kw_only=True, omit_defaults=True):
    """The record before it is known in which form the rules are."""

    version: int
    rules: dict[str, Any] | None = None
    changed_ms: int
    changed_by: str = ""


@dataclass(frozen=True, slots=True)
class RulesSet:
    """`counts_after` are runs that condemn or sweep by the former rules: for these the change comes too late."""

    version: int
    counts_after: tuple[RunId, ...]


class RuleBook:
    def __init__(self, versions: Versions) -> None:
        self._versions = versions

    async def read(self) -> RulesRecord:
        """The rules in force. Version 0 without rules where none were ever set."""
        held = await self._versions.context.get(RULES_KEY)
        return RulesRecord(version=0, changed_ms=0) if held is None else decode_rules(held.value)

    async def version(self, version: int) -> RulesRecord:
        """
        Raises:
            RulesVersionNotFound: there never was this version.
        """
        current = await self.read()
        if version == current.version:
            return current
        former = await self._former(range(version, version + 1)) if 0 < version < current.version else []
        if not former:
            raise RulesVersionNotFound(f"the retention rules have no version {version}", version=version)
        return former[0]

    async def history(self, *, before: int | None = None, limit: int = PAGE_MAX) -> tuple[list[RulesRecord], bool]:
        """Versions, newest first: all, or those before a version. The flag says whether there are older ones."""
        current = await self.read()
        newest = current.version if before is None else min(current.version, before - 1)
        oldest = max(1, newest - limit + 1)
        found = [current] if oldest <= current.version <= newest else []
        found += await self._former(range(min(newest, current.version - 1), oldest - 1, -1))
        return found, oldest > 1

    async def _former(self, versions: range) -> list[RulesRecord]:
        held = await self._versions.context.get_many([_former_key(version) for version in versions])
        return [decode_rules(found.value) for found in held if found is not None]

    async def write(self, rules: Rules | None, *, by: str = "", expected: int | None = None) -> RulesSet:
        """Replace the rules (None: delete them). Who reads them from now on reads these or later ones.

        Raises:
            InvalidRules: nobody can have meant these.
            RulesMoved: the version in force is not `expected`.
        """
        return await self.change(lambda _: rules, by=by, expected=expected)

    async def write_days(self, default_days: int, branch_days: Mapping[str, int], *, by: str = "") -> RulesSet:
        """Set the periods in the contract's words (`lakebed.gc.rules.with_days`); pins and the least age stay.

        Raises:
            InvalidRules: nobody can have meant these.
        """
        return await self.change(lambda rules: with_days(rules, default_days, branch_days), by=by)

    async def change(self, edit: Edit, *, by: str = "", expected: int | None = None) -> RulesSet:
        """Replace the rules by what `edit` makes of them; it is called again when somebody else was faster.

        Raises:
            InvalidRules, RulesMoved: as `write`.
        """
        versions = self._versions
        sent: RulesRecord | None = None
        while True:
            held = await versions.context.get(RULES_KEY)
            before = RulesRecord(version=0, changed_ms=0) if held is None else decode_rules(held.value)
            if sent is not None and before == sent:
                break  # the answer was lost, and yet it was written
            if expected is not None and before.version != expected:
                raise RulesMoved(
                    f"the retention rules are of version {before.version}, not {expected}: somebody changed them",
                    version=before.version,
                    expected=expected,
                )
            rules = edit(before.rules)
            record = RulesRecord(
                version=before.version + 1,
                rules=None if rules is None else check_rules(rules),
                changed_ms=versions.ports.clock.now_ms(),
                changed_by=by,
            )
            if held is not None:
                await versions.context.set(_former_key(before.version), before)
            predicate = None if held is None else held.predicate
            try:
                await versions.context.set_if(RULES_KEY, encode_record(record), predicate)
            except PredicateFailed:
                continue
            except OutcomeUnknown:
                sent = record
                continue
            sent = record
            break
        # The rule is there before the runs are read: a run that reads the rules after this sees it, and one that
        # read them before has published what it condemns before that, so it is seen here.
        # A deferred run decided long ago: to say of each that the change comes too late would tell nothing.
        taking = tuple(run for run, one in await versions.retired.runs() if one.state in _TAKING and not one.until_ms)
        return RulesSet(sent.version, taking)


def decode_rules(data: bytes) -> RulesRecord:
    """A record as stored. Rules in the first form, which knew days only, are read as what they meant.

    Raises:
        RecordFormat: another format number, rules of no known form, or no such record.
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
    if "default_days" not in stored:
        return msgspec.convert(stored, Rules)
    days = msgspec.convert(stored, _DayRules)
    return msgspec.structs.replace(days_rules(days.default_days, days.branch_days), tags_pin=days.tags_pin)


def _former_key(version: int) -> bytes:
    return FORMER_RULES + b"%012d" % version
