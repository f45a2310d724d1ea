"""`lakebed auth may`: may a user do this, and which statement decides? (docs/guide/server.md)"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from lakebed.cli.kit.parameters import Argument, Option
from lakebed.cli.kit.session import Session
from lakebed.cli.kit.uris import is_uri, parse_object, parse_prefix, parse_tag, ref_of, repository_of
from lakebed.wire import Decision

_OPTIONS: Final = {
    "branch": "--branch",
    "tag": "--tag",
    "ref": "--ref",
    "SourceIp": "--address",
    "CurrentTime": "--time",
}
_REPOSITORY: Final = "arn:lakefs:fs:::repository/"


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
    arn = resource_of(action, resource) if is_uri(resource) else resource
    if is_uri(resource) and not (branch or tag or ref):
        # A name alone does not tell, and most refs are branches.
        branch, tag = ("", parse_tag(resource).ref) if action.endswith("Tag") else (ref_of(resource), "")
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
