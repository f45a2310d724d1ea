"""`lakebed mcp`, started by the client of the protocol's own package, at a server of its own."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from lakebed import agents
from lakebed.agents.tools import call_tool
from lakebed.cli.kit.session import connect
from lakebed.settings import read_settings
from tests.cli.conftest import Shell

GUIDE = Path(__file__).parents[3] / "docs" / "guide" / "agents.md"


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
    assert f"tool=write repository=lake branch={box}" in shell.ok("audit", "--repository", "lake").out


def test_after_its_sandbox_has_ended_an_agent_learns_it_once_and_gets_another(shell: Shell) -> None:
    shell.ok("repo", "create", "lakefs://boxes", "local://boxes")
    settings = read_settings(Path(shell.environment["LAKEBED_CONFIG"]))
    with ExitStack() as clients:

        def connected(key: str, secret: str) -> agents.Operations:
            pair = replace(settings, access_key_id=key, secret_access_key=secret)
            return agents.ClientOperations(clients.enter_context(connect(pair)))

        own = agents.ClientOperations(clients.enter_context(connect(settings)))
        writers = agents.OwnSandbox(own, agents.InMemory(own, connected), ttl="1h")
        scope = agents.Scope(operations=own, writers=writers)

        def call(tool: str, **arguments: object) -> Any:
            return asyncio.run(call_tool(scope, tool, {"repository": "boxes", **arguments}))

        first = call("write", path="a", content="x")["branch"]
        shell.ok("sandbox", "end", "lakefs://boxes", first, "--yes")
        with pytest.raises(agents.SandboxEnded, match=f"{first} has ended.* another sandbox, without your changes"):
            call("commit", message="x")
        second = call("write", path="a", content="y")["branch"]
        shell.ok("sandbox", "promote", "lakefs://boxes", second, "--yes")
        with pytest.raises(agents.SandboxEnded):
            call("write", path="b", content="y")

    assert first != second


def test_the_guide_names_the_operations_of_each_tool() -> None:
    rows = re.findall(r"^\| (`\w+`|first write) \| [^|]* \| ([^|]*) \|$", GUIDE.read_text(), re.MULTILINE)
    named = {tool.strip("`"): re.findall(r"`(\w+)`", operations) for tool, operations in rows}

    assert named == {
        **{tool.name: [one.id for one in tool.operations] for tool in agents.TOOLS},
        "first write": [one.id for one in agents.OPERATIONS],
    }


def test_the_configurations_of_the_guide_are_json() -> None:
    for text in re.findall(r"```json\n(.*?)```", GUIDE.read_text(), re.DOTALL):
        assert set(json.loads(text)) == {"mcpServers"}


def test_what_cannot_be_is_refused_before_anything_starts(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    both = shell("mcp", "--read-only", "--branch", "lakefs://lake/agent")
    half = shell("mcp", "--branch", "lake")
    gone = shell("mcp", "--repository", "lakefs://gone")
    login = shell("mcp", LAKEBED_SECRET_ACCESS_KEY="wrong")
    monkeypatch.setattr("lakebed.agents.is_installed", lambda: False)
    without = shell("mcp")

    assert (both.code, both.err) == (2, "error: choose one: --read-only, --branch, or a sandbox (--ttl, --from)\n")
    assert (half.code, half.err) == (2, "error: lakefs://lake: the ref is missing (lakefs://repository/ref)\n")
    assert (gone.code, "lakefs://gone: repository not found" in gone.err) == (3, True)
    assert login.code == 1
    assert "does not accept access key" in login.err
    assert (without.code, without.err) == (
        2,
        "error: this command needs the package mcp: pip install 'lakebed[mcp]'\n",
    )
