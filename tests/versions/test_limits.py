"""What would poison a branch or a collection if it were let in: numbers and dates that no file of ours can hold."""

from __future__ import annotations

import pytest

from lakebed.base import DATE_MS_MAX, DATE_MS_MIN, Entry, InvalidEntry
from lakebed.versions import BadRef, InvalidDate, Versions


def foreign(*, size_bytes: int = 1, modified_ms: int = 1) -> Entry:
    return Entry(address="s3://elsewhere/x", size_bytes=size_bytes, checksum="", modified_ms=modified_ms)


@pytest.mark.parametrize("entry", [foreign(size_bytes=1 << 63), foreign(size_bytes=-1), foreign(modified_ms=10**19)])
async def test_an_entry_that_no_range_could_hold_is_refused_and_the_branch_commits_on(
    repo: Versions, entry: Entry
) -> None:
    with pytest.raises(InvalidEntry):
        await repo.put("main", b"bad", entry)

    await repo.put("main", b"good", foreign(size_bytes=(1 << 63) - 1, modified_ms=DATE_MS_MAX))
    await repo.commit("main", message="m", committer="c")
    assert await repo.get("main", b"good") == foreign(size_bytes=(1 << 63) - 1, modified_ms=DATE_MS_MAX)


@pytest.mark.parametrize("created_ms", [DATE_MS_MIN - 1, DATE_MS_MAX + 1, 10**19])
async def test_a_commit_of_a_date_that_collectors_cannot_write_down_is_refused(repo: Versions, created_ms: int) -> None:
    with pytest.raises(InvalidDate):
        await repo.commit("main", message="m", committer="c", created_ms=created_ms, allow_empty=True)


@pytest.mark.parametrize("steps", ["~" + "1" * 5000, "^" + "9" * 5000, "~10000000"])
async def test_a_ref_with_more_steps_than_any_history_has_is_malformed(repo: Versions, steps: str) -> None:
    with pytest.raises(BadRef):
        await repo.resolve("main" + steps)
