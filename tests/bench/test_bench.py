"""Every benchmark runs at its small size, so that none rots. Times are not looked at here."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bench.__main__ import NAMES, main

ROOT = Path(__file__).parents[2]
README = ROOT / "bench" / "README.md"
SPARK = ("ranges",)
NEEDS = [pytest.param(name, marks=pytest.mark.spark) if name in SPARK else name for name in NAMES]


@pytest.mark.parametrize("name", NEEDS)
def test_a_benchmark_reports_its_figures_against_their_limits(name: str) -> None:
    """In a process of its own, as people run it: the threads, heap and children of other tests are no part of it."""
    command = [sys.executable, "-m", "bench", name, "--size", "small", "--repeat", "1", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr[-4000:]
    result = json.loads(done.stdout.splitlines()[-1])
    assert (result["name"], result["size"]) == (name, "small")
    for figure in result["figures"]:
        assert figure["what"].startswith(name)
        assert figure["value"] >= 0
        assert figure["peak_mib"] > 0
        if figure["ratio"] is None:
            assert figure["floor"] is None
        else:
            assert figure["floor"] > 0
            assert figure["ratio_min"] <= figure["ratio"] <= figure["ratio_max"]
    assert any(figure["limit"] is not None or figure["least"] is not None for figure in result["figures"])


def test_a_page_for_users_promises_a_figure_of_each_benchmark() -> None:
    """The last column of the table names the page. A benchmark of which no page speaks is deleted."""
    rows = re.findall(
        r"^\| `([a-z-]+)` \|.*\| \[\w+\]\(\.\./docs/guide/([a-z]+\.md)\) \|$", README.read_text(), re.MULTILINE
    )

    assert sorted(name for name, _ in rows) == sorted(NAMES)
    assert [page for _, page in rows if "bench/README.md" not in (ROOT / "docs" / "guide" / page).read_text()] == []


def test_an_unknown_benchmark_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        main(["nope"])

    assert refused.value.code == 2
    assert "commit" in capsys.readouterr().err
