"""`lakebed branch`: branches, and what moves them other than commits and merges."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import typer

from lakebed.base import Invalid
from lakebed.wire import Ref

from .arguments import BranchArgument, LimitOption, PrefixOption, RepositoryArgument, YesOption
from .completion import complete_ref
from .failures import Misuse, being_there
from .output import table
from .session import Session, command
from .tree import noun
from .uris import SCHEME, RefUri, is_uri, parse_ref, parse_repository

app = noun("Create, list, show, delete, move and protect branches.")

SourceOption = Annotated[
    str,
    typer.Option(
        "--source",
        "-s",
        metavar="REF",
        help="Where it starts: a ref, or lakefs://repository/ref.",
        autocompletion=complete_ref,
    ),
]


@app.command("create")
@command
def create(session: Session, uri: BranchArgument, source: SourceOption) -> None:
    """Create a branch at a commit. No data is copied."""
    branch = parse_ref(uri)
    commit_id = session.client.branches.create(branch.repository, branch.ref, source=ref_in(branch.repository, source))
    session.show(Ref(id=branch.ref, commit_id=commit_id), lambda _: f"created {branch} at {commit_id[:12]}")


@app.command("list")
@command
def list_branches(
    session: Session, uri: RepositoryArgument, prefix: PrefixOption = "", limit: LimitOption = None
) -> None:
    """List the branches of a repository and the commits they name."""
    session.show_all(session.client.branches.list(parse_repository(uri), prefix=prefix, limit=limit), ref_table)


@app.command("show")
@command
def show(session: Session, uri: BranchArgument) -> None:
    """Show which commit a branch names."""
    branch = parse_ref(uri)
    session.show(session.client.branches.get(branch.repository, branch.ref), lambda found: found.commit_id)


@app.command("delete")
@command
def delete(session: Session, uri: BranchArgument, yes: YesOption = False) -> None:
    """Delete a branch and what is uncommitted on it. Its commits stay until retention lets them go."""
    branch = parse_ref(uri)
    session.confirm(f"Delete {branch} and its uncommitted changes?", yes=yes)
    session.client.branches.delete(branch.repository, branch.ref)
    session.done(f"deleted {branch}", deleted=str(branch))


@app.command("reset")
@command
def reset(
    session: Session,
    uri: BranchArgument,
    path: Annotated[str, typer.Option("--object", help="Only this path.")] = "",
    prefix: Annotated[str, typer.Option("--prefix", help="Only paths that begin so.")] = "",
    to: Annotated[str, typer.Option("--to", metavar="REF", help="Move the branch to this commit as well.")] = "",
    yes: YesOption = False,
) -> None:
    """Forget uncommitted changes: all of them, or those of a path or prefix; with --to, move the branch as well."""
    branch = parse_ref(uri)
    if sum(map(bool, (path, prefix, to))) > 1:
        raise Misuse("give one of --object, --prefix and --to")
    branches = session.client.branches
    if to:
        session.confirm(f"Move {branch} to {to} and forget its uncommitted changes?", yes=yes)
        branches.hard_reset(branch.repository, branch.ref, ref=ref_in(branch.repository, to))
        session.done(f"moved {branch} to {to}", reset=str(branch), to=to)
        return
    what = path or (f"{prefix}*" if prefix else "everything uncommitted")
    session.confirm(f"Forget the uncommitted changes of {what} on {branch}?", yes=yes)
    branches.reset(branch.repository, branch.ref, path=path, prefix=prefix)
    session.done(f"reset {what} on {branch}", reset=str(branch), path=path or None, prefix=prefix or None)


@app.command("revert")
@command
def revert(
    session: Session,
    uri: BranchArgument,
    commit: Annotated[str, typer.Argument(metavar="REF", help="The commit to undo.")],
    parent: Annotated[
        int, typer.Option("--parent", "-p", min=0, help="For a merge: undo what it changed against this parent.")
    ] = 0,
    yes: YesOption = False,
) -> None:
    """Commit the opposite of what a commit changed."""
    branch = parse_ref(uri)
    undone = ref_in(branch.repository, commit)
    session.confirm(f"Undo {undone} on {branch}?", yes=yes)
    try:
        with being_there(str(RefUri(branch.repository, undone))):
            session.client.branches.revert(branch.repository, branch.ref, ref=undone, parent_number=parent)
    except Invalid as error:
        if parent or "merge commit" not in str(error):
            raise
        raise Misuse(f"{undone} is a merge: say against which parent, --parent 1 (where it was made) or 2") from error
    session.show(
        session.client.branches.get(branch.repository, branch.ref),
        lambda head: f"reverted {undone} on {branch}: now at {head.commit_id[:12]}",
    )


@app.command("cherry-pick")
@command
def cherry_pick(
    session: Session,
    uri: BranchArgument,
    commit: Annotated[str, typer.Argument(metavar="REF", help="The commit to repeat.")],
    parent: Annotated[
        int, typer.Option("--parent", "-p", min=1, help="For a merge: repeat what it changed against this parent.")
    ] = 1,
) -> None:
    """Repeat on a branch what a commit changed elsewhere."""
    branch = parse_ref(uri)
    wanted = ref_in(branch.repository, commit)
    with being_there(str(RefUri(branch.repository, wanted))):
        picked = session.client.branches.cherry_pick(branch.repository, branch.ref, ref=wanted, parent_number=parent)
    session.show(picked, lambda made: f"{made.id[:12]} on {branch}: {made.message}")


@app.command("protect")
@command
def protect(
    session: Session,
    uri: RepositoryArgument,
    patterns: Annotated[
        list[str] | None, typer.Argument(metavar="PATTERN", help="A branch, or with * many. None: show what is.")
    ] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Take the patterns away again.")] = False,
) -> None:
    """Let branches take merges and nothing else; or show which do."""
    repository = parse_repository(uri)
    repositories = session.client.repositories
    found, version = repositories.protected_branches(repository)
    given = patterns or []
    if remove and (unknown := sorted(set(given) - set(found))):
        raise Misuse(f"{unknown[0]} is not protected in {uri}")
    wanted = sorted(set(found) - set(given) if remove else set(found) | set(given))
    if given:
        repositories.protect_branches(repository, wanted, version=version)
    session.show_all(wanted, lambda lines: lines)


def ref_in(repository: str, text: str) -> str:
    """A ref given bare or as a URI, which must be of the same repository.

    Raises:
        Misuse: it is of another one.
    """
    if not is_uri(text):
        return text
    uri = parse_ref(text)
    if uri.repository != repository:
        raise Misuse(f"{uri} is not in {SCHEME}{repository}")
    return uri.ref


def ref_table(refs: Iterable[Ref]) -> Iterable[str]:
    """Names and whole commit ids."""
    rows = [(ref.id, ref.commit_id) for ref in refs]
    return table(("name", "commit"), rows) if rows else ()


def same_repository(left: RefUri, right: RefUri) -> str:
    """The repository of both.

    Raises:
        Misuse: they are of two.
    """
    if left.repository != right.repository:
        raise Misuse(f"{left} and {right} are not in one repository")
    return left.repository
