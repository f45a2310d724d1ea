"""Quotas of a repository, its branches and users: show how much is used, set, count again and remove them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from starlette.responses import Response

from lakebed import wire
from lakebed.base import Bar, parse_size, shares
from lakebed.operations import sandboxes
from lakebed.server.web.visit import Visit, page_at

ROOT: Final = "/repositories/{repository}/quotas"
ROWS: Final = 50


def used(quotas: Sequence[wire.Quota]) -> list[tuple[wire.Quota, Bar]]:
    """Return each quota with a bar of what is used and held ready."""
    return [
        (one, shares([taken := min(one.used_bytes + one.reserved_bytes, one.limit_bytes), one.limit_bytes - taken])[0])
        for one in quotas
    ]


def limit_of(visit: Visit) -> wire.QuotaSetting:
    return wire.QuotaSetting(limit_bytes=parse_size(visit.entry("limit")), restart=visit.entry("restart") == "1")


@page_at(ROOT)
async def show(visit: Visit, name: str) -> Response:
    # The operation returns all quotas, so the page cuts.
    after = visit.query("after")
    found = (await visit.call(sandboxes.LIST_QUOTAS, name)).results
    every = [one for one in found if not after or (one.of == "branch" and one.name > after)]
    every.sort(key=lambda one: (one.of == "branch", one.name))
    rows = every[:ROWS]
    return visit.render("quotas", name=name, quotas=used(rows), next_after=rows[-1].name if len(every) > ROWS else "")


@show.form()
async def save(visit: Visit, name: str) -> Response:
    branch = visit.entry("branch").strip()
    await visit.call(sandboxes.SET_QUOTA, name, body=limit_of(visit), branch=branch or None)
    return visit.go(
        "repositories", name, "quotas", notice=f"Set the quota of {branch or name}. It holds after 5 seconds."
    )


@show.form("/remove")
async def remove(visit: Visit, name: str) -> Response:
    branch = visit.query("branch")
    visit.check_typed(branch or name)
    await visit.call(sandboxes.REMOVE_QUOTA, name, branch=branch or None)
    return visit.go("repositories", name, "quotas", notice=f"Removed the quota of {branch or name}.")


@show.form("/count")
async def count(visit: Visit, name: str) -> Response:
    await visit.call(sandboxes.COUNT_QUOTA, name)
    return visit.go("repositories", name, "quotas", notice="Counted what is stored.")
