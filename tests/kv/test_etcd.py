"""The etcd driver keeps the contract, on a real server."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from functools import partial

import httpx
import pytest

from lakebed.base import OutcomeUnknown
from lakebed.kv import InvalidStoreUri, PredicateFailed, StoreFormat, StoreUnavailable, open_store, store_size
from lakebed.testing.contracts import RemoteStoreContract
from tests.kv.servers import Server, etcd, free_port

_numbers = itertools.count()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with etcd() as server:
        yield server


def uri_of(port: int, *, name: str, wait_s: float = 10) -> str:
    return f"etcd://127.0.0.1:{port}?name={name}&wait_s={wait_s}"


class TestEtcd(RemoteStoreContract):
    @pytest.fixture
    def server_port(self, server: Server) -> int:
        return server.port

    @pytest.fixture
    def uri_at(self) -> Callable[..., str]:
        return partial(uri_of, name=f"test{next(_numbers)}")

    @pytest.fixture
    def restart(self, server: Server) -> Callable[[], None]:
        return server.restart


async def test_a_value_that_was_put_back_is_noticed(server: Server) -> None:
    store = open_store(uri_of(server.port, name="back"))
    predicate = await store.set_if(b"p", b"key", b"A", None)
    await store.set(b"p", b"key", b"B")
    await store.set(b"p", b"key", b"A")

    with pytest.raises(PredicateFailed):
        await store.set_if(b"p", b"key", b"ours", predicate)

    await store.close()


async def test_a_member_that_is_away_is_passed_over(server: Server) -> None:
    store = open_store(f"etcd://127.0.0.1:{free_port()},127.0.0.1:{server.port}?name=passed")

    await store.set(b"p", b"key", b"value")

    assert (await store.scan(b"p", b"", 10)).values == [b"value"]
    await store.close()


async def test_a_full_database_refuses_writes_and_says_what_to_do() -> None:
    with etcd("--quota-backend-bytes=3000000") as small:
        uri = uri_of(small.port, name="small")
        store = open_store(uri)
        await store.set(b"p", b"a", b"value")

        with pytest.raises((StoreUnavailable, OutcomeUnknown), match="database space exceeded"):
            await store.set_many(b"p", [(b"large %d" % number, bytes(300_000)) for number in range(40)])

        assert (await store.scan(b"p", b"", 1)).values == [b"value"]
        with pytest.raises(StoreUnavailable, match="alarm NOSPACE"):
            open_store(uri)
        assert store_size(uri).size_bytes > 3_000_000
        await store.close()


def post(url: str, body: dict[str, str]) -> None:
    assert httpx.post(url, json=body).status_code == 200


async def test_users_log_in() -> None:
    with etcd() as closed:
        api = f"http://127.0.0.1:{closed.port}/v3/auth/"
        open_uri = uri_of(closed.port, name="closed")
        await open_store(open_uri).close()  # it has elected itself
        for method, body in (
            ("user/add", {"name": "root", "password": "a/b@c"}),
            ("user/grant", {"user": "root", "role": "root"}),
            ("enable", {}),
        ):
            await asyncio.to_thread(post, api + method, body)

        store = open_store(open_uri.replace("//", "//root:a%2Fb%40c@"))
        await store.set(b"p", b"key", b"value")
        with pytest.raises(StoreUnavailable, match="authentication failed"):
            open_store(open_uri.replace("//", "//root:wrong@"))
        with pytest.raises(StoreUnavailable, match="user name is empty"):
            open_store(open_uri)
        await store.close()


def test_a_key_of_another_program_and_senseless_options_are_refused(server: Server) -> None:
    foreign = {"key": "Zm9yZWlnbi9mb3JtYXQ=", "value": "dGhlaXJz"}
    post(f"http://127.0.0.1:{server.port}/v3/kv/put", foreign)

    with pytest.raises(StoreFormat, match="another release or program wrote it"):
        open_store(uri_of(server.port, name="foreign"))
    for uri in ("etcd://", "etcd://127.0.0.1:1/path", "etcd://127.0.0.1:1?name=", "etcd://127.0.0.1:1?color=red"):
        with pytest.raises(InvalidStoreUri):
            open_store(uri)
