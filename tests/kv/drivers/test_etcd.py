"""The etcd driver keeps the contract, on a real server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from lakebed.base import OutcomeUnknown
from lakebed.kv import InvalidStoreUri, StoreFormat, StoreUnavailable, StoreUri, compact_store, open_store, store_size
from lakebed.kv.drivers import etcd as etcd_driver
from lakebed.kv.remote import http_client
from lakebed.kv.remote.store import RemoteStore
from lakebed.testing.contracts.network import held_port
from tests.kv.doubles import Answer, Request, Service, served
from tests.kv.servers import OnServer, Server, a_value_put_back_is_noticed, answering_http, etcd, hanging_port


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with etcd() as server:
        yield server


def uri_of(port: int, *, name: str, wait_s: float = 60) -> str:
    return f"etcd://127.0.0.1:{port}?name={name}&wait_s={wait_s}"


class TestEtcd(OnServer):
    pass


async def test_a_value_that_was_put_back_is_noticed(server: Server) -> None:
    await a_value_put_back_is_noticed(uri_of(server.port, name="back"))


async def test_a_member_that_is_away_is_passed_over(server: Server) -> None:
    with held_port() as silent:
        store = open_store(f"etcd://127.0.0.1:{silent},127.0.0.1:{server.port}?name=passed")

        await store.set(b"p", b"key", b"value")

        assert (await store.scan(b"p", b"", 10)).values == [b"value"]
        await store.close()


async def test_a_member_that_hangs_is_passed_over(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_client, "GREETING_S_MAX", 1.0)
    with hanging_port() as silent:
        store = open_store(uri_of(server.port, name="hung").replace("//", f"//127.0.0.1:{silent},"))

        await store.set(b"p", b"key", b"value")

        assert (await store.scan(b"p", b"", 10)).values == [b"value"]
        await store.close()


async def test_a_full_database_refuses_writes_and_says_what_to_do() -> None:
    with etcd("--quota-backend-bytes=3000000") as small:
        uri = uri_of(small.port, name="small")
        store = open_store(uri)
        try:
            await store.set(b"p", b"a", b"value")

            with pytest.raises((StoreUnavailable, OutcomeUnknown), match="database space exceeded"):
                await store.set_many(b"p", [(b"large %d" % number, bytes(300_000)) for number in range(40)])

            assert (await store.scan(b"p", b"", 1)).values == [b"value"]
            with pytest.raises(StoreUnavailable, match="alarm NOSPACE"):
                open_store(uri)
            # etcd refuses what would pass its quota, so it may stop a request or two before it.
            assert store_size(uri).size_bytes > 1_000_000
        finally:
            await store.close()


async def test_compacting_gives_back_what_etcd_no_longer_needs(server: Server) -> None:
    uri = uri_of(server.port, name="compacted")
    store = open_store(uri)
    await store.set_many(b"p", [(b"%d" % number, bytes(100_000)) for number in range(50)])
    await store.delete_many(b"p", [b"%d" % number for number in range(1, 50)])
    await forget_history(server.port)
    before = store_size(uri).size_bytes

    compact_store(uri)

    assert store_size(uri).size_bytes < before // 2
    assert (await store.scan(b"p", b"", 10)).keys == [b"0"]
    await store.close()


def test_a_member_that_cannot_be_reached_is_not_compacted() -> None:
    with held_port() as silent, pytest.raises(StoreUnavailable, match="no connection"):
        compact_store(f"etcd://127.0.0.1:{silent}?wait_s=1")


def test_each_member_is_compacted_once(tmp_path: Path) -> None:
    class Member(Service):
        def __init__(self, name: str) -> None:
            super().__init__(str(tmp_path / name))
            self.asked: list[str] = []

        def answer(self, request: Request) -> Answer:
            self.asked.append(request.path)
            return Answer(200, b"{}")

    one, other = Member("one"), Member("other")
    with served(one) as port, served(other) as other_port:
        compact_store(f"etcd://127.0.0.1:{port},127.0.0.1:{other_port}")

    assert [member.asked.count("/v3/maintenance/defragment") for member in (one, other)] == [1, 1]


async def forget_history(port: int) -> None:
    """Do what `--auto-compaction-retention` does after its time, and wait until it is done."""
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client:
        found = await client.post("/v3/kv/range", json={"key": "AA=="})
        revision = found.json()["header"]["revision"]
        (await client.post("/v3/kv/compaction", json={"revision": revision, "physical": True})).raise_for_status()


def bare_store(port: int, *, login: str = "") -> RemoteStore:
    """Make the store without asking the server anything yet."""
    return RemoteStore(etcd_driver._from(StoreUri(f"etcd://{login}127.0.0.1:{port}"), 60), name="etcd", wait_s=60)


@pytest.mark.parametrize("answer", ["<html>", "[]", "", "{}"])
async def test_an_answer_that_is_not_of_etcd_leaves_a_write_unknown_and_a_read_is_asked_again(answer: str) -> None:
    async with answering_http((200, answer), (200, answer), (200, '{"header": {"revision": "1"}}')) as port:
        store = bare_store(port)

        with pytest.raises(OutcomeUnknown, match="not one of etcd"):
            await store.set_if(b"p", b"key", b"value", None)
        assert await store.get(b"p", b"key") is None

        await store.close()


async def test_a_member_without_space_leaves_a_write_unknown_for_the_others_may_have_taken_it() -> None:
    async with answering_http((429, '{"code": 8, "message": "etcdserver: mvcc: database space exceeded"}')) as port:
        store = bare_store(port)

        with pytest.raises(OutcomeUnknown, match="database space exceeded"):
            await store.set(b"p", b"key", b"value")

        await store.close()


def post(url: str, body: dict[str, str]) -> None:
    assert httpx.post(url, json=body).status_code == 200


async def test_a_write_whose_login_fails_was_not_sent_and_logs_in_again() -> None:
    answers = ("<html>", '{"token": "t"}', '{"header": {"revision": "7"}, "succeeded": true}')
    async with answering_http(*((200, answer) for answer in answers)) as port:
        store = bare_store(port, login="root:word@")

        assert await store.set_if(b"p", b"key", b"value", None) == 7

        await store.close()


async def test_users_log_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_client, "GREETING_S_MAX", 1.0)
    with etcd() as closed:
        api = f"http://127.0.0.1:{closed.port}/v3/auth/"
        open_uri = uri_of(closed.port, name="closed")
        await open_store(open_uri).close()  # it has elected itself
        for method, body in (
            ("user/add", {"name": "root", "password": "a/b@c"}),
            ("user/grant", {"user": "root", "role": "root"}),
            ("user/add", {"name": "guest", "password": "word"}),
            ("enable", {}),
        ):
            await asyncio.to_thread(post, api + method, body)

        store = open_store(open_uri.replace("//", "//root:a%2Fb%40c@"))
        await store.set(b"p", b"key", b"value")
        with pytest.raises(StoreUnavailable, match="authentication failed"):
            open_store(open_uri.replace("//", "//root:wrong@"))
        with pytest.raises(StoreUnavailable, match="user name is empty"):
            open_store(open_uri)
        with pytest.raises(StoreUnavailable, match="permission denied: etcd asks for its user root"):
            await asyncio.to_thread(compact_store, open_uri.replace("//", "//guest:word@"))
        with hanging_port() as silent:  # it would get the login
            await open_store(open_uri.replace("//", f"//root:a%2Fb%40c@127.0.0.1:{silent},")).close()
        await store.close()


def test_a_key_of_another_program_and_senseless_options_are_refused(server: Server) -> None:
    foreign = {"key": "Zm9yZWlnbi9mb3JtYXQ=", "value": "dGhlaXJz"}
    post(f"http://127.0.0.1:{server.port}/v3/kv/put", foreign)

    with pytest.raises(StoreFormat, match="another release or program wrote it"):
        open_store(uri_of(server.port, name="foreign"))
    for uri, part in {
        "etcd://": "no host",
        "etcd://127.0.0.1:1/path": "a path",
        "etcd://127.0.0.1:1?name=": "name is empty",
        "etcd://127.0.0.1:1?color=red": "color",
    }.items():
        with pytest.raises(InvalidStoreUri, match=part):
            open_store(uri)
