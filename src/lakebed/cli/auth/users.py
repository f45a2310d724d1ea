"""`lakebed auth users`: who can log in, with which keys, and what they may do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated

import msgspec
import typer

from lakebed.cli.arguments import LimitOption, PrefixOption, YesOption
from lakebed.cli.failures import being_new
from lakebed.cli.output import fields, human_time, printable, table
from lakebed.cli.session import Session, command
from lakebed.cli.tree import noun
from lakebed.wire import Credentials, CredentialsWithSecret, User

app = noun("Create, list, show and delete users, their keys and their policies.")

UserArgument = Annotated[str, typer.Argument(metavar="USER", help="A user's id.")]
PolicyArgument = Annotated[str, typer.Argument(metavar="POLICY", help="A policy's id.")]
KeyArgument = Annotated[str, typer.Argument(metavar="KEY", help="An access key id.")]


class ShownUser(msgspec.Struct, frozen=True, kw_only=True):
    """A user with what they have. `effective` are all policies that hold, those of groups too."""

    id: str
    creation_date: int
    groups: list[str]
    policies: list[str]
    effective: list[str]


@app.command("create")
@command
def create(
    session: Session,
    user: UserArgument,
    groups: Annotated[
        list[str] | None, typer.Option("--group", "-g", metavar="GROUP", help="To be in; may be repeated.")
    ] = None,
    key: Annotated[bool, typer.Option("--key/--no-key", help="Make a key pair too, and show it.")] = True,
) -> None:
    """Create a user. Without a group they may do nothing. The secret key is told this once."""
    for group in groups or []:
        session.client.groups.get(group)  # A mistake in a name is told before anything is made.
    with being_new(f"user {user}"):
        created = session.client.users.create(user)
    for group in groups or []:
        session.client.groups.add(group, user)
    if key:
        _show_key(session, session.client.users.create_key(user))
    else:
        session.show(created, lambda _: f"created user {user}")


@app.command("list")
@command
def list_users(session: Session, prefix: PrefixOption = "", limit: LimitOption = None) -> None:
    """List users."""
    session.show_all(session.client.users.list(prefix=prefix, limit=limit), _user_table)


@app.command("show")
@command
def show(session: Session, user: UserArgument) -> None:
    """Show a user's groups and policies."""
    users = session.client.users
    found = users.get(user)
    shown = ShownUser(
        id=found.id,
        creation_date=found.creation_date,
        groups=[group.id for group in users.groups(user)],
        policies=[policy.id for policy in users.policies(user)],
        effective=[policy.id for policy in users.policies(user, is_effective=True)],
    )
    session.show(shown, _describe)


@app.command("delete")
@command
def delete(session: Session, user: UserArgument, yes: YesOption = False) -> None:
    """Delete a user with their keys."""
    session.confirm(f"Delete the user {user}?", yes=yes)
    session.client.users.delete(user)
    session.done(f"deleted user {user}", deleted=user)


@app.command("attach")
@command
def attach(session: Session, user: UserArgument, policy: PolicyArgument) -> None:
    """Attach a policy to a user."""
    session.client.users.attach(user, policy)
    session.done(f"user {user} has policy {policy}", user=user, attached=policy)


@app.command("detach")
@command
def detach(session: Session, user: UserArgument, policy: PolicyArgument) -> None:
    """Detach a policy from a user."""
    session.client.users.detach(user, policy)
    session.done(f"user {user} has policy {policy} no more", user=user, detached=policy)


@app.command("keys")
@command
def keys(session: Session, user: UserArgument) -> None:
    """List a user's access keys."""
    session.show_all(session.client.users.keys(user), _key_table)


@app.command("create-key")
@command
def create_key(session: Session, user: UserArgument) -> None:
    """Make a key pair for a user. The secret key is told this once."""
    _show_key(session, session.client.users.create_key(user))


@app.command("delete-key")
@command
def delete_key(session: Session, user: UserArgument, key: KeyArgument, yes: YesOption = False) -> None:
    """Delete an access key: whoever uses it is refused within seconds."""
    session.confirm(f"Delete the access key {key} of {user}?", yes=yes)
    session.client.users.delete_key(user, key)
    session.done(f"deleted access key {key}", deleted=key)


def _user_table(users: Iterable[User]) -> Iterable[str]:
    rows = [(printable(one.id), human_time(one.creation_date)) for one in users]
    return table(("user", "created"), rows) if rows else ()


def _describe(user: ShownUser) -> Iterator[str]:
    return fields(
        [
            ("User", printable(user.id)),
            ("Created", human_time(user.creation_date)),
            ("Groups", ", ".join(user.groups) or "none"),
            ("Policies", ", ".join(user.policies) or "none"),
            ("Effective", ", ".join(user.effective) or "none"),
        ]
    )


def _key_table(found: Iterable[Credentials]) -> Iterable[str]:
    rows = [(one.access_key_id, human_time(one.creation_date)) for one in found]
    return table(("access key id", "created"), rows) if rows else ()


def _show_key(session: Session, made: CredentialsWithSecret) -> None:
    session.show(
        made, lambda _: fields([("Access key id", made.access_key_id), ("Secret access key", made.secret_access_key)])
    )
