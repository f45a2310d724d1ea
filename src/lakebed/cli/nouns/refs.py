"""`lakebed branch` and `lakebed tag`: name commits; reset, revert and cherry-pick on branches."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Annotated, Final

from lakebed.base import AlreadyExists, Conflict, Denied, NotFound
from lakebed.cli.kit.arguments import (
    BranchArgument,
    LimitOption,
    PathsOption,
    PrefixOption,
    RefuseExpiredOption,
    RepositoryArgument,
    TagArgument,
    YesOption,
    no_such,
    ref_in,
)
from lakebed.cli.kit.completion import complete_ref
from lakebed.cli.kit.failures import Misuse, being_new, being_something, being_there
from lakebed.cli.kit.output import columns_of, human_minute, human_time, printable
from lakebed.cli.kit.parameters import Argument, Option
from lakebed.cli.kit.session import Session
from lakebed.cli.kit.tree import noun
from lakebed.cli.kit.uris import SCHEME, RefUri, parse_new_branch, parse_new_tag, parse_ref, parse_repository, parse_tag
from lakebed.wire import DeletedRef, Ref, RefMove

from .history import explaining_pick, tell_expired

if TYPE_CHECKING:
    from lakebed.client import Branches, Tags

app = noun("Create, list, show, delete, move and protect branches.")
tags = noun("Create, list, show and delete tags.")

COLUMNS: Final[dict[str, Callable[[Ref], object]]] = {
    "name": lambda ref: ref.id,
    "commit": lambda ref: ref.commit_id[:12],
}
DELETED_COLUMNS: Final[dict[str, Callable[[DeletedRef], object]]] = {
    "name": lambda ref: ref.id,
    "commit": lambda ref: ref.commit_id[:12],
    "deleted": lambda ref: human_time(ref.deletion_date),
    "by": lambda ref: ref.deleted_by,
    "kept until": lambda ref: human_time(ref.kept_until),
}
MOVE_COLUMNS: Final[dict[str, Callable[[RefMove], object]]] = {
    "when": lambda move: human_time(move.date_ms // 1000),
    "operation": lambda move: move.operation,
    "by": lambda move: move.user,
    "from": lambda move: move.before[:12] or "-",
    "to": lambda move: move.commit_id[:12] or "-",
}
ForGoodOption = Annotated[
    bool,
    Option("--for-good", help="Delete without a way back, also after an earlier delete: retention need not wait."),
]
DeletedOption = Annotated[bool, Option("--deleted", help="List deleted ones that can come back instead.")]
SourceOption = Annotated[
    str,
    Option(
        "--source",
        "-s",
        metavar="REF",
        help="Where it starts: a ref, or lakefs://repository/ref. Default: the default branch.",
        complete=complete_ref,
    ),
]
NamedArgument = Annotated[
    str,
    Argument(
        metavar="REF", help="The commit: a ref, or lakefs://repository/ref.", example="main", complete=complete_ref
    ),
]


@app.command("create")
def create(
    session: Session,
    uri: BranchArgument,
    source: SourceOption = "",
    ttl: Annotated[
        str,
        Option(
            "--ttl", metavar="DURATION", help="How long it lasts. `lifecycle branches apply` deletes it after that."
        ),
    ] = "",
) -> None:
    """Create a branch at a commit. No data is copied."""
    if ttl:
        from lakebed.gc.rules import parse_lifetime

        parse_lifetime(ttl)
    branch = parse_new_branch(uri)
    start = ref_in(branch.repository, source) or session.client.repositories.get(branch.repository).default_branch
    branches = session.client.branches
    with being_new(str(branch), otherwise="tag"):
        commit_id = branches.create(branch.repository, branch.ref, source=start, ttl=ttl)
    made = branches.get(branch.repository, branch.ref) if ttl else Ref(id=branch.ref, commit_id=commit_id)
    until = f", to last until {human_time(made.expiration_date)}" if made.expiration_date else ""
    session.done(f"created {branch} at {commit_id[:12]}{until}", made)
    if until:
        session.note(f"`lakebed lifecycle branches apply lakefs://{branch.repository}` deletes it after that")


@app.command("list")
def list_branches(
    session: Session,
    uri: RepositoryArgument,
    prefix: PrefixOption = "",
    limit: LimitOption = None,
    deleted: DeletedOption = False,
) -> None:
    """List the branches of a repository and their commits."""
    if deleted:
        _show_deleted(session, session.client.branches, uri, prefix, limit)
        return
    repository = parse_repository(uri)
    default = "" if session.is_json else _default_of(session, repository)
    listed = session.client.branches.list(repository, prefix=prefix, limit=limit, details=True)
    session.show_all(listed, partial(branches_text, default=default), otherwise=no_such("branch", prefix))


def _show_deleted(session: Session, refs: Branches | Tags, uri: str, prefix: str, limit: int | None) -> None:
    found = refs.list_deleted(parse_repository(uri), prefix=prefix, limit=limit)
    session.show_table(found, DELETED_COLUMNS, otherwise="nothing that was deleted can come back")


def branches_text(refs: Iterable[Ref], *, default: str) -> Iterator[str]:
    """Yield a row for each branch, without columns that are empty in all of them."""
    columns: dict[str, Callable[[Ref], str]] = {
        "state": lambda ref: _state(ref, default=default).replace(" changes", ""),
        "date": lambda ref: "" if ref.commit_date is None else human_minute(ref.commit_date),
        "by": lambda ref: printable(ref.commit_committer or ""),
        "message": lambda ref: printable((ref.commit_message or "").partition("\n")[0]),
    }
    found = list(refs)
    return columns_of(found, COLUMNS | {title: cell for title, cell in columns.items() if any(map(cell, found))})


@app.command("show")
def show(session: Session, uri: BranchArgument) -> None:
    """Show the commit of a branch. Beside it, on standard error: its date and message, and the state of the branch."""
    branch = parse_ref(uri)
    found = session.client.branches.get(branch.repository, branch.ref)
    session.show(found, lambda found: found.commit_id)
    if session.is_json:
        return
    # Only a listing has the details. The name itself is the first that begins so.
    listed = []
    with contextlib.suppress(Denied):
        listed = [*session.client.branches.list(branch.repository, prefix=branch.ref, limit=1, details=True)]
    details = next((one for one in listed if one.id == found.id), found)
    session.note(
        "; ".join(
            filter(None, [_state(details, default=_default_of(session, branch.repository)), _commit_text(details)])
        )
    )


def _commit_text(ref: Ref) -> str:
    """Return the commit of a branch in one line; empty where its details are not known."""
    if ref.commit_date is None:
        return ""
    message = printable((ref.commit_message or "").partition("\n")[0])
    by = f" by {printable(ref.commit_committer)}" if ref.commit_committer else ""
    return f"{human_time(ref.commit_date)}{by}: {message}"


def _default_of(session: Session, repository: str) -> str:
    """Return the default branch; empty where the caller may not read the repository, but may read branches."""
    with contextlib.suppress(Denied):
        return session.client.repositories.get(repository).default_branch
    return ""


def _state(ref: Ref, *, default: str) -> str:
    lasts = f"lasts until {human_time(ref.expiration_date)}" if ref.expiration_date else ""
    changes = "uncommitted changes" if ref.has_uncommitted else ""
    if ref.has_uncommitted is None and ref.commit_date is not None:
        changes = "unknown"  # There are details, and this one could not be read.
    return ", ".join(filter(None, ("default" if ref.id == default else "", changes, lasts)))


@app.command("ahead")
def ahead(
    session: Session,
    uri: BranchArgument,
    base: Annotated[
        str, Option("--of", metavar="REF", help="Compare with this ref. Default: the default branch.")
    ] = "",
) -> None:
    """Count the commits of a branch that the default branch lacks, and the reverse."""
    branch = parse_ref(uri)
    other = ref_in(branch.repository, base) or session.client.repositories.get(branch.repository).default_branch
    count = session.client.history.ahead(branch.repository, branch.ref, other)
    least = "" if count.is_complete else "at least "
    text = f"{least}{count.ahead} ahead of {other}, {least}{count.behind} behind it"
    session.show(count, lambda _: text)


@app.command("delete")
def delete(session: Session, uri: BranchArgument, for_good: ForGoodOption = False, yes: YesOption = False) -> None:
    """Delete a branch and its uncommitted changes. It can come back for some days, unless --for-good is given."""
    branch = parse_ref(uri)
    question = f"Delete {branch} and its uncommitted changes{' for good' * for_good}?"
    # For good, it may be deleted already.
    exists = bool if for_good else partial(session.client.branches.get, branch.repository, branch.ref)
    session.confirm(question, yes=yes, exists=exists)
    try:
        _delete(session.client.branches, branch, for_good=for_good)
    except Denied as error:
        if "default branch" not in str(error):
            raise
        whole = f"`lakebed repo delete {SCHEME}{branch.repository}` deletes the whole repository"
        raise Denied(f"{branch} is the default branch, which cannot be deleted. {whole}", **error.facts) from error
    session.done(f"deleted {branch}{' for good' * for_good}", deleted=str(branch))


def _delete(refs: Branches | Tags, ref: RefUri, *, for_good: bool) -> None:
    """Delete a ref. `for_good` also gives up the way back, to it and to earlier ones of its name."""
    try:
        refs.delete(ref.repository, ref.ref)
    except NotFound:
        if not for_good:
            raise
    if for_good:
        refs.forget(ref.repository, ref.ref)


@app.command("undelete")
def undelete(session: Session, uri: BranchArgument) -> None:
    """Bring a deleted branch back, without its uncommitted changes. It has no end date then."""
    branch = parse_ref(uri)
    with _being_gone(branch):
        back = session.client.branches.undelete(branch.repository, branch.ref)
    session.done(f"{branch} is back at {back.commit_id[:12]}", back)


@app.command("reflog")
def reflog(session: Session, uri: BranchArgument, limit: LimitOption = None) -> None:
    """Show where a branch was, the newest first. `main@{2}` is where it was two moves ago."""
    branch = parse_ref(uri)
    session.show_table(
        session.client.branches.moves(branch.repository, branch.ref, limit=limit),
        MOVE_COLUMNS,
        otherwise="no move is known",
    )


@app.command("reset")
def reset(
    session: Session,
    uri: BranchArgument,
    path: Annotated[str, Option("--object", help="Only this path.")] = "",
    prefix: PathsOption = "",
    to: Annotated[str, Option("--to", metavar="REF", help="Move the branch to this commit as well.")] = "",
    refuse_expired: RefuseExpiredOption = False,
    yes: YesOption = False,
) -> None:
    """Drop uncommitted changes: all of them, or those of a path or prefix; with --to, move the branch as well."""
    branch = parse_ref(uri)
    if sum(map(bool, (path, prefix, to))) > 1:
        raise Misuse("give one of --object, --prefix and --to")
    branches = session.client.branches
    if to:
        before = branches.get(branch.repository, branch.ref).commit_id
        session.confirm(f"Move {branch} to {to} and drop its uncommitted changes?", yes=yes)
        branches.hard_reset(
            branch.repository, branch.ref, ref=ref_in(branch.repository, to), refuse_expired=refuse_expired
        )
        session.done(f"moved {branch} to {to}", reset=str(branch), to=to)
        tell_expired(session, branch.repository, before, branch.ref)
        return
    what = "the uncommitted change of" if path else "the uncommitted changes of"
    of = f"{path or prefix + '*'} on {branch}" if path or prefix else str(branch)
    if not path and _is_clean(session, branch, prefix):
        session.done(f"nothing is uncommitted: {of}", reset=str(branch), path=None, prefix=prefix or None)
        return
    session.confirm(f"Drop {what} {of}?", yes=yes)
    branches.reset(branch.repository, branch.ref, path=path, prefix=prefix)
    session.done(f"dropped {what} {of}", reset=str(branch), path=path or None, prefix=prefix or None)


def _is_clean(session: Session, branch: RefUri, prefix: str) -> bool:
    """Return whether nothing is uncommitted; False for a caller who may not know."""
    try:
        changes = session.client.history.uncommitted(branch.repository, branch.ref, prefix=prefix, limit=1)
        return next(changes, None) is None
    except Denied:
        return False


@app.command("revert")
def revert(
    session: Session,
    uri: BranchArgument,
    commit: Annotated[str, Argument(metavar="REF", help="The commit to undo.", example="dev~1")],
    parent: Annotated[
        int, Option("--parent", "-p", min=0, help="For a merge: undo what it changed against this parent.")
    ] = 0,
    refuse_expired: RefuseExpiredOption = False,
    yes: YesOption = False,
) -> None:
    """Commit the opposite of a commit's changes."""
    branch = parse_ref(uri)
    undone = ref_in(branch.repository, commit)
    exists = partial(session.client.branches.get, branch.repository, branch.ref)
    session.confirm(f"Undo {undone} on {branch}?", yes=yes, exists=exists)
    try:
        with (
            explaining_pick(session, branch, undone, parent),
            being_something(
                f"{branch} has nothing of {undone} that could be undone: it is as if it was reverted already"
            ),
            being_there(str(RefUri(branch.repository, undone))),
        ):
            session.client.branches.revert(
                branch.repository, branch.ref, ref=undone, parent_number=parent, refuse_expired=refuse_expired
            )
    except Conflict as error:
        if parent or "merge commit" not in str(error):
            raise
        raise Misuse(f"{undone} is a merge: add --parent 1 (the branch it was made on) or --parent 2") from error
    head = session.client.branches.get(branch.repository, branch.ref)
    session.done(f"reverted {undone} on {branch}: now at {head.commit_id[:12]}", head)
    tell_expired(session, branch.repository, f"{head.commit_id}~1", head.commit_id)


@app.command("cherry-pick")
def cherry_pick(
    session: Session,
    uri: BranchArgument,
    commit: Annotated[str, Argument(metavar="REF", help="The commit to repeat.", example="main")],
    parent: Annotated[
        int, Option("--parent", "-p", min=1, help="For a merge: repeat what it changed against this parent.")
    ] = 1,
    refuse_expired: RefuseExpiredOption = False,
) -> None:
    """Repeat the changes of a commit on a branch."""
    branch = parse_ref(uri)
    wanted = ref_in(branch.repository, commit)
    with (
        explaining_pick(session, branch, wanted, parent),
        being_something(f"{branch} has all that {wanted} changed already: there is nothing to commit"),
        being_there(str(RefUri(branch.repository, wanted))),
    ):
        picked = session.client.branches.cherry_pick(
            branch.repository, branch.ref, ref=wanted, parent_number=parent, refuse_expired=refuse_expired
        )
    session.done(f"{picked.id[:12]} on {branch}: {printable(picked.message)}", picked)
    tell_expired(session, branch.repository, f"{picked.id}~1", picked.id)


@app.command("protect")
def protect(
    session: Session,
    uri: RepositoryArgument,
    patterns: Annotated[
        list[str] | None, Argument(metavar="PATTERN", help="A branch, or a pattern with *. None: list them.")
    ] = None,
    deletion: Annotated[bool, Option("--deletion", help="Only against being deleted.")] = False,
    remove: Annotated[bool, Option("--remove", help="Remove the protection.")] = False,
) -> None:
    """Protect branches: they take merges and nothing else. Lists the protected ones afterwards."""
    repository = parse_repository(uri)
    repositories = session.client.repositories
    before, deletion_version = repositories.delete_protection(repository)
    writes, version = repositories.protected_branches(repository)
    found = before.branches if deletion else writes
    given = patterns or []
    if remove and (unknown := sorted(set(given) - set(found))):
        raise Misuse(f"{unknown[0]} is not protected in {uri}: `lakebed branch protect {uri}` lists those that are")
    wanted = sorted(set(found) - set(given) if remove else set(found) | set(given))
    if given:
        if deletion:
            repositories.protect_deletion(
                repository, repository=before.repository, branches=wanted, version=deletion_version
            )
        else:
            repositories.protect_branches(repository, wanted, version=version)
        # The list below names the protected branches.
        session.note(f"no longer protected: {', '.join(given)}" if remove else f"protected in {uri}:")
    otherwise = f"no branch of {uri} is protected"
    if not deletion and (others := [*before.branches, *(["the whole repository"] if before.repository else [])]):
        otherwise += " against writes"
        session.note(f"against being deleted: {', '.join(others)} (`lakebed branch protect {uri} --deletion`)")
    session.show_all(wanted, lambda lines: lines, otherwise=otherwise)


@tags.command("create")
def create_tag(session: Session, uri: TagArgument, ref: NamedArgument) -> None:
    """Name a commit for ever."""
    tag = parse_new_tag(uri)
    named = ref_in(tag.repository, ref)
    with being_new(str(tag), otherwise="branch"), being_there(str(RefUri(tag.repository, named))):
        made = session.client.tags.create(tag.repository, tag.ref, ref=named)
    session.done(f"created {tag} at {made.commit_id[:12]}", made)


@tags.command("list")
def list_tags(
    session: Session,
    uri: RepositoryArgument,
    prefix: PrefixOption = "",
    limit: LimitOption = None,
    deleted: DeletedOption = False,
) -> None:
    """List the tags of a repository and their commits."""
    if deleted:
        _show_deleted(session, session.client.tags, uri, prefix, limit)
        return
    listed = session.client.tags.list(parse_repository(uri), prefix=prefix, limit=limit)
    session.show_table(listed, COLUMNS, otherwise=no_such("tag", prefix))


@tags.command("show")
def show_tag(session: Session, uri: TagArgument) -> None:
    """Show the commit of a tag. Beside it, on standard error: its date and message."""
    tag = parse_tag(uri)
    found = session.client.tags.get(tag.repository, tag.ref)
    session.show(found, lambda found: found.commit_id)
    if session.is_json:
        return
    with contextlib.suppress(Denied, NotFound):  # One may read tags and no commits. A run may have taken the commit.
        commit = session.client.history.get(tag.repository, found.commit_id)
        session.note(
            _commit_text(
                Ref(
                    id=found.id,
                    commit_id=commit.id,
                    commit_date=commit.creation_date,
                    commit_committer=commit.committer,
                    commit_message=commit.message,
                )
            )
        )


@tags.command("delete")
def delete_tag(session: Session, uri: TagArgument, for_good: ForGoodOption = False, yes: YesOption = False) -> None:
    """Delete a tag. It can come back for some days. With --for-good it cannot, so that asks first."""
    tag = parse_tag(uri)
    if for_good:
        session.confirm(f"Delete the tag {tag} for good?", yes=yes)
    _delete(session.client.tags, tag, for_good=for_good)
    session.done(f"deleted {tag}{' for good' * for_good}", deleted=str(tag))


@contextlib.contextmanager
def _being_gone(ref: RefUri) -> Iterator[None]:
    """Say that a ref is there, where the server says only that its name is taken."""
    try:
        yield
    except AlreadyExists as error:
        raise AlreadyExists(
            f"{ref} is there. To bring back an earlier one of this name, rename this: make a branch or tag at it, and "
            "delete it",
            **error.facts,
        ) from error


@tags.command("undelete")
def undelete_tag(session: Session, uri: TagArgument) -> None:
    """Make a deleted tag again."""
    tag = parse_tag(uri)
    with _being_gone(tag):
        back = session.client.tags.undelete(tag.repository, tag.ref)
    session.done(f"{tag} is back at {back.commit_id[:12]}", back)


@tags.command("reflog")
def tag_reflog(session: Session, uri: TagArgument, limit: LimitOption = None) -> None:
    """Show when a tag was made, deleted and made again, the newest first. `v1@{yesterday}` is where it was then."""
    tag = parse_tag(uri)
    session.show_table(
        session.client.tags.moves(tag.repository, tag.ref, limit=limit), MOVE_COLUMNS, otherwise="no move is known"
    )
