"""A file that an earlier release wrote is read for ever. Files in `golden` are never rewritten."""

from __future__ import annotations

import shutil
from pathlib import Path

from lakebed.kv import open_store, sqlite_uri

GOLDEN = Path(__file__).parent / "golden" / "format-1.db"
CONTENT = {
    b"repositories": [(b"lake", b"\x95\x01\xa4")],
    b"06gvsav09o6k706b782p/06gvsav09q18h62plmp6": [
        (b"\x00", b""),
        (b"a" * 1024, bytes(range(256))),
        (b"\xff", b"last"),
    ],
}


async def test_format_1_is_read_and_written(tmp_path: Path) -> None:
    path = Path(shutil.copy(GOLDEN, tmp_path / "kv.db"))
    store = open_store(sqlite_uri(path))

    for partition, pairs in CONTENT.items():
        page = await store.scan(partition, b"", 10)
        assert list(zip(page.keys, page.values, strict=True)) == pairs
    await store.set_if(b"repositories", b"lake", b"new", b"\x95\x01\xa4")
    await store.close()


def test_format_1_says_so_in_its_header() -> None:
    header = GOLDEN.read_bytes()[:100]

    assert header[:16] == b"SQLite format 3\x00"
    assert header[18:20] == b"\x02\x02"
    assert int.from_bytes(header[60:64], "big") == 1
    assert header[68:72] == b"Lkbd"


def test_its_only_content_is_the_table() -> None:
    sql = (
        b"CREATE TABLE kv (\n    partition BLOB NOT NULL,\n    key BLOB NOT NULL,\n    value BLOB NOT NULL,\n"
        b"    PRIMARY KEY (partition, key)\n) WITHOUT ROWID"
    )

    assert GOLDEN.read_bytes()[:4096].count(b"CREATE ") == 1
    assert sql in GOLDEN.read_bytes()[:4096]
