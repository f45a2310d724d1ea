"""`lakefs-spec`, the contract's filesystem for fsspec, unchanged: files, transactions, and what pandas does with it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import lakefs
import pandas as pd
import pytest
from lakefs.exceptions import ServerException
from lakefs_spec import LakeFSFileSystem

from .serving import Server

pytestmark = pytest.mark.filterwarnings("ignore")  # of the clients' own dependencies, which are not ours to mend


@pytest.fixture
def files(server: Server) -> Iterator[LakeFSFileSystem]:
    made = LakeFSFileSystem(
        host=server.url,
        username=server.access_key_id,
        password=server.secret_access_key,
        skip_instance_cache=True,
        use_listings_cache=False,
    )
    yield made
    made.client.sdk_client._api.rest_client.pool_manager.clear()


@pytest.fixture
def main(repository: lakefs.Repository) -> str:
    return f"lakefs://{repository.id}/main"


def test_files_are_written_read_listed_and_removed(files: LakeFSFileSystem, main: str, tmp_path: Path) -> None:
    (tmp_path / "local").write_bytes(b"local bytes")

    with files.open(f"{main}/a/one", "wb") as one:
        one.write(b"one" * 1000)
    files.pipe_file(f"{main}/a/two", b"two")
    files.put_file(str(tmp_path / "local"), f"{main}/b/three")
    files.get_file(f"{main}/a/one", str(tmp_path / "back"))

    assert (tmp_path / "back").read_bytes() == b"one" * 1000
    assert files.cat_file(f"{main}/a/one", start=1, end=5) == b"neon"
    assert sorted(found["name"].rpartition("/")[2] for found in files.ls(f"{main}/a")) == ["one", "two"]
    assert (files.info(f"{main}/b/three")["size"], files.exists(f"{main}/b/none")) == (11, False)
    assert len(files.find(main + "/")) == 3
    files.cp_file(f"{main}/a/two", f"{main}/copied")
    assert files.cat_file(f"{main}/copied") == b"two"
    files.rm_file(f"{main}/a/one")
    assert not files.exists(f"{main}/a/one")


def test_an_empty_file_is_touched_since_the_version_is_the_contracts(files: LakeFSFileSystem, main: str) -> None:
    """The client refuses this to servers before 1.3.1."""
    files.touch(f"{main}/empty")

    assert files.info(f"{main}/empty")["size"] == 0


def test_an_upload_that_is_there_already_is_left_out(files: LakeFSFileSystem, main: str, tmp_path: Path) -> None:
    """The client compares checksums with those of the server."""
    (tmp_path / "local").write_bytes(b"same")
    files.put_file(str(tmp_path / "local"), f"{main}/same")
    before = files.info(f"{main}/same")

    files.put_file(str(tmp_path / "local"), f"{main}/same")

    assert files.info(f"{main}/same") == before


def test_a_transaction_is_merged_and_leaves_no_branch(
    files: LakeFSFileSystem, repository: lakefs.Repository, main: str
) -> None:
    with files.transaction(repository, base_branch="main") as transaction:
        files.pipe_file(f"lakefs://{repository.id}/{transaction.branch.id}/in/it", b"x")
        transaction.commit(message="in a transaction")

    assert files.cat_file(f"{main}/in/it") == b"x"
    assert [branch.id for branch in repository.branches()] == ["main"]
    assert any(commit.message == "in a transaction" for commit in repository.branch("main").log())


def test_what_is_not_there_is_a_file_not_found(files: LakeFSFileSystem, main: str) -> None:
    with pytest.raises(FileNotFoundError):
        files.cat_file(f"{main}/nowhere")


def test_what_an_erasure_took_fails_with_410_and_listings_still_have_it(
    files: LakeFSFileSystem, main: str, gone: str
) -> None:
    """The client asks first whether it exists, by a HEAD, and makes no error of its own of what that answers."""
    with pytest.raises(ServerException) as read:
        files.cat_file(f"{main}/{gone}")
    assert (read.value.status_code, read.value.reason) == (410, "Gone")

    assert sorted(found["name"].rpartition("/")[2] for found in files.ls(f"{main}/a")) == ["gone", "here"]
    assert files.info(f"{main}/{gone}")["size"] == 6
    assert files.cat_file(f"{main}/a/here") == b"here"


def test_pandas_writes_and_reads_a_table(server: Server, main: str) -> None:
    options = {"host": server.url, "username": server.access_key_id, "password": server.secret_access_key}
    table = pd.DataFrame({"a": [1, 2, 3], "b": ["x", "y", "z"]})

    table.to_parquet(f"{main}/tables/t.parquet", storage_options=options)

    assert pd.read_parquet(f"{main}/tables/t.parquet", storage_options=options).equals(table)
