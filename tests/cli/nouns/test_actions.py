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
    assert "only http" in shown
    assert shell.ok("actions", "list", lake, "--branch", "dev", "-o", "json").json == []
    assert shell("actions", "show", lake, "nope").code == 3
