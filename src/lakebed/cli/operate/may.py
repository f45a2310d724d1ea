"""`lakebed auth may`: may a user do this, and which statement decides? (docs/guide/server.md)"""

from __future__ import annotations

from typing import Annotated, Final

from lakebed.cli.kit.parameters import Argument
from lakebed.cli.kit.session import Session, command
from lakebed.cli.kit.uris import is_uri, parse_object, parse_prefix, parse_tag, repository_of
from lakebed.wire import Decision

_REPOSITORY: Final = "arn:lakefs:fs:::repository/"


@command
def may(
    session: Session,
    user: Annotated[str, Argument(metavar="USER", help="A user's id.")],
    action: Annotated[str, Argument(metavar="ACTION", help="Such as fs:DeleteObject.")],
    resource: Annotated[
        str, Argument(metavar="[RESOURCE]", help="A lakefs:// URI, an arn:lakefs:…, or * for no single thing.")
    ] = "*",
) -> None:
    """Show if a user may do an action on a resource, and the statement that decides it."""
    arn = resource_of(action, resource) if is_uri(resource) else resource
    decision = session.client.users.decide(user, action, arn)
    facts = [("Allowed", "yes" if decision.allowed else "no"), ("Because", _reason(decision)), ("Resource", arn)]
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
    return f"statement {decision.number} of policy {decision.policy}{through} {verb} {actions} on {statement.resource}"
