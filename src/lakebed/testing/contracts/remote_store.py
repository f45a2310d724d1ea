"""Checks for a Store driver whose database is behind a network that fails."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import ClassVar

import pytest

from lakebed.base import OutcomeUnknown
from lakebed.kv import PredicateFailed, Store, StoreUnavailable, open_store

from .durable_store import DurableStoreContract
from .network import FaultyNetwork, faulty_network
from .store import P, held, numbered, read_all, value_of

WAIT_S = 120
"""Much longer than any fault here, for a busy machine."""


class RemoteStoreContract(DurableStoreContract):
    """Override `server_port`, `uri_at` and `restart`."""

    cuts_s: ClassVar[tuple[float, float]] = (0.02, 0.1)
    """The shortest and longest time between two cuts of all connections.

    Longer for a client library that reconnects slowly.
    """

    notices_s: ClassVar[float] = 0.5
    """The client notices within this time that its connections were cut."""

    @pytest.fixture
    def server_port(self) -> int:
        raise NotImplementedError("a contract's test class says where its server listens, on 127.0.0.1")

    @pytest.fixture
    def uri_at(self) -> Callable[..., str]:
        """Return a function that makes the URI of one store, empty for each test: `uri_at(port)`, or `uri_at(port,
        wait_s=1)`.
        """
        raise NotImplementedError("a contract's test class says how its URIs are made")

    @pytest.fixture
    def restart(self) -> Callable[[], None]:
        """Return a function that kills the server with SIGKILL and starts it again."""
        raise NotImplementedError("a contract's test class says how its server is started again")

    @pytest.fixture
    def store_uri(self, server_port: int, uri_at: Callable[..., str]) -> str:
        return uri_at(server_port)

    @pytest.fixture
    def network(self, server_port: int) -> Iterator[FaultyNetwork]:
        with faulty_network(server_port) as network:
            yield network

    @pytest.fixture
    async def distant(self, network: FaultyNetwork, uri_at: Callable[..., str]) -> AsyncIterator[Store]:
        """Open the store, behind the network."""
        distant = open_store(uri_at(network.port, wait_s=WAIT_S))
        yield distant
        network.heal()
        await distant.close()

    async def test_a_write_whose_answer_was_lost_is_unknown_and_a_read_tells(
        self, distant: Store, network: FaultyNetwork
    ) -> None:
        """A repeated `set_if` would fail on its own success.

        A repeated `set` might undo a later write of another writer.
        """
        await distant.set(P, b"b", b"old")
        predicate = (await held(distant, P, b"b")).predicate
        attempts: dict[bytes, Callable[[bytes], Awaitable[object]]] = {
            b"first value": lambda value: distant.set(P, b"a", value),
            b"second value": lambda value: distant.set_if(P, b"b", value, predicate),
            b"third value": lambda value: distant.set_if(P, b"c", value, None),
            b"fourth value": lambda value: distant.set_many(P, [(b"d", value), (b"e", b"")]),
        }
        for value, attempt in attempts.items():
            network.lose_answer_to(value)
            with pytest.raises(OutcomeUnknown):
                await attempt(value)
            await asyncio.sleep(0.05)  # the client sees the end of the connection, and sends nothing more on it

        assert await read_all(distant, P) == {**dict(zip([b"a", b"b", b"c", b"d"], attempts, strict=True)), b"e": b""}

    async def test_connections_that_were_cut_are_made_again(self, distant: Store, network: FaultyNetwork) -> None:
        await asyncio.gather(*(distant.set(P, key, value) for key, value in numbered(20)))

        network.cut()
        await asyncio.sleep(self.notices_s)
        found = await asyncio.gather(*(value_of(distant, P, key) for key, _ in numbered(20)))
        network.cut()
        await asyncio.sleep(self.notices_s)
        await asyncio.gather(*(distant.set(P, key, b"new") for key, _ in numbered(20)))

        assert found == [value for _, value in numbered(20)]
        assert set((await read_all(distant, P)).values()) == {b"new"}

    async def test_a_database_that_is_away_for_a_moment_is_waited_for(
        self, distant: Store, network: FaultyNetwork
    ) -> None:
        await distant.set(P, b"a", b"1")
        network.refuse()
        await asyncio.sleep(self.notices_s)
        reading = asyncio.ensure_future(value_of(distant, P, b"a"))
        writing = asyncio.ensure_future(distant.set_if(P, b"b", b"2", None))
        await asyncio.sleep(0.2)
        assert not reading.done()
        assert not writing.done()

        network.heal()

        assert await reading == b"1"
        await writing
        assert await read_all(distant, P) == {b"a": b"1", b"b": b"2"}

    async def test_a_database_that_stays_away_is_an_error_and_nothing_happened(
        self, network: FaultyNetwork, uri_at: Callable[..., str], store: Store
    ) -> None:
        uri = uri_at(network.port, wait_s=0)
        distant = open_store(uri)
        await distant.set(P, b"a", b"1")
        network.refuse()
        await asyncio.sleep(self.notices_s)

        for attempt in (
            distant.get(P, b"a"),
            distant.scan(P, b"", 10),
            distant.set(P, b"a", b"2"),
            distant.set_if(P, b"b", b"2", None),
            distant.set_many(P, numbered(10)),
            distant.delete(P, b"a"),
        ):
            with pytest.raises(StoreUnavailable):
                await attempt
        with pytest.raises(StoreUnavailable):
            open_store(uri)

        assert await read_all(store, P) == {b"a": b"1"}
        await distant.close()

    async def test_slow_answers_are_waited_for(self, distant: Store, network: FaultyNetwork) -> None:
        network.delay_s = 0.1

        await asyncio.gather(*(distant.set(P, key, value) for key, value in numbered(5)))

        assert await read_all(distant, P) == dict(numbered(5))

    async def test_no_acknowledged_write_is_lost_or_done_twice_while_connections_break(
        self, distant: Store, network: FaultyNetwork
    ) -> None:
        """Each writer appends its marks to one value, and reads after a lost answer, as the callers of the port do.

        Connections break again only after a new mark, so that writers progress however long a client waits to
        reconnect.
        """
        has_written = asyncio.Event()

        async def append(writer: int) -> None:
            for number in range(16):
                mark = b"%d.%d " % (writer, number)
                while True:
                    found = await distant.get(P, b"marks")
                    if found is not None and mark in found.value:
                        break
                    value = mark if found is None else found.value + mark
                    try:
                        await distant.set_if(P, b"marks", value, None if found is None else found.predicate)
                    except (PredicateFailed, OutcomeUnknown):
                        continue
                    break
                has_written.set()

        async def disturb() -> None:
            rng = random.Random(5)
            while True:
                await has_written.wait()
                has_written.clear()
                await asyncio.sleep(rng.uniform(*self.cuts_s))
                network.cut()

        disturbing = asyncio.ensure_future(disturb())
        await asyncio.gather(*(append(writer) for writer in range(4)))
        disturbing.cancel()

        marks = (await held(distant, P, b"marks")).value.split()
        assert sorted(marks) == sorted(b"%d.%d" % (writer, number) for writer in range(4) for number in range(16))

    async def test_what_was_acknowledged_is_there_after_the_server_was_killed(
        self, store: Store, restart: Callable[[], None]
    ) -> None:
        acknowledged: list[bytes] = []
        is_busy = asyncio.Event()

        async def write(writer: int) -> None:
            for number in range(1_000_000):
                key = b"%d/%d" % (writer, number)
                await store.set_if(P, key, b"value", None)
                acknowledged.append(key)
                if len(acknowledged) == 100:
                    is_busy.set()

        writing = [asyncio.ensure_future(write(writer)) for writer in range(4)]
        busy = asyncio.ensure_future(is_busy.wait())
        await asyncio.wait([busy, *writing], return_when=asyncio.FIRST_COMPLETED)
        busy.cancel()
        restart()  # in this thread: a server may end with the thread that started it
        await asyncio.sleep(0.05)
        for each in writing:
            each.cancel()
        outcomes = await asyncio.gather(*writing, return_exceptions=True)

        expected = (OutcomeUnknown, StoreUnavailable, PredicateFailed, asyncio.CancelledError)
        assert [outcome for outcome in outcomes if not isinstance(outcome, expected)] == []
        assert set(acknowledged) <= (await read_all(store, P)).keys()
