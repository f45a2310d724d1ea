"""The history of a ref, and one commit with its changes."""

from __future__ import annotations

from functools import partial
from typing import Final

from starlette.responses import Response

from lakebed import wire
from lakebed.base import graph
from lakebed.operations import history
from lakebed.server.web.visit import Visit, page_at

from .changes import COUNTED, tallied
from .objects import ROWS, choose_ref

COMMITS: Final = 50
VERSIONS: Final = 30
"""Commits that changed one path: each has two links more than others."""


@page_at("/repositories/{repository}/commits")
async def show_history(visit: Visit, name: str) -> Response:
    ref, choices = await choose_ref(visit, name)
    path, is_line = visit.query("path"), visit.query("first") == "1"
    filters = {each: visit.query(each) for each in ("path", "committer", "since", "first")}
    commits = await visit.call(
        history.LOG_COMMITS,
        name,
        ref,
        after=visit.query("after"),
        amount=VERSIONS if path else COMMITS,
        objects=[path] if path and not path.endswith("/") else None,
        prefixes=[path] if path.endswith("/") else None,
        committer=visit.query("committer"),
        since=visit.query("since"),
        first_parent=is_line or None,
    )
    if commits.pagination.has_more and not commits.results:
        visit.ask_again("repositories", name, "commits", ref=ref, after=commits.pagination.next_offset, **filters)
    # A filter hides commits between the shown ones, so draw no lines between them.
    is_whole = not (path or visit.query("committer"))
    parents = ((each.id, each.parents[:1] if is_line else each.parents) for each in commits.results)
    knots = graph(parents) if is_whole else []
    return visit.render("commits", name=name, ref=ref, path=path, commits=commits, knots=knots, **choices)


@page_at("/repositories/{repository}/commits/{commit}")
async def show_one(visit: Visit, name: str, commit_id: str) -> Response:
    commit = await visit.call(history.GET_COMMIT, name, commit_id)
    prefix, is_tree = visit.query("prefix"), visit.query("tree") == "1"
    changes = tallies = None
    if commit.parents:
        sides = partial(
            visit.look, history.DIFF_REFS, name, commit.parents[0], commit.id, prefix=prefix, type="two_dot"
        )
        changes = await sides(delimiter="/" if is_tree else "", after=visit.query("after"), amount=ROWS)
        if is_tree and visit.query("count") == "1" and (every := await sides(amount=COUNTED)) is not None:
            tallies = tallied(every, prefix)
    return visit.render(
        "commit",
        name=name,
        ref=visit.query("ref") or commit.id,
        commit=commit,
        changes=changes,
        tallies=tallies,
        counted=COUNTED,
    )


@show_one.form("/revert")
async def revert(visit: Visit, name: str, commit_id: str) -> Response:
    """Commit the opposite of a commit on a branch; of a merge, against its first parent."""
    branch = visit.entry("branch").strip()
    number = 1 if visit.query("merge") == "1" else 0
    await visit.call(history.REVERT_BRANCH, name, branch, body=wire.RevertCreation(ref=commit_id, parent_number=number))
    return visit.go("repositories", name, "commits", ref=branch, notice=f"Reverted the commit on {branch}.")


@show_one.form("/cherry-pick")
async def cherry_pick(visit: Visit, name: str, commit_id: str) -> Response:
    """Commit the same change on another branch; of a merge, its change since the first parent."""
    branch = visit.entry("branch").strip()
    number = 1 if visit.query("merge") == "1" else None
    body = wire.CherryPickCreation(ref=commit_id, parent_number=number)
    made = await visit.call(history.CHERRY_PICK, name, branch, body=body)
    return visit.go("repositories", name, "commits", made.id, ref=branch, notice=f"Picked the commit on {branch}.")
