"""What the page says of the reasons to keep an object."""

from __future__ import annotations

import pytest

from lakebed.base import CommitId
from lakebed.gc.messages import Fate, WhyObject
from lakebed.gc.rules import Stay, StayKind
from lakebed.server.web.pages.keeping import time_line


@pytest.mark.parametrize("kind", StayKind)
def test_each_reason_to_stay_says_what_ends_it(kind: StayKind) -> None:
    stay = Stay(kind=kind, name="main", commit=CommitId("c" * 64), until_ms=2_000)
    found = WhyObject(address="data/x", fate=Fate.KEPT, stays=(stay,), stays_count=1)

    [row] = time_line(found, 1_000, 10).rows

    assert (row.name, row.end_ms, bool(row.what), bool(row.release)) == ("main", 2_000, True, True)
