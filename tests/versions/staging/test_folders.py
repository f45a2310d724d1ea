"""Listings with a delimiter skip what lies in folders, whatever is cached, staged or removed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakebed.base import Entry, RangeId, RepositoryUid, RunId, to_row
from lakebed.kv import Page
from lakebed.kv.drivers.memory import MemoryStore
from lakebed.objectstore import MemoryObjectStore
from lakebed.ranges import CutRule, decode_range, metarange_key
from lakebed.runtime import live_ports
from lakebed.versions import CommitExpired, Note, TreeCache, Trees, Versions, encode_cell
from lakebed.versions.trees import files
from tests.versions.conftest import body

ENTRY = Entry(address="s3://elsewhere/x", size_bytes=1, checksum="", modified_ms=1)

# No deadline: a shared machine may pause anywhere.
searched = settings(deadline=None, max_examples=60)


async def test_folders_of_a_commit_are_sought_without_decoding_their_ranges(
    store: MemoryStore, objectstore: MemoryObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [b"d%02d/%03d" % (folder, n) for folder in range(100) for n in range(100)]
    names += [b"d%02d.txt" % folder for folder in range(0, 100, 40)] + [b"e"]
    decoded: list[str] = []

    def counting(id_: RangeId, data: bytes) -> pa.Table:
        decoded.append(id_)
        return decode_range(id_, data)

    monkeypatch.setattr(files, "decode_range", counting)
    repo = cold(store, objectstore)
    await repo.commits.initialise("main")
    await stage_all(repo, names)
    await repo.commits.commit("main", Note(message="m", committer="c"))
    head = (await repo.context.branches.fresh("main")).record.commit_id

    for limit in (1, 7, 1000):
        repo = cold(store, objectstore)
        decoded.clear()
        assert await folders(repo, head, limit) == shown(names), limit
        assert len({*decoded}) < 50, limit

    assert len(await repo.context.trees.ranges(await repo.context.commits.metarange(head))) > 200


async def test_a_listing_asks_for_staged_paths_once_where_nothing_is_staged(
    store: MemoryStore, objectstore: MemoryObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [b"d%02d/%03d" % (folder, n) for folder in range(20) for n in range(100)]
    repo = cold(store, objectstore)
    await repo.commits.initialise("main")
    await stage_all(repo, names)
    await repo.commits.commit("main", Note(message="m", committer="c"))
    scans: list[bytes] = []
    scan = store.scan

    async def counting(partition: bytes, start: bytes, limit: int) -> Page:
        scans.append(start)
        return await scan(partition, start, limit)

    monkeypatch.setattr(store, "scan", counting)
    assert await folders(repo, "main", 1000) == shown(names)
    assert scans == [b""]
    await repo.staging.put("main", b"d07/fresh", ENTRY)
    scans.clear()

    assert await folders(repo, "main", 1000) == shown(names)
    assert 1 < len(scans) <= 10


@searched
@given(
    committed=st.lists(st.tuples(st.integers(0, 9), st.integers(1, 120)), max_size=12),
    files_between=st.sets(st.integers(0, 9)),
    removed=st.sets(st.integers(0, 9)),
    staged=st.sets(st.integers(0, 19)),
    limit=st.sampled_from([1, 2, 5, 40]),
)
def test_folders_are_those_of_the_paths_whatever_is_cached_and_staged(
    committed: list[tuple[int, int]], files_between: set[int], removed: set[int], staged: set[int], limit: int
) -> None:
    """Seek folders of any size, with files between them, under tombstones of whole folders and new paths."""

    async def check() -> None:
        store, objectstore = MemoryStore(), MemoryObjectStore("mem://tests")
        repo = cold(store, objectstore)
        await repo.commits.initialise("main")
        names = {b"p/d%d/%03d" % (folder, n) for folder, size in committed for n in range(size)}
        names |= {b"p/d%d.txt" % folder for folder in files_between} | {b"o/a", b"q/a", b"q/b/c"}
        await stage_all(repo, sorted(names))
        await repo.commits.commit("main", Note(message="m", committer="c"))
        gone = {name for name in names if name.startswith(tuple(b"p/d%d/" % folder for folder in removed))}
        fresh = {b"p/d%d/0005" % folder for folder in staged}
        await repo.staging.delete_many("main", sorted(gone))
        await stage_all(repo, sorted(fresh))
        expected = shown([name[2:] for name in (names - gone) | fresh if name.startswith(b"p/")])

        repo = cold(store, objectstore)
        for _ in range(2):
            assert await folders(repo, "main", limit, prefix=b"p/") == [b"p/" + name for name in expected]

    asyncio.run(check())


@searched
@given(
    committed=st.lists(st.tuples(st.integers(0, 9), st.integers(1, 120)), max_size=12),
    removed=st.sets(st.integers(0, 9)),
    staged=st.sets(st.integers(0, 19)),
    limit=st.sampled_from([1, 2, 5, 40]),
)
def test_a_folder_is_as_large_as_its_paths_whatever_is_staged(
    committed: list[tuple[int, int]], removed: set[int], staged: set[int], limit: int
) -> None:
    async def check() -> None:
        repo = cold(MemoryStore(), MemoryObjectStore("mem://tests"))
        await repo.commits.initialise("main")
        names = {b"p/d%d/%03d" % (folder, n) for folder, size in committed for n in range(size)} | {b"o/a", b"q/a"}
        await stage_all(repo, sorted(names))
        await repo.commits.commit("main", Note(message="m", committer="c"))
        gone = {name for name in names if name.startswith(tuple(b"p/d%d/" % folder for folder in removed))}
        fresh = {b"p/d%d/0005" % folder for folder in staged}
        await repo.staging.delete_many("main", sorted(gone))
        await stage_all(repo, sorted(fresh))

        for prefix in (b"", b"p/", b"p/d1", b"p/d1/", b"p/d1/005", b"q", b"z"):
            for ref, paths in (("main", (names - gone) | fresh), ("main@", names)):
                expected = sum(path.startswith(prefix) for path in paths)
                assert await measured(repo, ref, prefix, limit) == (expected, expected * ENTRY.size_bytes)

    asyncio.run(check())


async def test_the_size_of_a_folder_is_found_without_decoding_what_lies_whole_in_it(
    store: MemoryStore, objectstore: MemoryObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[str] = []

    def counting(id_: RangeId, data: bytes) -> pa.Table:
        decoded.append(id_)
        return decode_range(id_, data)

    monkeypatch.setattr(files, "decode_range", counting)
    repo = cold(store, objectstore)
    await repo.commits.initialise("main")
    await stage_all(repo, [b"d%02d/%03d" % (folder, n) for folder in range(100) for n in range(100)])
    await repo.commits.commit("main", Note(message="m", committer="c"))

    repo = cold(store, objectstore)
    decoded.clear()
    assert await measured(repo, "main", b"", 1000) == (10_000, 10_000)
    assert decoded == []
    assert await measured(repo, "main", b"d1", 1000) == (1_000, 1_000)
    assert len(decoded) <= 2


async def measured(repo: Versions, ref: str, prefix: bytes, limit: int) -> tuple[int, int]:
    objects = size_bytes = 0
    after: bytes | None = b""
    while after is not None:
        size = await repo.staging.measure(ref, prefix=prefix, after=after, limit=limit)
        objects, size_bytes, after = objects + size.objects, size_bytes + size.size_bytes, size.after
    return objects, size_bytes


def cold(store: MemoryStore, objectstore: MemoryObjectStore) -> Versions:
    """Open the repository with nothing in its cache, and cut its trees into small ranges."""
    rule, ports = CutRule(strong=64, weak=8, weak_from=64, rows_max=90), live_ports()
    trees = Trees(objectstore, TreeCache(64 << 20), ports, rule=rule)
    return Versions(uid=RepositoryUid("r1"), store=store, objectstore=objectstore, trees=trees, ports=ports)


async def stage_all(repo: Versions, names: Sequence[bytes]) -> None:
    partition = repo.context.token_partition((await repo.context.branches.fresh("main")).record.staging_token)
    await repo.context.store.set_many(partition, [(name, encode_cell(0, to_row(name, ENTRY))) for name in names])


async def folders(repo: Versions, ref: str, limit: int, prefix: bytes = b"") -> list[bytes]:
    found: list[bytes] = []
    more = True
    while more:
        after = found[-1] if found else b""
        page = await repo.staging.list(ref, prefix=prefix, after=after, delimiter=b"/", limit=limit)
        found += [key for key, _ in page.items]
        assert all(row is None if key.endswith(b"/") else row == to_row(key, ENTRY) for key, row in page.items)
        more = page.has_more
    return found


def shown(names: Sequence[bytes]) -> list[bytes]:
    return sorted({name.split(b"/")[0] + b"/" if b"/" in name else name for name in names})


@pytest.mark.parametrize("read", ["stat", "stat of many", "list", "measure"])
async def test_a_read_of_a_branch_whose_tree_a_collection_took_names_the_run(
    repo: Versions, another: Callable[[], Versions], objectstore: MemoryObjectStore, read: str
) -> None:
    await repo.staging.upload("main", b"k", body(objectstore))
    await repo.commits.commit("main", Note(message="m", committer="c"))
    tree = await repo.context.commits.metarange((await repo.refs.get_branch("main")).commit_id)
    del objectstore.objects[metarange_key(tree)]
    await repo.retired.retire(RunId("run1"), ids=[tree], runs=[])
    staging = another().staging
    reads: dict[str, Callable[[], Awaitable[object]]] = {
        "stat": lambda: staging.get("main", b"k"),
        "stat of many": lambda: staging.get_many("main", [b"k"]),
        "list": lambda: staging.list("main"),
        "measure": lambda: staging.measure("main", prefix=b""),
    }

    with pytest.raises(CommitExpired, match="run1"):
        await reads[read]()
