"""The driver of HBase keeps the contract, on a real one: master, region server and REST server in one process."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import httpx
import pytest

from lakebed.base import OutcomeUnknown
from lakebed.kv import (
    InvalidStoreUri,
    PredicateFailed,
    StoreFormat,
    StoreUnavailable,
    StoreUri,
    open_store,
    store_partitions,
)
from lakebed.kv.drivers import hbase as hbase_driver
from lakebed.kv.remote.store import Passing, RemoteStore
from tests.kv.doubles import Answer, Request, Service, served
from tests.kv.servers import RUN, OnServer, Server, a_value_put_back_is_noticed, hbase

_numbers = itertools.count()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with hbase() as server:
        yield server


def uri_of(port: int, *, name: str, wait_s: float = 60) -> str:
    return f"hbase://127.0.0.1:{port}/{RUN}{name}?wait_s={wait_s}"


class TestHBase(OnServer):
    many = 1000
    program_steps = 60
    increments = 20
    not_killed = "a cluster of others is not ours to kill" if "LAKEBED_TEST_HBASE" in os.environ else ""


async def test_a_value_that_was_put_back_is_noticed(server: Server) -> None:
    await a_value_put_back_is_noticed(uri_of(server.port, name="back"))


async def test_a_write_within_the_same_millisecond_as_a_deletion_is_kept(server: Server) -> None:
    store = open_store(uri_of(server.port, name="quick"))
    for number in range(100):
        await store.set(b"p", b"key", b"%d" % number)
        await store.delete(b"p", b"key")

        await store.set_if(b"p", b"key", b"again", None)

        found = await store.get(b"p", b"key")
        assert found is not None
        assert found.value == b"again"
    await store.close()


@contextmanager
def away(how: str, folder: Path) -> Iterator[int]:
    """Yield the port of a REST server that is of no use."""

    class Unavailable(Service):
        def answer(self, request: Request) -> Answer:
            return Answer(503, b"Unavailable")

    with closing(socket.socket()) as silent:
        silent.bind(("127.0.0.1", 0))  # Where it does not listen, no other program gets the port either.
        if how == "unavailable":
            with served(Unavailable(str(folder / "unavailable.db"))) as port:
                yield port
        else:
            if how == "hangs":
                silent.listen()
            yield silent.getsockname()[1]


@pytest.mark.parametrize("how", ["refuses", "hangs", "unavailable"])
async def test_a_server_that_is_away_is_passed_over(server: Server, tmp_path: Path, how: str) -> None:
    with away(how, tmp_path) as port:
        uri = uri_of(server.port, name="passed", wait_s=30)
        await open_store(uri).close()
        store = open_store(uri.replace("//", f"//127.0.0.1:{port},"))

        await store.set(b"p", b"key", b"value")

        assert (await store.scan(b"p", b"", 10)).values == [b"value"]
        await store.close()


async def test_a_server_that_fails_several_requests_at_once_is_passed_over_once(server: Server, tmp_path: Path) -> None:
    uri = uri_of(server.port, name="passed_once")
    await open_store(uri).close()
    with away("refuses", tmp_path) as port:
        direct = uri.partition("?")[0].replace("//", f"//127.0.0.1:{port},")
        database = hbase_driver._from(StoreUri(direct), 60)

        failures = await asyncio.gather(*(database.read(b"p", [b"key"]) for _ in range(2)), return_exceptions=True)

        assert [type(failure) for failure in failures] == [Passing, Passing]
        assert await database.read(b"p", [b"key"]) == {}
        await database.close()


def make_table(server: Server, name: str, family: dict[str, str], **settings: str) -> None:
    schema = {**settings, "name": f"{RUN}{name}", "ColumnSchema": [family]}
    made = httpx.put(f"http://127.0.0.1:{server.port}/{RUN}{name}/schema", json=schema, timeout=60)
    assert made.status_code == 201, made.text


async def test_settings_that_would_lose_answered_writes_are_refused_by_their_names(server: Server) -> None:
    right = {"name": "c", "NEW_VERSION_BEHAVIOR": "true"}
    for name, family, settings in (
        ("NEW_VERSION_BEHAVIOR", {"name": "c"}, {}),
        ("TTL", {**right, "TTL": "604800"}, {}),
        ("DURABILITY", right, {"DURABILITY": "ASYNC_WAL"}),
    ):
        make_table(server, name, family, **settings)
        with pytest.raises(StoreUnavailable, match=f"hbase: {name} of the") as refused:
            open_store(uri_of(server.port, name=name))
        assert refused.value.facts["setting"] == name

    make_table(server, "right", {**right, "VERSIONS": "3"}, DURABILITY="SYNC_WAL")
    await open_store(uri_of(server.port, name="right")).close()


def test_a_release_whose_answers_of_absence_prove_nothing_is_refused() -> None:
    hbase_driver._check_release("2.6.1")
    hbase_driver._check_release("3.0.0-beta-1")
    for release in ("2.5.10", "1.7.2", "none"):
        with pytest.raises(StoreUnavailable, match=f"hbase: Version is {release}"):
            hbase_driver._check_release(release)


async def test_a_table_of_another_release_or_program_is_refused(server: Server) -> None:
    uri = uri_of(server.port, name="later")
    await open_store(uri).close()
    database = hbase_driver._from(StoreUri(uri.partition("?")[0]), 10)
    mark = hbase_driver._cells((await database._multiget([hbase_driver.MARK]))[0])
    await database._put(hbase_driver.MARK, b"2", mark[hbase_driver.HISTORY])
    await database.close()
    make_table(server, "theirs", {"name": "cf"})

    with pytest.raises(StoreFormat, match="no column family c"):
        open_store(uri_of(server.port, name="theirs"))
    with pytest.raises(StoreFormat, match="in format b'2'"):
        open_store(uri)


def put_value_alone(server: Server, table: str, row: str) -> None:
    """Write a row without its history."""
    cells = [{"column": base64.b64encode(b"c:v").decode(), "$": base64.b64encode(b"theirs").decode()}]
    written = httpx.put(
        f"http://127.0.0.1:{server.port}/{RUN}{table}/{row}",
        json={"Row": [{"key": base64.b64encode(row.encode()).decode(), "Cell": cells}]},
        timeout=60,
    )
    assert written.status_code == 200, written.text


async def test_a_row_of_another_program_takes_no_write_of_another_key_along(server: Server) -> None:
    store = open_store(uri_of(server.port, name="damaged"))
    put_value_alone(server, "damaged", f"{b'p'.hex()}.{b'damaged'.hex()}")

    first, lost, second = await asyncio.gather(
        *(store.set(b"p", key, b"value") for key in (b"a", b"damaged", b"z")), return_exceptions=True
    )

    assert (first, second) == (None, None)
    assert isinstance(lost, StoreFormat)
    assert [held and held.value for held in await store.get_many(b"p", [b"a", b"z"])] == [b"value"] * 2
    await store.close()


class Between(Service):
    """Pass requests on to the real server. A test sets `change` to answer otherwise, and may pass on more or less."""

    def __init__(self, folder: Path, port: int) -> None:
        super().__init__(str(folder / "unused.db"))
        self.there = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60, trust_env=False)
        self.change: Callable[[Request], Answer] = self.forward

    def answer(self, request: Request) -> Answer:
        return self.change(request)

    def forward(self, request: Request) -> Answer:
        headers = {name: request.headers[name] for name in ("accept", "content-type")}
        found = self.there.request(request.method, request.target, content=request.body, headers=headers)
        return Answer(found.status_code, found.content)


@contextmanager
def between(server: Server, folder: Path, table: str) -> Iterator[tuple[Between, str]]:
    """Yield what stands between, and the URI of a store behind it."""
    service = Between(folder, server.port)
    with closing(service.there), served(service) as port:
        yield service, uri_of(port, name=table)


def is_scan(request: Request) -> bool:
    return request.path.endswith("/*")


async def test_a_scan_that_breaks_off_is_no_end(server: Server, tmp_path: Path) -> None:
    """HBase's REST server ends its answer in good order where a region server fails half-way."""
    with between(server, tmp_path, "broken") as (service, uri):

        def break_off(request: Request) -> Answer:
            answer = service.forward(request)
            rows = json.loads(answer.body)["Row"] if is_scan(request) else []
            return Answer(200, json.dumps({"Row": rows[:3]}).encode()) if len(rows) > 3 else answer

        store = open_store(uri)
        items = [(b"%02d" % number, b"") for number in range(20)]
        await store.set_many(b"p", items)
        await store.set(b"q", b"other", b"")
        service.change = break_off

        page = await store.scan(b"p", b"", 100)

        assert page.keys == [key for key, _ in items]
        assert page.next_start is None
        await store.close()


@pytest.mark.parametrize("status", [200, 404])
async def test_an_answer_that_there_is_nothing_is_not_believed(server: Server, tmp_path: Path, status: int) -> None:
    """Where HBase cannot be read, its REST server may answer that a row is absent, and that a scan finds none."""
    with between(server, tmp_path, f"empty{status}") as (service, uri):
        store = open_store(uri)
        await store.set(b"p", b"key", b"value")
        await store.close()
        # It repeats a request for a moment only, and waits long for each answer.
        database = hbase_driver._from(StoreUri(uri.partition("?")[0]), 60)
        store = RemoteStore(database, name="hbase", wait_s=0.2)

        def answer_nothing(request: Request) -> Answer:
            if request.method != "GET":
                return service.forward(request)
            return Answer(200 if is_scan(request) else status, b'{"Row":[]}')

        service.change = answer_nothing

        for attempt in (
            store.get(b"p", b"key"),
            store.scan(b"p", b"", 10),
            store.set(b"p", b"key", b"new"),
            store.delete(b"p", b"key"),
        ):
            with pytest.raises(StoreUnavailable):
                await attempt
        with pytest.raises(StoreUnavailable):
            store_partitions(uri.replace("wait_s=60", "wait_s=0.2"))
        with pytest.raises(OutcomeUnknown):  # it fails, and whether it failed on itself cannot be read
            await store.set_if(b"p", b"key", b"new", None)

        service.change = service.forward
        assert (await store.scan(b"p", b"", 10)).values == [b"value"]
        await store.close()


async def test_a_write_that_the_rest_server_repeats_succeeds_once(server: Server, tmp_path: Path) -> None:
    """It repeats a write whose answer it lost, and then says that the condition does not hold."""
    with between(server, tmp_path, "repeated") as (service, uri):
        store = open_store(uri)

        def repeat(request: Request) -> Answer:
            if request.asked.get("check") == "put":
                service.forward(request)
            return service.forward(request)

        service.change = repeat
        first = await store.set_if(b"p", b"key", b"1", None)
        second = await store.set_if(b"p", b"key", b"2", first)
        await store.set(b"p", b"key", b"3")
        with pytest.raises(PredicateFailed):
            await store.set_if(b"p", b"key", b"ours", second)

        assert (await store.scan(b"p", b"", 10)).values == [b"3"]
        await store.close()


async def test_a_write_waits_for_a_table_that_another_process_makes_anew(server: Server, tmp_path: Path) -> None:
    """HBase's REST server disables the table for a moment. The write may be done before, or not."""
    disabled = Answer(503, b"Unavailable\r\norg.apache.hadoop.hbase.TableNotEnabledException: t is disabled.")
    with between(server, tmp_path, "disabled") as (service, uri):
        store = open_store(uri)

        def answer_after(is_done: bool) -> None:
            def answer(request: Request) -> Answer:
                if "check" not in request.asked:
                    return service.forward(request)
                if is_done:
                    service.forward(request)
                service.change = service.forward
                return disabled

            service.change = answer

        answer_after(False)
        first = await store.set_if(b"p", b"key", b"1", None)
        answer_after(True)
        second = await store.set_if(b"p", b"key", b"2", first)
        answer_after(False)
        await store.set(b"p", b"other", b"3")
        answer_after(False)
        await store.delete_if(b"p", b"key", second)

        assert (await store.scan(b"p", b"", 10)).values == [b"3"]
        await store.close()


async def test_writes_succeed_while_another_process_asks_for_the_same_table(server: Server) -> None:
    uri = uri_of(server.port, name="asked")
    store = open_store(uri)
    database = hbase_driver._from(StoreUri(uri.partition("?")[0]), 60)
    asking = asyncio.create_task(database._make_table())
    predicate, written = None, 0

    while not asking.done():
        written += 1
        predicate = await store.set_if(b"p", b"key", b"%d" % written, predicate)

    await asking
    assert (await store.scan(b"p", b"", 10)).values == [b"%d" % written]
    await database.close()
    await store.close()


async def test_a_table_that_stays_disabled_leaves_the_outcome_open(server: Server, tmp_path: Path) -> None:
    with between(server, tmp_path, "off") as (service, uri):
        await open_store(uri).close()
        database = hbase_driver._from(StoreUri(uri.partition("?")[0]), 60)
        database._timeout_s = 0  # it waits no time for the table
        store = RemoteStore(database, name="hbase", wait_s=60)
        gone = Answer(503, b"org.apache.hadoop.hbase.TableNotEnabledException: off is disabled.")
        service.change = lambda request: gone if "check" in request.asked else service.forward(request)

        with pytest.raises(OutcomeUnknown, match="off is disabled"):
            await store.set_if(b"p", b"key", b"1", None)
        await store.close()


@pytest.mark.parametrize("is_deletion", [False, True])
async def test_a_batch_does_not_ask_each_row_whether_the_table_is_disabled(
    server: Server, tmp_path: Path, is_deletion: bool
) -> None:
    with between(server, tmp_path, f"batch_off{is_deletion}") as (service, uri):
        store = open_store(uri)
        keys = [b"%02d" % number for number in range(40)]
        await store.set_many(b"p", [(key, b"before") for key in keys])
        database = store._database  # type: ignore[attr-defined]  # a RemoteStore
        database._timeout_s = 0  # it waits no time for the table
        asked: list[str] = []

        def disabled(request: Request) -> Answer:
            if "check" not in request.asked:
                return service.forward(request)
            asked.append(request.path)
            return Answer(503, b"org.apache.hadoop.hbase.TableNotEnabledException: it is disabled.")

        service.change = disabled

        with pytest.raises(OutcomeUnknown, match="disabled"):
            await (store.delete_many(b"p", keys) if is_deletion else store.set_many(b"p", [(k, b"") for k in keys]))

        assert 1 <= len(set(asked)) <= hbase_driver.WRITES_AT_ONCE
        await store.close()


async def test_a_write_that_another_one_replaced_before_it_was_repeated_succeeds(
    server: Server, tmp_path: Path
) -> None:
    with between(server, tmp_path, "replaced") as (service, uri):
        store = open_store(uri)
        direct = uri_of(server.port, name="replaced").partition("?")[0]
        other = hbase_driver._from(StoreUri(direct), 10)

        async def replace() -> None:
            held = (await other.read(b"p", [b"key"]))[b"key"]
            await other.write_if(b"p", b"key", b"theirs", held.predicate)
            await other.close()

        def repeat(request: Request) -> Answer:
            if request.asked.get("check") == "put":
                service.forward(request)
                asyncio.run(replace())
            return service.forward(request)

        service.change = repeat
        predicate = await store.set_if(b"p", b"key", b"ours", None)
        service.change = service.forward

        with pytest.raises(PredicateFailed):
            await store.set_if(b"p", b"key", b"again", predicate)
        assert (await store.scan(b"p", b"", 10)).values == [b"theirs"]
        await store.close()


def write_beside(server: Server, table: str, value: bytes | None) -> None:
    """Replace or delete the key `key` without what stands between."""

    async def write() -> None:
        other = hbase_driver._from(StoreUri(uri_of(server.port, name=table).partition("?")[0]), 60)
        if value is None:
            await other.remove(b"p", [b"key"])
        else:
            await other.write(b"p", [(b"key", value)])
        await other.close()

    asyncio.run(write())


async def test_a_deletion_that_the_rest_server_repeats_is_not_called_a_failed_one(
    server: Server, tmp_path: Path
) -> None:
    with between(server, tmp_path, "redeleted") as (service, uri):
        store = open_store(uri)
        predicate = await store.set_if(b"p", b"key", b"1", None)
        made_anew = False

        def repeat(request: Request) -> Answer:
            if request.asked.get("check") == "delete":
                service.forward(request)
                if made_anew:
                    write_beside(server, "redeleted", b"theirs")
            return service.forward(request)

        service.change = repeat
        with pytest.raises(OutcomeUnknown):
            await store.delete_if(b"p", b"key", predicate)
        assert await store.get(b"p", b"key") is None
        made_anew = True
        predicate = await store.set_if(b"p", b"key", b"2", None)
        with pytest.raises(OutcomeUnknown):
            await store.delete_if(b"p", b"key", predicate)

        assert (await store.scan(b"p", b"", 10)).values == [b"theirs"]
        with pytest.raises(PredicateFailed):
            await store.delete_if(b"p", b"key", predicate)
        await store.close()


@pytest.mark.parametrize("theirs", [b"theirs", None])
@pytest.mark.parametrize("ours", [b"ours", None])
async def test_a_batch_is_done_where_another_writer_comes_between_its_read_and_its_write(
    server: Server, tmp_path: Path, ours: bytes | None, theirs: bytes | None
) -> None:
    table = f"stepped{next(_numbers)}"
    with between(server, tmp_path, table) as (service, uri):
        store = open_store(uri)
        await store.set_many(b"p", [(b"key", b"before"), (b"other", b"before")])

        def step(request: Request) -> Answer:
            if request.path.endswith(b"key".hex()):
                service.change = service.forward
                write_beside(server, table, theirs)
            return service.forward(request)

        service.change = step
        if ours is None:
            await store.delete_many(b"p", [b"key", b"other"])
        else:
            await store.set_many(b"p", [(b"key", ours), (b"other", ours)])

        assert service.change == service.forward
        assert (await store.scan(b"p", b"", 10)).values == ([] if ours is None else [ours] * 2)
        await store.close()


async def test_a_deletion_of_a_row_that_another_writer_replaced_between_fails(server: Server, tmp_path: Path) -> None:
    with between(server, tmp_path, "outrun") as (service, uri):
        store = open_store(uri)
        predicate = await store.set_if(b"p", b"key", b"1", None)

        def replace(request: Request) -> Answer:
            if request.asked.get("check") == "delete":
                write_beside(server, "outrun", b"theirs")
            return service.forward(request)

        service.change = replace
        with pytest.raises(PredicateFailed):
            await store.delete_if(b"p", b"key", predicate)

        assert (await store.scan(b"p", b"", 10)).values == [b"theirs"]
        await store.close()


async def test_a_write_that_comes_late_undoes_none_that_was_answered_since(server: Server, tmp_path: Path) -> None:
    """The REST server goes on with a write for minutes after its client has given up."""
    with between(server, tmp_path, "late") as (service, uri):
        store = open_store(uri)
        await store.set_many(b"p", [(b"a", b"1"), (b"b", b"1"), (b"c", b"1")])
        held: list[Request] = []

        def hold(request: Request) -> Answer:
            if request.method in {"PUT", "DELETE"}:
                held.append(request)
                return Answer(504)
            return service.forward(request)

        service.change = hold
        for attempt in (
            store.set(b"p", b"a", b"late"),
            store.set_many(b"p", [(b"b", b"late")]),
            store.delete(b"p", b"c"),
        ):
            with pytest.raises(OutcomeUnknown):
                await attempt
        service.change = service.forward
        await store.set_many(b"p", [(b"a", b"2"), (b"b", b"2"), (b"c", b"2")])

        assert [service.forward(request).status for request in held] == [304, 304, 304]

        assert (await store.scan(b"p", b"", 10)).values == [b"2"] * 3
        await store.close()


async def test_a_creation_that_is_repeated_late_brings_a_deleted_key_back(server: Server, tmp_path: Path) -> None:
    """The guide says so: an absent row has no history that would tell its deletion from its beginning."""
    with between(server, tmp_path, "anew") as (service, uri):
        store = open_store(uri)
        held: list[Request] = []

        def copy(request: Request) -> Answer:
            if request.asked.get("check"):
                held.append(request)
            return service.forward(request)

        service.change = copy
        predicate = await store.set_if(b"p", b"key", b"once", None)
        await store.delete_if(b"p", b"key", predicate)
        service.change = service.forward

        assert [service.forward(request).status for request in held] == [200, 200]
        service.forward(held[0])

        assert (await store.scan(b"p", b"", 10)).values == [b"once"]
        await store.close()


async def test_a_batch_of_which_a_part_is_refused_is_unknown(server: Server, tmp_path: Path) -> None:
    with between(server, tmp_path, "part") as (service, uri):
        store = open_store(uri)

        def refuse_one(request: Request) -> Answer:
            is_it = request.method == "PUT" and request.path.endswith(b"b".hex())
            return Answer(403, b"Forbidden") if is_it else service.forward(request)

        service.change = refuse_one

        with pytest.raises(OutcomeUnknown):
            await store.set_many(b"p", [(b"a", b"1"), (b"b", b"1")])
        with pytest.raises(StoreUnavailable, match="403: Forbidden"):
            await store.set(b"p", b"b", b"1")
        await store.close()


async def test_a_value_that_hbase_does_not_take_is_refused(server: Server) -> None:
    store = open_store(uri_of(server.port, name="large"))

    with pytest.raises(StoreUnavailable, match="KeyValue size too large"):
        await store.set(b"p", b"key", bytes(11 << 20))

    assert await store.get(b"p", b"key") is None
    await store.close()


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (200, b"", None),
        (500, b"Request failed.", OutcomeUnknown),
        (503, b"Unavailable\r\norg.apache.hadoop.hbase.RegionTooBusyException", OutcomeUnknown),
        (400, b"Bad request\r\njava.lang.NullPointerException", OutcomeUnknown),
        (400, b"Bad request\r\njava.lang.IllegalArgumentException: KeyValue size too large", StoreUnavailable),
        (403, b"Forbidden\r\n", StoreUnavailable),
        (404, b"Not found\r\norg.apache.hadoop.hbase.TableNotFoundException", StoreUnavailable),
        (429, b"slower", Passing),
    ],
)
async def test_each_refusal_says_what_became_of_the_write(
    tmp_path: Path, status: int, body: bytes, expected: type[Exception] | None
) -> None:
    class Answers(Service):
        def answer(self, request: Request) -> Answer:
            return Answer(status, body)

    with served(Answers(str(tmp_path / "unused.db"))) as port:
        database = hbase_driver._from(StoreUri(f"hbase://127.0.0.1:{port}/lakebed"), 10)
        store = RemoteStore(database, name="hbase", wait_s=0)

        if expected is None:
            assert await store.set_if(b"p", b"key", b"value", None)
        else:
            with pytest.raises(expected) as raised:
                await store.set_if(b"p", b"key", b"value", None)
            assert type(raised.value) is expected
        await store.close()


@pytest.mark.parametrize(
    "uri",
    [
        "hbase://",
        "hbase://127.0.0.1:1",
        "hbase://127.0.0.1:1/",
        "hbase://user:password@127.0.0.1:1/lakebed",
        "hbase://127.0.0.1:port/lakebed",
        "hbase://127.0.0.1:1,/lakebed",
        "hbase://127.0.0.1:1/a/b",
        "hbase://127.0.0.1:1/..",
        "hbase://127.0.0.1:1/a%3Fb",
        "hbase://127.0.0.1:1/a%0A",
        "hbase://127.0.0.1:1/lakebed?color=red",
        "hbase://127.0.0.1:99999/lakebed?wait_s=0",
        "hbase://127.0.0.1:0/lakebed?wait_s=0",
        "hbase://é..x:1/lakebed?wait_s=0",
        "hbase://a..b:1/lakebed?wait_s=0",
        "hbase://xn--:1/lakebed?wait_s=0",
        "hbase://[:::]:1/lakebed?wait_s=0",
        "hbase://127.0.0.1:1/lakebed?wait_s=0&ca_file=/no/such",
        "hbase://127.0.0.1:1/lakebed?wait_s=0&tls=yes&ca_file=/no/such",
        "hbase://127.0.0.1:1/lakebed?wait_s=0&tls=yes&ca_file=/etc/hostname",
    ],
)
def test_options_that_make_no_sense_are_refused(uri: str) -> None:
    with pytest.raises(InvalidStoreUri):
        open_store(uri)
