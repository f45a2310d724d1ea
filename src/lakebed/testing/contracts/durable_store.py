"""Checks for a Store driver whose data outlive the process, and that several processes share."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from typing import ClassVar

import pytest

from lakebed.kv import Store, open_store

from .processes import COUNTER, PARTITION, PROGRAM, key_of, value_of
from .store import P, StoreContract, numbered, read_all, successes
from .store import value_of as stored_value


class DurableStoreContract(StoreContract):
    """Override `store_uri`: an empty store, new for each test, that other processes of this machine can open too."""

    imported_first: ClassVar[Sequence[str]] = ()
    """Modules that other processes must import, if one of them registers the driver."""

    @pytest.fixture
    async def second(self, store_uri: str) -> AsyncIterator[Store]:
        """Open the store of the fixture `store` once more."""
        second = open_store(store_uri)
        yield second
        await second.close()

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        imports = [argument for module in self.imported_first for argument in ("--import", module)]
        command = [sys.executable, "-c", PROGRAM, *imports, *arguments]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)  # noqa: S603 - our own program

    async def test_what_was_written_is_there_after_reopening(self, store: Store, store_uri: str) -> None:
        items = numbered(100)
        await store.set_many(P, items)
        await store.delete_many(P, [key for key, _ in items[:50]])
        predicate = await store.set_if(b"other", b"key", b"1", None)
        await store.set_if(b"other", b"key", b"", predicate)
        await store.close()

        again = open_store(store_uri)

        assert await read_all(again, P) == dict(items[50:])
        assert await read_all(again, b"other") == {b"key": b""}
        await again.close()

    async def test_closing_waits_for_what_is_being_written(self, store: Store, store_uri: str) -> None:
        items = numbered(100)
        await store.set(P, items[0][0], b"earlier")  # a store that was idle once waits too
        writes = [asyncio.ensure_future(store.set(P, key, value)) for key, value in items]
        await asyncio.sleep(0)

        await store.close()
        await asyncio.gather(*writes)

        again = open_store(store_uri)
        assert await read_all(again, P) == dict(items)
        await again.close()

    async def test_two_openings_see_each_others_writes_at_once(self, store: Store, second: Store) -> None:
        for number in range(20):
            writer, reader = (store, second) if number % 2 else (second, store)
            await writer.set(P, b"key", b"%d" % number)

            assert await stored_value(reader, P, b"key") == b"%d" % number
            assert (await reader.scan(P, b"", 10)).values == [b"%d" % number]

    async def test_between_two_openings_one_write_wins(self, store: Store, second: Store) -> None:
        for number in range(10):
            key = b"key %d" % number
            writers = [opening.set_if(P, key, b"%d" % id(opening), None) for opening in (store, second) * 8]

            outcomes = await asyncio.gather(*writers, return_exceptions=True)

            assert successes(outcomes) == 1

    async def test_processes_that_open_it_at_the_same_moment_lose_no_increment(self, store_uri: str) -> None:
        processes = [self.start("increment", store_uri, str(self.increments)) for _ in range(4)]

        codes = [await asyncio.to_thread(process.wait) for process in processes]

        for process in processes:
            process.communicate()
        store = open_store(store_uri)
        assert codes == [0, 0, 0, 0]
        assert await stored_value(store, PARTITION, COUNTER) == b"%d" % (4 * self.increments)
        await store.close()

    async def test_what_was_acknowledged_is_there_after_kill_9(self, store: Store, store_uri: str) -> None:
        await store.close()
        process = self.start("acknowledge", store_uri)
        assert process.stdout is not None
        acknowledged = [int(process.stdout.readline()) for _ in range(200)]

        process.send_signal(signal.SIGKILL)
        rest = process.communicate()[0].split("\n")

        acknowledged += [int(line) for line in rest[:-1]]  # the kill may have cut the last line
        reopened = open_store(store_uri)
        found = await read_all(reopened, PARTITION)
        await reopened.set(PARTITION, b"key", b"it can still be written")
        await reopened.close()
        assert process.returncode == -signal.SIGKILL
        assert {key_of(number): value_of(number) for number in acknowledged}.items() <= found.items()
        assert len(found) <= len(acknowledged) + 2 * 8  # a group that was committed, and one whose lines were not read
