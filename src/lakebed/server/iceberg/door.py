"""Answer one request of the catalog: find its place, its caller and its handler, and answer errors in its form."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable
from typing import Final

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope

from lakebed.auth import Identity, NotPermitted, Permissions
from lakebed.base import AlreadyExists, Conflict, LakebedError, NotFound, OutcomeUnknown
from lakebed.catalog import tables as core
from lakebed.operations import tables as operations
from lakebed.server.http.errors import Answer, InvalidParameter, NoSuchEndpoint, log_failure, status_and_message
from lakebed.server.http.gate import permissions_of
from lakebed.server.http.requests import JsonResponse, answer
from lakebed.server.http.routing import Route, Router
from lakebed.server.state import AppState
from lakebed.wire import CatalogError, CatalogFault, NamespaceProperties, TableRename, TablesCommit

from .changing import load_library
from .namespaces import OAuthRefused
from .places import NO_PREFIX, CatalogRequest, checked, levels_of, of_prefix, split_outer, with_prefix

logger = logging.getLogger(__name__)

PATH: Final = b"/iceberg/"
_VERSION: Final = b"v1/"
# By segment: a namespace or a table may be named `views`.
_VIEWS: Final = re.compile(rb"(?:[^/]+/)?(?:views/.*|namespaces/[^/]+/(?:views(?:/.*)?|register-view))")
_OF_REFS: Final = (operations.LOAD_NAMESPACE, operations.NAMESPACE_EXISTS)
"""Clients without a warehouse ask whether there are a repository and a ref: these are namespaces, too."""


class CatalogDoor:
    def __init__(self, state: AppState, routes: Iterable[Route], trusted: Identity | None = None) -> None:
        self._state = state
        self._trusted = trusted
        self._router = Router(routes)

    def is_asked(self, scope: Scope) -> bool:
        path: bytes = scope["raw_path"]
        return path.startswith(PATH)

    def request(self, scope: Scope, receive: Receive) -> CatalogRequest:
        return CatalogRequest(scope, receive)

    async def answer(self, request: CatalogRequest) -> Response:
        """Run the request, and return the handler's answer.

        Raises:
            NoSuchEndpoint, MethodNotAllowed: the catalog has no such route.
            NotAuthenticated, NotPermitted: the caller is unknown, or may not do this.
            Answer: the package for tables is not installed on this server.
            LakebedError: an error of the handler.
        """
        route, found = self._route(request)
        request.operation, request.parameters = route.operation, route.parameters
        # The audit log reads them, of refused requests, too.
        request.args = [""] * len(route.operation.arguments)
        request.args = self._args_of_path(request, found) or request.args
        if route.gate is not None:
            await self._log_in(request)
            await load_library()
        if found == [NO_PREFIX.decode()]:
            place, _ = split_outer(await self._levels_in_body(request))
            request.outer = (place.repository, place.ref)
            request.args = [place.repository, place.ref]
        result = await route.carry_out(request)
        return result if isinstance(result, Response) else answer(result, route.operation.status)

    def _route(self, request: CatalogRequest) -> tuple[Route, list[str]]:
        method: str = request.scope["method"]
        path = request.scope["raw_path"][len(PATH) :]
        if not path.startswith(_VERSION):
            raise NoSuchEndpoint("the catalog's routes begin with /iceberg/v1/")
        path = with_prefix(path[len(_VERSION) :])
        if method == "POST" and path == b"namespaces":
            path = NO_PREFIX + b"/namespaces"
        if _VIEWS.fullmatch(path):
            raise Answer(406, "this catalog keeps tables, and no views")
        return self._router.find(method, path)

    async def _log_in(self, request: CatalogRequest) -> None:
        if self._trusted is not None:
            request.identity, request.permissions = self._trusted, Permissions.everything(self._trusted.user_id)
            return
        request.identity = await self._state.authenticator.authenticate(request.raw_header(b"authorization"), None)
        if request.identity.delegation is not None:
            raise NotPermitted("the token of a job opens no catalog")
        request.permissions = await permissions_of(self._state, request)

    def _args_of_path(self, request: CatalogRequest, found: list[str]) -> list[str]:
        """Return the arguments of the operation: repository, ref, the namespace by its levels, the table.

        None, where the operation has none, or the body has them.
        """
        if not found or found == [NO_PREFIX.decode()]:
            return []
        prefix, *rest = found
        if prefix != NO_PREFIX.decode():
            place, namespace = of_prefix(prefix), levels_of(rest[0]) if rest else ()
        else:
            place, namespace = split_outer(levels_of(rest[0]), may_be_short=request.operation in _OF_REFS)
            request.outer = tuple(filter(None, (place.repository, place.ref)))
        if rest and not namespace and request.operation not in _OF_REFS:
            raise InvalidParameter(f"{place.repository}.{place.ref} is the catalog of a ref, and no namespace in it")
        return [place.repository, place.ref, *(["/".join(namespace)] if rest else []), *rest[1:]]

    async def _levels_in_body(self, request: CatalogRequest) -> tuple[str, ...]:
        """Return the namespace that a body names first, for a route without one."""
        assert request.operation is not None
        match await request.record(request.operation):
            case NamespaceProperties(namespace=levels):
                return checked(levels)
            case TableRename(source=source):
                return checked(source.namespace)
            case TablesCommit(table_changes=[first, *_]) if first.identifier is not None:
                return checked(first.identifier.namespace)
        raise InvalidParameter("the request names no namespace")

    def error(self, error: LakebedError, shown: Callable[[], str]) -> Response:
        """Return the answer for an error, in the catalog's form."""
        if isinstance(error, OAuthRefused):
            return JsonResponse(
                msgspec.json.encode({"error": error.code, "error_description": str(error)}), error.status
            )
        status, message = status_and_message(error)
        message = _WORDS[type(error)].format(**error.facts) if type(error) in _WORDS else message
        if status == 412:
            status = 400  # A hook refused the commit. Clients of the catalog know no 412, and would ask again.
        log_failure(logger, status, shown, error)
        # A client that knows no outcome keeps the files that it wrote.
        is_unknown = isinstance(error, OutcomeUnknown)
        kind = "CommitStateUnknownException" if is_unknown else _type_of(error, status)
        response = _error_answer(status, kind, message)
        if status == 503:
            response.raw_headers.append((b"retry-after", b"1"))
        return response

    def unexpected(self) -> Response:
        """Return the answer for an unexpected error, which the caller has logged."""
        return _error_answer(500, "InternalServerError", "internal server error")


def _error_answer(status: int, kind: str, message: str) -> Response:
    fault = CatalogFault(message=message, type=kind, code=status)
    return JsonResponse(msgspec.json.encode(CatalogError(error=fault)), status)


_TYPES: Final[dict[type[LakebedError], str]] = {
    core.NoSuchTable: "NoSuchTableException",
    core.NamespaceNotEmpty: "NamespaceNotEmptyException",
    NoSuchEndpoint: "UnsupportedOperationException",
    AlreadyExists: "AlreadyExistsException",
    NotFound: "NoSuchNamespaceException",
    Conflict: "CommitFailedException",
}
_WORDS: Final[dict[type[LakebedError], str]] = {
    core.NoSuchTable: "Table does not exist: {table}",
    core.TableExists: "Table already exists: {table}",
    core.NoSuchNamespace: "Namespace does not exist: {namespace}",
    core.NamespaceExists: "Namespace already exists: {namespace}",
}
"""Words that clients of the catalog look for in a message, beside its type."""
_BY_STATUS: Final = {
    400: "BadRequestException",
    401: "NotAuthorizedException",
    403: "ForbiddenException",
    404: "NoSuchNamespaceException",
    406: "UnsupportedOperationException",
    409: "CommitFailedException",
    410: "NotFoundException",
    501: "UnsupportedOperationException",
    503: "ServiceUnavailableException",
}


def _type_of(error: LakebedError, status: int) -> str:
    for kind in type(error).__mro__:
        if kind in _TYPES and status in {404, 409}:
            return _TYPES[kind]
    return _BY_STATUS.get(status, "InternalServerError" if status >= 500 else "BadRequestException")
