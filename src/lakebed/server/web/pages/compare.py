"""Two refs side by side, and the merge of one into the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from starlette.responses import Response

from lakebed import wire
from lakebed.base import NotFound
from lakebed.operations import history, objects
from lakebed.server.web.visit import Page, Visit

from .changes import COUNTED, tallied
from .objects import CHOICES, ROWS, Side, choose_ref, parents_of, side_of

CONFLICTS: Final = 50
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


async def show(visit: Visit) -> Response:
    """Show how `ref` differs from `base`: changes since their common ancestor, or (`all`) each difference."""
    [name] = visit.args
    ref, choices = await choose_ref(visit, name)
    base = visit.query("base")
    prefix, is_tree = visit.query("prefix"), visit.query("tree") == "1"
    sides: Literal["two_dot", "three_dot"] = "two_dot" if visit.query("all") == "1" else "three_dot"
    changes = distance = conflicts = tallies = None
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
        **choices,
    )


async def show_contents(visit: Visit) -> Response:
    """Show an object in two refs. The browser reads both objects and computes the changed lines."""
    [name] = visit.args
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


async def merge(visit: Visit) -> Response:
    [name] = visit.args
    ref, base = visit.query("ref"), visit.query("base")
    body = wire.Merge(
        message=visit.entry("message") or None,
        strategy=visit.entry("strategy") or None,
        squash_merge=visit.entry("squash") == "1",
    )
    made = await visit.call(history.MERGE_INTO_BRANCH, name, ref, base, body=body)
    return visit.go("repositories", name, "commits", made.reference, ref=base, notice=f"Merged {ref} into {base}.")


_SHOW: Final = Page(
    method="GET",
    path="/repositories/{repository}/compare",
    operations=(*CHOICES, history.COUNT_AHEAD, history.DIFF_REFS),
    handler=show,
)
PAGES: Final = (
    _SHOW,
    Page(
        method="GET",
        path="/repositories/{repository}/compare/contents",
        operations=(objects.STAT_OBJECT,),
        handler=show_contents,
    ),
    Page(
        method="POST",
        path="/repositories/{repository}/compare/merge",
        operations=(history.MERGE_INTO_BRANCH,),
        handler=merge,
        shown_by=_SHOW,
    ),
)
