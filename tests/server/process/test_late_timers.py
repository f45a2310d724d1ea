"""Timers of a connection that fire after a pause, before the server has read what came meanwhile."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing

import pytest
import uvicorn
import uvloop
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from lakebed.server.http.limits import LimitedProtocol

REQUEST = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"


async def _answer_ok(_: Scope, __: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[socket.socket, LimitedProtocol]]:
    """Yield a client's socket and the server's side of its connection. The server runs only while the test awaits."""
    config, state = (
        uvicorn.Config(_answer_ok, http=LimitedProtocol, ws="none", lifespan="off", log_config=None),
        ServerState(),
    )
    config.load()
    loop, made = asyncio.get_running_loop(), asyncio.Event()

    def make() -> LimitedProtocol:
        loop.call_soon(made.set)
        return LimitedProtocol(config=config, server_state=state, app_state={})

    server = await loop.create_server(make, "127.0.0.1", 0)
    with closing(socket.create_connection(server.sockets[0].getsockname())) as client:
        client.setblocking(False)
        await made.wait()
        [protocol] = state.connections
        assert isinstance(protocol, LimitedProtocol)
        yield client, protocol
        protocol.transport.abort()
        server.close()
        await asyncio.sleep(0)


async def _read_answer(client: socket.socket) -> bytes:
    answer = b""
    while not answer.endswith(b"ok"):
        data = await asyncio.get_running_loop().sock_recv(client, 4096)
        if not data:
            break
        answer += data
    return answer


async def _idle_while_a_request_waits() -> tuple[bytes, bytes]:
    async with connected() as (client, protocol):
        client.sendall(REQUEST)
        first = await _read_answer(client)
        client.sendall(REQUEST)
        protocol.timeout_keep_alive_handler()
        return first, await _read_answer(client)


async def _slow_while_its_rest_waits() -> bytes:
    async with connected() as (client, protocol):
        client.sendall(REQUEST)
        protocol.on_slow()
        return await _read_answer(client)


async def _idle_for_long() -> bytes:
    async with connected() as (client, protocol):
        client.sendall(REQUEST)
        await _read_answer(client)
        protocol.timeout_keep_alive_handler()
        return await _read_answer(client)


LOOPS = pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])


@LOOPS
def test_a_request_that_came_in_time_is_answered_although_the_idle_timer_is_first(
    loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    with asyncio.Runner(loop_factory=loop) as runner:
        first, second = runner.run(_idle_while_a_request_waits())

    assert first.startswith(b"HTTP/1.1 200 ")
    assert second.startswith(b"HTTP/1.1 200 ")


@LOOPS
def test_a_head_that_came_in_time_is_answered_although_the_timer_of_slow_ones_is_first(
    loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    with asyncio.Runner(loop_factory=loop) as runner:
        assert runner.run(_slow_while_its_rest_waits()).startswith(b"HTTP/1.1 200 ")


@LOOPS
def test_an_idle_connection_is_closed(loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    with asyncio.Runner(loop_factory=loop) as runner:
        assert runner.run(_idle_for_long()) == b""
