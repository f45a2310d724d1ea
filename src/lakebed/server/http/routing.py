"""Map a method and a raw path to a handler: a tree of path segments, one dictionary look-up a segment.

Segments are split *before* they are percent-decoded, and nothing is normalised: a tag `a/b` is sent as `a%2Fb` and
arrives whole. An empty segment or a trailing slash matches no route. Where a name before the last one is empty, as that
of a variable that a script did not set, the answer says so. A look-up takes 2 µs of CPU. Starlette's list of
regular expressions takes 33 µs for `objects/stat` among our 144 routes, nearly as much as the rest of the request.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import ModuleType
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar, overload
from urllib.parse import unquote_to_bytes

from starlette.responses import Response

from lakebed.catalog import Catalog, Repository
from lakebed.operations import NOTHING, PUBLIC, AnyOperation, Operation
from lakebed.server.state import AppState

from .errors import InvalidParameter, MethodNotAllowed, NoSuchEndpoint
from .fields import CONDITIONS, refuse_conditions
from .gate import Gate
from .requests import RestRequest

B = TypeVar("B")
A = TypeVar("A")
S = TypeVar("S")
Handler: TypeAlias = Callable[..., Awaitable[object]]


class Route:
    """An operation, its handler, and the gate before it. A public operation has no gate.

    The handler takes the request, the repository of its path where `catalog` is given, and, if the operation has a
    record for a body, that record. It returns the operation's answer, or a response of its own. `request.args` has the
    decoded path arguments in order.
    """

    __slots__ = ("catalog", "gate", "handler", "operation", "parameters", "refused", "takes_record")

    def __init__(self, operation: AnyOperation, handler: Handler, catalog: Catalog | None = None) -> None:
        # Else a handler would get whichever repository has the name of something else.
        assert catalog is None or operation.arguments[:1] == ["repository"], f"{operation.path}: of which repository?"
        self.operation: Final = operation
        self.handler: Final = handler
        self.catalog: Final = catalog
        self.gate: Final = None if operation.permissions is PUBLIC else Gate(operation)
        self.takes_record: Final = operation.body not in {NOTHING, bytes}
        self.parameters: Final = frozenset(parameter.name for parameter in operation.parameters)
        # A read has no effect: it may ignore a condition that it does not know.
        heeded = {name.lower().encode() for name in self.parameters}
        self.refused: Final = frozenset() if operation.method in {"GET", "HEAD"} else CONDITIONS - heeded

    @property
    def method(self) -> str:
        return self.operation.method

    @property
    def path(self) -> str:
        return self.operation.path

    async def carry_out(self, request: RestRequest) -> object:
        """Pass the request through the gate, and return the handler's answer. Authenticate the caller first.

        Raises:
            NotPermitted: the caller may not do this.
            Answer: the operation does not heed a condition of this write.
            LakebedError: an error of the handler.
        """
        await self.admit(request)
        return await self.run(request)

    async def admit(self, request: RestRequest) -> None:
        """Check the caller's permissions and the conditions of a write, as `carry_out` does."""
        if self.gate is not None:
            await self.gate.admit(request, request.permissions)
        if self.refused and request.has_any_header(self.refused):
            refuse_conditions(request.header, self.refused, self.operation.id)

    async def run(self, request: RestRequest) -> object:
        """Run the handler of an admitted request."""
        if self.takes_record:
            record = await request.record(self.operation)
            if self.catalog is None:
                return await self.handler(request, record)
            return await self.handler(request, await self.catalog.get(request.args[0]), record)
        if self.catalog is None:
            return await self.handler(request)
        return await self.handler(request, await self.catalog.get(request.args[0]))


class Resource:
    """Handlers of one noun, over the state of the process. Each says by a decorator which operations it serves."""

    def __init__(self, state: AppState) -> None:
        self._state = state
        self._catalog = state.catalog

    def routes(self) -> list[Route]:
        return [
            Route(operation, getattr(self, name), self._catalog if takes_repository else None)
            for name, method in vars(type(self)).items()
            for operation, takes_repository in getattr(method, "served", ())
        ]


def resources_of(file: ModuleType) -> list[type[Resource]]:
    """Return the resources that a file defines, in its order."""
    return [
        found
        for found in vars(file).values()
        if isinstance(found, type) and issubclass(found, Resource) and found.__module__ == file.__name__
    ]


class Serving(Protocol[B, A]):
    """Declares a handler, which takes the body's record if there is one."""

    @overload
    def __call__(
        self, handler: Callable[[S, RestRequest], Awaitable[A | Response]], /
    ) -> Callable[[S, RestRequest], Awaitable[A | Response]]: ...
    @overload
    def __call__(
        self, handler: Callable[[S, RestRequest, B], Awaitable[A | Response]], /
    ) -> Callable[[S, RestRequest, B], Awaitable[A | Response]]: ...


class ServingRepository(Protocol[B, A]):
    """Declares a handler that takes the repository, too."""

    @overload
    def __call__(
        self, handler: Callable[[S, RestRequest, Repository], Awaitable[A | Response]], /
    ) -> Callable[[S, RestRequest, Repository], Awaitable[A | Response]]: ...
    @overload
    def __call__(
        self, handler: Callable[[S, RestRequest, Repository, B], Awaitable[A | Response]], /
    ) -> Callable[[S, RestRequest, Repository, B], Awaitable[A | Response]]: ...


def serves(operation: Operation[B, A]) -> Serving[B, A]:
    """Declare the operation that a method of a resource serves. It may serve several."""
    return partial(_declare, operation, False)


def in_repository(operation: Operation[B, A]) -> ServingRepository[B, A]:
    """Declare it as `serves`. The method gets the repository that the path names first."""
    return partial(_declare, operation, True)


def _declare(operation: AnyOperation, takes_repository: bool, handler: Any) -> Any:
    handler.served = [*getattr(handler, "served", ()), (operation, takes_repository)]
    return handler


class Routed(Protocol):
    """A route with a path: an operation of a door, or a page."""

    @property
    def method(self) -> str: ...
    @property
    def path(self) -> str: ...


R = TypeVar("R", bound=Routed)


@dataclass(slots=True)
class _Node(Generic[R]):
    fixed: dict[bytes, _Node[R]] = field(default_factory=dict)
    variable: _Node[R] | None = None
    routes: dict[str, R] = field(default_factory=dict)


class Router(Generic[R]):
    def __init__(self, routes: Iterable[R]) -> None:
        self._root: _Node[R] = _Node()
        for route in routes:
            node = self._root
            for segment in route.path.removeprefix("/").split("/"):
                if segment.startswith("{"):
                    node.variable = node = node.variable or _Node()
                else:
                    node = node.fixed.setdefault(segment.encode(), _Node())
            assert route.method not in node.routes, f"{route.method} {route.path}: two routes"
            node.routes[route.method] = route

    def find(self, method: str, path: bytes) -> tuple[R, list[str]]:
        """Return the route of a raw path (relative, without its first slash), and its decoded arguments.

        Raises:
            NoSuchEndpoint: no route has this path.
            InvalidParameter: a name in the path is empty.
            MethodNotAllowed: routes have this path, but not with this method.
        """
        segments = path.split(b"/")
        found = _walk_straight(self._root, segments) or _walk(self._root, segments, 0, ())
        if found is None:
            if b"" in segments[:-1] and _walk(self._root, [segment or b"-" for segment in segments], 0, ()):
                raise InvalidParameter("a name in the path is empty")
            raise NoSuchEndpoint("invalid API endpoint")
        node, args = found
        route = node.routes.get(method)
        if route is None:
            raise MethodNotAllowed("method not allowed", allowed=", ".join(sorted(node.routes)))
        return route, [_decode(segment) for segment in args]


def _walk_straight(root: _Node[R], segments: Sequence[bytes]) -> tuple[_Node[R], tuple[bytes, ...]] | None:
    """Return the result of `_walk` when no backtracking is needed, which is nearly always: at half the cost."""
    node, args = root, []
    for segment in segments:
        child = node.fixed.get(segment)
        if child is None:
            child = node.variable
            if child is None or not segment:
                return None
            args.append(segment)
        node = child
    return (node, tuple(args)) if node.routes else None


def _walk(
    node: _Node[R], segments: Sequence[bytes], index: int, args: tuple[bytes, ...]
) -> tuple[_Node[R], tuple[bytes, ...]] | None:
    """Try fixed segments first, then variable ones: `objects/delete` is not the object `delete`."""
    if index == len(segments):
        return (node, args) if node.routes else None
    segment = segments[index]
    fixed = node.fixed.get(segment)
    if fixed is not None:
        found = _walk(fixed, segments, index + 1, args)
        if found is not None:
            return found
    if node.variable is not None and segment:
        return _walk(node.variable, segments, index + 1, (*args, segment))
    return None


def _decode(segment: bytes) -> str:
    try:
        return (unquote_to_bytes(segment) if b"%" in segment else segment).decode()
    except UnicodeDecodeError as error:
        raise InvalidParameter("a segment of the path is not valid UTF-8") from error
