"""Make a Store of a database on a network. Its drivers share this module by composition.

- A driver writes a `Database`: one attempt of each operation, and a true report of its outcome.
- `RemoteStore` does the rest: it checks keys, cuts batches into pieces, waits out short failures, and closes in order.
- It repeats an attempt only after `Passing`: nothing happened. It never repeats a write whose answer was lost: the
  repetition might overwrite a later write of another writer. The caller gets OutcomeUnknown, and reads.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Final, Protocol, TypeAlias, TypeVar, runtime_checkable

from lakebed.base import OutcomeUnknown
from lakebed.kv.opening import StoreUri
from lakebed.kv.store import Held, Page, Predicate, PredicateFailed, StoreFormat, StoreUnavailable, check_key

from .gathered import Gathered, copied

A = TypeVar("A")
R = TypeVar("R")
T = TypeVar("T")
D = TypeVar("D", bound="Database")

WAIT_S: Final = 10.0
"""Wait this long for a database that restarts, fails over or throttles, unless the URI sets `wait_s`."""

PAUSE_S: Final = 0.02
PAUSE_S_MAX: Final = 1.0

SCAN_ROWS_MAX: Final = 1024
"""Rows of one attempt. A larger page needs several attempts, so that no answer of the database is huge."""


class Passing(StoreUnavailable):
    """Nothing happened, and the cause may pass by itself: try again."""


class Database(Protocol):
    """One attempt of each operation. Keys are checked; no list is empty, longer than a batch, or has repeats.

    Raises:
        Passing: nothing happened, and the same call may succeed in a moment.
        StoreUnavailable: nothing happened, and an immediate repetition does not help.
        OutcomeUnknown: the answer was lost. A read that raises it is repeated.
    """

    batch_keys_max: int
    batch_bytes_max: int
    """Values of a batch may exceed this only where the batch has one key."""
    batches_at_once: int
    reads_together: bool
    """A read of several keys is one request, and costs little more than a read of one key."""

    async def prepare(self) -> None:
        """Refuse settings that would lose writes, and make the store's tables or marks in the database.

        Runs once, before everything else, on an event loop of its own. Leaves no connection open.
        """
        ...

    async def read(self, partition: bytes, keys: Sequence[bytes]) -> dict[bytes, Held]: ...

    async def scan(self, partition: bytes, start: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """Read `limit` pairs from `start` on, in byte order. Returns fewer only at the end of the partition."""
        ...

    async def write(self, partition: bytes, items: Sequence[tuple[bytes, bytes]]) -> None: ...

    async def write_if(
        self, partition: bytes, key: bytes, value: bytes, expected: Predicate | None
    ) -> Predicate | None:
        """Return the new predicate, or None where the stored value is not the expected one."""
        ...

    async def remove(self, partition: bytes, keys: Sequence[bytes]) -> None: ...

    async def remove_if(self, partition: bytes, key: bytes, expected: Predicate) -> bool:
        """Return False where the stored value is not the expected one."""
        ...

    async def partitions(self) -> list[bytes]:
        """Read the names of all partitions that have a key, in any order."""
        ...

    async def close(self) -> None: ...


Place: TypeAlias = tuple[bytes, bytes]
"""A partition and a key."""

SetIf: TypeAlias = tuple[bytes, bytes, bytes, Predicate | None]
"""A partition, a key, its new value, and the predicate that `write_if` expects."""


@runtime_checkable
class ReadsPlaces(Protocol):
    """A database that reads keys of several partitions in one request."""

    async def read_places(self, places: Sequence[Place]) -> Mapping[Place, Held | Passing]:
        """Read the places.

        A result of `Passing` means that this place was not read; an error raised concerns all places.
        """
        ...


@runtime_checkable
class WritesTogether(Protocol):
    """A database that carries out several conditional writes in one request."""

    async def write_ifs(self, asked: Sequence[SetIf]) -> Sequence[Predicate | Exception | None]:
        """Do as `write_if` for each, in any order. No place is repeated; the values fit into a batch.

        An exception in the result concerns its own write. An exception raised concerns all writes.
        """
        ...


def open_database(made_from: Callable[[StoreUri, float], Database], uri: StoreUri) -> RemoteStore:
    """Prepare the database and return its store. Blocks; an event loop may run in the calling thread.

    Raises:
        StoreUnavailable: the database cannot be reached within `wait_s`, or one of its settings would lose writes.
        StoreFormat: the database is of another program, or of another format.
    """
    wait_s = uri.seconds("wait_s", WAIT_S)
    database = made_from(uri, wait_s)
    deadline = time.monotonic() + wait_s
    run_apart(lambda: repeated(harmless(database.prepare), deadline))
    return RemoteStore(database, name=uri.scheme, wait_s=wait_s)


def partitions_of(made_from: Callable[[StoreUri, float], Database], uri: StoreUri) -> list[bytes]:
    """List the partitions of a database that no store has opened. Blocks, and waits out short failures."""
    wait_s = uri.seconds("wait_s", WAIT_S)
    database = made_from(uri, wait_s)

    async def listed() -> list[bytes]:
        try:
            return sorted(await repeated(harmless(database.partitions), time.monotonic() + wait_s))
        finally:
            await database.close()

    return run_apart(listed)


def answer_of(uri: StoreUri, made_from: Callable[[StoreUri, float], D], ask: Callable[[D], Awaitable[T]]) -> T:
    """Ask a database that no store has opened, once. Blocks."""
    database = made_from(uri, uri.seconds("wait_s", WAIT_S))

    async def asked() -> T:
        try:
            return await ask(database)
        finally:
            await database.close()

    return run_apart(asked)


def run_apart(work: Callable[[], Awaitable[T]]) -> T:
    """Run the work on its own event loop and thread, and wait for it: the calling thread may run a loop already."""

    async def run() -> T:
        return await work()

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(lambda: asyncio.run(run())).result()


async def repeated(attempt: Callable[[], Awaitable[T]], deadline: float) -> T:
    """Repeat an attempt that raises `Passing` until the deadline, in seconds of the monotonic clock.

    The pauses double, and chance spreads the callers.
    """
    pause_s = PAUSE_S
    while True:
        try:
            return await attempt()
        except Passing:
            if time.monotonic() + pause_s >= deadline:
                raise
        await asyncio.sleep(pause_s * random.uniform(0.5, 1))  # noqa: S311 - keeps no secret
        pause_s = min(2 * pause_s, PAUSE_S_MAX)


async def take_turn(free: asyncio.Semaphore, timeout_s: float) -> None:
    """Wait until a connection is free.

    Raises:
        TimeoutError: no connection was free within the time.
    """
    if not free.locked():  # mostly this costs nothing
        await free.acquire()
        return
    async with asyncio.timeout(timeout_s):
        await free.acquire()


def harmless(attempt: Callable[[], Awaitable[T]]) -> Callable[[], Awaitable[T]]:
    """Translate a lost answer into `Passing`, for an attempt that changes no data of other writers."""

    async def tried() -> T:
        try:
            return await attempt()
        except OutcomeUnknown as error:
            raise Passing(str(error), **error.facts) from error

    return tried


async def answers_of_each(
    asked: Sequence[A], read: Callable[[], Awaitable[Mapping[A, R]]], read_alone: Callable[[A], Awaitable[R | None]]
) -> Mapping[A, R | Exception | None]:
    """Read all keys at once. If the read fails, read each key alone: perhaps only one is refused or damaged."""
    try:
        return await read()
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the callers'
        if len(asked) == 1 or isinstance(error, Passing):
            return dict.fromkeys(asked, error)
        alone = await asyncio.gather(*(_outcome(read_alone(one)) for one in asked))
        return dict(zip(asked, alone, strict=True))


async def _outcome(work: Awaitable[T]) -> T | Exception:
    """Return the error instead of raising it: other work that is awaited together continues, with its own outcome."""
    try:
        return await work
    except Exception as error:  # noqa: BLE001 - whatever it is, it is its caller's
        return error


class RemoteStore:
    """The Store of a `Database`, made by `open_database`. Its connections belong to the event loop that first uses
    it.
    """

    def __init__(self, database: Database, *, name: str, wait_s: float) -> None:
        self._database = database
        self._name = name
        self._wait_s = wait_s
        self._is_closed = False
        self._under_way = 0
        self._idle = asyncio.Event()
        self.shares_reads = database.reads_together
        # An isinstance check with a Protocol costs more than the rest of a call.
        self._reads_places = database if isinstance(database, ReadsPlaces) else None
        self._writes_together = database if isinstance(database, WritesTogether) else None
        self._gets = Gathered(self._get_together, database.batch_keys_max, equal_share=True)
        self._set_ifs = Gathered(self._set_if_together, database.batch_keys_max)

    async def get(self, partition: bytes, key: bytes) -> Held | None:
        place = (partition, key)
        with self._counted():
            if self._database.reads_together:
                return await self._waited(lambda: self._gets.do(place))
            return await self._waited(lambda: self._get_alone(place))

    async def _get_alone(self, place: Place) -> Held | None:
        partition, key = place
        return (await harmless(lambda: self._database.read(partition, (key,)))()).get(key)

    async def _get_together(self, places: Sequence[Place]) -> Sequence[Held | Exception | None]:
        """Attempt the reads once. Each caller repeats its own read, so that no caller waits for repetitions of
        another.
        """
        if len(places) == 1:
            return [await _outcome(self._get_alone(places[0]))]
        found: dict[Place, Held | Exception | None] = {}
        if self._reads_places is not None:
            await self._get_some(list(dict.fromkeys(places)), self._reads_places.read_places, found)
        else:
            by_partition: dict[bytes, list[Place]] = {}
            for place in dict.fromkeys(places):
                by_partition.setdefault(place[0], []).append(place)
            await asyncio.gather(
                *(self._get_some(some, self._read_of_partition, found) for some in by_partition.values())
            )
        return [copied(held) if isinstance(held := found.get(place), Exception) else held for place in places]

    async def _get_some(
        self,
        places: Sequence[Place],
        read: Callable[[Sequence[Place]], Awaitable[Mapping[Place, Held | Passing]]],
        found: dict[Place, Held | Exception | None],
    ) -> None:
        """Read places and put each value or failure into `found`."""
        found.update(await answers_of_each(places, harmless(lambda: read(places)), self._get_alone))

    async def _read_of_partition(self, places: Sequence[Place]) -> dict[Place, Held]:
        partition = places[0][0]
        found = await self._database.read(partition, [key for _, key in places])
        return {(partition, key): held for key, held in found.items()}

    async def get_many(self, partition: bytes, keys: Sequence[bytes]) -> list[Held | None]:
        found: dict[bytes, Held] = {}
        distinct = list(dict.fromkeys(keys))
        self._check_open()
        for first in range(0, len(distinct), self._database.batch_keys_max):
            batch = distinct[first : first + self._database.batch_keys_max]
            found |= await self._read(lambda batch=batch: self._database.read(partition, batch))  # type: ignore[misc]  # mypy cannot infer a lambda with a default
        return [found.get(key) for key in keys]

    async def scan(self, partition: bytes, start: bytes, limit: int) -> Page:
        """Read one row more than `limit`: it shows whether there is another page, and where it begins."""
        assert limit >= 1
        rows: list[tuple[bytes, bytes]] = []
        while (wanted := min(limit + 1 - len(rows), SCAN_ROWS_MAX)) > 0:
            begin = rows[-1][0] + b"\0" if rows else start
            more = await self._read(lambda begin=begin, wanted=wanted: self._database.scan(partition, begin, wanted))  # type: ignore[misc]  # as above
            rows += more
            if len(more) < wanted:
                break
        next_start = rows.pop()[0] if len(rows) > limit else None
        return Page([row[0] for row in rows], [row[1] for row in rows], next_start)

    async def set(self, partition: bytes, key: bytes, value: bytes) -> None:
        check_key(partition, key)
        await self._write(lambda: self._database.write(partition, ((key, value),)))

    async def set_many(self, partition: bytes, items: Sequence[tuple[bytes, bytes]]) -> None:
        """Set the keys in batches that the database takes at once. Other writes may occur between batches."""
        for key, _ in items:
            check_key(partition, key)
        latest = dict(items)
        # Sorted, so that two batches with common keys lock them in the same order.
        pieces = list(self._batches([(key, latest[key]) for key in sorted(latest)]))
        await self._write_pieces([lambda piece=piece: self._database.write(partition, piece) for piece in pieces])  # type: ignore[misc]  # as above

    async def set_if(self, partition: bytes, key: bytes, value: bytes, predicate: Predicate | None) -> Predicate:
        check_key(partition, key)
        with self._counted():
            if self._writes_together is not None:
                written = await self._waited(lambda: self._set_ifs.do((partition, key, value, predicate)))
            else:
                written = await self._waited(lambda: self._database.write_if(partition, key, value, predicate))
        if written is None:
            raise PredicateFailed("the stored value is not the one that was read", partition=partition, key=key)
        return written

    async def _set_if_together(self, asked: Sequence[SetIf]) -> Sequence[Predicate | Exception | None]:
        """Attempt each write once, in concurrent batches without repeated places. Return the outcomes in their order.

        Each caller repeats its own write, so that no caller waits for repetitions of another.
        """
        if len(asked) == 1:
            return await self._set_if_batch(asked)
        batches: list[dict[Place, SetIf]] = []
        sizes: list[int] = []
        chosen: list[int] = []
        for one in asked:
            partition, key, value, _ = one
            size_bytes = len(value)
            for number, batch in enumerate(batches):
                if (partition, key) not in batch and sizes[number] + size_bytes <= self._database.batch_bytes_max:
                    break
            else:
                number = len(batches)
                batches.append({})
                sizes.append(0)
            batches[number][partition, key] = one
            sizes[number] += size_bytes
            chosen.append(number)
        if len(batches) == 1:
            return await self._set_if_batch(asked)
        found = await asyncio.gather(*(self._set_if_batch(list(batch.values())) for batch in batches))
        answers = [dict(zip(batch, some, strict=True)) for batch, some in zip(batches, found, strict=True)]
        return [answers[number][one[:2]] for number, one in zip(chosen, asked, strict=True)]

    async def _set_if_batch(self, batch: Sequence[SetIf]) -> Sequence[Predicate | Exception | None]:
        database = self._database
        assert self._writes_together is not None
        if len(batch) == 1:
            return [await _outcome(database.write_if(*batch[0]))]
        try:
            return await self._writes_together.write_ifs(batch)
        except (Passing, OutcomeUnknown) as error:
            return [copied(error) for _ in batch]
        except (StoreUnavailable, StoreFormat):
            pass  # nothing happened, perhaps because of one write: try each alone
        except Exception as error:  # noqa: BLE001 - the writes of other batches go on
            return [copied(error) for _ in batch]
        return await asyncio.gather(*(_outcome(database.write_if(*one)) for one in batch))

    async def delete(self, partition: bytes, key: bytes) -> None:
        check_key(partition, key)
        await self._write(lambda: self._database.remove(partition, (key,)))

    async def delete_many(self, partition: bytes, keys: Sequence[bytes]) -> None:
        """Delete the keys, in batches as `set_many` does."""
        for key in keys:
            check_key(partition, key)
        ordered, size = sorted(set(keys)), self._database.batch_keys_max
        pieces = [ordered[first : first + size] for first in range(0, len(ordered), size)]
        await self._write_pieces([lambda piece=piece: self._database.remove(partition, piece) for piece in pieces])  # type: ignore[misc]  # as above

    async def delete_if(self, partition: bytes, key: bytes, predicate: Predicate) -> None:
        check_key(partition, key)
        assert predicate is not None
        if not await self._write(lambda: self._database.remove_if(partition, key, predicate)):
            raise PredicateFailed("the stored value is not the one that was read", partition=partition, key=key)

    async def close(self) -> None:
        """Refuse new calls, wait for calls under way, then close the connections. Closing twice is no error."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._under_way:
            await self._idle.wait()
        # Work of a cancelled caller may still be under way.
        await asyncio.gather(self._gets.ended(), self._set_ifs.ended())
        await self._database.close()

    def _check_open(self) -> None:
        if self._is_closed:
            raise StoreUnavailable(f"{self._name}: this store is closed")

    @contextmanager
    def _counted(self) -> Iterator[None]:
        self._check_open()
        self._under_way += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._idle.set()

    async def _read(self, attempt: Callable[[], Awaitable[T]]) -> T:
        return await self._write(harmless(attempt))

    async def _write(self, attempt: Callable[[], Awaitable[T]]) -> T:
        with self._counted():
            return await self._waited(attempt)

    async def _waited(self, attempt: Callable[[], Awaitable[T]]) -> T:
        return await repeated(attempt, time.monotonic() + self._wait_s)

    async def _write_pieces(self, pieces: Sequence[Callable[[], Awaitable[None]]]) -> None:
        """Carry out all pieces, some at once. After a failure no further piece begins.

        Raises:
            OutcomeUnknown: a piece failed, and another was or may have been carried out.
        """
        self._check_open()
        ahead, failures, done = iter(pieces), list[Exception](), 0

        async def work() -> None:
            nonlocal done
            for piece in ahead:
                if failures:
                    return
                try:
                    await self._write(piece)
                    done += 1
                except (StoreUnavailable, OutcomeUnknown) as error:
                    failures.append(error)

        await asyncio.gather(*(work() for _ in range(min(len(pieces), self._database.batches_at_once))))
        for error in failures:
            if done or not all(isinstance(each, StoreUnavailable) for each in failures):
                raise OutcomeUnknown(f"only {done} of {len(pieces)} batches are known to be done: {error}") from error
            raise error

    def _batches(self, items: Sequence[tuple[bytes, bytes]]) -> Iterator[Sequence[tuple[bytes, bytes]]]:
        first = size_bytes = 0
        for position, (_, value) in enumerate(items):
            is_full = position - first == self._database.batch_keys_max
            if position > first and (is_full or size_bytes + len(value) > self._database.batch_bytes_max):
                yield items[first:position]
                first, size_bytes = position, 0
            size_bytes += len(value)
        if items:
            yield items[first:]
