"""Make a recording: clients that do everything at once to a few branches, while servers are killed under them.

An *epoch* is a pair of branches: `work`, with staged objects and commits, and `trunk`, with merges of work and empty
commits. After some appends a new epoch begins, so that every log is short and can be read whole.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from bench.http import Answer, objects_url
from tests.outside.servers import Client, Fleet, NoAnswer, NotSent, Patch, fleet

from .events import Event, Micro

REPOSITORY: Final = "history"
ROOT: Final = f"/repositories/{REPOSITORY}"
FOLDERS: Final = 3
PATHS: Final = 2
EPOCH_APPENDS: Final = 40
PAUSE_S: Final = 0.02
"""After a call that no server took."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """State how to record. Equal seeds give equal choices of clients, and never equal schedules."""

    seconds: float = 10
    seed: int = 0
    processes: int = 3
    clients: int = 8
    is_killing: bool = False
    kv: str | None = None
    """The URI of an empty store for the metadata. Without one the servers use a file in the folder."""
    patches: Sequence[Patch] = ()


@dataclass(slots=True)
class Recording:
    events: list[Event] = field(default_factory=list)
    kills: int = 0
    server_errors: list[str] = field(default_factory=list)
    """Answers of 500 and above, which are as good as none."""


async def record(plan: Plan, folder: Path) -> Recording:
    """Start servers over a fresh folder, run the clients, read everything once more at the end."""
    # By the variable, for others may read a command line, and the URI may have a password.
    environment = {} if plan.kv is None else {"LAKEBED_STORE_URI": plan.kv}
    async with fleet(folder, plan.processes, plan.patches, environment) as servers:
        recorder = _Recorder(plan, servers)
        async with servers.client() as client:
            body = {"name": REPOSITORY, "storage_namespace": "local://history/x"}
            answer = await client.send(0, "POST", "/repositories", body)
            assert answer.status == 201, answer
            await recorder.begin_epoch(client)
        killing = asyncio.create_task(recorder.kill_at_random()) if plan.is_killing else None
        try:
            await asyncio.gather(*[recorder.run_client(number) for number in range(plan.clients)])
        finally:
            recorder.is_over.set()
            if killing is not None:
                await killing
        await recorder.read_everything()
        return recorder.recording


class _Recorder:
    def __init__(self, plan: Plan, servers: Fleet) -> None:
        self._plan = plan
        self._servers = servers
        self._began_ns = time.monotonic_ns()
        self._processes = itertools.count()
        self._values = itertools.count(1)
        self._by_checksum: dict[str, int] = {}
        self._epoch = 0
        self._appends = 0
        self._epoch_lock = asyncio.Lock()
        self.recording = Recording()
        self.is_over = asyncio.Event()

    # The recording

    def note(self, type_: Literal["invoke", "ok", "fail", "info"], process: int, f: str, value: list[Micro]) -> None:
        now_ns = time.monotonic_ns() - self._began_ns
        events = self.recording.events
        events.append(Event(index=len(events), type=type_, process=process, time=now_ns, f=f, value=value))

    def fresh_process(self) -> int:
        return next(self._processes)

    def fresh_value(self) -> int:
        value = next(self._values)
        self._by_checksum[hashlib.md5(b"%d" % value, usedforsecurity=False).hexdigest()] = value
        return value

    def value_of(self, checksum: str) -> int:
        """The value whose bytes a listing shows; -1 for bytes that no client sent."""
        return self._by_checksum.get(checksum, -1)

    def note_server_error(self, answer: Answer) -> None:
        self.recording.server_errors.append(f"{answer.status} {answer.body[:200].decode(errors='replace')}")

    # Epochs

    @property
    def epoch(self) -> int:
        return self._epoch

    def count_append(self) -> None:
        self._appends += 1

    async def turn_epoch(self, client: Client) -> None:
        """Begin another epoch if this one has had its appends. Clients under way stay in theirs."""
        async with self._epoch_lock:
            if self._appends >= EPOCH_APPENDS:
                await self.begin_epoch(client)

    async def begin_epoch(self, client: Client) -> None:
        following = self._epoch + 1
        for branch in (work_of(following), trunk_of(following)):
            await self._insist(client, "POST", f"{ROOT}/branches", {"name": branch, "source": "main"}, {201, 409})
        self._epoch, self._appends = following, 0

    async def _insist(self, client: Client, method: str, target: str, body: object, expected: set[int]) -> Answer:
        while True:
            for number in range(len(self._servers.servers)):
                try:
                    answer = await client.send(number, method, target, body)
                except (NotSent, NoAnswer):
                    await asyncio.sleep(PAUSE_S)
                    continue
                if answer.status in expected:
                    return answer

    # Clients and faults

    async def run_client(self, number: int) -> None:
        chance = random.Random(f"{self._plan.seed}/{number}")
        ends_at = time.monotonic() + self._plan.seconds
        async with self._servers.client() as client:
            worker = _Worker(self, client, chance, len(self._servers.servers))
            while time.monotonic() < ends_at:
                await self.turn_epoch(client)
                await worker.call_something()

    async def kill_at_random(self) -> None:
        """Kill one server, or now and then all of them, and start again what was killed; until the clients are done."""
        chance = random.Random(f"{self._plan.seed}/kill")
        while not self.is_over.is_set():
            try:
                await asyncio.wait_for(self.is_over.wait(), chance.uniform(0.2, 2.0))
            except TimeoutError:
                self.recording.kills += await self._servers.kill_some(chance)

    async def read_everything(self) -> None:
        """Read each log and each folder once, from every server, when all else is over."""
        for number in range(len(self._servers.servers)):
            async with self._servers.client() as client:
                worker = _Worker(self, client, random.Random(0), len(self._servers.servers), server=number)
                for epoch in range(1, self._epoch + 1):
                    await worker.read_log(work_of(epoch))
                    await worker.read_log(trunk_of(epoch))
                    for folder in range(FOLDERS):
                        await worker.read_folder(work_of(epoch), f"f{folder}")


class _Worker:
    """One client: chooses a call, sends it to some server, notes how it began and how it ended."""

    def __init__(
        self, recorder: _Recorder, client: Client, chance: random.Random, servers: int, *, server: int | None = None
    ) -> None:
        self._recorder = recorder
        self._client = client
        self._chance = chance
        self._servers = servers
        self._server = server
        self._process = recorder.fresh_process()

    async def call_something(self) -> None:
        epoch = self._recorder.epoch
        work, trunk = work_of(epoch), trunk_of(epoch)
        name = f"f{self._chance.randrange(FOLDERS)}/{self._chance.randrange(PATHS)}"
        choices: list[tuple[int, Callable[[], Awaitable[None]]]] = [
            (24, lambda: self.upload(work, name)),
            (5, lambda: self.delete(work, name)),
            (20, lambda: self.read(work, name)),
            (10, lambda: self.read_folder(work, name.partition("/")[0])),
            (14, lambda: self.commit(work)),
            (4, lambda: self.commit_empty(trunk)),
            (8, lambda: self.merge(work, trunk)),
            (9, lambda: self.read_log(work)),
            (6, lambda: self.read_log(trunk)),
        ]
        [(_, call)] = self._chance.choices(choices, [weight for weight, _ in choices])
        await call()

    # Registers

    async def upload(self, branch: str, name: str) -> None:
        value = self._recorder.fresh_value()
        target = _object_target(branch, name, kind="branches")
        async with self._noted("upload", [("w", f"{branch}/{name}", value)]) as noted:
            answer = await self._send("POST", target, b"%d" % value)
            noted.settle(answer, {201})

    async def delete(self, branch: str, name: str) -> None:
        async with self._noted("delete", [("w", f"{branch}/{name}", None)]) as noted:
            noted.settle(await self._send("DELETE", _object_target(branch, name, kind="branches")), {204})

    async def read(self, branch: str, name: str) -> None:
        async with self._noted("read", [("get", f"{branch}/{name}", None)]) as noted:
            answer = await self._send("GET", _object_target(branch, name))
            value = int(answer.body) if answer.status == 200 else None
            noted.settle(answer, {200, 404}, [("get", f"{branch}/{name}", value)])

    async def read_folder(self, branch: str, folder: str) -> None:
        names = [f"{folder}/{number}" for number in range(PATHS)]
        async with self._noted("list", [("get", f"{branch}/{name}", None) for name in names]) as noted:
            answer, found = await self._list(branch, f"{folder}/")
            noted.settle(answer, {200}, [("get", f"{branch}/{name}", found.get(name)) for name in names])

    async def _list(self, ref: str, prefix: str) -> tuple[Answer, dict[str, int]]:
        answer = await self._send("GET", f"{ROOT}/refs/{ref}/objects/ls?prefix={prefix}&amount=1000")
        rows = json.loads(answer.body)["results"] if answer.status == 200 else []
        return answer, {row["path"]: self._recorder.value_of(row["checksum"]) for row in rows}

    # Logs

    async def commit(self, branch: str) -> None:
        """Commit, and now and then read the commit's whole tree: it is a read of the branch during the commit."""
        value = self._recorder.fresh_value()
        append: Micro = ("append", branch, value)
        async with self._noted("commit", [append]) as noted:
            body = {"message": str(value), "allow_empty": self._chance.random() < 0.5}
            answer = await self._send("POST", f"{ROOT}/branches/{branch}/commits", body)
            shown: list[Micro] = []
            if answer.status == 201 and self._chance.random() < 0.5:
                shown = await self._tree(branch, json.loads(answer.body)["id"])
            noted.settle(answer, {201}, [append, *shown])

    async def _tree(self, branch: str, commit_id: str) -> list[Micro]:
        try:
            answer, found = await self._list(commit_id, "")
        except (NotSent, NoAnswer):
            return []
        names = [f"f{folder}/{number}" for folder in range(FOLDERS) for number in range(PATHS)]
        return [("get", f"{branch}/{name}", found.get(name)) for name in names] if answer.status == 200 else []

    async def commit_empty(self, branch: str) -> None:
        value = self._recorder.fresh_value()
        async with self._noted("commit", [("append", branch, value)]) as noted:
            body = {"message": str(value), "allow_empty": True}
            noted.settle(await self._send("POST", f"{ROOT}/branches/{branch}/commits", body), {201})

    async def merge(self, source: str, branch: str) -> None:
        """A merge appends to one branch and reads another: its second parent is the head that it read."""
        value = self._recorder.fresh_value()
        append: Micro = ("append", branch, value)
        async with self._noted("merge", [append, ("r", source, None)]) as noted:
            answer = await self._send("POST", f"{ROOT}/refs/{source}/merge/{branch}", {"message": str(value)})
            read: list[int] | None = None
            if answer.status == 200:
                read = await self._merged(json.loads(answer.body)["reference"])
            noted.settle(answer, {200}, [append, ("r", source, read)])

    async def _merged(self, commit_id: str) -> list[int] | None:
        try:
            answer = await self._send("GET", f"{ROOT}/commits/{commit_id}")
            if answer.status != 200:
                return None
            return _values(await self._log(json.loads(answer.body)["parents"][1]))
        except (NotSent, NoAnswer):
            return None

    async def read_log(self, branch: str) -> None:
        async with self._noted("log", [("r", branch, None)]) as noted:
            answer = await self._log(branch)
            noted.settle(answer, {200}, [("r", branch, _values(answer))])

    async def _log(self, ref: str) -> Answer:
        return await self._send("GET", f"{ROOT}/refs/{ref}/commits?first_parent=true&amount=1000")

    # Sending and noting

    async def _send(self, method: str, target: str, body: object = b"") -> Answer:
        number = self._chance.randrange(self._servers) if self._server is None else self._server
        answer = await self._client.send(number, method, target, body)
        if answer.status >= 500:
            self._recorder.note_server_error(answer)
        return answer

    @asynccontextmanager
    async def _noted(self, f: str, value: list[Micro]) -> AsyncIterator[_Outcome]:
        """Note the call's beginning and its end. A read that failed changed nothing, whatever became of it."""
        is_read = all(kind in {"get", "r"} for kind, _, _ in value)
        self._recorder.note("invoke", self._process, f, value)
        outcome = _Outcome(value)
        try:
            yield outcome
        except NotSent:
            await asyncio.sleep(PAUSE_S)
        except NoAnswer:
            outcome.type = "info"
        if outcome.type == "info" and is_read:
            outcome.type = "fail"
        self._recorder.note(outcome.type, self._process, f, outcome.value)
        if outcome.type == "info":
            self._process = self._recorder.fresh_process()
        if outcome.type != "fail" and any(kind == "append" for kind, _, _ in value):
            self._recorder.count_append()


class _Outcome:
    def __init__(self, value: list[Micro]) -> None:
        self.type: Literal["ok", "fail", "info"] = "fail"
        self.value = value

    def settle(self, answer: Answer, expected: set[int], value: list[Micro] | None = None) -> None:
        """A status below 500 that is not expected: it did not happen. One above: it may have."""
        if answer.status in expected:
            self.type = "ok"
            self.value = self.value if value is None else value
        elif answer.status >= 500:
            self.type = "info"


def work_of(epoch: int) -> str:
    return f"work-{epoch}"


def trunk_of(epoch: int) -> str:
    return f"trunk-{epoch}"


def _object_target(ref: str, name: str, *, kind: str = "refs") -> str:
    return objects_url(REPOSITORY, ref, name, kind=kind).removeprefix("/api/v1")


def _values(answer: Answer) -> list[int]:
    """The messages of a log, oldest first; the repository's own first commit has none of ours."""
    if answer.status != 200:
        return []
    messages: list[Any] = [row["message"] for row in json.loads(answer.body)["results"]]
    return [int(message) for message in reversed(messages) if message.isdigit()]
