"""What the command says of objects that a run kept."""

from __future__ import annotations

import msgspec

from lakebed.cli.gc.text import report_text
from lakebed.gc.messages import RunKind, RunReport, RunState

REPORT = RunReport(
    run_id="r1",
    kind=RunKind.UNCOMMITTED,
    state=RunState.ENDED,
    repository="lake",
    namespace="local://lake",
    run_start_time_ms=0,
    run_end_time_ms=0,
    dry_run=False,
    last_read_slice="",
    slices_listed=0,
    inputs={},
    garbage_objects=3,
    garbage_bytes=12,
    objects_deleted=1,
    bytes_deleted=4,
    objects_failed=0,
)


def test_a_report_says_how_many_objects_were_kept() -> None:
    kept = msgspec.structs.replace(REPORT, objects_kept=2, bytes_kept=8)

    assert report_text(kept).endswith("deleted 1 object, 4 B; kept 2 objects that changed since")
    assert "kept" not in report_text(REPORT)
