"""The guide's page about reading and writing, run as it stands."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import lakefs
import pytest
from lakefs.client import Client

PAGE = Path(__file__).parents[2] / "docs" / "guide" / "reading-and-writing.md"


def test_the_page_about_reading_and_writing_runs_as_it_stands(
    client: Client, repository: lakefs.Repository, capsys: pytest.CaptureFixture[str]
) -> None:
    preparation, *examples = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    exec(preparation, names)
    # The page names a server and a repository of the reader's.
    names["repository"] = repository

    for example in examples:
        exec(example, names)

    printed = capsys.readouterr().out
    assert re.search(r"AA\W+6\.5\W+UA\W+11\.0", printed)
    assert printed.endswith("(3, 2)\n(2, 2)\n")
    assert [commit.message for commit in repository.branch("add-flights").log(max_amount=1)] == ["Flights of 2013"]
