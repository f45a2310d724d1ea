"""The files that a commit of a table adds to its branch and removes: real manifests, and data files without bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestEntry,
    ManifestEntryStatus,
    write_manifest,
    write_manifest_list,
)
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.typedef import Record

from bench.embedded.tables import SCHEMA, URL, UUID, Asked, opened_table
from lakebed import iceberg
from lakebed.catalog.tables import TableName
from lakebed.iceberg.exporting import MemoryFile
from lakebed.quotas import Books, of_branch
from lakebed.quotas.meter import read
from lakebed.server import AppState
from lakebed.wire import TableCommit, TableCreation

LOCATION = f"s3://lake.tables/{UUID}"


async def test_an_expiry_removes_what_no_kept_snapshot_reaches_and_nothing_else(state: AppState) -> None:
    table = await opened_table(state, "lake")
    old, both, new = await table.data(3)
    first, second = await table.manifest(1, [old, both]), await table.manifest(2, [both, new])
    shared = await table.manifest(1, await table.data(1))
    snapshots = [await table.snapshot(1, [first, shared]), await table.snapshot(2, [second, shared])]
    await table.commit("t", snapshots)

    async def entries() -> set[str]:
        files = await table.tables.files("main", TableName(("db",), "t"))
        return {table.tables.uri_of(file) for file, _ in files[0]}

    before = await entries()
    update = {"action": "remove-snapshots", "snapshot-ids": [1]}
    await Asked(state)("POST", f"{URL}/t", {"requirements": [], "updates": [update]})
    after = await entries()

    assert before - after == {old, first.manifest_path, snapshots[0]["manifest-list"]}
    assert {both, new, second.manifest_path, shared.manifest_path, snapshots[1]["manifest-list"]} < after


async def test_an_expiry_with_an_update_for_each_snapshot_may_have_any_number(state: AppState) -> None:
    """As clients in Java send it."""
    table = await opened_table(state, "lake")
    one = await table.snapshot(1, [await table.manifest(1, await table.data(1))])
    await table.commit("t", [{**one, "snapshot-id": number} for number in range(1, 1_203)])
    updates = [{"action": "remove-snapshots", "snapshot-ids": [number]} for number in range(1, 1_202)]

    answer = await Asked(state)("POST", f"{URL}/t", {"requirements": [], "updates": updates})

    assert [each["snapshot-id"] for each in answer["metadata"]["snapshots"]] == [1_202]


async def test_what_a_merge_that_appends_writes_counts_for_its_branch(state: AppState) -> None:
    ask, table = Asked(state), await opened_table(state, "lake")
    name, quota = TableName(("db",), "t"), of_branch(table.repository.versions.uid, "main")
    manifest = await table.manifest(1, await table.data(1))
    await table.commit("t", [await table.snapshot(1, [manifest])])
    await table.repository.versions.refs.create_branch("dev", "main")
    for number, branch in ((2, "main"), (3, "dev")):
        fresh = await table.manifest(number, await table.data(1))
        snapshot = {**await table.snapshot(number, [manifest, fresh]), "parent-snapshot-id": 1}
        reference = {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": number}
        body = {"requirements": [], "updates": [{"action": "add-snapshot", "snapshot": snapshot}, reference]}
        await ask("POST", URL.replace("lake.main", f"lake.{branch}") + "/t", body)
    before = dict((await table.tables.files("main", name))[0])
    await Books(state.catalog.meter).set(quota, limit_bytes=1 << 20, by="tester")

    await ask("POST", "/api/v1/repositories/lake/refs/dev/merge/main", {"tables": "append"})

    await state.catalog.meter.settle(is_stopping=True)
    after = dict((await table.tables.files("main", name))[0])
    added = {file: entry.size_bytes for file, entry in after.items() if file not in before}
    written = sum(size for file, size in added.items() if "/data/" not in file and "/m-" not in file)
    record = await read(state.store, quota)
    assert record is not None
    assert len(added) == 4, "the list of manifests and the metadata, and what the source added"
    assert record[0].used_bytes == written


class Files:
    """Files of a table in memory. `at_once`: a read returns the first of those that it is asked for."""

    def __init__(self, *, at_once: int = 64) -> None:
        self.bytes: dict[str, bytes] = {}
        self._at_once = at_once

    async def read(self, uris: Sequence[str]) -> Mapping[str, bytes]:
        return {uri: self.bytes[uri] for uri in uris[: self._at_once]}

    def manifest(
        self, name: str, *data: str, deleted: Sequence[str] = (), content: DataFileContent = DataFileContent.DATA
    ) -> Any:
        out = MemoryFile(f"{LOCATION}/metadata/{name}")
        with write_manifest(2, UNPARTITIONED_PARTITION_SPEC, Schema.model_validate(SCHEMA), out, 1, "null") as writer:  # type: ignore[arg-type]  # a file in memory
            for uri in (*data, *deleted):
                status = ManifestEntryStatus.DELETED if uri in deleted else ManifestEntryStatus.ADDED
                file = DataFile.from_args(
                    content=content, file_path=uri, file_format=FileFormat.PARQUET, partition=Record(),
                    record_count=1, file_size_in_bytes=1,
                )  # fmt: skip
                numbers: dict[str, Any] = {"snapshot_id": 1, "sequence_number": 1, "file_sequence_number": 1}
                # The writer adds entries of any status; its `delete` asks for the snapshot of each.
                writer.add_entry(ManifestEntry.from_args(status=status, data_file=file, **numbers))
        made = writer.to_manifest_file()
        made.sequence_number = made.min_sequence_number = 1
        self.bytes[made.manifest_path] = out.getvalue()
        return made

    def snapshot(self, number: int, name: str, *manifests: Any, parent: int | None = None) -> dict[str, Any]:
        out = MemoryFile(f"{LOCATION}/metadata/{name}")
        with write_manifest_list(2, out, number, parent, number, "null") as writer:  # type: ignore[arg-type]  # a file in memory
            writer.add_manifests(list(manifests))
        uri = f"{LOCATION}/metadata/{name}"
        self.bytes[uri] = out.getvalue()
        found = {"snapshot-id": number, "sequence-number": number, "timestamp-ms": number, "manifest-list": uri}
        more = {} if parent is None else {"parent-snapshot-id": parent}
        return {**found, **more, "summary": {"operation": "append"}, "schema-id": 0}


def metadata(*snapshots: dict[str, Any], **more: object) -> iceberg.Metadata:
    """Return the metadata of a table with these snapshots, the last one as the current."""
    asked = TableCreation(name="t", schema=msgspec.Raw(msgspec.json.encode(SCHEMA)))
    made = iceberg.created(asked, location=LOCATION)
    current = snapshots[-1]["snapshot-id"]
    fields = {"snapshots": snapshots, "current-snapshot-id": current, "last-sequence-number": current, **more}
    return iceberg.parsed(msgspec.json.encode(msgspec.json.decode(made.encoded()) | fields), "", location=LOCATION)


@pytest.mark.parametrize("at_once", [1, 64])
async def test_a_snapshot_brings_its_list_its_new_manifests_and_their_live_files(at_once: int) -> None:
    files = Files(at_once=at_once)
    one, two, three = [f"{LOCATION}/data/{number}" for number in (1, 2, 3)]
    old, new, other = files.manifest("a", one), files.manifest("b", two, deleted=[one]), files.manifest("c", three)
    before = files.snapshot(1, "s1", old)
    after = files.snapshot(2, "s2", old, new, other, parent=1)
    statistics = {"snapshot-id": 2, "statistics-path": f"{LOCATION}/metadata/p", "file-size-in-bytes": 1}

    found = await iceberg.change_of(
        metadata(before), metadata(before, after, **{"partition-statistics": [statistics]}), files.read
    )

    manifests = {new.manifest_path, other.manifest_path}
    assert found.added == {after["manifest-list"], *manifests, two, three, statistics["statistics-path"]}
    assert found.removed == frozenset()


def test_statistics_go_with_their_snapshot_whether_or_not_an_update_says_so() -> None:
    """Clients in Java say so after each snapshot: to the library, they are gone by then."""
    files = Files()
    snapshots = [files.snapshot(number, f"{number}.avro", parent=number - 1 or None) for number in (1, 2, 3)]
    known = {"file-size-in-bytes": 1, "file-footer-size-in-bytes": 1, "blob-metadata": []}
    base = metadata(
        *snapshots,
        statistics=[
            {"snapshot-id": number, "statistics-path": f"{LOCATION}/metadata/{number}.stats", **known}
            for number in (1, 2, 3)
        ],
    )

    def left(*updates: dict[str, Any]) -> tuple[list[int], list[int]]:
        asked = TableCommit(requirements=[], updates=[msgspec.Raw(msgspec.json.encode(each)) for each in updates])
        value = iceberg.committed(base, asked, place="s3://lake.tables/").value
        return [one.snapshot_id for one in value.snapshots], [one.snapshot_id for one in value.statistics]

    def gone(*numbers: int) -> dict[str, Any]:
        return {"action": "remove-snapshots", "snapshot-ids": numbers}

    def stats(number: int) -> dict[str, Any]:
        return {"action": "remove-statistics", "snapshot-id": number}

    assert left(gone(1), stats(1), gone(2), stats(2)) == ([3], [3])
    assert left(stats(1), gone(1, 2)) == left(gone(1, 2, 1)) == ([3], [3])
    assert left(stats(3)) == ([1, 2, 3], [1, 2])
    with pytest.raises(iceberg.InvalidTable, match="Snapshot with snapshot id 4 does not exist"):
        left(gone(4))
    with pytest.raises(iceberg.InvalidTable, match="at most 1,000 updates beside removals of snapshots, and not 1,001"):
        left(gone(1), *[stats(3)] * 1_001)


async def test_a_snapshot_with_the_id_of_a_removed_one_is_another() -> None:
    files = Files()
    one, two = f"{LOCATION}/data/1", f"{LOCATION}/data/2"
    old, new = files.manifest("a", one), files.manifest("b", two)
    before, after = files.snapshot(1, "s1", old), files.snapshot(1, "s1-again", new)

    found = await iceberg.change_of(metadata(before), metadata(after), files.read)

    assert found.added == {after["manifest-list"], new.manifest_path, two}
    assert found.removed == {before["manifest-list"], old.manifest_path, one}


def test_a_table_with_deletes_by_position_is_not_exported() -> None:
    """They name files inside their own bytes, by addresses that nothing outside of the catalog resolves."""
    files = Files()
    data, deletes = (f"{LOCATION}/data/{name}.parquet" for name in ("a", "deletes"))
    plain = files.manifest("m1.avro", data)
    by_position = files.manifest("m2.avro", deletes, content=DataFileContent.POSITION_DELETES)

    def export(*manifests: Any) -> list[str]:
        table = metadata(files.snapshot(1, f"list-{len(manifests)}.avro", *manifests))
        inside = iceberg.TableFiles({"now": table.encoded(), **files.bytes}.__getitem__, str)
        return [name for name, _ in iceberg.exported("now", inside, location=LOCATION, target="s3://out/t")]

    assert export(plain)[-1] == "table.metadata.json"
    with pytest.raises(iceberg.InvalidTable, match="deletes by position"):
        export(plain, by_position)
