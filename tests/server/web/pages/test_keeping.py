"""What the page says of the reasons to keep an object."""

from __future__ import annotations

import pytest

from lakebed.base import CommitId
from lakebed.gc.messages import Fate, LedgerRow, LedgerState, WhyObject
from lakebed.gc.rules import Stay, StayKind
from lakebed.server.web.pages.keeping import time_line


@pytest.mark.parametrize("kind", StayKind)
def test_each_reason_to_stay_says_what_ends_it(kind: StayKind) -> None:
    stay = Stay(kind=kind, name="main", commit=CommitId("c" * 64), until_ms=2_000)
    found = WhyObject(address="data/x", fate=Fate.KEPT, stays=(stay,), stays_count=1)

    [row] = time_line(found, 1_000, 10).rows

    assert (row.name, row.end_ms, bool(row.what), bool(row.release)) == ("main", 2_000, True, True)


DAY_MS = 86_400_000
PERIOD = Stay(
    kind=StayKind.BRANCH, name="main", commit=CommitId("c" * 64), period="7d", counted_ms=DAY_MS, until_ms=20 * DAY_MS
)
HEAD = Stay(kind=StayKind.HEAD, name="side", commit=CommitId("c" * 64))


def row(run: str, day: int, state: LedgerState = LedgerState.DELETED, reason: str = "erasure") -> LedgerRow:
    return LedgerRow(
        run_id=run,
        address="data/x",
        size_bytes=1,
        reason=reason,
        deleted_ms=day * DAY_MS,
        error="",
        path="",
        rule=reason,
        state=state,
    )


def test_a_period_that_is_over_shows_its_true_end_and_nothing_to_release_it() -> None:
    found = WhyObject(address="data/x", fate=Fate.EXPIRED, stays=(PERIOD,), stays_count=1)

    [shown] = time_line(found, 20 * DAY_MS, 10).rows

    assert (shown.end_ms, shown.is_over, shown.release) == (8 * DAY_MS + 1, True, "")


def test_what_named_a_taken_object_ends_when_a_run_took_it() -> None:
    found = WhyObject(
        address="data/x",
        fate=Fate.TAKEN,
        stays=(HEAD, PERIOD),
        stays_count=2,
        holds=("case-1",),
        modified_ms=DAY_MS,
        taken=(row("r1", 15),),
    )

    rows = time_line(found, 20 * DAY_MS, 10).rows

    assert [(each.what, each.name, (each.end_ms or 0) // DAY_MS, each.is_over, each.release) for each in rows] == [
        ("head", "side", 15, True, ""),
        ("branch", "main", 8, True, ""),
        ("legal hold", "case-1", 15, True, ""),
        ("deleted", "erasure", 15, True, ""),
    ]


@pytest.mark.parametrize(
    ("rows", "taker"),
    [
        ((row("second", 3), row("first", 2)), "first"),
        ((row("gc", 3, reason="expired"), row("erased", 2), row("old", 1, reason="expired")), "erased"),
        ((row("again", 4, reason="expired"), row("undo", 3, LedgerState.RESTORED), row("first", 2)), "again"),
        ((row("undo", 3, LedgerState.RESTORED), row("first", 2)), None),
        ((row("other", 3, LedgerState.GONE), row("first", 2, reason="expired")), "first"),
    ],
)
def test_the_run_that_took_an_object_is_the_first_since_its_last_restore(
    rows: tuple[LedgerRow, ...], taker: str | None
) -> None:
    found = WhyObject(address="data/x", fate=Fate.TAKEN, taken=rows).taker

    assert (found and found.run_id) == taker
