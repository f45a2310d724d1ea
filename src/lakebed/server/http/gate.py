"""The door before the handlers: what an operation asks of its caller, held against what the caller may do.

A caller who may not do something does not learn what is there, so the gate stands before the handler. For callers who
may do the action everywhere, which is most, it costs one look-up and puts no resource together.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Literal, TypeAlias

from lakebed.auth import NotPermitted, Permissions
from lakebed.objectstore import InvalidNamespace, normalise_namespace, split_address
from lakebed.operations import AnyOperation, Permission, objects

from .requests import RestRequest

Names: TypeAlias = "Mapping[str, str | Sequence[str]]"
_Place: TypeAlias = Literal["path", "query", "body"]


def _namespace(uri: str) -> str:
    try:
        return normalise_namespace(uri)
    except InvalidNamespace:
        return uri  # The catalog refuses it.


def _address(uri: str) -> str:
    try:
        bucket, _ = split_address(uri)
        return normalise_namespace(bucket) + uri[len(bucket) :]
    except InvalidNamespace:
        return uri  # No object store is opened by it.


def _branch(expression: str) -> str:
    return re.split(r"[~^@$]", expression, maxsplit=1)[0]


CANONICAL: Final[Mapping[str, Callable[[str], str]]] = {
    "storage_namespace": _namespace,
    "physical_address": _address,
    "source": _address,
    "ref": _branch,
}
"""Names that have several spellings: a statement is held against one of them, whatever the caller wrote."""


def require(asked: Iterable[Permission], permissions: Permissions, names: Names) -> None:
    """Hold each permission on the resources that these names make. Handlers, and doors without a URL, ask here too.

    Raises:
        NotPermitted: one is missing.
    """
    for permission in asked:
        if not permissions.allows_everywhere(permission.action):
            for resource, written in _resources(permission, names):
                if written != resource:
                    # Azure has two spellings: a statement that allows in one suffices, one that denies in one holds.
                    permissions.refuse_denied(permission.action, written)
                    permissions.refuse_denied(permission.action, resource)
                    if permissions.allows(permission.action, written):
                        continue
                permissions.require(permission.action, resource)


def require_below(permission: Permission, permissions: Permissions, names: Names) -> None:
    """Require that a permission is held on something with these names, which are not all of them.

    Raises:
        NotPermitted: no resource that the rest of the names could make is allowed.
    """
    if permissions.allows_everywhere(permission.action):
        return
    # The text after the first unknown name says nothing of a beginning.
    for beginning in _beginnings(permission, names):
        if not permissions.allows_below(permission.action, beginning):
            raise permissions.not_permitted(permission.action, beginning + "*")


def _beginnings(permission: Permission, names: Names) -> list[str]:
    resources = permission.resources(lambda name: _canonical(name, names[name]) if name in names else "\0")
    return [resource.partition("\0")[0] for resource in resources]


def refuse_denied(asked: Iterable[Permission], permissions: Permissions, names: Names) -> None:
    """Hold what denies, and nothing else: for what lies below a folder that `require` let through.

    Raises:
        NotPermitted: a statement denies one of the resources.
    """
    for permission in asked:
        if not permissions.allows_everywhere(permission.action):
            for resource, _ in _resources(permission, names):
                permissions.refuse_denied(permission.action, resource)


def unreadable(permissions: Permissions, repository: str) -> Callable[[str], bool]:
    """Return a function that says whether a statement denies the caller to read the object at a path.

    A listing of any door still shows its path, size and time, and neither checksum, address nor metadata: they tell
    whether two objects are equal, and an address may be read elsewhere.
    """
    [permission] = objects.LIST_OBJECTS.asked_later
    [beginning] = permission.resources({"repository": repository, "path": ""}.__getitem__)
    return permissions.denied_below(permission.action, beginning)


def _resources(permission: Permission, names: Names) -> Iterable[tuple[str, str]]:
    """Return the resources in their one spelling, and with addresses as the caller wrote them.

    A namespace never counts as written: `s3://team/` is no part of what `s3://team/*` allows.
    """

    def written(name: str) -> str | Sequence[str]:
        return names[name] if CANONICAL.get(name) is _address else _canonical(name, names[name])

    canonical = permission.resources(lambda name: _canonical(name, names[name]))
    return zip(canonical, permission.resources(written), strict=True)


def _canonical(name: str, value: str | Sequence[str]) -> str | Sequence[str]:
    canonical = CANONICAL.get(name)
    return canonical(value) if canonical is not None and isinstance(value, str) else value


class Gate:
    """The permissions of one REST route, and where in a request each name stands. Made once, when the server starts."""

    def __init__(self, operation: AnyOperation) -> None:
        self._operation = operation
        self._asked: Final = [
            (permission, [(name, _place(operation, name)) for name in permission.names])
            for permission in operation.permissions or ()
        ]
        self._arguments: Final = {name: index for index, name in enumerate(operation.arguments)}

    async def admit(self, request: RestRequest, permissions: Permissions) -> None:
        """
        Raises:
            NotPermitted: a permission is missing.
            InvalidBody: the body names a resource, and is invalid.
        """
        if not self._asked and request.identity.delegation is not None:
            raise NotPermitted("insufficient permissions: the token of a job is no login")
        # A body may be large, and is decoded only for a caller who may do this to something that it could name.
        for permission, places in self._asked:
            if not permissions.allows_everywhere(permission.action):
                names = {name: self._value(request, name, place) for name, place in places if place != "body"}
                if len(names) == len(places):
                    require((permission,), permissions, names)
                else:
                    require_below(permission, permissions, names)
        for permission, places in self._asked:
            if any(place == "body" for _, place in places) and not permissions.allows_everywhere(permission.action):
                record = await request.record(self._operation)
                names = {
                    name: getattr(record, name) if place == "body" else self._value(request, name, place)
                    for name, place in places
                }
                require((permission,), permissions, names)

    def _value(self, request: RestRequest, name: str, place: _Place) -> str:
        """Return a name that the path or the query has."""
        return request.args[self._arguments[name]] if place == "path" else request.query(name)


def _place(operation: AnyOperation, name: str) -> _Place:
    if name in operation.arguments:
        return "path"
    if any(parameter.name == name for parameter in operation.parameters):
        return "query"
    assert name in getattr(operation.body, "__struct_fields__", ()), f"{operation.id} has no {name}"
    return "body"
