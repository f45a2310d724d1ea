"""What the trees of a long history name: the lists of commits that each changed one object of a wide tree, read as a
collection of committed data or of metadata reads them. CPU and bytes for each commit.

Commits share all ranges but one, and all sublists but one. So each adds a metarange, a sublist and a range; only lists
are read here, and lists are the only files. They lie in one file on disk, behind a store that counts what it is asked.
Making them is not timed. Metaranges come in the order of their ids, as a plan has them, which is no order of history.

`shares` are the tasks that the work is dealt to, one after the other in this process, as Spark deals them. A file that
several tasks read is read several times. `read` says how often a file is read on average, and is to stay close to 1.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from hashlib import sha256
from typing import BinaryIO, Final, NamedTuple

import numpy as np
import pyarrow as pa

from lakebed.base import RangeId
from lakebed.gc.engines import LocalEngine
from lakebed.gc.engines.tables import METARANGES
from lakebed.gc.mark.inputs.ranges import read_ranges
from lakebed.objectstore import MemoryDeleter, MemoryObjectStore
from lakebed.ranges import CUT_RULE, RangeInfo, encode_metarange, encode_sublist, metarange_key, sublist_key
from lakebed.runtime import live_ports

from .harness import Bench, Figure, own_peak_mib

ENTRIES: Final = 7_200
READ_MAX: Final = 1.2
GROWTH_MAX: Final = 1.3
"""How much more CPU a commit may take among ten times as many."""


class Size(NamedTuple):
    ranges: int
    listed: int
    commits: tuple[int, ...]
    shares: tuple[int, ...]


SIZES: Final = {
    "small": Size(ranges=120, listed=16, commits=(20, 60), shares=(1, 4)),
    "full": Size(ranges=20_000, listed=CUT_RULE.listed, commits=(10_000, 100_000), shares=(1, 16)),
}


class FileStore(MemoryObjectStore):
    """Holds in `file` what is made, and in memory what a run writes. Counts the bytes and files of lists it returns."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__("mem://history")
        self._file = file
        self._made: dict[str, tuple[int, int]] = {}
        self.files = self.size_bytes = 0

    @property
    def made(self) -> int:
        return len(self._made)

    def make(self, key: str, data: bytes) -> None:
        self._made[key] = (self._file.seek(0, 2), len(data))
        self._file.write(data)

    async def get(self, key: str, *, start: int = 0, end: int | None = None) -> bytes:
        if key not in self._made:
            return await super().get(key, start=start, end=end)
        at, size = self._made[key]
        self._file.seek(at)
        self.files += 1
        self.size_bytes += size
        return self._file.read(size)[start:end]


def history(store: FileStore, size: Size, commits: int) -> pa.Table:
    """Make the lists. Return METARANGES, the later half of them live."""
    ranges = [_range(number, 0) for number in range(size.ranges)]
    lists = [ranges[first : first + size.listed] for first in range(0, len(ranges), size.listed)]
    infos = []
    for of_list in lists:
        info, data = encode_sublist(of_list)
        store.make(sublist_key(info.id), data)
        infos.append(info)
    random = np.random.default_rng(7)
    names = []
    for commit, changed in enumerate(random.integers(0, size.ranges, commits).tolist()):
        at, place = divmod(changed, size.listed)
        lists[at][place] = _range(changed, 1 + commit)
        infos[at], data = encode_sublist(lists[at])
        store.make(sublist_key(infos[at].id), data)
        id_, data = encode_metarange(infos)
        store.make(metarange_key(id_), data)
        names.append(id_)
    order = np.argsort(names)
    columns = {"reason": [""] * commits, "rule": [""] * commits, "branch": [""] * commits}
    is_live = order >= commits // 2
    return METARANGES.rows({"metarange_id": sorted(names), "is_live": is_live, "seen_ms": order, **columns})


def _range(number: int, version: int) -> RangeInfo:
    key = b"warehouse/events/day=%06d/hour=07/part-%05d.snappy.parquet"
    return RangeInfo(
        id=RangeId(sha256(b"%d %d" % (number, version)).hexdigest()),
        min_key=key % (number, 0),
        max_key=key % (number, ENTRIES),
        count=ENTRIES,
        size_bytes=ENTRIES << 20,
        file_bytes=ENTRIES * 33,
    )


class Read(NamedTuple):
    """CPU and bytes for each commit; and how often each list was read."""

    cpu_ms: float
    kib: float
    times: float
    wall_s: float


async def read(store: FileStore, metaranges: pa.Table, size: Size, shares: int) -> Read:
    engine = LocalEngine(store, live_ports(), open_deleter=lambda: MemoryDeleter(store), shares=shares)
    store.files = store.size_bytes = 0
    began, began_s = time.process_time(), time.perf_counter()
    found = await read_ranges(engine, metaranges, folder="_lakefs/bench/ranges/", with_sublists=True)
    cpu_s, wall_s = time.process_time() - began, time.perf_counter() - began_s
    store.objects.clear()
    commits = metaranges.num_rows
    # Of the tree before the first commit, that one replaced a range.
    assert found.count == size.ranges + commits - 1, found.count
    return Read(1_000 * cpu_s / commits, store.size_bytes / commits / 1024, store.files / store.made, wall_s)


def figures(size: Size, repeat: int) -> list[Figure]:
    found = []
    first: dict[int, Read] = {}
    for commits in size.commits:
        with tempfile.TemporaryFile() as file:
            store = FileStore(file)
            metaranges = history(store, size, commits)
            for shares in size.shares:
                took = [asyncio.run(read(store, metaranges, size, shares)) for _ in range(repeat)]
                one = sorted(took)[len(took) // 2]
                what = f"history {commits:,} commits, {size.ranges:,} ranges, {shares} shares"
                figure = partial(_figure, one, [each.cpu_ms for each in took])
                found.append(figure(f"{what}: CPU a commit", one.cpu_ms, "ms"))
                found.append(figure(f"{what}: read a commit", one.kib, "KiB"))
                found.append(figure(f"{what}: reads of a list", one.times, "×", limit=READ_MAX))
                if shares in first:
                    growth = one.cpu_ms / first[shares].cpu_ms
                    found.append(figure(f"{what}: CPU of fewer commits", growth, "×", limit=GROWTH_MAX))
                first.setdefault(shares, one)
    return found


def _figure(one: Read, cpu_ms: list[float], what: str, value: float, unit: str, limit: float | None = None) -> Figure:
    is_cpu = unit == "ms"
    return Figure(
        what=what,
        value=value,
        value_min=min(cpu_ms) if is_cpu else None,
        value_max=max(cpu_ms) if is_cpu else None,
        unit=unit,
        limit=limit,
        cpu_s=one.cpu_ms / 1_000,
        wall_s=one.wall_s,
        peak_mib=own_peak_mib(),
    )


def parts(size: str) -> Iterator[Callable[[int], list[Figure]]]:
    yield partial(figures, SIZES[size])


def narrowed(given: Sequence[str]) -> Bench:
    """Return the bench of this many commits, over this many ranges if a second number is given."""
    commits, *ranges = (int(one) for one in given)
    size = SIZES["full"]._replace(commits=(commits,))
    if ranges:
        size = size._replace(ranges=ranges[0])
    return Bench(name="history", parts=lambda _: iter([partial(figures, size)]))


BENCH = Bench(name="history", parts=parts, narrowed=narrowed)
