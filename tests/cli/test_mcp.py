"""`lakebed mcp`, started by the client of the protocol's own package, at a server of its own."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import Shell

GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "agents.md"


def test_the_agent_of_the_guide_proposes(
    shell: Shell,
    put: Callable[[str, str], None],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """The one test of the way over standard input and output: to load the package takes seconds, in each process.

    The package gives its child our standard error, as it is when it is loaded: it must be a file.
    """
    shell.ok("repo", "create", "lakefs://lake", "local://lake")
    put("lakefs://lake/main/tables/march.csv", "carrier,flights\nAA,4\nUA,-1\n")
    shell.ok("commit", "lakefs://lake/main", "-m", "March")
    [example] = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    for name, value in shell.environment.items():
        monkeypatch.setenv(name, value)
    capfd.readouterr()

    exec(example, {})

    number, box, destination = capfd.readouterr().out.split()
    assert (box[:14], destination) == ("sandbox-agent-", "main")
    assert shell.ok("object", "cat", f"lakefs://lake/{box}/tables/march.csv").out == "carrier,flights\nAA,4\n"
    [pull] = shell.ok("pulls", "list", "lakefs://lake", "-o", "json").json
    assert (pull["id"], pull["author"], pull["source_branch"]) == (number, box, box)
    [lent] = shell.ok("sandbox", "list", "lakefs://lake", "-o", "json").json
    assert (lent["id"], lent["expiration_date"] - lent["creation_date"]) == (box, 24 * 3600)
    noted = shell.ok("audit", "--repository", "lake", "-n", "50", "-o", "json").json
    tools = {(line.get("tool"), line["operation"]) for line in noted}
    assert {("table", "getObject"), ("write", "uploadObject"), ("propose", "createPullRequest")} <= tools
    assert ("sandbox", "createSandbox") in tools
    assert {line["user"] for line in noted if line.get("tool") in {"write", "commit"}} == {box}


def test_the_configurations_of_the_guide_are_json() -> None:
    for text in re.findall(r"```json\n(.*?)```", GUIDE.read_text(), re.DOTALL):
        assert set(json.loads(text)) == {"mcpServers"}


def test_what_cannot_be_is_refused_before_anything_starts(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    both = shell("mcp", "--read-only", "--branch", "lakefs://lake/agent")
    half = shell("mcp", "--branch", "lake")
    login = shell("mcp", LAKEBED_SECRET_ACCESS_KEY="wrong")
    monkeypatch.setattr("lakebed.agents.is_installed", lambda: False)
    without = shell("mcp")

    assert (both.code, both.err) == (2, "error: choose one: --read-only, --branch, or a sandbox (--ttl, --from)\n")
    assert (half.code, half.err) == (2, "error: lakefs://lake: the ref is missing (lakefs://repository/ref)\n")
    assert login.code == 1
    assert "does not accept access key" in login.err
    assert (without.code, without.err) == (
        2,
        "error: this command needs the package mcp: pip install 'lakebed[mcp]'\n",
    )
