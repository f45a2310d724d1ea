"""Say which repository, ref and namespace a request is about.

A client with a warehouse sends a prefix, `lake.main`: no id of a repository has a dot. A client without one sends
namespaces that begin with repository and ref. Then answers have both in front, too (`CatalogRequest.outer`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, unquote

from lakebed.catalog.tables import TableName
from lakebed.server.http.errors import InvalidParameter
from lakebed.server.http.requests import RestRequest
from lakebed.versions import Note
from lakebed.wire import TableIdentifier

NO_PREFIX: Final = b"-"
"""Stands in a path for the prefix that it lacks."""
SEPARATOR: Final = "\x1f"
_UNPREFIXED: Final = (b"namespaces", b"tables", b"transactions")


class CatalogRequest(RestRequest):
    """`outer`: the levels before each namespace of this client: repository and ref, where it has no warehouse."""

    outer: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Warehouse:
    repository: str
    ref: str

    @property
    def prefix(self) -> str:
        return f"{self.repository}.{quote(self.ref, safe='')}"


def warehouse_of(text: str) -> Warehouse:
    """Read `REPOSITORY/REF`, as a user writes it."""
    repository, _, ref = text.removeprefix("lakefs://").removeprefix("s3://").partition("/")
    if not repository or not ref:
        raise InvalidParameter(f"the warehouse is REPOSITORY/REF, as lake/main, and not {text[:200]!a}")
    return Warehouse(repository, ref)


def of_prefix(segment: str) -> Warehouse:
    repository, _, ref = segment.partition(".")
    # Some clients encode the prefix once more. No ref has a percent sign.
    return Warehouse(repository, unquote(ref))


def with_prefix(path: bytes) -> bytes:
    """Return a path that has a segment for the prefix, of a client with one or without."""
    first, _, rest = path.partition(b"/")
    if first == b"namespaces" and not rest:
        return path  # Repositories, or branches: `listCatalogs`. A POST has its namespace in the body.
    return NO_PREFIX + b"/" + path if first in _UNPREFIXED else path


def levels_of(text: str) -> tuple[str, ...]:
    """Split a namespace of a path or a query.

    Raises:
        InvalidParameter: see `checked`.
    """
    return checked(text.split(SEPARATOR)) if text else ()


def checked(levels: Sequence[str]) -> tuple[str, ...]:
    """Return the levels of a namespace."""
    for level in levels:
        if not level or "/" in level:
            raise InvalidParameter(f"{level[:200]!a} is no level of a namespace")
    return tuple(levels)


def split_outer(levels: Sequence[str], *, may_be_short: bool = False) -> tuple[Warehouse, tuple[str, ...]]:
    """Take repository and ref from the front of a namespace. The ref of one that is a repository is empty."""
    if len(levels) == 1 and may_be_short:
        return Warehouse(levels[0], ""), ()
    if len(levels) < 2:
        raise InvalidParameter("without a warehouse, a namespace begins with repository and ref: lake.main.sales")
    return Warehouse(levels[0], levels[1]), tuple(levels[2:])


def inner(request: RestRequest, levels: Sequence[str]) -> tuple[str, ...]:
    """Return a namespace of a body, without the levels that this client has in front."""
    outer = outer_of(request)
    found = checked(levels)
    if found[: len(outer)] != outer:
        raise InvalidParameter(f"one request is about one branch, {'.'.join(outer)}, and not {'.'.join(levels)[:200]}")
    return found[len(outer) :]


def outer_of(request: RestRequest) -> tuple[str, ...]:
    return request.outer if isinstance(request, CatalogRequest) else ()


def path_of(request: RestRequest, name: TableName) -> str:
    """Return the path of a table below the catalog's version, as this client writes it."""
    prefix = "" if outer_of(request) else f"{Warehouse(*request.args[:2]).prefix}/"
    levels = quote(SEPARATOR.join(shown(request, name.namespace)), safe="")
    return f"{prefix}namespaces/{levels}/tables/{quote(name.name, safe='')}"


def shown(request: RestRequest, namespace: Sequence[str]) -> list[str]:
    return [*outer_of(request), *namespace]


def shown_name(request: RestRequest, name: TableName) -> TableIdentifier:
    return TableIdentifier(namespace=shown(request, name.namespace), name=name.name)


def namespace_of(request: RestRequest) -> tuple[str, ...]:
    """Return the namespace of a route that has one; empty for the ref itself."""
    return tuple(request.args[2].split("/")) if request.args[2] else ()


def table_of(request: RestRequest) -> TableName:
    """Return the table of a route that has one."""
    return TableName(namespace=namespace_of(request), name=request.args[3])


def names_in(request: RestRequest, namespace: Sequence[str], table: str = "") -> dict[str, str]:
    """Return the names that a permission may ask about, of a namespace or table of the request's ref."""
    repository, ref = request.args[:2]
    return {"repository": repository, "ref": ref, "namespace": "/".join(namespace), "table": table}


def note_of(request: RestRequest, message: str) -> Note:
    """Return the note of a commit that the caller makes."""
    return Note(message=message, committer=request.identity.user_id)
