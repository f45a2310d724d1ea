"""A storm of real servers over a store that fails loses nothing, and a fault planted in the servers is noticed."""

from __future__ import annotations

import ast
import asyncio
import itertools
import random
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import pytest

import lakebed
from bench.http import Connection
from lakebed.objectstore import DeleteFailure, ObjectStoreOptions, open_deleter
from lakebed.server import ServerOptions, opened
from tests.objectstore.s3_servers import client_of, serve_moto
from tests.outside.servers import Patch
from tests.outside.storms.clients import OUTCOMES_UNKNOWN
from tests.outside.storms.faults import Fault, Kind, schedule
from tests.outside.storms.journal import Line
from tests.outside.storms.judging import judge
from tests.outside.storms.model import Model, body_of, value_of
from tests.outside.storms.proxy import Fate, FaultyProxy, faulty_proxy
from tests.outside.storms.settling import collect, unnamed
from tests.outside.storms.storm import Plan, storm

UNSHARED = Patch(
    "versions/hard_delete.py",
    "return is_exclusive(flags) and not is_gone(flags) and row[1] != FOREIGN_SLICE",
    "return not is_gone(flags) and row[1] != FOREIGN_SLICE",
)

KILLS = (Kind.KILL, Kind.KILL_ALL)


def test_a_storm_loses_nothing_and_leaves_nothing_behind(tmp_path: Path) -> None:
    found = asyncio.run(storm(Plan(operations=240, every=110, kinds=KILLS, fault_rate=0.1), tmp_path))

    assert found.wrong == []
    assert found.faults
    assert found.fates
    assert all(found.calls[f"{call} 201"] for call in ("put", "copy", "move", "commit"))
    assert all(found.calls[f"{call} 204"] for call in ("delete", "reset"))
    assert judge(tmp_path) == found.wrong


@pytest.mark.slow
def test_a_storm_with_every_fault_and_collections_as_commands_loses_nothing(tmp_path: Path) -> None:
    plan = Plan(operations=400, store="local", every=30, has_doors=True, has_commands=True)
    found = asyncio.run(storm(plan, tmp_path))

    assert found.wrong == []
    assert found.commands


@pytest.mark.slow
def test_servers_that_delete_what_a_copy_names_are_noticed(tmp_path_factory: pytest.TempPathFactory) -> None:
    # A copy must be made in the moment of a delete, which a busy machine may miss once or twice.
    plans = [Plan(operations=300, seed=seed, every=0, fault_rate=0.0, patches=[UNSHARED]) for seed in range(4)]
    storms = (asyncio.run(storm(plan, tmp_path_factory.mktemp("storm"))) for plan in plans)

    assert any(found.wrong for found in storms)


@pytest.mark.slow
def test_a_storm_over_another_store_loses_nothing(tmp_path: Path) -> None:
    with serve_moto() as options:
        client_of(options).create_bucket(Bucket="lake")
        port = int(str(options.s3_endpoint).rpartition(":")[2])
        found = asyncio.run(
            storm(Plan(operations=200, every=90, kinds=KILLS, fault_rate=0.1), tmp_path, store_port=port)
        )

    assert found.wrong == []


def test_equal_seeds_have_equal_faults() -> None:
    def some(seed: int) -> list[Fault]:
        return [*islice(schedule(seed, [*Kind], every=100, processes=3), 40)]

    assert some(1) == some(1)
    assert some(1) != some(2)


def test_a_storm_foresees_each_way_in_which_the_core_does_not_know_an_outcome() -> None:
    calls = [
        node
        for file in (Path(lakebed.__file__).parent / "versions").rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "OutcomeUnknown"
    ]
    messages = [ast.unparse(node.args[0]).encode() for node in calls]

    assert messages
    assert [each for each in messages if not any(text in each for text in OUTCOMES_UNKNOWN)] == []


def call(number: int, t: float, end: str, more: dict[str, object] | None = None, **begun: object) -> list[Line]:
    """Return the two lines of a call of client 0 that takes a second."""
    place = {"branch": "main", "path": "0/x/0"}
    begin = {"t": t, "client": 0, "call": number, "begin": True, **place, **begun}
    return [begin, {"t": t + 1, "client": 0, "call": number, "end": end, **(more or {})}]


def wrong_in(*calls: list[Line]) -> list[str]:
    model = Model(0)
    for line in itertools.chain(*calls):
        model.absorb(line)
    return model.wrong


def test_a_judge_notices_a_lost_write_and_a_wrong_read() -> None:
    put = call(1, 0, "ok", f="put", value="0/1")

    assert wrong_in(put, call(2, 2, "ok", {"value": "0/1"}, f="read")) == []
    assert wrong_in(put, call(2, 2, "ok", {"value": None}, f="read")) != []
    assert wrong_in(put, call(2, 2, "ok", {"value": "0/2"}, f="read")) != []
    assert wrong_in(put, call(2, 2, "ok", f="put new", value="0/2")) != []
    assert wrong_in(call(1, 0, "refused", f="put new", value="0/1")) != []


def test_a_write_without_an_answer_may_show_up_late_and_not_for_ever() -> None:
    puts = call(1, 0, "unknown", f="put", value="0/1"), call(2, 2, "ok", f="put", value="0/2")
    later = call(3, 1000, "ok", f="put", value="0/3")

    assert wrong_in(*puts, call(4, 4, "ok", {"value": "0/1"}, f="read")) == []
    assert wrong_in(*puts, later, call(4, 1002, "ok", {"value": "0/1"}, f="read")) != []


def test_a_wrong_byte_is_noticed() -> None:
    body = body_of("0/1")

    assert value_of(body) == "0/1"
    assert value_of(body[:-1] + bytes([body[-1] ^ 1])) != "0/1"
    assert value_of(body[:-1]) != "0/1"


class Stuck:
    """A deleter that never answers. `has_begun` once it is asked to delete."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self.has_begun = asyncio.Event()

    async def delete(self, keys: Sequence[str]) -> list[DeleteFailure]:
        self.has_begun.set()
        await asyncio.Event().wait()
        raise AssertionError

    async def close(self) -> None: ...


async def test_what_a_collection_held_that_was_cancelled_in_its_sweep_goes_with_the_next_one(tmp_path: Path) -> None:
    options = ObjectStoreOptions(local_root=tmp_path / "objects")
    async with opened(ServerOptions(data_dir=tmp_path, objectstore=options)) as state:
        await state.catalog.create("storm", storage_namespace="local://lake/storm")
        repository = await state.catalog.get("storm")
        versions = repository.versions
        stuck = Stuck(versions.objectstore.uri)
        for data in (b"1", b"2"):
            await repository.objects.upload("main", "a", data)
        cancelled = asyncio.create_task(collect(versions, stuck))
        await stuck.has_begun.wait()
        cancelled.cancel()
        await asyncio.gather(cancelled, return_exceptions=True)
        assert len(await unnamed(versions)) == 1

        await collect(versions, open_deleter(versions.objectstore.uri, options))

        assert await unnamed(versions) == set()


async def _met(fate: Fate) -> tuple[list[bytes], str]:
    """Note what the store behind the proxy saw of one request, and how its client fared."""
    seen: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append((await reader.readuntil(b"\r\n\r\n")) + await reader.readexactly(4))
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    class Certain(random.Random):
        def choice(self, seq):  # type: ignore[no-untyped-def]  # as its base
            return fate if fate in seq else super().choice(seq)

    store = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with store, faulty_proxy(store.sockets[0].getsockname()[1], Certain(1), rate=1.0) as (proxy, port):
        connection = Connection(*await asyncio.open_connection("127.0.0.1", port))
        try:
            got = (await connection.send(b"PUT /k HTTP/1.1\r\ncontent-length: 4\r\n\r\nbody")).status
        except (ConnectionError, asyncio.IncompleteReadError):
            got = 0
        connection.close()
        await proxy.calm()
    assert isinstance(proxy, FaultyProxy)
    return seen, str(got or "cut")


@pytest.mark.parametrize(
    ("fate", "is_seen", "answer"),
    [
        (Fate.CUT, False, "cut"),
        (Fate.DELAYED, True, "200"),
        (Fate.LOST, True, "cut"),
        (Fate.LATE, True, "cut"),
        (Fate.REFUSED, False, "503"),
        (Fate.DOUBLED, True, "200"),
        (Fate.TRUNCATED, True, "cut"),
    ],
)
def test_the_proxy_does_to_a_request_what_its_name_says(fate: Fate, is_seen: bool, answer: str) -> None:
    seen, got = asyncio.run(_met(fate))

    assert (len(seen), got) == (2 if fate == Fate.DOUBLED else is_seen, answer)
    assert all(request.endswith(b"body") for request in seen)
