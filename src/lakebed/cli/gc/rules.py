"""`lakebed gc rules`: set how long committed data stays after it has been replaced, and pin commits.

`lakebed.gc.rules` defines patterns, durations and differences, so the command line refuses the same rules as the
server. Every change is made to the version that was read, and fails with a conflict when another user was faster.
Nothing is deleted here; a run deletes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from msgspec.structs import replace

from lakebed.base import NotFound, count_of
from lakebed.cli.kit.arguments import LimitOption, RepositoryArgument, YesOption
from lakebed.cli.kit.failures import Misuse
from lakebed.cli.kit.output import fields, human_time, prose, table
from lakebed.cli.kit.parameters import Argument, Option
from lakebed.cli.kit.session import Session
from lakebed.cli.kit.tree import noun
from lakebed.cli.kit.uris import SCHEME, RefUri, is_uri, parse_ref, parse_repository

from .options import Working, asked, collections, collectors, gc_rules, messages
from .session import RootOption, check, checked_collector, rules_file, versions_of, with_spark
from .text import amount, diff_text

SAVE: Final = "Save these rules?"
OFF: Final = "off"
app = noun(
    "Set how long committed data stays after it has been replaced, and pin commits.",
    "lakebed gc rules set-default lakefs://lake 7d",
    "lakebed gc rules set 'lakefs://lake/feature-*' 36h",
    "lakebed gc rules try lakefs://lake rules.json  # which commits would expire",
    "lakebed gc rules diff lakefs://lake rules.json --plan  # what a change takes",
)

DurationArgument = Annotated[str, Argument(metavar="DURATION", help="36h, 20d, 2w, 6mo or forever.")]
PatternArgument = Annotated[
    str,
    Argument(metavar="PATTERN", help="lakefs://repository/branch; a glob too, as lakefs://repository/feature-*"),
]
PlanOption = Annotated[
    bool, Option("--plan", help="Plan by both, and show the difference in objects, bytes and commits.")
]
DASHES: Final = {"ignore_unknown_options": True}
"""A duration that begins with a dash is an invalid duration, not an unknown option."""


class PlannedChange(msgspec.Struct, frozen=True, kw_only=True):
    """Hold the differences between two sets of rules, and between their plans: `plan.a` is by the former rules."""

    changes: Sequence[gc_rules.RuleChange]
    plan: messages.PlanDiff


@app.command("show")
def get_rules(
    session: Session,
    uri: RepositoryArgument,
    version: Annotated[int | None, Option("--version", min=1, help="Show this version.")] = None,
) -> None:
    """Show the rules. With -o json as `apply` reads them."""
    session.show(_read(session, parse_repository(uri), version), version_text)


@app.command("set-default", context_settings=DASHES)
def set_default(session: Session, uri: RepositoryArgument, duration: DurationArgument) -> None:
    """Set how long data stays where no rule matches its branch."""
    message = f"{uri}: default retention is {duration}"
    _change(session, parse_repository(uri), lambda rules: replace(rules, default=duration), message)


@app.command("set", context_settings=DASHES)
def set_rule(session: Session, uri: PatternArgument, duration: DurationArgument) -> None:
    """Set how long data of the branches that match stays after it has been replaced there."""
    if is_uri(duration):
        raise Misuse(f"{duration} comes first, and then how long: {uri}")
    if is_uri(uri) and "/" not in uri.removeprefix(SCHEME).rstrip("/"):
        raise Misuse(
            f"{uri}: which branch or pattern, as in {uri.rstrip('/')}/main? `lakebed gc rules set-default` is for all"
            " others, and `lakebed gc rules apply` takes a file"
        )
    target = parse_ref(uri)

    def edit(rules: gc_rules.Rules) -> gc_rules.Rules:
        others = _others(rules.branches, target)
        return replace(rules, branches=(*others, gc_rules.BranchRule(pattern=target.ref, period=duration)))

    _change(session, target.repository, edit, f"{target}: retention is {duration}")


@app.command("unset")
def unset_rule(
    session: Session,
    uri: Annotated[
        str, Argument(metavar="PATTERN|REPOSITORY", help="lakefs://repository/pattern, or lakefs://repository for all")
    ],
    yes: YesOption = False,
) -> None:
    """Remove the period of a pattern; or all rules, pins too: then all committed data stays."""
    if "/" not in uri.removeprefix("lakefs://"):
        _remove_all(session, uri, yes=yes)
        return
    target = parse_ref(uri)

    def edit(rules: gc_rules.Rules) -> gc_rules.Rules:
        others = _others(rules.branches, target)
        if len(others) == len(rules.branches):
            raise NotFound(f"{target} has no rule of its own")
        return replace(rules, branches=others)

    _change(session, target.repository, edit, f"{target}: removed its rule")


def _remove_all(session: Session, uri: str, *, yes: bool) -> None:
    repository = parse_repository(uri)
    found = _read(session, repository)
    session.confirm(f"Remove all retention rules of {uri}?", yes=yes)
    session.client.do(collectors.DELETE_FULL_GC_RULES, repository, query={"if_version": found.version})
    session.done(f"{uri} has no rules: committed data stays for ever", unset=None)


@app.command("keep-last", context_settings=DASHES)
def keep_last(
    session: Session,
    uri: PatternArgument,
    commits: Annotated[str, Argument(metavar="N|off", help="How many commits, the head among them.")],
) -> None:
    """Keep the newest commits of the branches that match, however old they are."""
    target = parse_ref(uri)
    if commits != OFF and not (commits.isascii() and commits.isdigit() and len(commits) < 10):
        raise Misuse(f"{commits!r} is neither a number of commits nor off")

    def edit(rules: gc_rules.Rules) -> gc_rules.Rules:
        pins = _others(rules.keep_last, target)
        if commits != OFF:
            pins = (*pins, gc_rules.KeepLast(pattern=target.ref, commits=int(commits)))
        elif len(pins) == len(rules.keep_last):
            raise Misuse(f"{target} has no keep-last: nothing to take off")
        return replace(rules, keep_last=pins)

    kept = "removed its keep-last" if commits == OFF else f"keeps its newest {count_of(int(commits), 'commit')}"
    _change(session, target.repository, edit, f"{target}: {kept}")


@app.command("pin-tags")
def pin_tags(session: Session, uri: RepositoryArgument, on: Annotated[str, Argument(metavar="on|off")]) -> None:
    """Set whether a tag keeps the data of its commit. By default it does."""
    if on not in {"on", OFF}:
        raise Misuse(f"{on!r} is neither on nor off")
    message = f"{uri}: tags {'keep their commits' if on == 'on' else 'keep nothing'}"
    _change(session, parse_repository(uri), lambda rules: replace(rules, tags_pin=on == "on"), message)


@app.command("uncommitted", context_settings=DASHES)
def uncommitted(
    session: Session,
    uri: RepositoryArgument,
    duration: Annotated[str, Argument(metavar="DURATION|off", help="36h, 2d, 2w, 1mo, forever or off.")],
) -> None:
    """Set how long an object that is in no commit stays after its upload."""
    age = None if duration == OFF else duration
    message = f"{uri}: uncommitted garbage {'may go at any age' if age is None else f'stays for {age}'}"
    _change(session, parse_repository(uri), lambda rules: replace(rules, uncommitted_min_age=age), message)


@app.command("explain")
def explain(
    session: Session,
    uri: Annotated[
        str, Argument(metavar="BRANCH", help="lakefs://repository/branch, or lakefs://repository for no branch")
    ],
) -> None:
    """Explain which rule counts for a branch, existing or not; or for commits on no branch."""
    target = parse_ref(uri) if "/" in uri.removeprefix("lakefs://") else RefUri(parse_repository(uri), "")
    query = {"branch": target.ref or None}
    session.show(session.client.do(collectors.EXPLAIN_GC_RULES, target.repository, query=query), explanation_text)


@app.command("history")
def history(session: Session, uri: RepositoryArgument, limit: LimitOption = None) -> None:
    """List the versions of the rules, newest first: the change, by whom, and when."""
    found = versions_of(session, collectors.LIST_GC_RULES_HISTORY, parse_repository(uri), limit)
    session.show_all(found, history_text, otherwise="no rules were ever set")


@app.command("diff")
def diff(
    session: Session,
    uri: RepositoryArgument,
    working: Working,
    first: Annotated[str, Argument(metavar="FILE|VERSION", help="Default: the version before.", names_file=True)] = "",
    second: Annotated[str, Argument(metavar="FILE|VERSION", help="Default: the rules in force.", names_file=True)] = "",
    plan: PlanOption = False,
    local_root: RootOption = None,
) -> None:
    """Compare the rules with an earlier version or with a file, or compare any two of these."""
    _check_plans(working, plan=plan)
    repository = parse_repository(uri)
    current = _read(session, repository)
    first = first or str(current.version - 1)
    before = _named(session, repository, first)
    after = _named(session, repository, second) if second else current.rules
    # A file alone is the wanted side: the rules in force are the former ones.
    pair = (before, after) if second or _is_version(first) else (after, before)
    if plan:
        session.show(planned_change(session, uri, pair, local_root, working), planned_text)
    else:
        session.show_all(gc_rules.diff_rules(*pair), changes_text)


@app.command("apply")
def apply_rules(
    session: Session,
    uri: RepositoryArgument,
    file: Annotated[Path, Argument(metavar="FILE", help="JSON, as `get -o json` shows it.")],
    working: Working,
    plan: PlanOption = False,
    yes: YesOption = False,
    local_root: RootOption = None,
) -> None:
    """Replace all rules by those of a file, and show the changes. With --plan it asks first."""
    _check_plans(working, plan=plan)
    repository = parse_repository(uri)
    wanted = rules_file(file)
    found = _read(session, repository)
    changes = gc_rules.diff_rules(found.rules, wanted)
    if not changes:
        session.done(f"{uri}: the rules are as in {file}", version=found.version, counts_after=[])
        return
    lines = changes_text(changes)
    if plan:
        session.check_can_ask(SAVE, yes=yes)
        session.client.do(collections.SET_GARBAGE_COLLECTION_RULES_PREFLIGHT, repository)
        lines = planned_text(planned_change(session, uri, (found.rules, wanted), local_root, working))
    for line in lines:
        session.note(line)
    if plan:
        session.confirm(SAVE, yes=yes)
    _write(session, repository, found, wanted, f"{uri}: the rules are those of {file}")


@app.command("try")
def try_rules(
    session: Session,
    uri: RepositoryArgument,
    file: Annotated[Path, Argument(metavar="FILE", help="JSON, as `get -o json` shows it.")],
) -> None:
    """Show which commits rules would let expire now, without a plan. Saves and deletes nothing.

    Objects are counted at most: staged data, open uploads and holds may keep some. `diff FILE --plan` counts exactly.
    """
    wanted = rules_file(file)
    session.show(session.client.do(collectors.TRY_GC_RULES, parse_repository(uri), body=wanted), trial_text)


# Helpers of several commands


def _check_plans(working: Working, *, plan: bool) -> None:
    given = [f"--{name}" for name, value in working.words().items() if value is not None]
    if given and not plan:
        raise Misuse(f"{' and '.join(given)} {'needs' if len(given) == 1 else 'need'} --plan")


def _others(rules: Iterable[Any], target: RefUri) -> tuple[Any, ...]:
    return tuple(rule for rule in rules if rule.pattern != target.ref)


def _read(session: Session, repository: str, version: int | None = None) -> messages.RulesVersion:
    return session.client.do(collectors.GET_FULL_GC_RULES, repository, query={"version": version})


def _is_version(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10


def _named(session: Session, repository: str, name: str) -> gc_rules.Rules | None:
    """Return rules by version (0: before there were any) or from a file."""
    if not _is_version(name):
        return rules_file(Path(name))
    return _read(session, repository, int(name)).rules if int(name) else None


def _change(session: Session, repository: str, edit: Callable[[gc_rules.Rules], gc_rules.Rules], message: str) -> None:
    """Change the rules in force. Without rules, all data stays for ever except where the change sets a period."""
    found = _read(session, repository)
    changed = gc_rules.check_rules(edit(found.rules or gc_rules.Rules(default=gc_rules.FOREVER)))
    if found.rules is None and changed.default == gc_rules.FOREVER:
        session.warn("no default is set: what no rule matches stays for ever")
    _write(session, repository, found, changed, message)


def _write(
    session: Session, repository: str, found: messages.RulesVersion, rules: gc_rules.Rules, message: str
) -> None:
    query = {"if_version": found.version}
    written = session.client.do(collectors.SET_FULL_GC_RULES, repository, body=rules, query=query)
    for run in written.counts_after:
        session.note(f"run {run} goes on by the former rules; these count after it")
    session.done(message, version=written.version, counts_after=written.counts_after)


def planned_change(
    session: Session,
    uri: str,
    pair: tuple[gc_rules.Rules | None, gc_rules.Rules | None],
    local_root: Path | None,
    working: Working,
) -> PlannedChange:
    """Plan committed data by both, and compare. Deletes nothing and saves no rules; no rules keep everything."""
    collector = checked_collector(session, uri, local_root)
    kinds = [messages.RunKind.COMMITTED]
    requests: list[Any] = [
        asked("plan", working, kinds=kinds, rules=rules or gc_rules.Rules(default=gc_rules.FOREVER)) for rules in pair
    ]
    for request in requests:
        check(session, collector, request)
    with with_spark(session, collector) as collector:
        before, after = (plan for request in requests for plan in collector.plan(request))
    diff = collector.diff(before.run_id, after.run_id, limit=20)
    return PlannedChange(changes=gc_rules.diff_rules(*pair), plan=diff)


# Texts


def trial_text(found: messages.RulesTrial) -> Iterator[str]:
    before = f"; {found.in_force[0].expired:,} by the rules in force" if found.in_force else ""
    most = found.at_most
    facts = [
        ("expire", f"{count_of(found.expired, 'commit')} of {found.kept + found.expired:,}{before}"),
        ("objects", "unknown: too many trees. Plan by these rules" if most is None else f"at most {amount(most)}"),
        *(
            (
                f"in {count_of(day.days, 'day')}",
                count_of(day.expired, "commit") + ("" if day.at_most is None else f", at most {amount(day.at_most)}"),
            )
            for day in found.days
        ),
    ]
    if found.path_holds:
        facts.append(("holds", f"{', '.join(found.path_holds)} may keep some of it"))
    yield from fields(facts)
    yield ""
    rows = [(row.branch or "(no branch)", row.rule, f"{row.commits:,}", f"{row.expired:,}") for row in found.branches]
    yield from table(("branch", "rule", "commits", "expire"), rows)
    if found.branches_count > len(found.branches):
        yield f"and {count_of(found.branches_count - len(found.branches), 'branch')} more"


def planned_text(found: PlannedChange) -> Iterator[str]:
    yield from changes_text(found.changes)
    yield ""
    yield from prose(f"{found.plan.a} is by the rules before, {found.plan.b} by those after:")
    yield from diff_text(found.plan)


def version_text(found: messages.RulesVersion) -> Iterator[str]:
    if found.rules is None:
        yield "no rules are set: committed data stays for ever"
        return
    rules = found.rules
    rows = [*((rule.pattern, rule.period) for rule in rules.branches), ("(default)", rules.default)]
    yield from table(("branch", "retention"), rows)
    yield ""
    by = f" by {found.changed_by}" if found.changed_by else ""
    facts: list[tuple[str, str]] = [
        ("version", f"{found.version}, set {human_time(found.changed_ms // 1000)}{by}"),
        *(("keeps", f"the last {count_of(pin.commits, 'commit')} of {pin.pattern}") for pin in rules.keep_last),
        ("tags", "keep their commits" if rules.tags_pin else "keep nothing"),
    ]
    if rules.uncommitted_min_age is not None:
        facts.append(("uncommitted", f"stays for {rules.uncommitted_min_age} after its upload"))
    yield from fields(facts)


def explanation_text(found: gc_rules.Explanation) -> Iterator[str]:
    since = "for ever" if found.since_ms is None else f"since {human_time(found.since_ms // 1000)}"
    rule = "the default" if found.pattern is None else found.pattern
    facts = [
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
            yield from table(("pattern", title, "counts", "why"), map(_considered_row, rules))


def _considered_row(rule: gc_rules.Considered) -> tuple[str, ...]:
    return rule.pattern, rule.value, "yes" if rule.wins else "no", rule.why


def history_text(versions: Iterable[messages.RulesVersion]) -> Iterator[str]:
    found = list(versions)
    rows = []
    for place, version in enumerate(found):
        older = found[place + 1].rules if place + 1 < len(found) else None
        is_compared = place + 1 < len(found) or version.version == 1
        changes = "; ".join(map(_change_words, gc_rules.diff_rules(older, version.rules))) if is_compared else "…"
        rows.append((str(version.version), human_time(version.changed_ms // 1000), version.changed_by, changes))
    return table(("version", "changed", "by", "what"), rows)


_WORDS: Final = {"keep_last": "keep-last", "tags_pin": "pin-tags"}
"""The command that sets a field, where its name is another."""


def _change_words(change: gc_rules.RuleChange) -> str:
    word = _WORDS.get(change.what, change.what)
    what = f"{word} of {change.pattern}" if change.pattern else word
    if change.before is None:
        return f"{what}: {change.after}"
    return f"{what}: {change.before} → {change.after or 'none'}"


def changes_text(changes: Iterable[gc_rules.RuleChange]) -> Iterator[str]:
    rows = [
        (_WORDS.get(change.what, change.what), change.pattern, change.before or "-", change.after or "-")
        for change in changes
    ]
    yield from table(("what", "pattern", "before", "after"), rows) if rows else ("no difference",)
