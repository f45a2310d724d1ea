"""The health of the server: its dependencies, its processes, and their upkeep."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from lakebed.operations import operators
from lakebed.server.web.visit import Page, Visit


async def show(visit: Visit) -> Response:
    return visit.render("health", status=await visit.call(operators.GET_SERVER_STATUS))


PAGES: Final = (Page(method="GET", path="/health", operations=(operators.GET_SERVER_STATUS,), handler=show),)
