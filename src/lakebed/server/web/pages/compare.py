"""Two refs side by side, and the merge of one into the other."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from lakebed import wire
from lakebed.operations import history
from lakebed.server.web.visit import Page, Visit

from .objects import CHOICES, ROWS, choose_ref


async def show(visit: Visit) -> Response:
    """Show how `ref` differs from `base`: what changed since they parted, or (`all`) each difference."""
    [name] = visit.args
    ref, choices = await choose_ref(visit, name)
    base = visit.query("base")
    changes = distance = None
    if base:
        distance = await visit.look(history.COUNT_AHEAD, name, ref, base)
        changes = await visit.call(
            history.DIFF_REFS,
            name,
            base,
            ref,
            prefix=visit.query("prefix"),
            after=visit.query("after"),
            amount=ROWS,
            type="two_dot" if visit.query("all") == "1" else "three_dot",
        )
    return visit.render("compare", name=name, ref=ref, base=base, changes=changes, distance=distance, **choices)


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
        method="POST",
        path="/repositories/{repository}/compare/merge",
        operations=(history.MERGE_INTO_BRANCH,),
        handler=merge,
        shown_by=_SHOW,
    ),
)
