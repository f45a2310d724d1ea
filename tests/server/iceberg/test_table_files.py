"""The files that a commit of a table adds to its branch and removes: real manifests, and data files without bytes."""

from __future__ import annotations

from bench.embedded.tables import URL, Asked, opened_table
from lakebed.catalog.tables import TableName
from lakebed.quotas import Books, of_branch
from lakebed.quotas.meter import read
from lakebed.server import AppState


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
