"""The requests of `io.lakefs.LakeFSFileSystem`, mode `presigned`, for a job of Hadoop that commits files by renames.

Its jar is in no registry that we reach. So a small file system stands here for it: each method makes the calls of the
contract that the Java one makes, and its bytes go straight to the store.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from lakebed.objectstore import ObjectStoreOptions, environment_of
from tests.objectstore.s3_servers import make_bucket

from .serving import serving


class FileSystem:
    """Paths of one branch, as Hadoop has them: a directory is there if a key is below it, or a marker of no bytes."""

    def __init__(self, api: httpx.Client) -> None:
        self.api = api
        self.storage = api.get("/config").raise_for_status().json()["storage_config"]

    def stat(self, path: str, **query: Any) -> dict[str, Any] | None:
        answer = self.api.get("/repositories/lake/refs/main/objects/stat", params={"path": path, **query})
        if answer.status_code == 404:
            return None
        found: dict[str, Any] = answer.raise_for_status().json()
        return found

    def keys(self, prefix: str, *, amount: int = 1000, delimiter: str = "") -> list[str]:
        keys, after, has_more = [], "", True
        while has_more:
            query: dict[str, Any] = {
                "prefix": prefix,
                "after": after,
                "amount": amount,
                "delimiter": delimiter,
                "presign": "false",
            }
            page = self.api.get("/repositories/lake/refs/main/objects/ls", params=query).raise_for_status().json()
            keys += [row["path"] for row in page["results"]]
            has_more, after = page["pagination"]["has_more"], page["pagination"]["next_offset"]
        return keys

    def is_directory(self, path: str) -> bool:
        query: dict[str, Any] = {"prefix": f"{path}/", "amount": 1}
        page = self.api.get("/repositories/lake/refs/main/objects/ls", params=query).raise_for_status().json()
        return self.stat(path) is None and bool(page["results"])

    def create(self, path: str, data: bytes) -> None:
        url = "/repositories/lake/branches/main/staging/backing"
        place = self.api.get(url, params={"path": path, "presign": "true"}).raise_for_status().json()
        stored = httpx.put(place["presigned_url"], content=data).raise_for_status()
        link = {"staging": place, "checksum": stored.headers["etag"], "size_bytes": len(data)}
        self.api.put(url, params={"path": path}, json=link).raise_for_status()

    def make_directory(self, path: str) -> None:
        self.create(f"{path}/", b"")

    def open(self, path: str, start: int, end: int) -> bytes:
        found = self.stat(path, presign="true")
        assert found is not None
        return httpx.get(found["physical_address"], headers={"range": f"bytes={start}-{end - 1}"}).content

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


@pytest.fixture
def files(tmp_path_factory: pytest.TempPathFactory, options: ObjectStoreOptions) -> Iterator[FileSystem]:
    folder = tmp_path_factory.mktemp("hadoop")
    with serving(folder, **environment_of(options), LAKEBED_BLOCKSTORE="s3") as server:
        pair = (server.access_key_id, server.secret_access_key)
        client = {"X-Lakefs-Client": "lakefs-hadoopfs/0.2.5"}
        with httpx.Client(base_url=server.url + "/api/v1", auth=pair, headers=client, timeout=60) as api:
            namespace = f"s3://{make_bucket(options)}/hadoop"
            api.post("/repositories", json={"name": "lake", "storage_namespace": namespace}).raise_for_status()
            yield FileSystem(api)


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
