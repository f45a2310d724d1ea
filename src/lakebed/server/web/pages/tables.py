"""Iceberg tables: those of a ref, and one with its schema, its snapshots and the commits that brought them."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from lakebed.operations import tables
from lakebed.server.web.visit import Page, Visit

from .objects import CHOICES, ROWS, choose_ref

VERSIONS: Final = 20
"""Versions of a table on its page: each reads a metadata file."""


async def show_all(visit: Visit) -> Response:
    [name] = visit.args
    ref, choices = await choose_ref(visit, name)
    namespace = visit.query("namespace").replace(".", "/").strip("/")
    found = await visit.call(
        tables.LIST_ALL_TABLES, name, ref, namespace=namespace, after=visit.query("after"), amount=ROWS
    )
    return visit.render("tables", name=name, ref=ref, namespace=namespace, found=found, **choices)


async def show_one(visit: Visit) -> Response:
    [name] = visit.args
    ref, choices = await choose_ref(visit, name)
    path = visit.query("table")
    table = await visit.call(tables.STAT_TABLE, name, ref, table=path)
    versions = await visit.look(
        tables.LIST_TABLE_VERSIONS, name, ref, table=path, after=visit.query("after"), amount=VERSIONS
    )
    return visit.render("table", name=name, ref=ref, path=path, table=table, versions=versions, **choices)


PAGES: Final = (
    Page(
        method="GET",
        path="/repositories/{repository}/tables",
        operations=(*CHOICES, tables.LIST_ALL_TABLES),
        handler=show_all,
    ),
    Page(
        method="GET",
        path="/repositories/{repository}/table",
        operations=(*CHOICES, tables.STAT_TABLE, tables.LIST_TABLE_VERSIONS),
        handler=show_one,
    ),
)
