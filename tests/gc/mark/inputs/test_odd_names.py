"""Names in a namespace that no store of ours can do anything with: runs go on beside them, and name them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lakebed.base import slice_name
from lakebed.gc.engines import LocalEngine
from lakebed.gc.mark.inputs.listing import find_unknown_files, is_metadata, list_slice, list_special
from lakebed.objectstore import ObjectStore, ObjectStoreOptions, names_of_no_keys, open_objectstore
from lakebed.runtime import live_ports
from tests.objectstore.s3_servers import client_of, make_bucket, serve_s3

SLICE = slice_name(7)


@pytest.fixture(scope="module")
def options() -> Iterator[ObjectStoreOptions]:
    with serve_s3() as options:
        yield options


@pytest.fixture
def store(options: ObjectStoreOptions) -> ObjectStore:
    bucket = make_bucket(options)
    store = open_objectstore(f"s3://{bucket}/ns", options)
    s3 = client_of(options)
    for key in (
        f"data/{SLICE}/00000001",
        f"data/{SLICE}/00000002",
        f"data/{SLICE}//00000003",
        f"data/{SLICE}/00000004/",
        "data//stray",
        "_lakefs/dummy",
        "_lakefs//stray",
        "/stray",
        "mine.txt",
    ):
        s3.put_object(Bucket=bucket, Key=f"ns/{key}", Body=b"x")
    return store


async def test_a_slice_is_listed_beside_them(store: ObjectStore) -> None:
    listed = await list_slice(store, SLICE)

    assert [*listed.sequences] == [1, 2]
    assert listed.found.unknown_files == (f"data/{SLICE}//00000003", f"data/{SLICE}/00000004/")


async def test_what_lies_around_the_slices_is_named(store: ObjectStore) -> None:
    engine = LocalEngine(store, live_ports(), open_deleter=lambda: pytest.fail("nothing is deleted here"), shares=1)

    found = await find_unknown_files(engine, store)
    special = await list_special(engine, store, folder="_lakefs/gc/x")

    assert {"/", "mine.txt", "data//", "_lakefs//stray"} <= {*found.keys}
    assert special.unknown_files.keys == ("_lakefs//stray",)
    assert not special.runs
    assert not special.written


@pytest.mark.parametrize("name", ["//", "a//", "./"])
def test_no_plan_of_metadata_takes_what_cannot_be_named(name: str) -> None:
    key = "_lakefs/symlinks/0123456789abcdef/0123456789abcdefghij/{}symlink.txt"

    assert is_metadata(key.format("a/"))
    assert not is_metadata(key.format(name))


def test_names_that_are_no_keys_are_told_from_folders_and_files() -> None:
    assert names_of_no_keys(["mine.txt", "beside/", "/", "data//", "a/../b", "a\tb"]) == [
        "/",
        "data//",
        "a/../b",
        "a\tb",
    ]
