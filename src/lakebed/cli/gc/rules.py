"""`lakebed gc rules`: how long committed data stays after it has been replaced, and what stays regardless.

A composition root: patterns, durations and what differs between two sets of rules are `lakebed.gc.rules`'s, so that
what is refused here is what the server would refuse. Every change is made to the version that was read, and fails with
a conflict when somebody else was faster. Nothing is deleted here; a run deletes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from lakebed.base import NotFound, count_of
from lakebed.cli.arguments import LimitOption, RepositoryArgument, YesOption
from lakebed.cli.failures import Misuse
from lakebed.cli.session import Session, command
from lakebed.cli.tree import noun
from lakebed.cli.uris import RefUri, parse_ref, parse_repository

from .rules_plan import planned_change, planned_text
from .rules_text import changes_text, explanation_text, history_text, version_text
from .session import RootOption, rules_file

if TYPE_CHECKING:
    # At run time only in the commands: what says these loads Arrow, for which `--help` need not wait.
    from lakebed.gc.protocol import RulesVersion
    from lakebed.gc.rules import Rules

SAVE: Final = "Save these rules?"
app = noun("How long committed data stays after it has been replaced, and what stays regardless.")

DurationArgument = Annotated[str, typer.Argument(metavar="DURATION", help="36h, 20d, 2w, 6mo or forever.")]
PatternArgument = Annotated[
    str,
    typer.Argument(metavar="PATTERN", help="lakefs://repository/branch; a glob too, as lakefs://repository/feature-*"),
]
PlanOption = Annotated[
    bool, typer.Option("--plan", help="Plan by both, and show the difference in objects, bytes and commits.")
]
OFF: Final = "off"
DASHES: Final = {"ignore_unknown_options": True}
"""A duration that begins with a dash is one that nobody can mean, and no option: it is told like the others."""


@app.command("get")
@command
def get_rules(
    session: Session,
    uri: RepositoryArgument,
    version: Annotated[int | None, typer.Option("--version", min=1, help="Not those in force, but these.")] = None,
) -> None:
    """Show the rules. With -o json as `apply` reads them."""
    session.show(_read(session, parse_repository(uri), version), version_text)


@app.command("set-default", context_settings=DASHES)
@command
def set_default(session: Session, uri: RepositoryArgument, duration: DurationArgument) -> None:
    """Set how long data stays that is on no branch with a rule of its own."""
    from msgspec.structs import replace

    said = f"{uri}: default retention is {duration}"
    _change(session, parse_repository(uri), lambda rules: replace(rules, default=duration), said)


@app.command("set", context_settings=DASHES)
@command
def set_rule(session: Session, uri: PatternArgument, duration: DurationArgument) -> None:
    """Set how long data of the branches that match stays after it has been replaced there."""
    if "/" not in uri.removeprefix("lakefs://").rstrip("/"):
        raise Misuse(f"{uri}: which branch or pattern? For all that no pattern matches: lakebed gc rules set-default")
    target = parse_ref(uri)

    def edit(rules: Rules) -> Rules:
        from msgspec.structs import replace

        from lakebed.gc.rules import BranchRule

        others = [rule for rule in rules.branches if rule.pattern != target.ref]
        return replace(rules, branches=(*others, BranchRule(pattern=target.ref, period=duration)))

    _change(session, target.repository, edit, f"{target}: retention is {duration}")


@app.command("unset")
@command
def unset_rule(
    session: Session,
    uri: Annotated[
        str, typer.Argument(metavar="URI", help="lakefs://repository/pattern, or lakefs://repository for all")
    ],
    yes: YesOption = False,
) -> None:
    """Remove the period of a pattern; or all rules, pins too, and nothing committed ever goes."""
    if "/" not in uri.removeprefix("lakefs://"):
        _remove_all(session, uri, yes=yes)
        return
    target = parse_ref(uri)

    def edit(rules: Rules) -> Rules:
        from msgspec.structs import replace

        others = tuple(rule for rule in rules.branches if rule.pattern != target.ref)
        if len(others) == len(rules.branches):
            raise NotFound(f"{target} has no rule of its own")
        return replace(rules, branches=others)

    _change(session, target.repository, edit, f"{target} has no rule of its own any more")


def _remove_all(session: Session, uri: str, *, yes: bool) -> None:
    from lakebed.client import api_path

    repository = parse_repository(uri)
    found = _read(session, repository)
    session.confirm(f"Remove all retention rules of {uri}?", yes=yes)
    path = api_path("repositories", repository, "gc", "rules", "full")
    session.client.call("DELETE", path, query={"if_version": found.version}, repeatable=False)
    session.done(f"{uri} has no rules: committed data stays for ever", unset=None)


@app.command("keep-last", context_settings=DASHES)
@command
def keep_last(
    session: Session,
    uri: PatternArgument,
    commits: Annotated[str, typer.Argument(metavar="N|off", help="How many commits, the head among them.")],
) -> None:
    """Keep the newest commits of the branches that match, however old they are."""
    target = parse_ref(uri)
    if commits != OFF and not (commits.isascii() and commits.isdigit() and len(commits) < 10):
        raise Misuse(f"{commits!r} is neither a number of commits nor off")

    def edit(rules: Rules) -> Rules:
        from msgspec.structs import replace

        from lakebed.gc.rules import KeepLast

        pins = [pin for pin in rules.keep_last if pin.pattern != target.ref]
        if commits != OFF:
            pins.append(KeepLast(pattern=target.ref, commits=int(commits)))
        elif len(pins) == len(rules.keep_last):
            raise Misuse(f"{target} has no such rule")
        return replace(rules, keep_last=tuple(pins))

    kept = "the period alone counts" if commits == OFF else f"the last {count_of(int(commits), 'commit')} stay"
    _change(session, target.repository, edit, f"{target}: {kept}")


@app.command("pin-tags")
@command
def pin_tags(session: Session, uri: RepositoryArgument, on: Annotated[str, typer.Argument(metavar="on|off")]) -> None:
    """Say whether a tag keeps the data of its commit. It does unless it is said here that it does not."""
    from msgspec.structs import replace

    if on not in {"on", OFF}:
        raise Misuse(f"{on!r} is neither on nor off")
    said = f"{uri}: tags {'keep their commits' if on == 'on' else 'keep nothing'}"
    _change(session, parse_repository(uri), lambda rules: replace(rules, tags_pin=on == "on"), said)


@app.command("uncommitted", context_settings=DASHES)
@command
def uncommitted(
    session: Session,
    uri: RepositoryArgument,
    duration: Annotated[str, typer.Argument(metavar="DURATION|off", help="36h, 2d, 2w, 1mo, forever or off.")],
) -> None:
    """Set how old an object that is in no commit must be, by its upload, before a plan may hold it."""
    from msgspec.structs import replace

    age = None if duration == OFF else duration
    said = f"{uri}: uncommitted garbage {'may go at any age' if age is None else f'stays for {age}'}"
    _change(session, parse_repository(uri), lambda rules: replace(rules, uncommitted_min_age=age), said)


@app.command("explain")
@command
def explain(
    session: Session,
    uri: Annotated[
        str, typer.Argument(metavar="BRANCH", help="lakefs://repository/branch, or lakefs://repository for no branch")
    ],
) -> None:
    """Say which rule counts for a branch, there or not, and why; or what counts for commits on no branch."""
    from msgspec import convert

    from lakebed.client import api_path
    from lakebed.gc.rules import Explanation

    target = parse_ref(uri) if "/" in uri.removeprefix("lakefs://") else RefUri(parse_repository(uri), "")
    path = api_path("repositories", target.repository, "gc", "rules", "explain")
    answer = session.client.call("GET", path, query={"branch": target.ref or None})
    session.show(convert(answer, Explanation), explanation_text)


@app.command("history")
@command
def history(session: Session, uri: RepositoryArgument, limit: LimitOption = None) -> None:
    """List the versions of the rules, newest first: who changed what, and when."""
    session.show_all(_versions(session, parse_repository(uri), limit), history_text)


@app.command("diff")
@command
def diff(
    session: Session,
    uri: RepositoryArgument,
    first: Annotated[str, typer.Argument(metavar="FILE|VERSION", help="Default: the version before.")] = "",
    second: Annotated[str, typer.Argument(metavar="FILE|VERSION", help="Default: the rules in force.")] = "",
    plan: PlanOption = False,
    local_root: RootOption = None,
) -> None:
    """Show what changed since a version, what a file would change, or what differs between any two."""
    from lakebed.gc.rules import diff_rules

    repository = parse_repository(uri)
    current = _read(session, repository)
    if not first:
        first = str(current.version - 1)
    before = _named(session, repository, first)
    after = _named(session, repository, second) if second else current.rules
    # A file by itself is what may come: what is in force is then what was.
    pair = (before, after) if second or _is_version(first) else (after, before)
    if plan:
        session.show(planned_change(session, uri, pair, local_root), planned_text)
    else:
        session.show_all(diff_rules(*pair), changes_text)


@app.command("apply")
@command
def apply_rules(
    session: Session,
    uri: RepositoryArgument,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="JSON, as `get -o json` shows it.")],
    plan: PlanOption = False,
    yes: YesOption = False,
    local_root: RootOption = None,
) -> None:
    """Replace all rules by those of a file, and show what that changes. With --plan it asks in between."""
    from lakebed.gc.rules import diff_rules

    repository = parse_repository(uri)
    wanted = rules_file(file)
    found = _read(session, repository)
    changes = diff_rules(found.rules, wanted)
    if not changes:
        session.done(f"{uri}: the rules are as in {file}", version=found.version, counts_after=[])
        return
    told = changes_text(changes)
    if plan:
        session.check_can_ask(SAVE, yes=yes)
        _check_may_write(session, repository)
        told = planned_text(planned_change(session, uri, (found.rules, wanted), local_root))
    for line in told:
        session.note(line)
    if plan:
        session.confirm(SAVE, yes=yes)
    _write(session, repository, found, wanted, f"{uri}: the rules are those of {file}")


# What the commands share


def _read(session: Session, repository: str, version: int | None = None) -> RulesVersion:
    from msgspec import convert

    from lakebed.client import api_path
    from lakebed.gc.protocol import RulesVersion

    path = api_path("repositories", repository, "gc", "rules", "full")
    return convert(session.client.call("GET", path, query={"version": version}), RulesVersion)


def _check_may_write(session: Session, repository: str) -> None:
    """
    Raises:
        Denied: who asks may not set rules.
    """
    from lakebed.client import api_path

    session.client.call("GET", api_path("repositories", repository, "gc", "rules", "set_allowed"))


def _is_version(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10


def _named(session: Session, repository: str, name: str) -> Rules | None:
    """Rules by version (0: before there were any) or from a file."""
    if not _is_version(name):
        return rules_file(Path(name))
    return _read(session, repository, int(name)).rules if int(name) else None


def _change(session: Session, repository: str, edit: Callable[[Rules], Rules], said: str) -> None:
    """Change the rules in force. Where there are none, all stays for ever but what the change says."""
    from lakebed.gc.rules import FOREVER, Rules, check_rules

    found = _read(session, repository)
    changed = check_rules(edit(found.rules or Rules(default=FOREVER)))
    if found.rules is None and changed.default == FOREVER:
        session.note("no default is set: what no rule matches stays for ever")
    _write(session, repository, found, changed, said)


def _write(session: Session, repository: str, found: RulesVersion, rules: Rules, said: str) -> None:
    from msgspec import convert

    from lakebed.client import api_path
    from lakebed.gc.protocol import RulesWritten

    path = api_path("repositories", repository, "gc", "rules", "full")
    # Not repeated: the second of two would find the version of the first, and say that somebody else was faster.
    answer = session.client.call("PUT", path, json=rules, query={"if_version": found.version}, repeatable=False)
    written = convert(answer, RulesWritten)
    for run in written.counts_after:
        session.note(f"run {run} goes on by the former rules; these count after it")
    session.done(said, version=written.version, counts_after=written.counts_after)


def _versions(session: Session, repository: str, limit: int | None) -> Iterator[RulesVersion]:
    from msgspec import convert

    from lakebed.client import api_path
    from lakebed.gc.protocol import RulesHistory

    path = api_path("repositories", repository, "gc", "rules", "history")
    before: int | None = None
    left, has_more = limit, True
    while has_more and left != 0:
        amount = 100 if left is None else min(100, left)
        page = convert(session.client.call("GET", path, query={"before": before, "amount": amount}), RulesHistory)
        yield from page.versions
        left = None if left is None else left - len(page.versions)
        before = page.versions[-1].version if page.versions else None
        has_more = page.has_more and bool(page.versions)
