"""The driver of Bigtable keeps the contract, on Google's own emulator."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta

import pytest

pytest.importorskip("google.cloud.bigtable_v2")

import grpc
from google.api_core import exceptions
from google.cloud.bigtable_admin_v2 import ColumnFamily, CreateTableRequest, GcRule, Table
from google.cloud.bigtable_admin_v2.services.bigtable_table_admin.transports import BigtableTableAdminGrpcTransport
from google.cloud.bigtable_v2.types import ReadRowsResponse

from lakebed.base import OutcomeUnknown
from lakebed.kv import InvalidStoreUri, StoreFormat, StoreUnavailable, StoreUri, open_store
from lakebed.kv.drivers.google import bigtable as bigtable_driver
from lakebed.kv.drivers.google import gcloud
from lakebed.kv.remote.store import Passing
from tests.kv.servers import OnServer, Server, a_slow_link_is_borne, a_value_put_back_is_noticed, bigtable


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with bigtable() as server:
        yield server


def uri_of(port: int, *, name: str, wait_s: float = 60) -> str:
    return f"bigtable://tests/tests/{name}?endpoint=http://127.0.0.1:{port}&wait_s={wait_s}"


class TestBigtable(OnServer):
    program_steps = 60
    increments = 20
    not_killed = "the emulator keeps all in memory"


async def test_a_value_that_was_put_back_is_noticed(server: Server) -> None:
    await a_value_put_back_is_noticed(uri_of(server.port, name="back"))


async def test_a_store_connects_over_a_slow_link(server: Server) -> None:
    await a_slow_link_is_borne(server.port, lambda port: uri_of(port, name="slow"))


async def test_a_table_of_another_release_is_refused(server: Server) -> None:
    uri = uri_of(server.port, name="later")
    await open_store(uri).close()
    database = bigtable_driver._from(StoreUri(uri.replace("&wait_s=60", "")), 10)
    await database._mutate([(b"format", bigtable_driver._set(b"2", b""))])
    await database.close()

    with pytest.raises(StoreFormat, match="in format b'2'"):
        open_store(uri)


def make_table(server: Server, name: str, rule: GcRule) -> None:
    families = {"c": ColumnFamily(gc_rule=rule)}
    request = CreateTableRequest(parent="projects/tests/instances/tests", table_id=name)
    request.table = Table(column_families=families)
    transport = BigtableTableAdminGrpcTransport(channel=grpc.insecure_channel(f"127.0.0.1:{server.port}"))
    transport.create_table(request)
    transport.close()


async def test_a_table_whose_collection_takes_cells_by_their_age_is_refused(server: Server) -> None:
    by_age, by_number = GcRule(max_age=timedelta(days=7)), GcRule(max_num_versions=1)
    for name, rule in (
        ("max_age", by_age),
        ("union", GcRule(union=GcRule.Union(rules=[by_age, by_number]))),
        ("intersection", GcRule(intersection=GcRule.Intersection(rules=[by_age, by_number]))),
    ):
        make_table(server, name, rule)
        with pytest.raises(StoreUnavailable, match=f"column family c has the rule {name}"):
            open_store(uri_of(server.port, name=name))

    make_table(server, "several", GcRule(max_num_versions=3))
    await open_store(uri_of(server.port, name="several")).close()
    make_table(server, "never", GcRule())
    await open_store(uri_of(server.port, name="never")).close()


async def test_a_table_whose_making_is_never_answered_does_not_hang_the_opening() -> None:
    async def absent(request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        context.set_code(grpc.StatusCode.NOT_FOUND)
        return b""

    async def never(request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        await asyncio.Event().wait()
        return b""

    handlers = {
        name: grpc.unary_unary_rpc_method_handler(do) for name, do in (("GetTable", absent), ("CreateTable", never))
    }
    service = grpc.aio.server()
    service.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler("google.bigtable.admin.v2.BigtableTableAdmin", handlers)]
    )
    port = service.add_insecure_port("127.0.0.1:0")
    await service.start()

    with pytest.raises(StoreUnavailable):
        await asyncio.to_thread(open_store, uri_of(port, name="never", wait_s=1))

    await service.stop(None)


def chunk(*, qualifier: bytes | None = None, **fields: object) -> object:
    """Make a piece as Bigtable sends it: a field that it leaves out is empty, and is not in it."""
    made = ReadRowsResponse.pb().CellChunk(**fields)
    if qualifier is not None:
        made.qualifier.value = qualifier
    return made


def test_rows_are_put_together_from_pieces_and_begun_again_where_bigtable_says_so() -> None:
    rows = bigtable_driver._Rows()

    rows.take([chunk(row_key=b"a", qualifier=b"n", value=b"1"), chunk(qualifier=b"v", value=b"lo", value_size=4)])
    rows.take([chunk(value=b"ng", commit_row=True), chunk(row_key=b"b", qualifier=b"n", value=b"lost")])
    rows.take([chunk(reset_row=True), chunk(row_key=b"b", qualifier=b"v", value=b"", commit_row=True)])

    assert rows.done == [(b"a", {b"n": b"1", b"v": b"long"}), (b"b", {b"v": b""})]


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (exceptions.ServiceUnavailable("failed to connect to all addresses; last error: x"), Passing),
        (exceptions.ResourceExhausted("slower"), Passing),
        (exceptions.ServiceUnavailable("Socket closed"), OutcomeUnknown),
        (exceptions.DeadlineExceeded("too late"), OutcomeUnknown),
        (exceptions.FailedPrecondition("the profile allows no single-row transactions"), StoreUnavailable),
        (exceptions.PermissionDenied("no"), StoreUnavailable),
    ],
)
async def test_each_failure_says_what_became_of_the_request(
    error: exceptions.GoogleAPICallError, expected: type[Exception]
) -> None:
    with pytest.raises(expected) as raised:
        async with gcloud.translated("bigtable"):
            raise error

    assert type(raised.value) is expected
    assert isinstance(error.grpc_status_code, grpc.StatusCode)


def test_options_that_make_no_sense_are_refused() -> None:
    for uri in (
        "bigtable://",
        "bigtable://project/instance",
        "bigtable://project/instance/a/b",
        "bigtable://project/instance/table?endpoint=here",
        "bigtable://project/instance/table?color=red",
    ):
        with pytest.raises(InvalidStoreUri):
            open_store(uri)
