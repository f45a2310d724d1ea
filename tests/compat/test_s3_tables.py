"""Tables on a branch, written and read by programs that know S3 and nothing of branches."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit

import lakefs
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from lakefs.exceptions import ConflictException
from pyarrow import fs

from tests.kv.servers import python_packages

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


def test_a_vacuum_of_a_delta_table_deletes_on_its_branch_alone_until_it_is_merged(
    server: Server, repository: lakefs.Repository
) -> None:
    deltalake = pytest.importorskip("deltalake")
    options = delta_options(server)
    main, dev, then = (f"s3://{repository.id}.{ref}/flights" for ref in ("main", "dev", "then"))
    deltalake.write_deltalake(main, FLIGHTS, storage_options=options)
    deltalake.write_deltalake(main, MORE, mode="overwrite", storage_options=options)
    repository.branch("main").commit("two versions")
    repository.tag("then").create("main")
    repository.branch("dev").create("main")

    def rows(root: str) -> int:
        return int(deltalake.DeltaTable(root, version=0, storage_options=options).to_pyarrow_table().num_rows)

    table = deltalake.DeltaTable(dev, storage_options=options)
    gone = table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    repository.branch("dev").commit("vacuum")

    assert (len(gone), rows(main)) == (1, FLIGHTS.num_rows)
    repository.branch("dev").merge_into(repository.branch("main"))
    assert deltalake.DeltaTable(main, storage_options=options).to_pyarrow_table().num_rows == MORE.num_rows
    with pytest.raises(Exception, match=r"(?i)not found|no such"):
        rows(main)
    assert rows(then) == FLIGHTS.num_rows


def test_two_branches_that_wrote_one_delta_version_conflict_and_the_second_job_runs_again(
    server: Server, repository: lakefs.Repository
) -> None:
    deltalake = pytest.importorskip("deltalake")
    options = delta_options(server)
    main, dev, again = (f"s3://{repository.id}.{ref}/flights" for ref in ("main", "dev", "again"))
    deltalake.write_deltalake(main, FLIGHTS, storage_options=options)
    repository.branch("main").commit("a Delta table")
    repository.branch("dev").create("main")
    for root in (main, dev):
        deltalake.write_deltalake(root, MORE, mode="append", storage_options=options)
    for branch in ("main", "dev"):
        repository.branch(branch).commit("more")

    with pytest.raises(ConflictException):
        repository.branch("dev").merge_into(repository.branch("main"))
    conflicts = [one.path for one in repository.branch("main").diff("dev") if one.type == "conflict"]
    repository.branch("again").create("main")
    deltalake.write_deltalake(again, MORE, mode="append", storage_options=options)
    repository.branch("again").commit("more, on what is there now")
    repository.branch("again").merge_into(repository.branch("main"))

    assert conflicts == ["flights/_delta_log/00000000000000000001.json"]
    table = deltalake.DeltaTable(main, storage_options=options)
    assert (table.version(), table.to_pyarrow_table().num_rows) == (2, FLIGHTS.num_rows + 2 * MORE.num_rows)


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


def test_polars_writes_and_scans_parquet_on_two_branches(server: Server, repository: lakefs.Repository) -> None:
    repository.branch("dev").create("main")
    options = {name.lower(): value for name, value in delta_options(server).items()}
    main, dev = f"s3://{repository.id}/main/flights", f"s3://{repository.id}.dev/flights"

    for root, table in ((main, FLIGHTS), (dev, FLIGHTS), (dev, MORE)):
        pl.DataFrame(table).write_parquet(f"{root}/{table.num_rows}.parquet", storage_options=options)

    def delays(root: str) -> list[int]:
        late = pl.scan_parquet(f"{root}/*.parquet", storage_options=options).filter(pl.col("delay") < 11)
        return sorted(late.collect()["delay"].to_list())

    assert delays(main) == [4, 9]
    assert delays(dev) == [2, 4, 9]


def told(story: str, packages: Path, *arguments: str) -> list[str]:
    """Run a story in a process of its own, with these packages before ours. Returns the words that it printed."""
    # DuckDB makes a folder `data` where it runs.
    with TemporaryDirectory() as folder:
        ran = subprocess.run(
            [sys.executable, "-c", story, *arguments],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PYTHONPATH": str(packages)},
            cwd=folder,
        )
    assert ran.returncode == 0, ran.stderr[-3000:]
    return ran.stdout.split()


EXTENSIONS = ("httpfs", "avro", "iceberg")
DUCKDB = tuple(f"{name}==1.5.5" for name in ("duckdb", *(f"duckdb-extension-{each}" for each in EXTENSIONS)))
_DUCKDB = """
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
import duckdb
import duckdb_extension_httpfs

endpoint, key, secret, repository = sys.argv[1:]
[extension] = Path(duckdb_extension_httpfs.__file__).parent.rglob("httpfs.duckdb_extension")
connection = duckdb.connect(config={"autoinstall_known_extensions": "false"})
connection.execute(f"LOAD '{extension}'")
connection.execute(
    f"CREATE SECRET (TYPE s3, KEY_ID '{key}', SECRET '{secret}', ENDPOINT '{endpoint}', URL_STYLE 'path',"
    " USE_SSL false, REGION 'us-east-1')"
)
main, dev = f"s3://{repository}/main", f"s3://{repository}.dev"
connection.execute(f"COPY (SELECT * FROM '{main}/flights/*.parquet' WHERE delay > 4) TO '{dev}/late.parquet'")
parted = "(FORMAT parquet, PARTITION_BY (odd))"
connection.execute(f"COPY (SELECT n, n % 2 AS odd FROM range(4) t(n)) TO '{dev}/parts' {parted}")
print(connection.execute(f"SELECT sum(delay) FROM '{dev}/late.parquet'").fetchone()[0])
print(connection.execute(f"SELECT sum(n) FROM '{dev}/parts/*/*.parquet'").fetchone()[0])
print(connection.execute(f"SELECT count(*) FROM glob('{main}/**')").fetchone()[0])
"""


def test_duckdb_reads_one_branch_and_writes_another(
    server: Server, files: fs.S3FileSystem, repository: lakefs.Repository
) -> None:
    """In a process of its own: the extension comes as a package for one version of DuckDB, which is not ours."""
    packages = python_packages(*DUCKDB)
    repository.branch("dev").create("main")
    with files.open_output_stream(f"{repository.id}.main/flights/1.parquet") as stream:
        pq.write_table(FLIGHTS, stream)

    pair = (server.access_key_id, server.secret_access_key)
    words = told(_DUCKDB, packages, urlsplit(server.url).netloc, *pair, str(repository.id))

    assert words == ["20", "6", "1"]


_S3FS = """
import sys
import s3fs

url, key, secret, repository = sys.argv[1:]
files = s3fs.S3FileSystem(key=key, secret=secret, endpoint_url=url, client_kwargs={"region_name": "us-east-1"})
main, dev = f"{repository}/main", f"{repository}.dev"
data = bytes(range(256)) * (48 << 10)
for path in (f"{main}/a/1", f"{main}/a/b/2", f"{dev}/c"):
    with files.open(path, "wb", block_size=5 << 20) as file:
        file.write(data)
files.mv(f"{main}/a/1", f"{main}/d")
files.cp(f"{dev}/c", f"{dev}/e")
for path in (f"{main}/a/b/2", f"{main}/d", f"{dev}/e"):
    assert files.cat_file(path) == data
    assert files.cat_file(path, start=5, end=9) == data[5:9]
print(*sorted(files.find(main)))
files.rm(f"{main}/a", recursive=True)
print(*sorted(files.find(main)), files.exists(f"{main}/a"))
print(*sorted(files.ls(dev, detail=False, refresh=True)))
"""


def test_s3fs_writes_in_parts_moves_copies_and_deletes_files(server: Server, repository: lakefs.Repository) -> None:
    packages = python_packages("s3fs==2026.9.0")
    repository.branch("dev").create("main")
    root = str(repository.id)

    words = told(_S3FS, packages, server.url, server.access_key_id, server.secret_access_key, root)

    assert words == [
        *(f"{root}/main/a/b/2", f"{root}/main/d"),
        *(f"{root}/main/d", "False"),
        *(f"{root}.dev/c", f"{root}.dev/e"),
    ]
