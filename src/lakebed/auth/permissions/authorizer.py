"""Permissions of users, cached for CACHE_MS so that a request need not read the store.

A change through *another* process applies here that much later. Through this process it applies at once
(`forget_all`).
"""

from __future__ import annotations

from lakebed.auth.accounts import UserNotFound
from lakebed.auth.authenticator import CACHE_ENTRIES_MAX, CACHE_MS, Identity, NotAuthenticated
from lakebed.base import Ports

from .conditions import ADDRESSES_CACHED_MAX, Circumstances, Look, in_doubt
from .policies import Policies
from .statements import Permissions

__all__ = ["Authorizer"]


class Authorizer:
    def __init__(self, policies: Policies, ports: Ports, look: Look = in_doubt) -> None:
        self._policies = policies
        self._ports = ports
        self._look = look
        self._known: dict[str, tuple[Permissions, int]] = {}

    async def permissions(self, identity: Identity) -> Permissions:
        """Return the permissions of the caller's user, or the delegated part. A lent key pair has less.

        Costs a look-up for a user seen in the last 5 seconds, otherwise the cost of `Policies.permissions_of`.

        Raises:
            NotAuthenticated: the user was deleted meanwhile.
        """
        found = await self._of_user(identity.user_id)
        return found if identity.delegation is None else found.within(identity.delegation)

    async def _of_user(self, user_id: str) -> Permissions:
        known = self._known.get(user_id)
        now_ms = self._ports.clock.now_ms()
        if known is not None and now_ms < known[1] <= now_ms + CACHE_MS:  # not after the clock was set back
            return known[0]
        try:
            found = await self._policies.permissions_of(user_id)
        except UserNotFound as error:
            raise NotAuthenticated("the user is gone") from error
        if len(self._known) >= CACHE_ENTRIES_MAX:
            self._known.clear()
        self._known[user_id] = (found, now_ms + CACHE_MS)
        return found

    def under(self, permissions: Permissions, address: str) -> Permissions:
        """Return the permissions for requests from this address. They are kept as long as `permissions`."""
        under = permissions.by_address.get(address)
        if under is None:
            under = permissions.under(Circumstances(address=address, now_ms=self._ports.clock.now_ms, look=self._look))
            if len(permissions.by_address) < ADDRESSES_CACHED_MAX:
                permissions.by_address[address] = under
        return under

    def forget_all(self) -> None:
        """Clear all cached permissions, because a user, a group, a policy or a grant changed."""
        self._known.clear()
