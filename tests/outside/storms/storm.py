"""Let a storm blow over an installation, look at what it left, and judge it."""

from __future__ import annotations

import asyncio
import json
import random
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Final

from lakebed.base import Conflict, LakebedError, Unavailable
from tests.outside.servers import Client, Patch

from .clients import ON, REPOSITORY, ROOT, Caller, StormClient
from .collectors import RESTORED, Collectors, Eraser
from .faults import Nemesis, kinds_of, schedule
from .installations import Installation, installed
from .journal import Journal
from .judging import NOTES, judge
from .looking import look
from .model import DUE
from .settling import collect

PAUSE_S: Final = 0.05
RULES: Final = {"default": "6h", "branches": [{"pattern": "main", "period": "forever"}]}
POLICY: Final = {"rules": {"due": {"prefix": DUE, "period": "6h"}}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """State how to storm. It ends after `operations` of all clients together, or after `seconds`."""

    operations: int = 1 << 60
    seconds: float = 3_600
    seed: int = 0
    kv: str = "sqlite"
    store: str = "s3"
    processes: int = 2
    clients: int = 5
    fault_rate: float = 0.05
    """The share of requests that meet a fault all the time, at the object store and at doors."""
    has_doors: bool = False
    every: int = 120
    """Operations between two faults. 0: none."""
    kinds: Sequence[str] = ()
    """Faults that may come. Empty: all that can meet the installation."""
    has_commands: bool = False
    """Collections and erasures are commands; else one kind of collection runs in this process."""
    patches: Sequence[Patch] = ()


@dataclass(slots=True)
class Storm:
    """Report a storm. `wrong` is empty, or it found a bug."""

    calls: Counter[str] = field(default_factory=Counter)
    fates: dict[str, int] = field(default_factory=dict)
    faults: dict[str, int] = field(default_factory=dict)
    commands: dict[str, int] = field(default_factory=dict)
    erasures_begun: int = 0
    erasures_certified: int = 0
    ended_alone: int = 0
    """Servers that ended though no fault ended them."""
    wrong: list[str] = field(default_factory=list)
    seconds: float = 0.0


async def storm(plan: Plan, folder: Path, *, store_port: int | None = None) -> Storm:
    """Storm in this folder, which keeps all that a judge needs.

    `store_port`: as `installed` has it.
    """
    began_s = time.monotonic()
    found = Storm()
    (folder / "plan.json").write_text(json.dumps(asdict(plan)))
    journal = Journal(folder)
    given: dict[str, Any] = {
        name: getattr(plan, name) for name in ("kv", "store", "processes", "seed", "has_doors", "patches")
    }
    async with AsyncExitStack() as stack:
        installation = await stack.enter_async_context(installed(folder, store_port=store_port, **given))
        client = await stack.enter_async_context(installation.fleet.client())
        await _prepare(client, installation.scheme, has_rules=plan.has_commands)
        installation.set_rate(plan.fault_rate)
        blowing = _Blowing(plan, installation, client, journal, found)
        await blowing.blow()
        await installation.calm()
        await look(installation, blowing.collectors, client, blowing.eraser)
        found.fates = installation.met()
        blowing.note()
    journal.close()
    found.wrong = judge(folder)
    found.seconds = time.monotonic() - began_s
    return found


class _Blowing:
    def __init__(self, plan: Plan, installation: Installation, client: Client, journal: Journal, found: Storm) -> None:
        self._plan = plan
        self._installation = installation
        self._journal = journal
        self._found = found
        self._wrong: list[str] = []
        self.collectors = Collectors(installation, journal, plan.seed) if plan.has_commands else None
        self.eraser = (
            Eraser(self.collectors, client, journal, plan.processes, plan.seed) if self.collectors is not None else None
        )
        self._nemesis = Nemesis(installation, self.collectors, journal)
        self._callers: list[Caller] = []

    async def blow(self) -> None:
        """Let clients storm, with all that runs beside them. Then every fault is over, and every server runs."""
        beside = [asyncio.create_task(self._collect_all_the_time())]
        if self.collectors is not None and self.eraser is not None:
            beside += [asyncio.create_task(self.collectors.run_all_the_time())]
            beside += [asyncio.create_task(self.eraser.run_all_the_time())]
        failing = asyncio.create_task(self._fail())
        for task in (*beside, failing):
            task.add_done_callback(_show_failure)
        try:
            await asyncio.gather(*[self._run(number, time.monotonic()) for number in range(self._plan.clients)])
        finally:
            for task in (*beside, failing):
                task.cancel()
            ended = await asyncio.gather(*beside, failing, return_exceptions=True)
        self._wrong += [f"the storm itself failed: {error!r}" for error in ended if isinstance(error, Exception)]
        await self._nemesis.revive()

    async def _fail(self) -> None:
        if self._plan.every:
            kinds = [kind for kind in kinds_of(self._installation) if not self._plan.kinds or kind in self._plan.kinds]
            faults = schedule(self._plan.seed, kinds, every=self._plan.every, processes=self._plan.processes)
            await self._nemesis.run(faults)

    async def _run(self, number: int, began_s: float) -> None:
        plan, fleet = self._plan, self._installation.fleet
        async with fleet.client() as own, fleet.client() as beside:
            chance = random.Random(f"{plan.seed}/servers/{number}")
            caller = Caller([own, beside], plan.processes, chance, self._found.calls)
            self._callers.append(caller)
            client = StormClient(
                number, plan.seed, caller, self._journal, scheme=self._installation.scheme, is_quiet=self._is_quiet
            )
            await client.begin()
            if number == 0:
                await client.drop_repository()  # which chance chooses seldom
            while self._nemesis.operations < plan.operations and time.monotonic() - began_s < plan.seconds:
                await client.act()
                self._nemesis.operations += 1

    def _is_quiet(self) -> bool:
        return self.collectors is not None and self.collectors.is_quiet

    async def _collect_all_the_time(self) -> None:
        """Run one collection after the other, each of which takes the slices of living servers from them."""
        if self.collectors is not None:
            return
        async with self._installation.without_faults() as (versions, deleter):
            while True:
                await asyncio.sleep(PAUSE_S)
                try:
                    await collect(versions, deleter)
                except (Conflict, Unavailable) as error:
                    self._found.calls[f"collection {type(error).__name__}"] += 1
                except LakebedError as error:
                    self._wrong.append(f"a collection failed: {error!r}")
                else:
                    self._found.calls["collection ended"] += 1

    def note(self) -> None:
        """Write down what was wrong, which no other file has, and sum up."""
        found, wrong = self._found, [*self._wrong]
        for caller in self._callers:
            wrong += caller.wrong
        found.faults, found.ended_alone = dict(self._nemesis.kinds), self._nemesis.ended_alone
        if self.collectors is not None and self.eraser is not None:
            wrong += [*self.collectors.wrong, *self.eraser.wrong]
            found.commands = dict(self.collectors.ended)
            found.erasures_begun, found.erasures_certified = self.eraser.begun, len(self.eraser.certified)
        figures: dict[str, Any] = {each.name: getattr(found, each.name) for each in fields(found)} | {"wrong": wrong}
        (self._installation.folder / f"{NOTES}.json").write_text(json.dumps(figures))


def _show_failure(task: asyncio.Task[None]) -> None:
    """Print at once that a part of the storm itself failed: the rest goes on for long."""
    if not task.cancelled() and (error := task.exception()) is not None:
        traceback.print_exception(error)


async def _prepare(client: Client, scheme: str, *, has_rules: bool) -> None:
    body = {"name": REPOSITORY, "storage_namespace": f"{scheme}://lake/storm"}
    steps: list[tuple[str, str, object, int]] = [
        ("POST", "/repositories", body, 201),
        ("PUT", f"{ROOT}/hard_delete", ON, 200),
        ("POST", f"{ROOT}/branches", {"name": "base", "source": "main"}, 201),
    ]
    if has_rules:
        steps += [
            ("POST", f"{ROOT}/branches", {"name": RESTORED, "source": "main"}, 201),
            ("PUT", f"{ROOT}/gc/rules/full", RULES, 200),
            ("PUT", f"{ROOT}/lifecycle/policy", {"policy": POLICY}, 200),
        ]
    for method, target, sent, status in steps:
        answer = await client.send(0, method, target, sent)
        assert answer.status == status, (target, answer)
