"""What the tests of databases load is kept for the next run, whichever worker was first."""

from __future__ import annotations

from pathlib import Path

from tests.kv.servers import keep


def test_of_two_workers_that_load_the_same_libraries_the_later_takes_those_of_the_first(tmp_path: Path) -> None:
    kept, drafts = tmp_path / "hbase", [tmp_path / "hbase.1", tmp_path / "hbase.2"]
    for draft in drafts:
        draft.mkdir()
        (draft / "library.jar").write_text(draft.name)

    for draft in drafts:
        keep(draft, kept)

    assert (kept / "library.jar").read_text() == "hbase.1"
    assert list(tmp_path.iterdir()) == [kept]
