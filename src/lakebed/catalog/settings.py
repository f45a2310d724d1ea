"""A repository's settings: small records. The last write wins, unless the writer names the version it had read.

Reads may be `CACHE_MS` old, except after writes by this process. So other processes apply a new protection rule that
much later.
"""

from __future__ import annotations

import fnmatch
import functools
import hashlib
import re
from collections.abc import AsyncIterator, Sequence
from typing import Final

from lakebed.base import Etags, Ports, RepositoryUid, Tasks
from lakebed.kv import PredicateFailed, Store, scan_prefix
from lakebed.versions import decode_record, encode_record, keys

from .errors import SettingChanged, TooManyPatterns
from .records import BranchProtection, HiddenBranch

CACHE_MS: Final = 1_000
PATTERNS_MAX: Final = 200
WILDCARDS_MAX: Final = 8
"""The limit of one pattern. Compiling a long one with eight takes 0.7 ms of CPU."""
COMPILED_AT_ONCE: Final = 20
_PROTECTION: Final = keys.SETTING + b"branch_protection"
_HIDDEN: Final = keys.SETTING + b"hidden_branch/"


class Settings:
    """Read and change the settings of one repository."""

    def __init__(self, uid: RepositoryUid, store: Store, ports: Ports) -> None:
        self._partition = keys.repository_partition(uid)
        self._store = store
        self._ports = ports
        self._protection: tuple[BranchProtection, int] | None = None

    async def protection_patterns(self) -> tuple[tuple[str, ...], str]:
        """Return the currently stored patterns, and their ETag; both are empty if none are stored."""
        held = await self._store.get(self._partition, _PROTECTION)
        if held is None:
            return (), ""
        return decode_record(BranchProtection, held.value).patterns, _etag(held.value)

    async def set_protection_patterns(self, patterns: Sequence[str], *, if_match: Etags | None = None) -> None:
        """Replace the patterns.

        Raises:
            SettingChanged: the stored ETag is none of `if_match`. It is empty where no patterns are stored.
        """
        value = encode_record(BranchProtection(patterns=tuple(dict.fromkeys(patterns))))
        self._protection = None
        if if_match is None:
            await self._store.set(self._partition, _PROTECTION, value)
            return
        held = await self._store.get(self._partition, _PROTECTION)
        etag = _etag(held.value) if held else ""
        if not if_match.match(etag) or (if_match.is_any and held is None):
            raise SettingChanged("branch protection rules were changed", etag=etag)
        try:
            await self._store.set_if(self._partition, _PROTECTION, value, held.predicate if held else None)
        except PredicateFailed as error:
            raise SettingChanged("branch protection rules were changed", etag=etag) from error

    async def is_protected(self, branch: str) -> bool:
        now_ms = self._ports.clock.now_ms()
        known = self._protection
        if known is None or not 0 <= now_ms - known[1] < CACHE_MS:
            patterns, _ = await self.protection_patterns()
            known = self._protection = (BranchProtection(patterns=patterns), now_ms)
        patterns = known[0].patterns
        return bool(patterns) and await find_match(self._ports.tasks, patterns, branch) is not None

    async def hide_branch(self, branch: str, *, work_of: str = "") -> None:
        """Hide a branch. No request can set `work_of`, so a flow recognises its own branches by it."""
        record = HiddenBranch(created_ms=self._ports.clock.now_ms(), work_of=work_of)
        await self._store.set(self._partition, _HIDDEN + branch.encode(), encode_record(record))

    async def unhide_branch(self, branch: str) -> None:
        # Few branches are hidden, and a write costs much more than a read.
        if await self.is_hidden(branch):
            await self._store.delete(self._partition, _HIDDEN + branch.encode())

    async def is_hidden(self, branch: str) -> bool:
        return await self._store.get(self._partition, _HIDDEN + branch.encode()) is not None

    async def hidden_branches(self) -> frozenset[str]:
        return frozenset([name async for name, _ in self._hidden()])

    async def work_branches(self, flow: str = "") -> frozenset[str]:
        """Return the hidden branches of this flow, or of all flows. A branch may be deleted, or not made yet."""
        return frozenset([name async for name, one in self._hidden() if one.work_of and flow in ("", one.work_of)])

    async def _hidden(self) -> AsyncIterator[tuple[str, HiddenBranch]]:
        async for key, value in scan_prefix(self._store, self._partition, _HIDDEN):
            yield key[len(_HIDDEN) :].decode(), decode_record(HiddenBranch, value)


def check_patterns(patterns: Sequence[str]) -> None:
    """Refuse patterns of branches that cost too much: every write compares its branch with each of them.

    Raises:
        TooManyPatterns: there are too many, or one has too many wildcards.
    """
    if len(patterns) > PATTERNS_MAX:
        raise TooManyPatterns(f"at most {PATTERNS_MAX} patterns of branches, got {len(patterns):,}")
    for pattern in patterns:
        if sum(pattern.count(wildcard) for wildcard in "*?[") > WILDCARDS_MAX:
            raise TooManyPatterns(f"{pattern[:80]!r} has more than {WILDCARDS_MAX} of the wildcards *, ? and [")


async def find_match(tasks: Tasks, patterns: Sequence[str], branch: str) -> str | None:
    """Return the first pattern that matches this branch. Compile many patterns without blocking the event loop."""
    if len(patterns) <= COMPILED_AT_ONCE:
        return matching(patterns, branch)
    return await tasks.apart(functools.partial(matching, patterns, branch))


def matching(patterns: Sequence[str], branch: str) -> str | None:
    """Return the first pattern that matches this branch."""
    return next((pattern for pattern in patterns if _pattern(pattern).match(branch)), None)


def _etag(value: bytes) -> str:
    return hashlib.blake2b(value, digest_size=16).hexdigest()


@functools.lru_cache(maxsize=4096)
def _pattern(pattern: str) -> re.Pattern[str]:
    return re.compile(fnmatch.translate(pattern))
