"""Gathering short pieces, over a transport that writes down what reaches it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from lakebed.server.http.limits import HELD_BYTES_MAX, GatheringTransport

HEAD = b"HTTP/1.1 200 OK\r\n\r\n"


class Recorded(asyncio.Transport):
    """Each write is one entry, whatever it was made of."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1)})
        self.writes: list[bytes] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.writes.append(bytes(data))

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.writes.append(b"".join(list_of_data))

    def write_eof(self) -> None:
        self.writes.append(b"<eof>")

    def close(self) -> None:
        self.writes.append(b"<closed>")


def gathering() -> tuple[Recorded, GatheringTransport]:
    recorded = Recorded()
    return recorded, GatheringTransport(recorded, asyncio.get_running_loop())


async def test_a_head_and_a_body_go_out_as_one() -> None:
    recorded, transport = gathering()

    transport.write(HEAD)
    transport.write(b"x" * 100_000)
    await asyncio.sleep(0)

    assert recorded.writes == [HEAD + b"x" * 100_000]


async def test_a_head_alone_goes_out_in_the_loops_next_round() -> None:
    recorded, transport = gathering()

    transport.write(HEAD)
    assert recorded.writes == []
    await asyncio.sleep(0)

    assert recorded.writes == [HEAD]


async def test_pieces_keep_their_order_whatever_their_lengths() -> None:
    recorded, transport = gathering()
    pieces = [bytes([65 + index]) * size for index, size in enumerate([3, 5, HELD_BYTES_MAX + 1, 1, 9_000, 2])]

    for piece in pieces:
        transport.write(piece)
    transport.writelines([b"tail", b"end"])
    transport.write(b"")
    await asyncio.sleep(0)

    assert b"".join(recorded.writes) == b"".join(pieces) + b"tailend"


async def test_what_is_held_goes_before_the_end_of_the_stream() -> None:
    for end, mark in (("close", b"<closed>"), ("write_eof", b"<eof>")):
        recorded, transport = gathering()

        transport.write(HEAD)
        getattr(transport, end)()
        await asyncio.sleep(0)

        assert recorded.writes == [HEAD, mark]


async def test_all_else_is_the_transports_own() -> None:
    _, transport = gathering()

    assert transport.get_extra_info("peername") == ("127.0.0.1", 1)
