"""Storage namespaces: which there are, their one spelling, and what the options allow."""

from __future__ import annotations

import multiprocessing
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from lakebed.objectstore import (
    InvalidNamespace,
    ObjectStoreOptions,
    environment_of,
    normalise_namespace,
    open_deleter,
    open_objectstore,
    options_from_environment,
)


@pytest.mark.parametrize(
    ("uri", "normal"),
    [
        ("mem://name", "mem://name"),
        ("MEM://Name/", "mem://Name"),
        ("local://bucket", "local://bucket"),
        ("local://bucket/", "local://bucket"),
        ("Local://bucket/some/path//", "local://bucket/some/path"),
        ("local:///srv/lake/", "local:///srv/lake"),
        ("s3://my-bucket/a+b/ü%2F", "s3://my-bucket/a+b/ü%2F"),
        ("S3://my.bucket", "s3://my.bucket"),
        ("GS://my.bucket/a/", "gs://my.bucket/a"),
        ("az://my-container/a", "az://my-container/a"),
        ("https://account.blob.core.windows.net/my-container/a/", "az://my-container/a"),
    ],
)
def test_a_namespace_has_one_spelling(uri: str, normal: str) -> None:
    assert normalise_namespace(uri) == normal
    assert normalise_namespace(normal) == normal


@pytest.mark.parametrize(
    "uri",
    [
        "",
        "name",
        "/srv/lake",
        "file:///srv/lake",
        "gs://Bucket/path",
        "gs://b",
        "az://my_container/x",
        "az://container--x/x",
        "az://container@account/x",
        "abfss://container@account.dfs.core.windows.net/x",
        "https://example.com/x",
        "s3:/bucket/x",
        "s3://",
        "s3:///x",
        "s3://user:secret@bucket/x",
        "s3://b",
        "s3://bucket?x/y",
        "s3://bucket/x?versionId=1",
        "s3://bucket/x#y",
        "s3://bucket/../other",
        "s3://bucket/a/./b",
        "s3://bucket//a",
        "s3://bucket/a\\b",
        "s3://bucket/a b",
        "s3://bucket/a\0b",
        "s3://bucket/.lakebed-tmp",
        "s3://bücket/x",
        "local://",
        "local:///",
        "local:////",
        "local://../x",
        "local://.hidden/x",
        "local://bucket/../../etc",
        "local:///srv/../etc",
        "mem://",
        "mem://a b",
        "mem://\ud800",
    ],
)
def test_what_is_no_namespace_is_refused_by_name(uri: str) -> None:
    with pytest.raises(InvalidNamespace, match="storage namespace"):
        normalise_namespace(uri)
    with pytest.raises(InvalidNamespace):
        open_objectstore(uri, ObjectStoreOptions(local_root=Path("/nowhere"), allow_absolute_local=True))


@pytest.mark.parametrize("uri", ["ftp://bucket/path", "name", "local://"])
def test_a_refusal_says_what_is_known(uri: str) -> None:
    with pytest.raises(
        InvalidNamespace, match="mem://name, local://bucket/path, s3://bucket/prefix, gs://bucket/prefix and az://"
    ):
        normalise_namespace(uri)


async def test_one_name_is_one_memory_in_the_whole_process() -> None:
    await open_objectstore("mem://test-opening").put("x", b"bytes")
    assert await open_objectstore("MEM://test-opening/").get("x") == b"bytes"
    assert [page async for page in open_objectstore("mem://test-opening/other").list()] == []


async def test_a_local_bucket_lies_below_the_root(tmp_path: Path) -> None:
    objectstore = open_objectstore("local://bucket/some/path/", ObjectStoreOptions(local_root=tmp_path))
    assert objectstore.uri == "local://bucket/some/path"
    await objectstore.put("x", b"bytes")
    assert (tmp_path / "bucket/some/path/x").read_bytes() == b"bytes"


def test_a_local_bucket_needs_a_root() -> None:
    with pytest.raises(InvalidNamespace, match="root"):
        open_objectstore("local://bucket/path")


async def test_an_absolute_folder_needs_permission(tmp_path: Path) -> None:
    with pytest.raises(InvalidNamespace, match=r"not allowed here: name one below .* as local://bucket/path"):
        open_objectstore(f"local://{tmp_path}/lake")
    objectstore = open_objectstore(f"local://{tmp_path}/lake", ObjectStoreOptions(allow_absolute_local=True))
    await objectstore.put("x", b"bytes")
    assert (tmp_path / "lake" / "x").read_bytes() == b"bytes"


def test_an_absolute_folder_is_no_second_name_for_a_bucket(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "root")
    options = ObjectStoreOptions(local_root=tmp_path / "root", allow_absolute_local=True)
    for folder in (tmp_path / "root", tmp_path / "root" / "bucket", tmp_path, tmp_path / "link" / "bucket"):
        with pytest.raises(InvalidNamespace, match="overlaps"):
            open_objectstore(f"local://{folder}", options)
    open_objectstore(f"local://{tmp_path}/root2", options)


@pytest.mark.parametrize(
    "endpoint", ["127.0.0.1:9000", "ftp://host", "http://", "http://host:99999", "http://user@host", "http://a b"]
)
def test_a_bad_endpoint_is_refused_before_anything_is_sent(endpoint: str) -> None:
    with pytest.raises(InvalidNamespace, match="endpoint"):
        open_objectstore("s3://bucket/x", ObjectStoreOptions(s3_endpoint=endpoint))


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:9000", "https://s3.example.com/", "http://[::1]:65000"])
def test_endpoints_are_urls_of_hosts(endpoint: str) -> None:
    options = ObjectStoreOptions(s3_endpoint=endpoint, s3_access_key_id="id", s3_secret_access_key="secret")
    assert open_objectstore("s3://bucket/x/", options).uri == "s3://bucket/x"


def test_a_url_of_another_account_is_refused() -> None:
    """Its container would be taken for the one of that name in ours."""
    uri = "https://theirs.blob.core.windows.net/container/x"
    options = ObjectStoreOptions(azure_account="ours", azure_key="a2V5")
    with pytest.raises(InvalidNamespace, match="account here is ours"):
        open_objectstore(uri, options)
    with pytest.raises(InvalidNamespace, match="account here is ours"):
        open_deleter(uri, options)
    assert open_objectstore(uri.replace("theirs", "ours"), options).uri == "az://container/x"


def test_half_of_the_credentials_is_refused() -> None:
    with pytest.raises(InvalidNamespace, match="together"):
        open_objectstore("s3://bucket/x", ObjectStoreOptions(s3_access_key_id="id"))


def test_options_are_read_from_an_environment() -> None:
    assert options_from_environment({}) == ObjectStoreOptions()
    options = options_from_environment(
        {
            "LAKEBED_BLOCKS_LOCAL_ROOT": "/srv/lake",
            "LAKEBED_BLOCKS_ALLOW_ABSOLUTE_LOCAL": "1",
            "LAKEBED_S3_ENDPOINT": "http://127.0.0.1:9000",
            "AWS_ENDPOINT_URL": "https://elsewhere",
            "AWS_DEFAULT_REGION": "eu-central-1",
            "LAKEBED_S3_ACCESS_KEY_ID": "ours",
            "LAKEBED_S3_SECRET_ACCESS_KEY": "hush",
            "AWS_ACCESS_KEY_ID": "theirs",
            "AWS_SESSION_TOKEN": "belongs to theirs",
            "LAKEBED_S3_VIRTUAL_HOSTED": "",
            "LAKEBED_AZURE_ACCOUNT": "account",
            "AZURE_STORAGE_KEY": "of another account",
            "LAKEBED_GS_SERVICE_ACCOUNT": "/srv/account.json",
        }
    )
    assert options == ObjectStoreOptions(
        local_root=Path("/srv/lake"),
        allow_absolute_local=True,
        s3_endpoint="http://127.0.0.1:9000",
        s3_region="eu-central-1",
        s3_access_key_id="ours",
        s3_secret_access_key="hush",
        azure_account="account",
        gs_service_account=Path("/srv/account.json"),
    )


def test_options_can_be_sent_to_workers() -> None:
    options = ObjectStoreOptions(local_root=Path("/srv"), s3_secret_access_key="hush")
    assert pickle.loads(pickle.dumps(options)) == options


def test_credentials_do_not_show_in_the_options() -> None:
    assert "hush" not in repr(ObjectStoreOptions(s3_secret_access_key="hush", s3_session_token="hush"))
    assert "hush" not in repr(ObjectStoreOptions(azure_key="hush", azure_sas_token="hush"))


def test_opening_a_folder_does_not_load_the_object_stores() -> None:
    program = "import sys, lakebed.objectstore as b; b.open_objectstore('mem://x'); sys.exit('obstore' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)


def _put_in_a_child(root: Path) -> None:
    import asyncio

    asyncio.run(open_objectstore("local://bucket", ObjectStoreOptions(local_root=root)).put("child", b""))


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
async def test_a_forked_child_has_threads_of_its_own(tmp_path: Path) -> None:
    """Its parent's are not there, and what waited for them would wait for ever."""
    objectstore = open_objectstore("local://bucket", ObjectStoreOptions(local_root=tmp_path))
    await objectstore.put("parent", b"")
    child = multiprocessing.get_context("fork").Process(target=_put_in_a_child, args=(tmp_path,))
    child.start()
    child.join(600)
    assert child.exitcode == 0
    assert [[stat.key for stat in page] async for page in objectstore.list()] == [["child", "parent"]]


@pytest.mark.parametrize(
    "options",
    [
        ObjectStoreOptions(),
        ObjectStoreOptions(local_root=Path("/srv/lake"), allow_absolute_local=True),
        ObjectStoreOptions(
            s3_endpoint="http://127.0.0.1:9000",
            s3_region="eu-north-1",
            s3_access_key_id="key",
            s3_secret_access_key="secret",
            s3_session_token="token",
            s3_virtual_hosted=True,
        ),
        ObjectStoreOptions(azure_account="a", azure_key="k", azure_sas_token="t", azure_endpoint="http://127.0.0.1:1"),
        ObjectStoreOptions(gs_endpoint="http://127.0.0.1:1", gs_service_account=Path("/srv/account.json")),
    ],
)
def test_options_go_to_another_process_as_its_environment(options: ObjectStoreOptions) -> None:
    assert options_from_environment(environment_of(options)) == options
