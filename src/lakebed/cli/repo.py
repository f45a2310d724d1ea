"""`lakebed repo`: repositories."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from lakebed.base import LakebedError
from lakebed.wire import Repository

from .arguments import LimitOption, PrefixOption, RepositoryArgument, YesOption
from .failures import Misuse, being_new
from .output import human_time
from .session import Session, command
from .tree import noun
from .uris import SCHEME, parse_repository

app = noun("Create, list, show and delete repositories.")


@app.command("create")
@command
def create(
    session: Session,
    uri: RepositoryArgument,
    namespace: Annotated[
        str, typer.Argument(metavar="NAMESPACE", help="Where its data lies, such as s3://bucket/folder.")
    ],
    default_branch: Annotated[str, typer.Option("--default-branch", "-d", help="The first branch.")] = "main",
) -> None:
    """Create a repository over a storage namespace that is not in use."""
    name = parse_repository(uri)
    if "://" not in namespace:
        raise Misuse(f"{namespace!r} is no storage namespace: {_accepted(session)}")
    with being_new(f"{SCHEME}{name}"):
        created = session.client.repositories.create(name, namespace, default_branch=default_branch)
    session.show(created, lambda _: f"created {SCHEME}{name} over {created.storage_namespace}")


@app.command("list")
@command
def list_repositories(session: Session, prefix: PrefixOption = "", limit: LimitOption = None) -> None:
    """List repositories."""
    columns: dict[str, Callable[[Repository], object]] = {
        "repository": lambda one: one.id,
        "created": lambda one: human_time(one.creation_date),
        "default branch": lambda one: one.default_branch,
        "storage namespace": lambda one: one.storage_namespace,
    }
    session.show_table(session.client.repositories.list(prefix=prefix, limit=limit), columns)


@app.command("show")
@command
def show(session: Session, uri: RepositoryArgument) -> None:
    """Show one repository."""
    found = session.client.repositories.get(parse_repository(uri))
    session.show_fields(
        found,
        [
            ("Repository", f"{SCHEME}{found.id}"),
            ("Created", human_time(found.creation_date)),
            ("Default branch", found.default_branch),
            ("Storage", found.storage_namespace),
            ("Read-only", "yes" if found.read_only else "no"),
        ],
    )


@app.command("delete")
@command
def delete(session: Session, uri: RepositoryArgument, yes: YesOption = False) -> None:
    """Delete a repository with all its history. Its objects stay in the storage namespace."""
    name = parse_repository(uri)
    session.confirm(f"Delete the repository {name} with all its branches, tags and commits?", yes=yes)
    session.client.repositories.delete(name)
    session.done(f"deleted {SCHEME}{name}", deleted=name)


def _accepted(session: Session) -> str:
    """Say which storage namespaces this server takes, where it says so."""
    try:
        example = session.client.config().storage_config.blockstore_namespace_example
    except LakebedError:
        return "use one such as s3://bucket/folder"
    return f"those of this server look like {example}"
