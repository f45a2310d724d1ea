"""What would poison a branch or a collection if it were let in: numbers and dates that no file of ours can hold."""

from __future__ import annotations

import pytest

from lakebed.base import DATE_MS_MAX, DATE_MS_MIN, Entry, InvalidEntry, to_row
from lakebed.kv import Page
from lakebed.kv.drivers.memory import MemoryStore
from lakebed.versions import BadRef, InvalidNote, Note, Versions, encode_cell
from lakebed.versions.cleanup import SEALED_MAX
from lakebed.versions.fencing import STANDS_FOR_MAX


def foreign(*, size_bytes: int = 1, modified_ms: int = 1) -> Entry:
    return Entry(address="s3://elsewhere/x", size_bytes=size_bytes, checksum="", modified_ms=modified_ms)


WORDY = Entry(address="s3://elsewhere/x", size_bytes=1, checksum="", modified_ms=1, metadata={"k": "é" * 50_000})


@pytest.mark.parametrize(
    "entry", [foreign(size_bytes=1 << 63), foreign(size_bytes=-1), foreign(modified_ms=10**19), WORDY]
)
async def test_an_entry_that_no_range_could_hold_is_refused_and_the_branch_commits_on(
    repo: Versions, entry: Entry
) -> None:
    with pytest.raises(InvalidEntry):
        await repo.staging.put("main", b"bad", entry)

    await repo.staging.put("main", b"good", foreign(size_bytes=(1 << 63) - 1, modified_ms=DATE_MS_MAX))
    await repo.commits.commit("main", Note(message="m", committer="c"))
    assert await repo.staging.get("main", b"good") == foreign(size_bytes=(1 << 63) - 1, modified_ms=DATE_MS_MAX)


@pytest.mark.parametrize("created_ms", [DATE_MS_MIN - 1, DATE_MS_MAX + 1, 10**19])
async def test_a_commit_of_a_date_that_collectors_cannot_write_down_is_refused(repo: Versions, created_ms: int) -> None:
    with pytest.raises(InvalidNote):
        await repo.commits.commit("main", Note(message="m", committer="c", created_ms=created_ms), allow_empty=True)


def test_words_that_would_outgrow_a_value_are_refused_before_a_flow_begins() -> None:
    for message, metadata in (("m" * 300_000, {}), ("m", {"k" * 300_000: ""})):
        with pytest.raises(InvalidNote):
            Note(message=message, committer="c", metadata=metadata)


async def test_words_that_a_merge_adds_count_too(repo: Versions) -> None:
    before = await repo.context.branches.fresh("main")
    with pytest.raises(InvalidNote):
        await repo.merges.merge("main", "main", Note(message="m" * 249_980, committer="c"))

    assert (await repo.context.branches.fresh("main")).is_same(before)


@pytest.mark.parametrize("steps", ["~" + "1" * 5000, "^" + "9" * 5000, "~10000000"])
async def test_a_ref_with_more_steps_than_any_history_has_is_malformed(repo: Versions, steps: str) -> None:
    with pytest.raises(BadRef):
        await repo.refs.resolve("main" + steps)


async def test_a_branch_whose_commits_keep_failing_stays_quick_to_read_and_loses_nothing(repo: Versions) -> None:
    for number in range(SEALED_MAX + 1):
        await repo.staging.put("main", b"k%02d" % (number % 5), foreign(size_bytes=number))
        await repo.commits.seal("main")  # a commit that got no further

    await repo.cleanup.clean()

    assert len((await repo.context.branches.fresh("main")).record.tokens()) == 2
    before = (await repo.staging.list("main")).items
    await repo.commits.commit("main", Note(message="m", committer="c"))
    assert (await repo.staging.list("main@")).items == before
    assert [row[4] for _, row in before if row is not None] == [30, 31, 32, 28, 29]


async def test_the_record_of_a_branch_that_is_frozen_again_and_again_stays_small(repo: Versions) -> None:
    await repo.staging.put("main", b"k", foreign())
    for _ in range(STANDS_FOR_MAX):
        await repo.fencing.freeze("main")

    [frozen] = (await repo.context.branches.fresh("main")).record.sealed
    assert len(frozen.stands_for) == STANDS_FOR_MAX
    assert await repo.staging.get("main", b"k") == foreign()


async def test_a_listing_of_one_entry_does_not_go_through_tombstones_two_by_two(
    repo: Versions, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [b"k%04d" % number for number in range(2000)]
    for path in paths:
        await repo.staging.put("main", path, foreign())
    await repo.staging.delete_many("main", paths[:-1])
    scans = 0
    scan = store.scan

    async def counting(partition: bytes, start: bytes, limit: int) -> Page:
        nonlocal scans
        scans += 1
        return await scan(partition, start, limit)

    monkeypatch.setattr(store, "scan", counting)
    listing = await repo.staging.list("main", limit=1)

    assert [key for key, _ in listing.items] == [paths[-1]]
    assert scans < 20


async def test_a_listing_of_folders_reads_a_few_of_what_lies_in_each(
    repo: Versions, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [b"d%02d/" % number for number in range(40)]
    partition = repo.context.token_partition((await repo.context.branches.fresh("main")).record.staging_token)
    cell = encode_cell(0, to_row(b"", foreign()))
    await store.set_many(partition, [(folder + b"%03d" % n, cell) for folder in folders for n in range(300)])
    read = 0
    scan = store.scan

    async def counting(partition: bytes, start: bytes, limit: int) -> Page:
        nonlocal read
        page = await scan(partition, start, limit)
        read += len(page.keys)
        return page

    monkeypatch.setattr(store, "scan", counting)
    listing = await repo.staging.list("main", delimiter=b"/")

    assert [key for key, _ in listing.items] == folders
    assert read < 4_000  # of 12,000


async def test_every_page_size_gives_the_same_folders(repo: Versions) -> None:
    """Small folders, large ones, and files beside them: pages shrink and grow."""
    sizes = [1, 40, 2, 300, 1, 1, 9, 120, 3]
    names = [b"d%d/%03d" % (folder, n) for folder, size in enumerate(sizes) for n in range(size)]
    names += [b"d%d.txt" % folder for folder in range(len(sizes))] + [b"e%02d" % n for n in range(30)]
    for name in names[::2]:
        await repo.staging.put("main", name, foreign())
    await repo.commits.commit("main", Note(message="m", committer="c"))
    for name in names[1::2]:
        await repo.staging.put("main", name, foreign())
    await repo.staging.delete_many("main", [name for name in names if name.startswith(b"d3/0")])
    expected = sorted({name.split(b"/")[0] + b"/" if b"/" in name else name for name in names})

    for limit in (1, 3, 10, 1000):
        found: list[bytes] = []
        more = True
        while more:
            page = await repo.staging.list("main", after=found[-1] if found else b"", delimiter=b"/", limit=limit)
            found += [key for key, _ in page.items]
            more = page.has_more
        assert found == expected, limit
