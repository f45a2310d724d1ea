"""Remember which sandbox an agent without a command of its own writes to: any process of the server finds it.

    agents/<user id>/<SHA-256 of session and repository>   the sandbox

The record gives no rights, and no secret is in it. It is removed a day after the sandbox, so that an agent that comes
back in between learns that what it wrote is gone.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from typing import Final

from lakebed.auth import AGENTS, PARTITION, AgentRecord, UserRecord, agent_key, decode, encode
from lakebed.base import Denied, Ports
from lakebed.kv import Held, PredicateFailed, Store, scan_prefix

from .life import Sandboxes

SANDBOXES_MAX: Final = 100
"""The limit of one user, beside the requests in flight. Each session of an agent makes its own."""
KEPT_MS: Final = 24 * 3_600_000


class TooManySandboxes(Denied):
    """The agents of this user have as many sandboxes as they may."""


class Agents:
    """Find and remember the sandboxes of agents. `session` is a name that the agent chose or got."""

    def __init__(self, store: Store, ports: Ports, sandboxes: Sandboxes) -> None:
        self._store = store
        self._ports = ports
        self._sandboxes = sandboxes

    async def find(self, user: UserRecord, session: str, repository: str) -> str:
        """Return the sandbox of a session, which may have ended, or "" where one may be made.

        Raises:
            TooManySandboxes: see there.
        """
        held = await self._store.get(PARTITION, _key(user, session, repository))
        if held is not None and (sandbox := _sandbox_of(user, held)):
            return sandbox
        scan = scan_prefix(self._store, PARTITION, agent_key(user.id))
        ids = [decode(AgentRecord, value).sandbox async for _, value in scan]
        # A sandbox may have ended before its time, or last longer. To look at each takes a read.
        if len(ids) >= SANDBOXES_MAX:
            lasting = sum([await self._sandboxes.lasts(id_) for id_ in ids])
            if lasting >= SANDBOXES_MAX:
                raise TooManySandboxes(
                    f"agents of {user.id} have {lasting} sandboxes, and may have no more: end some "
                    "(lakebed sandbox list, lakebed sandbox end)",
                    user=user.id,
                )
        return ""

    async def keep(self, user: UserRecord, session: str, repository: str, *, sandbox: str, ends_ms: int) -> str:
        """Remember a sandbox. Return it, or the one that another request remembered first."""
        key = _key(user, session, repository)
        record = encode(AgentRecord(user_uid=user.uid, sandbox=sandbox, ends_ms=ends_ms))
        while True:
            held = await self._store.get(PARTITION, key)
            if held is not None and (other := _sandbox_of(user, held)):
                return other
            with suppress(PredicateFailed):
                await self._store.set_if(PARTITION, key, record, held.predicate if held else None)
                return sandbox

    async def forget(self, user: UserRecord, session: str, repository: str, sandbox: str) -> None:
        """Have the next write of a session make another sandbox in the place of this one."""
        key = _key(user, session, repository)
        held = await self._store.get(PARTITION, key)
        if held is not None and _sandbox_of(user, held) == sandbox:
            with suppress(PredicateFailed):  # another request was faster
                await self._store.delete_if(PARTITION, key, held.predicate)

    async def clean(self) -> None:
        """Remove the records of sandboxes that ended a day ago."""
        over_ms = self._ports.clock.now_ms() - KEPT_MS
        async for key, value in scan_prefix(self._store, PARTITION, AGENTS):
            record = decode(AgentRecord, value)
            # One that was extended lasts longer than its record says.
            if record.ends_ms <= over_ms and not await self._sandboxes.lasts(record.sandbox):
                held = await self._store.get(PARTITION, key)
                if held is not None and held.value == value:
                    with suppress(PredicateFailed):  # it names another sandbox by now
                        await self._store.delete_if(PARTITION, key, held.predicate)


def _sandbox_of(user: UserRecord, held: Held) -> str:
    """Return the sandbox, or "" if the record is of an earlier user of this id."""
    record = decode(AgentRecord, held.value)
    return record.sandbox if record.user_uid == user.uid else ""


def _key(user: UserRecord, session: str, repository: str) -> bytes:
    return agent_key(user.id, hashlib.sha256(f"{repository}/{session}".encode()).hexdigest())
