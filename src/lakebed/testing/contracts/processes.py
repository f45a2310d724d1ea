"""Operations on a store from other processes. DurableStoreContract starts them with `PROGRAM` and these arguments:

    acknowledge URI         sets key after key, several at a time, and prints the number of each once it is answered
    increment URI TIMES     adds one to a shared counter TIMES times

`--import MODULE` first imports a module, for drivers that a module registers.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import itertools

from lakebed.kv import PredicateFailed, Store, open_store

PROGRAM = "from lakebed.testing.contracts.processes import main; main()"
"""For `python -c`; with `-m`, Python would import the module twice."""

PARTITION = b"partition"
COUNTER = b"counter"
WRITERS = 8


def key_of(number: int) -> bytes:
    return b"key %06d" % number


def value_of(number: int) -> bytes:
    return b"value %d " % number * 20


async def acknowledge(store: Store) -> None:
    """Acknowledge writes until killed."""
    numbers = itertools.count()

    async def write() -> None:
        for number in numbers:
            await store.set_if(PARTITION, key_of(number), value_of(number), None)
            print(number, flush=True)

    await asyncio.gather(*(write() for _ in range(WRITERS)))


async def increment(store: Store, times: int) -> None:
    """Add one to the shared counter `times` times, by compare-and-set."""
    done = 0
    while done < times:
        found = await store.get(PARTITION, COUNTER)
        number = 0 if found is None else int(found.value)
        try:
            await store.set_if(PARTITION, COUNTER, b"%d" % (number + 1), None if found is None else found.predicate)
        except PredicateFailed:
            continue
        done += 1


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--import", dest="modules", action="append", default=[])
    parser.add_argument("what", choices=["acknowledge", "increment"])
    parser.add_argument("uri")
    parser.add_argument("times", type=int, nargs="?", default=1)
    options = parser.parse_args()
    for module in options.modules:
        importlib.import_module(module)

    async def run() -> None:
        store = open_store(options.uri)
        if options.what == "acknowledge":
            await acknowledge(store)
        else:
            await increment(store, options.times)
        await store.close()

    asyncio.run(run())
