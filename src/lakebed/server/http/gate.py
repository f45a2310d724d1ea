"""Check permissions before handlers: compare the permissions of an operation with those of its caller.

Callers must not learn which things exist if they may not read them, so the gate runs before the handler. Most callers
may do the action everywhere. For them a check costs one look-up and builds no resource name.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final, Literal, TypeAlias

from msgspec.structs import replace

from lakebed.auth import NO_REF, UNKNOWN_REF, NotPermitted, Permissions, Ref, permissions_of_lent
from lakebed.base import ACTIONS_FOLDER, Conflict, Invalid, NotFound
from lakebed.catalog import Catalog, Repository
from lakebed.objectstore import InvalidNamespace, normalise_namespace, split_address
from lakebed.operations import AnyOperation, At, Permission, history, objects, tables
from lakebed.server.state import AppState
from lakebed.versions import RefKind, name_in

from .requests import RestRequest

Names: TypeAlias = "Mapping[str, str | Sequence[str]]"
_NO_REFS: Final = (NO_REF,)
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


CANONICAL: Final[Mapping[str, Callable[[str], str]]] = {
    "storage_namespace": _namespace,
    "physical_address": _address,
    "source": _address,
    "ref": name_in,
}
"""Names with several spellings. Statements are compared with one canonical spelling."""
_SPELLED: Final = frozenset(CANONICAL)


async def ask(asked: Iterable[Permission], permissions: Permissions, names: Names) -> None:
    """Check the same as `require`, and look up the refs that expressions name where conditions depend on them.

    Raises:
        NotPermitted: a permission is missing.
    """
    for permission in asked:
        if not permissions.allows_everywhere(permission.action):
            await _ask(permission, permissions, names, has_refs=_has_refs(permission, permissions))


async def _ask(permission: Permission, permissions: Permissions, names: Names, *, has_refs: bool) -> None:
    refs = await _refs_now(permission, permissions, names) if has_refs else _NO_REFS
    _require(permission, permissions, names, refs)


async def may_always(asked: Iterable[Permission], permissions: Permissions, names: Names) -> bool:
    """Return whether `ask` admits this at all times and from all addresses."""
    try:
        await ask(asked, permissions.lasting() if permissions.has_conditions else permissions, names)
    except NotPermitted:
        return False
    return True


def require(asked: Iterable[Permission], permissions: Permissions, names: Names) -> None:
    """Check each permission on the resources that these names make. Handlers, and doors without a URL, also call this.

    The names include the refs of the permissions (`At`). A ref that is missing, or named by an expression, is in doubt.

    Raises:
        NotPermitted: a permission is missing.
    """
    for permission in asked:
        if not permissions.allows_everywhere(permission.action):
            _require(permission, permissions, names, _refs(permission, permissions, names))


def _require(permission: Permission, permissions: Permissions, names: Names, refs: Sequence[Ref]) -> None:
    action = permission.action
    for resource, written in _resources(permission, names):
        for ref in refs:
            if written != resource:
                # An Azure address has two spellings. It is allowed if one spelling is allowed, and denied if one is
                # denied.
                permissions.refuse_denied(action, written, ref)
                permissions.refuse_denied(action, resource, ref)
                if permissions.allows(action, written, ref):
                    continue
            permissions.require(action, resource, ref)


def require_below(permission: Permission, permissions: Permissions, names: Names) -> None:
    """Require the permission on some resource with these names, when other names are still unknown.

    Raises:
        NotPermitted: no resource that the remaining names could make is allowed.
    """
    if permissions.allows_everywhere(permission.action):
        return
    # Cut the resource at the first unknown name: the text after it is no prefix.
    for beginning in _beginnings(permission, names):
        if not permissions.allows_below(permission.action, beginning):
            raise permissions.not_permitted(permission.action, beginning + "*")


def refuse_denied_below(asked: Iterable[Permission], permissions: Permissions, names: Names) -> None:
    """Refuse what shows rows of all resources with these names, if a statement may deny the caller one of them.

    Raises:
        NotPermitted: a statement may deny one, for some ref.
    """
    for permission in asked:
        for beginning in _beginnings(permission, names):
            if permissions.denies_below(permission.action, beginning):
                raise permissions.not_permitted(permission.action, beginning + "*")


def _beginnings(permission: Permission, names: Names) -> list[str]:
    resources = permission.resources(lambda name: _canonical(name, names[name]) if name in names else "\0")
    return [resource.partition("\0")[0] for resource in resources]


def refuse_denied(asked: Iterable[Permission], permissions: Permissions, names: Names) -> None:
    """Check only deny statements, for entries below a folder that `require` allowed, or raise NotPermitted."""
    for permission in asked:
        _refuse_denied(permission, permissions, names, _refs(permission, permissions, names))


def _refuse_denied(permission: Permission, permissions: Permissions, names: Names, refs: Sequence[Ref]) -> None:
    if not permissions.allows_everywhere(permission.action):
        for resource, _ in _resources(permission, names):
            for ref in refs:
                permissions.refuse_denied(permission.action, resource, ref)


def _has_refs(permission: Permission, permissions: Permissions) -> bool:
    """Return whether the answer depends on a ref that requests for this permission name."""
    return bool(permission.at) and permissions.heeds_refs(permission.action)


def _refs(permission: Permission, permissions: Permissions, names: Names) -> Sequence[Ref]:
    """Return each ref of the permission. Without a condition on refs, return no known ref."""
    if not _has_refs(permission, permissions):
        return _NO_REFS
    return [_ref(at, names) for at in permission.at if not at.is_optional or _named(at, names)] or _NO_REFS


async def _refs_now(permission: Permission, permissions: Permissions, names: Names) -> Sequence[Ref]:
    """Return each ref of the permission, and look up what expressions name."""
    repository, refs = names.get("repository"), []
    for at in permission.at:
        name = _named(at, names)
        if at.kind == "ref" and name and isinstance(repository, str):
            ref = permissions.look(repository, name)
            refs.append(ref if isinstance(ref, Ref) else await ref)
        elif name or not at.is_optional:
            refs.append(_ref(at, names))
    return refs or _NO_REFS


def _ref(at: At, names: Names) -> Ref:
    name = _named(at, names)
    if not name or at.kind == "ref":
        return UNKNOWN_REF
    return Ref.of_branch(name_in(name)) if at.kind == "branch" else Ref.of_tag(name)


def _named(at: At, names: Names) -> str:
    name = names.get(at.name) or names.get(at.otherwise) or ""
    return name if isinstance(name, str) else ""


async def check_source(permissions: Permissions, repository: Repository, ref: str) -> None:
    """Refuse to copy the commit of a ref elsewhere if a statement denies it to the caller (NotPermitted).

    Check a commit id against `fs:ReadCommit` alone: the id does not show which branches have the commit.
    """
    if all(permissions.allows_everywhere(asked.action) for asked in history.READ_SOURCE):
        return
    on_branch, on_tag, on_commit = history.READ_SOURCE
    kind = await repository.versions.refs.kind_of(name_in(ref))
    asked = on_commit if kind is None else on_branch if kind is RefKind.BRANCH else on_tag
    names = {"repository": repository.id, "ref": ref}
    _refuse_denied(asked, permissions, names, await _refs_now(asked, permissions, names))


async def keep_actions(
    permissions: Permissions, repository: Repository, ref: str, *, against: str = "", parent: int = 0
) -> str:
    """Return the ref whose content a branch gets, for a caller whom a statement denies action files the commit that it
    names now: by the time of the change, the ref may name another.

    Raises:
        NotPermitted: the commit changes an action file, against the ref `against` or else its parent of this number.
    """
    denied = [
        (asked.action, folder)
        for asked in history.CHANGE_ACTIONS
        for folder in _beginnings(asked, {"repository": repository.id})
        if permissions.denies_below(asked.action, folder)
    ]
    if not denied:
        return ref
    versions = repository.versions
    commit_id = await versions.refs.resolve_commit(ref)
    parents = (await versions.history.get_commit(commit_id)).parents
    before = against or next(iter(parents[max(parent - 1, 0) :]), "")
    if before:  # else the change is refused
        prefix = ACTIONS_FOLDER.encode()
        changes, _ = await versions.history.diff_refs(before, commit_id, prefix=prefix, limit=1, three_dot=False)
        if changes:
            action, folder = denied[0]
            raise permissions.not_permitted(action, f"{folder}*")
    return commit_id


async def unreadable(permissions: Permissions, repository: str, ref: str, keys: Iterable[bytes]) -> frozenset[bytes]:
    """Return those keys of a ref's objects that a statement denies the caller to read.

    A listing still shows the path, size and time of a denied object. It hides checksum, address and metadata: a
    checksum shows whether two objects are equal, and an address may be readable elsewhere.
    """
    action, beginning, at = await _rows_of(permissions, repository, ref)
    is_denied = permissions.denied_below(action, beginning, at)
    return frozenset() if is_denied is None else frozenset(key for key in keys if is_denied(key.decode()))


async def readable(permissions: Permissions, repository: str, ref: str) -> Callable[[str], bool]:
    """Return a function that returns whether the caller may read the object at a path of a ref, looked up once."""
    action, beginning, at = await _rows_of(permissions, repository, ref)
    return lambda path: permissions.allows(action, beginning + path, at)


def may_leave(operation: AnyOperation, permissions: Permissions) -> bool:
    """Return whether an answer is the same for a caller who may do everything, once the gate admitted this one.

    So no statement hides a row or an address of it, now or for some ref.
    """
    return not permissions.has_conditions and all(
        permissions.allows_everywhere(permission.action) for permission in operation.asked_later
    )


async def _rows_of(permissions: Permissions, repository: str, ref: str) -> tuple[str, str, Ref]:
    """Return the action that reads an object of a listing, the beginning of its resource, and the ref."""
    [permission], names = objects.LIST_OBJECTS.asked_later, {"repository": repository, "ref": ref, "path": ""}
    [beginning], [at] = permission.resources(names.__getitem__), await _refs_now(permission, permissions, names)
    return permission.action, beginning, at


def _resources(permission: Permission, names: Names) -> Iterable[tuple[str, str]]:
    """Return pairs of resources: in canonical spelling, and with addresses as the caller wrote them.

    A namespace is never compared as written: `s3://team/*` does not allow the namespace `s3://team/`.
    """

    def written(name: str) -> str | Sequence[str]:
        return names[name] if CANONICAL.get(name) is _address else _canonical(name, names[name])

    if _SPELLED.isdisjoint(permission.names):
        return [(resource, resource) for resource in permission.resources(names.__getitem__)]
    canonical = permission.resources(lambda name: _canonical(name, names[name]))
    return zip(canonical, permission.resources(written), strict=True)


def _canonical(name: str, value: str | Sequence[str]) -> str | Sequence[str]:
    canonical = CANONICAL.get(name)
    return canonical(value) if canonical is not None and isinstance(value, str) else value


class Gate:
    """The permissions of one REST route, and the place of each name in a request. Made once at the server's start."""

    def __init__(self, operation: AnyOperation) -> None:
        self._operation = operation
        self._arguments: Final = {name: index for index, name in enumerate(operation.arguments)}
        self._asked: Final = [
            (
                permission,
                _places(operation, permission.names),
                _places(operation, [*permission.names, *_names_of_refs(permission)]),
                self._expression(permission),
            )
            for permission in operation.permissions or ()
        ]

    async def admit(self, request: RestRequest, permissions: Permissions) -> None:
        """Check the permissions of the route against this request.

        Raises:
            NotPermitted: a permission is missing.
            InvalidBody: the body names a resource, and is invalid.
        """
        if not self._asked and request.identity.delegation is not None:
            raise NotPermitted("insufficient permissions: the token of a job is not a login")
        # A body may be large. Decode it only for callers who may do this to some resource that it could name.
        later = []
        for permission, of_resource, with_refs, expression in self._asked:
            if not permissions.allows_everywhere(permission.action):
                has_refs = _has_refs(permission, permissions)
                places = with_refs if has_refs and expression is None else of_resource
                names = {name: self._value(request, name, place) for name, place in places.items() if place != "body"}
                if has_refs and expression is not None:
                    ref = permissions.look(request.args[expression[0]], request.args[expression[1]])
                    _require(permission, permissions, names, (ref if isinstance(ref, Ref) else await ref,))
                elif len(names) == len(places):
                    await _ask(permission, permissions, names, has_refs=has_refs)
                else:
                    require_below(permission, permissions, names)
                    later.append((permission, places))
        for permission, places in later:
            record = await request.record(self._operation)
            names = {
                name: getattr(record, name) if place == "body" else self._value(request, name, place)
                for name, place in places.items()
            }
            await ask((permission,), permissions, names)

    def _expression(self, permission: Permission) -> tuple[int, int] | None:
        """Return the arguments with the repository and the only ref of a permission, if all its names are of the URL.

        Most reads are such: a look at them costs half of that at any refs.
        """
        if len(permission.at) != 1 or permission.at[0].kind != "ref" or permission.at[0].otherwise:
            return None
        if "body" in _places(self._operation, permission.names).values():
            return None
        repository, ref = self._arguments.get("repository"), self._arguments.get(permission.at[0].name)
        return None if repository is None or ref is None else (repository, ref)

    def _value(self, request: RestRequest, name: str, place: _Place) -> str:
        """Return a name from the path or the query."""
        return request.args[self._arguments[name]] if place == "path" else request.query(name)


def _names_of_refs(permission: Permission) -> list[str]:
    names = [name for at in permission.at for name in (at.name, at.otherwise) if name]
    # Resolving an expression needs the repository.
    return [*names, "repository"] if names else []


def _places(operation: AnyOperation, names: Iterable[str]) -> dict[str, _Place]:
    return {name: _place(operation, name) for name in names}


def _place(operation: AnyOperation, name: str) -> _Place:
    if name in operation.arguments:
        return "path"
    if any(parameter.name == name for parameter in operation.parameters):
        return "query"
    assert name in getattr(operation.body, "__struct_fields__", ()), f"{operation.id} has no {name}"
    return "body"


# The caller's permissions, under the circumstances of the request: its time, its address, and the kinds of its refs


async def permissions_of(state: AppState, request: RestRequest) -> Permissions:
    """Return the caller's permissions, or raise NotAuthenticated. Each door calls this once it knows the caller.

    A lent key pair has the part of its owner's that it was lent, as long as its owner has it.
    """
    found, lent = await state.authorizer.permissions(request.identity), request.identity.lent
    found = _under_circumstances(state, request, found)
    if lent is None:
        return found
    names = {"repository": lent.repository, "ref": lent.ref, "namespace": lent.namespace, "table": lent.table}
    may_read = await may_always(tables.LOAD_TABLE.permissions or (), found, names)
    may_write = lent.may_write and may_read and await may_always((tables.LENT,), found, names)
    part = permissions_of_lent(found.user_id, replace(lent, may_write=may_write), may_read=may_read)
    return _under_circumstances(state, request, part)


def _under_circumstances(state: AppState, request: RestRequest, found: Permissions) -> Permissions:
    if not found.has_conditions:
        return found
    delegation = request.identity.delegation
    # A job runs on the server's machine, so use the address of the user who started it.
    return state.authorizer.under(found, address_of(request) if delegation is None else delegation.address)


def address_of(request: RestRequest) -> str:
    """Return the caller's address as in the audit log. Behind a trusted proxy it is the forwarded address."""
    return str((request.scope.get("client") or ("",))[0])


def look(catalog: Catalog, repository: str, expression: str) -> Ref | Awaitable[Ref]:
    """Return the ref that an expression names, as a read will resolve it: at once for a branch whose head is cached."""
    known = catalog.known(repository)
    if known is not None and known.versions.refs.knows_branch(expression):
        return Ref.of_branch(expression)
    return _look(catalog, repository, expression)


async def _look(catalog: Catalog, repository: str, expression: str) -> Ref:
    """Return the ref that an expression names.

    Return UNKNOWN_REF for a missing ref: it may exist a moment later, so conditions on it are in doubt.
    """
    base = CANONICAL["ref"](expression)
    if not base:
        return UNKNOWN_REF
    try:
        refs = (await catalog.get(repository)).versions.refs
        resolved = await refs.resolve(base)
        if resolved.branch is not None:
            return Ref.of_branch(base)
        kind = await refs.kind_of(base)
    except (NotFound, Invalid, Conflict):
        return UNKNOWN_REF
    if kind is not None:
        # A branch appeared since the first look.
        return Ref.of_tag(base) if kind is RefKind.TAG else UNKNOWN_REF
    # `NAME@{yesterday}` reads the log of a branch or a tag, never of a commit.
    if "@{" in expression or not resolved.commit_id.startswith(base):
        return UNKNOWN_REF
    return Ref(ref=resolved.commit_id)
