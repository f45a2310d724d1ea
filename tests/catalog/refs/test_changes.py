"""Commits that queue, and the guards in front of changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from lakebed.base import Denied, Etags, Ports
from lakebed.catalog import Catalog, ProtectedBranch, Repository, SettingChanged
from lakebed.kv import StoreUnavailable
from lakebed.versions import BranchNotFound, Commit, NoChanges, Note, PathNotFound, keys
from tests.versions.conftest import HookedStore


@pytest.fixture
def store() -> HookedStore:
    return HookedStore()


async def test_eight_committers_on_one_branch_all_succeed(repository: Repository) -> None:
    async def committer(number: int) -> None:
        for turn in range(5):
            await repository.objects.upload("main", f"{number}/{turn}", b"x")
            await repository.changes.commit(
                "main", Note(message=f"{number}/{turn}", committer=f"c{number}"), allow_empty=True
            )

    await asyncio.gather(*(committer(number) for number in range(8)))

    commits, _ = await repository.versions.history.log("main", limit=100)
    assert len(commits) == 1 + 8 * 5
    assert len((await repository.versions.staging.list("main@")).items) == 8 * 5


async def test_committers_of_two_processes_on_one_branch_all_succeed(
    make_catalog: Callable[[], Catalog], namespace: str
) -> None:
    here, there = make_catalog(), make_catalog()
    await here.create("repo", storage_namespace=namespace)
    repositories = [await here.get("repo"), await there.get("repo")]

    async def committer(number: int) -> None:
        repository = repositories[number % 2]
        for turn in range(5):
            await repository.objects.upload("main", f"{number}/{turn}", b"x")
            await repository.changes.commit("main", Note(message=f"{number}", committer=f"c{number}"), allow_empty=True)

    await asyncio.gather(*(committer(number) for number in range(4)))

    assert len((await repositories[0].versions.staging.list("main@")).items) == 4 * 5


async def test_who_commits_behind_one_that_took_its_data_gets_a_commit_that_holds_them(repository: Repository) -> None:
    await repository.objects.upload("main", "a", b"1")

    may_go = asyncio.Event()

    async def first_turn() -> Commit:
        await may_go.wait()
        return await repository.versions.commits.commit("main", Note(message="first", committer="a"))

    first_task = asyncio.create_task(repository.changes._queue.run("main", first_turn))
    await asyncio.sleep(0)
    second_task = asyncio.create_task(repository.changes.commit("main", Note(message="second", committer="b")))
    await asyncio.sleep(0)
    may_go.set()
    first, second = await first_task, await second_task

    assert second.parents == (first.id,)
    assert second.metarange_id == first.metarange_id


async def test_who_commits_what_another_process_committed_already_gets_a_commit(
    make_catalog: Callable[[], Catalog], namespace: str
) -> None:
    here, there = make_catalog(), make_catalog()
    await here.create("repo", storage_namespace=namespace)
    mine, theirs = await here.get("repo"), await there.get("repo")
    await mine.objects.upload("main", "a", b"1")
    first = await theirs.changes.commit("main", Note(message="theirs", committer="c"))

    second = await mine.changes.commit("main", Note(message="mine", committer="c"))

    assert (second.parents, second.metarange_id) == ((first.id,), first.metarange_id)
    with pytest.raises(NoChanges):
        await mine.changes.commit("main", Note(message="again", committer="c"))


async def test_who_commits_a_write_that_was_repeated_beside_a_commit_gets_a_commit(
    make_catalog: Callable[[], Catalog], namespace: str, store: HookedStore
) -> None:
    here, there = make_catalog(), make_catalog()
    await here.create("repo", storage_namespace=namespace)
    mine, theirs = await here.get("repo"), await there.get("repo")

    async def commit() -> None:
        await theirs.changes.commit("main", Note(message="theirs", committer="c"))

    async def commit_after_the_cell() -> None:
        store.before("get", b"branch/main", commit)

    store.before("set_if", b"a", commit_after_the_cell)
    await mine.objects.upload("main", "a", b"1")
    await mine.versions.refs.get_branch("main")

    assert (await mine.changes.commit("main", Note(message="mine", committer="c"))).generation == 3


async def test_the_same_bytes_uploaded_again_are_no_changes(repository: Repository) -> None:
    for message in ("first", "second"):
        await repository.objects.upload("main", "a", b"1")
        if message == "first":
            await repository.changes.commit("main", Note(message=message, committer="c"))
    with pytest.raises(NoChanges):
        await repository.changes.commit("main", Note(message="second", committer="c"))


async def test_a_commit_of_nothing_is_no_changes(repository: Repository) -> None:
    with pytest.raises(NoChanges):
        await repository.changes.commit("main", Note(message="m", committer="esti"))


async def test_a_dead_committers_sealed_token_holds_up_the_next_one_only_briefly(
    repository: Repository, ports: Ports
) -> None:
    await repository.objects.upload("main", "a", b"1")
    await repository.versions.commits.seal("main")
    before_ms = ports.clock.now_ms()

    commit = await repository.changes.commit("main", Note(message="m", committer="esti"))

    assert commit.generation == 2
    assert ports.clock.now_ms() - before_ms < 1_000


@pytest.mark.parametrize("force", [False, True])
async def test_the_default_branch_cannot_be_deleted(repository: Repository, *, force: bool) -> None:
    with pytest.raises(Denied, match="cannot delete repository default branch"):
        await repository.changes.delete_branch("main", force=force)


async def test_a_branch_of_a_flow_has_its_mark_before_it_is_made_and_until_it_is_gone(
    repository: Repository, store: HookedStore
) -> None:
    """The process may die between two writes: a branch without the mark would be a user's, and stay."""

    async def die() -> None:
        raise StoreUnavailable("the process died")

    mark = keys.SETTING + b"hidden_branch/"
    store.before("set", mark, die)
    with pytest.raises(StoreUnavailable):
        await repository.changes.create_branch("own", "main", work_of="import")
    with pytest.raises(BranchNotFound):
        await repository.versions.refs.get_branch("own")

    await repository.changes.create_branch("own", "main", work_of="import")
    store.before("delete", mark, die)
    with pytest.raises(StoreUnavailable):
        await repository.changes.delete_branch("own", is_ours=True)
    with pytest.raises(BranchNotFound):
        await repository.versions.refs.get_branch("own")


async def test_changes_of_no_branch_are_not_found(repository: Repository) -> None:
    with pytest.raises(BranchNotFound):
        await repository.changes.commit("nope", Note(message="m", committer="esti"))
    with pytest.raises(BranchNotFound):
        await repository.changes.delete_branch("nope")
    with pytest.raises(BranchNotFound):
        await repository.objects.upload("nope", "a", b"1")


class TestProtection:
    async def test_a_protected_branch_takes_merges_and_reverts_but_no_writes_and_commits(
        self, repository: Repository
    ) -> None:
        await repository.changes.create_branch("stable-1", "main")
        await repository.settings.set_protection_patterns(["stable-*"])

        for change in (
            repository.objects.upload("stable-1", "a", b"1"),
            repository.objects.delete("stable-1", "a"),
            repository.objects.delete_many("stable-1", ["a"]),
            repository.objects.copy("main", "a", "stable-1", "b"),
            repository.changes.commit("stable-1", Note(message="m", committer="esti")),
            repository.changes.hard_reset("stable-1", "main"),
        ):
            with pytest.raises(ProtectedBranch):
                await change
        await repository.objects.upload("main", "a", b"1")
        await repository.changes.commit("main", Note(message="m", committer="esti"))
        await repository.changes.merge("main", "stable-1", Note(message="m", committer="esti"))

        assert (await repository.objects.get("stable-1", "a")).size_bytes == 1
        await repository.changes.revert("stable-1", "main", Note(committer="esti"))
        with pytest.raises(PathNotFound):
            await repository.objects.get("stable-1", "a")

    async def test_a_rule_counts_in_other_processes_a_second_later(
        self, repository: Repository, make_catalog: Callable[[], Catalog], ports: Ports
    ) -> None:
        elsewhere = await make_catalog().get("repo")
        await elsewhere.objects.upload("main", "a", b"1")

        await repository.settings.set_protection_patterns(["main"])
        await ports.clock.sleep(1)

        with pytest.raises(ProtectedBranch):
            await elsewhere.objects.upload("main", "a", b"1")

    async def test_rules_are_replaced_only_by_who_saw_the_last_ones(self, repository: Repository) -> None:
        settings = repository.settings
        assert await settings.protection_patterns() == ((), "")
        await settings.set_protection_patterns(["a"], if_match=Etags.of(""))
        _, etag = await settings.protection_patterns()

        with pytest.raises(SettingChanged):
            await settings.set_protection_patterns(["b"], if_match=Etags.of(""))
        await settings.set_protection_patterns(["b"], if_match=Etags.of(etag))

        assert (await settings.protection_patterns())[0] == ("b",)


async def test_a_hidden_branch_is_known_to_be_hidden_until_it_is_deleted(repository: Repository) -> None:
    await repository.changes.create_branch("tx-1", "main", hidden=True)
    assert await repository.settings.hidden_branches() == {"tx-1"}

    await repository.changes.delete_branch("tx-1")

    assert await repository.settings.hidden_branches() == set()
