"""The requests of `io.lakefs.LakeFSFileSystem`, modes `presigned` and `simple`, for a job that commits by renames.

The only jar of it that we reach, 0.1.0, is unfinished (docs/design/trials.md). So a small file system stands here for
it: each method makes the calls of the contract that the Java one makes, and its bytes go straight to the store.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from lakebed.objectstore import ObjectStoreOptions, environment_of
from tests.objectstore.s3_servers import client_of, make_bucket

from .serving import serving


class FileSystem:
    """Paths of one branch, as Hadoop has them: a directory is there if a key is below it, or a marker of no bytes."""

    def __init__(self, api: httpx.Client, s3: Any = None) -> None:
        """With a client of S3, mode `simple`: it needs keys of the store, as S3A does."""
        self.api = api
        self.s3 = s3
        self.storage = api.get("/config").raise_for_status().json()["storage_config"]

    def stat(self, path: str, *, ref: str = "main", **query: Any) -> dict[str, Any] | None:
        answer = self.api.get(f"/repositories/lake/refs/{ref}/objects/stat", params={"path": path, **query})
        if answer.status_code == 404:
            return None
        found: dict[str, Any] = answer.raise_for_status().json()
        return found

    def keys(self, prefix: str, *, ref: str = "main", amount: int = 1000, delimiter: str = "") -> list[str]:
        keys, after, has_more = [], "", True
        while has_more:
            query: dict[str, Any] = {
                "prefix": prefix,
                "after": after,
                "amount": amount,
                "delimiter": delimiter,
                "presign": "false",
            }
            page = self.api.get(f"/repositories/lake/refs/{ref}/objects/ls", params=query).raise_for_status().json()
            keys += [row["path"] for row in page["results"]]
            has_more, after = page["pagination"]["has_more"], page["pagination"]["next_offset"]
        return keys

    def is_directory(self, path: str) -> bool:
        query: dict[str, Any] = {"prefix": f"{path}/", "amount": 1}
        page = self.api.get("/repositories/lake/refs/main/objects/ls", params=query).raise_for_status().json()
        return self.stat(path) is None and bool(page["results"])

    def create(self, path: str, data: bytes, *, is_overwriting: bool = True) -> int:
        """Write a file, and return the status of the last request: 412 where it is there and must not be."""
        url = "/repositories/lake/branches/main/staging/backing"
        query = {"path": path} if self.s3 else {"path": path, "presign": "true"}
        place = self.api.get(url, params=query).raise_for_status().json()
        if self.s3:
            bucket, _, key = place["physical_address"].removeprefix("s3://").partition("/")
            etag = self.s3.put_object(Bucket=bucket, Key=key, Body=data)["ETag"]
        else:
            etag = httpx.put(place["presigned_url"], content=data).raise_for_status().headers["etag"]
        link = {"staging": place, "checksum": etag, "size_bytes": len(data)}
        only_new = {} if is_overwriting else {"If-None-Match": "*"}
        return self.api.put(url, params={"path": path}, json=link, headers=only_new).status_code

    def make_directory(self, path: str) -> None:
        self.create(f"{path}/", b"")

    def open(self, path: str, start: int, end: int, *, ref: str = "main") -> bytes:
        found = self.stat(path, ref=ref, presign="false" if self.s3 else "true")
        assert found is not None
        span = f"bytes={start}-{end - 1}"
        if self.s3:
            bucket, _, key = found["physical_address"].removeprefix("s3://").partition("/")
            return bytes(self.s3.get_object(Bucket=bucket, Key=key, Range=span)["Body"].read())
        return httpx.get(found["physical_address"], headers={"range": span}).content

    def rename(self, source: str, target: str) -> None:
        for key in self.keys(f"{source}/") if self.stat(source) is None else [source]:
            query = {"dest_path": target + key[len(source) :]}
            body = {"src_path": key, "src_ref": "main"}
            copy = "/repositories/lake/branches/main/objects/copy"
            self.api.post(copy, params=query, json=body).raise_for_status()
            self.api.delete("/repositories/lake/branches/main/objects", params={"path": key}).raise_for_status()

    def delete(self, path: str) -> None:
        body = {"paths": self.keys(f"{path}/")}
        answer = self.api.post("/repositories/lake/branches/main/objects/delete", json=body).raise_for_status()
        assert answer.json()["errors"] == []


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory, options: ObjectStoreOptions) -> Iterator[httpx.Client]:
    folder = tmp_path_factory.mktemp("hadoop")
    with serving(folder, **environment_of(options), LAKEBED_BLOCKSTORE="s3") as server:
        pair = (server.access_key_id, server.secret_access_key)
        client = {"X-Lakefs-Client": "lakefs-hadoopfs/0.2.5"}
        with httpx.Client(base_url=server.url + "/api/v1", auth=pair, headers=client, timeout=60) as api:
            namespace = f"s3://{make_bucket(options)}/hadoop"
            api.post("/repositories", json={"name": "lake", "storage_namespace": namespace}).raise_for_status()
            yield api


@pytest.fixture(params=["presigned", "simple"])
def files(request: pytest.FixtureRequest, api: httpx.Client, options: ObjectStoreOptions) -> FileSystem:
    return FileSystem(api, client_of(options) if request.param == "simple" else None)


def test_a_job_of_hadoop_commits_its_files_by_renames(files: FileSystem) -> None:
    assert (files.storage["pre_sign_support"], files.storage["blockstore_type"]) == (True, "s3")
    task = "table/_temporary/0/task 1"
    files.make_directory("table")
    files.make_directory(task)
    for number in range(3):
        files.create(f"{task}/part-{number}", b"rows %d" % number)
    seen = (files.is_directory("table"), files.is_directory("table/no"), files.stat(f"{task}/"))

    files.rename(f"{task}/part-0", "table/part-0")
    files.rename(task, "table/whole")
    files.delete("table/_temporary")
    files.create("table/_SUCCESS", b"")

    assert (seen[0], seen[1], seen[2] is not None and seen[2]["size_bytes"]) == (True, False, 0)
    kept = ["table/", "table/_SUCCESS", "table/part-0", "table/whole/", "table/whole/part-1", "table/whole/part-2"]
    assert files.keys("table/", amount=2) == kept
    assert files.keys("table/", delimiter="/") == [*kept[:3], "table/whole/"]
    assert (files.open("table/part-0", 0, 4), files.open("table/whole/part-2", 5, 6)) == (b"rows", b"2")
    files.delete("table")
    assert files.keys("") == []


def test_a_tag_and_a_commit_are_read_as_they_were(files: FileSystem) -> None:
    files.create("days/1/rows", b"first")
    commits, message = "/repositories/lake/branches/main/commits", {"message": "day"}
    commit = files.api.post(commits, json=message).json()["id"]
    files.api.post("/repositories/lake/tags", json={"id": f"v{commit}", "ref": "main"}).raise_for_status()
    files.create("days/1/rows", b"second")
    files.create("days/2", b"new")

    old = [(files.open("days/1/rows", 0, 9, ref=ref), files.keys("", ref=ref)) for ref in (commit, f"v{commit}")]

    assert old == [(b"first", ["days/1/rows"])] * 2
    assert (files.open("days/1/rows", 0, 9), files.keys("days/", delimiter="/")) == (b"second", ["days/1/", "days/2"])
    files.delete("days")
    files.api.post(commits, json=message).raise_for_status()


def test_a_file_that_must_be_new_takes_the_place_of_no_other(files: FileSystem) -> None:
    statuses = [files.create("new/log", data, is_overwriting=False) for data in (b"mine", b"other")]

    assert (statuses, files.open("new/log", 0, 9)) == ([200, 412], b"mine")
    files.delete("new")
