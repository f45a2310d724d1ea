"""One apply at a time for a repository, without a lock: who begins later is the one that goes on.

An apply *claims* the next number: a file that only one can make. It may go on for as long as no higher number is
there, and looks before each step and each batch of deletes. So an apply that died holds up no other, however it died;
an apply that is overtaken stops at its next look, and the ledger has its deletes. Both may delete an object of both
plans in that moment; to delete twice is harmless. So safety does not rest on the claim. Order does.

Where a repository is made over a namespace that was used, or a person chooses an installation (`gc adopt`), the server
claims a number, too: an apply of an earlier repository does not know the objects that the new one names. It asks the
server nothing while it deletes, so only the claim stops it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from lakebed.base import Clock, Conflict
from lakebed.gc.messages import (
    APPLYING_PREFIX,
    CLAIM_ATTEMPTS_MAX,
    Claim,
    NoClaimLeft,
    claims_in,
    next_claim,
)
from lakebed.objectstore import ObjectExists, ObjectMissing, ObjectOutcomeUnknown, ObjectStore


class Overtaken(Conflict):
    """Another apply began later in this repository, and this one has stopped. Facts: `run_id` of the other one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence:
    """Travels to tasks. `key` is the claim's file."""

    key: str

    async def check(self, store: ObjectStore) -> None:
        """Check with one listing, which is empty unless another apply overtook us.

        Raises:
            Overtaken: another apply did.
        """
        newer = await _claims(store, after=self.key)
        if newer:
            run_id = await _run_of(store, newer[-1])
            if not run_id:
                raise Overtaken("another repository or installation has this namespace now, and this apply stopped")
            raise Overtaken(f"another apply has begun, of run {run_id}, and this one stopped", run_id=run_id)

    def outdated(self, claims: Sequence[str]) -> list[str]:
        """Return those of these files that mean nothing beside ours."""
        return [key for key in claims if key < self.key]


async def claim(store: ObjectStore, clock: Clock, run_id: str) -> tuple[Fence, list[str]]:
    """From now on every other apply of the repository stops; and the files of those before, which may be removed.

    Raises:
        Overtaken: others began without end, or the last number there is has been taken.
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
            continue  # One of our own that we do not know of is overtaken like any other.
        return fence, fence.outdated(there)
    raise Overtaken(f"{CLAIM_ATTEMPTS_MAX} other applies began before this one could", run_id=run_id)


async def _claims(store: ObjectStore, *, after: str = "") -> list[str]:
    """Return the claims in order of number. A file that no apply wrote is none."""
    return claims_in([stat.key async for page in store.list(APPLYING_PREFIX, start_after=after) for stat in page])


async def _run_of(store: ObjectStore, key: str) -> str:
    try:
        return msgspec.json.decode(await store.get(key), type=Claim).run_id
    except (ObjectMissing, msgspec.MsgspecError):
        return "(unknown)"
