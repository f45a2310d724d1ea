"""The words of the seam: states, paths, addresses, reports."""

from __future__ import annotations

import pytest

from lakebed.base import RUN_MOVES, RunId
from lakebed.gc.messages import (
    DELETES_ALLOWED,
    TABLES,
    BadInput,
    InvalidRunId,
    RunKind,
    RunReport,
    RunState,
    Table,
    arrow_schema,
    check_run_id,
    decode_report,
    encode_report,
    input_folder,
    is_special,
    manifest_path,
    part_name,
    report_path,
)


def test_uncommitted_addresses_lie_where_the_document_says() -> None:
    assert (
        input_folder(RunKind.UNCOMMITTED, RunId("r1"), "uncommitted")
        == "_lakefs/retention/gc/uncommitted/r1/uncommitted/"
    )
    assert report_path(RunKind.UNCOMMITTED, RunId("r1")) == "_lakefs/retention/gc/uncommitted/r1/report.json"
    assert manifest_path(RunKind.COMMITTED, RunId("r1"), "commits").startswith("_lakefs/retention/gc/committed/r1/")


def test_part_names_sort_as_their_numbers() -> None:
    assert sorted(part_name(number) for number in (10, 9, 100)) == [part_name(number) for number in (9, 10, 100)]


@pytest.mark.parametrize("kind", RunKind)
def test_every_move_leads_to_a_known_state_and_every_run_can_end(kind: RunKind) -> None:
    moves = RUN_MOVES[kind]

    reachable = {next(iter(moves))}
    for _ in moves:
        reachable |= {target for state in reachable for target in moves[state]}

    assert reachable == set(moves)
    assert RunState.ENDED in reachable


@pytest.mark.parametrize("kind", RunKind)
def test_a_run_that_may_delete_cannot_be_abandoned(kind: RunKind) -> None:
    """A kind that can wait may be undone: its record says whether a purge began (`RunRecord.may_be_undone`)."""
    undone = {RunState.UNDONE} if kind.can_wait else set()
    for state in DELETES_ALLOWED & set(RUN_MOVES[kind]):
        assert RUN_MOVES[kind][state] == {RunState.ENDED} | undone
    assert all(RUN_MOVES[kind][state] == set() for state in undone)


@pytest.mark.parametrize("bad", ["", "../x", "a/b", "A", "-a", "a" * 65, "a b", "ä"])
def test_a_run_id_that_could_name_another_folder_is_refused(bad: str) -> None:
    with pytest.raises(InvalidRunId):
        check_run_id(bad)


def test_only_keys_below_data_are_users_bytes() -> None:
    assert not is_special("data/0000000000000/00000001")
    assert is_special("_lakefs/ranges/x.parquet")
    assert is_special("datas/x")
    assert is_special("data")


@pytest.mark.parametrize("table", TABLES.values(), ids=lambda table: table.name)
def test_table_and_arrow_schema_name_the_same_columns(table: Table) -> None:
    assert arrow_schema(table).names == list(table.names())


def report(**changes: object) -> RunReport:
    facts: dict[str, object] = {
        "run_id": "r1",
        "kind": RunKind.UNCOMMITTED,
        "state": RunState.ENDED,
        "repository": "repo",
        "namespace": "mem://x",
        "run_start_time_ms": 1,
        "run_end_time_ms": 2,
        "dry_run": False,
        "last_read_slice": "0000000000000",
        "slices_listed": 1,
        "inputs": {"uncommitted": "0" * 64},
        "garbage_objects": 1,
        "garbage_bytes": 10,
        "objects_deleted": 1,
        "bytes_deleted": 10,
        "objects_failed": 0,
    }
    return RunReport(**{**facts, **changes})  # type: ignore[arg-type]  # built from names to keep the test short


def test_a_report_survives_its_own_encoding() -> None:
    assert decode_report(encode_report(report()), name="r") == report()


def test_a_report_of_a_later_format_is_refused() -> None:
    with pytest.raises(BadInput, match="unknown format 2"):
        decode_report(encode_report(report(format=2)), name="r")


def test_a_report_that_is_no_json_is_refused() -> None:
    with pytest.raises(BadInput, match="unreadable"):
        decode_report(b"?", name="r")
