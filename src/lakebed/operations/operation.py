"""The types of the table: an operation, the permissions that it asks for, the parameters that it takes.

Pure values. A door (REST today, S3 later) turns them into routes, checks and calls, and states no permission itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Literal, NamedTuple, TypeAlias, TypedDict, TypeVar, Unpack

B = TypeVar("B")
A = TypeVar("A", covariant=True)

Method: TypeAlias = Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]
Kind: TypeAlias = Literal["string", "integer", "boolean", "list"]

API_ROOT: Final = "/api/v1"
"""Paths of operations are relative to it, or to a `root` of their own."""
NOTHING: Final = type(None)
"""The record of a body that does not exist."""
RECORD_BYTES_MAX: Final = 256 << 10
"""A record of many small values decodes at 10 to 200 MiB a second, and nothing else runs meanwhile."""
LONG_BYTES_MAX: Final = 512 << 10
"""The limit of a record with a thousand rules or locations."""
LIST_BYTES_MAX: Final = 4 << 20
"""The limit of a list of paths, of addresses or of files. These decode at 150 MiB a second and more."""
PUBLIC_BYTES_MAX: Final = 64 << 10
"""The limit of a body that callers without credentials send."""
POLICY_BYTES_MAX: Final = 64 << 10
"""A policy counts at each request of its holders, and one action takes five bytes."""
_REPEATABLE_METHODS: Final = frozenset({"GET", "HEAD", "PUT", "DELETE"})
_NAME: Final = re.compile(r"\{([A-Za-z_]+)\}")
_OF_REF: Final = re.compile(r"/(branch|tag)/\{([A-Za-z_]+)\}$")


class At(NamedTuple):
    """Say which value of a request names the branch or the tag that a permission is about. Conditions hold it.

    `kind` is ref where the value is an expression, which may name either, or a commit. `otherwise` names the value that
    counts where this one is left out. Without either, a request that leaves it out is about nothing there
    (`is_optional`), or it is in doubt.
    """

    name: str
    kind: Literal["branch", "tag", "ref"] = "ref"
    otherwise: str = ""
    is_optional: bool = False


AT_BRANCH: Final = At("branch", "branch")
AT_REF: Final = At("ref")
AT_ANY: Final = At("")
"""The request reads or writes refs that it does not name, so every condition on one is in doubt."""


class Permission:
    """An action on a resource. The resource is a template: a door fills in `{branch}` from a value of this name.

    `when` states, for readers, which requests ask for it; the handler asks then, where the operation cannot. `at`: the
    refs that it is about, which the resource of a branch or a tag says itself. Each of them must be allowed.
    """

    __slots__ = ("_first", "_parts", "action", "at", "names", "resource", "when")

    def __init__(self, action: str, resource: str, *at: At, when: str = "") -> None:
        self.action = action
        self.resource = resource
        self.when = when
        self.at = at or _at_of(resource)
        self._first, *pieces = _NAME.split(resource)
        self.names: Final[Sequence[str]] = pieces[::2]
        self._parts = [*zip(self.names, pieces[1::2], strict=True)]

    def resources(self, value_of: Callable[[str], str | Sequence[str]]) -> list[str]:
        """Fill in the names, and return one resource for each value of a list."""
        filled = [self._first]
        for name, text in self._parts:
            found = value_of(name)
            values = [found] if isinstance(found, str) else found
            filled = [resource + value + text for value in values for resource in filled]
        return filled


def _at_of(resource: str) -> tuple[At, ...]:
    match = _OF_REF.search(resource)
    if match is None:
        return ()
    return (AT_REF if match[2] == "ref" else At(match[2], "branch" if match[1] == "branch" else "tag"),)


Permissions: TypeAlias = tuple[Permission, ...] | None

LOGGED_IN: Final[Permissions] = ()
"""Let any user in that is logged in. A job's token is no login."""
PUBLIC: Final[Permissions] = None
"""Let any caller in, without credentials."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of the query, or of the headers. `choices`: the values that it may have, the default first."""

    name: str
    kind: Kind = "string"
    place: Literal["query", "header"] = "query"
    default: str | int | bool | None = None
    is_required: bool = False
    choices: tuple[str, ...] = ()


def flag(name: str, *, default: bool = False) -> Parameter:
    return Parameter(name, "boolean", default=default)


def header(name: str) -> Parameter:
    return Parameter(name, place="header")


PREFIX: Final = Parameter("prefix")
DELIMITER: Final = Parameter("delimiter")
PATH: Final = Parameter("path", is_required=True)
FORCE: Final = flag("force")
PAGE: Final = (Parameter("after"), Parameter("amount", "integer", default=100))


@dataclass(frozen=True, slots=True, eq=False)
class Operation(Generic[B, A]):
    """One thing that a caller may ask for: its route, records, permissions and promises.

    `path` is relative to `root`. `body` and `answer` are records; `bytes` and `str` are plain bodies. `permissions` are
    asked for before the handler runs, all of them; `asked_later` by the handler itself.
    """

    id: str
    method: Method
    path: str
    body: type[B]
    answer: type[A]
    permissions: Permissions
    summary: str
    parameters: tuple[Parameter, ...] = ()
    asked_later: tuple[Permission, ...] = ()
    status: int = 200
    # Successes without a record.
    other_statuses: tuple[int, ...] = ()
    is_body_optional: bool = False
    # Doing it twice ends like doing it once; None: as HTTP defines the method.
    repeatable: bool | None = None
    # A conflict means that the name is taken.
    creates: bool = False
    # It waits for hooks, which may take minutes.
    runs_hooks: bool = False
    # A larger record is refused unread.
    body_bytes_max: int = RECORD_BYTES_MAX
    root: str = API_ROOT
    # The names of the path's arguments, in order.
    arguments: list[str] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "arguments", _NAME.findall(self.path))

    @property
    def full_path(self) -> str:
        return self.root + self.path

    def path_of(self, *arguments: str) -> str:
        """Fill in the arguments of the path, in order, as they are."""
        assert len(arguments) == len(self.arguments), f"{self.id} takes {self.arguments}"
        given = iter(arguments)
        return _NAME.sub(lambda _: next(given), self.path)

    @property
    def may_be_repeated(self) -> bool:
        return self.method in _REPEATABLE_METHODS if self.repeatable is None else self.repeatable


class Promises(TypedDict, total=False):
    """The fields of an operation that have a default, by name."""

    asked_later: tuple[Permission, ...]
    status: int
    other_statuses: tuple[int, ...]
    is_body_optional: bool
    repeatable: bool
    creates: bool
    runs_hooks: bool
    body_bytes_max: int
    root: str


def get(
    id_: str,
    path: str,
    answer: type[A],
    permissions: Permissions,
    summary: str,
    *parameters: Parameter,
    **promises: Unpack[Promises],
) -> Operation[None, A]:
    return Operation(id_, "GET", path, NOTHING, answer, permissions, summary, parameters, **promises)


def head(
    id_: str, path: str, permissions: Permissions, summary: str, *parameters: Parameter, **promises: Unpack[Promises]
) -> Operation[None, None]:
    return Operation(id_, "HEAD", path, NOTHING, NOTHING, permissions, summary, parameters, **promises)


def preflight(
    id_: str, path: str, permissions: Permissions, summary: str, *parameters: Parameter
) -> Operation[None, None]:
    """A GET that only asks whether the caller may do something now."""
    return get(id_, path, NOTHING, permissions, summary, *parameters, status=204)


def listing(
    id_: str,
    path: str,
    answer: type[A],
    permissions: Permissions,
    summary: str,
    *parameters: Parameter,
    **promises: Unpack[Promises],
) -> Operation[None, A]:
    """A GET that answers in pages, filtered by prefix."""
    return get(id_, path, answer, permissions, summary, PREFIX, *PAGE, *parameters, **promises)


def post(
    id_: str,
    path: str,
    body: type[B],
    answer: type[A],
    permissions: Permissions,
    summary: str,
    *parameters: Parameter,
    **promises: Unpack[Promises],
) -> Operation[B, A]:
    return Operation(id_, "POST", path, body, answer, permissions, summary, parameters, **promises)


def put(
    id_: str,
    path: str,
    body: type[B],
    answer: type[A],
    permissions: Permissions,
    summary: str,
    *parameters: Parameter,
    **promises: Unpack[Promises],
) -> Operation[B, A]:
    return Operation(id_, "PUT", path, body, answer, permissions, summary, parameters, **promises)


def create(
    id_: str,
    path: str,
    body: type[B],
    answer: type[A],
    permissions: Permissions,
    summary: str,
    *parameters: Parameter,
    **promises: Unpack[Promises],
) -> Operation[B, A]:
    """A POST that makes something with a name: 201, or 409 where the name is taken."""
    promises = {"status": 201, "creates": True, **promises}
    return post(id_, path, body, answer, permissions, summary, *parameters, **promises)


def delete(
    id_: str, path: str, permissions: Permissions, summary: str, *parameters: Parameter, **promises: Unpack[Promises]
) -> Operation[None, None]:
    promises = {"status": 204, **promises}
    return Operation(id_, "DELETE", path, NOTHING, NOTHING, permissions, summary, parameters, **promises)


AnyOperation: TypeAlias = Operation[Any, Any]

# The resources of permissions, and the paths that operations share

_FS: Final = "arn:lakefs:fs:::"
_AUTH: Final = "arn:lakefs:auth:::"

ALL: Final = "*"
REPOSITORY: Final = _FS + "repository/{repository}"
NEW_REPOSITORY: Final = _FS + "repository/{name}"
NAMESPACE: Final = _FS + "namespace/{storage_namespace}"
PHYSICAL_ADDRESS: Final = _FS + "namespace/{physical_address}"
SOURCE: Final = _FS + "namespace/{source}"
BRANCH: Final = REPOSITORY + "/branch/{branch}"
NEW_BRANCH: Final = REPOSITORY + "/branch/{name}"
DESTINATION: Final = REPOSITORY + "/branch/{destinationBranch}"
REF: Final = REPOSITORY + "/branch/{ref}"
TAG: Final = REPOSITORY + "/tag/{tag}"
NEW_TAG: Final = REPOSITORY + "/tag/{id}"
OBJECT: Final = REPOSITORY + "/object/{path}"
OBJECTS: Final = REPOSITORY + "/object/{paths}"
SOURCE_OBJECT: Final = REPOSITORY + "/object/{src_path}"
COPIED_OBJECT: Final = REPOSITORY + "/object/{dest_path}"
IMPORTED_OBJECT: Final = REPOSITORY + "/object/{destination}"
SOURCE_BRANCH: Final = REPOSITORY + "/branch/{ref}"
SOURCE_TAG: Final = REPOSITORY + "/tag/{ref}"
USER: Final = _AUTH + "user/{userId}"
NEW_USER: Final = _AUTH + "user/{id}"
GROUP: Final = _AUTH + "group/{groupId}"
NEW_GROUP: Final = _AUTH + "group/{id}"
POLICY: Final = _AUTH + "policy/{policyId}"
NEW_POLICY: Final = _AUTH + "policy/{id}"

ONE_REPOSITORY: Final = "/repositories/{repository}"
ONE_BRANCH: Final = ONE_REPOSITORY + "/branches/{branch}"
ONE_REF: Final = ONE_REPOSITORY + "/refs/{ref}"


def on(resource: str, *actions: str, at: tuple[At, ...] = ()) -> tuple[Permission, ...]:
    """Ask for each of the actions on one resource."""
    return tuple(Permission(action, resource, *at) for action in actions)
