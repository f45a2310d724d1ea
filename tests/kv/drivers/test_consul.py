"""The driver of Consul keeps the contract, on a double of its HTTP API or the agent of LAKEBED_TEST_CONSUL."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from lakebed.base import OutcomeUnknown
from lakebed.kv import InvalidStoreUri, PredicateFailed, StoreFormat, StoreUnavailable, StoreUri, open_store
from lakebed.kv.drivers import consul as consul_driver
from lakebed.kv.remote import http_client
from lakebed.kv.remote.store import Passing, RemoteStore
from lakebed.testing.contracts.network import held_port
from tests.kv.consul_double import Consul
from tests.kv.doubles import Answer, Request, served
from tests.kv.servers import RUN, OnServer, Server, a_value_put_back_is_noticed, answering_http, consul, hanging_port


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with consul() as server:
        yield server


def uri_of(port: int, *, name: str, wait_s: float = 60) -> str:
    return f"consul://127.0.0.1:{port}?name={RUN}{name}&wait_s={wait_s}"


class TestConsul(OnServer):
    program_steps = 60
    increments = 20
    not_killed = (
        "an agent of others is not ours to kill" if os.environ.get("LAKEBED_TEST_CONSUL", "build") != "build" else ""
    )


async def test_a_value_that_was_put_back_is_noticed(server: Server) -> None:
    await a_value_put_back_is_noticed(uri_of(server.port, name="back"))


async def test_of_two_writers_of_the_same_value_one_succeeds(server: Server) -> None:
    """Consul keeps the index of a key where a write changes nothing, and so would let both succeed."""
    store = open_store(uri_of(server.port, name="same"))
    predicate = await store.set_if(b"p", b"key", b"value", None)

    await store.set_if(b"p", b"key", b"value", predicate)

    with pytest.raises(PredicateFailed):
        await store.set_if(b"p", b"key", b"value", predicate)
    await store.close()


async def test_a_batch_of_the_longest_keys_fits_into_a_request(server: Server) -> None:
    store = open_store(uri_of(server.port, name="long"))
    items = [(b"%04d" % number + b"k" * 1020, b"v" * 4000) for number in range(200)]

    await store.set_many(b"p" * 1024, items)

    assert [found and found.value for found in await store.get_many(b"p" * 1024, [items[7][0]])] == [items[7][1]]
    await store.close()


async def test_a_value_that_consul_does_not_take_is_refused(server: Server) -> None:
    store = open_store(uri_of(server.port, name="large"))

    with pytest.raises(StoreUnavailable, match="too large"):
        await store.set(b"p", b"key", bytes(512 << 10))

    assert await store.get(b"p", b"key") is None
    await store.close()


async def test_an_agent_that_is_away_is_passed_over(server: Server) -> None:
    with held_port() as silent:
        store = open_store(uri_of(server.port, name="passed").replace("//", f"//127.0.0.1:{silent},"))

        await store.set(b"p", b"key", b"value")

        assert (await store.scan(b"p", b"", 10)).values == [b"value"]
        await store.close()


async def test_an_agent_that_hangs_is_passed_over(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_client, "GREETING_S_MAX", 1.0)
    with hanging_port() as silent:
        store = open_store(uri_of(server.port, name="hung").replace("//", f"//127.0.0.1:{silent},"))

        await store.set(b"p", b"key", b"value")

        assert (await store.scan(b"p", b"", 10)).values == [b"value"]
        await store.close()


def test_an_agent_that_keeps_all_in_memory_is_refused(tmp_path: Path) -> None:
    with (
        served(Consul(str(tmp_path / "kept.db"), is_dev=True)) as port,
        pytest.raises(StoreUnavailable, match="the agent runs with -dev"),
    ):
        open_store(uri_of(port, name="dev"))


async def test_the_token_of_the_uri_is_shown(tmp_path: Path) -> None:
    with served(Consul(str(tmp_path / "kept.db"), token="a/b@c")) as port:
        store = open_store(uri_of(port, name="closed").replace("//", "//:a%2Fb%40c@"))
        await store.set(b"p", b"key", b"value")
        await store.close()
        with pytest.raises(StoreUnavailable, match="Permission denied"):
            open_store(uri_of(port, name="closed"))


async def test_a_token_that_may_not_read_everything_is_refused_and_finds_no_absence(tmp_path: Path) -> None:
    """Consul leaves out what a token may not read, and does not say that it is absent."""

    class Filters(Consul):
        def answer(self, request: Request) -> Answer:
            answer = super().answer(request)
            if request.path == "/v1/txn" and b'"get"' in request.body and b"/70/" in request.body:
                answer.body = b'{"Results": [], "Errors": null}'
            if "keys" in request.asked:
                answer.headers["X-Consul-Results-Filtered-By-ACLs"] = "true"
            return answer

    with served(Filters(str(tmp_path / "kept.db"))) as port:
        store = open_store(uri_of(port, name="filtered"))
        await store.set(b"p", b"key", b"value")

        with pytest.raises(StoreUnavailable, match="may not read"):
            await store.get(b"p", b"key")
        with pytest.raises(StoreUnavailable, match="may not list"):
            await store.scan(b"p", b"", 10)
        await store.close()


def bare_store(port: int, *, wait_s: float = 60) -> RemoteStore:
    """Make the store without asking the agent anything yet."""
    return RemoteStore(consul_driver._from(StoreUri(f"consul://127.0.0.1:{port}"), 60), name="consul", wait_s=wait_s)


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (200, "<html>", OutcomeUnknown),
        (200, "{}", OutcomeUnknown),
        (409, '{"Results": [], "Errors": null}', OutcomeUnknown),
        (500, "rpc error making call: leadership lost while committing log", OutcomeUnknown),
        (500, "rpc error making call: No cluster leader", Passing),
        (429, "rate limit exceeded, try again later", Passing),
        (503, "rate limit exceeded for operation that can only be performed by the leader", Passing),
        (403, "Permission denied", StoreUnavailable),
        (409, '{"Results": null, "Errors": [{"OpIndex": 0, "What": "Permission denied"}]}', StoreUnavailable),
    ],
)
async def test_each_refusal_says_what_became_of_the_write(status: int, body: str, expected: type[Exception]) -> None:
    async with answering_http((status, body)) as port:
        store = bare_store(port, wait_s=0)

        with pytest.raises(expected) as raised:
            await store.set_if(b"p", b"key", b"value", None)

        assert type(raised.value) is expected
        await store.close()


async def test_an_agent_that_limits_its_rate_is_asked_again() -> None:
    pair = '{"Key": "k", "ModifyIndex": 7, "Value": null}'
    answers = [(429, "rate limit exceeded"), (429, "rate limit exceeded")]
    async with answering_http(*answers, (200, f'{{"Results": [{{"KV": {pair}}}], "Errors": null}}')) as port:
        store = bare_store(port)

        assert await store.set_if(b"p", b"key", b"value", None) == 7

        await store.close()


def test_a_key_of_another_program_and_senseless_options_are_refused(server: Server) -> None:
    name = f"{RUN}foreign"
    theirs = [{"KV": {"Verb": "set", "Key": f"{name}/format", "Value": "dGhlaXJz", "Flags": 0}}]
    assert httpx.put(f"http://127.0.0.1:{server.port}/v1/txn", json=theirs).status_code == 200

    with pytest.raises(StoreFormat, match="another release or program wrote it"):
        open_store(uri_of(server.port, name="foreign"))
    for uri in (
        "consul://",
        "consul://user:token@127.0.0.1:1",
        "consul://:token%0D%0Ax:y@127.0.0.1:1",
        "consul://127.0.0.1:1?tls=yes&ca_file=/absent",
        "consul://127.0.0.1:1?tls=yes&ca_file=%00",
        "consul://127.0.0.1:1?ca_file=/absent",
        "consul://127.0.0.1:1/path",
        "consul://127.0.0.1:1?color=red",
    ):
        with pytest.raises(InvalidStoreUri):
            open_store(uri)


@pytest.mark.parametrize("name", ["", "a/b", "lake%2541", "a%3Fb", "a%23b", "..", ".", "lake%20bed", "a%0A", "%C3%A9"])
def test_a_name_that_would_be_another_folder_in_an_address_is_refused(name: str) -> None:
    with pytest.raises(InvalidStoreUri, match="consul: name has letters of ASCII, digits,"):
        open_store(f"consul://127.0.0.1:1?name={name}")
