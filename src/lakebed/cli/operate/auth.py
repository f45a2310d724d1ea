"""`lakebed auth`: users, groups and policies, and which user or group has which policy (docs/guide/users.md).

A file of a policy holds its statements as JSON: a list of them, or a whole policy as `show -o json` prints it.

    [{"effect": "allow", "action": ["fs:Read*", "fs:List*"], "resource": "arn:lakefs:fs:::repository/lake*"}]
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec

from lakebed.base import NotFound, is_commit_id
from lakebed.cli.kit.arguments import ExportOption, LimitOption, PrefixOption, YesOption, no_such
from lakebed.cli.kit.failures import Misuse, being_new
from lakebed.cli.kit.output import columns_of, human_time
from lakebed.cli.kit.parameters import Argument, Option
from lakebed.cli.kit.session import Session
from lakebed.cli.kit.tree import noun
from lakebed.cli.kit.uris import (
    OBJECT_FORM,
    BadUri,
    is_uri,
    parse_object,
    parse_prefix,
    parse_tag,
    ref_of,
    repository_of,
)
from lakebed.wire import Decision, Statement

from .serve import recover

app = noun("Say who may do what: users, groups and policies.")
users = noun("Create, list, show and delete users, their keys and their policies.")
groups = noun("Create, list, show and delete groups, their members and their policies.")
policies = noun("Create, list, show, change and delete policies.")
principals = noun("Let identities of other providers stand for users.")
app.add_command(users, "users")
app.add_command(groups, "groups")
app.add_command(policies, "policies")
app.add_command(principals, "principals")
app.command()(recover)

UserArgument = Annotated[str, Argument(metavar="USER", help="A user's id.")]
GroupArgument = Annotated[str, Argument(metavar="GROUP", help="A group's id.")]
PolicyArgument = Annotated[str, Argument(metavar="POLICY", help="A policy's id.")]
KeyArgument = Annotated[str, Argument(metavar="KEY", help="An access key id.")]
PrincipalArgument = Annotated[
    str,
    Argument(metavar="PRINCIPAL", help="ISSUER#SUBJECT of OpenID Connect, or aws:sts::NUMBER:assumed-role/ROLE."),
]
LevelArgument = Annotated[str, Argument(metavar="LEVEL", help="Read, Write, Super or Admin.")]
FileArgument = Annotated[Path, Argument(metavar="FILE", help="Statements as JSON; - is standard input.")]


class ShownUser(msgspec.Struct, frozen=True, kw_only=True):
    """A user's groups and policies. `effective` are all policies in force, those of groups too."""

    id: str
    creation_date: int
    groups: list[str]
    policies: list[str]
    effective: list[str]


class ShownGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A group's members and policies."""

    id: str
    description: str
    creation_date: int
    members: list[str]
    policies: list[str]


class _Statements(msgspec.Struct, frozen=True, kw_only=True):
    statement: list[Statement]


@users.command("create")
def create_user(
    session: Session,
    user: UserArgument,
    member_of: Annotated[
        list[str] | None, Option("--group", "-g", metavar="GROUP", help="Add to this group; may be repeated.")
    ] = None,
    key: Annotated[bool, Option("--key/--no-key", help="Make a key pair too, and show it.")] = True,
    export: ExportOption = False,
) -> None:
    """Create a user. Without a group they may do nothing. The secret key is shown only now."""
    for group in member_of or []:
        session.client.groups.get(group)  # A mistake in a name is found before anything is made.
    with being_new(f"user {user}"):
        created = session.client.users.create(user)
    for group in member_of or []:
        session.client.groups.add(group, user)
    if key:
        session.show_key(session.client.users.create_key(user), [("User", user)], export=export)
    else:
        session.done(f"created user {user}", created)


@users.command("list")
def list_users(session: Session, prefix: PrefixOption = "", limit: LimitOption = None) -> None:
    """List users."""
    listed = session.client.users.list(prefix=prefix, limit=limit)
    columns: dict[str, Callable[[Any], object]] = {
        "user": lambda user: user.id,
        "created": lambda user: human_time(user.creation_date),
    }
    session.show_table(listed, columns, otherwise=no_such("user", prefix))


@users.command("show")
def show_user(session: Session, user: UserArgument) -> None:
    """Show a user's groups and policies."""
    of = session.client.users
    record = of.get(user)
    shown = ShownUser(
        id=record.id,
        creation_date=record.creation_date,
        groups=[group.id for group in of.groups(user)],
        policies=[policy.id for policy in of.policies(user)],
        effective=[policy.id for policy in of.policies(user, is_effective=True)],
    )
    session.show_fields(
        shown,
        [
            ("User", shown.id),
            ("Created", human_time(shown.creation_date)),
            ("Groups", _listed(shown.groups)),
            ("Policies", _listed(shown.policies)),
            ("Effective", _listed(shown.effective)),
        ],
    )


@users.command("delete")
def delete_user(session: Session, user: UserArgument, yes: YesOption = False) -> None:
    """Delete a user with their keys."""
    _delete(session, "user", user, session.client.users.get, session.client.users.delete, yes=yes)


@users.command("attach")
def attach_to_user(session: Session, user: UserArgument, policy: PolicyArgument) -> None:
    """Attach a policy to a user."""
    with _naming(policy=policy, user=user):
        session.client.users.attach(user, policy)
    session.done(f"attached policy {policy} to user {user}", user=user, attached=policy)


@users.command("detach")
def detach_from_user(session: Session, user: UserArgument, policy: PolicyArgument) -> None:
    """Detach a policy from a user."""
    with _naming(policy=policy, user=user):
        session.client.users.detach(user, policy)
    session.done(f"detached policy {policy} from user {user}", user=user, detached=policy)


@contextlib.contextmanager
def _naming(**things: str) -> Iterator[None]:
    """Name the one of two things that is missing, where the server says only its kind."""
    try:
        yield
    except NotFound as error:
        kind = next((kind for kind in things if f"{kind} not found" in str(error)), "")
        if not kind:
            raise
        lists = "lakebed auth policies list" if kind == "policy" else f"lakebed auth {kind}s list"
        raise NotFound(f"there is no {kind} {things[kind]}: `{lists}` shows those that there are") from error


@users.command("keys")
def keys(session: Session, user: UserArgument) -> None:
    """List a user's access keys."""
    columns: dict[str, Callable[[Any], object]] = {
        "access key id": lambda pair: pair.access_key_id,
        "created": lambda pair: human_time(pair.creation_date),
    }
    session.show_table(session.client.users.keys(user), columns, otherwise=f"{user} has no access key")


@users.command("create-key")
def create_key(session: Session, user: UserArgument, export: ExportOption = False) -> None:
    """Make a key pair for a user. The secret key is shown only now."""
    session.show_key(session.client.users.create_key(user), [("User", user)], export=export)


@users.command("delete-key")
def delete_key(session: Session, user: UserArgument, key: KeyArgument, yes: YesOption = False) -> None:
    """Delete an access key: requests signed with it are refused within seconds."""
    exists = partial(session.client.users.get, user)
    session.confirm(f"Delete the access key {key} of {user}?", yes=yes, exists=exists)
    session.client.users.delete_key(user, key)
    session.done(f"deleted access key {key}", deleted=key)


@groups.command("create")
def create_group(
    session: Session,
    group: GroupArgument,
    description: Annotated[str, Option("--description", help="The group's purpose.")] = "",
) -> None:
    """Create a group."""
    with being_new(f"group {group}"):
        created = session.client.groups.create(group, description=description)
    session.done(f"created group {group}", created)


@groups.command("list")
def list_groups(session: Session, prefix: PrefixOption = "", limit: LimitOption = None) -> None:
    """List groups, also those that come with every server."""
    listed = session.client.groups.list(prefix=prefix, limit=limit)
    columns: dict[str, Callable[[Any], object]] = {
        "group": lambda group: group.id,
        "description": lambda group: group.description,
    }
    session.show_table(listed, columns, otherwise=no_such("group", prefix))


@groups.command("show")
def show_group(session: Session, group: GroupArgument) -> None:
    """Show the members of a group, and its policies."""
    of = session.client.groups
    record = of.get(group)
    shown = ShownGroup(
        id=record.id,
        description=record.description,
        creation_date=record.creation_date,
        members=[user.id for user in of.members(group)],
        policies=[policy.id for policy in of.policies(group)],
    )
    session.show_fields(
        shown,
        [
            ("Group", shown.id),
            ("Description", shown.description),
            ("Members", _listed(shown.members)),
            ("Policies", _listed(shown.policies)),
        ],
    )


@groups.command("delete")
def delete_group(session: Session, group: GroupArgument, yes: YesOption = False) -> None:
    """Delete a group. Its members stay, and lose rights that only the group gave."""
    _delete(session, "group", group, session.client.groups.get, session.client.groups.delete, yes=yes)


@groups.command("add")
def add(session: Session, group: GroupArgument, user: UserArgument) -> None:
    """Add a user to a group."""
    with _naming(user=user, group=group):
        session.client.groups.add(group, user)
    session.done(f"added user {user} to group {group}", group=group, added=user)


@groups.command("remove")
def remove(session: Session, group: GroupArgument, user: UserArgument) -> None:
    """Remove a user from a group."""
    with _naming(user=user, group=group):
        session.client.groups.remove(group, user)
    session.done(f"removed user {user} from group {group}", group=group, removed=user)


@groups.command("attach")
def attach_to_group(session: Session, group: GroupArgument, policy: PolicyArgument) -> None:
    """Attach a policy to a group."""
    with _naming(policy=policy, group=group):
        session.client.groups.attach(group, policy)
    session.done(f"attached policy {policy} to group {group}", group=group, attached=policy)


@groups.command("detach")
def detach_from_group(session: Session, group: GroupArgument, policy: PolicyArgument) -> None:
    """Detach a policy from a group."""
    with _naming(policy=policy, group=group):
        session.client.groups.detach(group, policy)
    session.done(f"detached policy {policy} from group {group}", group=group, detached=policy)


@groups.command("level")
def level(session: Session, group: GroupArgument, level: LevelArgument) -> None:
    """Give a group the policies of an access level, in place of those of its former one."""
    session.client.groups.set_level(group, level)
    session.done(f"gave group {group} access level {level}", group=group, level=level)


@policies.command("create")
def create_policy(session: Session, policy: PolicyArgument, file: FileArgument) -> None:
    """Create a policy from a file of statements."""
    with being_new(f"policy {policy}"):
        created = session.client.policies.create(policy, _read(file))
    session.done(f"created policy {policy}", created)


@policies.command("list")
def list_policies(session: Session, prefix: PrefixOption = "", limit: LimitOption = None) -> None:
    """List policies, also those that come with every server."""
    listed = session.client.policies.list(prefix=prefix, limit=limit)
    columns: dict[str, Callable[[Any], object]] = {
        "policy": lambda policy: policy.id,
        "statements": lambda policy: len(policy.statement),
    }
    session.show_table(listed, columns, otherwise=no_such("policy", prefix))


@policies.command("show")
def show_policy(session: Session, policy: PolicyArgument) -> None:
    """Show a policy's statements. With -o json as `create` and `update` read them."""
    columns: dict[str, Callable[[Statement], object]] = {
        "effect": lambda statement: statement.effect,
        "actions": lambda statement: " ".join(statement.action),
        "resource": lambda statement: statement.resource,
        "condition": lambda statement: msgspec.json.encode(statement.condition).decode() if statement.condition else "",
    }
    session.show(session.client.policies.get(policy), lambda found: columns_of(found.statement, columns))


@policies.command("update")
def update_policy(session: Session, policy: PolicyArgument, file: FileArgument) -> None:
    """Replace a policy's statements by those of a file. It takes effect within seconds."""
    session.done(f"updated policy {policy}", session.client.policies.update(policy, _read(file)))


@policies.command("delete")
def delete_policy(session: Session, policy: PolicyArgument, yes: YesOption = False) -> None:
    """Delete a policy, and detach it everywhere. Its denials end, too."""
    _delete(session, "policy", policy, session.client.policies.get, session.client.policies.delete, yes=yes)


def _delete(
    session: Session,
    kind: str,
    name: str,
    get: Callable[[str], object],
    delete: Callable[[str], None],
    *,
    yes: bool,
) -> None:
    session.confirm(f"Delete the {kind} {name}?", yes=yes, exists=partial(get, name))
    delete(name)
    session.done(f"deleted {kind} {name}", deleted=name)


def _listed(names: list[str]) -> str:
    return ", ".join(names) or "none"


def _read(file: Path) -> list[Statement]:
    data = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    try:
        if data.lstrip().startswith(b"["):
            return msgspec.json.decode(data, type=list[Statement])
        return msgspec.json.decode(data, type=_Statements).statement
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Misuse(f"{file} holds no statements: {error}") from error


@principals.command("attach")
def attach_principal(session: Session, user: UserArgument, principal: PrincipalArgument) -> None:
    """Let an identity of another provider stand for a user, with the user's rights."""
    with being_new(f"principal {principal}"):
        session.client.users.attach_principal(user, principal)
    session.done(f"{principal} stands for {user}", user=user, principal=principal)


@principals.command("detach")
def detach_principal(
    session: Session, user: UserArgument, principal: PrincipalArgument, yes: YesOption = False
) -> None:
    """Detach an identity from its user, and end its logins."""
    exists = partial(session.client.users.principal, principal)
    session.confirm(f"Detach {principal} from {user}?", yes=yes, exists=exists)
    session.client.users.detach_principal(user, principal)
    session.done(f"{principal} stands for {user} no more", user=user, principal=principal)


@principals.command("list")
def list_principals(session: Session, user: UserArgument) -> None:
    """List the identities that stand for a user."""
    listed = session.client.users.principals(user)
    session.show_table(
        listed, {"principal": lambda principal: principal.id}, otherwise=f"no identity stands for {user}"
    )


@principals.command("show")
def show_principal(session: Session, principal: PrincipalArgument) -> None:
    """Show which user an identity stands for."""
    record = session.client.users.principal(principal)
    session.show_fields(record, [("Principal", record.id), ("User", record.user_id)])


# May a user do this, and which statement decides? (docs/guide/server.md)

_OPTIONS: Final = {
    "branch": "--branch",
    "tag": "--tag",
    "ref": "--ref",
    "SourceIp": "--address",
    "CurrentTime": "--time",
}
_REPOSITORY: Final = "arn:lakefs:fs:::repository/"


@app.command()
def may(
    session: Session,
    user: Annotated[str, Argument(metavar="USER", help="A user's id.")],
    action: Annotated[str, Argument(metavar="ACTION", help="Such as fs:DeleteObject.")],
    resource: Annotated[
        str, Argument(metavar="RESOURCE", help="A lakefs:// URI, an arn:lakefs:…, or * for no single thing.")
    ] = "*",
    *,
    branch: Annotated[str, Option("--branch", metavar="NAME", help="On this branch, not that of the URI.")] = "",
    tag: Annotated[str, Option("--tag", metavar="NAME", help="At this tag.")] = "",
    ref: Annotated[str, Option("--ref", metavar="ID", help="At this commit.")] = "",
    address: Annotated[str, Option("--address", metavar="IP", help="From this address.")] = "",
    time: Annotated[
        str, Option("--time", metavar="TIME", help="At this time instead of now: 2027-01-31T18:00:00Z.")
    ] = "",
) -> None:
    """Show if a user may do an action on a resource, and the statement that decides it."""
    if not (is_uri(resource) or resource == "*" or resource.startswith("arn:")):
        words = f"{resource!r} is not a resource: name {OBJECT_FORM}, an arn:lakefs:… or *"
        raise BadUri(words, uri=resource, form=OBJECT_FORM)
    arn = resource_of(action, resource) if is_uri(resource) else resource
    if is_uri(resource) and not (branch or tag or ref):
        # A name alone does not tell, and most refs are branches.
        branch, tag = ("", parse_tag(resource).ref) if action.endswith("Tag") else (ref_of(resource), "")
        if is_commit_id(branch):
            branch, ref = "", branch
    said = {"branch": branch, "tag": tag, "ref": ref, "address": address, "time": time}
    decision = session.client.users.decide(user, action, arn, **{name: text for name, text in said.items() if text})
    facts = [("Allowed", "yes" if decision.allowed else "no"), ("Because", _reason(decision)), ("Resource", arn)]
    if decision.unsaid:
        facts.append(("In doubt", ", ".join(f"{key} ({_OPTIONS[key]})" for key in decision.unsaid)))
    session.show_fields(decision, facts)


def resource_of(action: str, uri: str) -> str:
    """Return the resource that requests for this action ask about: an object, a branch, a tag or the repository.

    Raises:
        BadUri: the URI lacks a part that such a resource has.
    """
    if action.endswith("Object"):
        at = parse_object(uri)
        return f"{_REPOSITORY}{at.repository}/object/{at.path}"
    if action.endswith("Tag"):
        tag = parse_tag(uri)
        return f"{_REPOSITORY}{tag.repository}/tag/{tag.ref}"
    if action.endswith("Branch") or action in {"fs:CreateCommit", "fs:ImportCancel"}:
        branch = parse_prefix(uri)
        return f"{_REPOSITORY}{branch.repository}/branch/{branch.ref}"
    return _REPOSITORY + repository_of(uri)


def _reason(decision: Decision) -> str:
    statement = decision.statement
    if statement is None:
        return f"no statement allows it to {decision.user}"
    verb = "allows" if decision.allowed else "denies"
    through = f" (through group {decision.group})" if decision.group else ""
    actions = " ".join(statement.action)
    condition = f", if {msgspec.json.encode(statement.condition).decode()}" if statement.condition else ""
    where = f"statement {decision.number} of policy {decision.policy}{through}"
    return f"{where} {verb} {actions} on {statement.resource}{condition}"
