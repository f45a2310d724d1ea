"""The simulated ports: Store, ObjectStore and World, each operation one effect (`effects.py`).

An actor gets a `SimPorts` of its own for each of its lives. What is in memory is the actor's alone: its clock, which
moves only when it sleeps, times out or is made to jump (no two clocks agree, and no flow may care); its fresh names,
which follow from seed, actor, life and a counter; its events. Everything that two actors share is on the disk. So
what an actor does next follows from the outcomes it was given, and from nothing else: the explorer rests on that.

A batch is carried out key by key, each a step of its own, in the order given; it is not atomic. With `whole_batches` it
is one step. A batch that fails on its way raises OutcomeUnknown, for some of it was done.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from typing import Any, Final, NoReturn, TypeVar

from explorer.disk import Disk
from explorer.effects import PAUSE, WRITES, Effect, Mark, Riders, effect
from explorer.operations import Operation, Operations
from lakebed.base import OutcomeUnknown, Ports
from lakebed.gc.messages import GC_PREFIX
from lakebed.kv import Held, Page, Predicate, PredicateFailed, StoreUnavailable, check_key
from lakebed.objectstore import (
    CHUNK_BYTES,
    Body,
    DeleteFailure,
    Level,
    ObjectExists,
    ObjectMissing,
    ObjectStat,
    ObjectStoreUnavailable,
    ShortBody,
    Stored,
)

from .files import file_of, holder_of, known_file, known_ranges, range_with

A = TypeVar("A")
T = TypeVar("T")

DAWN_MS = 1_800_000_000_000
"""What every clock shows at first."""


METARANGES: Final = "_lakefs/metaranges/"
RANGES: Final = "_lakefs/ranges/"
TREES: Final = "(trees)"
"""Among a scene's private keys: no tree is ever deleted, so reading one that was written is no step."""
REPORTS: Final = "(reports)"
LEVELS: Final = "(levels)"
"""Likewise: listings of the special folders, or of their levels, only go into reports, so they need not be made."""


class Private:
    """Files and records that no other actor looks at while a scene goes on: read and written without a step.

    A step that no other actor can notice commutes with every step of theirs. So it is enough to try the orders of the
    others, and to crash its actor before or after all of it: an ample set of one step. Whether it is so is for the
    scene to say (`Scene.private`).

    Files of runs reach the shared disk all the same: they ride on the actor's next step, so that what goes on with a
    run after a crash finds what the run had written by then. With `others_look` another actor may be at the same run:
    then only what this life wrote by a plain put is read without a step.
    """

    __slots__ = ("_disk", "_others_look", "_riders", "files", "keys")

    def __init__(self, keys: tuple[str, ...] = (), *, before: Disk | None = None, others_look: bool = False) -> None:
        self.keys = keys
        self._others_look = others_look
        self._disk = Disk()
        self._riders: dict[str, Effect] = {}
        self.files: dict[str, str] = {}
        """Digest of each object, in place of which its content need not be walked (memory.py)."""
        if before is not None and keys and not others_look:
            found = {key: held for key, held in before.objectstore.items() if key.startswith(keys)}
            self._disk.objectstore.update(found)
            for partition, cells in before.cells.items():
                mine = {key: value for key, value in cells.items() if key.startswith(tuple(map(str.encode, keys)))}
                if mine:
                    self._disk.cells[partition] = mine

    async def ask(self, key: str, what: Effect) -> Any:
        """Carry out an effect on this key: here if it is private, else as a step."""
        if not key.startswith(self.keys) or (self._others_look and not self._is_mine(key, what)):
            return await self.effect(what)
        raw = self._disk.apply(what)
        if what[0] in WRITES:
            held = self._disk.objectstore.get(key)
            self.files[key] = "" if held is None else hashlib.md5(held[0], usedforsecurity=False).hexdigest()
            if key.startswith(GC_PREFIX):
                self._riders[key] = what
        return raw

    def _is_mine(self, key: str, what: Effect) -> bool:
        if not key.startswith(GC_PREFIX):
            return True
        is_plain = what[0] == "put" and not what[4]
        return is_plain or (what[0] == "fetch" and self.files.get(key, "") != "")

    async def effect(self, what: Effect) -> Any:
        """Take a step, on which what was written here rides."""
        sent = dict(self._riders)
        raw = await effect((*what, Riders(sent.values())) if sent else what)
        # A request whose answer was lost may or may not have been done: what rode on it is sent again.
        if raw is not Mark.UNKNOWN and raw is not Mark.REFUSED:
            for key, rider in sent.items():
                if self._riders.get(key) is rider:
                    del self._riders[key]
        return raw

    async def settle(self) -> None:
        """Let what still waits for a step come to the disk."""
        if self._riders:
            await self.effect(("get", b"(nothing)", b""))

    def remembered(self) -> object:
        return self.files, self._disk.cells, sorted(self._riders)


class SimPorts:
    """Everything one life of one actor is given, and what it reports back."""

    def __init__(
        self, actor: str, *, seed: int = 0, life: int = 0, whole_batches: bool = False, own: Private | None = None
    ) -> None:
        self.actor = actor
        self.seed = seed
        self.life = life
        own = own or Private()
        self.store = SimStore(whole_batches=whole_batches, own=own)
        self.clock = SimClock()
        self.objectstore = SimObjectStore(self.clock, own)
        self.ids = SimIds(f"{seed}/{actor}/{life}", self.clock)
        self.tasks = SimTasks()
        self.ports = Ports(self.clock, self.ids, self.tasks)
        self.operations = Operations()
        self.disk: Disk | None = None
        """All of it, for programs that run alone."""

    async def pause(self) -> None:
        """Take a step that does nothing: others may act here."""
        await effect(PAUSE)

    async def act(self, operation: Operation, doing: Coroutine[Any, Any, T]) -> T | None:
        """Run one operation that checkers will hear of: when it began, when and how it ended. Its errors end here."""
        return await self.operations.run(operation, doing)


class SimClock:
    """One actor's clock."""

    __slots__ = ("ms",)

    def __init__(self) -> None:
        self.ms = DAWN_MS

    def now_ms(self) -> int:
        return self.ms

    async def sleep(self, seconds: float) -> None:
        if not seconds:
            return  # A server answers others there. Here they may act before and after every step anyway.
        await effect(("sleep", round(seconds * 1000)))


def set_ahead(ports: Ports, ms: int) -> None:
    """Set this actor's clock ahead, or, by a negative number, back."""
    assert isinstance(ports.clock, SimClock)
    ports.clock.ms += ms


class SimIds:
    """Make names that no one else gets: 9 digits of the clock, 11 of a hash of who asks and how often it has."""

    __slots__ = ("_clock", "_count", "_who")

    def __init__(self, who: str, clock: SimClock) -> None:
        self._who = who
        self._clock = clock
        self._count = 0

    def fresh(self) -> str:
        number = self._clock.ms % (1 << 45) << 55 | self.bits(55)
        return "".join(_DIGITS[number >> shift & 31] for shift in range(95, -5, -5))

    def bits(self, count: int) -> int:
        self._count += 1
        digest = hashlib.blake2b(f"{self._who}/{self._count}".encode(), digest_size=count + 7 >> 3).digest()
        return int.from_bytes(digest, "big") & ((1 << count) - 1)


_DIGITS = "0123456789abcdefghijklmnopqrstuv"


class SimEvent:
    __slots__ = ("_is_set", "number")

    def __init__(self, number: int) -> None:
        self.number = number
        self._is_set = False

    def set(self) -> None:
        self._is_set = True

    def is_set(self) -> bool:
        return self._is_set

    async def wait(self, timeout_s: float | None = None) -> bool:
        if self._is_set:
            return True
        timeout_ms = None if timeout_s is None else round(timeout_s * 1000)
        return bool(await effect(("wait", self.number, timeout_ms)))


class SimTasks:
    """Strands of one actor. `gather` is no step: what the strands do is."""

    __slots__ = ("events",)

    def __init__(self) -> None:
        self.events: list[SimEvent] = []

    def event(self) -> SimEvent:
        event = SimEvent(len(self.events))
        self.events.append(event)
        return event

    async def gather(self, awaitables: Sequence[Awaitable[T]]) -> list[T]:
        if not awaitables:
            return []
        outcomes = await effect(("gather", tuple(_coroutine(awaitable) for awaitable in awaitables)))
        for error, _ in outcomes:
            if error is not None:
                raise error
        return [value for _, value in outcomes]

    async def ahead(
        self, items: Sequence[A], read: Callable[[A], Awaitable[T]], *, most: int = 16
    ) -> AsyncIterator[tuple[A, T]]:
        """Read one at a time: reads of one actor do not race with each other, and the order between them is free."""
        assert most > 0, most
        for item in items:
            yield item, await read(item)

    async def apart(self, work: Callable[[], T], *, is_short: bool = False) -> T:
        """No step: it touches nothing that others can see."""
        del is_short
        return work()


async def _coroutine(awaitable: Awaitable[T]) -> T:
    return await awaitable


class SimStore:
    """`answers_late`: what a `get` read may be old when it arrives, which matters to callers that share the answer.
    `beneath`: what all its partitions begin with on the disk, so that it is a store of its own.
    """

    __slots__ = ("_beneath", "_whole_batches", "answers_late", "own")

    shares_reads = False

    def __init__(self, *, whole_batches: bool = False, own: Private, beneath: bytes = b"") -> None:
        self._whole_batches = whole_batches
        self._beneath = beneath
        self.own = own
        self.answers_late = False

    async def get(self, partition: bytes, key: bytes) -> Held | None:
        raw = await self.own.ask(key.decode(), ("get", self._beneath + partition, key))
        if self.answers_late:
            await effect(PAUSE)
        if raw is None:
            return None
        if raw is Mark.REFUSED:
            _refuse()
        return Held(*raw)

    async def get_many(self, partition: bytes, keys: Sequence[bytes]) -> list[Held | None]:
        if not self._whole_batches or len(keys) == 1:
            return [await self.get(partition, key) for key in keys]
        raw = await self.own.effect(("get_many", self._beneath + partition, tuple(keys))) if keys else ()
        if raw is Mark.REFUSED:
            _refuse()
        return [None if one is None else Held(*one) for one in raw]

    async def scan(self, partition: bytes, start: bytes, limit: int) -> Page:
        assert limit >= 1, limit
        raw = await self.own.effect(("scan", self._beneath + partition, start, limit))
        if raw is Mark.REFUSED:
            _refuse()
        keys, values, next_start = raw
        return Page(list(keys), list(values), next_start)

    async def set(self, partition: bytes, key: bytes, value: bytes) -> None:
        check_key(partition, key)
        _written(await self.own.effect(("set", self._beneath + partition, key, value)))

    async def set_many(self, partition: bytes, items: Sequence[tuple[bytes, bytes]]) -> None:
        for key, _ in items:
            check_key(partition, key)
        if not self._whole_batches:
            await _each(items, lambda item: self.set(partition, *item))
        elif items:
            _written(await self.own.effect(("set_many", self._beneath + partition, tuple(items))))

    async def set_if(self, partition: bytes, key: bytes, value: bytes, predicate: Predicate | None) -> Predicate:
        check_key(partition, key)
        raw = _written(await self.own.ask(key.decode(), ("set_if", self._beneath + partition, key, value, predicate)))
        if raw is Mark.FAILED:
            raise PredicateFailed("the stored value is another")
        assert isinstance(raw, bytes | int)
        return raw

    async def delete(self, partition: bytes, key: bytes) -> None:
        _written(await self.own.effect(("delete", self._beneath + partition, key)))

    async def delete_many(self, partition: bytes, keys: Sequence[bytes]) -> None:
        if not self._whole_batches:
            await _each(keys, lambda key: self.delete(partition, key))
        elif keys:
            _written(await self.own.effect(("delete_many", self._beneath + partition, tuple(keys))))

    async def delete_if(self, partition: bytes, key: bytes, predicate: Predicate) -> None:
        if _written(await self.own.effect(("delete_if", self._beneath + partition, key, predicate))) is Mark.FAILED:
            raise PredicateFailed("the stored value is another, or gone")

    async def close(self) -> None:
        return


async def _each(items: Sequence[T], write: Callable[[T], Awaitable[None]]) -> None:
    for number, item in enumerate(items):
        try:
            await write(item)
        except StoreUnavailable as error:
            if number:
                raise OutcomeUnknown("some keys of the batch were written") from error
            raise


def _written(raw: Any) -> Any:
    if raw is Mark.UNKNOWN:
        raise OutcomeUnknown("the answer was lost")
    if raw is Mark.REFUSED:
        _refuse()
    return raw


def _refuse() -> NoReturn:
    raise StoreUnavailable("the simulated store refused")


class SimObjectStore:
    """A put is durable at one step; its body is drawn before that. A listing shows `list_page` keys a step."""

    __slots__ = ("_clock", "has_ranges", "list_page", "own")

    uri = "sim://namespace"

    def __init__(self, clock: SimClock, own: Private) -> None:
        self._clock = clock
        self.own = own
        self.list_page = 1000
        self.has_ranges = False
        """Whether ranges of simulated trees are files (files.py)."""

    async def _ask(self, key: str, what: Effect) -> Any:
        return _objectstore(await self.own.ask(key, what))

    async def put(self, key: str, body: Body, *, size_bytes: int | None = None, if_absent: bool = False) -> Stored:
        data = body if isinstance(body, bytes) else b"".join([chunk async for chunk in body])
        if size_bytes is not None and size_bytes != len(data):
            raise ShortBody(f"declared {size_bytes} bytes, got {len(data)}")
        await self.put_value(key, data, len(data), if_absent=if_absent)
        return Stored(size_bytes=len(data), md5=hashlib.md5(data, usedforsecurity=False).hexdigest())

    async def put_value(self, key: str, content: object, size_bytes: int, *, if_absent: bool = False) -> None:
        """Store any hashable value, unencoded: what `SimTrees` does."""
        if await self._ask(key, ("put", key, content, size_bytes, if_absent, self._clock.ms)) is Mark.EXISTS:
            raise ObjectExists("key is taken", key=key)

    async def get_value(self, key: str) -> Any:
        return _found(key, await self._ask(key, ("fetch", key)))

    async def get(self, key: str, *, start: int = 0, end: int | None = None) -> bytes:
        """Also of a simulated tree, as the bytes of its files."""
        if TREES in self.own.keys and (known := known_file(key)) is not None:
            return known[start:end]
        holder = key if self.has_ranges else holder_of(key)
        return file_of(await self.get_value(holder), key)[start:end]

    async def stream(self, key: str, *, start: int = 0, end: int | None = None) -> AsyncIterator[bytes]:
        data = await self.get(key, start=start, end=end)
        for position in range(0, len(data), CHUNK_BYTES):
            yield data[position : position + CHUNK_BYTES]

    async def stat(self, key: str) -> ObjectStat:
        raw = _found(key, await self._ask(key, ("stat", key)))
        return ObjectStat(key=raw[0], size_bytes=raw[1], modified_ms=raw[2])

    async def list(self, prefix: str = "", *, start_after: str = "") -> AsyncIterator[Sequence[ObjectStat]]:
        if prefix == "_lakefs/" and REPORTS in self.own.keys:
            return
        if len(prefix) > len(RANGES) and prefix.startswith(RANGES) and not self.has_ranges:
            # As a restore asks for the range of a plan. It comes with its metarange.
            if TREES in self.own.keys:
                yield [ObjectStat(key=key, size_bytes=0, modified_ms=0) for key in known_ranges(prefix)]
                return
            async for stats in self.list(METARANGES):
                ranges = [range_with(stat.key) for stat in stats]
                yield [ObjectStat(key=key, size_bytes=0, modified_ms=0) for key in ranges if key.startswith(prefix)]
            return
        page = None
        while page is None or len(page) == self.list_page:
            page = await self._ask(prefix, ("list", prefix, start_after, self.list_page))
            if page:
                yield [ObjectStat(key=key, size_bytes=size, modified_ms=modified) for key, size, modified in page]
                start_after = page[-1][0]

    async def level(self, folder: str = "") -> Level:
        if LEVELS in self.own.keys:
            return Level(keys=[], folders=[])
        below = [stat.key[len(folder) :] async for page in self.list(folder) for stat in page]
        folders = dict.fromkeys(f"{folder}{key[: key.index('/') + 1]}" for key in below if "/" in key)
        return Level(keys=[folder + key for key in below if "/" not in key], folders=[*folders])

    async def copy(self, source: str, target: str) -> None:
        _found(source, await self._ask(source, ("copy", source, target, self._clock.ms)))

    async def presign_get(self, key: str, *, expires_s: int, file_name: str = "") -> str | None:
        return f"{self.uri}/{key}?get={file_name}&expires={expires_s}"

    async def presign_put(self, key: str, *, expires_s: int) -> str | None:
        return f"{self.uri}/{key}?put&expires={expires_s}"

    async def close(self) -> None:
        return


class SimDeleter:
    """Deletes from the simulated object store of whichever actor runs, one key a step."""

    __slots__ = ("own",)

    uri = SimObjectStore.uri

    def __init__(self, own: Private | None = None) -> None:
        self.own = own or Private()

    async def delete(self, keys: Sequence[str]) -> Sequence[DeleteFailure]:
        for key in keys:
            _objectstore(await self.own.ask(key, ("erase", (key,))))
        return []

    async def close(self) -> None:
        return


def _objectstore(raw: Any) -> Any:
    if raw is Mark.REFUSED:
        raise ObjectStoreUnavailable("the simulated object store refused")
    return raw


def _found(key: str, raw: Any) -> Any:
    if raw is Mark.MISSING:
        raise ObjectMissing("no such object", key=key)
    return raw
