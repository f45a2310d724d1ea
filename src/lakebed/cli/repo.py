"""`lakebed repo`: repositories."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import typer

from lakebed.base import LakebedError
from lakebed.wire import Repository

from .arguments import LimitOption, PrefixOption, RepositoryArgument, YesOption
from .failures import Misuse, being_new
from .output import fields, human_time, table
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
    """Create a repository over a storage namespace that nobody uses yet."""
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
    session.show_all(session.client.repositories.list(prefix=prefix, limit=limit), _repository_table)


@app.command("show")
@command
def show(session: Session, uri: RepositoryArgument) -> None:
    """Show one repository."""
    session.show(session.client.repositories.get(parse_repository(uri)), _describe)


@app.command("delete")
@command
def delete(session: Session, uri: RepositoryArgument, yes: YesOption = False) -> None:
    """Delete a repository with all its history. Its objects stay in the storage namespace."""
    name = parse_repository(uri)
    session.confirm(f"Delete the repository {name} with all its branches, tags and commits?", yes=yes)
    session.client.repositories.delete(name)
    session.done(f"deleted {SCHEME}{name}", deleted=name)


def _repository_table(repositories: Iterable[Repository]) -> Iterable[str]:
    rows = [(one.id, human_time(one.creation_date), one.default_branch, one.storage_namespace) for one in repositories]
    return table(("repository", "created", "default branch", "storage namespace"), rows) if rows else ()


def _describe(repository: Repository) -> Iterable[str]:
    return fields(
        [
            ("Repository", f"{SCHEME}{repository.id}"),
            ("Created", human_time(repository.creation_date)),
            ("Default branch", repository.default_branch),
            ("Storage", repository.storage_namespace),
            ("Read-only", "yes" if repository.read_only else "no"),
        ]
    )


def _accepted(session: Session) -> str:
    """What storage namespaces this server takes, where it says so."""
    from lakebed.client import api_path

    try:
        answer = session.client.call("GET", api_path("config"))
    except LakebedError:
        answer = None
    storage = answer.get("storage_config") if isinstance(answer, dict) else None
    example = storage.get("blockstore_namespace_example") if isinstance(storage, dict) else None
    if not example:
        return "say where its data lies, such as s3://bucket/folder"
    return f"those of this server look like {example}"
