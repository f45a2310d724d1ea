"""`lakebed actions`: what hooks ran, and what they wrote."""

from __future__ import annotations

from pathlib import Path

from tests.cli.conftest import Shell

ACTION = """
on: {pre-commit: }
hooks: [{id: look, type: webhook, properties: {url: "ftp://nowhere"}}]
"""


def test_a_refused_commit_is_found_with_what_its_hook_wrote(shell: Shell, lake: str, tmp_path: Path) -> None:
    (tmp_path / "no.yaml").write_text(ACTION)
    shell.ok("object", "upload", str(tmp_path / "no.yaml"), f"{lake}/main/_lakefs_actions/no.yaml")

    refused = shell("commit", f"{lake}/main", "-m", "x")
    [run] = shell.ok("actions", "list", lake, "-o", "json").json
    shown = shell.ok("actions", "show", lake, run["run_id"]).out

    assert refused.code != 0
    assert run["run_id"] in refused.err
    assert (run["event_type"], run["status"], run["branch"]) == ("pre-commit", "failed", "main")
    assert shown.startswith("pre-commit main: failed, began ")
    assert "needs http" in shown
    assert shell.ok("actions", "list", lake, "--branch", "dev", "-o", "json").json == []
    assert shell("actions", "show", lake, "nope").code == 3


def test_a_run_on_a_branch_says_its_commit_too(shell: Shell, lake: str, tmp_path: Path) -> None:
    (tmp_path / "no.yaml").write_text(ACTION.replace("pre-commit", "pre-create-branch"))
    shell.ok("object", "upload", str(tmp_path / "no.yaml"), f"{lake}/main/_lakefs_actions/no.yaml")
    shell.ok("commit", f"{lake}/main", "-m", "x")
    [head, *_] = shell.ok("log", f"{lake}/main", "-o", "json").json

    refused = shell("branch", "create", f"{lake}/dev", "--source", "main")
    [run] = shell.ok("actions", "list", lake, "-o", "json").json

    assert refused.code != 0
    assert shell.ok("actions", "show", lake, run["run_id"]).out.startswith(
        f"pre-create-branch dev at {head['id'][:12]}: failed, began "
    )
