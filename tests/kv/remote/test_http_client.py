"""The HTTP client of drivers reads whole answers, keeps connections, and says whether a request was sent."""

from __future__ import annotations

import asyncio
import selectors
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from lakebed.kv.remote import http_client
from lakebed.kv.remote.http_client import AnswerLost, AnswerTimeout, HttpAnswer, HttpClient, NotSent, Origin, Servers

WHOLE = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
OTHER = b"HTTP/1.1 200 OK\r\ncontent-length: 7\r\n\r\nanother"
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def server(serve: Serve) -> AsyncIterator[Origin]:
    async def closed_behind(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client is gone
        finally:
            writer.close()

    async with await asyncio.start_server(closed_behind, "127.0.0.1", 0) as listener:
        yield Origin.of(f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}")


async def read_request(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    return head + await reader.readexactly(int(head.lower().partition(b"content-length:")[2].split()[0]))


@asynccontextmanager
async def client(*, connections: int = 2, timeout_s: float = 60) -> AsyncIterator[HttpClient]:
    client = HttpClient(connections=connections, timeout_s=timeout_s)
    yield client
    await client.aclose()


async def ask(client: HttpClient, origin: Origin, content: bytes = b"") -> HttpAnswer:
    return await client.request("POST", origin, "/path?x=1", headers={"x-a": "b"}, content=content)


def answering(*answers: bytes) -> Serve:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for answer in answers:
            await read_request(reader)
            writer.write(answer)

    return serve


@pytest.mark.parametrize(
    ("answer", "body"),
    [
        (WHOLE, b"ok"),
        (b"HTTP/1.1 204 No\r\n\r\n", b""),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\no\r\n1\r\nk\r\n0\r\n\r\n", b"ok"),
        (b"HTTP/1.1 200 OK\r\n\r\nuntil the end", b"until the end"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + WHOLE, b"ok"),
    ],
    ids=["length", "no body", "chunks", "end of connection", "a word before"],
)
async def test_an_answer_is_read_whole(answer: bytes, body: bytes) -> None:
    async with server(answering(answer)) as origin, client() as asking:
        assert (await ask(asking, origin)).content == body


async def test_a_request_has_its_method_path_headers_and_body() -> None:
    seen: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await read_request(reader))
        writer.write(WHOLE)

    async with server(serve) as origin, client() as asking:
        await ask(asking, origin, b"body")

    host = f"host: {origin.authority}\r\n".encode()
    assert seen == [b"POST /path?x=1 HTTP/1.1\r\n" + host + b"x-a: b\r\ncontent-length: 4\r\n\r\nbody"]


async def test_a_connection_is_kept_for_the_next_request_and_one_that_was_closed_is_not_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_client, "IDLE_S_MAX", 3_600.0)  # however long this machine stands still
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await answering(WHOLE, WHOLE)(reader, writer)

    async with server(serve) as origin, client() as asking:
        await ask(asking, origin)
        await ask(asking, origin)
        assert connections == 1
        await asyncio.gather(*(each.closed for each in asking._open))
        await ask(asking, origin)
        assert connections == 2


async def test_a_request_does_not_take_a_connection_whose_end_is_not_read_yet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A commit that keeps the event loop busy must not make the next write's outcome unknown."""
    monkeypatch.setattr(http_client, "IDLE_S_MAX", 3_600.0)

    def serve_and_close(listener: socket.socket) -> None:
        for _ in range(2):
            connection, _ = listener.accept()
            with connection:
                connection.recv(1 << 16)  # a short request comes at once
                connection.sendall(WHOLE)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        serving = threading.Thread(target=serve_and_close, args=(listener,), daemon=True)
        serving.start()
        async with client() as asking:
            origin = Origin.of(f"http://127.0.0.1:{listener.getsockname()[1]}")
            await ask(asking, origin)
            [kept] = asking._open
            assert kept._transport is not None
            await_end(kept._transport.get_extra_info("socket").fileno())

            assert (await ask(asking, origin)).content == b"ok"
        serving.join()


def await_end(descriptor: int) -> None:
    """Wait until there is something to read, and keep the event loop from reading it."""
    with selectors.DefaultSelector() as waiting:
        waiting.register(descriptor, selectors.EVENT_READ)
        waiting.select()


async def test_a_request_does_not_take_a_connection_that_is_closing() -> None:
    async with server(answering(WHOLE, OTHER)) as origin, client() as asking:
        await ask(asking, origin)
        [kept] = asking._open
        assert kept._transport is not None
        kept._transport.close()

        with pytest.raises(NotSent):
            await kept.ask(b"", 60)
        assert (await ask(asking, origin)).content == b"ok"


@pytest.mark.parametrize("more", [b"HTTP", b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nst", WHOLE])
async def test_what_stands_behind_an_answer_answers_no_other_request(more: bytes) -> None:
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        answers = (WHOLE + more, b"ale" + WHOLE) if connections == 1 else (OTHER,)
        await answering(*answers)(reader, writer)

    async with server(serve) as origin, client() as asking:
        assert (await ask(asking, origin)).content == b"ok"
        assert (await ask(asking, origin)).content == b"another"


async def test_a_server_that_cannot_be_reached_has_seen_nothing() -> None:
    async with server(answering()) as origin:
        pass

    async with client() as asking:
        with pytest.raises(NotSent):
            await ask(asking, origin)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nok",
        b"no HTTP at all\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n",
        b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\nHTTP/1.1 200 OK\r\n",
    ],
)
async def test_a_connection_that_breaks_before_the_whole_answer_leaves_it_unknown(answer: bytes) -> None:
    async with server(answering(answer)) as origin, client() as asking:
        with pytest.raises(AnswerLost):
            await ask(asking, origin)


async def test_an_answer_that_changes_the_protocol_is_an_error_that_says_so_and_no_fault_of_the_loop() -> None:
    faults: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, fault: faults.append(fault))
    answer = b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n"

    async with server(answering(answer)) as origin, client() as asking:
        with pytest.raises(AnswerLost, match="another protocol"):
            await ask(asking, origin)

    assert faults == []


async def test_a_silent_server_is_waited_for_as_long_as_was_said_and_then_a_connection_is_free_again() -> None:
    silent = True

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        if silent:
            await reader.read()
        writer.write(WHOLE)

    async with server(serve) as origin, client(connections=1) as asking:
        with pytest.raises(AnswerTimeout):
            await asking.request("GET", origin, "/", headers={}, timeout_s=0.05)
        silent = False

        assert (await ask(asking, origin)).content == b"ok"


async def test_a_request_that_finds_no_free_connection_in_time_was_not_sent() -> None:
    arrived, go_on = asyncio.Event(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        arrived.set()
        await go_on.wait()
        writer.write(WHOLE)

    async with server(serve) as origin, client(connections=1, timeout_s=0.05) as asking:
        first = asyncio.ensure_future(asking.request("GET", origin, "/", headers={}, timeout_s=60, connect_s=60))
        await arrived.wait()
        with pytest.raises(NotSent, match="in use"):
            await ask(asking, origin)
        go_on.set()
        assert (await first).status_code == 200


@pytest.mark.parametrize(
    "url",
    [
        "ftp://host",
        "http://",
        "http://user@host",
        "http://host:port",
        "http://host:0",
        "http://a b",
        "http://-..",
        "http://xn--",
    ],
)
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"address|port|label|Port"):
        Origin.of(url)


def test_a_host_with_letters_beyond_ascii_is_named_as_the_resolver_knows_it() -> None:
    origin = Origin.of("http://b\u00fccher.example:8080")

    assert (origin.host, origin.authority) == ("xn--bcher-kva.example", "xn--bcher-kva.example:8080")


async def test_a_server_that_hangs_is_passed_over_and_one_that_breaks_off_is_not() -> None:
    held = asyncio.Event()

    async def hang(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        await held.wait()

    async def break_off(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await read_request(reader)

    async with server(hang) as silent, server(break_off) as other:
        servers = Servers([silent, other], connections=1, timeout_s=60, certificates=None)
        with pytest.raises(AnswerTimeout):
            await servers.request("GET", "/", headers={}, timeout_s=0.01)
        assert servers.all == (other, silent)

        with pytest.raises(AnswerLost):
            await servers.request("GET", "/", headers={})
        assert servers.all == (other, silent)
        held.set()
        await servers.aclose()


async def test_one_server_alone_has_all_the_time_to_accept_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_client, "CONNECT_S_MAX", 1e-9)
    async with server(answering(WHOLE)) as origin:
        servers = Servers([origin], connections=1, timeout_s=60, certificates=None)
        assert (await servers.request("POST", "/", headers={})).content == b"ok"
        await servers.aclose()


async def test_the_headers_of_an_answer_belong_to_it() -> None:
    marked = b"HTTP/1.1 200 OK\r\nX-Mark: one\r\ncontent-length: 2\r\n\r\nok"
    async with server(answering(marked, WHOLE)) as origin, client() as asking:
        assert (await ask(asking, origin)).headers[b"x-mark"] == b"one"
        assert b"x-mark" not in (await ask(asking, origin)).headers


async def test_what_stands_behind_an_answer_adds_no_header_to_it() -> None:
    more = b"HTTP/1.1 200 OK\r\nX-Mark: two\r\ncontent-length: 2\r\n\r\nok"
    async with server(answering(WHOLE + more)) as origin, client() as asking:
        assert b"x-mark" not in (await ask(asking, origin)).headers
