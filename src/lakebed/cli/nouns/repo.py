"""`lakebed repo`: repositories."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from functools import partial
from typing import Annotated, Final, TextIO, TypeVar

import msgspec

from lakebed.base import (
    AlreadyExists,
    Conflict,
    Denied,
    Invalid,
    InvalidName,
    LakebedError,
    NotFound,
    check_repository,
    count_of,
)
from lakebed.cli.kit.arguments import LimitOption, PrefixOption, RepositoryArgument, UidOption, YesOption, no_such
from lakebed.cli.kit.failures import Misuse, being_new
from lakebed.cli.kit.output import human_time
from lakebed.cli.kit.parameters import Argument, Option
from lakebed.cli.kit.progress import Line
from lakebed.cli.kit.session import Session
from lakebed.cli.kit.tree import noun
from lakebed.cli.kit.uris import SCHEME, check_new_branch, parse_repository
from lakebed.wire import DeletedRepository, RefsDump, Repository, RepositoryDumpStatus, RepositoryRestoreStatus

LOOK_S: Final = 0.2
_NOT_THERE: Final = "this namespace has no"
S = TypeVar("S", RepositoryDumpStatus, RepositoryRestoreStatus)


class TaskFailed(LakebedError):
    """The server could not do it. A restore that failed can be begun again."""


app = noun("Create, list, show, delete and undelete repositories.")


def _day(seconds: int) -> str:
    return human_time(seconds).partition(" ")[0]


DELETED_COLUMNS: Final[dict[str, Callable[[DeletedRepository], object]]] = {
    "repository": lambda one: one.id,
    "deleted": lambda one: _day(one.deletion_date),
    "kept until": lambda one: _day(one.kept_until) if one.state in {"kept", "restoring"} else "-",
    "state": lambda one: one.state,
    "uid": lambda one: one.uid,
}


@app.command("create")
def create(
    session: Session,
    uri: RepositoryArgument,
    namespace: Annotated[
        str, Argument(metavar="NAMESPACE", help="The storage namespace of its data, such as s3://bucket/folder.")
    ],
    default_branch: Annotated[str, Option("--default-branch", "-d", help="The first branch.")] = "main",
    sample_data: Annotated[bool, Option("--sample-data", help="Commit a few small files to look at.")] = False,
    reuse: Annotated[
        bool, Option("--reuse", help="Allow the namespace of a deleted repository after its collection.")
    ] = False,
    bare: Annotated[bool, Option("--bare", help="Make it without branch and commit, for `repo restore`.")] = False,
) -> None:
    """Create a repository over a storage namespace that is not in use."""
    name = parse_repository(uri)
    check_new_branch(default_branch)
    if "://" not in namespace:
        raise Misuse(f"{namespace!r} is not a storage namespace: {_accepted(session)}")
    try:
        with being_new(f"{SCHEME}{name}"):
            created = session.client.repositories.create(
                name, namespace, default_branch=default_branch, sample_data=sample_data, reuse=reuse, bare=bare
            )
    except Invalid as error:
        if "namespace already in use" in str(error):
            raise Conflict(f"{namespace} {_use_of(session, namespace)}", **error.facts) from error
        if '"/storage_namespace"' not in str(error):
            raise
        # The contract's own words are a pattern.
        raise Misuse(f"{namespace!r} is not a storage namespace: {_accepted(session)}") from error
    session.done(f"created {SCHEME}{name} over {created.storage_namespace}", created)
    if bare:
        session.note(f"it is bare: `lakebed repo restore {SCHEME}{name} FILE` brings the refs of a dump")


def _use_of(session: Session, namespace: str) -> str:
    """Say which repository has or had this namespace, and how to go on. The caller may not see all repositories."""
    repositories, uri = session.client.repositories, namespace.rstrip("/")
    with contextlib.suppress(LakebedError):
        for one in repositories.list():
            if one.storage_namespace.rstrip("/") == uri:
                return f"is in use: {SCHEME}{one.id} is there. Name a folder of its own"
    with contextlib.suppress(LakebedError):
        for deleted in repositories.list_deleted():
            if deleted.storage_namespace.rstrip("/") == uri:
                return _use_of_deleted(deleted)
    return "was in use, by a repository that is not listed here, or by another installation: choose another namespace"


def _use_of_deleted(one: DeletedRepository) -> str:
    was = f"is that of the deleted repository {one.id}"
    match one.state:
        case "kept" | "restoring":
            chosen = f"{SCHEME}{one.id} --uid {one.uid}"
            return (
                f"{was}. `lakebed repo undelete {chosen}` brings it back. Or collect it"
                f" (`lakebed gc deleted plan {chosen}`): once it is gone, --reuse takes its namespace"
            )
        case "gone":
            return f"{was}, which is gone: --reuse takes it again"
        case "forgotten":
            return f"{was}, which was forgotten: its objects stay there for ever. Choose another namespace"
        case state:
            return (
                f"{was}, which is {state}: --reuse takes it again once `lakebed repo list --deleted` says that it is"
                " gone"
            )


@app.command("list")
def list_repositories(
    session: Session,
    prefix: PrefixOption = "",
    limit: LimitOption = None,
    deleted: Annotated[bool, Option("--deleted", help="List deleted ones instead.")] = False,
) -> None:
    """List repositories."""
    if deleted:
        found = session.client.repositories.list_deleted(prefix=prefix, limit=limit)
        session.show_table(found, DELETED_COLUMNS, otherwise=no_such("deleted repository", prefix))
        return
    columns: dict[str, Callable[[Repository], object]] = {
        "repository": lambda one: one.id,
        "created": lambda one: human_time(one.creation_date),
        "default branch": lambda one: one.default_branch,
        "storage namespace": lambda one: one.storage_namespace,
    }
    listed = session.client.repositories.list(prefix=prefix, limit=limit)
    session.show_table(listed, columns, otherwise=no_such("repository", prefix))


@app.command("show")
def show(session: Session, uri: RepositoryArgument) -> None:
    """Show one repository."""
    found = session.client.repositories.get(parse_repository(uri))
    facts = [
        ("Repository", f"{SCHEME}{found.id}"),
        ("Created", human_time(found.creation_date)),
        ("Default branch", found.default_branch),
        ("Storage", found.storage_namespace),
        ("Read-only", "yes" if found.read_only else "no"),
    ]
    with contextlib.suppress(Denied):  # Not every user may list branches.
        if not session.is_json and not any(session.client.branches.list(found.id, limit=1)):
            facts.append(("Bare", "yes: it has no branch until `repo restore` brings them"))
    session.show_fields(found, facts)


@app.command("dump")
def dump(session: Session, uri: RepositoryArgument) -> None:
    """Write branches, tags and commits to the storage namespace, and print the ids of the files as JSON.

    `repo restore` takes them. Uncommitted changes and settings are not in a dump.
    """
    name = parse_repository(uri)
    begun = session.client.repositories.submit_dump(name)
    found = _wait(session, f"dumping {SCHEME}{name}", lambda: session.client.repositories.dump_status(name, begun))
    assert found.refs is not None, "a dump that succeeded has files"
    refs = found.refs
    session.show(refs, lambda _: msgspec.json.encode(refs).decode())


@app.command("restore")
def restore(
    session: Session,
    uri: RepositoryArgument,
    source: Annotated[TextIO, Argument(metavar="FILE", help="The output of `repo dump`; - for stdin.")],
    check_objects: Annotated[
        bool, Option("--check-objects", help="Refuse where an object of a commit is missing. Reads all metadata.")
    ] = False,
) -> None:
    """Make the branches, tags and commits of a dump in a bare repository (repo create --bare).

    Its storage namespace must hold the files of the dump and of every commit: it is the old one, or a copy.
    """
    name = parse_repository(uri)
    try:
        refs = msgspec.json.decode(source.read().encode(), type=RefsDump)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Misuse(f"{source.name} is not what `repo dump` prints: {error}") from error
    # The server collects nothing of a bare repository before a person adopts it. Of another one this changes nothing.
    was_bare = not any(session.client.branches.list(name, limit=1))
    begun = session.client.repositories.submit_restore(name, refs, check_objects=check_objects)
    try:
        _wait(session, f"restoring {SCHEME}{name}", lambda: session.client.repositories.restore_status(name, begun))
    except TaskFailed as error:
        if _NOT_THERE not in str(error):
            raise
        raise TaskFailed(f"{error}. Copy the old namespace to this one first, with the dump in it") from error
    branches, tags = (sum(1 for _ in refs.list(name)) for refs in (session.client.branches, session.client.tags))
    counts = f"{count_of(branches, 'branch', 'branches')}, {count_of(tags, 'tag')}"
    session.done(f"restored {SCHEME}{name}: {counts}", restored=name, branches=branches, tags=tags)
    if was_bare:
        session.note(
            f"nothing is collected until `lakebed gc adopt {SCHEME}{name}`: first let nothing else use its namespace"
        )


def _wait(session: Session, doing: str, look: Callable[[], S]) -> S:
    line = Line(visible=session.shows_progress)
    try:
        while not (status := look()).done:
            line.update(lambda: doing)
            time.sleep(LOOK_S)
    finally:
        line.erase()
    if status.error:
        raise TaskFailed(f"{doing}: {status.error}")
    return status


@app.command("delete")
def delete(session: Session, uri: RepositoryArgument, yes: YesOption = False) -> None:
    """Delete a repository. It can be undeleted for some days, and its objects stay in the storage namespace."""
    name = parse_repository(uri)
    exists = partial(session.client.repositories.get, name)
    session.confirm(f"Delete the repository {name} with all its branches, tags and commits?", yes=yes, exists=exists)
    session.client.repositories.delete(name)
    session.done(f"deleted {SCHEME}{name}", deleted=name)


@app.command("undelete")
def undelete(
    session: Session,
    uri: RepositoryArgument,
    uid: UidOption = "",
    new_name: Annotated[str, Option("--name", help="A new name, where its own is taken.")] = "",
) -> None:
    """Bring a deleted repository back, with its branches, tags, commits and uncommitted changes."""
    name = parse_repository(uri)
    if new_name:
        try:
            check_repository(new_name)
        except InvalidName as error:
            raise Misuse(f"--name {new_name}: {error}") from error
    try:
        back = session.client.repositories.undelete(name, uid=uid, new_name=new_name)
    except Conflict as error:
        if "not unique" not in str(error):
            raise
        taken = f"{SCHEME}{new_name or name} exists already: --name gives this one another name"
        raise AlreadyExists(taken, **error.facts) from error
    session.done(f"{SCHEME}{back.id} is back", back)


@app.command("forget")
def forget(session: Session, uri: RepositoryArgument, uid: UidOption = "", yes: YesOption = False) -> None:
    """Remove the records of a deleted repository for good. Its objects stay, and no collection can take them."""
    name = parse_repository(uri)
    with contextlib.suppress(Denied):  # Not every user may list them. The server refuses an unknown uid anyway.
        deleted = session.client.repositories.list_deleted(prefix=name)
        if not any(one.id == name and uid in {"", one.uid} for one in deleted):
            raise NotFound(f"no deleted repository {name} can be forgotten", repository=name)
    session.confirm(f"Forget the deleted repository {name}? It cannot come back, and its objects stay.", yes=yes)
    session.client.repositories.forget(name, uid=uid)
    session.done(f"forgot {SCHEME}{name}", forgot=name)


@app.command("protect")
def protect(
    session: Session,
    uri: RepositoryArgument,
    remove: Annotated[bool, Option("--remove", help="Remove the protection.")] = False,
) -> None:
    """Protect a repository against deletion."""
    name = parse_repository(uri)
    before, version = session.client.repositories.delete_protection(name)
    session.client.repositories.protect_deletion(name, repository=not remove, branches=before.branches, version=version)
    session.done(f"{SCHEME}{name} can{'' if remove else 'not'} be deleted", repository=name, protected=not remove)


def _accepted(session: Session) -> str:
    """Say which storage namespaces this server takes, where it says so."""
    try:
        example = session.client.config().storage_config.blockstore_namespace_example
    except LakebedError:
        return "use one such as s3://bucket/folder"
    return f"those of this server look like {example}"
