"""Making, finding and deleting repositories."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from lakebed.base import Entry, Invalid, InvalidName, NotFound, OutcomeUnknown, Ports, StagingToken
from lakebed.catalog import MARKER_KEY, Catalog, NamespaceInUse, ReadOnly, RepositoryExists, RepositoryNotFound
from lakebed.kv import Predicate, Store
from lakebed.objectstore import InvalidNamespace, ObjectOutcomeUnknown, ObjectStoreUnavailable, open_objectstore
from lakebed.versions import BranchNotFound, Note, RefState, Sealed, encode_record, keys
from lakebed.versions.commits.committer import Committer


async def test_a_new_repository_has_a_default_branch_with_one_commit(catalog: Catalog, namespace: str) -> None:
    repository = await catalog.create("repo", storage_namespace=namespace, default_branch="trunk")

    commits, _ = await repository.versions.history.log("trunk")

    assert [(commit.message, commit.generation, commit.committer) for commit in commits] == [
        ("Repository created", 1, "")
    ]
    assert repository.record.storage_namespace == namespace


async def test_an_id_is_taken_once(catalog: Catalog, namespace: str) -> None:
    await catalog.create("repo", storage_namespace=namespace)

    with pytest.raises(RepositoryExists):
        await catalog.create("repo", storage_namespace=namespace + "-other")


@pytest.mark.parametrize("name", ["", "ab", "Upper", "under_score", "-dash", "a" * 64, "repo\n", "../up"])
async def test_a_bad_name_is_refused_and_leaves_nothing(catalog: Catalog, namespace: str, name: str) -> None:
    with pytest.raises(InvalidName):
        await catalog.create(name, storage_namespace=namespace)
    with pytest.raises(RepositoryNotFound):
        await catalog.get(name)

    await catalog.create("repo", storage_namespace=namespace)


async def test_a_bad_default_branch_is_refused_and_leaves_nothing(catalog: Catalog, namespace: str) -> None:
    with pytest.raises(InvalidName):
        await catalog.create("repo", storage_namespace=namespace, default_branch="a/b")

    await catalog.create("repo", storage_namespace=namespace)


@pytest.mark.parametrize("uri", ["", "nowhere", "ftp://x", "mem://", "mem://a/../b", "mem://a//b"])
async def test_a_malformed_namespace_is_refused(catalog: Catalog, uri: str) -> None:
    with pytest.raises(InvalidNamespace):
        await catalog.create("repo", storage_namespace=uri)


@pytest.mark.parametrize("nested", ["", "/", "/inner", "/a/b/c"])
async def test_a_namespace_inside_one_in_use_is_in_use(catalog: Catalog, namespace: str, nested: str) -> None:
    await catalog.create("repo", storage_namespace=namespace)

    with pytest.raises(NamespaceInUse):
        await catalog.create("other", storage_namespace=namespace + nested)
    with pytest.raises(RepositoryNotFound):
        await catalog.get("other")


async def test_a_namespace_around_one_in_use_is_in_use(catalog: Catalog, namespace: str) -> None:
    await catalog.create("repo", storage_namespace=namespace + "/a/b")

    with pytest.raises(NamespaceInUse):
        await catalog.create("other", storage_namespace=namespace + "/a")
    await catalog.create("other", storage_namespace=namespace + "/ab")


async def test_a_deleted_repository_leaves_its_namespace_in_use_and_everything_inside_it(
    catalog: Catalog, namespace: str
) -> None:
    await catalog.create("repo", storage_namespace=namespace)
    await catalog.delete("repo")

    for uri in (namespace, namespace + "/inner"):
        with pytest.raises(NamespaceInUse):
            await catalog.create("repo", storage_namespace=uri)


async def test_repositories_are_listed_by_id_in_pages(catalog: Catalog, namespace: str) -> None:
    for name in ("bbb", "aaa", "bbc"):
        await catalog.create(name, storage_namespace=f"{namespace}/{name}")

    first, has_more = await catalog.list(limit=2)
    second, _ = await catalog.list(after=first[-1][0])
    with_prefix, _ = await catalog.list(prefix="bb")
    with_word, _ = await catalog.list(search="c")

    assert [name for name, _ in first + second] == ["aaa", "bbb", "bbc"]
    assert has_more
    assert [name for name, _ in with_prefix] == ["bbb", "bbc"]
    assert [name for name, _ in with_word] == ["bbc"]


async def test_metadata_keys_come_and_go_alone(catalog: Catalog, namespace: str) -> None:
    await catalog.create("repo", storage_namespace=namespace)

    await catalog.set_metadata("repo", {"a": "1", "b": "2"})
    await catalog.set_metadata("repo", {"b": "3"})
    await catalog.remove_metadata("repo", ["a", "never"])

    assert (await catalog.get("repo")).record.metadata == {"b": "3"}


async def test_metadata_that_would_outgrow_a_value_is_refused(catalog: Catalog, namespace: str) -> None:
    await catalog.create("repo", storage_namespace=namespace)
    await catalog.set_metadata("repo", {"a": "x" * 200_000})

    with pytest.raises(Invalid, match="a repository's record has at most"):
        await catalog.set_metadata("repo", {"b": "x" * 200_000})

    assert (await catalog.get("repo")).record.metadata.keys() == {"a"}


async def test_a_forgotten_repository_is_gone_with_all_its_records(
    catalog: Catalog, namespace: str, store: Store
) -> None:
    repository = await catalog.create("repo", storage_namespace=namespace)
    await repository.objects.upload("main", "a", b"1")
    await repository.changes.commit("main", Note(message="m", committer="esti"))
    await repository.objects.upload("main", "b", b"2")
    uid = repository.record.uid

    await catalog.delete("repo")
    await catalog.deleted.forget("repo")

    with pytest.raises(RepositoryNotFound):
        await catalog.get("repo")
    assert (await store.scan(uid.encode(), b"", 10)).keys == []
    with pytest.raises(NotFound):
        await catalog.delete("repo")


async def test_objects_outlive_their_repository(catalog: Catalog, namespace: str) -> None:
    repository = await catalog.create("repo", storage_namespace=namespace)
    entry = await repository.objects.upload("main", "a", b"1")

    await catalog.delete("repo")

    assert await open_objectstore(namespace).get(entry.address) == b"1"


async def test_a_repository_made_again_has_nothing_of_the_old_one(catalog: Catalog, namespace: str) -> None:
    old = await catalog.create("repo", storage_namespace=namespace)
    await old.objects.upload("main", "a", b"1")
    await catalog.delete("repo")

    new = await catalog.create("repo", storage_namespace=namespace + "-2")

    assert new.record.uid != old.record.uid
    assert (await new.versions.staging.list("main")).items == []


async def test_a_write_through_an_old_handle_of_a_deleted_repository_fails(
    make_catalog: Callable[[], Catalog], namespace: str
) -> None:
    here, there = make_catalog(), make_catalog()
    await here.create("repo", storage_namespace=namespace)
    handle = await there.get("repo")
    await handle.objects.upload("main", "a", b"1")

    await here.delete("repo")

    with pytest.raises(BranchNotFound):
        await handle.objects.upload("main", "b", b"2")


async def test_other_processes_see_a_deletion_within_the_cache_time(
    make_catalog: Callable[[], Catalog], namespace: str, ports: Ports
) -> None:
    here, there = make_catalog(), make_catalog()
    await here.create("repo", storage_namespace=namespace)
    await there.get("repo")

    await here.delete("repo")
    await ports.clock.sleep(1)

    with pytest.raises(RepositoryNotFound):
        await there.get("repo")


async def test_what_was_written_late_is_cleaned_when_no_old_request_can_be_under_way(
    catalog: Catalog, namespace: str, store: Store, ports: Ports
) -> None:
    repository = await catalog.create("repo", storage_namespace=namespace)
    token = (await repository.versions.context.branches.every())[0][1].staging_token
    partition = f"{repository.record.uid}/{token}".encode()
    await catalog.delete("repo")
    await catalog.deleted.forget("repo")
    await store.set(partition, b"late", b"cell")

    await catalog.clean()
    assert (await store.scan(partition, b"", 10)).keys == [b"late"]
    await ports.clock.sleep(3600)
    await catalog.clean()

    assert (await store.scan(partition, b"", 10)).keys == []
    assert (await store.scan(b"deleted-repositories", b"", 10)).keys == []
    assert (await store.scan(f"{repository.record.uid}/deleted".encode(), b"", 10)).keys == []


async def test_a_repository_of_more_tokens_than_a_value_can_hold_is_forgotten_with_every_cell(
    catalog: Catalog, namespace: str, store: Store, ports: Ports, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1,000 branches of 21 tokens each, in a store whose values may have 300 KB."""
    uid = (repository := await catalog.create("repo", storage_namespace=namespace)).record.uid
    main = (await repository.versions.context.branches.every())[0][1]
    tokens = []
    for number in range(1_000):
        mine = [StagingToken(f"{number:010d}{place:010d}") for place in range(21)]
        record = replace(main, staging_token=mine[0], sealed=tuple([Sealed(token) for token in mine[1:]]))
        await store.set(uid.encode(), f"branch/{number:04d}".encode(), encode_record(record))
        await store.set(keys.token_partition(uid, mine[-1]), b"k", b"cell")
        tokens += mine
    real_set, real_set_many = store.set, store.set_many

    async def small_set(partition: bytes, key: bytes, value: bytes) -> None:
        assert len(value) <= 300_000
        await real_set(partition, key, value)

    async def small_set_many(partition: bytes, items: Sequence[tuple[bytes, bytes]]) -> None:
        assert all(len(value) <= 300_000 for _, value in items)
        await real_set_many(partition, items)

    monkeypatch.setattr(store, "set", small_set)
    monkeypatch.setattr(store, "set_many", small_set_many)
    await catalog.delete("repo")
    await catalog.deleted.forget("repo")
    await store.set(keys.token_partition(uid, tokens[-1]), b"late", b"cell")
    await ports.clock.sleep(3600)
    await catalog.clean()

    for token in tokens:
        assert (await store.scan(keys.token_partition(uid, token), b"", 1)).keys == []


async def test_a_last_cleaning_that_died_over_the_list_of_tokens_is_done_again(
    catalog: Catalog, namespace: str, store: Store, ports: Ports, monkeypatch: pytest.MonkeyPatch
) -> None:
    uid = (await catalog.create("repo", storage_namespace=namespace)).record.uid
    await catalog.delete("repo")
    await catalog.deleted.forget("repo")
    await ports.clock.sleep(3600)

    async def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(store, "delete", die)
        with pytest.raises(KeyboardInterrupt):
            await catalog.clean()
    await catalog.clean()

    assert (await store.scan(b"deleted-repositories", b"", 10)).keys == []
    assert (await store.scan(f"{uid}/deleted".encode(), b"", 10)).keys == []


class TestReadOnly:
    async def test_a_read_only_repository_refuses_changes_unless_forced(self, catalog: Catalog, namespace: str) -> None:
        repository = await catalog.create("repo", storage_namespace=namespace, read_only=True)
        outside = Entry(address="mem://elsewhere/x", size_bytes=1, checksum="", modified_ms=0)

        for change in (
            repository.objects.upload("main", "a", b"1"),
            repository.objects.delete("main", "a"),
            repository.objects.stage("main", "a", outside),
            repository.changes.commit("main", Note(message="m", committer="esti")),
            repository.changes.create_branch("b", "main"),
            repository.changes.create_tag("t", "main"),
            repository.changes.merge("main", "main", Note(message="", committer="esti")),
            repository.changes.reset("main"),
            catalog.delete("repo"),
        ):
            with pytest.raises(ReadOnly):
                await change

        await repository.objects.upload("main", "a", b"1", force=True)
        await catalog.delete("repo", force=True)


class TestCrashes:
    """Creation stops at some step; the same creation later takes over what is left."""

    async def test_a_creation_that_failed_before_the_marker_leaves_nothing(
        self, catalog: Catalog, namespace: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def full(*_: object, **__: object) -> None:
            raise ObjectStoreUnavailable("disk full")

        with monkeypatch.context() as patch:
            patch.setattr(type(open_objectstore(namespace)), "put", full)
            with pytest.raises(ObjectStoreUnavailable):
                await catalog.create("repo", storage_namespace=namespace)

        await catalog.create("repo", storage_namespace=namespace)

    async def test_a_creation_that_failed_after_the_marker_can_be_repeated_at_once(
        self, catalog: Catalog, namespace: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def lost(*_: object) -> None:
            raise OutcomeUnknown("lost")

        with monkeypatch.context() as patch:
            patch.setattr(Committer, "initialise", lost)
            with pytest.raises(OutcomeUnknown):
                await catalog.create("repo", storage_namespace=namespace)
        with pytest.raises(RepositoryNotFound):
            await catalog.get("repo")

        await catalog.create("repo", storage_namespace=namespace)

        assert await open_objectstore(namespace).get(MARKER_KEY)

    async def test_a_creation_whose_marker_was_put_without_an_answer_can_be_repeated_at_once(
        self, catalog: Catalog, namespace: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        objectstore = open_objectstore(namespace)
        put = objectstore.put

        async def lost(*arguments: Any, **options: Any) -> None:
            await put(*arguments, **options)
            raise ObjectOutcomeUnknown("lost")

        with monkeypatch.context() as patch:
            patch.setattr(objectstore, "put", lost)
            with pytest.raises(ObjectOutcomeUnknown):
                await catalog.create("repo", storage_namespace=namespace)

        assert await catalog.create("repo", storage_namespace=namespace)

    async def test_a_repository_made_again_here_after_another_process_deleted_it_is_the_new_one(
        self, catalog: Catalog, make_catalog: Callable[[], Catalog], namespace: str
    ) -> None:
        old = await catalog.create("repo", storage_namespace=namespace)
        await make_catalog().delete("repo")

        made = await catalog.create("repo", storage_namespace=namespace + "-2")

        assert made.record.uid != old.record.uid

    async def test_a_creation_that_died_can_be_repeated_after_a_while(
        self, catalog: Catalog, namespace: str, ports: Ports, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def die(*_: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(Committer, "initialise", die)
            with pytest.raises(KeyboardInterrupt):
                await catalog.create("repo", storage_namespace=namespace)
        with pytest.raises(RepositoryExists):
            await catalog.create("repo", storage_namespace=namespace)
        with pytest.raises(NamespaceInUse):
            await catalog.create("other", storage_namespace=namespace)

        await ports.clock.sleep(60)
        await catalog.create("repo", storage_namespace=namespace)

    async def test_a_token_that_a_commit_makes_while_its_repository_is_forgotten_is_cleaned_with_it(
        self, catalog: Catalog, namespace: str, store: Store, ports: Ports, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        repository = await catalog.create("repo", storage_namespace=namespace)
        versions = repository.versions
        sealed: list[StagingToken] = []
        delete_if = store.delete_if

        async def seal_first(partition: bytes, key: bytes, predicate: Predicate) -> None:
            if not sealed:
                sealed.append((await versions.commits.seal("main"))[1].record.staging_token)
                entry = Entry(address="s3://x/y", size_bytes=1, checksum="", modified_ms=1)
                await versions.staging.put("main", b"late", entry)
            await delete_if(partition, key, predicate)

        await catalog.delete("repo")
        record = (await versions.context.branches.every())[0][1]
        # A branch that was made through an old handle is as usable as this.
        await store.set(versions.partition, b"branch/main", encode_record(replace(record, state=RefState.ACTIVE)))
        with monkeypatch.context() as patch:
            patch.setattr(store, "delete_if", seal_first)
            await catalog.deleted.forget("repo")
        await ports.clock.sleep(3600)
        await catalog.clean()

        assert (await store.scan(keys.token_partition(repository.record.uid, sealed[0]), b"", 1)).keys == []

    async def test_a_deletion_that_died_is_finished_by_the_upkeep(
        self, catalog: Catalog, namespace: str, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        repository = await catalog.create("repo", storage_namespace=namespace)

        async def die(*_: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(type(store), "delete_if", die)
            with pytest.raises(KeyboardInterrupt):
                await catalog.delete("repo")
        with pytest.raises(RepositoryNotFound):
            await catalog.get("repo")

        await catalog.clean()

        assert (await store.scan(b"repositories", b"", 10)).keys == []
        assert [one.uid for one in await catalog.deleted.list()] == [repository.record.uid]


async def test_a_setting_is_not_acknowledged_into_a_repository_that_was_deleted_and_made_again(
    make_catalog: Callable[[], Catalog], namespace: str
) -> None:
    here, there = make_catalog(), make_catalog()
    await here.create("repo", storage_namespace=namespace)
    old = await there.get("repo")
    await here.delete("repo")
    await here.create("repo", storage_namespace=f"{namespace}-again")

    with pytest.raises(RepositoryNotFound):
        await old.set_protection(["main"])

    assert await (await here.get("repo")).settings.protection_patterns() == ((), "")
