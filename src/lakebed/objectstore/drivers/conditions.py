"""Test that a service enforces the conditions that claims need, before the first claim of a process.

Some services ignore `If-None-Match` and store. A writer that claims a name by a conditional put would then claim
another's name: two repositories one namespace, two applies one number. So before its first conditional put, a process
tests in the namespace, at a key that no listing shows, that the second of two puts is refused. The object of one byte
is kept: the next process needs one request instead of two, and no right to delete. Large bodies get their key by a
conditional copy, which a service may support independently: the first copy tests that too.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Final

import obstore

from lakebed.objectstore.arguments import RESERVED_SEGMENT
from lakebed.objectstore.store import ObjectExists, ObjectOutcomeUnknown, ObjectStoreUnavailable

from .remote_answers import ObjectConflict, done

if TYPE_CHECKING:
    from .remote_answers import Client

_KEY: Final = f"{RESERVED_SEGMENT}/if-none-match"
_BODY: Final = b"."
"""A byte: some services do not copy an empty part."""


class TriedConditions:
    """Tests the conditions of one namespace. A check costs requests only until it first succeeds in this process.

    `names` are those of the conditions on a put and on a copy, for messages.
    """

    def __init__(self, client: Client, prefix: str, names: tuple[str, str]) -> None:
        self._client = client
        self._path = prefix + _KEY
        self._put_name, self._copy_name = names
        self._puts_are_kept = False
        self._copies_are_kept = False

    async def check_puts(self) -> None:
        """Test the condition on puts.

        Raises:
            ObjectStoreUnavailable: the service ignored the condition, or the test failed.
        """
        if self._puts_are_kept:
            return
        # If the first put finds the object of another process, that refusal is sufficient.
        if await self._is_put() and await self._is_put():
            raise _not_kept(self._put_name)
        self._puts_are_kept = True

    async def check_copies(self) -> None:
        """Test the conditions on puts and copies.

        Raises:
            ObjectStoreUnavailable: the service ignored a condition, or the test failed.
        """
        await self.check_puts()
        if self._copies_are_kept:
            return
        if await _is_done(obstore.copy_async(self._client, self._path, self._path, overwrite=False)):
            raise _not_kept(self._copy_name)
        self._copies_are_kept = True

    async def _is_put(self) -> bool:
        return await _is_done(obstore.put_async(self._client, self._path, _BODY, mode="create", use_multipart=False))


async def _is_done(request: Awaitable[object]) -> bool:
    try:
        await done(_KEY, request, conditional=True)
    # A conflict of two conditional requests shows that the service checks conditions.
    except (ObjectExists, ObjectConflict):
        return False
    except ObjectOutcomeUnknown as error:
        raise ObjectStoreUnavailable(f"whether this store keeps conditions could not be tried: {error}") from error
    return True


def _not_kept(condition: str) -> ObjectStoreUnavailable:
    return ObjectStoreUnavailable(f"this store does not keep {condition}: no claim made in it would hold")
