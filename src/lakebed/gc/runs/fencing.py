"""Let one apply at a time run in a repository, without a lock: the latest one continues.

1. an apply *claims* the next number: a file that only one writer can create
2. before each step and each batch of deletes it checks for a higher number, and stops if there is one
3. the stopped apply's deletes are in the ledger

So an apply that died blocks no other. Safety does not depend on the claim: two applies may delete an object of both
plans at the same time, which is harmless. The claim gives the order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from lakebed.base import Clock, Conflict
from lakebed.gc.messages import APPLYING_PREFIX, CLAIM_ATTEMPTS_MAX, Claim, NoClaimLeft, claims_in, next_claim
from lakebed.objectstore import ObjectExists, ObjectMissing, ObjectOutcomeUnknown, ObjectStore


class Overtaken(Conflict):
    """Another apply of this repository began later, so this one stopped. Facts: `run_id` of the later apply."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence:
    """Check whether an apply is still the latest one. Travels to tasks. `key` is the file of its claim."""

    key: str

    async def check(self, store: ObjectStore) -> None:
        """Check with one listing, which is empty unless a later apply began.

        Raises:
            Overtaken: a later apply began, or another repository or installation has the namespace.
        """
        newer = await _claims(store, after=self.key)
        if newer:
            run_id = await _run_of(store, newer[-1])
            if not run_id:
                # The server claims a number, too, when a repository is made over a used namespace, or a person chooses
                # an installation (`gc adopt`). An older apply does not know the new objects and asks no server.
                raise Overtaken("another repository or installation has this namespace now, and this apply stopped")
            raise Overtaken(f"another apply has begun, of run {run_id}, and this one stopped", run_id=run_id)

    def outdated(self, claims: Sequence[str]) -> list[str]:
        """Return the claims with a lower number. No apply needs their files any more."""
        return [key for key in claims if key < self.key]


async def claim(store: ObjectStore, clock: Clock, run_id: str) -> tuple[Fence, list[str]]:
    """Claim the next number: from now on every earlier apply of the repository stops.

    Return the fence, and the files of earlier claims, which may be removed.

    Raises:
        Overtaken: every attempt lost to another apply, or the last number is taken.
    """
    data = msgspec.json.encode(Claim(run_id=run_id, started_ms=clock.now_ms()))
    for _ in range(CLAIM_ATTEMPTS_MAX):
        there = await _claims(store)
        try:
            fence = Fence(key=next_claim(there))
        except NoClaimLeft as error:
            raise Overtaken(str(error), run_id=run_id) from error
        try:
            await store.put(fence.key, data, if_absent=True)
        except (ObjectExists, ObjectOutcomeUnknown):
            continue  # A lost answer may hide a claim of our own. The next number overtakes it like any other.
        return fence, fence.outdated(there)
    raise Overtaken(f"{CLAIM_ATTEMPTS_MAX} other applies began before this one could", run_id=run_id)


async def _claims(store: ObjectStore, *, after: str = "") -> list[str]:
    """Return the claims in order of number. Ignore files that no apply wrote."""
    return claims_in([stat.key async for page in store.list(APPLYING_PREFIX, start_after=after) for stat in page])


async def _run_of(store: ObjectStore, key: str) -> str:
    try:
        return msgspec.json.decode(await store.get(key), type=Claim).run_id
    except (ObjectMissing, msgspec.MsgspecError):
        return "(unknown)"
