"""`lakebed actions`: runs of hooks, and their output."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated

import msgspec

from lakebed.cli.kit.arguments import LimitOption, RepositoryArgument
from lakebed.cli.kit.output import hanging, human_date, human_minute, printable, prose, table
from lakebed.cli.kit.parameters import Argument, Option
from lakebed.cli.kit.session import Session
from lakebed.cli.kit.tree import noun
from lakebed.cli.kit.uris import parse_repository
from lakebed.wire import ActionRun, HookRun

app = noun("Show runs of hooks and their output.")


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """Hold one run, its hooks, and the output of each, in their order."""

    run: ActionRun
    hooks: list[HookRun]
    outputs: list[str]


@app.command("list")
def list_runs(
    session: Session,
    uri: RepositoryArgument,
    branch: Annotated[str, Option("--branch", "-b", help="Only runs of this branch.")] = "",
    commit: Annotated[str, Option("--commit", help="Only runs of this commit, by its whole id.")] = "",
    limit: LimitOption = None,
) -> None:
    """List runs of hooks, the newest first. A run is listed once its last hook has ended."""
    columns: dict[str, Callable[[ActionRun], object]] = {
        "run": lambda run: run.run_id,
        "began": lambda run: human_date(run.start_time, human_minute),
        "event": lambda run: run.event_type,
        "on": lambda run: run.branch or run.commit_id[:12] or "-",
        "status": lambda run: run.status,
    }
    found = session.client.actions.list(parse_repository(uri), branch=branch, commit=commit, limit=limit)
    session.show_table(found, columns, otherwise="no run of hooks has ended")


@app.command("show")
def show(
    session: Session,
    uri: RepositoryArgument,
    run: Annotated[str, Argument(metavar="RUN", help="The id of a run.")],
) -> None:
    """Show a run of hooks, and the output of each."""
    name, actions = parse_repository(uri), session.client.actions
    found = actions.get(name, run)
    hooks = [*actions.hooks(name, run)]
    outputs = [actions.output(name, run, hook.hook_run_id) for hook in hooks]
    session.show(Shown(run=found, hooks=hooks, outputs=outputs), lambda shown: "\n".join(_text(shown)))


def _text(shown: Shown) -> Iterator[str]:
    run = shown.run
    where = printable(" at ".join(filter(None, (run.branch, run.commit_id[:12]))))
    yield from prose(f"{run.event_type} {where}: {run.status}, began {human_date(run.start_time)}")
    yield from table(
        ["hook", "action", "status", "began"],
        [[hook.hook_id, printable(hook.action), hook.status, human_date(hook.start_time)] for hook in shown.hooks],
    )
    for hook, output in zip(shown.hooks, shown.outputs, strict=True):
        if output:
            yield f"\n{hook.hook_id}:"
            for line in output.splitlines():
                yield from hanging("  ", printable(line), indent=2)
