"""`lakebed hold`: named holds on paths, commits or tags, which every collection respects.

A hold keeps objects until it is released, whatever the rules, a policy or an erasure say. The server keeps every
change.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated

from lakebed.cli.kit.arguments import LimitOption, RepositoryArgument, YesOption
from lakebed.cli.kit.failures import Misuse
from lakebed.cli.kit.output import human_time, table
from lakebed.cli.kit.parameters import Argument, Option
from lakebed.cli.kit.session import Session
from lakebed.cli.kit.tree import noun
from lakebed.cli.kit.uris import parse_repository

from .options import gc_rules, holds, messages
from .session import versions_of

app = noun(
    "Hold data, so that no collection deletes them (legal holds).",
    "lakebed hold add lakefs://lake case-7 --path mail/ --why 'order of 3 May'",
    "lakebed hold add lakefs://lake audit --tag audit-2025 --why 'audit of 2025'",
    "lakebed hold release lakefs://lake case-7 --why 'case closed'",
)

NameArgument = Annotated[str, Argument(metavar="NAME", help="The hold's name.")]
WhyOption = Annotated[str, Option("--why", help="The reason, such as a case number. Every change is kept.")]


@app.command("add")
def add(
    session: Session,
    uri: RepositoryArgument,
    name: NameArgument,
    why: WhyOption,
    paths: Annotated[
        list[str] | None, Option("--path", metavar="GLOB", help="A glob, or a folder with its slash. Repeatable.")
    ] = None,
    commits: Annotated[list[str] | None, Option("--commit", help="A commit. Repeatable.")] = None,
    tags: Annotated[list[str] | None, Option("--tag", help="The commit that a tag names now.")] = None,
    committed_only: Annotated[
        bool, Option("--committed-only", help="Do not keep uncommitted objects, whose paths no record has.")
    ] = False,
) -> None:
    """Hold paths, commits or tags: no collection deletes their objects."""
    if not (paths or commits or tags):
        raise Misuse("nothing to hold: add --path, --commit or --tag")
    hold = messages.NewHold(
        name=name,
        globs=tuple(paths or ()),
        commits=tuple(commits or ()),
        tags=tuple(tags or ()),
        why=why,
        keeps_uncommitted=not committed_only,
    )
    written = session.client.do(holds.ADD_LEGAL_HOLD, parse_repository(uri), body=hold)
    for run in written.counts_after:
        session.warn(f"warning: run {run} had begun to delete; objects that it has not deleted yet stay")
    session.done(f"{uri}: {name} is held", version=written.version, counts_after=written.counts_after)


@app.command("list")
def list_holds(session: Session, uri: RepositoryArgument) -> None:
    """List the holds in force: their objects, since when, by whom, why."""
    found = session.client.do(holds.GET_LEGAL_HOLDS, parse_repository(uri))
    session.show_all(found.holds, _holds_text, otherwise="no legal hold is in force")


@app.command("release")
def release(
    session: Session, uri: RepositoryArgument, name: NameArgument, why: WhyOption, yes: YesOption = False
) -> None:
    """End a hold. The next collection may delete the objects that it kept."""
    session.confirm(f"Release the hold {name} of {uri}?", yes=yes)
    session.client.do(holds.RELEASE_LEGAL_HOLD, parse_repository(uri), name, query={"why": why})
    session.done(f"{uri}: {name} is released", released=name)


@app.command("history")
def history(session: Session, uri: RepositoryArgument, limit: LimitOption = None) -> None:
    """List every change of the holds, newest first: when, by whom, why."""
    found = versions_of(session, holds.LIST_LEGAL_HOLD_HISTORY, parse_repository(uri), limit)
    session.show_all(found, _history_text, otherwise="there was never a legal hold")


def _holds_text(found: Iterable[gc_rules.Hold]) -> Iterator[str]:
    rows = [(hold.name, hold.text(), human_time(hold.at_ms // 1000), hold.by, hold.why) for hold in found]
    return table(("hold", "keeps", "since", "by", "why"), rows)


def _history_text(versions: Iterable[messages.HoldsVersion]) -> Iterator[str]:
    rows = [
        (str(one.version), human_time(one.changed_ms // 1000), one.changed_by, one.what, str(len(one.holds)))
        for one in versions
    ]
    return table(("version", "changed", "by", "what", "holds"), rows)
