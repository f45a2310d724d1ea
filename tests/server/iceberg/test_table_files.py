"""The files that a commit of a table adds to its branch and removes: real manifests, and data files without bytes."""

from __future__ import annotations

from bench.embedded.tables import URL, Asked, opened_table
from lakebed.catalog.tables import TableName
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
