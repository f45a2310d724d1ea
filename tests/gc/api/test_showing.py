"""A plan's objects one by one and the commits it expires, as they are read and as they are told."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from lakebed.cli.gc.report import plan_html
from lakebed.cli.gc.text import commits_text, expiring_text, objects_text
from lakebed.gc import messages
from lakebed.gc.api import showing
from lakebed.gc.engines.files import Files, Lake
from lakebed.gc.messages import (
    BadInput,
    CommitCounts,
    ExpiringCommit,
    GarbageObject,
    Plan,
    RangeCounts,
    RunKind,
    Total,
    Totals,
)
from lakebed.gc.rules import DAY_MS, BranchRule, Rules
from lakebed.gc.runs import context
from lakebed.objectstore import ObjectStoreOptions
from lakebed.runtime import LiveTasks

FOLDER = "_lakefs/retention/gc/committed/r1/"
NOW = 1_790_000_000_000


@pytest.fixture
def files(tmp_path: Path) -> Any:
    with Files(
        Lake(uri="local://lake/repo", options=ObjectStoreOptions(local_root=tmp_path, local_durable=False))
    ) as found:
        yield found


def garbage(*objects: tuple[str, str]) -> pa.Table:
    rows = [
        {
            "address": address,
            "slice": -1,
            "sequence": 0,
            "size_bytes": 2048,
            "reason": "expired",
            "rule": "main: 7d",
            "last_seen_at": NOW,
            "path": path,
        }
        for address, path in objects
    ]
    return pa.Table.from_pylist(rows, messages.arrow_schema(messages.GARBAGE))


def write_input(files: Files, folder: str, table: messages.Table, rows: pa.Table) -> messages.Manifest:
    return files.act(lambda store: context.write_input(store, folder, table, rows))


def objects_of(files: Files, plan: Plan, *, prefix: str = "") -> Iterator[messages.GarbageObject]:
    return files.each(lambda store: showing.objects_of(store, plan, prefix=prefix))


def expiring_of(files: Files, plan: Plan, *, limit: int) -> list[messages.ExpiringCommit]:
    return files.act(lambda store: showing.expiring_of(store, LiveTasks(), plan, limit=limit))


def written(files: Files) -> Plan:
    """Two parts of objects; and a history of which two commits expired."""
    parts = []
    for number, rows in enumerate((garbage(("x/1", "logs/a"), ("x/2", "logs/b")), garbage(("x/3", "raw/c")))):
        data, name = messages.encode_part(messages.GARBAGE, rows), f"part-{number}.parquet"
        files.write(f"{FOLDER}garbage/{name}", data)
        parts.append(messages.part_of(name, data, rows=rows.num_rows))
    history = [("a", 30, []), ("b", 20, ["a"]), ("c", 1, ["b"]), ("lost", 15, [])]
    commits = [
        {
            "id": id_,
            "generation": 1,
            "creation_date": NOW - age * DAY_MS,
            "metarange_id": f"m-{id_}",
            "parents": parents,
            "swept": False,
            "expiring": False,
        }
        for id_, age, parents in history
    ]
    refs = [{"kind": "branch", "name": "main", "commit_id": "c", "state": "active"}]
    expired = write_input(files, f"{FOLDER}expired/", messages.EXPIRED, pa.table({"id": ["a", "lost"]}))
    return Plan(
        run_id="r1",
        kind=RunKind.COMMITTED,
        repository="repo",
        namespace="local://lake/repo",
        now_ms=NOW,
        closed_slices=1,
        rules=Rules(default="4d", branches=(BranchRule(pattern="main", period="7d"),)),
        rules_version=1,
        commits=write_input(
            files,
            f"{FOLDER}commits/",
            messages.COMMITS,
            pa.Table.from_pylist(commits, messages.arrow_schema(messages.COMMITS)),
        ),
        refs=write_input(
            files, f"{FOLDER}refs/", messages.REFS, pa.Table.from_pylist(refs, messages.arrow_schema(messages.REFS))
        ),
        expired=expired,
        commit_counts=CommitCounts(all=4, kept=2, expired=2, swept=0),
        range_counts=RangeCounts(live=1, expired=2),
        garbage=messages.manifest_of(messages.GARBAGE, f"{FOLDER}garbage/", parts),
        totals=Totals(all=Total(objects=3, size_bytes=3 * 2048)),
    )


def test_the_objects_of_a_plan_are_read_part_by_part(files: Files) -> None:
    plan = written(files)

    found = list(objects_of(files, plan))

    assert [one.address for one in found] == ["x/1", "x/2", "x/3"]
    assert found[0] == GarbageObject(
        address="x/1", size_bytes=2048, reason="expired", rule="main: 7d", last_seen_ms=NOW, path="logs/a"
    )


@pytest.mark.parametrize(
    ("prefix", "addresses"), [("logs/", ["x/1", "x/2"]), ("x/3", ["x/3"]), ("raw/c", ["x/3"]), ("raw/d", [])]
)
def test_objects_are_asked_for_by_the_beginning_of_their_path_or_address(
    files: Files, prefix: str, addresses: list[str]
) -> None:
    assert [one.address for one in objects_of(files, written(files), prefix=prefix)] == addresses


def test_a_part_that_is_not_there_any_more_is_named(files: Files, tmp_path: Path) -> None:
    plan = written(files)
    next(tmp_path.rglob("part-1.parquet")).unlink()

    with pytest.raises(BadInput, match=r"part-1.parquet is missing"):
        list(objects_of(files, plan))


def test_the_commits_that_expire_come_newest_first_with_the_rule_that_lets_them_go(files: Files) -> None:
    found = expiring_of(files, written(files), limit=10)

    assert [(one.id, one.reason, one.branch, one.rule) for one in found] == [
        ("lost", "dangling", "", "default: 4d"),
        ("a", "expired", "main", "main: 7d"),
    ]
    assert expiring_of(files, written(files), limit=1) == found[:1]


def test_a_plan_of_uncommitted_data_lets_no_commit_expire(files: Files) -> None:
    plan = msgspec.structs.replace(written(files), expired=None, rules=None, kind=RunKind.UNCOMMITTED)

    assert expiring_of(files, plan, limit=10) == []


COMMIT = ExpiringCommit(
    id="a" * 64,
    created_ms=NOW,
    reason="expired",
    branch="main",
    rule="main: 7d",
    message="Load <b>\x1b[2J",
    author="ann",
)


def test_objects_are_told_by_path_and_address(files: Files) -> None:
    lines = list(objects_text(objects_of(files, written(files))))

    assert lines[0].split() == ["PATH", "ADDRESS", "SIZE", "LAST", "SEEN", "REASON", "RULE"]
    assert lines[1].split() == ["logs/a", "x/1", "2.0", "KiB", "2026-09-21", "14:13:20Z", "expired", "main:", "7d"]
    assert len(lines) == 4
    assert list(objects_text([])) == ["no object"]


def test_objects_in_no_commit_have_no_column_of_paths() -> None:
    one = GarbageObject(address="data/x", size_bytes=1, reason="unreferenced", rule="", last_seen_ms=NOW, path="")

    assert next(objects_text([one])).startswith("ADDRESS")


def test_commits_beyond_those_that_are_told_are_counted(files: Files) -> None:
    plan = written(files)

    assert list(expiring_text(plan, [COMMIT]))[-1] == "… and 1 commit more: --commits"
    assert list(expiring_text(plan, [])) == []
    assert list(commits_text([])) == ["no commit"]


def test_the_page_names_commits_that_expire_and_believes_no_message(files: Files) -> None:
    page = plan_html(written(files), None, [COMMIT])

    assert "Load &lt;b&gt;" in page
    assert "<td>ann</td>" in page
    assert "\x1b" not in page
    assert "… and 1 commit more" in page
