"""`lakebed lifecycle branches`: which branches go by the policy, and make them go. They can come back for a while.

A plan is the server's answer and leaves nothing behind. `apply` takes it from a file, or asks for a new one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from lakebed.base import count_of
from lakebed.cli.arguments import PrefixOption, RepositoryArgument, YesOption
from lakebed.cli.failures import FAILED, Misuse, describe
from lakebed.cli.output import human_time, table
from lakebed.cli.session import Session, command
from lakebed.cli.tree import noun
from lakebed.cli.uris import parse_repository

if TYPE_CHECKING:
    # At run time only in the commands: it loads Arrow, for which `--help` need not wait.
    from lakebed.gc.protocol import BranchesPlan, BranchesSwept, PlannedBranch, SweptBranch

PAGE = 1_000
app = noun("Which branches go by the lifecycle policy, and delete them. They can come back for a while.")


@app.command("plan")
@command
def plan(
    session: Session,
    uri: RepositoryArgument,
    prefix: PrefixOption = "",
    every: Annotated[bool, typer.Option("--all", help="Also those that stay, and why.")] = False,
) -> None:
    """Show which branches go by the policy now, and why. Deletes nothing."""
    session.show(_plan(session, parse_repository(uri), prefix), partial(_plan_text, every=every))


@app.command("apply")
@command
def apply(
    session: Session,
    uri: RepositoryArgument,
    file: Annotated[
        Path | None, typer.Argument(metavar="PLAN", help="What `plan -o json` showed. Without it: a new plan.")
    ] = None,
    prefix: PrefixOption = "",
    yes: YesOption = False,
) -> None:
    """Delete the branches that a plan names, as far as they still may go. `branch undelete` brings one back."""
    from lakebed.gc.protocol import SWEEP_MAX, BranchesSwept, BranchToGo, SweepBranches
    from lakebed.operations import lifecycle

    if file is not None and prefix:
        raise Misuse("give a plan or --prefix, not both")
    repository = parse_repository(uri)
    found = _plan(session, repository, prefix) if file is None else _read(file)
    going = [one for one in found.branches if one.goes]
    swept: list[SweptBranch] = []
    if going:
        if not (session.is_json or yes):
            for line in _going_text(going):
                session.note(line)
        session.confirm(f"Delete {count_of(len(going), 'branch', 'branches')} of {uri}?", yes=yes)
    for at in range(0, len(going), SWEEP_MAX):
        wanted = tuple(BranchToGo(branch=one.branch, state=one.state) for one in going[at : at + SWEEP_MAX])
        body = SweepBranches(policy_version=found.policy_version, branches=wanted)
        swept += session.client.do(lifecycle.SWEEP_BRANCHES, repository, body=body).branches
    session.show(BranchesSwept(branches=tuple(swept)), _swept_text)
    if not all(one.is_deleted for one in swept):
        raise typer.Exit(FAILED)


def _plan(session: Session, repository: str, prefix: str) -> BranchesPlan:
    """Read all pages of a plan.

    Raises:
        Misuse: the policy changed meanwhile.
    """
    from lakebed.operations import lifecycle

    pages: list[BranchesPlan] = []
    while not pages or pages[-1].next_after:
        after = pages[-1].next_after if pages else None
        query = {"prefix": prefix or None, "after": after, "amount": PAGE}
        pages.append(session.client.do(lifecycle.PLAN_BRANCH_SWEEP, repository, query=query))
        if pages[-1].policy_version != pages[0].policy_version:
            raise Misuse("the policy changed while its plan was read; plan again")
    return msgspec.structs.replace(pages[-1], branches=tuple(one for page in pages for one in page.branches))


def _read(file: Path) -> BranchesPlan:
    """
    Raises:
        Misuse: no file that can be read, or no plan.
    """
    from lakebed.gc.protocol import BranchesPlan

    try:
        return msgspec.json.decode(file.read_bytes(), type=BranchesPlan)
    except OSError as error:
        raise Misuse(describe(error)) from error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Misuse(f"{file} is no plan of branches: {error}") from error


# Texts


def _plan_text(found: BranchesPlan, *, every: bool) -> Iterator[str]:
    going = [one for one in found.branches if one.goes]
    yield from _going_text(found.branches if every else going)
    kept = Counter(one.why for one in found.branches if not one.goes)
    whys = ", ".join(f"{count:,} {why}" for why, count in kept.most_common())
    stay = f"; {sum(kept.values()):,} stay ({whys})" if kept else ""
    yield f"{count_of(len(going), 'branch', 'branches')} to go{stay}"


def _going_text(branches: Sequence[PlannedBranch]) -> Iterator[str]:
    rows = [
        (
            one.branch,
            one.commit_id[:12],
            "goes" if one.goes else "stays",
            one.why,
            one.rule,
            _date(one.active_ms),
            _date(one.due_ms),
        )
        for one in branches
    ]
    return table(("branch", "commit", "", "why", "rule", "last used", "due"), rows)


def _date(at_ms: int | None) -> str:
    return human_time(at_ms // 1000) if at_ms else ""


def _swept_text(found: BranchesSwept) -> Iterator[str]:
    rows = [(one.branch, "deleted" if one.is_deleted else f"stays: {one.why}") for one in found.branches]
    yield from table(("branch", "became"), rows)
    deleted = sum(one.is_deleted for one in found.branches)
    yield f"{count_of(deleted, 'branch', 'branches')} deleted; `lakebed branch undelete` brings one back"
