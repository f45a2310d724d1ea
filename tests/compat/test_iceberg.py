"""Iceberg tables on branches, written and read by PyIceberg, which is told `uri`, `warehouse` and a key pair."""

from __future__ import annotations

import lakefs
import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import CommitFailedException, ForbiddenError
from pyiceberg.types import StringType

from .serving import Server

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
