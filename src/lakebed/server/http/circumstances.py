"""The facts of a request for conditions of policies: its time, its caller's address, and the kinds of its refs."""

from __future__ import annotations

from lakebed.auth import UNKNOWN_REF, Circumstances, Permissions, Ref
from lakebed.base import Conflict, Invalid, NotFound
from lakebed.server.state import AppState
from lakebed.versions import RefKind

from .gate import CANONICAL
from .requests import RestRequest


async def permissions_of(state: AppState, request: RestRequest) -> Permissions:
    """Return the caller's permissions. Each door calls this once it knows the caller.

    Raises:
        NotAuthenticated: the user was deleted meanwhile.
    """
    found = await state.authorizer.permissions(request.identity)
    if not found.has_conditions:
        return found
    delegation = request.identity.delegation
    # A job runs on the server's machine, so use the address of the user who started it.
    address = address_of(request) if delegation is None else delegation.address

    async def look(repository: str, expression: str) -> Ref:
        return await _look(state, repository, expression)

    return found.under(Circumstances(address=address, now_ms=state.ports.clock.now_ms(), look=look))


def address_of(request: RestRequest) -> str:
    """Return the caller's address as in the audit log. Behind a trusted proxy it is the forwarded address."""
    return str((request.scope.get("client") or ("",))[0])


async def _look(state: AppState, repository: str, expression: str) -> Ref:
    """Return the ref that an expression names, as a read will resolve it. A branch costs a read of its cached head.

    Return UNKNOWN_REF for a missing ref: it may exist a moment later, so conditions on it are in doubt.
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
        # A branch appeared since the first look.
        return Ref.of_tag(base) if kind is RefKind.TAG else UNKNOWN_REF
    # `NAME@{yesterday}` reads the log of a branch or a tag, never of a commit.
    if "@{" in expression or not resolved.commit_id.startswith(base):
        return UNKNOWN_REF
    return Ref(ref=resolved.commit_id)
