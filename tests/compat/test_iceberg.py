"""Iceberg tables on branches, by PyIceberg and DuckDB, which are told the address, a warehouse and a key pair."""

from __future__ import annotations

import lakefs
import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import CommitFailedException, ForbiddenError
from pyiceberg.types import StringType

from tests.kv.servers import python_packages

from .serving import Server
from .test_s3_tables import DUCKDB, told

pytestmark = pytest.mark.filterwarnings("ignore")  # of the clients' own dependencies, which are not ours to mend


def catalog_of(server: Server, repository: lakefs.Repository, ref: str) -> Catalog:
    return load_catalog(
        ref,
        type="rest",
        uri=server.url + "/iceberg",
        warehouse=f"{repository.id}/{ref}",
        credential=f"{server.access_key_id}:{server.secret_access_key}",
    )


def rows(*values: int) -> pa.Table:
    return pa.table({"a": list(values)})


def test_a_table_is_made_on_one_branch_changed_on_another_and_merged(
    server: Server, repository: lakefs.Repository
) -> None:
    main = catalog_of(server, repository, "main")
    main.create_namespace("sales")
    orders = main.create_table("sales.orders", schema=rows().schema.set(0, pa.field("a", pa.int64())))
    orders.append(rows(1, 2))
    first = orders.current_snapshot()
    assert first is not None
    repository.branch("dev").create("main")
    repository.tag("then").create("main")

    changed = catalog_of(server, repository, "dev").load_table("sales.orders")
    with changed.update_schema() as update:
        update.add_column("b", StringType())
    changed.append(pa.table({"a": [3], "b": ["x"]}))
    changed.delete("a = 1")

    def values(ref: str) -> list[int]:
        found = catalog_of(server, repository, ref).load_table("sales.orders").scan().to_arrow()
        return sorted(found["a"].to_pylist())

    assert (values("main"), values("dev")) == ([1, 2], [2, 3])
    repository.branch("dev").merge_into(repository.branch("main"))
    repository.branch("dev").delete()
    assert (values("main"), values("then")) == ([2, 3], [1, 2])
    past = main.load_table("sales.orders").scan(snapshot_id=first.snapshot_id).to_arrow()
    assert sorted(past["a"].to_pylist()) == [1, 2]
    with pytest.raises(ForbiddenError, match="then is no branch"):
        catalog_of(server, repository, "then").load_table("sales.orders").append(pa.table({"a": [9]}))


def test_a_cherry_pick_and_a_revert_leave_tables_that_are_read_and_appended_to(
    server: Server, repository: lakefs.Repository
) -> None:
    main, dev = repository.branch("main"), repository.branch("dev")
    orders = catalog_of(server, repository, "main")
    orders.create_namespace("sales")
    orders.create_table("sales.orders", schema=rows().schema.set(0, pa.field("a", pa.int64()))).append(rows(1))
    dev.create("main")
    catalog_of(server, repository, "dev").load_table("sales.orders").append(rows(2))

    def values() -> list[int]:
        return sorted(orders.load_table("sales.orders").scan().to_arrow()["a"].to_pylist())

    main.cherry_pick(dev.get_commit())
    dev.delete()
    assert values() == [1, 2]
    orders.load_table("sales.orders").append(rows(3))
    assert values() == [1, 2, 3]
    main.revert(main.get_commit())
    assert values() == [1, 2]
    orders.load_table("sales.orders").append(rows(4))
    assert values() == [1, 2, 4]


def test_the_second_of_two_writers_is_told_to_try_again(server: Server, repository: lakefs.Repository) -> None:
    main = catalog_of(server, repository, "main")
    main.create_namespace("sales")
    one = main.create_table("sales.orders", schema=pa.schema([("a", pa.int64())]))
    another = main.load_table("sales.orders")
    with one.update_schema() as update:
        update.add_column("b", StringType())

    with pytest.raises(CommitFailedException), another.update_schema() as late:
        late.add_column("c", StringType())

    with another.refresh().update_schema() as again:
        again.add_column("c", StringType())
    assert main.load_table("sales.orders").schema().column_names == ["a", "b", "c"]


_DUCKDB = """
import importlib
import sys
from pathlib import Path
import duckdb

url, key, secret, repository = sys.argv[1:]
connection = duckdb.connect(config={"autoinstall_known_extensions": "false", "threads": "1"})
for name in ("httpfs", "avro", "iceberg"):
    package = importlib.import_module(f"duckdb_extension_{name}")
    [extension] = Path(package.__path__[0]).rglob(f"{name}.duckdb_extension")
    connection.execute(f"LOAD '{extension}'")
login = f"TYPE iceberg, CLIENT_ID '{key}', CLIENT_SECRET '{secret}', OAUTH2_SERVER_URI '{url}/v1/oauth/tokens'"
connection.execute(f"CREATE SECRET keys ({login})")
for name, ref in (("m", "main"), ("dev", "dev"), ("old", "then")):
    connection.execute(f"ATTACH '{repository}/{ref}' AS {name} (TYPE iceberg, ENDPOINT '{url}', SECRET keys)")

def value(sql):
    return connection.execute(sql).fetchone()[0]

connection.execute("INSERT INTO m.sales.orders VALUES (4)")
first = value("SELECT snapshot_id FROM iceberg_snapshots(m.sales.orders) ORDER BY sequence_number LIMIT 1")
print(value("SELECT sum(a) FROM m.sales.orders"))
print(value(f"SELECT sum(a) FROM m.sales.orders AT (VERSION => {first})"))
connection.execute("ALTER TABLE dev.sales.orders ADD COLUMN b VARCHAR")
connection.execute("INSERT INTO dev.sales.orders VALUES (8, 'x')")
connection.execute("DELETE FROM dev.sales.orders WHERE a = 1")
print(value("SELECT sum(a) FROM dev.sales.orders"), value("SELECT sum(a) FROM old.sales.orders"))
connection.execute("CREATE SCHEMA dev.made")
connection.execute("CREATE TABLE dev.made.copy AS SELECT * FROM dev.sales.orders")
print(value("SELECT count(*) FROM dev.made.copy"))
try:
    connection.execute("INSERT INTO old.sales.orders VALUES (9)")
except duckdb.Error as error:
    print("is no branch" in str(error))
"""


def test_duckdb_changes_tables_on_branches_that_pyiceberg_made(server: Server, repository: lakefs.Repository) -> None:
    """In a process of its own: the extensions come as packages for one version of DuckDB, which is not ours."""
    packages = python_packages(*DUCKDB)
    main = catalog_of(server, repository, "main")
    main.create_namespace("sales")
    main.create_table("sales.orders", schema=pa.schema([("a", pa.int64())])).append(rows(1, 2))
    repository.branch("dev").create("main")
    repository.tag("then").create("main")

    pair = (server.access_key_id, server.secret_access_key)
    words = told(_DUCKDB, packages, server.url + "/iceberg", *pair, str(repository.id))

    assert words == ["7", "3", "10", "3", "2", "True"]
    assert catalog_of(server, repository, "dev").load_table("made.copy").scan().to_arrow().num_rows == 2


_SIGNED = """
import sys
import pyarrow as pa
from pyiceberg.catalog import load_catalog

url, credential, warehouse = sys.argv[1:]
catalog = load_catalog("signed", **{
    "type": "rest", "uri": url, "warehouse": warehouse, "credential": credential,
    "header.X-Iceberg-Access-Delegation": "remote-signing",
})
catalog.create_namespace("sales")
with catalog.create_table_transaction("sales.staged", schema=pa.schema([("a", pa.int64())])) as staged:
    staged.append(pa.table({"a": [7]}))
table = catalog.create_table("sales.orders", schema=pa.schema([("a", pa.int64())]))
table.append(pa.table({"a": [1, 2]}))
table.delete("a = 1")
print(table.scan().to_arrow()["a"].to_pylist(), catalog.load_table("sales.staged").scan().to_arrow()["a"].to_pylist())
print(sorted(name for name in table.io.properties if "access-key" in name), type(table.io).__name__)
"""


def test_pyiceberg_writes_without_a_key_for_files_by_requests_that_the_catalog_signs(
    server: Server, repository: lakefs.Repository
) -> None:
    packages = python_packages("s3fs==2026.9.0")

    credential, warehouse = f"{server.access_key_id}:{server.secret_access_key}", f"{repository.id}/main"
    words = told(_SIGNED, packages, server.url + "/iceberg", credential, warehouse)

    assert words == ["[2]", "[7]", "[]", "FsspecFileIO"]
