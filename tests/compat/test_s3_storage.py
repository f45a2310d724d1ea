"""A server whose object store is S3: imports that copy nothing, and its own S3 door over that store."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import lakefs
import pytest
from lakefs.client import Client

from lakebed.objectstore import ObjectStore, ObjectStoreOptions, environment_of, open_objectstore
from tests.objectstore.s3_servers import make_bucket

from .serving import Server, serving
from .test_s3_boto3 import PART, client_of, finish, upload_in_parts

pytestmark = pytest.mark.filterwarnings("ignore")  # of the clients' own dependencies, which are not ours to mend


@pytest.fixture(scope="module")
def server(options: ObjectStoreOptions, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("lakebed-s3")
    with serving(folder, **environment_of(options), LAKEBED_BLOCKSTORE="s3") as server:
        yield server


@pytest.fixture
def namespace(options: ObjectStoreOptions) -> str:
    return f"s3://{make_bucket(options)}/lake"


async def put_all(store: ObjectStore, *keys: str) -> None:
    for key in keys:
        await store.put(key, key.encode())
    await store.close()


def test_a_prefix_and_an_object_of_a_bucket_are_imported_where_they_lie(
    client: Client, options: ObjectStoreOptions, namespace: str
) -> None:
    raw = f"s3://{make_bucket(options)}"
    asyncio.run(put_all(open_objectstore(raw, options), "logs/a.csv", "logs/b/c.csv", "logs2/no.csv", "one.bin"))
    main = lakefs.Repository("imported", client=client).create(storage_namespace=namespace).branch("main")

    status = main.import_data("raw").prefix(f"{raw}/logs/", "raw/").object(f"{raw}/one.bin", "1.bin").run()

    assert (status.completed, status.ingested_objects) == (True, 3)
    assert {each.path: each.physical_address for each in main.objects()} == {
        "1.bin": f"{raw}/one.bin",
        "raw/a.csv": f"{raw}/logs/a.csv",
        "raw/b/c.csv": f"{raw}/logs/b/c.csv",
    }
    assert main.object("raw/b/c.csv").reader("rb").read() == b"logs/b/c.csv"


def test_the_s3_door_puts_reads_copies_and_joins_objects_in_an_s3_store(
    server: Server, client: Client, namespace: str
) -> None:
    main = lakefs.Repository("door", client=client).create(storage_namespace=namespace).branch("main")
    s3 = client_of(server)

    etag = s3.put_object(Bucket="door", Key="main/a", Body=PART + b"0123456789")["ETag"]
    assert s3.get_object(Bucket="door.main", Key="a", Range=f"bytes={len(PART)}-")["Body"].read() == b"0123456789"
    assert s3.copy_object(Bucket="door", Key="main/b", CopySource="door/main/a")["CopyObjectResult"]["ETag"] == etag
    upload, parts = upload_in_parts(s3, "door", "main/c", PART)
    copied = s3.upload_part_copy(
        Bucket="door",
        Key="main/c",
        UploadId=upload,
        PartNumber=2,
        CopySource="door/main/a",
        CopySourceRange=f"bytes={len(PART)}-{len(PART) + 4}",
    )
    finish(s3, "door", "main/c", upload, [*parts, {"PartNumber": 2, "ETag": copied["CopyPartResult"]["ETag"]}])

    assert s3.get_object(Bucket="door", Key="main/c")["Body"].read() == PART + b"01234"
    assert main.object("a").stat().physical_address == main.object("b").stat().physical_address
    s3.delete_object(Bucket="door", Key="main/a")
    assert [each["Key"] for each in s3.list_objects_v2(Bucket="door.main")["Contents"]] == ["b", "c"]
    s3.close()
