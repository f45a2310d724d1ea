"""Keep the lifecycle policy of a repository: one setting, with every version (versioned.py).

The JSON is kept as it was sent, so that it reads back as its author wrote it. What it means is read again each time.
"""

from __future__ import annotations

from typing import Final

from lakebed.gc.live.errors import PolicyNotFound
from lakebed.gc.rules.lifecycle import Policy, Problem, check_policy, read_policy
from lakebed.versions import BranchRecord, Versions, decode_record, keys

from .versioned import VersionedSetting, VersionRecord

POLICY_KEY: Final = keys.LIFECYCLE


class PolicyRecord(VersionRecord, frozen=True, kw_only=True, omit_defaults=True):
    """`policy` is JSON; None: it was deleted."""

    policy: bytes | None = None


class PolicyBook(VersionedSetting[PolicyRecord]):
    def __init__(self, versions: Versions) -> None:
        empty = PolicyRecord(version=0, changed_ms=0)
        super().__init__(versions, POLICY_KEY, noun="the lifecycle policies", empty=empty, decode=_decode)

    async def check(self, policy: bytes) -> list[Problem]:
        """Return every problem of a policy, by the branches that there are now."""
        return read_policy(policy, branches=await self._branches())[1]

    async def write(
        self, policy: bytes | None, *, by: str = "", expected: int | None = None
    ) -> tuple[PolicyRecord, list[Problem]]:
        """Replace the policy (None: delete it), and return what is in force now with its warnings.

        Raises:
            InvalidPolicy: it has errors. Nothing changed.
            RulesMoved: the version in force is not `expected`.
        """
        warnings: list[Problem] = []
        if policy is not None:
            branches = await self._branches()
            check_policy(policy, branches=branches)
            warnings = read_policy(policy, branches=branches)[1]

        def next_of(before: PolicyRecord) -> PolicyRecord:
            now_ms = self._versions.ports.clock.now_ms()
            return PolicyRecord(version=before.version + 1, policy=policy, changed_ms=now_ms, changed_by=by)

        return await self.change(next_of, expected=expected), warnings

    async def in_force(self) -> tuple[int, Policy]:
        """Return the version in force and what it means.

        Raises:
            PolicyNotFound: none is set.
        """
        record = await self.read()
        if record.policy is None:
            raise PolicyNotFound("no lifecycle policy is set for this repository")
        return record.version, check_policy(record.policy)

    async def _branches(self) -> list[str]:
        return [name async for name, _ in self._versions.inventory.every(BranchRecord)]


def _decode(data: bytes) -> PolicyRecord:
    return decode_record(PolicyRecord, data)
