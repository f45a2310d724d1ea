"""`lakebed auth groups`: users who may do the same."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated

import msgspec
import typer

from lakebed.cli.arguments import LimitOption, PrefixOption, YesOption
from lakebed.cli.failures import being_new
from lakebed.cli.output import fields, printable, table
from lakebed.cli.session import Session, command
from lakebed.cli.tree import noun
from lakebed.wire import Group

from .users import PolicyArgument, UserArgument

app = noun("Create, list, show and delete groups, their members and their policies.")

GroupArgument = Annotated[str, typer.Argument(metavar="GROUP", help="A group's id.")]
LevelArgument = Annotated[str, typer.Argument(metavar="LEVEL", help="Read, Write, Super or Admin.")]


class ShownGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A group with who is in it and what it has."""

    id: str
    description: str
    creation_date: int
    members: list[str]
    policies: list[str]


@app.command("create")
@command
def create(
    session: Session,
    group: GroupArgument,
    description: Annotated[str, typer.Option("--description", help="What it is for.")] = "",
) -> None:
    """Create a group."""
    with being_new(f"group {group}"):
        created = session.client.groups.create(group, description=description)
    session.show(created, lambda _: f"created group {group}")


@app.command("list")
@command
def list_groups(session: Session, prefix: PrefixOption = "", limit: LimitOption = None) -> None:
    """List groups, those that come with every server too."""
    session.show_all(session.client.groups.list(prefix=prefix, limit=limit), _group_table)


@app.command("show")
@command
def show(session: Session, group: GroupArgument) -> None:
    """Show who is in a group, and its policies."""
    groups = session.client.groups
    found = groups.get(group)
    shown = ShownGroup(
        id=found.id,
        description=found.description,
        creation_date=found.creation_date,
        members=[user.id for user in groups.members(group)],
        policies=[policy.id for policy in groups.policies(group)],
    )
    session.show(shown, _describe)


@app.command("delete")
@command
def delete(session: Session, group: GroupArgument, yes: YesOption = False) -> None:
    """Delete a group. Its members stay, and may no more what they could only do through it."""
    session.confirm(f"Delete the group {group}?", yes=yes)
    session.client.groups.delete(group)
    session.done(f"deleted group {group}", deleted=group)


@app.command("add")
@command
def add(session: Session, group: GroupArgument, user: UserArgument) -> None:
    """Put a user into a group."""
    session.client.groups.add(group, user)
    session.done(f"user {user} is in group {group}", group=group, added=user)


@app.command("remove")
@command
def remove(session: Session, group: GroupArgument, user: UserArgument) -> None:
    """Take a user out of a group."""
    session.client.groups.remove(group, user)
    session.done(f"user {user} is no more in group {group}", group=group, removed=user)


@app.command("attach")
@command
def attach(session: Session, group: GroupArgument, policy: PolicyArgument) -> None:
    """Attach a policy to a group."""
    session.client.groups.attach(group, policy)
    session.done(f"group {group} has policy {policy}", group=group, attached=policy)


@app.command("detach")
@command
def detach(session: Session, group: GroupArgument, policy: PolicyArgument) -> None:
    """Detach a policy from a group."""
    session.client.groups.detach(group, policy)
    session.done(f"group {group} has policy {policy} no more", group=group, detached=policy)


@app.command("level")
@command
def level(session: Session, group: GroupArgument, level: LevelArgument) -> None:
    """Give a group the policies of an access level, in place of those of its former one."""
    session.client.groups.set_level(group, level)
    session.done(f"group {group} has access level {level}", group=group, level=level)


def _group_table(groups: Iterable[Group]) -> Iterable[str]:
    rows = [(printable(one.id), printable(one.description)) for one in groups]
    return table(("group", "description"), rows) if rows else ()


def _describe(group: ShownGroup) -> Iterator[str]:
    return fields(
        [
            ("Group", printable(group.id)),
            ("Description", printable(group.description)),
            ("Members", printable(", ".join(group.members)) or "none"),
            ("Policies", ", ".join(group.policies) or "none"),
        ]
    )
