"""Files of a run, as the driver writes them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lakebed.gc.engines.files import Files, Lake
from lakebed.gc.runs.context import write_once
from lakebed.objectstore import ObjectStoreOptions


@pytest.fixture
def files(tmp_path: Path) -> Iterator[Files]:
    options = ObjectStoreOptions(local_root=tmp_path, local_durable=False)
    with Files(Lake(uri="local://lake", options=options)) as files:
        yield files


def test_of_two_that_write_a_file_once_both_find_what_the_first_one_wrote(files: Files) -> None:
    assert files.act(lambda store: write_once(store, "a/1", b"first")) == b"first"
    assert files.act(lambda store: write_once(store, "a/1", b"second")) == b"first"
    assert files.read("a/1") == b"first"
