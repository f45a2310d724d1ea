"""One apply at a time for a repository, without a lock: who begins later is the one that goes on.

    _lakefs/retention/gc/applying/<12 digits>.json

An apply *claims* the next number: a file that only one can make. It may go on for as long as no higher number is
there, and looks before each step and each part of a plan. So an apply that died holds up no other, however it died; one
that is overtaken stops at its next look, and what it did is in the ledger. What two of them might still delete in that
moment is what both of their plans hold, and deleting twice is deleting once: safety does not rest on this, order does.

A number that a billion applies would have to come before is no claim: such a file is unknown, and stops no apply.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from lakebed.base import Clock, Conflict
from lakebed.gc.protocol import GC_PREFIX
from lakebed.objectstore import ObjectExists, ObjectMissing, ObjectOutcomeUnknown, ObjectStore

APPLYING_PREFIX: Final = f"{GC_PREFIX}applying/"
ATTEMPTS_MAX: Final = 100
"""If this many applies begin between our listing and our file, the store does not list what is there."""

NUMBERS_MAX: Final = 10**9
CLAIM_KEY: Final = rf"{APPLYING_PREFIX}000\d{{9}}\.json"
"""What the key of a claim looks like: its number is below NUMBERS_MAX."""

_CLAIM: Final = re.compile(CLAIM_KEY, re.ASCII)


class Overtaken(Conflict):
    """Another apply began later in this repository, and this one has stopped. Facts: `run_id` of the other one."""


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """Hold the content of the file: for people, and for the error of an apply that was overtaken."""

    run_id: str
    started_ms: int


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
    for _ in range(ATTEMPTS_MAX):
        there = await _claims(store)
        number = _number(there[-1]) + 1 if there else 1
        if number == NUMBERS_MAX:
            raise Overtaken(f"there is no number after {there[-1]}, which no apply made: remove it", run_id=run_id)
        fence = Fence(key=f"{APPLYING_PREFIX}{number:012d}.json")
        try:
            await store.put(fence.key, data, if_absent=True)
        except (ObjectExists, ObjectOutcomeUnknown):
            continue  # One of our own that we do not know of is overtaken like any other.
        return fence, fence.outdated(there)
    raise Overtaken(f"{ATTEMPTS_MAX} other applies began before this one could", run_id=run_id)


async def _claims(store: ObjectStore, *, after: str = "") -> list[str]:
    """Return the claims in order of number. A file that no apply wrote is none."""
    found = [stat.key async for page in store.list(APPLYING_PREFIX, start_after=after) for stat in page]
    return [key for key in found if _CLAIM.fullmatch(key)]


def _number(key: str) -> int:
    return int(key.removeprefix(APPLYING_PREFIX).removesuffix(".json"))


async def _run_of(store: ObjectStore, key: str) -> str:
    try:
        return msgspec.json.decode(await store.get(key), type=Claim).run_id
    except (ObjectMissing, msgspec.MsgspecError):
        return "(unknown)"
