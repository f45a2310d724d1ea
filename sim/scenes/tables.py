"""Worlds of tables: engines that write files and commit them, beside runs that prune what nothing names.

What a ref or a commit has of a table is reached by URI: by a file's path on the hidden branch. So after each schedule
every such path must show the object that the table's entry names, with its bytes, and no run's note that it is gone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from typing import Any, Final

from explorer.actors import Actor, Ending, Violation
from explorer.operations import Operation
from lakebed.base import EMPTY_METARANGE, CommitId, RepositoryId, from_row
from lakebed.catalog import Settings
from lakebed.catalog.dump_files import DUMPS, DumpedRef, DumpKind, InvalidDump, parse_file_id, read_dump
from lakebed.catalog.dumps import Dumps
from lakebed.catalog.tables import RECORD, TABLES, TableChange, TableCommits, TableName, Tables
from lakebed.catalog.tables.names import file_in
from lakebed.gc.messages import RunKind
from lakebed.versions import (
    Commit,
    Condition,
    MergeConflict,
    PathExists,
    Settlement,
    Sides,
    Versions,
    decode_record,
    keys,
)
from sim.checkers.reachable import histories, nothing_reachable_is_deleted
from sim.checkers.views import View
from sim.ports.scene import Scene
from sim.worlds.undoing import undo

from . import deeds as do
from .doing import MAIN, SIDE, Do, doing, note, put_bytes
from .scenes import client, scene

TABLE: Final = TableName(("n",), "t")
FOLDER: Final = TABLE.folder
_APPENDED: Final = "+"
"""Added to the name of the metadata that a merge appended to."""


@doing("tables")
async def begin(repo: Versions) -> None:
    """Make the hidden branch."""
    empty = Commit(
        generation=1, message="", committer="sim", created_ms=0, metarange_id=EMPTY_METARANGE, parents=(), nonce="t"
    )
    await repo.recorder.record(empty.id, empty)
    await repo.refs.create_branch(TABLES, empty.id, work_of=TABLES)


@doing("tables")
async def write_files(repo: Versions, *files: str) -> None:
    for file in files:
        await _put(repo, file)


@doing("tables", "branch")
async def commit_table(
    repo: Versions,
    metadata: str,
    *,
    over: str | None,
    files: Sequence[str] = (),
    removed: Sequence[str] = (),
    branch: str = MAIN,
) -> None:
    """Write a metadata file and commit it over another; `files` are there already. What is refused is given up."""
    await _put(repo, metadata)
    change = TableChange(name=TABLE, expected=over, metadata=metadata, uuid="u", added=files, removed=removed)
    await TableCommits(repo).commit(branch, [change], note(f"{over}>{metadata}"))


def merge_appending(name: str, source: str, files: Sequence[str]) -> Do:
    """Merge a branch; a table that both changed gets these files of the source behind those of the destination."""

    async def act(repo: Versions) -> None:
        tables = TableCommits(repo)

        async def settled(sides: Sides, _: MergeConflict) -> Settlement:
            [row] = await tables.records(sides.head, [TABLE])
            over = file_in(None if row is None else from_row(row))
            metadata = f"{over}{_APPENDED}"
            await _put(repo, metadata)
            change = TableChange(name=TABLE, expected=over, metadata=metadata, uuid="u", added=files)
            return await tables.settled(sides, [change])

        await repo.merges.merge(source, MAIN, note(name), settle=settled)

    return Do(Operation(name, "tables", MAIN), act)


@doing("tables")
async def settle(repo: Versions) -> None:
    """Commit what is staged on the hidden branch, and remove what is gone, as upkeep does."""
    await Tables("sim", repo, _settings(repo), None, None, repo.ports).settle()  # type: ignore[arg-type]  # unused


@doing("tables")
async def dump(repo: Versions) -> None:
    settings = _settings(repo)
    tables = Tables("sim", repo, settings, None, None, repo.ports)  # type: ignore[arg-type]  # unused
    await Dumps(
        repo,
        repo.objectstore,
        settings,
        None,  # type: ignore[arg-type]  # of restores
        repo.ports,
        repository_id=RepositoryId("sim"),
        default_branch=MAIN,
        settle=tables.settle,
    ).dump()


async def _put(repo: Versions, file: str) -> None:
    """Write a file as an engine does: sent again, it is the same file."""
    path = file.encode()
    with suppress(PathExists):
        await put_bytes(repo, TABLES, path, path, file, condition=Condition(if_none_match=True))


def _settings(repo: Versions) -> Settings:
    return Settings(repo.uid, repo.store, repo.ports)


BEFORE: Final = [
    do.upload("w0", "n/namespace.json", "n"),
    do.commit("p0"),
    begin("b0"),
    write_files("f0", "u/a", "u/old"),
    commit_table("t0", "u/0", over=None, files=["u/a"]),
    settle("s0"),
]
"""A table with a file, and a file that no table names: old, and in a commit of the hidden branch."""


def table_scenes() -> Iterator[Scene]:
    run = client("r", do.collect("r1", RunKind.PRUNING, days=10))
    late = client("e", commit_table("t1", "u/1", over="u/0", files=["u/old"]))
    yield table_scene("engine that names an old file, pruning run", late, run)
    back = client("r", do.collect("r1", RunKind.PRUNING, days=10), again=[do.resume("r2")])
    yield table_scene("engine that names an old file, pruning run that comes back", late, back)
    deferring = client("r", do.collect("r1", RunKind.PRUNING, days=10, window="7d"))
    yield table_scene("engine that names an old file, pruning run that defers", late, deferring)
    copier = client("c", do.copy("c1", "u/old", "b", "3", ref=TABLES))
    yield table_scene("copier of an old file, pruning run", copier, run)
    settled = client("k", settle("s2"))
    staged = [write_files("f1", "u/new")]
    yield table_scene("settler, pruning run", settled, run, staged=staged)
    # One run waits for its window, and another has ended: upkeep removes what that one took.
    deferred = [*BEFORE, do.collect("q1", RunKind.PRUNING, days=10, window="7d")]
    deferred += [write_files("f1", "u/more"), settle("s1"), do.collect("q2", RunKind.PRUNING, days=10)]
    undone = client("u", undo("u1"))
    undoing = table_scene("settler, undoer of a pruning run", settled, undone, before=deferred)
    yield undoing.also(undone_files_are_back)
    yield from _dumped_scenes()
    yield from _writing_scenes()


def _dumped_scenes() -> Iterator[Scene]:
    staged = [write_files("f1", "u/new")]
    engine = client("e", commit_table("t1", "u/1", over="u/0", files=["u/new"]))
    for name, actor in (("engine", engine), ("settler", client("k", settle("s1")))):
        made = table_scene(f"{name}, dumper", actor, client("d", dump("d1")), staged=staged)
        yield made.also(dumps_have_the_files_of_tables)


def _writing_scenes() -> Iterator[Scene]:
    """Let engines, branches and merges meet, without a run."""
    files = [write_files("f1", "u/new", "u/more")]
    one = client("e", commit_table("t1", "u/1", over="u/0", files=["u/new"]))
    two = client("f", commit_table("t2", "u/2", over="u/0", files=["u/more"]))
    yield table_scene("engine, second engine", one, two, staged=files)
    settled = client("k", settle("s1"))
    yield table_scene("engine, settler", one, settled, staged=files)
    beside = [commit_table("t2", "u/2", over="u/0", files=["u/a"], branch=SIDE)]
    yield table_scene("engine, merger of a table", one, client("m", do.merge("m1", SIDE)), beside=beside, staged=files)
    # Both sides appended since they parted, and the destination appends once more.
    parted = [*files, write_files("f2", "u/last")]
    parted += [commit_table("t3", "u/3", over="u/0", files=["u/more"], branch=SIDE)]
    again = client("e", commit_table("t2", "u/2", over="u/1", files=["u/last"]))
    both = [commit_table("t1", "u/1", over="u/0", files=["u/new"])]
    appender = client("m", merge_appending("m1", SIDE, ["u/more"]))
    made = table_scene("engine, merger that appends", again, appender, beside=parted, staged=both)
    yield made.also(appended_tables_have_both)
    removing = commit_table("t1", "u/1", over="u/0", files=["u/new"], removed=["u/a"])
    gone = [*BEFORE, write_files("f1", "u/new"), removing]
    branching = client("h", do.create_branch("h1", "main~1"))
    reverting = client("v", do.revert("v1", MAIN))
    yield table_scene("brancher from an old table, reverter of a table", branching, reverting, before=gone)


def table_scene(name: str, *actors: Actor, before: Sequence[Do] = BEFORE, **how: Any) -> Scene:
    made = scene(name, *actors, before=before, **how).instead(nothing_reachable_is_deleted)
    return made.also(tables_can_be_read, tables_follow)


def tables_can_be_read(ending: Ending, *, due: AbstractSet[bytes] = frozenset()) -> None:
    """Check that each file that a table of a ref or of its history reaches is at its URI, but for these paths."""
    disk, view = ending.disk, View(ending.disk)
    there = _files(ending)
    for name, branch in view.branches().items():
        staged = [row for token in branch.tokens() for row in view.rows(token).values() if row is not None]
        for row in staged if name != TABLES else ():
            if from_row(row).address not in disk.objectstore:
                raise Violation(f"{from_row(row).address} is staged on {name}, and gone")
    for commit_id in _commits(view):
        for path, row in view.pairs(commit_id):
            address = from_row(row).address
            if path in due:
                continue
            if address not in disk.objectstore:
                raise Violation(f"{path!r} of {commit_id[:6]} is gone")
            if path.startswith(FOLDER) and path != FOLDER + RECORD.encode():
                file = b"u/" + path[len(FOLDER) :]
                if there.get(file) != address:
                    raise Violation(f"the URI of {file!r} shows {there.get(file)}, and a table names {address}")


def dumps_have_the_files_of_tables(ending: Ending) -> None:
    """Check that the branch of tables in a dump has each file that a table of the dump reaches."""
    view = View(ending.disk)
    for refs in _dumped(ending):
        trees = {name: view.pairs(ref.commit_id) for name, ref in refs.items()}
        heads = {name: {path: from_row(row).address for path, row in tree} for name, tree in trees.items()}
        for name, pairs in heads.items():
            for path, address in pairs.items() if name != TABLES else ():
                file = b"u/" + path[len(FOLDER) :]
                if path.startswith(FOLDER) and path != FOLDER + RECORD.encode() and heads[TABLES].get(file) != address:
                    raise Violation(f"the dump has {path!r} of {name}, and no {file!r} of {TABLES}")


def _dumped(ending: Ending) -> Iterator[dict[str, DumpedRef]]:
    """Yield the branches of each dump."""
    for key, (data, _, _) in ending.disk.objectstore.items():
        file_id = parse_file_id(key.removeprefix(DUMPS).removesuffix(".parquet").replace("/", "-"))
        with suppress(InvalidDump):
            rows = [] if file_id is None else list(read_dump(file_id, DumpKind.BRANCHES, data))
            if rows:
                yield {name[len(keys.BRANCH) :].decode(): decode_record(DumpedRef, value) for name, value in rows}


def tables_follow(ending: Ending) -> None:
    """Check that each commit of a table replaced the metadata that its engine had read."""
    view = View(ending.disk)
    for commit_id in _commits(view):
        made = view.commit(commit_id)
        over, arrow, metadata = made.message.partition(">")
        if not arrow:
            continue
        found = [_metadata(ending, one) for one in (made.parents[0], commit_id)]
        if found != [None if over == "None" else over, metadata]:
            raise Violation(f"{metadata} was made for {over}, and replaced {found[0]}")


def appended_tables_have_both(ending: Ending) -> None:
    """Check that a merge which appended to a table has the destination's files and the source's, and no more."""
    view = View(ending.disk)
    for commit_id in _commits(view):
        made = view.commit(commit_id)
        found = _metadata(ending, commit_id)
        if len(made.parents) < 2 or found is None or not found.endswith(_APPENDED):
            continue
        before = made.parents[0]
        if found != f"{_metadata(ending, before)}{_APPENDED}":
            raise Violation(f"{found} was made for another table than {_metadata(ending, before)}")
        wanted = _reached(ending, before) | {b"more", found.removeprefix("u/").encode()}
        if _reached(ending, commit_id) != wanted:
            raise Violation(f"{found} has {_reached(ending, commit_id)}, and not {wanted}")


def _reached(ending: Ending, commit_id: CommitId) -> set[bytes]:
    """Return the files that the table of a commit has entries for."""
    paths = (path for path, _ in View(ending.disk).pairs(commit_id))
    return {path[len(FOLDER) :] for path in paths if path.startswith(FOLDER)} - {RECORD.encode()}


def undone_files_are_back(ending: Ending) -> None:
    """Check that a run which was undone took no file from the hidden branch."""
    undone = [run for run in View(ending.disk).runs().values() if run.state.value == "undone"]
    if undone and b"u/old" not in _files(ending):
        raise Violation("the run was undone, and the file's URI shows nothing")


def _metadata(ending: Ending, commit_id: CommitId) -> str | None:
    row = dict(View(ending.disk).pairs(commit_id)).get(FOLDER + RECORD.encode())
    return None if row is None else file_in(from_row(row))


def _commits(view: View) -> list[CommitId]:
    heads = {branch.commit_id for name, branch in view.branches().items() if name != TABLES}
    return [one for one in histories(view, heads) if not view.is_swept(one) and view.commit(one).metarange_id]


def _files(ending: Ending) -> dict[bytes, str]:
    """Return what the hidden branch shows."""
    view = View(ending.disk)
    branch = view.branch(TABLES)
    assert branch is not None, "it is never deleted"
    return view.addresses(branch)
