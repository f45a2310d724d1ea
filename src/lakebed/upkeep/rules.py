"""Where the retention rules of a repository lie: one setting, versioned, never without a trace.

A version is never given twice, not even after the rules were deleted (then the setting holds none), so a plan can say
by which rules it was made, and a run can see that they changed (docs/design/protocols.md, "Rules").
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from lakebed.base import OutcomeUnknown, RunId
from lakebed.kv import PredicateFailed
from lakebed.retention import Rules, check_rules
from lakebed.versions import Record, RunState, Versions, decode_record, encode_record, keys

RULES_KEY: Final = keys.SETTING + b"gc_rules"

_TAKING: Final = frozenset({RunState.CONDEMNING, RunState.SWEEPING})


class RulesRecord(Record, frozen=True, kw_only=True, omit_defaults=True):
    """`rules` None: they were deleted. `version` counts every change, deletions too."""

    version: int
    rules: Rules | None = None
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
        held = await self._versions.store.get(self._versions.partition, RULES_KEY)
        return RulesRecord(version=0, changed_ms=0) if held is None else decode_record(RulesRecord, held.value)

    async def write(self, rules: Rules | None, *, by: str = "") -> RulesSet:
        """Replace the rules (None: delete them). Who reads them from now on reads these or later ones.

        Raises:
            InvalidRules: nobody can have meant these.
        """
        if rules is not None:
            check_rules(rules)
        versions = self._versions
        while True:
            held = await versions.store.get(versions.partition, RULES_KEY)
            before = 0 if held is None else decode_record(RulesRecord, held.value).version
            record = RulesRecord(
                version=before + 1, rules=rules, changed_ms=versions.world.clock.now_ms(), changed_by=by
            )
            predicate = None if held is None else held.predicate
            try:
                await versions.store.set_if(versions.partition, RULES_KEY, encode_record(record), predicate)
            except (PredicateFailed, OutcomeUnknown):
                # If the lost write did land it is written once more, under a version of its own.
                continue
            # The rule is there before the runs are read: a run that reads the rules after this sees it, and one that
            # read them before has published what it condemns before that, so it is seen here.
            taking = tuple(run for run, record_ in await versions.runs() if record_.state in _TAKING)
            return RulesSet(record.version, taking)
