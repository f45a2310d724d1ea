"""Worlds of tables beside the runs that know none: of uncommitted data, of committed data, and of a lifecycle policy.

A run of the first two takes no file that the hidden branch names. A lifecycle run may take what is due at the path that
a table has it; another table that names the same file keeps it, or is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Final

from explorer.actors import Actor, Ending, Violation
from explorer.operations import Operation
from lakebed.catalog.tables import TableChange, TableCommits, TableName
from lakebed.gc.messages import RunKind, RunState, decode_plan, plan_path
from sim.checkers.reachable import nothing_reachable_is_deleted, nothing_undue_is_deleted
from sim.checkers.views import View
from sim.ports.scene import Scene
from sim.worlds.lifecycle import set_policy

from . import deeds as do
from .doing import MAIN, SIDE, Do, note
from .flows import RULED
from .scenes import client
from .tables import (
    BEFORE,
    FOLDER,
    TABLE,
    commit_table,
    merge_appending,
    settle,
    table_scene,
    tables_can_be_read,
    write_files,
)

_OTHER: Final = TableName(("n",), "t2")
_DUE: Final = FOLDER + b"old"
_POLICY: Final = set_policy("q0", b'{"due": {"prefix": "%s", "days": 1}}' % _DUE)
_PARTED: Final = (write_files("f2", "u/last"), commit_table("t3", "u/3", over="u/0", files=["u/more"], branch=SIDE))
"""What a branch appended that parted from `main`."""


def register(name: str, metadata: str, files: Sequence[str]) -> Do:
    """Make a second table of the files of the first."""
    change = TableChange(name=_OTHER, expected=None, metadata=metadata, uuid="u", added=files)
    return Do(Operation(name, "tables", MAIN), lambda repo: TableCommits(repo).commit(MAIN, [change], note(name)))


def table_run_scenes() -> Iterator[Scene]:
    yield from _uncommitted_scenes()
    yield from _committed_scenes()
    yield from _lifecycle_scenes()
    yield from _appending_scenes()


def _uncommitted_scenes() -> Iterator[Scene]:
    run, staged = client("r", do.uncommitted_run("r1")), [write_files("f1", "u/new")]
    names = commit_table("t1", "u/1", over="u/0", files=["u/new"])
    yield _scene("engine, uncommitted run", client("e", names), run, staged=staged)
    yield _scene("engine that writes, uncommitted run", client("e", write_files("f1", "u/new"), names), run)
    yield _scene("settler, uncommitted run of files of tables", client("k", settle("s1")), run, staged=staged)


def _committed_scenes() -> Iterator[Scene]:
    """Let the rules take commits whose table had a file that `main` does not name any more."""
    run = client("r", do.committed_run("r1"))
    before = [*BEFORE, commit_table("t1", "u/1", over="u/0", removed=["u/a"]), RULED]
    again = client("e", commit_table("t2", "u/2", over="u/1", files=["u/a"]))
    yield _scene("engine that names a file again, committed run", again, run, before=before)
    staged = [write_files("f1", "u/new")]
    yield _scene("settler, committed run of tables", client("k", settle("s2")), run, before=before, staged=staged)


def _lifecycle_scenes() -> Iterator[Scene]:
    """Let a policy take a file of a table while another table comes to name it."""
    had = commit_table("t1", "u/1", over="u/0", files=["u/old"])
    before = [*BEFORE, write_files("f1", "u/9"), had, settle("s1"), _POLICY]
    run = client("r", do.collect("r1", RunKind.LIFECYCLE))
    second = client("e", register("t2", "u/9", ["u/a", "u/old"]))
    made = _due(_scene("engine that makes a second table of a file, lifecycle run", second, run, before=before))
    yield made.also(a_plan_names_what_it_breaks)
    over = client("e", commit_table("t2", "u/2", over="u/1", files=[]))
    yield _due(_scene("engine, lifecycle run", over, run, before=before))


def _appending_scenes() -> Iterator[Scene]:
    """Let a merge append what its source appended, and delete the source's branch, beside a run of each kind."""
    both = [commit_table("t1", "u/1", over="u/0", files=["u/new"])]
    for what, run, before, files in (
        ("uncommitted run", do.uncommitted_run("r1"), [], ["u/more"]),
        ("committed run", do.committed_run("r1"), [RULED], ["u/more"]),
        ("lifecycle run", do.collect("r1", RunKind.LIFECYCLE), [_POLICY], ["u/more"]),
        # No table names the second file: that a source does is seen at its branch.
        ("pruning run", do.collect("r1", RunKind.PRUNING, days=10), [], ["u/more", "u/old"]),
    ):
        appends = client("m", merge_appending("m1", SIDE, files), do.delete_branch("d1"))
        ready = [*BEFORE, write_files("f1", "u/new", "u/more"), settle("s1"), *before]
        runs = client("r", run)
        made = _scene(f"merger that appends, {what}", appends, runs, before=ready, beside=_PARTED, staged=both)
        yield _due(made) if before == [_POLICY] else made


def _scene(name: str, *actors: Actor, **how: Any) -> Scene:
    # Commits of the hidden branch name what a pruning run took.
    is_whole = "pruning" not in name
    return table_scene(name, *actors, **how).also(*([nothing_reachable_is_deleted] if is_whole else []))


def _due(made: Scene) -> Scene:
    """Let the table lose the file that is due."""
    made = made.instead(nothing_reachable_is_deleted).instead(tables_can_be_read)
    due = partial(tables_can_be_read, due=frozenset({_DUE}))
    return made.also(due, nothing_undue_is_deleted(_DUE, b"u/old"))


def a_plan_names_what_it_breaks(ending: Ending) -> None:
    """Check that a run whose plan has a file of the table names the table."""
    for run_id, run in View(ending.disk).runs().items():
        held = ending.disk.objectstore.get(plan_path(run.kind, run_id))
        if held is None or run.state is not RunState.ENDED:
            continue
        plan = decode_plan(held[0], run_id)
        if plan.garbage.rows and [(one.table, one.refs) for one in plan.tables] != [(str(TABLE), (MAIN,))]:
            raise Violation(f"the plan takes {plan.garbage.rows} files of {TABLE}, and names {plan.tables}")
