"""The guide's page about the Python library, run as it stands."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from lakebed.lake.filesystem import LakebedFileSystem

PAGE = Path(__file__).parents[2] / "docs" / "guide" / "python.md"


def test_the_page_about_python_runs_as_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for example in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL):
        exec(example, names)

    printed = capsys.readouterr().out
    assert "['changed 2024/01/a.csv']" in printed
    assert "AA,4\nUA,9\n\n3 lines\n13\n" in printed
    assert "2 rows in Polars\n2 rows in pyarrow\n" in printed
    assert "['flights/main/2024/01/a.csv']" in printed
    assert names["flights"].ref("main").exists("2024/delays.parquet")
    names["lake"].close()
    names["files"].lake.close()
    LakebedFileSystem.clear_instance_cache()
