"""Whatever is done to both, in whatever groups: the SQLite store answers as the memory store with values does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeAlias

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lakebed.kv import Store, open_store
from lakebed.kv.drivers.sqlite import SqliteStore

Operation: TypeAlias = Callable[[Store], Awaitable[object]]

partitions = st.sampled_from([b"p", b"p/q"])
keys = st.sampled_from([b"a", b"b", b"\x00", b"\xff"])
values = st.sampled_from([b"", b"1", b"2", b"\xff" * 5000])
expected = st.none() | values

operations: st.SearchStrategy[Operation] = st.one_of(
    st.builds(lambda p, k, v: lambda store: store.set(p, k, v), partitions, keys, values),
    st.builds(lambda p, k, v, e: lambda store: store.set_if(p, k, v, e), partitions, keys, values, expected),
    st.builds(lambda p, k: lambda store: store.delete(p, k), partitions, keys),
    st.builds(lambda p, k, e: lambda store: store.delete_if(p, k, e), partitions, keys, values),
    st.builds(
        lambda p, items: lambda store: store.set_many(p, items),
        partitions,
        st.lists(st.tuples(keys, values), max_size=6),
    ),
    st.builds(lambda p, ks: lambda store: store.delete_many(p, ks), partitions, st.lists(keys, max_size=6)),
)
groups = st.lists(st.lists(operations, min_size=1, max_size=12), min_size=1, max_size=6)


async def do(store: Store, group: list[Operation]) -> list[object]:
    """All at once; what each returned, or the type of its error."""
    outcomes = await asyncio.gather(*(operation(store) for operation in group), return_exceptions=True)
    return [type(outcome) if isinstance(outcome, BaseException) else outcome for outcome in outcomes]


async def everything(store: Store) -> list[object]:
    pages = [await store.scan(partition, b"", 100) for partition in (b"p", b"p/q")]
    reads = [await store.get_many(partition, [b"a", b"b", b"\x00", b"\xff"]) for partition in (b"p", b"p/q")]
    return [pages, reads]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(plan=groups)
def test_sqlite_answers_as_memory_does(tmp_path: Path, plan: list[list[Operation]]) -> None:
    async def run() -> None:
        path = tmp_path / "kv.db"
        path.unlink(missing_ok=True)
        sqlite, memory = SqliteStore.open(path, synchronous="OFF"), open_store("mem://?predicates=value")
        for group in plan:
            assert await do(sqlite, group) == await do(memory, group)
            assert await everything(sqlite) == await everything(memory)
        await sqlite.close()

    asyncio.run(run())
