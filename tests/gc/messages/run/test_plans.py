"""The plan as a file, its totals, stray files, and answers of the server that do not add up."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakebed.base import Denied
from lakebed.gc import Collector, NoRules, messages
from lakebed.gc.api.http_requests import Caller, HttpRequests, finish
from lakebed.gc.engines.engine import VERDICTS
from lakebed.gc.engines.files import Files, Lake
from lakebed.gc.mark.inputs.listing import unknown_files_among
from lakebed.gc.mark.mark import TOTALS_MAX, sum_totals, totals_of
from lakebed.gc.messages import (
    UNKNOWN_FILES_MAX,
    BadInput,
    CommitCounts,
    Part,
    Plan,
    PlanMissing,
    PlanRequest,
    RangeCounts,
    Restore,
    RunKind,
    RunRequest,
    Service,
    Total,
    Totals,
    UnknownAnswer,
)
from lakebed.gc.runs import context
from lakebed.objectstore import ObjectStoreOptions

PATH = "_lakefs/retention/gc/committed/r1/plan.json"


@pytest.fixture
def files(tmp_path: Path) -> Any:
    lake = Lake(uri="local://lake/repo", options=ObjectStoreOptions(local_root=tmp_path, local_durable=False))
    with Files(lake) as found:
        yield found


def write_plan(files: Files, plan: Plan) -> None:
    files.act(lambda store: context.write_plan(store, plan))


def read_plan(files: Files, run_id: str) -> Plan:
    return files.act(lambda store: context.read_plan(store, run_id))


def empty(table: messages.Table) -> messages.Manifest:
    return messages.manifest_of(table, "_lakefs/retention/gc/committed/r1/x/", [])


PLAN = Plan(
    run_id="r1",
    kind=RunKind.COMMITTED,
    repository="repo",
    namespace="local://lake/repo",
    now_ms=1,
    closed_slices=2,
    rules=None,
    rules_version=3,
    commits=empty(messages.COMMITS),
    refs=empty(messages.REFS),
    commit_counts=CommitCounts(all=3, kept=1, expired=1, swept=1),
    range_counts=RangeCounts(live=1, expired=1),
    garbage=empty(messages.GARBAGE),
    totals=Totals(all=Total(objects=1, size_bytes=2)),
)


def test_a_plan_is_read_as_it_was_written(files: Files) -> None:
    write_plan(files, PLAN)

    assert read_plan(files, "r1") == PLAN
    assert files.act(context.list_plans) == ["r1"]


def test_a_run_without_a_finished_plan_has_none(files: Files) -> None:
    with pytest.raises(PlanMissing, match="r1"):
        read_plan(files, "r1")


def test_a_plan_that_was_changed_is_no_plan(files: Files) -> None:
    write_plan(files, PLAN)
    files.write(PATH, files.read(PATH).replace(b'"rules_version":3', b'"rules_version":4'))

    with pytest.raises(BadInput, match="digest"):
        read_plan(files, "r1")


def test_a_plan_of_a_later_format_is_refused(files: Files) -> None:
    write_plan(files, PLAN)
    later = json.loads(files.read(PATH)) | {"format": 2}
    files.write(PATH, json.dumps(later).encode())

    with pytest.raises(BadInput, match="format 2"):
        read_plan(files, "r1")


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"format":1}', b"\xff"])
def test_a_plan_that_is_no_json_of_ours_is_refused(files: Files, data: bytes) -> None:
    files.write(PATH, data)

    with pytest.raises(BadInput, match="r1"):
        read_plan(files, "r1")


def test_totals_add_up_in_every_way() -> None:
    row = {"slice": -1, "sequence": 0, "size_bytes": 5, "reason": "expired", "rule": "r", "last_seen_at": 0}
    rows = pa.Table.from_pylist(
        [row | {"address": f"data/{n}", "branch": f"b{n % 2}", "prefix": "p/"} for n in range(4)], VERDICTS.schema
    )

    totals = sum_totals([totals_of(rows, now_ms=0), totals_of(rows.slice(0, 1), now_ms=0)])

    assert totals.all == Total(objects=5, size_bytes=25)
    assert totals.by_branch == {"b0": Total(objects=3, size_bytes=15), "b1": Total(objects=2, size_bytes=10)}
    assert totals.by_prefix == {"p/": totals.all}
    assert totals.by_slice == {"foreign": totals.all}
    assert totals.by_age == {"<1d": totals.all}


def test_each_object_is_of_one_age_and_on_a_bound_of_the_older_one() -> None:
    days = [-1, 0, 0.9, 1, 7, 29.9, 30, 90, 364, 365, 5000]
    row = {"address": "data/x", "slice": -1, "sequence": 0, "size_bytes": 1, "reason": "r", "rule": "", "path": ""}
    seen = [datetime(2026, 11, 21, tzinfo=UTC) - timedelta(days=age) for age in days]
    rows = pa.Table.from_pylist(
        [row | {"last_seen_at": at, "branch": "", "prefix": ""} for at in seen], VERDICTS.schema
    )

    by_age = totals_of(rows, now_ms=int(datetime(2026, 11, 21, tzinfo=UTC).timestamp() * 1000)).by_age

    assert {name: total.objects for name, total in by_age.items()} == {
        "<1d": 3,
        "1-7d": 1,
        "7-30d": 2,
        "30-90d": 1,
        "90d-1y": 2,
        ">1y": 2,
    }


def test_totals_of_very_many_names_still_add_up() -> None:
    many = Totals(
        all=Total(objects=TOTALS_MAX + 5, size_bytes=0),
        by_prefix={f"{n}/": Total(objects=1) for n in range(TOTALS_MAX + 5)},
    )

    totals = sum_totals([many])

    assert len(totals.by_prefix) == TOTALS_MAX + 1
    assert totals.by_prefix["…"].objects == 5


def test_only_files_that_nobody_of_ours_writes_are_unknown_files() -> None:
    id_ = "0" * 64
    known = [
        "_lakefs/dummy",
        f"_lakefs/ranges/{id_}.parquet",
        f"_lakefs/metaranges/{id_}.parquet",
        PATH,
        "_lakefs/retention/gc/committed/r1/manifests/uncommitted.abc0.page-00001.json",
        "_lakefs/retention/gc/committed/r1/closed.abc0.json",
        "_lakefs/retention/gc/committed/r1/garbage.0123456789abcdef/part-00000-00001.parquet",
        "_lakefs/retention/gc/committed/r1/recheck.0123456789abcdef.json",
        "_lakefs/retention/gc/erasure/r1/commits.for-good/part-00000.parquet",
        "_lakefs/retention/gc/erasure/r1/refs.for-good/part-00000.parquet",
        "_lakefs/retention/gc/uncommitted/r1/uncommitted/part-00000.parquet",
        "_lakefs/retention/gc/uncommitted/r1/listed/slices-0123456789abc.parquet",
        "_lakefs/retention/gc/ledger/date=2026-11-21/r1-part-00000-00001.000000.parquet",
        "_lakefs/retention/gc/ledger/date=2026-11-21/r1-restore-00000000000000000001.parquet",
        "_lakefs/retention/gc/applying/000000000001.json",
        "_lakefs/installation/000000000001-06gvvk3dthrhe56vsd65",
    ]
    strange = [
        "_lakefs/notes.txt",
        f"_lakefs/ranges/{id_}.parquet.bak",
        "_lakefs/ranges/sub/x.parquet",
        "_lakefs/dummy2",
        "_lakefs/installation/1-x",
        "_lakefs/retention/gc/applying/999999999999.json",
    ]

    assert unknown_files_among([*known, *strange]).keys == tuple(sorted(strange))


def test_unknown_files_are_counted_and_only_some_of_them_told() -> None:
    found = unknown_files_among(f"_lakefs/{number}" for number in range(UNKNOWN_FILES_MAX + 5))

    assert (len(found.plus(found).keys), found.plus(found).count) == (UNKNOWN_FILES_MAX, 2 * (UNKNOWN_FILES_MAX + 5))


class Answers:
    """A server that gives the answers it is told to give, one after the other."""

    def __init__(self, *answers: object) -> None:
        self.answers = [*answers]

    def call(self, method: str, path: str, *, json: object = None) -> object:
        return self.answers.pop(0)


def page(*names: str, token: str | None = None, whole: tuple[str, ...] | None = None) -> dict[str, object]:
    def part(name: str) -> Part:
        return Part(name=name, rows=0, size_bytes=0, sha256="")

    manifest = None
    if whole is not None:
        manifest = messages.manifest_of(messages.UNCOMMITTED, "_lakefs/x/", [part(name) for name in whole])
    record = messages.UncommittedPage(
        run_id="r1",
        location="x",
        parts=tuple(part(name) for name in names),
        continuation_token=token,
        manifest=manifest,
    )
    return dict(handoff_json(record))


def handoff_json(record: object) -> dict[str, object]:
    import msgspec

    result: dict[str, object] = msgspec.to_builtins(record)
    return result


def service(server: Caller) -> Service:
    return Service(HttpRequests(server, "repo"))


def test_pages_are_read_to_the_last_even_if_it_is_empty() -> None:
    side = service(Answers(page("a", token="1"), page("b", token="2"), page(whole=("a", "b"))))

    assert [part.name for part in finish(side.uncommitted("r1")).parts] == ["a", "b"]


@pytest.mark.parametrize("whole", [("a",), ("a", "b", "c"), ()])
def test_pages_that_do_not_add_up_to_their_manifest_stop_the_run(whole: tuple[str, ...]) -> None:
    side = service(Answers(page("a", token="1"), page("b", whole=whole)))

    with pytest.raises(BadInput, match="add up"):
        finish(side.uncommitted("r1"))


def test_a_last_page_without_manifest_stops_the_run() -> None:
    with pytest.raises(BadInput, match="manifest"):
        finish(service(Answers(page("a"))).uncommitted("r1"))


class Pages:
    """A server whose pages are `count`, or go round in a circle."""

    def __init__(self, count: int, *, circle: int = 0) -> None:
        self.left, self.circle, self.asked = count, circle, 0

    def call(self, method: str, path: str, *, json: object = None) -> object:
        self.asked += 1
        number = self.asked % self.circle if self.circle else self.asked
        return {"run_id": "r1", "restored": 1, "continuation_token": None if self.asked == self.left else f"{number}"}


def test_a_restore_ends_however_many_pages_it_has() -> None:
    """A page of 256 MiB is one object of that size: 100,001 of them are 25 TiB."""
    collector = Collector(client=Pages(100_001), repository="repo")

    assert collector.restore(Restore(run_id="r1")).restored == 100_001


@pytest.mark.parametrize("circle", [1, 2, 3, 7])
def test_a_restore_whose_tokens_go_round_in_a_circle_is_stopped(circle: int) -> None:
    server = Pages(1000, circle=circle)

    with pytest.raises(BadInput, match="the restore does not end"):
        Collector(client=server, repository="repo").restore(Restore(run_id="r1"))

    assert server.asked < 4 * circle + 4


def test_an_answer_that_is_another_record_stops_the_run() -> None:
    with pytest.raises(UnknownAnswer, match="the server's answer is no started run: "):
        finish(service(Answers({"run_id": "r1"})).start(RunKind.COMMITTED))


class Refusing:
    """A server that refuses the calls of these last words."""

    def __init__(self, *refused: str, has_rules: bool = True) -> None:
        self.refused, self.has_rules = refused, has_rules
        self.asked: list[str] = []

    def call(self, method: str, path: str, *, json: object = None) -> object:
        word = path.rpartition("/")[2]
        self.asked.append(word)
        if word in self.refused:
            raise Denied("insufficient permissions")
        return {"storage_namespace": "mem://x", "namespace": "mem://x", "has_rules": self.has_rules}


def test_who_may_not_apply_does_not_plan_either_where_both_were_asked_for() -> None:
    server = Refusing("purging")

    with pytest.raises(Denied):
        next(Collector(client=server, repository="lake").run(RunRequest()))

    assert server.asked == ["lake", "planning", "lake", "purging"]


def test_who_may_not_plan_begins_no_run() -> None:
    server = Refusing("planning")

    with pytest.raises(Denied):
        next(Collector(client=server, repository="lake").plan(PlanRequest()))

    assert server.asked == ["planning"]


def test_committed_data_without_rules_is_refused_before_anything_else_is_planned() -> None:
    server = Refusing(has_rules=False)

    with pytest.raises(NoRules):
        next(Collector(client=server, repository="lake").plan(PlanRequest(kinds=tuple(RunKind))))

    assert server.asked == ["planning"]
