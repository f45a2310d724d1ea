"""`python -m sim storm`: real servers with hard delete on, over an object store behind a proxy that fails.

Clients upload, overwrite, delete, move, copy, commit and reset, make and drop branches and repositories, and turn hard
delete off and on, while servers are killed and collections run. Each client has paths and branches of its own, so it
knows what may be there: one value, or several after an answer that never came. `Model` holds that.

At the end each path reads back with bytes that were acknowledged, and so does each commit. After the queue is worked
off and one offline run, no object is left that nothing names.

The servers run from a copy of the package whose intervals are short (`PATCHES`), so that pages, cleaners and small
slices meet within seconds. Nothing else is patched.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from bench.http import Answer, objects_url, started
from lakebed.base import Conflict, LakebedError, NotFound, Unavailable
from lakebed.objectstore import Deleter, ObjectStoreOptions, open_deleter
from lakebed.server import ServerOptions, opened
from lakebed.versions import Versions

from .proxy import faulty_proxy
from .servers import Client, Fleet, NoAnswer, NotSent, Patch, fleet
from .settling import clean_up, collect, drain, unnamed

REPOSITORY: Final = "storm"
ROOT: Final = f"/repositories/{REPOSITORY}"
NAMES: Final = tuple(f"{folder}/{number}" for folder in "xy" for number in range(3))
PAUSE_S: Final = 0.05
PATCHES: Final = (
    Patch("gc/service/hard_delete.py", "LINGER_MS: Final = 60_000", "LINGER_MS: Final = 0"),
    Patch("gc/service/hard_delete.py", "AGAIN_MS: Final = 60_000", "AGAIN_MS: Final = 1_000"),
    Patch("server/hard_delete.py", "TICK_S: Final = 1.0", "TICK_S: Final = 0.1"),
    Patch("server/hard_delete.py", "WORK_S: Final = 5.0", "WORK_S: Final = 0.2"),
    Patch("server/hard_delete.py", "ASK_S: Final = 60.0", "ASK_S: Final = 1.0"),
    Patch("server/hard_delete.py", "BACK_OFF_S: Final = 60.0", "BACK_OFF_S: Final = 0.5"),
    Patch("server/upkeep_loop.py", "INTERVAL_S: Final = 60.0", "INTERVAL_S: Final = 1.0"),
    Patch("versions/context.py", "claim_age_ms_max: int = 900_000", "claim_age_ms_max: int = 3_000"),
    Patch("versions/context.py", "slice_size_max: int = 10_000", "slice_size_max: int = 20"),
)

Values = frozenset[str | None]
ABSENT: Final[Values] = frozenset([None])
Place = tuple[str, str]
"""A branch and a path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """State how to storm. It ends after `operations` of all clients together, or after `seconds`."""

    operations: int = 1 << 60
    seconds: float = 3_600
    seed: int = 0
    processes: int = 2
    clients: int = 5
    fault_rate: float = 0.05
    kill_every: int = 120
    """Kill after this many operations. 0: never."""
    patches: Sequence[Patch] = ()


@dataclass(slots=True)
class Storm:
    """Report a storm. `wrong` is empty, or it found a bug."""

    calls: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    kills: int = 0
    wrong: list[str] = field(default_factory=list)
    left_before_run: int = 0
    """Objects that nothing names, which only the offline run took: what crashes and doubt left."""
    put: int = 0
    seconds: float = 0.0


class Model:
    """Note what one client's places may hold. A place that is not here was never written, and is absent."""

    def __init__(self) -> None:
        self.current: dict[Place, Values] = {}
        self.committed: dict[Place, Values] = {}
        self.commits: list[tuple[str, dict[str, Values]]] = []
        """Commits by id, with what their trees may have of this client's paths."""

    def at(self, place: Place) -> Values:
        return self.current.get(place, ABSENT)

    def set(self, place: Place, values: Values) -> None:
        self.current[place] = values
        if place[0] == "main":
            # Each client commits there at any time.
            self.committed[place] = self.committed.get(place, ABSENT) | values

    def may(self, place: Place, values: Values) -> None:
        self.set(place, self.at(place) | values)

    def commit(self, branch: str, before: Mapping[Place, Values], *, is_known: bool) -> dict[Place, Values]:
        """Note a commit that took each place as it was at some moment since `before`."""
        taken = {
            place: before.get(place, ABSENT) | values for place, values in self.current.items() if place[0] == branch
        }
        for place, values in taken.items():
            self.committed[place] = values if is_known else self.committed.get(place, ABSENT) | values
        return taken

    def drop(self, branch: str) -> None:
        for places in (self.current, self.committed):
            for place in [place for place in places if place[0] == branch]:
                del places[place]


class _Client:
    def __init__(self, number: int, plan: Plan, servers: Fleet, storm: Storm, client: Client, beside: Client) -> None:
        self._number = number
        self._chance = random.Random(f"{plan.seed}/{number}")
        self._count = len(servers.servers)
        self._client = client
        self._beside = beside
        self._storm = storm
        self._values = 0
        self._branches = 0
        self._repositories = 0
        self.own = ""
        self.model = Model()

    async def begin(self) -> None:
        """Make a branch that no other client changes."""
        while True:
            self._branches += 1
            name = f"own-{self._number}-{self._branches}"
            body = {"name": name, "source": "base"}
            if await self._call("create branch", "POST", f"{ROOT}/branches", body, {201}) is not None:
                self.own = name
                return
            await asyncio.sleep(PAUSE_S)

    async def act(self) -> None:
        """Do one thing, now and then beside a commit."""
        choices: list[tuple[int, Callable[[], Awaitable[None]]]] = [
            (30, self.put),
            (8, self.delete),
            (12, self.move),
            (10, self.copy),
            (4, self.reset),
            (4, self.reset_some),
            (12, self.read),
            (8, lambda: self.commit(self._branch(), _nothing)),
            (10, lambda: self.commit(self._branch(), self._chance.choice([self.put, self.move, self.delete]))),
            (2, self.drop_branch),
            (1, self.drop_repository),
            (1, self.switch),
        ]
        [(_, deed)] = self._chance.choices(choices, [weight for weight, _ in choices])
        await deed()

    # Deeds

    async def put(self) -> None:
        place = self._place()
        self._values += 1
        value = f"{self._number}/{self._values}"
        self._storm.put += 1
        target = objects_url(REPOSITORY, place[0], place[1], kind="branches").removeprefix("/api/v1")
        if await self._call("put", "POST", target, value.encode(), {201}):
            self.model.set(place, frozenset([value]))
        else:
            self.model.may(place, frozenset([value]))

    async def delete(self) -> None:
        place = self._place()
        target = objects_url(REPOSITORY, place[0], place[1], kind="branches").removeprefix("/api/v1")
        if await self._call("delete", "DELETE", target, b"", {204}):
            self.model.set(place, ABSENT)
        else:
            self.model.may(place, ABSENT)

    async def move(self) -> None:
        source, place = self._place(), self._place()
        if source == place:
            return
        values = self.model.at(source)
        target = f"{ROOT}/branches/{place[0]}/objects/move?dest_path={place[1]}"
        answer = await self._call(
            "move", "POST", target, {"src_path": source[1], "src_branch": source[0]}, {201, 404, 409}
        )
        if answer is not None and answer.status == 404:
            self._must_be_absent("move", source)
        elif answer is not None and answer.status == 201:
            self.model.set(place, values - ABSENT)
            self.model.set(source, ABSENT)
        else:
            # A move that ends as a copy met a newer source; one without an answer may have got anywhere.
            self.model.may(place, values)
            self.model.may(source, ABSENT)

    async def copy(self) -> None:
        source, place = self._place(), self._place()
        if source == place:
            return
        values = self.model.at(source)
        target = f"{ROOT}/branches/{place[0]}/objects/copy?dest_path={place[1]}"
        body = {"src_path": source[1], "src_ref": source[0], "shallow": self._chance.random() < 0.7}
        answer = await self._call("copy", "POST", target, body, {201, 404})
        if answer is not None and answer.status == 404:
            self._must_be_absent("copy", source)
        elif answer is not None:
            self.model.set(place, values - ABSENT)
        else:
            self.model.may(place, values)

    async def reset(self) -> None:
        """Reset a branch of its own as a whole."""
        body = {"type": "reset"}
        known = await self._call("reset", "PUT", f"{ROOT}/branches/{self.own}", body, {204})
        self._after_reset(known, "")

    async def reset_some(self) -> None:
        """Reset an object, or what is below a folder."""
        name = self._chance.choice(NAMES)
        prefix = f"{self._number}/{name if self._chance.random() < 0.5 else name.partition('/')[0] + '/'}"
        body = {"type": "common_prefix" if prefix.endswith("/") else "object", "path": prefix}
        known = await self._call("reset some", "PUT", f"{ROOT}/branches/{self.own}", body, {204, 404})
        self._after_reset(known and known.status == 204, prefix)

    def _after_reset(self, is_known: object, prefix: str) -> None:
        for place in [place for place in self.model.current if place[0] == self.own and place[1].startswith(prefix)]:
            committed = self.model.committed.get(place, ABSENT)
            if is_known:
                self.model.set(place, committed)
            else:
                self.model.may(place, committed)

    async def commit(self, branch: str, meanwhile: Callable[[], Awaitable[None]]) -> None:
        before = dict(self.model.current)
        body = {"message": "storm"}
        call = self._call("commit", "POST", f"{ROOT}/branches/{branch}/commits", body, {201, 400}, is_beside=True)
        answer, _ = await asyncio.gather(call, meanwhile())
        if answer is not None and answer.status == 400:
            return  # No change, or none that was there when it looked.
        taken = self.model.commit(branch, before, is_known=answer is not None)
        if answer is not None:
            tree = {place[1]: values for place, values in taken.items()}
            self.model.commits.append((json.loads(answer.body)["id"], tree))

    async def read(self) -> None:
        place = self._place()
        target = objects_url(REPOSITORY, place[0], place[1]).removeprefix("/api/v1")
        answer = await self._call("read", "GET", target, b"", {200, 404, 410})
        if answer is None:
            return
        value = answer.body.decode() if answer.status == 200 else None
        if value not in self.model.at(place):
            self.wrong(f"read {place}: {answer.status} {value!r}, and {sorted(map(str, self.model.at(place)))} may be")

    async def drop_branch(self) -> None:
        await self._call("delete branch", "DELETE", f"{ROOT}/branches/{self.own}", b"", {204})
        self.model.drop(self.own)
        await self.begin()

    async def drop_repository(self) -> None:
        """Make a repository, overwrite an object in it, and delete it with all that waits in its queue."""
        self._repositories += 1
        name = f"scratch-{self._number}-{self._repositories}"
        body = {"name": name, "storage_namespace": f"s3://lake/{name}"}
        if await self._call("create repository", "POST", "/repositories", body, {201}) is None:
            return
        await self._call("hard delete", "PUT", f"/repositories/{name}/hard_delete", _ON, {200})
        for _ in range(3):
            target = objects_url(name, "main", "a", kind="branches").removeprefix("/api/v1")
            await self._call("put", "POST", target, b"scratch", {201})
        await self._call("delete repository", "DELETE", f"/repositories/{name}", b"", {204})

    async def switch(self) -> None:
        """Turn hard delete on, off, or make it pause."""
        body = self._chance.choice([{"is_on": False}, {"is_on": True, "is_paused": True}, {}, {}]) or _ON
        await self._call("switch", "PUT", f"{ROOT}/hard_delete", body, {200})

    # What they have in common

    def _branch(self) -> str:
        return self._chance.choice(["main", self.own])

    def _place(self) -> Place:
        return self._branch(), f"{self._number}/{self._chance.choice(NAMES)}"

    def _must_be_absent(self, what: str, place: Place) -> None:
        if None not in self.model.at(place):
            self.wrong(f"{what} of {place}: 404, and only {sorted(map(str, self.model.at(place)))} may be there")

    def wrong(self, text: str) -> None:
        self._storm.wrong.append(f"client {self._number}: {text}")

    async def _call(
        self, f: str, method: str, target: str, body: object, expected: set[int], *, is_beside: bool = False
    ) -> Answer | None:
        """Return an answer of an expected status. None: it may have happened or not."""
        client = self._beside if is_beside else self._client
        while True:
            try:
                answer = await client.send(self._chance.randrange(self._count), method, target, body)
            except NotSent:
                await asyncio.sleep(PAUSE_S)
                continue
            except NoAnswer:
                self._storm.calls[f"{f} ?"] += 1
                return None
            break
        self._storm.calls[f"{f} {answer.status}"] += 1
        if answer.status == 500 or (answer.status < 500 and answer.status not in expected | {409, 412, 423, 429}):
            self.wrong(f"{f} {target}: {answer.status} {answer.body[:300]!r}")
        return answer if answer.status in expected else None


_ON: Final = {"is_on": True, "is_paused": False, "grace_s": 1}


async def _nothing() -> None:
    return


async def storm(plan: Plan, folder: Path, *, store_port: int | None = None) -> Storm:
    """Start an object store, a proxy and servers; let clients storm; judge what is left.

    `store_port`: of another S3 server on this machine, which has an empty bucket `lake` and takes any credentials.
    """
    began_s = time.monotonic()
    found = Storm()
    with _store(store_port) as store:
        chance = random.Random(f"{plan.seed}/proxy")
        async with faulty_proxy(store, chance, rate=0.0) as (proxy, port):
            async with fleet(folder, plan.processes, (*PATCHES, *plan.patches), _s3(port)) as servers:
                await _prepare(servers)
                proxy.rate = plan.fault_rate
                collecting = asyncio.create_task(_collect_all_the_time(found, folder / "data", store))
                try:
                    clients = await _blow(plan, servers, found, began_s)
                finally:
                    collecting.cancel()
                    await asyncio.gather(collecting, return_exceptions=True)
                await proxy.calm()
                # Ends each process as its owner would, so that what it let go last is written down.
                await asyncio.gather(*[server.stop(is_kill=False) for server in servers.servers])
            found.faults = proxy.met
        await _judge(found, clients, folder / "data", store)
    found.seconds = time.monotonic() - began_s
    return found


@contextmanager
def _store(port: int | None) -> Iterator[int]:
    """Yield the port of the store: one of our own, which costs little, so that the machine is busy with servers."""
    if port is not None:
        yield port
        return
    with started(["-m", "bench.s3", "0", "0", "0"], marker="s3 at port ") as store:
        yield store.port


def _s3(port: int) -> dict[str, str]:
    return {
        "LAKEBED_BLOCKSTORE": "s3",
        "LAKEBED_S3_ENDPOINT": f"http://127.0.0.1:{port}",
        "LAKEBED_S3_REGION": "us-east-1",
        "LAKEBED_S3_ACCESS_KEY_ID": "storm",
        "LAKEBED_S3_SECRET_ACCESS_KEY": "storm",
    }


async def _prepare(servers: Fleet) -> None:
    async with servers.client() as client:
        body = {"name": REPOSITORY, "storage_namespace": "s3://lake/storm"}
        for method, target, sent, status in [
            ("POST", "/repositories", body, 201),
            ("PUT", f"{ROOT}/hard_delete", _ON, 200),
            ("POST", f"{ROOT}/branches", {"name": "base", "source": "main"}, 201),
        ]:
            answer = await client.send(0, method, target, sent)
            assert answer.status == status, answer


async def _blow(plan: Plan, servers: Fleet, found: Storm, began_s: float) -> list[_Client]:
    done = 0
    killing = asyncio.Lock()
    chance = random.Random(f"{plan.seed}/kill")

    async def run(number: int) -> _Client:
        nonlocal done
        async with servers.client() as own, servers.client() as beside:
            client = _Client(number, plan, servers, found, own, beside)
            await client.begin()
            if number == 0:
                await client.drop_repository()  # which chance chooses seldom
            while done < plan.operations and time.monotonic() - began_s < plan.seconds:
                await client.act()
                done += 1
                if plan.kill_every and done % plan.kill_every == 0 and not killing.locked():
                    async with killing:
                        found.kills += await servers.kill_some(chance)
            return client

    return list(await asyncio.gather(*[run(number) for number in range(plan.clients)]))


@asynccontextmanager
async def _without_faults(data: Path, store: int) -> AsyncIterator[tuple[Versions, Deleter]]:
    """The repository as this process has it, past the proxy."""
    options = ObjectStoreOptions(
        s3_endpoint=f"http://127.0.0.1:{store}",
        s3_region="us-east-1",
        s3_access_key_id="storm",
        s3_secret_access_key="storm",  # noqa: S106  # the store takes any
    )
    async with opened(ServerOptions(data_dir=data, blockstore="s3", objectstore=options)) as state:
        versions = (await state.catalog.get(REPOSITORY)).versions
        deleter = open_deleter(versions.objectstore.uri, options)
        try:
            yield versions, deleter
        finally:
            await deleter.close()


async def _collect_all_the_time(found: Storm, data: Path, store: int) -> None:
    """Run one collection after the other, each of which takes the slices of living servers from them."""
    async with _without_faults(data, store) as (versions, deleter):
        while True:
            await asyncio.sleep(PAUSE_S)
            try:
                await collect(versions, deleter)
            except (Conflict, Unavailable) as error:
                found.calls[f"collection {type(error).__name__}"] += 1
            except LakebedError as error:
                found.wrong.append(f"a collection failed: {error!r}")
            else:
                found.calls["collection ended"] += 1


async def _judge(found: Storm, clients: Sequence[_Client], data: Path, store: int) -> None:
    """Read everything with no fault in the way, then bring the repository to rest."""
    async with _without_faults(data, store) as (versions, deleter):
        await _check_all(clients, versions)
        await clean_up(versions)
        await drain(versions, deleter)
        found.left_before_run = len(await unnamed(versions))
        await collect(versions, deleter)
        if left := await unnamed(versions):
            found.wrong.append(f"nothing names these, and an offline run left them: {sorted(left)[:5]}")
        await _check_all(clients, versions)


async def _check_all(clients: Sequence[_Client], versions: Versions) -> None:
    for client in clients:
        model = client.model
        for branch in ("main", client.own):
            expected = {place[1]: values for place, values in model.current.items() if place[0] == branch}
            await _check(client, versions, branch, expected)
        for commit_id, tree in model.commits:
            await _check(client, versions, commit_id, tree)


async def _check(client: _Client, versions: Versions, ref: str, expected: Mapping[str, Values]) -> None:
    for path, values in expected.items():
        value: str | None = None
        try:
            entry = await versions.staging.get(ref, path.encode())
            value = (await versions.objectstore.get(entry.address)).decode()
        except NotFound as error:
            if "address" in error.facts or "key" not in error.facts:
                value = f"({error!r})"
        if value not in values:
            client.wrong(f"at the end {path} of {ref} is {value!r}, and {sorted(map(str, values))} may be")


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 0 if nothing was lost and nothing is left over, 1 if not."""
    parser = argparse.ArgumentParser(prog="python -m sim storm", description=__doc__)
    parser.add_argument("--seconds", type=float, default=30, help="how long clients call")
    parser.add_argument("--seed", type=int, default=0, help="what clients choose; the schedule is the machine's")
    parser.add_argument("--processes", type=int, default=2, help="servers over one folder")
    parser.add_argument("--clients", type=int, default=5)
    parser.add_argument("--faults", type=float, default=0.05, help="the share of requests to the store that fail")
    parser.add_argument("--kill-every", type=int, default=120, help="operations between two kills; 0: none")
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    options = parser.parse_args(arguments)
    plan = Plan(
        seconds=options.seconds,
        seed=options.seed,
        processes=options.processes,
        clients=options.clients,
        fault_rate=options.faults,
        kill_every=options.kill_every,
    )
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(storm(plan, Path(folder)))
    for text in found.wrong[:20]:
        print(f"WRONG: {text}")
    figures = {
        "calls": sum(found.calls.values()),
        "kills": found.kills,
        "faults": sum(found.faults.values()),
        "objects_put": found.put,
        "left_to_the_offline_run": found.left_before_run,
        "wrong": len(found.wrong),
    }
    if options.json:
        print(json.dumps({"name": "storm", **figures, "answers": found.calls, "fates": found.faults}))
    else:
        print(", ".join(f"{count:,} {name}" for name, count in sorted(found.calls.items())))
        print("in all: " + ", ".join(f"{amount:,} {name.replace('_', ' ')}" for name, amount in figures.items()))
    return 1 if found.wrong else 0
