"""Quotas: writers of several processes beside one another, beside counts, and beside a process that holds them dead.

Each write reserves its bytes, puts an object and ends, with the shipped meter. The clock of the late process is far
ahead: to it, every grant is of a dead process.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Final

from explorer.actors import BLOCKS, Actor, Check, Ending, Violation
from explorer.disk import Disk
from explorer.operations import Operation
from lakebed.base import Invalid, RepositoryUid
from lakebed.quotas import Books, Meter, QuotaExceeded, QuotaRecord, of_repository
from lakebed.quotas.meter import DEAD_MS, GRANT_SHARE
from lakebed.versions import decode_record
from sim.ports.ports import SimPorts
from sim.ports.scene import Program, Quick, Scene

from .repositories import acting

LIMIT: Final = 4 * GRANT_SHARE
EXTRA: Final = LIMIT // GRANT_SHARE
"""The bytes that a process gets beside those that it asks for."""
SIZE: Final = 1_500
UID: Final = RepositoryUid("quota")
SCOPE: Final = of_repository(UID)
FOLDER: Final = "data/s/"


async def _prepare(ports: SimPorts) -> None:
    await Books(Meter(ports.store, ports.ports)).set(SCOPE, limit_bytes=LIMIT, by="sim")


async def _write(ports: SimPorts, meter: Meter, name: str, size_bytes: int, *, fails: bool) -> None:
    with await meter.reserve([SCOPE], size_bytes):
        if fails:
            await ports.pause()
            raise Invalid("the body was short")
        await ports.objectstore.put_value(f"{FOLDER}{name}", name, size_bytes)


def _writes(*sizes: int, at_once: bool = False, settles: bool = False, late: bool = False) -> Program:
    """Write so many bytes each, one after another or at once. A negative number: such a write fails."""

    async def program(ports: SimPorts) -> None:
        ports.clock.ms += 2 * DEAD_MS if late else 0
        meter = Meter(ports.store, ports.ports)

        async def write(number: int, size: int) -> None:
            name = f"{ports.actor}{ports.life}{number}"
            operation = Operation(name, "fail" if size < 0 else "write", value=abs(size))
            await ports.operations.run(operation, _write(ports, meter, name, abs(size), fails=size < 0))

        async def settle() -> None:
            await ports.pause()
            await meter.settle(is_stopping=True)

        if at_once:
            # Upkeep settles meanwhile.
            await ports.tasks.gather([*(write(*one) for one in enumerate(sizes)), *([settle()] if settles else [])])
        else:
            for one in enumerate(sizes):
                await write(*one)
        await meter.settle(is_stopping=True)

    return program


async def _counted(ports: SimPorts) -> None:
    async def measure(go_on: Callable[[], Awaitable[None]]) -> int:
        await go_on()
        return sum([stat.size_bytes async for page in ports.objectstore.list(FOLDER) for stat in page])

    await Books(Meter(ports.store, ports.ports)).count(SCOPE, measure)


async def _tidy(ports: SimPorts) -> None:
    """Long after all ended: what a crash left is counted again, and another process writes."""
    ports.clock.ms += 4 * DEAD_MS
    await _counted(ports)
    await _writes(0)(ports)


# Checks


def _record(disk: Disk) -> QuotaRecord:
    value = disk.value(SCOPE.partition, SCOPE.key)
    assert value is not None
    return decode_record(QuotaRecord, value)


def _stored(disk: Disk) -> int:
    return sum(int(stored[1]) for key, stored in disk.objectstore.items() if key.startswith(FOLDER))


def what_is_stored_was_admitted(disk: Disk, partition: bytes, key: bytes, _: bytes | None, __: bytes | None) -> None:
    """Check at each step that the record covers what is stored."""
    if (partition, key) != SCOPE[:2] and partition != BLOCKS:
        return
    record = _record(disk)
    if record.used_bytes + record.granted_bytes < _stored(disk):
        raise Violation(f"{_stored(disk)} bytes are stored, and the quota knows of {record}")


def what_is_admitted_fits(disk: Disk, partition: bytes, key: bytes, _: bytes | None, __: bytes | None) -> None:
    """Check at each step that no grant goes over the limit. A count may: it counts what it sees settled twice."""
    if (partition, key) == SCOPE[:2]:
        record = _record(disk)
        if record.used_bytes + record.granted_bytes > LIMIT:
            raise Violation(f"more than the limit is granted: {record}")


def a_refusal_has_a_reason(ending: Ending) -> None:
    """Check that the writes in flight, those that were admitted, and one grant of each process leave no room."""
    if ending.crashed:
        return
    writes = ending.of("write")
    for refused in [one for one in writes if one.error is QuotaExceeded]:
        others = [one for one in writes if one is not refused and not one.error]
        failing = [one for one in ending.of("fail") if one.operation.name not in (refused.before or frozenset())]
        taken = sum(int(str(one.operation.value)) for one in (*others, *failing))
        if taken + int(str(refused.operation.value)) + 2 * EXTRA <= LIMIT:
            raise Violation(f"{refused.operation.name} was refused with {taken} of {LIMIT} bytes taken")


def settled_is_what_is_stored(ending: Ending) -> None:
    """Check that without a crash nothing is left granted, and that no byte counts twice."""
    record = _record(ending.disk)
    if not ending.crashed and (record.grants or record.used_bytes != _stored(ending.disk)):
        raise Violation(f"{_stored(ending.disk)} bytes are stored, and all has ended: {record}")


def a_count_repairs(ending: Ending) -> None:
    """Check that after a count, with nothing in flight, used is what is stored. A crash is forgotten, too."""
    record = _record(ending.disk)
    if record.grants or record.used_bytes != _stored(ending.disk):
        raise Violation(f"{_stored(ending.disk)} bytes are stored, and were counted: {record}")


def quota_scenes() -> Iterator[Scene]:
    two, count = _writes(SIZE, SIZE), acting("count", _counted)
    counter = Actor("c", count)
    first, second = Actor("a", two), Actor("b", two)
    failing = Actor("f", _writes(-2 * SIZE, 2 * SIZE))
    at_once = Actor("g", _writes(SIZE, EXTRA, LIMIT - SIZE - 1, at_once=True))
    settling = Actor("u", _writes(SIZE, at_once=True, settles=True))
    writer, late = Actor("w", _writes(SIZE)), Actor("l", _writes(10, late=True))
    settled = (a_refusal_has_a_reason, settled_is_what_is_stored)
    worlds: tuple[tuple[str, tuple[Actor, ...], tuple[Check, ...]], ...] = (
        ("two writers with a quota", (first, second), settled),
        ("failing writer with a quota, writer", (failing, writer), settled),
        ("writes at once with a quota, writer", (at_once, writer), settled),
        ("write with a quota, settled meanwhile", (settling,), settled),
        ("writer with a quota, late process", (writer, late), settled[:1]),
        ("writer with a quota, count", (Actor("w", two), counter), ()),
        ("writer with a quota, two counts", (writer, counter, Actor("d", count)), ()),
    )
    for name, actors, checks in worlds:
        admitted = () if counter in actors else (what_is_admitted_fits,)
        yield Scene(
            name=name,
            actors=actors,
            prepare=_prepare,
            tidy=_tidy,
            checks=checks,
            tidy_checks=(a_count_repairs,),
            step_checks=(what_is_stored_was_admitted, *admitted),
            clocks_agree=late not in actors,
            quick=Quick.ALL,
        )
