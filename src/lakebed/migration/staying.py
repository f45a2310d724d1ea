"""Name the items that stay on the source server, and the migrated items that do not work here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lakebed.base import count_of
from lakebed.catalog import Event, EventType
from lakebed.hooks import InvalidAction, parse
from lakebed.wire import GarbageCollectionRules

from .source import SourceRepository


def staying(source: SourceRepository, branches: Iterable[str]) -> list[str]:
    """Return a line for each item of a repository that needs the user's attention. Costs some requests for each
    branch.
    """
    names = [*branches]
    lines = [
        f"uncommitted changes on {name} stay there: commit or reset them" for name in names if source.is_dirty(name)
    ]
    rules = source.retention_rules()
    if rules is not None:
        lines.append(f"retention rules stay there ({_words(rules)}): `lakebed gc rules` sets them here")
    if open_pulls := source.count_pulls():
        lines.append(f"{count_of(open_pulls, 'open pull request')} stay there")
    refusing: dict[str, list[str]] = {}
    for name in names:
        for reason in _refusing(source, name):
            refusing.setdefault(reason, []).append(name)
    lines += [f"changes of {', '.join(on)} will be refused here: {reason}" for reason, on in refusing.items()]
    return lines


def _refusing(source: SourceRepository, branch: str) -> Sequence[str]:
    """Return why action files refuse changes here.

    They are objects, so they are migrated; an invalid one refuses the changes that it applies to.
    """
    reasons = []
    for stats in source.action_files(branch):
        try:
            action = parse(stats.path, source.read(branch, stats.path))
            for type_ in EventType:
                action.hooks_for(Event(type=type_, source_ref=branch, branch=branch))
        except InvalidAction as error:
            reasons.append(str(error))
    return reasons


def _words(rules: GarbageCollectionRules) -> str:
    branches = (f"{rule.branch_id} {count_of(rule.retention_days, 'day')}" for rule in rules.branches)
    return ", ".join([f"default {count_of(rules.default_retention_days, 'day')}", *branches])
