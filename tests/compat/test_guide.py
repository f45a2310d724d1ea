"""The guide's page about reading and writing, run as it stands."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import lakefs
import pytest
from lakefs.client import Client

from .serving import Server

PAGE = Path(__file__).parents[2] / "docs" / "guide" / "reading-and-writing.md"


def test_the_page_about_reading_and_writing_runs_as_it_stands(
    client: Client,
    repository: lakefs.Repository,
    server: Server,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    preparation, *examples = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    monkeypatch.setenv("LAKECTL_SERVER_ENDPOINT_URL", server.url)
    monkeypatch.setenv("LAKECTL_CREDENTIALS_ACCESS_KEY_ID", server.access_key_id)
    monkeypatch.setenv("LAKECTL_CREDENTIALS_SECRET_ACCESS_KEY", server.secret_access_key)
    exec(preparation, names)
    # The page names a repository of the reader's.
    names["repository"] = repository

    for example in examples:
        exec(example, names)

    printed = capsys.readouterr().out
    assert re.search(r"AA\W+6\.5\W+UA\W+11\.0", printed)
    assert printed.endswith("(3, 2)\n(2, 2)\n")
    assert [commit.message for commit in repository.branch("add-flights").log(max_amount=1)] == ["Flights of 2013"]
