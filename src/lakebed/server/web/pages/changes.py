"""Uncommitted changes of a branch: show them, commit them, discard one or all."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from starlette.responses import Response

from lakebed import wire
from lakebed.operations import history
from lakebed.server.http.errors import Answer
from lakebed.server.web.visit import Visit, page_at

from .objects import ROWS, choose_ref

COUNTED: Final = 1000
"""Count at most this many changes by folder: some tens of milliseconds."""


@dataclass(slots=True)
class Tally:
    """Changes below a folder, by their type, and the current bytes."""

    counts: dict[str, int] = field(default_factory=dict)
    size_bytes: int = 0


@page_at("/repositories/{repository}/changes")
async def show(visit: Visit, name: str) -> Response:
    ref, choices = await choose_ref(visit, name)
    prefix, is_tree = visit.query("prefix"), visit.query("tree") == "1"
    changes = await visit.call(
        history.DIFF_BRANCH,
        name,
        ref,
        prefix=prefix,
        delimiter="/" if is_tree else "",
        after=visit.query("after"),
        amount=ROWS,
    )
    tallies = None
    if is_tree and visit.query("count") == "1":
        tallies = tallied(await visit.call(history.DIFF_BRANCH, name, ref, prefix=prefix, amount=COUNTED), prefix)
    return visit.render("changes", name=name, ref=ref, changes=changes, tallies=tallies, counted=COUNTED, **choices)


def tallied(changes: wire.DiffList, prefix: str) -> dict[str, Tally] | None:
    """Return the sums of each folder directly below a prefix, or None if there are more changes than requested."""
    return None if changes.pagination.has_more else _sums(changes.results, prefix)


def _sums(rows: Iterable[wire.Diff], prefix: str) -> dict[str, Tally]:
    sums: dict[str, Tally] = {}
    for row in rows:
        cut = row.path.find("/", len(prefix))
        if cut >= 0:
            tally = sums.setdefault(row.path[: cut + 1], Tally())
            tally.counts[row.type] = tally.counts.get(row.type, 0) + 1
            tally.size_bytes += 0 if row.type == "removed" else row.size_bytes or 0
    return sums


@show.form("/commit")
async def commit(visit: Visit, name: str) -> Response:
    ref = visit.query("ref")
    body = wire.CommitCreation(message=visit.entry("message"), metadata=metadata_of(visit.entry("metadata")))
    made = await visit.call(history.COMMIT, name, ref, body=body)
    return visit.go("repositories", name, "commits", made.id, ref=ref, notice=f"Committed to {ref}.")


@show.form("/discard")
async def discard(visit: Visit, name: str) -> Response:
    """Discard the change of one path, those of a folder or, after the branch's name was typed, all changes."""
    ref, path = visit.query("ref"), visit.query("path")
    if path:
        is_folder = visit.query("folder") == "1"
        body = wire.ResetCreation(type="common_prefix" if is_folder else "object", path=path)
        await visit.call(history.RESET_BRANCH, name, ref, body=body)
    else:
        visit.check_typed(ref)
        await visit.call(history.RESET_BRANCH, name, ref, body=wire.ResetCreation(type="reset"))
    notice = f"Discarded the change of {path}." if path else f"Discarded every uncommitted change of {ref}."
    return visit.go("repositories", name, "changes", ref=ref, notice=notice)


def metadata_of(text: str) -> dict[str, str]:
    """Read lines of `key = value`."""
    metadata: dict[str, str] = {}
    for line in filter(str.strip, text.splitlines()):
        key, equals, value = line.partition("=")
        if not equals or not key.strip():
            raise Answer(400, f"A line of metadata is written as key = value, not {line.strip()}")
        metadata[key.strip()] = value.strip()
    return metadata
