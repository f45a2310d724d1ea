"""Tables on branches: files of a hidden branch that commits of other branches name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import pytest

from lakebed.base import Conflict, Denied, Entry, Invalid, from_row
from lakebed.catalog import Catalog, FileOfTable, ImportRecord, Location, Repository
from lakebed.catalog.tables import (
    TABLES,
    MissingFile,
    NamespaceExists,
    NamespaceNotEmpty,
    NoSuchNamespace,
    NoSuchTable,
    OutsideTables,
    TableChange,
    TableConflict,
    TableExists,
    TableName,
    TablesNameTaken,
    commits,
)
from lakebed.catalog.tables import tables as tables_
from lakebed.catalog.tables.commits import place
from lakebed.objectstore import ObjectStore
from lakebed.versions import Commit, MergeConflict, Note, PathExists, Sides, Versions
from tests.clocks import TurnableClock

NOTE = Note(message="tables", committer="tester")
DB = ("db",)
NAME = TableName(DB, "t")


@pytest.fixture
async def tables(repository: Repository) -> Repository:
    await repository.tables.create_namespace("main", DB, {"owner": "us"}, NOTE)
    return repository


async def append(
    repository: Repository,
    number: int,
    *,
    branch: str = "main",
    name: TableName = NAME,
    files: Sequence[str] = (),
    removed: Sequence[str] = (),
    expected: str | None = "",
) -> Commit:
    """Write the metadata file of this number and these data files, and commit them."""
    metadata = f"u/metadata/{number}.json"
    for file in (metadata, *files):
        await repository.tables.put(file, f"{file} {branch}".encode())
    if expected == "":
        expected = f"u/metadata/{number - 1}.json" if number else None
    change = TableChange(name=name, expected=expected, metadata=metadata, uuid="u", added=files, removed=removed)
    return await repository.tables.commit(branch, [change], NOTE)


async def files_of(repository: Repository, ref: str, name: TableName = NAME) -> list[str]:
    return [file for file, _ in (await repository.tables.files(ref, name))[0]]


async def test_a_commit_of_a_table_is_one_commit_that_names_each_file(tables: Repository) -> None:
    before = await tables.versions.refs.resolve_commit("main")
    commit = await append(tables, 0, files=["u/data/a", "u/data/b"])
    assert commit.parents == (before,)
    assert await files_of(tables, "main") == ["u/data/a", "u/data/b", "u/metadata/0.json"]
    table = await tables.tables.load("main", NAME)
    assert (table.uuid, table.metadata, table.commit_id) == ("u", "u/metadata/0.json", commit.id)
    assert await tables.objects.read(table.entry) == b"u/metadata/0.json main"
    entry = await tables.versions.staging.get("main", b"db/t.iceberg/data/a")
    assert entry == await tables.versions.staging.get(TABLES, b"u/data/a")


async def test_files_go_on_behind_the_last_of_a_page(tables: Repository) -> None:
    await append(tables, 0, files=["u/data/a", "u/data/b"])
    rest, _ = await tables.tables.files("main", NAME, after="u/data/a")
    assert [file for file, _ in rest] == ["u/data/b", "u/metadata/0.json"]


async def test_a_table_that_goes_back_to_older_metadata_changed_now(tables: Repository, clock: TurnableClock) -> None:
    await append(tables, 0)
    await append(tables, 1)
    clock.ms += 60_000
    change = TableChange(name=NAME, expected="u/metadata/1.json", metadata="u/metadata/0.json", uuid="u")

    back = await tables.tables.commit("main", [change], NOTE)

    table = await tables.tables.load("main", NAME)
    assert (table.metadata, table.entry.modified_ms) == ("u/metadata/0.json", back.created_ms)


async def test_a_table_that_another_commit_changed_is_a_conflict_and_nothing_is_committed(tables: Repository) -> None:
    await append(tables, 0)
    head = (await append(tables, 1, files=["u/data/a"])).id
    with pytest.raises(TableConflict) as refused:
        await append(tables, 1, expected="u/metadata/0.json")
    assert refused.value.facts["found"] == "u/metadata/1.json"
    assert await tables.versions.refs.resolve_commit("main") == head
    with pytest.raises(TableExists):
        await append(tables, 0)
    with pytest.raises(NoSuchTable):
        await append(tables, 1, name=TableName(DB, "other"))
    with pytest.raises(NoSuchNamespace):
        await append(tables, 0, name=TableName(("no",), "t"))


async def test_a_commit_of_two_tables_is_whole_or_not_at_all(tables: Repository) -> None:
    await append(tables, 0)
    await tables.tables.put("v/m.json", b"1")
    await tables.tables.put("u/metadata/1.json", b"1")
    second = TableChange(name=TableName(DB, "v"), expected=None, metadata="v/m.json", uuid="v")
    stale = TableChange(name=NAME, expected="gone", metadata="u/metadata/1.json", uuid="u")
    with pytest.raises(TableConflict):
        await tables.tables.commit("main", [second, stale], NOTE)
    assert not await tables.tables.find("main", second.name)
    fresh = TableChange(name=NAME, expected="u/metadata/0.json", metadata="u/metadata/1.json", uuid="u")
    with pytest.raises(Invalid, match="names a table twice"):
        await tables.tables.commit("main", [fresh, fresh], NOTE)
    await tables.tables.commit("main", [second, fresh], NOTE)
    names = [NAME, second.name]
    assert [await tables.tables.list("main", DB, limit=limit) for limit in (1, 2)] == [
        (names[:1], True),
        (names, False),
    ]


async def test_a_rename_takes_the_place_of_no_table(tables: Repository) -> None:
    await append(tables, 0)
    other = TableName(DB, "other")
    await tables.tables.put("v/m.json", b"1")
    await tables.tables.commit("main", [TableChange(name=other, expected=None, metadata="v/m.json", uuid="v")], NOTE)

    with pytest.raises(TableExists):
        await tables.tables.rename("main", NAME, other, NOTE)
    with pytest.raises(NoSuchNamespace):
        await tables.tables.rename("main", NAME, TableName(("none",), "t"), NOTE)

    assert [(await tables.tables.load("main", name)).uuid for name in (NAME, other)] == ["u", "v"]


async def test_a_namespace_has_the_properties_of_the_ref_that_is_asked(tables: Repository) -> None:
    await tables.changes.create_tag("v1", "main")
    await tables.tables.change_namespace("main", DB, lambda _: {"owner": "them"}, NOTE)

    assert [(await tables.tables.namespace(ref, DB))["owner"] for ref in ("v1", "main~1", "main")] == [
        "us",
        "us",
        "them",
    ]


async def test_what_no_engine_wrote_or_is_of_another_table_is_refused(tables: Repository) -> None:
    await append(tables, 0)
    metadata = "u/metadata/0.json"
    change = TableChange(name=NAME, expected=metadata, metadata=metadata, uuid="u", added=["u/data/none"])
    with pytest.raises(MissingFile) as refused:
        await tables.tables.commit("main", [change], NOTE)
    assert refused.value.facts["file"] == "u/data/none"
    with pytest.raises(MissingFile):
        await append(tables, 1, files=["v/data/x"])
    for uri in ("s3://other.tables/u/x", "https://lake.tables/u/x", tables.tables.uri_of("")):
        with pytest.raises(OutsideTables):
            tables.tables.file_of(uri)
    assert tables.tables.file_of(tables.tables.uri_of("u") + "/x") == "u/x"


@pytest.mark.parametrize("file", ["u/table.json", "u/namespace.json", "u/", "uv/data/x", "v/data/x", "u"])
def test_no_file_takes_the_place_of_a_record_or_of_another_table(file: str) -> None:
    change = TableChange(name=NAME, expected=None, metadata="u/metadata/0.json", uuid="u")

    assert place(NAME.folder, change, "u/data/x") == NAME.folder + b"data/x"
    with pytest.raises(MissingFile):
        place(NAME.folder, change, file)


async def test_branches_and_merges_carry_tables_and_conflicts_stay_conflicts(tables: Repository) -> None:
    await append(tables, 0, files=["u/data/a"])
    await tables.changes.create_branch("dev", "main")
    await append(tables, 1, branch="dev", files=["u/data/b"], removed=["u/data/a"])
    assert (await tables.tables.load("main", NAME)).metadata == "u/metadata/0.json"
    await tables.changes.create_branch("other", "main")
    await tables.changes.merge("dev", "main", NOTE)
    assert await files_of(tables, "main") == ["u/data/b", "u/metadata/0.json", "u/metadata/1.json"]
    await tables.tables.put("u/metadata/1b.json", b"other")
    rival = TableChange(name=NAME, expected="u/metadata/0.json", metadata="u/metadata/1b.json", uuid="u")
    await tables.tables.commit("other", [rival], NOTE)
    with pytest.raises(MergeConflict, match=r"both sides changed table db\.t, and no strategy or choice settles that$"):
        await tables.changes.merge("other", "main", NOTE)
    await tables.changes.revert("main", "main", NOTE, parent_number=1)
    assert await files_of(tables, "main") == ["u/data/a", "u/metadata/0.json"]


async def test_a_merge_that_conflicts_beside_its_tables_is_not_settled(tables: Repository) -> None:
    async def changed(*_: object) -> TableChange:
        raise AssertionError("no table of it is asked for")

    settle = tables.tables.settling(changed)

    for keys in ([b"db/t.iceberg/table.json", b"db/plain"], [b"db/plain"]):
        conflict = MergeConflict("both sides", conflicts=keys)
        with pytest.raises(MergeConflict) as refused:
            await settle(cast("Sides", None), conflict)
        assert refused.value is conflict


async def test_no_strategy_and_no_choice_takes_files_of_the_table_that_wins(tables: Repository) -> None:
    await append(tables, 0, files=["u/data/a"])
    await tables.changes.create_branch("dev", "main")
    await tables.tables.drop("dev", NAME, NOTE)
    await append(tables, 1, files=["u/data/b"])
    record = b"db/t.iceberg/table.json"
    with pytest.raises(MergeConflict, match="changed table db"):
        await tables.changes.merge("dev", "main", NOTE, strategy="dest-wins")
    with pytest.raises(MergeConflict, match="changed table db"):
        await tables.changes.merge("main", "dev", NOTE, strategy="source-wins")
    with pytest.raises(MergeConflict, match="changed table db"):
        await tables.changes.merge("dev", "main", NOTE, choices={record: "dest-wins"})
    assert await files_of(tables, "main") == ["u/data/a", "u/data/b", "u/metadata/0.json", "u/metadata/1.json"]


async def test_dropping_and_renaming_a_table_keep_its_files(
    tables: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (commits, tables_):
        monkeypatch.setattr(module, "PAGE", 1)
    await append(tables, 0, files=["u/data/a"])
    other = TableName(DB, "other")
    await tables.tables.rename("main", NAME, other, NOTE)
    assert await files_of(tables, "main", other) == ["u/data/a", "u/metadata/0.json"]
    with pytest.raises(NoSuchTable):
        await tables.tables.load("main", NAME)
    await tables.tables.drop("main", other, NOTE)
    assert not await tables.tables.find("main", other)
    below = await tables.versions.staging.list("main", prefix=other.folder, limit=9)
    assert below.items == []
    assert (await tables.tables.load("main~1", other)).metadata == "u/metadata/0.json"
    assert await tables.tables.sizes(["u/data/a", "u/data/none"]) == [len("u/data/a main"), None]


async def test_tags_and_commits_are_read_only(tables: Repository) -> None:
    head = (await append(tables, 0)).id
    await tables.changes.create_tag("v1", "main")
    for ref in ("v1", head):
        assert await tables.tables.find(ref, NAME)
        with pytest.raises(Denied, match="is no branch: tables change on branches only"):
            await tables.tables.drop(ref, NAME, NOTE)


async def test_properties_that_are_set_at_the_same_time_are_all_kept(
    tables: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    def setting(name: str) -> Callable[[Mapping[str, str]], Mapping[str, str]]:
        return lambda before: {**before, name: "set"}

    put, others = tables.tables.put, iter(["two", "three"])

    async def put_behind_another(*given: Any, **named: Any) -> Entry:
        for name in others:  # Once: between the look of the first and its commit.
            await tables.tables.change_namespace("main", DB, setting(name), NOTE)
        return await put(*given, **named)

    monkeypatch.setattr(tables.tables, "put", put_behind_another)
    await tables.tables.change_namespace("main", DB, setting("one"), NOTE)

    assert await tables.tables.namespace("main", DB) == {"owner": "us", "one": "set", "two": "set", "three": "set"}


async def test_namespaces_are_folders_with_properties(tables: Repository) -> None:
    await tables.tables.create_namespace("main", ("db", "inner"), {}, NOTE)
    assert (await tables.tables.namespaces("main"))[0] == [DB]
    assert (await tables.tables.namespaces("main", DB))[0] == [("db", "inner")]
    assert await tables.tables.namespace("main", DB) == {"owner": "us"}
    await tables.tables.change_namespace("main", DB, lambda _: {"owner": "you"}, NOTE)
    assert await tables.tables.namespace("main", DB) == {"owner": "you"}
    with pytest.raises(NamespaceExists):
        await tables.tables.create_namespace("main", DB, {}, NOTE)
    with pytest.raises(NoSuchNamespace):
        await tables.tables.create_namespace("main", ("no", "inner"), {}, NOTE)
    with pytest.raises(NamespaceNotEmpty):
        await tables.tables.drop_namespace("main", DB, NOTE)
    await tables.tables.drop_namespace("main", ("db", "inner"), NOTE)
    assert (await tables.tables.namespaces("main", DB))[0] == []


async def test_the_hidden_branch_takes_new_files_and_nothing_else(tables: Repository) -> None:
    await tables.tables.put("u/data/a", b"1")
    assert await tables.tables.put("u/data/a", b"1") == await tables.objects.get(TABLES, "u/data/a")
    with pytest.raises(PathExists):
        await tables.tables.put("u/data/a", b"2")
    refused = (
        tables.objects.delete(TABLES, "u/data/a"),
        tables.objects.copy(TABLES, "u/data/a", TABLES, "u/data/b"),
        tables.objects.move(TABLES, "u/data/a", "main", "b"),
        tables.changes.commit(TABLES, NOTE),
        tables.changes.reset(TABLES),
        tables.changes.hard_reset(TABLES, "main"),
        tables.changes.merge("main", TABLES, NOTE),
        tables.changes.revert(TABLES, "main", NOTE),
        tables.changes.delete_branch(TABLES),
    )
    for attempt in refused:
        with pytest.raises(Denied, match="holds the files of tables: it accepts new files only"):
            await attempt
    assert TABLES in await tables.settings.hidden_branches()


async def test_files_that_a_table_needs_are_changed_through_the_catalog_alone(tables: Repository) -> None:
    await append(tables, 0, files=["u/data/a"])
    objects, file, record = tables.objects, "db/t.iceberg/data/a", "db/t.iceberg/table.json"
    for path in ("plain", "other.iceberg/data/a"):
        await objects.upload("main", path, b"of no table")
    outside = Entry(address="mem://x/y", size_bytes=1, checksum="", modified_ms=0)
    refused = (
        objects.delete("main", file),
        objects.delete("main", record),
        objects.upload("main", file, b"2"),
        objects.upload("main", "db/t.iceberg/inner.iceberg/a", b"2"),
        objects.copy("main", "plain", "main", file),
        objects.copy("main", record, "main", "db/twin.iceberg/table.json"),
        objects.move("main", file, "main", "b"),
        objects.move("main", "plain", "main", file),
        objects.set_metadata("main", file, {}),
        objects.stage("main", file, outside),
        tables.multipart.begin("main", file, content_type="x", metadata={}),
    )
    for attempt in refused:
        with pytest.raises(FileOfTable, match=r"of table db\.t: change|would be a table without its files: register"):
            await attempt
    failed = await objects.delete_many("main", [file, "other.iceberg/data/a"])
    assert [(path, type(error)) for path, error in failed] == [(file, FileOfTable)]
    assert await tables.versions.staging.get_many("main", [b"other.iceberg/data/a"]) == [None]
    assert await objects.copy("main", file, "main", "aside")

    await objects.delete("main", file, force=True)
    assert await objects.delete_many("main", [record], force=True) == []
    await objects.upload("main", file, b"of no table any more")


async def test_an_import_over_a_table_fails_and_names_it(
    tables: Repository, open_namespace: Callable[[str], ObjectStore]
) -> None:
    await append(tables, 0, files=["u/data/a"])
    source = open_namespace(tables.objectstore.uri.replace("catalog", "source"))
    await source.put("in/data/a", b"1")
    folder = [Location(source=source.uri + "/in/", destination="db/t.iceberg", is_folder=True)]

    async def run(*, force: bool) -> ImportRecord:
        begun = await tables.imports.begin("main", folder)
        return await tables.imports.run(begun, folder, NOTE, force=force)

    before = await tables.objects.get("main", "db/t.iceberg/data/a")
    assert "is a file of table db.t: change or drop" in (await run(force=False)).error
    assert await tables.objects.get("main", "db/t.iceberg/data/a") == before
    assert (await run(force=True)).error == ""
    assert await tables.objects.get("main", "db/t.iceberg/data/a") != before


async def test_a_users_branch_of_the_name_stays_as_it_is_and_the_catalog_says_so(repository: Repository) -> None:
    await repository.changes.create_branch(TABLES, "main")
    with pytest.raises(TablesNameTaken):
        await repository.tables.create_namespace("main", DB, {}, NOTE)
    await repository.objects.upload(TABLES, "a", b"1")
    await repository.objects.upload(TABLES, "a", b"2")
    await repository.changes.delete_branch(TABLES)
    assert not await repository.tables.is_started()
    await repository.tables.create_namespace("main", DB, {}, NOTE)
    assert await repository.tables.is_started()


async def test_a_mark_that_a_crash_left_makes_no_branch_of_a_user_the_hidden_one(repository: Repository) -> None:
    await repository.settings.hide_branch(TABLES, work_of=TABLES)
    await repository.changes.create_branch(TABLES, "main")
    assert not await repository.tables.is_started()
    await repository.objects.upload(TABLES, "a", b"1")
    await repository.objects.upload(TABLES, "a", b"2")
    with pytest.raises(TablesNameTaken):
        await repository.tables.create_namespace("main", DB, {}, NOTE)


async def test_a_hidden_branch_that_a_crash_left_without_its_mark_gets_it(repository: Repository) -> None:
    head = await repository.versions.refs.resolve_commit("main")
    await repository.versions.refs.create_branch(TABLES, head, work_of=TABLES)

    await repository.tables.start()

    assert TABLES in await repository.settings.hidden_branches()


async def test_settling_moves_cells_into_ranges_and_keeps_every_file(tables: Repository) -> None:
    await append(tables, 0, files=["u/data/a"])
    assert await tables.tables.settle() == 0
    head = await tables.versions.refs.resolve_commit(TABLES)
    [row] = await tables.versions.staging.rows_of_commit(head, [b"u/data/a"])
    assert row is not None
    assert from_row(row) == await tables.versions.staging.get("main", b"db/t.iceberg/data/a")
    await append(tables, 1, files=["u/data/b"])
    assert await files_of(tables, "main") == ["u/data/a", "u/data/b", "u/metadata/0.json", "u/metadata/1.json"]


async def test_a_restored_dump_has_each_file_of_its_tables_and_refuses_another_id(
    tables: Repository, catalog: Catalog, open_namespace: Callable[[str], ObjectStore]
) -> None:
    await append(tables, 0, files=["u/data/a"])
    await append(tables, 1, files=["u/data/b"])
    dumped = await tables.dumps.dump()
    source = tables.objectstore
    copy = open_namespace(source.uri + "-copy")
    async for page in source.list():
        for stat in page:
            await copy.put(stat.key, await source.get(stat.key))

    async def bare(_: Versions) -> None:
        pass

    other = await catalog.create("other", storage_namespace=copy.uri, bare=bare)
    with pytest.raises(Conflict, match="restore it in a repository repo, and not in other"):
        await other.dumps.restore(dumped)
    await catalog.delete("other")
    await catalog.delete("repo")
    copy_again = open_namespace(source.uri + "-again")
    async for page in copy.list():
        for stat in page:
            await copy_again.put(stat.key, await copy.get(stat.key))
    again = await catalog.create("repo", storage_namespace=copy_again.uri, bare=bare)
    await again.dumps.restore(dumped)

    assert await files_of(again, "main") == ["u/data/a", "u/data/b", "u/metadata/0.json", "u/metadata/1.json"]
    assert await again.tables.read("u/data/a") == b"u/data/a main"
    assert (await again.tables.is_started(), await again.settings.is_hidden(TABLES)) == (True, True)
    await again.tables.settle()
    await again.dumps.restore(dumped)
    await append(again, 2, files=["u/data/c"], removed=["u/data/a"])
    with pytest.raises(Denied, match="holds the files of tables: it accepts new files only"):
        await again.changes.delete_branch(TABLES)
