"""How `lakebed gc rules` tells rules, their history and what differs, for people."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from lakebed.base import count_of
from lakebed.cli.output import fields, human_time, printable, table

if TYPE_CHECKING:
    from lakebed.gc.protocol import RulesVersion
    from lakebed.gc.rules import Considered, Explanation, RuleChange


def version_text(found: RulesVersion) -> Iterator[str]:
    if found.rules is None:
        yield "no rules are set: committed data stays for ever"
        return
    rules = found.rules
    rows = [*((rule.pattern, rule.period) for rule in rules.branches), ("(default)", rules.default)]
    yield from table(("branch", "retention"), rows)
    yield ""
    facts: list[tuple[str, Any]] = [
        ("version", f"{found.version}, set {human_time(found.changed_ms // 1000)} {_by(found)}".rstrip()),
        *(("keeps", f"the last {count_of(pin.commits, 'commit')} of {pin.pattern}") for pin in rules.keep_last),
        ("tags", "keep their commits" if rules.tags_pin else "keep nothing"),
    ]
    if rules.uncommitted_min_age is not None:
        facts.append(("uncommitted", f"stays for {rules.uncommitted_min_age} after its upload"))
    yield from fields(facts)


def _by(found: RulesVersion) -> str:
    return f"by {printable(found.changed_by)}" if found.changed_by else ""


def explanation_text(found: Explanation) -> Iterator[str]:
    since = "for ever" if found.since_ms is None else f"since {human_time(found.since_ms // 1000)}"
    rule = "the default" if found.pattern is None else found.pattern
    facts: list[tuple[str, Any]] = [
        ("branch", found.branch or "(commits on no branch)"),
        ("retention", f"{found.period}, by {rule}: what was its head {since} stays"),
        ("why", found.why),
    ]
    if found.keep_last:
        facts.append(("keeps", f"the last {count_of(found.keep_last, 'commit')}, by {found.pins[0].pattern}"))
    yield from fields(facts)
    for title, rules in (("retention", found.periods), ("keeps the last", found.pins)):
        if len(rules) > 1:
            yield ""
            yield from table(("pattern", title, "counts", "why"), _considered_rows(rules))


def _considered_rows(rules: Iterable[Considered]) -> Iterator[tuple[str, ...]]:
    for rule in rules:
        yield rule.pattern, rule.value, "yes" if rule.wins else "no", rule.why


def history_text(versions: Iterable[RulesVersion]) -> Iterator[str]:
    from lakebed.gc.rules import diff_rules

    found = list(versions)
    rows = []
    for place, version in enumerate(found):
        older = found[place + 1].rules if place + 1 < len(found) else None
        is_compared = place + 1 < len(found) or version.version == 1
        changes = "; ".join(map(_change_words, diff_rules(older, version.rules))) if is_compared else "…"
        rows.append(
            (str(version.version), human_time(version.changed_ms // 1000), printable(version.changed_by), changes)
        )
    yield from table(("version", "changed", "by", "what"), rows) if rows else ()


_WORDS: Final[dict[str, str]] = {"keep_last": "keep-last", "tags_pin": "pin-tags"}
"""What a change is of: the command that sets it, where programs have another word."""


def _change_words(change: RuleChange) -> str:
    what = f"{_what(change)} of {change.pattern}" if change.pattern else _what(change)
    if change.before is None:
        return f"{what}: {change.after}"
    return f"{what}: {change.before} → {change.after or 'none'}"


def _what(change: RuleChange) -> str:
    return _WORDS.get(change.what, change.what)


def changes_text(changes: Iterable[RuleChange]) -> Iterator[str]:
    rows = [(_what(change), change.pattern, change.before or "-", change.after or "-") for change in changes]
    yield from table(("what", "pattern", "before", "after"), rows) if rows else ("no difference",)
