"""Tables on a branch, written and read by programs that know S3 and nothing of branches."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

import duckdb
import lakefs
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from .serving import Server

pytestmark = pytest.mark.filterwarnings("ignore")  # of the clients' own dependencies, which are not ours to mend

FLIGHTS = pa.table({"carrier": ["AA", "UA", "AA"], "delay": [4, 11, 9]})
MORE = pa.table({"carrier": ["DL"], "delay": [2]})


@pytest.fixture
def files(server: Server) -> fs.S3FileSystem:
    return fs.S3FileSystem(
        access_key=server.access_key_id,
        secret_key=server.secret_access_key,
        endpoint_override=server.url,
        region="us-east-1",
    )


def test_pyarrow_writes_a_dataset_on_one_branch_and_another_one_keeps_its_own(
    files: fs.S3FileSystem, repository: lakefs.Repository
) -> None:
    ds.write_dataset(
        FLIGHTS, f"{repository.id}/main/flights", format="parquet", filesystem=files, partitioning=["carrier"]
    )
    repository.branch("main").commit("flights")
    repository.branch("dev").create("main")

    ds.write_dataset(
        MORE,
        f"{repository.id}.dev/flights",
        format="parquet",
        filesystem=files,
        partitioning=["carrier"],
        existing_data_behavior="overwrite_or_ignore",
        basename_template="more-{i}.parquet",
    )

    def delays(root: str) -> list[int]:
        found = ds.dataset(root, filesystem=files, partitioning=["carrier"]).to_table()
        return sorted(found["delay"].to_pylist())

    assert delays(f"{repository.id}/main/flights") == [4, 9, 11]
    assert delays(f"{repository.id}/dev/flights") == [2, 4, 9, 11]
    repository.branch("dev").commit("more")
    repository.branch("dev").merge_into(repository.branch("main"))
    assert delays(f"{repository.id}.main/flights") == [2, 4, 9, 11]


def test_pyarrow_lists_copies_moves_and_deletes_files(files: fs.S3FileSystem, repository: lakefs.Repository) -> None:
    root = f"{repository.id}.main"
    for path in ("a/1", "a/b/2", "c"):
        with files.open_output_stream(f"{root}/{path}", metadata={"Content-Type": "text/plain"}) as stream:
            stream.write(path.encode())

    found = files.get_file_info(fs.FileSelector(root, recursive=True))
    assert {info.path: info.type for info in found} == {
        f"{root}/a": fs.FileType.Directory,
        f"{root}/a/1": fs.FileType.File,
        f"{root}/a/b": fs.FileType.Directory,
        f"{root}/a/b/2": fs.FileType.File,
        f"{root}/c": fs.FileType.File,
    }
    files.copy_file(f"{root}/a/1", f"{root}/d")
    files.move(f"{root}/c", f"{root}/e")
    files.delete_dir(f"{root}/a")
    left = files.get_file_info(fs.FileSelector(root, recursive=True))
    assert sorted(info.base_name for info in left if info.type is fs.FileType.File) == ["d", "e"]
    with files.open_input_file(f"{root}/e") as file:
        assert file.read() == b"c"


def delta_options(server: Server) -> dict[str, str]:
    return {
        "AWS_ENDPOINT_URL": server.url,
        "AWS_ACCESS_KEY_ID": server.access_key_id,
        "AWS_SECRET_ACCESS_KEY": server.secret_access_key,
        "AWS_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
        "aws_conditional_put": "etag",
    }


def test_delta_rs_writes_overwrites_and_reads_a_table_on_a_branch(
    server: Server, repository: lakefs.Repository
) -> None:
    deltalake = pytest.importorskip("deltalake")
    options = delta_options(server)
    main, dev = f"s3://{repository.id}.main/flights", f"s3://{repository.id}.dev/flights"
    deltalake.write_deltalake(main, FLIGHTS, storage_options=options)
    repository.branch("main").commit("a Delta table")
    repository.branch("dev").create("main")

    deltalake.write_deltalake(dev, MORE, mode="append", storage_options=options)
    deltalake.write_deltalake(dev, MORE, mode="overwrite", storage_options=options)

    table = deltalake.DeltaTable(dev, storage_options=options)
    assert (table.version(), table.to_pyarrow_table()["delay"].to_pylist()) == (2, [2])
    before = deltalake.DeltaTable(dev, version=1, storage_options=options).to_pyarrow_table()
    assert sorted(before["delay"].to_pylist()) == [2, 4, 9, 11]
    assert deltalake.DeltaTable(main, storage_options=options).version() == 0


def test_of_two_writers_of_a_delta_version_one_is_told_to_try_again(
    server: Server, repository: lakefs.Repository
) -> None:
    """A Delta commit is a put with If-None-Match: the second one must not take the place of the first."""
    deltalake = pytest.importorskip("deltalake")
    options = delta_options(server)
    root = f"s3://{repository.id}.main/flights"
    deltalake.write_deltalake(root, FLIGHTS, storage_options=options)
    first, second = (deltalake.DeltaTable(root, storage_options=options) for _ in range(2))

    deltalake.write_deltalake(first, MORE, mode="append")
    deltalake.write_deltalake(second, MORE, mode="append")

    found = deltalake.DeltaTable(root, storage_options=options)
    assert (found.version(), found.to_pyarrow_table().num_rows) == (2, 5)


def test_pyiceberg_writes_and_reads_a_table_on_a_branch(
    server: Server, repository: lakefs.Repository, tmp_path: Path
) -> None:
    catalogs = pytest.importorskip("pyiceberg.catalog.sql")
    catalog = catalogs.SqlCatalog(
        "here",
        **{
            "uri": f"sqlite:///{tmp_path}/catalog.db",
            "warehouse": f"s3://{repository.id}.main/warehouse",
            "s3.endpoint": server.url,
            "s3.access-key-id": server.access_key_id,
            "s3.secret-access-key": server.secret_access_key,
            "s3.region": "us-east-1",
            "py-io-impl": "pyiceberg.io.pyarrow.PyArrowFileIO",
        },
    )
    catalog.create_namespace("air")
    table = catalog.create_table("air.flights", schema=FLIGHTS.schema)

    table.append(FLIGHTS)
    table.overwrite(MORE)
    table.append(FLIGHTS)

    assert sorted(catalog.load_table("air.flights").scan().to_arrow()["delay"].to_pylist()) == [2, 4, 9, 11]
    paths = [each.path for each in repository.branch("main").objects(prefix="warehouse/")]
    assert sum(path.endswith(".metadata.json") for path in paths) == 4
    catalog.engine.dispose()


def test_duckdb_reads_and_writes_parquet_over_s3(
    server: Server, files: fs.S3FileSystem, repository: lakefs.Repository
) -> None:
    connection = duckdb.connect(config={"autoinstall_known_extensions": "false"})
    try:
        connection.execute("LOAD httpfs")
    except duckdb.Error as error:
        pytest.skip(f"DuckDB has no httpfs here: {error}")
    host = urlsplit(server.url).netloc
    connection.execute(
        f"CREATE SECRET (TYPE s3, KEY_ID '{server.access_key_id}', SECRET '{server.secret_access_key}',"
        f" ENDPOINT '{host}', URL_STYLE 'path', USE_SSL false, REGION 'us-east-1')"
    )
    with files.open_output_stream(f"{repository.id}.main/flights/1.parquet") as stream:
        pq.write_table(FLIGHTS, stream)

    root = f"s3://{repository.id}/main"
    connection.execute(f"COPY (SELECT * FROM '{root}/flights/*.parquet' WHERE delay > 4) TO '{root}/late.parquet'")

    assert connection.execute(f"SELECT sum(delay) FROM '{root}/late.parquet'").fetchall() == [(20,)]
    connection.close()
