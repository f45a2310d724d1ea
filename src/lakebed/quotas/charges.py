"""Charge the writes of one repository to its own quota, to that of the branch, and to that of the user.

A repository counts bytes that are stored in its namespace. A branch and a user count these and, of addresses elsewhere,
the sizes that the entries have. Copies that move no bytes, and moves, count nothing.
"""

from __future__ import annotations

from lakebed.base import RepositoryUid

from .meter import Meter, Reservation
from .records import of_branch, of_repository, of_user


class Charges:
    def __init__(self, meter: Meter, uid: RepositoryUid) -> None:
        self._meter = meter
        self._uid = uid
        self._repository = of_repository(uid)

    async def reserve(self, branch: str, by: str, size_bytes: int, *, elsewhere: bool = False) -> Reservation:
        """Reserve the bytes of a write. `elsewhere`: none are stored in the namespace. Without a user none is charged.

        Raises:
            QuotaExceeded.
        """
        scopes = [of_branch(self._uid, branch)]
        if by:
            scopes.append(of_user(by))
        if not elsewhere:
            scopes.append(self._repository)
        return await self._meter.reserve(scopes, size_bytes)

    async def reserve_stored(self, size_bytes: int) -> Reservation:
        """Reserve bytes that are stored once more, and were charged to branch and user before."""
        return await self._meter.reserve([self._repository], size_bytes)

    async def check(self, branch: str, by: str) -> None:
        """Refuse a write whose size is not known yet, if nothing is left.

        Raises:
            QuotaExceeded.
        """
        (await self.reserve(branch, by, 1)).give_back()
