"""`lakebed table`: Iceberg tables on branches, looked at, compared, set back and exported."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.table import StaticTable
from pyiceberg.types import StringType

from tests.cli.conftest import Shell
from tests.cli.test_widths import terminal, too_wide

__all__ = ["terminal"]

pytestmark = pytest.mark.filterwarnings("ignore")  # of the client's own dependencies, which are not ours to mend
SCHEMA = pa.schema([("a", pa.int64())])


def rows(*values: int) -> pa.Table:
    return pa.table({"a": list(values)}, schema=SCHEMA)


def catalog_of(shell: Shell, lake: str, ref: str = "main") -> Catalog:
    found = tomllib.loads(Path(shell.environment["LAKEBED_CONFIG"]).read_text())
    settings = found.get("profiles", {}).get("default", found)
    return load_catalog(
        ref,
        type="rest",
        uri=settings["endpoint"] + "/iceberg",
        warehouse=f"{lake.removeprefix('lakefs://')}/{ref}",
        credential=f"{settings['access_key_id']}:{settings['secret_access_key']}",
    )


ORDERS = "sales.orders"


@pytest.fixture(scope="module")
def lake(shell: Shell) -> str:
    """A table with two snapshots on `main`, and a third with another column on `dev`. Tests that change it branch."""
    lake = "lakefs://lake-of-tables"
    shell.ok("repo", "create", lake, "local://lake-of-tables")
    main = catalog_of(shell, lake)
    main.create_namespace("sales")
    main.create_namespace("sales.eu")
    table = main.create_table(ORDERS, schema=SCHEMA, properties={"team": "x"})
    main.create_table("sales.eu.orders", schema=SCHEMA)
    table.append(rows(1, 2))
    table.append(rows(3))
    shell.ok("branch", "create", f"{lake}/dev", "--source", f"{lake}/main")
    changed = catalog_of(shell, lake, "dev").load_table(ORDERS)
    with changed.update_schema() as update:
        update.add_column("b", StringType())
    changed.append(pa.table({"a": [4], "b": ["x"]}))
    return lake


def test_tables_are_listed_shown_and_compared(shell: Shell, lake: str) -> None:
    listed = shell.ok("table", "list", f"{lake}/main").out
    below = shell.ok("table", "list", f"{lake}/main", "sales.eu", "-o", "json").json
    one = shell.ok("table", "list", f"{lake}/main", "--limit", "1", "-o", "json").json
    shown = shell.ok("table", "show", f"{lake}/main", ORDERS).out
    facts = shell.ok("table", "show", f"{lake}/dev", ORDERS, "-o", "json").json
    history = shell.ok("table", "history", f"{lake}/dev", ORDERS, "-o", "json").json
    differs = shell.ok("table", "diff", f"{lake}/main", f"{lake}/dev").out
    diff = shell.ok("table", "diff", f"{lake}/main", f"{lake}/dev", ORDERS).out
    back = shell.ok("table", "diff", f"{lake}/dev", f"{lake}/main", ORDERS, "-o", "json").json

    assert [line.split()[0] for line in listed.splitlines()] == ["TABLE", "sales.orders", "sales.eu.orders"]
    assert [each["table"] for each in below] == ["sales/eu/orders"]
    assert [each["table"] for each in one] == ["sales/orders"]
    assert "2 files, 3 rows" in shown
    assert "team=x" in shown
    assert [(field["name"], field["type"]) for field in facts["fields"]] == [("a", "long"), ("b", "string")]
    assert facts["commit"]["message"] == "sales.orders: append"
    assert [len(each["added"]) for each in history] == [1, 0, 1, 1, 0]
    assert [each["fields_changed"] for each in history] == [False, True, False, False, False]
    assert history[0]["added"][0]["id"] == facts["snapshot"]["id"]
    assert differs == "~ sales.orders\n"
    assert "+ field b string" in diff
    assert "+ data: 1 file, 1 row" in diff
    assert (back["removed"]["rows"], back["added"]["files"]) == (1, 0)
    assert [each["id"] for each in back["snapshots_removed"]] == [facts["snapshot"]["id"]]
    text = shell.ok("table", "history", f"{lake}/dev", ORDERS).out
    assert "schema" in text
    assert "+2" in text


def test_a_table_goes_back_to_a_snapshot_and_to_a_ref_even_if_it_was_dropped(shell: Shell, lake: str) -> None:
    undo = f"{lake}/undo"
    shell.ok("branch", "create", undo, "--source", "main")
    first = shell.ok("table", "history", undo, ORDERS, "-o", "json").json[1]["added"][0]["id"]

    unasked = shell("table", "rollback", undo, ORDERS, "--to", first)
    done = shell.ok("table", "rollback", undo, ORDERS, "--to", first, "--yes").out
    main = catalog_of(shell, lake, "undo")
    at_first = main.load_table(ORDERS).scan().to_arrow()["a"].to_pylist()
    shown = shell.ok("table", "show", undo, ORDERS, "-o", "json").json
    listed = {
        one["table"].replace("/", "."): one["modified"] for one in shell.ok("table", "list", undo, "-o", "json").json
    }
    again = shell("table", "rollback", undo, ORDERS, "--to", first, "--yes")
    unknown = shell("table", "rollback", undo, ORDERS, "--to", "123", "--yes")
    shell.ok("table", "rollback", undo, ORDERS, "--to", "dev", "--yes")
    at_dev = main.load_table(ORDERS).scan().to_arrow()["a"].to_pylist()
    main.drop_table(ORDERS)
    before = shell.ok("log", f"{undo}~1", "--limit", "1", "-o", "json").json[0]["id"]
    back = shell.ok("table", "rollback", undo, ORDERS, "--to", "undo~1", "--yes", "-o", "json").json

    assert unasked.code == 2
    assert first in done
    assert (at_first, sorted(at_dev)) == ([1, 2], [1, 2, 3, 4])
    assert (again.code, unknown.code) == (1, 3)
    assert "has no snapshot 123 here" in unknown.err
    assert f"`lakebed table history {undo} {ORDERS}` shows those that it has" in unknown.err
    assert listed[ORDERS] == shown["modified"]
    assert sorted(main.load_table(ORDERS).scan().to_arrow()["a"].to_pylist()) == [1, 2, 3, 4]
    assert back["commit"]["message"] == f"sales.orders: roll back to {before[:12]}"
    dropped = [each["is_dropped"] for each in shell.ok("table", "history", undo, ORDERS, "-o", "json").json]
    assert dropped == [False, True, False, False, False, False, False]


def test_a_table_that_is_not_there_is_answered_with_one_that_is_near(shell: Shell, lake: str) -> None:
    main = f"{lake}/main"
    for typed, hint in (
        ("orders", f"Did you mean {ORDERS}?"),
        ("sales.order", f"Did you mean {ORDERS}?"),
        ("salse.orders", f"Did you mean {ORDERS}?"),
        ("x.y", f"`lakebed table list {main}` shows what is there"),
    ):
        missing = shell("table", "show", main, typed)
        assert (missing.code, hint in missing.err) == (3, True), missing.err
    namespace = shell("table", "list", main, "sale")
    assert (namespace.code, "Did you mean sales?" in namespace.err) == (3, True), namespace.err


def test_metadata_are_registered_under_another_name(shell: Shell, lake: str) -> None:
    copies, others = f"{lake}/copies", f"{lake}/others"
    shell.ok("branch", "create", copies, "--source", "main")
    shell.ok("branch", "create", others, "--source", "dev")
    where = shell.ok("table", "show", copies, ORDERS, "-o", "json").json["metadata_location"]
    path = where.partition("://")[2].partition("/")[2]

    shell.ok("table", "register", copies, "sales.copy", "--metadata", path)
    taken = shell("table", "register", copies, "sales.copy", "--metadata", where)
    unasked = shell("table", "register", copies, "sales.copy", "--metadata", where, "--overwrite")
    shell.ok("table", "register", others, ORDERS, "--metadata", f"{lake}/tables/{path}", "--overwrite", "--yes")

    copy = catalog_of(shell, lake, "copies").load_table("sales.copy")
    assert sorted(copy.scan().to_arrow()["a"].to_pylist()) == [1, 2, 3]
    assert (taken.code, unasked.code) == (4, 2)
    assert "sales.copy" in taken.err
    assert catalog_of(shell, lake, "others").load_table(ORDERS).schema().column_names == ["a"]


def test_an_export_is_read_without_the_catalog(shell: Shell, lake: str, data: Path, tmp_path: Path) -> None:
    out = f"{lake}/out"
    shell.ok("branch", "create", out, "--source", "dev")
    dev = catalog_of(shell, lake, "out").load_table(ORDERS)
    dev.delete("a = 1")
    target = tmp_path / "out"

    shell.ok("table", "export", out, ORDERS, str(target), "--data", str(data))
    again = shell("table", "export", out, ORDERS, str(target), "--data", str(data))
    empty = shell("table", "export", out, "sales.eu.orders", str(tmp_path / "no"), "--data", str(data))
    placed = tmp_path / "placed"
    shell.ok("table", "export", out, ORDERS, str(placed), "--as", "s3://bucket/x/", "--data", str(data))

    table = StaticTable.from_metadata(str(target / "table.metadata.json"))
    assert sorted(table.scan().to_arrow()["a"].to_pylist()) == [2, 3, 4]
    assert all(task.file.file_path.startswith("file://") for task in table.scan().plan_files())
    assert (again.code, empty.code) == (2, 2)
    assert "no snapshot" in empty.err
    metadata: dict[str, Any] = json.loads((placed / "table.metadata.json").read_text())
    assert metadata["snapshots"][0]["manifest-list"].startswith("s3://bucket/x/snap-")


def test_a_merge_appends_what_both_sides_appended_once_each(shell: Shell, lake: str) -> None:
    left, right = f"{lake}/left", f"{lake}/right"

    def values(ref: str) -> list[int]:
        return sorted(catalog_of(shell, lake, ref).load_table(ORDERS).scan().to_arrow()["a"].to_pylist())

    for branch, value in ((left, 10), (right, 20)):
        shell.ok("branch", "create", branch, "--source", f"{lake}/main")
        catalog_of(shell, lake, branch.rpartition("/")[2]).load_table(ORDERS).append(rows(value))
    stopped = shell("merge", left, right)
    tried = shell("merge", left, right, "--tables", "append", "--dry-run")
    shell.ok("merge", left, right, "--tables", "append")
    once = values("right")
    catalog_of(shell, lake, "left").load_table(ORDERS).append(rows(11))
    catalog_of(shell, lake, "right").load_table(ORDERS).append(rows(21))
    shell.ok("quota", "set", right, "--limit", "1KiB")
    full = shell("merge", left, right, "--tables", "append")
    shell.ok("quota", "set", right, "--limit", "1MiB")
    shell.ok("merge", left, right, "--tables", "append")
    shell.ok("quota", "remove", right)
    catalog_of(shell, lake, "left").load_table(ORDERS).delete("a = 10")
    refused = shell("merge", left, right, "--tables", "append")
    files = {one["path"] for one in shell.ok("object", "ls", f"{right}/sales/orders.iceberg/", "-r", "-o", "json").json}
    table = catalog_of(shell, lake, "right").load_table(ORDERS)
    manifests = {one.manifest_path for each in table.snapshots() for one in each.manifests(table.io)}
    summary = table.snapshots()[-1].summary

    assert (stopped.code, tried.code, refused.code) == (4, 0, 4)
    words = " ".join(stopped.err.split())
    assert re.search(
        r"both sides changed table sales.orders \(left: 1 snapshot, \d+ append \+1; right: 1 snapshot, \d+", words
    )
    assert "--tables append" in words
    assert "the quota of branch right" in " ".join(full.err.split())
    assert "was not appended to: the source has snapshot" in " ".join(refused.err.split())
    assert once == [1, 2, 3, 10, 20]
    assert values("right") == [1, 2, 3, 10, 11, 20, 21]
    assert values("left") == [1, 2, 3, 11]
    reached = {one.file.file_path for one in table.scan().plan_files()} | manifests | {table.metadata_location}
    assert {uri.split("/", 4)[4] for uri in reached} <= {path.partition(".iceberg/")[2] for path in files}
    assert summary is not None
    assert summary["total-records"] == "7"
    catalog_of(shell, lake, "right").load_table(ORDERS).delete("a = 11")
    assert values("right") == [1, 2, 3, 10, 20, 21]


@pytest.mark.usefixtures("terminal")
def test_names_that_are_wrong_are_told_so_and_what_is_shown_fits(shell: Shell, lake: str) -> None:
    wide: list[str] = []
    for words in (
        ("list",),
        ("show", ORDERS),
        ("history", ORDERS),
        ("diff", f"{lake}/dev"),
        ("diff", f"{lake}/dev", ORDERS),
    ):
        line = ["table", words[0], f"{lake}/main", *words[1:]]
        wide += too_wide(" ".join(line), shell.ok(*line).out)
    missing = shell("table", "show", f"{lake}/main", "sales.order")
    nowhere = shell("table", "list", f"{lake}/main", "nosuch")
    neither = shell("table", "diff", f"{lake}/main", f"{lake}/dev", "sales.order")
    no_ref = [shell("table", *words) for words in (("list", f"{lake}/dex"), ("show", f"{lake}/dex", ORDERS))]

    assert [each.code for each in no_ref] == [3, 3]
    for text in (" ".join(each.err.split()) for each in no_ref):
        assert f"{lake}/dex: not found" in text
        assert f"Did you mean {lake}/dev?" in text
    assert (missing.code, nowhere.code, neither.code) == (3, 3, 3)
    assert "there is no table sales.order" in missing.err
    assert wide == []
