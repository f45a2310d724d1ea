"""`lakebed commit`, `log`, `show`, `diff`, `blame` and `merge`: make commits and read the history."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Final

import click
import msgspec

from lakebed.base import TABLE_RECORD, Conflict, Denied, LakebedError, NotFound, count_of, human_size
from lakebed.cli.kit.arguments import (
    BranchArgument,
    EmptyOption,
    LimitOption,
    MessageOption,
    MetaOption,
    PathsOption,
    RefArgument,
    RefuseExpiredOption,
    iso_since,
    other_ref,
    parse_date,
    parse_meta,
    ref_in,
)
from lakebed.cli.kit.completion import complete_object, complete_ref
from lakebed.cli.kit.failures import Misuse, being_something
from lakebed.cli.kit.output import fields, hanging, human_time, printable
from lakebed.cli.kit.parameters import Argument, Option
from lakebed.cli.kit.session import Session
from lakebed.cli.kit.tree import noun
from lakebed.cli.kit.uris import ObjectUri, RefUri, parse_prefix, parse_ref
from lakebed.cli.tables.text import rows_of, shown_name, what_of
from lakebed.wire import Commit, Diff, MergeResult, TableSnapshot

from .transfers import present

if TYPE_CHECKING:
    from lakebed.client import Client, Strategy
from lakebed.cli.kit.graph import fits, graph_lines, one_lines, refs_text

commit_app = noun("Commit the uncommitted changes of a branch.")
log_app = noun("Show the history of a ref.")
diff_app = noun("Show changed paths.")
show_app = noun("Show a commit and its changes.")
blame_app = noun("Show the last commit of each path.")
merge_app = noun("Merge one ref into a branch.")

MARKS: Final = {
    "added": ("+", "green"),
    "removed": ("-", "red"),
    "changed": ("~", "yellow"),
    "conflict": ("!", "magenta"),
}
"""For each type of difference its mark and colour; `prefix_changed` has the mark of `changed`."""
CONFLICTS_SHOWN: Final = 10
SNAPSHOTS_SHOWN: Final = 3
NAMES_MAX: Final = 1000
BLAMED_MAX: Final = 50
"""Look at this many commits of a path for the one that wrote what is there."""

StatOption = Annotated[bool, Option("--stat", help="Only count the changes.")]


_NO_STRATEGY: Final = (".lakefs.merge.strategy", "default")


class StrategyName(StrEnum):
    SOURCE_WINS = "source-wins"
    DEST_WINS = "dest-wins"


class TablesName(StrEnum):
    APPEND = "append"


@commit_app.command()
def commit(
    session: Session,
    uri: BranchArgument,
    message: MessageOption,
    meta: MetaOption = None,
    date: Annotated[str, Option("--date", help="The commit's date instead of now: Unix seconds or ISO 8601.")] = "",
    allow_empty: EmptyOption = False,
) -> None:
    """Commit the uncommitted changes of a branch."""
    branch = parse_ref(uri)
    if not message.strip():
        raise Misuse("--message is empty: say what changed")
    metadata, date_s = parse_meta(meta), parse_date(date) if date else None
    with being_something(f"{branch} has no uncommitted changes. --allow-empty commits all the same"):
        made = session.client.history.commit(
            branch.repository, branch.ref, message, metadata=metadata, date_s=date_s, allow_empty=allow_empty
        )
    session.done(f"{made.id[:12]} on {branch}: {printable(made.message)}", made)


@log_app.command()
def log(
    session: Session,
    uri: RefArgument,
    limit: LimitOption = None,
    graph: Annotated[bool, Option("--graph", "-g", help="Show one line a commit, with its branches.")] = False,
    oneline: Annotated[bool, Option("--oneline", help="Show one line a commit: its id, branches and message.")] = False,
    first_parent: Annotated[bool, Option("--first-parent", help="Leave out the commits that merges brought.")] = False,
    objects: Annotated[list[str] | None, Option("--object", help="Only commits that changed this path.")] = None,
    prefixes: Annotated[
        list[str] | None, Option("--prefix", help="Only commits that changed paths that begin with this.")
    ] = None,
    committer: Annotated[str, Option("--committer", metavar="USER", help="Only commits of this user.")] = "",
    since: Annotated[str, Option("--since", metavar="DATE", help="End before commits older than this, or 2d.")] = "",
    stop_at: Annotated[str, Option("--stop-at", metavar="REF", help="End with this commit.")] = "",
    no_merges: Annotated[bool, Option("--no-merges", help="Leave out commits with several parents.")] = False,
) -> None:
    """Show the history of a ref, newest first."""
    ref = parse_ref(uri)
    if graph and session.is_json:
        raise Misuse("--graph draws for people: with -o json leave it out, each commit has its parents there")
    found = session.client.history.log(
        ref.repository,
        ref.ref,
        limit=None if no_merges else limit,
        first_parent=first_parent,
        objects=objects,
        prefixes=prefixes,
        committer=committer,
        since=iso_since(since),
        stop_at=ref_in(ref.repository, stop_at),
    )
    commits = itertools.islice((one for one in found if not no_merges or len(one.parents) < 2), limit)
    names = {} if session.is_json else _names_of(session, ref.repository)
    is_whole = not (no_merges or objects or prefixes or committer)
    text = partial(one_lines if oneline else paragraphs, names=names)
    if graph:
        text = partial(graph_lines, names=names, is_whole=is_whole)
    session.show_all(commits, text, otherwise="no such commit")


def _names_of(session: Session, repository: str) -> dict[str, list[str]]:
    """Return the branches and tags of each commit that is a head, as far as the first thousand of each show.

    One who may not list them, as the key of a sandbox, sees commits without names.
    """
    names: dict[str, list[str]] = {}
    client = session.client
    with contextlib.suppress(Denied):
        for branch in client.branches.list(repository, limit=NAMES_MAX):
            names.setdefault(branch.commit_id, []).append(branch.id)
    with contextlib.suppress(Denied):
        for tag in client.tags.list(repository, limit=NAMES_MAX):
            names.setdefault(tag.commit_id, []).append(f"tag {tag.id}")
    return names


def paragraphs(commits: Iterable[Commit], names: Mapping[str, Sequence[str]] = MappingProxyType({})) -> Iterator[str]:
    """Yield a paragraph for each commit. `names` follow its id, or stand below it on a narrow terminal."""
    for number, commit in enumerate(commits):
        if number:
            yield ""
        name, found = f"commit {commit.id}", refs_text(names, commit)
        is_wide = bool(found) and not fits(f"{name}  {found}")
        yield click.style(name, fg="yellow") + (click.style(f"  {found}", fg="cyan") if found and not is_wide else "")
        refs = [("Refs", ", ".join(names[commit.id]))] if is_wide else []
        parents = [("Merge", " ".join(parent[:12] for parent in commit.parents))] if len(commit.parents) > 1 else []
        committer = [("Author", commit.committer)] if commit.committer else []
        yield from fields([*refs, *parents, *committer, ("Date", human_time(commit.creation_date))])
        yield ""
        for line in commit.message.splitlines():
            yield from hanging("    ", printable(line), indent=4)
        # Which rule a merge went by is the contract's own note, and says nothing where no rule was chosen.
        noted = {name: value for name, value in commit.metadata.items() if (name, value) != _NO_STRATEGY}
        for name, value in sorted(noted.items()):
            yield f"    {printable(name)} = {printable(value)}"


@diff_app.command()
def diff(
    session: Session,
    uri: RefArgument,
    right: Annotated[str, Argument(metavar="REF", help="Compare with this ref.", complete=complete_ref)] = "",
    two_dot: Annotated[bool, Option("--two-dot", help="Show all differences, not only changes of the second.")] = False,
    prefix: PathsOption = "",
    delimiter: Annotated[str, Option("--delimiter", help="Fold paths at this delimiter, such as /.")] = "",
    limit: LimitOption = None,
    stat: StatOption = False,
) -> None:
    """Show changed paths: + added, - removed, ~ changed, ! changed on both sides.

    Of a branch: its uncommitted changes. Of two refs: the changes of the second since they parted.
    """
    left = parse_ref(uri)
    history = session.client.history
    if right:
        other = other_ref(left, right)
        found = history.diff(
            left.repository, left.ref, other.ref, two_dot=two_dot, prefix=prefix, delimiter=delimiter, limit=limit
        )
    else:
        found = history.uncommitted(left.repository, left.ref, prefix=prefix, delimiter=delimiter, limit=limit)
    _show_changes(session, found, stat=stat)


def _show_changes(session: Session, found: Iterator[Diff], *, stat: bool) -> None:
    if stat:
        session.show(Summary.of(found), lambda summary: summary.lines())
    else:
        session.show_all(found, diff_lines, otherwise="no difference")


class Summary(msgspec.Struct, kw_only=True):
    """Count the paths that changed in each way. `bytes_added` counts the new content of added and changed paths."""

    added: int = 0
    changed: int = 0
    removed: int = 0
    conflict: int = 0
    bytes_added: int = 0

    @classmethod
    def of(cls, differences: Iterable[Diff]) -> Summary:
        summary = cls()
        for one in differences:
            kind = one.type if one.type in MARKS else "changed"
            setattr(summary, kind, getattr(summary, kind) + 1)
            if kind in {"added", "changed"}:
                summary.bytes_added += one.size_bytes or 0
        return summary

    def lines(self) -> Iterator[str]:
        for kind, (mark, colour) in MARKS.items():
            if count := getattr(self, kind):
                size = f"  ({human_size(self.bytes_added)} with those changed)" if kind == "added" else ""
                yield click.style(f"{mark} {count_of(count, 'path')} {kind}{size}", fg=colour)
        if not (self.added or self.changed or self.removed or self.conflict):
            yield "nothing changed"


@show_app.command()
def show(session: Session, uri: RefArgument, stat: StatOption = False) -> None:
    """Show a commit, and its changes against its first parent."""
    ref = parse_ref(uri)
    history = session.client.history
    commit = history.get(ref.repository, ref.ref)

    def found() -> Iterator[Diff]:
        try:
            yield from history.diff(ref.repository, commit.parents[0], commit.id, two_dot=True)
        except Denied:  # One may read a branch, and no commit by its id.
            yield from history.diff(ref.repository, f"{ref.ref}~1", ref.ref, two_dot=True)

    changes = _naming_the_parent(commit, found() if commit.parents else iter(()))
    if session.is_json:
        session.show(ShownCommit(commit=commit, changes=Summary.of(changes) if stat else list(changes)), str)
        return
    for line in paragraphs([commit], _names_of(session, ref.repository)):
        session.say(line)
    session.say("")
    _show_changes(session, changes, stat=stat)


def _naming_the_parent(commit: Commit, found: Iterable[Diff]) -> Iterator[Diff]:
    try:
        yield from found
    except NotFound as error:
        # A collection takes a commit whose child stays.
        if commit.parents[0][:12] not in str(error):
            raise
        raise NotFound(
            f"the changes of commit {commit.id[:12]} cannot be shown, its parent is missing: {error}", **error.facts
        ) from error


class ShownCommit(msgspec.Struct, kw_only=True):
    commit: Commit
    changes: list[Diff] | Summary


@blame_app.command()
def blame(
    session: Session,
    uri: Annotated[str, Argument(metavar="URI", help="lakefs://repository/ref/prefix", complete=complete_object)],
    limit: Annotated[int, Option("--limit", "-n", min=1, help="Show at most this many paths.")] = 100,
) -> None:
    """Show for each path below a prefix the commit that wrote it."""
    place = parse_prefix(uri)
    client = session.client

    def lines() -> Iterator[Blamed]:
        found = client.objects.last_commits(place.repository, place.ref, prefix=place.path, limit=limit)
        for one in present(found, place):
            commit = one.commit
            if commit is None and not one.uncommitted:
                # The server's search for a page of paths ended before it. One path alone may take longer.
                commit = _writer_of(client, place, one.path)
            yield Blamed(path=one.path, commit=commit)

    session.show_all(lines(), _blame_lines, otherwise=f"no object at {place}")


def _writer_of(client: Client, place: ObjectUri, path: str) -> Commit | None:
    """Return the newest commit that has this very object, and is no merge: a merge only brought it along."""
    address = client.objects.stat(place.repository, place.ref, path).physical_address

    def has_it(commit: Commit) -> bool:
        try:
            found = client.objects.stat(place.repository, commit.id, path)
        except NotFound:
            return False
        return found.physical_address == address

    found: list[Commit] = []
    for limit in (1, BLAMED_MAX):  # Mostly the first is the one, and a longer list costs the server more.
        found = list(client.history.log(place.repository, place.ref, objects=[path], limit=limit))
        for commit in found:
            if len(commit.parents) < 2 and has_it(commit):
                return commit
        if len(found) < limit:
            break
    return found[0] if found else None


class Blamed(msgspec.Struct, kw_only=True):
    """`commit` None: the path is not committed yet."""

    path: str
    commit: Commit | None


def _blame_lines(found: Iterable[Blamed]) -> Iterator[str]:
    for one in found:
        if one.commit is None:
            yield f"{'(uncommitted)':<12}  {'':20}  {printable(one.path)}"
            continue
        message = one.commit.message.partition("\n")[0]
        name = click.style(one.commit.id[:12], fg="yellow")
        author = f"{printable(one.commit.committer)}: " if one.commit.committer else ""
        label = f"{name}  {human_time(one.commit.creation_date)}  "
        text = f"{printable(one.path)}  {author}{printable(message)}"
        yield from hanging(label, text, indent=len(click.unstyle(label)))


def diff_lines(differences: Iterable[Diff]) -> Iterator[str]:
    """Yield a line for each difference: mark, path, and the size of an added or changed object."""
    for one in differences:
        mark, colour = MARKS.get(one.type, MARKS["changed"])
        size = (
            f"  ({human_size(one.size_bytes)})"
            if one.size_bytes is not None and one.type in {"added", "changed"}
            else ""
        )
        expired = f"  ({one.expired.word})" if one.expired is not None else ""
        yield click.style(f"{mark} {printable(one.path)}{size}{expired}", fg=colour)


@merge_app.command()
def merge(
    session: Session,
    source: RefArgument,
    destination: BranchArgument,
    message: MessageOption = "",
    meta: MetaOption = None,
    strategy: Annotated[
        StrategyName | None, Option("--strategy", "-s", help="Which side wins where both changed a path.")
    ] = None,
    take_source: Annotated[
        list[str] | None,
        Option("--take-source", metavar="PATH", help="The source wins at this path; may be repeated."),
    ] = None,
    take_dest: Annotated[
        list[str] | None,
        Option("--take-dest", metavar="PATH", help="The destination wins at this path; may be repeated."),
    ] = None,
    tables: Annotated[
        TablesName | None,
        Option("--tables", help="Add the rows of both sides to an Iceberg table to which both only appended."),
    ] = None,
    squash: Annotated[bool, Option("--squash", help="Make one commit, without the source's history.")] = False,
    allow_empty: EmptyOption = False,
    refuse_expired: RefuseExpiredOption = False,
    dry_run: Annotated[bool, Option("--dry-run", help="Show the changes, and merge nothing.")] = False,
) -> None:
    """Bring the changes of a ref into a branch. A conflict changes nothing, unless a strategy decides it.

    Where it conflicts, --dry-run marks the paths with ! and fails as the merge would. With --tables it takes tables for
    ones to which both only appended: the merge itself finds out.
    """
    left = parse_ref(source)
    right = other_ref(left, destination)
    if left == right:
        raise Misuse(f"source and destination are the same: {left}")
    choices = _choices(take_source or (), take_dest or ())
    if dry_run:
        changes = [*session.client.history.diff(left.repository, right.ref, left.ref)]
        session.show_all(changes, diff_lines, otherwise="no difference: a merge would bring nothing")
        undecided = (one for one in changes if one.path not in choices and not (tables and _is_table(one.path)))
        paths = [] if strategy else _conflicts(undecided)
        if paths:
            raise Conflict(_conflict_text(session.client, paths, left, right), paths=paths)
        return
    with explaining_merge(session, left, right, "--allow-empty makes a commit all the same"):
        reference = session.client.history.merge(
            left.repository,
            left.ref,
            right.ref,
            message=message,
            metadata=parse_meta(meta),
            strategy=strategy.value if strategy else None,
            choices=choices,
            squash=squash,
            allow_empty=allow_empty,
            refuse_expired=refuse_expired,
            append_tables=tables is not None,
        )
    session.done(f"merged {left} into {right}: {reference[:12]}", MergeResult(reference=reference))
    tell_expired(session, right.repository, f"{reference}~1", reference)


def _choices(take_source: Iterable[str], take_dest: Iterable[str]) -> dict[str, Strategy]:
    """Return the side that wins at each path."""
    choices: dict[str, Strategy] = dict.fromkeys(take_source, "source-wins")
    for path in take_dest:
        if path in choices:
            raise Misuse(f"both --take-source and --take-dest name {printable(path)}")
        choices[path] = "dest-wins"
    return choices


@contextlib.contextmanager
def explaining_merge(session: Session, source: RefUri, destination: RefUri, otherwise: str) -> Iterator[None]:
    """Name the paths of a merge that conflicts. Where the merge would be empty, add the advice `otherwise`.

    Raises:
        Conflict: instead of the server's.
    """
    try:
        with being_something(f"{destination} has all of {source}: there is nothing to merge. {otherwise}"):
            yield
    except Conflict as error:
        paths: list[str] = []
        with contextlib.suppress(LakebedError):  # The caller may lack the right to list: the conflict stays one.
            if "conflict found" in str(error):
                paths = _conflicts(session.client.history.diff(source.repository, destination.ref, source.ref))
        if not paths:
            raise
        text = _conflict_text(session.client, paths, source, destination)
        raise Conflict(text, paths=paths, **error.facts) from error


@contextlib.contextmanager
def explaining_pick(session: Session, branch: RefUri, ref: str, parent_number: int) -> Iterator[None]:
    """Name the paths where a commit cannot be repeated or undone: the branch has them as neither side of it.

    Raises:
        Conflict: instead of the server's.
    """
    try:
        yield
    except Conflict as error:
        if "conflict found" not in str(error):
            raise
        try:
            paths = _pick_conflicts(session.client, branch, ref, parent_number)
        except LakebedError as why:  # A run took the commit, or the caller may not list.
            text = f"{error}: nothing was committed, and the paths cannot be named: {why}"
            raise Conflict(text, **error.facts) from error
        if not paths:
            raise
        text = (
            f"both sides changed {_named(paths)}: nothing was committed. "
            f"`lakebed diff --two-dot {branch} {RefUri(branch.repository, ref)}` shows how they differ"
        )
        raise Conflict(text, paths=paths, **error.facts) from error


def _pick_conflicts(client: Client, branch: RefUri, ref: str, parent_number: int) -> list[str]:
    """Return the first paths that the commit changed and that the branch has as neither side; none without a parent."""
    history = client.history
    parents, number = history.get(branch.repository, ref).parents, max(parent_number, 1)
    if len(parents) < number:
        return []
    parent = parents[number - 1]
    pairs = ((parent, ref), (branch.ref, parent), (branch.ref, ref))
    changed = (
        (one.path for one in history.diff(branch.repository, left, right, two_dot=True)) for left, right in pairs
    )
    return list(itertools.islice(_in_all(*changed), CONFLICTS_SHOWN + 1))


def _in_all(first: Iterable[str], *others: Iterator[str]) -> Iterator[str]:
    """Yield items that the first and all others have. All are sorted; each is read no further than it must be."""
    heads = [next(other, None) for other in others]
    for path in first:
        for number, other in enumerate(others):
            while (head := heads[number]) is not None and head < path:
                heads[number] = next(other, None)
        if all(head == path for head in heads):
            yield path


def tell_expired(session: Session, repository: str, before: str, after: str) -> None:
    """Say how many entries a branch got whose objects a lifecycle policy let go."""
    with contextlib.suppress(LakebedError):  # The command has done its work: an error here is only a missing note.
        if found := session.client.history.count_expired(repository, before, after):
            session.note(
                f"it brought {count_of(found, 'object')} that a lifecycle policy deleted: reading these answers 410"
            )


def _conflicts(changes: Iterable[Diff]) -> list[str]:
    """Return the first paths that both sides changed, and one more than are shown."""
    return list(itertools.islice((one.path for one in changes if one.type == "conflict"), CONFLICTS_SHOWN + 1))


def _conflict_text(client: Client, paths: Sequence[str], source: RefUri, destination: RefUri) -> str:
    if tables := [path.removesuffix(TABLE_RECORD.decode()) for path in paths if _is_table(path)]:
        named = ", ".join(_table_conflict(client, each, source, destination) for each in tables[:CONFLICTS_SHOWN])
        more = ", …" if len(tables) > CONFLICTS_SHOWN else ""
        return (
            f"both sides changed {named}{more}: nothing was merged. No strategy decides a table: if both sides only "
            "appended, --tables append adds the rows of both; else make the change of one side again on the other"
        )
    return (
        f"both sides changed {_named(paths)}: nothing was merged. "
        f"`lakebed diff {destination} {source}` marks these with !, "
        f"`lakebed merge {source} {destination} --strategy source-wins` (or dest-wins) decides them, "
        f"--take-source PATH and --take-dest PATH decide one"
    )


def _table_conflict(client: Client, path: str, source: RefUri, destination: RefUri) -> str:
    """Name a table, and the snapshots that only one side has, with their rows."""
    sides = ""
    with contextlib.suppress(LakebedError):  # The caller may lack the right to read it.
        changes = client.tables.diff(source.repository, destination.ref, source.ref, path)
        both = ((source.ref, changes.snapshots_added), (destination.ref, changes.snapshots_removed))
        sides = f" ({'; '.join(f'{ref}: {_snapshots(some)}' for ref, some in both)})"
    return f"table {shown_name(path)}{sides}"


def _snapshots(some: Sequence[TableSnapshot]) -> str:
    shown = [f"{each.id} {what_of(each)} {rows_of(each)}".rstrip() for each in some[:SNAPSHOTS_SHOWN]]
    return ", ".join([count_of(len(some), "snapshot"), *shown, *(["…"] if len(some) > len(shown) else [])])


def _is_table(path: str) -> bool:
    return path.encode().endswith(TABLE_RECORD)


def _named(paths: Sequence[str]) -> str:
    return ", ".join(map(printable, paths[:CONFLICTS_SHOWN])) + (", …" if len(paths) > CONFLICTS_SHOWN else "")
