"""Uncommitted changes of a branch: look at them, commit them, discard one or all."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from lakebed import wire
from lakebed.operations import history
from lakebed.server.http.errors import Answer
from lakebed.server.web.visit import Page, Visit

from .objects import CHOICES, ROWS, choose_ref


async def show(visit: Visit) -> Response:
    [name] = visit.args
    ref, choices = await choose_ref(visit, name)
    changes = await visit.call(
        history.DIFF_BRANCH, name, ref, prefix=visit.query("prefix"), after=visit.query("after"), amount=ROWS
    )
    return visit.render("changes", name=name, ref=ref, changes=changes, **choices)


async def commit(visit: Visit) -> Response:
    [name] = visit.args
    ref = visit.query("ref")
    body = wire.CommitCreation(message=visit.entry("message"), metadata=metadata_of(visit.entry("metadata")))
    made = await visit.call(history.COMMIT, name, ref, body=body)
    return visit.go("repositories", name, "commits", made.id, ref=ref, notice=f"Committed to {ref}.")


async def discard(visit: Visit) -> Response:
    """Discard the change of one path or, where the name of the branch was typed, all of them."""
    [name] = visit.args
    ref, path = visit.query("ref"), visit.query("path")
    if path:
        await visit.call(history.RESET_BRANCH, name, ref, body=wire.ResetCreation(type="object", path=path))
    else:
        visit.check_typed(ref)
        await visit.call(history.RESET_BRANCH, name, ref, body=wire.ResetCreation(type="reset"))
    notice = f"Discarded the change of {path}." if path else f"Discarded every uncommitted change of {ref}."
    return visit.go("repositories", name, "changes", ref=ref, notice=notice)


def metadata_of(text: str) -> dict[str, str]:
    """Read lines of `key = value`.

    Raises:
        Answer: a line has no equals sign.
    """
    metadata: dict[str, str] = {}
    for line in filter(str.strip, text.splitlines()):
        key, equals, value = line.partition("=")
        if not equals or not key.strip():
            raise Answer(400, f"A line of metadata is written as key = value, not {line.strip()}")
        metadata[key.strip()] = value.strip()
    return metadata


_SHOW: Final = Page(
    method="GET",
    path="/repositories/{repository}/changes",
    operations=(*CHOICES, history.DIFF_BRANCH),
    handler=show,
)
PAGES: Final = (
    _SHOW,
    Page(
        method="POST",
        path="/repositories/{repository}/changes/commit",
        operations=(history.COMMIT,),
        handler=commit,
        shown_by=_SHOW,
    ),
    Page(
        method="POST",
        path="/repositories/{repository}/changes/discard",
        operations=(history.RESET_BRANCH,),
        handler=discard,
        shown_by=_SHOW,
    ),
)
