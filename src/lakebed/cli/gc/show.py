"""What `lakebed gc show` tells of a plan beyond its sums: objects one by one, and the commits that expire."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Final

import typer

from lakebed.base import count_of, human_size
from lakebed.cli.failures import Misuse
from lakebed.cli.output import human_time, printable, table
from lakebed.cli.session import Session

if TYPE_CHECKING:
    from lakebed.gc import Collector
    from lakebed.gc.protocol import DoomedObject, ExpiringCommit, Plan

SHOWN: Final = 100
COMMITS_TOLD: Final = 10
"""Of the commits that expire, beside a plan's sums."""

ObjectsOption = Annotated[bool, typer.Option("--objects", help="Each object that goes, in place of the sums.")]
CommitsOption = Annotated[bool, typer.Option("--commits", help="Each commit that expires, in place of the sums.")]
PrefixOption = Annotated[
    str, typer.Option("--path", metavar="PREFIX", help="With --objects: whose path, or address, begins so.")
]
LimitOption = Annotated[
    int | None,
    typer.Option("--limit", "-n", min=1, help="At most so many. Default: 100; all objects where the output is JSON."),
]


def check_one_by_one(*, objects: bool, commits: bool, path: str, limit: int | None, has_html: bool) -> None:
    """
    Raises:
        Misuse: options that do not go together.
    """
    if objects + commits + has_html > 1:
        raise Misuse("--objects, --commits and --html do not go together")
    if path and not objects:
        raise Misuse("--path is for --objects")
    if limit is not None and not (objects or commits):
        raise Misuse("--limit is for --objects or --commits")


def show_objects(session: Session, collector: Collector, plan: Plan, *, path: str, limit: int | None) -> None:
    """As JSON each object is written as it is read."""
    found = collector.objects(plan.run_id, prefix=path)
    if limit is None and session.is_json:
        session.show_all(found, objects_text)
        return
    shown = list(islice(found, limit or SHOWN))
    session.show_all(shown, objects_text)
    if next(found, None) is not None:
        whole = "" if path else f" of {plan.totals.all.objects:,}"
        session.note(f"these are {len(shown):,}{whole}; --limit says how many are shown")


def show_commits(session: Session, collector: Collector, plan: Plan, *, limit: int | None) -> None:
    shown = collector.expiring(plan.run_id, limit=limit or SHOWN)
    session.show_all(shown, commits_text)
    if len(shown) < plan.commit_counts.expired:
        session.note(
            f"these are the newest {len(shown):,} of {plan.commit_counts.expired:,}; --limit says how many are shown"
        )


def objects_text(objects: Iterable[DoomedObject]) -> Iterator[str]:
    """A row an object: by its path and its address, or by its address where it is in no commit."""
    found = list(objects)
    if not found:
        yield "no object"
        return
    has_paths = any(one.path for one in found)
    rows = [
        (
            *([printable(one.path) or "-"] if has_paths else []),
            printable(one.address),
            human_size(one.size_bytes),
            human_time(one.last_seen_ms // 1000),
            printable(one.reason),
            printable(one.rule) or "-",
        )
        for one in found
    ]
    yield from table((*(["path"] if has_paths else []), "address", "size", "last seen", "reason", "rule"), rows)


def commits_text(commits: Iterable[ExpiringCommit]) -> Iterator[str]:
    rows = [
        (
            one.id[:16],
            human_time(one.created_ms // 1000),
            printable(one.branch) or "(none)",
            printable(one.rule),
            printable(one.message),
        )
        for one in commits
    ]
    yield from table(("commit", "made", "branch", "rule", "message"), rows) if rows else ["no commit"]


def expiring_text(plan: Plan, commits: Sequence[ExpiringCommit]) -> Iterator[str]:
    """The newest of the commits that expire, below a plan's sums."""
    if not commits:
        return
    yield ""
    yield "expiring commits, the newest first:"
    yield from commits_text(commits)
    if len(commits) < plan.commit_counts.expired:
        yield f"… and {count_of(plan.commit_counts.expired - len(commits), 'commit')} more: --commits"
