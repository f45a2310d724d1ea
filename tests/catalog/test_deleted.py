"""Deleted repositories: kept for a window, brought back, or forgotten; and protection against deletion."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from lakebed.base import AT_ONCE, Conflict, Denied, Etags, Ports
from lakebed.catalog import (
    Catalog,
    DeletedNotFound,
    DeletedState,
    DeleteProtected,
    NamespaceInUse,
    Repository,
    RepositoryExists,
    RepositoryNotFound,
    SettingChanged,
)
from lakebed.gc.live import HoldBook
from lakebed.gc.messages import NewHold
from lakebed.kv import Store
from lakebed.versions import BranchNotFound, Note, keys

DAY_MS = 86_400_000
CASE_7 = NewHold(name="case-7", globs=("contracts/",), why="a lawsuit")


async def test_undelete_brings_back_commits_and_uncommitted_changes(catalog: Catalog, repository: Repository) -> None:
    await repository.objects.upload("main", "a", b"1")
    commit = await repository.changes.commit("main", Note(message="m", committer="esti"))
    await repository.objects.upload("main", "b", b"2")
    await catalog.delete("repo")

    back = await catalog.undelete("repo")

    assert back.record == repository.record
    assert (await back.versions.refs.get_branch("main")).commit_id == commit.id
    listed = await back.versions.staging.list("main")
    assert [key for key, _ in listed.items] == [b"a", b"b"]
    await back.objects.upload("main", "c", b"3")
    assert (await back.changes.commit("main", Note(message="n", committer="esti"))).parents == (commit.id,)


async def test_a_deleted_repository_is_listed_until_it_is_back(
    catalog: Catalog, repository: Repository, ports: Ports
) -> None:
    await catalog.delete("repo", by="esti")
    now_ms = ports.clock.now_ms()

    [listed] = await catalog.deleted.list()
    await catalog.undelete("repo")

    assert (listed.uid, listed.record.name, listed.record.deleted_by) == (repository.record.uid, "repo", "esti")
    assert (listed.record.deleted_ms, listed.record.kept_until_ms) == (now_ms, now_ms + 7 * DAY_MS)
    assert await catalog.deleted.list() == []


async def test_a_repository_of_many_branches_stops_whole_and_comes_back_whole(
    catalog: Catalog, repository: Repository, store: Store
) -> None:
    refs = repository.versions.refs
    for number in range(2 * AT_ONCE + 1):
        await refs.create_branch(f"b{number:03}", "main")
    await catalog.delete("repo")

    with pytest.raises(BranchNotFound):
        await refs.get_branch(f"b{2 * AT_ONCE:03}")
    back = await catalog.undelete("repo")
    names, _ = await back.versions.refs.list_branches(limit=1000)

    assert len(names) == 2 * AT_ONCE + 2
    await catalog.delete("repo")
    uid = await catalog.deleted.forget("repo")
    assert (await store.scan(keys.repository_partition(uid), b"", 10)).keys == []


async def test_its_name_may_be_used_meanwhile_and_it_comes_back_under_another(
    catalog: Catalog, repository: Repository, namespace: str
) -> None:
    await catalog.delete("repo")
    await catalog.create("repo", storage_namespace=namespace + "-2")

    with pytest.raises(RepositoryExists):
        await catalog.undelete("repo")
    back = await catalog.undelete("repo", new_name="repo-before")

    assert back.record.uid == repository.record.uid
    assert (await catalog.get("repo")).record.uid != repository.record.uid


async def test_its_namespace_and_what_lies_around_stays_in_use(
    catalog: Catalog, repository: Repository, namespace: str
) -> None:
    await catalog.delete("repo")

    for uri in (namespace, namespace + "/inside"):
        with pytest.raises(NamespaceInUse):
            await catalog.create("other", storage_namespace=uri)


async def test_of_several_with_one_name_the_caller_chooses(
    catalog: Catalog, repository: Repository, namespace: str
) -> None:
    await catalog.delete("repo")
    await catalog.create("repo", storage_namespace=namespace + "-2")
    await catalog.delete("repo")

    with pytest.raises(Conflict, match="deleted repositories had the name"):
        await catalog.undelete("repo")

    assert (await catalog.undelete("repo", uid=repository.record.uid)).record.uid == repository.record.uid


async def test_a_repository_may_be_deleted_and_brought_back_again_and_again(
    catalog: Catalog, repository: Repository
) -> None:
    for number in range(3):
        await repository.objects.upload("main", f"{number}", b"1")
        await catalog.delete("repo")
        with pytest.raises(BranchNotFound):
            await repository.objects.upload("main", "lost", b"1")
        repository = await catalog.undelete("repo")

    # What failed may have had its effect.
    assert {key for key, _ in (await repository.versions.staging.list("main")).items} >= {b"0", b"1", b"2"}


@pytest.mark.parametrize("name", ["repo", "never"])
async def test_what_is_not_deleted_cannot_be_undeleted(catalog: Catalog, repository: Repository, name: str) -> None:
    with pytest.raises(DeletedNotFound):
        await catalog.undelete(name, new_name="other")


async def test_a_forgotten_repository_does_not_come_back(catalog: Catalog, repository: Repository) -> None:
    await catalog.delete("repo")
    await catalog.deleted.forget("repo")

    with pytest.raises(DeletedNotFound, match="forgotten"):
        await catalog.undelete("repo")


async def test_a_repository_that_is_in_use_is_not_forgotten(catalog: Catalog, repository: Repository) -> None:
    await catalog.delete("repo")
    await catalog.undelete("repo")

    with pytest.raises(DeletedNotFound):
        await catalog.deleted.forget("repo")


@pytest.mark.parametrize("step", range(1, 6))
async def test_an_undelete_that_died_at_any_step_is_finished_by_the_upkeep(
    catalog: Catalog, repository: Repository, store: Store, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    await repository.objects.upload("main", "a", b"1")
    await catalog.delete("repo")
    real, writes = store.set_if, 0

    async def die(*arguments: Any) -> Any:
        nonlocal writes
        writes += 1
        if writes == step:
            raise KeyboardInterrupt
        return await real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(store, "set_if", die)
        with pytest.raises(KeyboardInterrupt):
            await catalog.undelete("repo")
    is_begun = (await catalog.deleted.list())[0:1] == [] or step > 1
    await catalog.clean()

    if is_begun:
        back = await catalog.get("repo")
        assert [key for key, _ in (await back.versions.staging.list("main")).items] == [b"a"]
        assert await catalog.deleted.list() == []
    else:
        assert [one.record.state for one in await catalog.deleted.list()] == [DeletedState.KEPT]


async def test_other_processes_find_a_repository_that_came_back(
    make_catalog: Callable[[], Catalog], namespace: str, ports: Ports
) -> None:
    here, there = make_catalog(), make_catalog()
    await here.create("repo", storage_namespace=namespace)
    old = await there.get("repo")
    await old.objects.upload("main", "a", b"1")
    await here.delete("repo")
    await ports.clock.sleep(1)
    with pytest.raises(RepositoryNotFound):
        await there.get("repo")

    await here.undelete("repo")

    back = await there.get("repo")
    await back.objects.upload("main", "b", b"2")
    assert [key for key, _ in (await back.versions.staging.list("main")).items] == [b"a", b"b"]


async def test_a_protection_that_was_changed_since_it_was_read_is_not_replaced(
    catalog: Catalog, repository: Repository
) -> None:
    await catalog.get("repo")  # A handle is kept for a second.
    _, before = await catalog.deletion_protection("repo")
    await catalog.protect_deletion("repo", repository=True, branches=())

    with pytest.raises(SettingChanged):
        await catalog.protect_deletion("repo", repository=False, branches=["a"], if_match=Etags.of(before))

    found, now = await catalog.deletion_protection("repo")
    assert found.protected
    await catalog.protect_deletion("repo", repository=True, branches=["a"], if_match=Etags.of(now))


class TestProtection:
    async def test_a_repository_is_not_deleted_while_a_legal_hold_is_in_force(
        self, catalog: Catalog, repository: Repository
    ) -> None:
        await HoldBook(repository.versions).add(CASE_7)

        with pytest.raises(DeleteProtected, match="release case-7 first"):
            await catalog.delete("repo", force=True)
        await HoldBook(repository.versions).release("case-7", why="settled")
        await catalog.delete("repo")

    async def test_a_deleted_repository_is_not_forgotten_while_a_legal_hold_is_in_force(
        self, catalog: Catalog, repository: Repository
    ) -> None:
        """The hold came while the repository was being deleted."""
        await catalog.delete("repo")
        await HoldBook(repository.versions).add(CASE_7)

        with pytest.raises(DeleteProtected, match="release case-7 first"):
            await catalog.deleted.forget("repo")
        back = await catalog.undelete("repo")
        await HoldBook(back.versions).release("case-7", why="settled")
        await catalog.delete("repo")
        await catalog.deleted.forget("repo")

    async def test_a_protected_repository_is_not_deleted_even_by_force(
        self, catalog: Catalog, repository: Repository
    ) -> None:
        await catalog.protect_deletion("repo", repository=True, branches=())

        with pytest.raises(DeleteProtected, match="repository repo"):
            await catalog.delete("repo", force=True)
        await catalog.protect_deletion("repo", repository=False, branches=())
        await catalog.delete("repo")

    async def test_branches_are_protected_by_pattern(self, catalog: Catalog, repository: Repository) -> None:
        await repository.changes.create_branch("release-1", "main")
        await repository.changes.create_branch("topic", "main")
        await catalog.protect_deletion("repo", repository=False, branches=["release*"])
        changes = (await catalog.get("repo")).changes

        with pytest.raises(DeleteProtected, match=r"release-1.*release\*"):
            await changes.delete_branch("release-1", force=True)
        await changes.delete_branch("topic")
        with pytest.raises(Denied, match="cannot delete repository default branch"):
            await changes.delete_branch("main")
