"""What conditions of policies ask about a request: its time, the address of its caller, and what its refs name."""

from __future__ import annotations

from lakebed.auth import UNKNOWN_REF, Circumstances, Permissions, Ref
from lakebed.base import Conflict, Invalid, NotFound
from lakebed.server.state import AppState
from lakebed.versions import RefKind

from .gate import CANONICAL
from .requests import RestRequest


async def permissions_of(state: AppState, request: RestRequest) -> Permissions:
    """Return what the caller of a request may do. Each door asks here once it knows the caller.

    Raises:
        NotAuthenticated: the user was deleted meanwhile.
    """
    found = await state.authorizer.permissions(request.identity)
    if not found.has_conditions:
        return found
    delegation = request.identity.delegation
    # A job runs on the server's machine, for a user who asked from elsewhere.
    address = address_of(request) if delegation is None else delegation.address

    async def look(repository: str, expression: str) -> Ref:
        return await _look(state, repository, expression)

    return found.under(Circumstances(address=address, now_ms=state.ports.clock.now_ms(), look=look))


def address_of(request: RestRequest) -> str:
    """Return the caller's address, as the audit log has it: behind a trusted proxy, the one that it forwards for."""
    return str((request.scope.get("client") or ("",))[0])


async def _look(state: AppState, repository: str, expression: str) -> Ref:
    """Return what an expression names, as a read will find it. A branch costs what its cached head costs.

    Where nothing has the name, it may have it a moment later, and that is doubt.
    """
    base = CANONICAL["ref"](expression)
    if not base:
        return UNKNOWN_REF
    try:
        refs = (await state.catalog.get(repository)).versions.refs
        resolved = await refs.resolve(base)
        if resolved.branch is not None:
            return Ref.of_branch(base)
        kind = await refs.kind_of(base)
    except (NotFound, Invalid, Conflict):
        return UNKNOWN_REF
    if kind is not None:
        # A branch that appeared since the first look.
        return Ref.of_tag(base) if kind is RefKind.TAG else UNKNOWN_REF
    # `NAME@{yesterday}` reads a log of a branch or a tag, and never a commit.
    if "@{" in expression or not resolved.commit_id.startswith(base):
        return UNKNOWN_REF
    return Ref(ref=resolved.commit_id)
