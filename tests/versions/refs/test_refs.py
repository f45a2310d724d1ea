"""Names that are commit ids: no new branch or tag gets one, and one that is left from before hides no commit."""

from __future__ import annotations

import pytest

from lakebed.base import CommitId
from lakebed.kv import Store
from lakebed.versions import (
    BranchRecord,
    NameTaken,
    Note,
    RefNotFound,
    RefState,
    TagRecord,
    Versions,
    encode_record,
    keys,
)
from tests.versions.conftest import body

UNKNOWN = "0123456789abcdef" * 4


async def committed(repo: Versions, data: bytes) -> CommitId:
    await repo.staging.upload("main", b"k", body(repo.objectstore, data))
    return (await repo.commits.commit("main", Note(message="m", committer="c"))).id


async def leave(repo: Versions, store: Store, prefix: bytes, name: str) -> None:
    """Put a ref of this name at the head, as a release without the check or a dump leaves it."""
    head = (await repo.refs.get_branch("main")).commit_id
    if prefix == keys.BRANCH:
        record = BranchRecord(state=RefState.ACTIVE, commit_id=head, staging_token=repo.context.fresh_token())
        await store.set(repo.partition, prefix + name.encode(), encode_record(record))
    else:
        await store.set(
            repo.partition, prefix + name.encode(), encode_record(TagRecord(state=RefState.ACTIVE, commit_id=head))
        )


async def test_no_branch_or_tag_gets_the_name_of_a_commit(repo: Versions) -> None:
    first = await committed(repo, b"one")

    for name in (first, UNKNOWN):  # of another repository, perhaps: a migration or a dump may bring it
        with pytest.raises(NameTaken, match=f"commit ID {name}: conflict found"):
            await repo.refs.create_branch(name, "main")
        with pytest.raises(NameTaken, match=f"commit ID {name}: conflict found"):
            await repo.refs.create_tag(name, "main")
        with pytest.raises(NameTaken):
            repo.refs.first_branch(name, first)


async def test_the_beginning_of_a_commit_id_is_a_name_like_any_other(repo: Versions) -> None:
    first = await committed(repo, b"one")
    second = await committed(repo, b"two")

    await repo.refs.create_branch(first[:63], second)

    assert await repo.refs.resolve_commit(first[:63]) == second
    assert await repo.refs.resolve_commit(first[:62]) == first


@pytest.mark.parametrize("prefix", [keys.BRANCH, keys.TAG])
async def test_a_ref_that_is_left_from_before_hides_no_commit(repo: Versions, store: Store, prefix: bytes) -> None:
    first = await committed(repo, b"one")
    second = await committed(repo, b"two")
    parent = await repo.refs.resolve_commit(f"{first}~1")
    await leave(repo, store, prefix, first)

    assert await repo.refs.resolve_commit(first) == first != second
    assert (await repo.refs.resolve(first)).branch is None
    assert await repo.refs.resolve_commit(f"{first}~1") == parent
    assert (await repo.staging.get(first, b"k")).size_bytes == 3
    with pytest.raises(RefNotFound):
        await repo.refs.resolve(f"{first}@")


@pytest.mark.parametrize("prefix", [keys.BRANCH, keys.TAG])
async def test_a_ref_with_the_form_of_an_id_is_read_where_there_is_no_such_commit(
    repo: Versions, store: Store, prefix: bytes
) -> None:
    head = await committed(repo, b"one")
    await leave(repo, store, prefix, UNKNOWN)

    assert await repo.refs.resolve_commit(UNKNOWN) == head


@pytest.mark.parametrize("prefix", [keys.BRANCH, keys.TAG])
async def test_a_deleted_ref_with_the_name_of_a_commit_does_not_come_back(
    repo: Versions, store: Store, prefix: bytes
) -> None:
    first = await committed(repo, b"one")
    await committed(repo, b"two")
    await leave(repo, store, prefix, first)

    if prefix == keys.BRANCH:
        await repo.refs.delete_branch(first)
        with pytest.raises(NameTaken):
            await repo.refs.undelete_branch(first)
    else:
        await repo.refs.delete_tag(first)
        with pytest.raises(NameTaken):
            await repo.refs.undelete_tag(first)
