"""A setting of a repository of which every version is kept: retention rules, and the lifecycle policy.

A version is never given twice, not even after the setting was deleted (then the record holds none). So a plan can name
the version that it was made by, and a run can see that it changed (docs/design/protocols.md, "Rules").

History. Before a version is replaced it is copied, as it is, under a key of its own; then the setting is replaced with
`set_if`. So every version that ever counted can be read, with who set it and when. A writer that dies between the two
leaves a copy of what still counts. All are kept: a version is small, and people set it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Generic, TypeVar

from lakebed.base import OutcomeUnknown, RunId, RunState
from lakebed.gc.live.errors import RulesMoved, RulesVersionNotFound
from lakebed.kv import PredicateFailed
from lakebed.versions import Record, RunRecord, Versions, encode_record

PAGE_MAX: Final = 1_000

_TAKING: Final = frozenset({RunState.EXPIRING, RunState.SWEEPING})


class VersionRecord(Record, frozen=True, kw_only=True, omit_defaults=True):
    """`version` counts every change, deletions too. `changed_by` is a user's id."""

    version: int
    changed_ms: int
    changed_by: str = ""


R = TypeVar("R", bound=VersionRecord)


class VersionedSetting(Generic[R]):
    """`noun` is for messages; `empty` is what counts where nothing was ever set, of version 0."""

    def __init__(self, versions: Versions, key: bytes, *, noun: str, empty: R, decode: Callable[[bytes], R]) -> None:
        self._versions = versions
        self._key = key
        self._noun = noun
        self._empty = empty
        self._decode = decode

    async def read(self) -> R:
        """Return the version in force."""
        held = await self._versions.context.get(self._key)
        return self._empty if held is None else self._decode(held.value)

    async def version(self, version: int) -> R:
        """
        Raises:
            RulesVersionNotFound: there never was this version.
        """
        current = await self.read()
        if version == current.version:
            return current
        former = await self._former(range(version, version + 1)) if 0 < version < current.version else []
        if not former:
            raise RulesVersionNotFound(f"{self._noun} of version {version} do not exist", version=version)
        return former[0]

    async def history(self, *, before: int | None = None, limit: int = PAGE_MAX) -> tuple[list[R], bool]:
        """Return versions, newest first: all, or those before a version. The flag: are there older ones?"""
        current = await self.read()
        newest = current.version if before is None else min(current.version, before - 1)
        oldest = max(1, newest - limit + 1)
        found = [current] if oldest <= current.version <= newest else []
        found += await self._former(range(min(newest, current.version - 1), oldest - 1, -1))
        return found, oldest > 1

    async def _former(self, versions: range) -> list[R]:
        held = await self._versions.context.get_many([self._former_key(version) for version in versions])
        return [self._decode(found.value) for found in held if found is not None]

    async def change(self, next_of: Callable[[R], R], *, expected: int | None = None) -> R:
        """Replace the version in force by what `next_of` makes of it, and return that.

        Who reads the setting from now on reads this version or a later one. `next_of` is called again when another
        writer was faster.

        Raises:
            RulesMoved: the version in force is not `expected`.
        """
        versions = self._versions
        sent: R | None = None
        while True:
            held = await versions.context.get(self._key)
            before = self._empty if held is None else self._decode(held.value)
            if sent is not None and before == sent:
                return sent  # the answer was lost, and yet it was written
            if expected is not None and before.version != expected:
                raise RulesMoved(
                    f"{self._noun} are of version {before.version}, not {expected}: another user changed them",
                    version=before.version,
                    expected=expected,
                )
            record = next_of(before)
            if held is not None:
                await versions.context.set(self._former_key(before.version), before)
            predicate = None if held is None else held.predicate
            try:
                await versions.context.set_if(self._key, encode_record(record), predicate)
            except PredicateFailed:
                continue
            except OutcomeUnknown:
                sent = record
                continue
            return record

    async def counts_after(self) -> tuple[RunId, ...]:
        """Return the runs that expire or sweep by a former version: for these a change comes too late.

        A change is there before the runs are read: a run that reads the setting after this sees it, and one that read
        it before has published what it expires before that, so it is seen here.
        """
        runs = await self._versions.retired.runs()
        return tuple(run for run, one in runs if self._is_too_late_for(one))

    def _is_too_late_for(self, run: RunRecord) -> bool:
        # A deferred run decided long ago: to say of each that the change comes too late would tell nothing.
        return run.state in _TAKING and not run.until_ms

    def _former_key(self, version: int) -> bytes:
        return self._key + b"/%012d" % version
