"""`lakebed auth policies`: what is allowed and what is denied, to be attached to users and groups.

A file holds the statements as JSON: a list of them, or a whole policy as `show -o json` prints it.

    [{"effect": "allow", "action": ["fs:Read*", "fs:List*"], "resource": "arn:lakefs:fs:::repository/lake*"}]
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from lakebed.cli.arguments import LimitOption, PrefixOption, YesOption
from lakebed.cli.failures import Misuse, being_new
from lakebed.cli.output import printable, table
from lakebed.cli.session import Session, command
from lakebed.cli.tree import noun
from lakebed.wire import Policy, Statement

from .users import PolicyArgument

app = noun("Create, list, show, change and delete policies.")

FileArgument = Annotated[Path, typer.Argument(metavar="FILE", help="Statements as JSON; - is standard input.")]


class _Statements(msgspec.Struct, frozen=True, kw_only=True):
    statement: list[Statement]


@app.command("create")
@command
def create(session: Session, policy: PolicyArgument, file: FileArgument) -> None:
    """Create a policy from a file of statements."""
    with being_new(f"policy {policy}"):
        created = session.client.policies.create(policy, _read(file))
    session.show(created, lambda _: f"created policy {policy}")


@app.command("list")
@command
def list_policies(session: Session, prefix: PrefixOption = "", limit: LimitOption = None) -> None:
    """List policies, those that come with every server too."""
    session.show_all(session.client.policies.list(prefix=prefix, limit=limit), _policy_table)


@app.command("show")
@command
def show(session: Session, policy: PolicyArgument) -> None:
    """Show a policy's statements. With -o json as `create` and `update` read them."""
    session.show(session.client.policies.get(policy), _statement_table)


@app.command("update")
@command
def update(session: Session, policy: PolicyArgument, file: FileArgument) -> None:
    """Replace a policy's statements by those of a file: for whoever has it, within seconds."""
    session.show(session.client.policies.update(policy, _read(file)), lambda _: f"updated policy {policy}")


@app.command("delete")
@command
def delete(session: Session, policy: PolicyArgument, yes: YesOption = False) -> None:
    """Delete a policy, and take it from whoever has it. A denial goes with it."""
    session.confirm(f"Delete the policy {policy}?", yes=yes)
    session.client.policies.delete(policy)
    session.done(f"deleted policy {policy}", deleted=policy)


def _read(file: Path) -> list[Statement]:
    """
    Raises:
        Misuse: the file holds no statements.
    """
    data = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    try:
        if data.lstrip().startswith(b"["):
            return msgspec.json.decode(data, type=list[Statement])
        return msgspec.json.decode(data, type=_Statements).statement
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Misuse(f"{file} holds no statements: {error}") from error


def _policy_table(policies: Iterable[Policy]) -> Iterable[str]:
    rows = [(printable(one.id), f"{len(one.statement)}") for one in policies]
    return table(("policy", "statements"), rows) if rows else ()


def _statement_table(policy: Policy) -> Iterator[str]:
    rows = [(one.effect, printable(" ".join(one.action)), printable(one.resource)) for one in policy.statement]
    return table(("effect", "actions", "resource"), rows)
