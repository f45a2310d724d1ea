"""What the help says of a default is what the code does."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from lakebed.cli import app
from lakebed.gc import OPTIONS
from lakebed.gc.__main__ import main
from lakebed.gc.engines.spark import tasks_for
from lakebed.gc.messages import RunKind, SimulateRequest


def test_defaults_are_told_as_they_are() -> None:
    kinds = ", ".join(kind.value for kind in RunKind if not kind.spec.only_if_named)

    assert f"Without a kind: {kinds}, one after the other." in OPTIONS["metadata"][1]
    assert f"at least {tasks_for(1, lambda _: None)}." in OPTIONS["tasks"][1]
    assert f"Default: {SimulateRequest().days}." in OPTIONS["days"][1]
    assert OPTIONS["active-only"][1].startswith("Lifecycle data: ")


def test_both_helps_tell_them_once(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["simulate", "--help"], {})

    for text in (capsys.readouterr().out, CliRunner().invoke(app, ["lifecycle", "simulate", "-h"], obj={}).output):
        assert " ".join(text.split()).lower().count("default: 60") == 1
