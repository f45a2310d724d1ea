"""What the driver lists of a namespace, and what it leaves out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lakebed.gc.files import Files, Lake, listed, write_once
from lakebed.objectstore import ObjectStore, ObjectStoreOptions


async def all_listed(store: ObjectStore, *, without: str = "") -> set[str]:
    return {stat.key.removeprefix("a/") async for page in listed(store, "a/", without=without) for stat in page}


@pytest.fixture
def files(tmp_path: Path) -> Iterator[Files]:
    options = ObjectStoreOptions(local_root=tmp_path, local_durable=False)
    with Files(Lake(uri="local://lake", options=options)) as files:
        yield files


@pytest.mark.parametrize(
    "keys", [[], ["a/1"], ["a/b/1"], ["a/c/1"], ["a/b/1", "a/b/2"], ["a/1", "a/bb", "a/c/1"], ["a/a", "a/b0", "a/b.x"]]
)
def test_a_folder_that_is_left_out_is_missing_and_nothing_else_is(files: Files, keys: list[str]) -> None:
    for key in [*keys, "b/1"]:
        files.write(key, b"1")

    wanted = {key.removeprefix("a/") for key in keys if not key.startswith("a/b/")}
    assert files.act(lambda store: all_listed(store, without="a/b/")) == wanted
    assert files.act(all_listed) == {key.removeprefix("a/") for key in keys}


def test_of_two_that_write_a_file_once_both_find_what_the_first_one_wrote(files: Files) -> None:
    assert files.act(lambda store: write_once(store, "a/1", b"first")) == b"first"
    assert files.act(lambda store: write_once(store, "a/1", b"second")) == b"first"
    assert files.read("a/1") == b"first"
