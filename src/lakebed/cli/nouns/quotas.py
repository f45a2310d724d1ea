"""`lakebed quota`: limit the bytes of a repository, of a branch, or of a user."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from lakebed.base import human_size, parse_size
from lakebed.cli.kit.completion import complete_ref
from lakebed.cli.kit.failures import Misuse
from lakebed.cli.kit.output import human_minute
from lakebed.cli.kit.parameters import Argument, Option
from lakebed.cli.kit.session import Session
from lakebed.cli.kit.tree import noun
from lakebed.cli.kit.uris import parse_ref, parse_repository, ref_of
from lakebed.wire import Quota

app = noun(
    "Limit the bytes that are stored in a repository, or that a branch or a user may write.",
    "lakebed quota set lakefs://lake --limit 2TiB",
    "lakebed quota set lakefs://lake/dev --limit 10GiB",
    "lakebed quota set --user kim --limit 500GiB",
    "lakebed quota show lakefs://lake",
)

OfArgument = Annotated[
    str,
    Argument(
        metavar="[REPOSITORY|BRANCH]", help="lakefs://repository or lakefs://repository/branch", complete=complete_ref
    ),
]
UserOption = Annotated[str, Option("--user", metavar="USER", help="That of this user, in all repositories together.")]


@app.command("show")
def show(session: Session, uri: OfArgument = "", user: UserOption = "") -> None:
    """Show the quotas of a repository and of its branches, that of one branch, or that of a user."""
    repository, branch = _of(uri, user)
    client = session.client.quotas
    found = [client.get_user(user)] if user else client.list(repository, branch)
    columns: dict[str, Callable[[Quota], object]] = {
        "of": lambda one: f"{one.of} {one.name}",
        "limit": lambda one: human_size(one.limit_bytes),
        "used": lambda one: human_size(one.used_bytes),
        "reserved": lambda one: human_size(one.reserved_bytes),
        "by": lambda one: one.set_by,
        "counted": lambda one: human_minute(one.counted_date) if one.counted_date else "",
    }
    session.show_table(found, columns, otherwise="no quota")


@app.command("set")
def set_quota(
    session: Session,
    uri: OfArgument = "",
    limit: Annotated[str, Option("--limit", metavar="SIZE", help="500MiB, 10GiB, or a number of bytes.")] = "",
    user: UserOption = "",
    restart: Annotated[
        bool, Option("--restart", help="Begin to count at zero; for a repository, at what is stored.")
    ] = False,
) -> None:
    """Set a quota, or its limit. The count goes on, unless --restart.

    That of a repository counts what is stored, also where nothing names it. That of a branch or a user counts what is
    written, and a delete gives nothing back.
    """
    if not limit:
        raise Misuse("say how much: --limit 10GiB")
    limit_bytes = parse_size(limit)
    repository, branch = _of(uri, user)
    client = session.client.quotas
    made = (
        client.set_user(user, limit_bytes=limit_bytes, restart=restart)
        if user
        else client.set(repository, branch, limit_bytes=limit_bytes, restart=restart)
    )
    session.show(made, _text)


@app.command("remove")
def remove(session: Session, uri: OfArgument = "", user: UserOption = "") -> None:
    """Remove a quota."""
    repository, branch = _of(uri, user)
    if user:
        session.client.quotas.remove_user(user)
    else:
        session.client.quotas.remove(repository, branch)
    session.done(f"{f'user {user}' if user else uri} has no quota")


@app.command("count")
def count(session: Session, uri: OfArgument) -> None:
    """Count what a repository stores, in place of what its quota has as used.

    Upkeep does so after each collection, and once a day.
    """
    session.show(session.client.quotas.count(parse_repository(uri)), _text)


def _of(uri: str, user: str) -> tuple[str, str]:
    if bool(uri) == bool(user):
        raise Misuse("name a repository or a branch (lakefs://lake, lakefs://lake/dev), or a user (--user kim)")
    if user:
        return "", ""
    if not ref_of(uri):
        return parse_repository(uri), ""
    branch = parse_ref(uri)
    return branch.repository, branch.ref


def _text(one: Quota) -> list[str]:
    return [f"{one.of} {one.name}: {human_size(one.used_bytes)} of {human_size(one.limit_bytes)} used"]
