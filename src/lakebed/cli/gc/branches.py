"""`lakebed lifecycle branches`: which branches go by the policy, and make them go. They can come back for a while.

A plan is the server's answer and leaves nothing behind. `apply` takes it from a file, or asks for a new one.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import click
import msgspec
from msgspec.structs import replace

from lakebed import gc
from lakebed.base import count_of
from lakebed.cli.kit.arguments import PrefixOption, RepositoryArgument, YesOption
from lakebed.cli.kit.failures import FAILED, Misuse
from lakebed.cli.kit.output import hanging, human_time, json_record, prose, table
from lakebed.cli.kit.parameters import Argument, Option
from lakebed.cli.kit.session import Session
from lakebed.cli.kit.tree import noun
from lakebed.cli.kit.uris import SCHEME, parse_repository

from .options import messages, policy_rules

app = noun("Show and delete the branches that go by the lifecycle policy. They can come back for a while.")


@app.command("plan")
def plan(
    session: Session,
    uri: RepositoryArgument,
    prefix: PrefixOption = "",
    every: Annotated[bool, Option("--all", help="Also those that stay, and why.")] = False,
) -> None:
    """Show which branches go by the policy now, and why. Deletes nothing."""
    found = gc.plan_branches(session.client, parse_repository(uri), prefix=prefix)
    going = tuple(one for one in found.branches if one.goes)
    if session.is_json:
        session.say(json_record(found if every else replace(found, branches=going)))
    else:
        session.show(found, partial(_plan_text, every=every))
    _note_none(session, found, prefix)
    if going:
        wanted = f" --prefix {shlex.quote(prefix)}" if prefix else ""
        session.note(f"to delete them: lakebed lifecycle branches apply {uri}{wanted}")


@app.command("apply")
def apply(
    session: Session,
    uri: RepositoryArgument,
    file: Annotated[
        Path | None, Argument(metavar="PLAN", help="What `plan -o json` showed. Without it: a new plan.")
    ] = None,
    prefix: PrefixOption = "",
    yes: YesOption = False,
) -> None:
    """Delete the branches that a plan names, as far as they still may go. `branch undelete` brings one back."""
    if file is not None and prefix:
        raise Misuse("give a plan or --prefix, not both")
    repository = parse_repository(uri)
    found = gc.plan_branches(session.client, repository, prefix=prefix) if file is None else _read(file, repository)
    _note_none(session, found, prefix)
    going = [one for one in found.branches if one.goes]
    if going:
        if not (session.is_json or yes):
            for line in _going_text(going):
                session.note(line)
        session.confirm(f"Delete {count_of(len(going), 'branch', 'branches')} of {uri}{_lost(going)}?", yes=yes)
    swept = gc.sweep_branches(session.client, repository, found)
    session.show(swept, swept_text)
    # A plan may be applied again, also after its answer was lost: branches that are gone are no failure.
    if not all(one.is_deleted or one.why == messages.BRANCH_GONE for one in swept.branches):
        raise click.exceptions.Exit(FAILED)


def _note_none(session: Session, found: messages.BranchesPlan, prefix: str) -> None:
    if prefix and not found.branches:
        session.note(f"no branch begins with {prefix}")


def _lost(going: Sequence[messages.PlannedBranch]) -> str:
    """Say how many branches take uncommitted changes with them: `branch undelete` does not bring those back."""
    count = sum(one.has_uncommitted for one in going)
    return f", {count:,} of them with uncommitted changes that cannot come back" if count else ""


def _read(file: Path, repository: str) -> messages.BranchesPlan:
    try:
        found = msgspec.json.decode(file.read_bytes(), type=messages.BranchesPlan)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Misuse(f"{file} is not a plan of branches: {error}") from error
    if found.repository != repository:
        raise Misuse(f"{file} is a plan of {SCHEME}{found.repository}, not of {SCHEME}{repository}")
    return found


# Texts


def _plan_text(found: messages.BranchesPlan, *, every: bool) -> Iterator[str]:
    going = [one for one in found.branches if one.goes]
    yield from _going_text(found.branches if every else going)
    kept = Counter(one.why for one in found.branches if not one.goes)
    whys = ", ".join(f"{count:,} {why}" for why, count in kept.most_common())
    stay = f"; {sum(kept.values()):,} stay ({whys})" if kept else ""
    yield from hanging("", f"{count_of(len(going), 'branch', 'branches')} to go{stay}", indent=0)


def _going_text(branches: Sequence[messages.PlannedBranch]) -> Iterator[str]:
    rows = [
        (
            one.branch,
            one.commit_id[:12],
            "goes" if one.goes else "stays",
            _why(one),
            one.rule,
            _date(one.active_ms),
            _due(one),
        )
        for one in branches
    ]
    return table(("branch", "commit", "", "why", "rule", "last used", "due"), rows)


def _why(one: messages.PlannedBranch) -> str:
    if one.why == policy_rules.BranchWhy.LASTING:
        return f"lasts until {_date(one.expires_ms)}"
    is_waiting = one.why == policy_rules.BranchWhy.ACTIVE
    return f"{one.why}, with uncommitted changes" if one.has_uncommitted and (one.goes or is_waiting) else one.why


def _due(one: messages.PlannedBranch) -> str:
    """Return the date that a branch goes by or waits for. Where something else keeps it, as uncommitted changes do, the
    date of its rule says nothing of when it goes, and `why` names the keeper.
    """
    is_by_date = one.goes or one.why in (policy_rules.BranchWhy.ACTIVE, policy_rules.BranchWhy.LASTING)
    # Where it also is to be merged, or drops such changes and their age is unknown, those are not all that keeps it.
    stays = "; uncommitted as it is, it stays then" if not one.goes and one.has_uncommitted and not one.goes_ms else ""
    return f"{_date(one.due_ms)}{stays}" if is_by_date else ""


def _date(at_ms: int | None) -> str:
    return human_time(at_ms // 1000) if at_ms else ""


def swept_text(found: messages.BranchesSwept) -> Iterator[str]:
    """Say for each branch if it was deleted or why it stays, and how many were deleted."""
    yield from table(("branch", "became"), [(one.branch, _became(one)) for one in found.branches])
    deleted = sum(one.is_deleted for one in found.branches)
    if deleted:
        yield from prose(
            f"{count_of(deleted, 'branch', 'branches')} deleted; `lakebed branch undelete` brings one back"
        )
    else:
        yield "no branch was deleted" if found.branches else "no branch goes: nothing was deleted"


def _became(one: messages.SweptBranch) -> str:
    if one.is_deleted:
        return "deleted"
    return one.why if messages.is_open(one) or one.why == messages.BRANCH_GONE else f"stays: {one.why}"
