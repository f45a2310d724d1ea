"""The facts of a request for conditions of policies: its time, its caller's address, and the kinds of its refs."""

from __future__ import annotations

from collections.abc import Awaitable

from msgspec.structs import replace

from lakebed.auth import UNKNOWN_REF, Permissions, Ref, permissions_of_lent
from lakebed.base import Conflict, Invalid, NotFound
from lakebed.catalog import Catalog
from lakebed.operations import tables
from lakebed.server.state import AppState
from lakebed.versions import RefKind

from .gate import CANONICAL, may_always
from .requests import RestRequest


async def permissions_of(state: AppState, request: RestRequest) -> Permissions:
    """Return the caller's permissions. Each door calls this once it knows the caller.

    A lent key pair has the part of its owner's that it was lent, as long as its owner has it.

    Raises:
        NotAuthenticated: the user was deleted meanwhile.
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
