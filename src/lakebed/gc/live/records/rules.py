"""Keep the retention rules of a repository: one setting, versioned, never without a trace (versioned.py)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import msgspec

from lakebed.base import RunId
from lakebed.gc.messages import RulesVersion
from lakebed.gc.rules import Rules, check_rules, days_rules, with_days
from lakebed.versions import Record, RecordFormat, Versions, decode_record, keys

from .versioned import VersionedSetting, VersionRecord

RULES_KEY: Final = keys.SETTING + b"gc_rules"
FORMER_RULES: Final = RULES_KEY + b"/"

Edit: TypeAlias = Callable[[Rules | None], Rules | None]


class RulesRecord(VersionRecord, frozen=True, kw_only=True, omit_defaults=True):
    """`rules` None: they were deleted."""

    rules: Rules | None = None


class _Stored(Record, frozen=True, kw_only=True, omit_defaults=True):
    """The record before it is known in which form the rules are."""

    version: int
    rules: dict[str, Any] | None = None
    changed_ms: int
    changed_by: str = ""


@dataclass(frozen=True, slots=True)
class RulesSet:
    """`counts_after` are runs that expire or sweep by the former rules: for these the change comes too late."""

    version: int
    counts_after: tuple[RunId, ...]


class RuleBook(VersionedSetting[RulesRecord]):
    def __init__(self, versions: Versions) -> None:
        empty = RulesRecord(version=0, changed_ms=0)
        super().__init__(versions, RULES_KEY, noun="the retention rules", empty=empty, decode=decode_rules)

    async def write(self, rules: Rules | None, *, by: str = "", expected: int | None = None) -> RulesSet:
        """Replace the rules (None: delete them). Who reads them from now on reads these or later ones.

        Raises:
            InvalidRules: a pattern twice, a bad duration, or too many.
            RulesMoved: the version in force is not `expected`.
        """
        return await self.edit(lambda _: rules, by=by, expected=expected)

    async def write_days(self, default_days: int, branch_days: Mapping[str, int], *, by: str = "") -> RulesSet:
        """Set the periods in the contract's words (`lakebed.gc.rules.with_days`); pins and the least age stay.

        Raises:
            InvalidRules: a pattern twice, a bad duration, or too many.
        """
        return await self.edit(lambda rules: with_days(rules, default_days, branch_days), by=by)

    async def edit(self, edit: Edit, *, by: str = "", expected: int | None = None) -> RulesSet:
        """Replace the rules by what `edit` makes of them; it is called again when another writer was faster.

        Raises:
            InvalidRules, RulesMoved: as `write`.
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
