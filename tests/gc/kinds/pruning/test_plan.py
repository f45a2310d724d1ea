"""Pruning: files of tables that no table names go, with a plan, and come back when the run is undone."""

from __future__ import annotations

from collections.abc import Mapping, Set

import msgspec
import pytest

from lakebed.base import EMPTY_METARANGE, Invalid, Row
from lakebed.catalog import Settings
from lakebed.catalog.tables import TABLES, MissingFile, TableChange, TableCommits, TableName, Tables
from lakebed.gc.kinds.erasure.plan import Erasure
from lakebed.gc.kinds.pruning.plan import Pruning
from lakebed.gc.live import CollectionService, Reach
from lakebed.gc.machine import flow
from lakebed.gc.messages import (
    TABLE_FILES,
    BadInput,
    ErasureOrder,
    FindTables,
    Plan,
    RunKind,
    UncommittedOptions,
    Undo,
    manifest_of,
)
from lakebed.gc.rules import DAY_MS, Selection, days_rules
from lakebed.versions import Commit, Note, PathExpired, PathNotFound
from tests.gc.conftest import Lake

NOTE = Note(message="tables", committer="me")
TABLE = TableName(("db",), "t")
OLD = 5 * DAY_MS


@pytest.fixture
async def tables(lake: Lake) -> Lake:
    """A table with a file, files that no table names, and a folder of another name."""
    await lake.put("main", "db/namespace.json")
    await lake.put("main", "other")
    await lake.commit("main")
    empty = Commit(generation=1, message="", committer="me", created_ms=0, metarange_id=EMPTY_METARANGE, parents=())
    await lake.versions.recorder.record(empty.id, empty)
    await lake.versions.refs.create_branch(TABLES, empty.id, work_of=TABLES)
    for file in ("u/0.json", "u/1.json", "u/data", "u/orphan"):
        await lake.put(TABLES, file, file)
    change = TableChange(name=TABLE, expected=None, metadata="u/0.json", uuid="u", added=["u/data"])
    await TableCommits(lake.versions).commit("main", [change], NOTE)
    await settle(lake)
    await lake.versions.slices.end()
    lake.clock.ms += OLD
    return lake


async def settle(lake: Lake) -> int:
    settings = Settings(lake.versions.uid, lake.store, lake.versions.ports)
    return await Tables("lake", lake.versions, settings, None, None, lake.versions.ports).settle()  # type: ignore[arg-type]  # unused


async def planned(lake: Lake) -> str:
    return await lake.collector().planned(RunKind.PRUNING, UncommittedOptions())


async def address(lake: Lake, file: str) -> str:
    return (await lake.versions.staging.get(TABLES, file.encode())).address


async def test_what_no_table_names_is_pruned_and_says_so(tables: Lake) -> None:
    going = {await address(tables, file) for file in ("u/1.json", "u/orphan")}
    before = await tables.objects()
    found = await tables.collector().again(await planned(tables))
    assert found.garbage == going
    assert await tables.objects() == before - going
    with pytest.raises(PathExpired, match="no table named it, pruned by run"):
        await tables.versions.staging.open(TABLES, b"u/orphan")
    change = TableChange(name=TABLE, expected="u/0.json", metadata="u/0.json", uuid="u", added=["u/orphan"])
    with pytest.raises(MissingFile, match="pruned by run"):
        await TableCommits(tables.versions).commit("main", [change], NOTE)
    assert await settle(tables) == 2
    head = await tables.versions.refs.resolve_commit(TABLES)
    assert await settle(tables) == 0
    assert await tables.versions.refs.resolve_commit(TABLES) == head
    with pytest.raises(PathNotFound):
        await tables.versions.staging.get(TABLES, b"u/orphan")
    assert await tables.versions.staging.get(TABLES, b"u/data")
    assert not (await tables.collector().again(await planned(tables))).garbage


async def test_a_file_that_a_table_came_to_name_since_the_plan_stays(tables: Lake) -> None:
    run_id = await planned(tables)
    change = TableChange(name=TABLE, expected="u/0.json", metadata="u/1.json", uuid="u", added=["u/orphan"])
    await TableCommits(tables.versions).commit("main", [change], NOTE)
    assert not (await tables.collector().again(run_id)).garbage


async def test_young_files_and_files_of_dropped_tables_in_history_stay(tables: Lake) -> None:
    await tables.put(TABLES, "u/young", "young")
    await settle(tables)
    drop = TableChange(name=TABLE, expected="u/0.json", metadata=None)
    await TableCommits(tables.versions).commit("main", [drop], NOTE)
    found = await tables.collector().again(await planned(tables))
    assert found.garbage.isdisjoint({await address(tables, file) for file in ("u/young", "u/data", "u/0.json")})


async def test_a_run_with_a_window_is_undone_and_every_file_is_back(tables: Lake) -> None:
    run_id = await planned(tables)
    await flow.apply(tables.collector().context, run_id, window="7d", grace_s=0)
    assert await settle(tables) == 0
    with pytest.raises(PathExpired):
        await tables.versions.staging.open(TABLES, b"u/orphan")
    await tables.service.undo(run_id, Undo())
    assert await tables.versions.staging.open(TABLES, b"u/orphan")


async def test_a_settler_reads_every_page_and_leaves_what_was_written_anew(
    tables: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between its look and its commit another settler removes the same entries, and a client writes one again."""
    monkeypatch.setattr("lakebed.catalog.tables.tables.PAGE", 1)
    await tables.collector().again(await planned(tables))
    look = Tables._gone

    async def overtaken(self: Tables) -> Mapping[bytes, Row]:
        gone = await look(self)
        monkeypatch.setattr(Tables, "_gone", look)
        assert await settle(tables) == 2
        await tables.put(TABLES, "u/orphan", "anew")
        await tables.commit(TABLES)
        return gone

    monkeypatch.setattr(Tables, "_gone", overtaken)
    assert await settle(tables) == 2
    assert await tables.versions.staging.open(TABLES, b"u/orphan")


async def test_another_commit_with_a_tree_of_the_hidden_branch_keeps_its_files(tables: Lake) -> None:
    head = await tables.versions.history.get_commit(await tables.versions.refs.resolve_commit(TABLES))
    for number in range(8):  # Some come before the head of the hidden branch in a list of commits, and some after it.
        commit = msgspec.structs.replace(head, parents=(), generation=1, nonce=str(number))
        await tables.versions.recorder.record(commit.id, commit)
        await tables.versions.refs.create_branch(f"b{number}", commit.id)
    assert not (await tables.collector().again(await planned(tables))).garbage


async def test_a_commit_that_a_run_swept_keeps_no_file(tables: Lake) -> None:
    drop = TableChange(name=TABLE, expected="u/0.json", metadata=None)
    await TableCommits(tables.versions).commit("main", [drop], NOTE)
    tables.clock.ms += OLD
    await tables.put("main", "other", "new")
    await tables.commit("main")
    await tables.service.rules.write(days_rules(1, {}))
    assert (await tables.collector().collect_committed()).swept
    found = await tables.collector().again(await planned(tables))
    assert await address(tables, "u/data") in found.garbage


async def test_a_repository_without_tables_has_nothing_to_prune(lake: Lake) -> None:
    await lake.versions.refs.create_branch(TABLES, "main")
    with pytest.raises(Invalid, match="this repository has no tables: there is nothing to prune"):
        await planned(lake)


class Reader:
    """Metadata whose snapshot 7 reaches one file, and no other."""

    def __init__(self, file: str = "u/data") -> None:
        self.file = file

    async def reach(self, metadata: str, files: Set[str]) -> Reach | None:
        if metadata != "u/0.json":
            return None
        found = files & {self.file}
        return Reach(files=len(found), snapshots=(7,) if found else (), is_current=bool(found))


async def erasing(lake: Lake, path: str, reader: Reader | None = None) -> Plan:
    service = CollectionService(lake.versions, table_reader=reader)
    order = ErasureOrder(selection=Selection(paths=(path,)), why="asked for")
    return await flow.plan(lake.collector(service).context, Erasure(order))


async def test_a_plan_that_takes_a_file_of_a_table_names_the_table_its_refs_and_its_snapshots(tables: Lake) -> None:
    await tables.versions.refs.create_branch("dev", "main")
    await tables.versions.refs.create_tag("v1", "main")

    [known] = (await erasing(tables, "db/t.iceberg/data", Reader())).tables
    [unknown] = (await erasing(tables, "db/t.iceberg/data")).tables

    assert (known.table, known.uuid, known.refs, known.files) == ("db.t", "u", ("dev", "main", "v1"), 1)
    assert (known.snapshots, known.is_current, known.is_known) == ((7,), True, True)
    assert (unknown.table, unknown.files, unknown.snapshots, unknown.is_known) == ("db.t", 1, (), False)
    assert (await erasing(tables, "other", Reader())).tables == ()


async def test_a_pruning_plan_names_a_table_that_reaches_a_file_without_an_entry(tables: Lake) -> None:
    """To pruning, no table names the file. Its metadata knows better."""

    async def plan(reader: Reader) -> Plan:
        service = CollectionService(tables.versions, table_reader=reader)
        return await flow.plan(tables.collector(service).context, Pruning())

    [broken] = (await plan(Reader("u/orphan"))).tables
    assert (broken.table, broken.refs, broken.files, broken.snapshots) == ("db.t", ("main",), 1, (7,))
    assert (await plan(Reader())).tables == ()


async def test_files_of_another_run_are_refused(tables: Lake) -> None:
    plan = await erasing(tables, "db/t.iceberg/data")
    files = manifest_of(TABLE_FILES, plan.folder + "table_files/", ())
    with pytest.raises(BadInput, match="is not of run"):
        await tables.service.find_tables("06aaaaaaaaaaaaaaaaaa", FindTables(kind=plan.kind, files=files))
