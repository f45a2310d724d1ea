"""Two refs side by side, the merge of one into the other, and pull requests, which ask for a merge."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, cast

from starlette.responses import Response

from lakebed import wire
from lakebed.base import NotFound
from lakebed.operations import history, objects, repositories, tables
from lakebed.server.web.visit import Visit, page_at

from .changes import COUNTED, tallied
from .objects import REFS, ROWS, Side, choose_ref, is_branch_of, parents_of, side_of

CONFLICTS: Final = 50
RUNS: Final = 10
STATUSES: Final = ("open", "closed", "all")
PAGES_MAX: Final = 10
ROWS_OF_PAGE: Final = 1000
"""Search at most this many pages of changes for conflicts. Each takes some tens of milliseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflicts:
    """The paths with merge conflicts. `looked_at`: number of checked changes. `after`: where an incomplete search
    ended.
    """

    rows: list[wire.Diff]
    looked_at: int
    after: str = ""


@page_at("/repositories/{repository}/compare")
async def show(visit: Visit, name: str) -> Response:
    """Show how `ref` differs from `base`: changes since their common ancestor, or (`all`) each difference."""
    ref, choices = await choose_ref(visit, name)
    base = visit.query("base")
    prefix, is_tree = visit.query("prefix"), visit.query("tree") == "1"
    sides: Literal["two_dot", "three_dot"] = "two_dot" if visit.query("all") == "1" else "three_dot"
    changes = distance = conflicts = tallies = None
    takes_merge = bool(base) and await is_branch_of(visit, name, base)
    if base:
        distance = await visit.look(history.COUNT_AHEAD, name, ref, base)
        changes = await visit.call(
            history.DIFF_REFS,
            name,
            base,
            ref,
            prefix=prefix,
            delimiter="/" if is_tree else "",
            after=visit.query("after"),
            amount=ROWS,
            type=sides,
        )
        if is_tree and visit.query("count") == "1":
            every = await visit.call(history.DIFF_REFS, name, base, ref, prefix=prefix, amount=COUNTED, type=sides)
            tallies = tallied(every, prefix)
        if visit.query("conflicts") == "1":
            conflicts = await _conflicts(visit, name, base, ref)
    return visit.render(
        "compare",
        name=name,
        ref=ref,
        base=base,
        changes=changes,
        tallies=tallies,
        counted=COUNTED,
        distance=distance,
        conflicts=conflicts,
        takes_merge=takes_merge,
        sides=_sides(visit),
        **choices,
    )


@page_at("/repositories/{repository}/compare/contents")
async def show_contents(visit: Visit, name: str) -> Response:
    """Show an object in two refs. The browser reads both objects and computes the changed lines."""
    base, ref, path = visit.query("base"), visit.query("ref"), visit.query("path")
    left, right = await _side(visit, name, base, path), await _side(visit, name, ref, path)
    if left is None and right is None:
        raise NotFound(f"neither {base} nor {ref} has an object {path}")
    folder = path[: path.rfind("/") + 1]
    return visit.render(
        "contents",
        name=name,
        base=base,
        ref=ref,
        path=path,
        parents=parents_of(folder),
        last=path.removeprefix(folder) or path,
        sides=[("On", left), ("On", right)],
        same=left is not None and right is not None and left.stats.checksum == right.stats.checksum,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldRow:
    """A field of a table on both sides, and its mark: added, removed, changed, or empty."""

    before: wire.TableField | None
    after: wire.TableField | None
    mark: str


@page_at("/repositories/{repository}/compare/table")
async def show_table(visit: Visit, name: str) -> Response:
    """Show a table in two refs: totals, schema, snapshots, and the files that only one side has."""
    base, ref, path = visit.query("base"), visit.query("ref"), visit.query("table")
    difference = await visit.call(tables.DIFF_TABLE, name, base, ref, table=path)
    left, right = await _table(visit, name, base, path), await _table(visit, name, ref, path)
    return visit.render(
        "compared_table",
        name=name,
        base=base,
        ref=ref,
        path=path,
        difference=difference,
        left=left,
        right=right,
        fields=_fields(difference, [] if right is None else right.fields),
    )


async def _table(visit: Visit, name: str, ref: str, path: str) -> wire.TableDetails | None:
    try:
        return await visit.look(tables.STAT_TABLE, name, ref, table=path)
    except NotFound:
        return None


def _fields(difference: wire.TableDifference, fields: Sequence[wire.TableField]) -> list[FieldRow]:
    """Return the fields of the right side in their order, then those that only the left side has."""
    changes = {each.after.id: each.before for each in difference.fields if each.after is not None}
    rows = [
        FieldRow(
            before=changes.get(each.id, each),
            after=each,
            mark="" if each.id not in changes else "added" if changes[each.id] is None else "changed",
        )
        for each in fields
    ]
    gone = (each.before for each in difference.fields if each.after is None)
    return [*rows, *(FieldRow(before=each, after=None, mark="removed") for each in gone)]


async def _side(visit: Visit, name: str, ref: str, path: str) -> Side | None:
    try:
        return side_of(visit, name, ref, await visit.call(objects.STAT_OBJECT, name, ref, path=path))
    except NotFound:
        return None


async def _conflicts(visit: Visit, name: str, base: str, ref: str) -> Conflicts:
    rows: list[wire.Diff] = []
    looked_at, after = 0, ""
    for _ in range(PAGES_MAX):
        page = await visit.call(history.DIFF_REFS, name, base, ref, after=after, amount=ROWS_OF_PAGE, type="three_dot")
        rows += [row for row in page.results if row.type == "conflict"]
        looked_at += len(page.results)
        after = page.pagination.next_offset if page.pagination.has_more else ""
        if not after or len(rows) >= CONFLICTS:
            break
    is_cut = len(rows) > CONFLICTS
    return Conflicts(
        rows=rows[:CONFLICTS], looked_at=looked_at, after=after or (rows[CONFLICTS].path if is_cut else "")
    )


@show.form("/merge")
async def merge(visit: Visit, name: str) -> Response:
    ref, base = visit.query("ref"), visit.query("base")
    body = wire.Merge(
        message=visit.entry("message") or None,
        strategy=visit.entry("strategy") or None,
        tables=visit.entry("tables") or None,
        choices=_sides(visit) or None,
        squash_merge=visit.entry("squash") == "1",
    )
    made = await visit.call(history.MERGE_INTO_BRANCH, name, ref, base, body=body)
    return visit.go("repositories", name, "commits", made.reference, ref=base, notice=f"Merged {ref} into {base}.")


def _sides(visit: Visit) -> dict[str, Literal["source-wins", "dest-wins"]]:
    """Return the side that was chosen for each path. The operation checks it."""
    chosen = zip(visit.entered.get("path", ()), visit.entered.get("side", ()), strict=False)
    return {path: cast("Literal['source-wins', 'dest-wins']", side) for path, side in chosen if side}


@page_at("/repositories/{repository}/pulls")
async def show_pulls(visit: Visit, name: str) -> Response:
    status = visit.query("status", "open")
    pulls = await visit.call(
        repositories.LIST_PULL_REQUESTS, name, status=status, after=visit.query("after"), amount=ROWS
    )
    branches = await visit.look(history.LIST_BRANCHES, name, amount=REFS)
    return visit.render("pulls", name=name, pulls=pulls, status=status, statuses=STATUSES, branches=branches)


@show_pulls.form()
async def open_pull(visit: Visit, name: str) -> Response:
    body = wire.PullRequestCreation(
        title=visit.entry("title"),
        description=visit.entry("description"),
        source_branch=visit.entry("source"),
        destination_branch=visit.entry("destination"),
    )
    made = await visit.call(repositories.CREATE_PULL_REQUEST, name, body=body)
    return visit.go("repositories", name, "pulls", made.id, notice="Opened the pull request.")


@page_at("/repositories/{repository}/pulls/{pull}")
async def show_pull(visit: Visit, name: str, number: str) -> Response:
    pull = await visit.call(repositories.GET_PULL_REQUEST, name, number)
    changes = None
    if pull.status == "open":
        changes = await visit.look(
            history.DIFF_REFS,
            name,
            pull.destination_branch,
            pull.source_branch,
            after=visit.query("after"),
            amount=ROWS,
        )
    of_whom = {"commit": pull.merged_commit_id} if pull.merged_commit_id else {"branch": pull.source_branch}
    runs = await visit.look(repositories.LIST_REPOSITORY_RUNS, name, amount=RUNS, **of_whom)
    return visit.render("pull", name=name, pull=pull, changes=changes, runs=runs)


@show_pull.form("/merge")
async def merge_pull(visit: Visit, name: str, number: str) -> Response:
    await visit.call(repositories.MERGE_PULL_REQUEST, name, number)
    return visit.go("repositories", name, "pulls", number, notice="Merged.")


@show_pull.form("/status")
async def change_pull(visit: Visit, name: str, number: str) -> Response:
    """Close the pull request, or reopen it."""
    status = visit.query("status")
    await visit.call(repositories.UPDATE_PULL_REQUEST, name, number, body=wire.PullRequestBasic(status=status))
    return visit.go("repositories", name, "pulls", number, notice=f"The pull request is {status}.")
