"""The number of a dump's format: which servers restore it."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakebed.catalog.dump_files import DumpKind, DumpWriter


@pytest.mark.parametrize(("has_tables", "number"), [(False, b"refs 1"), (True, b"refs 2")])
def test_only_a_dump_with_tables_has_a_number_that_older_servers_refuse(has_tables: bool, number: bytes) -> None:
    writer = DumpWriter("d" * 20, DumpKind.BRANCHES, has_tables=has_tables)
    writer.add(b"branch/main", b"1")

    _, _, data = writer.finish()

    assert pq.read_schema(pa.BufferReader(data)).metadata[b"lakebed.format"] == number
