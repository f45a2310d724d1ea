"""`lakebed gc` on runs that the server knows, without Spark."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from lakebed.cli.settings import read_settings
from lakebed.client import Client, Credentials, api_path

from .conftest import Shell


def start_run(shell: Shell, lake: str) -> str:
    """A run that begins to mark, and whose collector is never heard of again."""
    settings = read_settings(Path(shell.environment["LAKEBED_CONFIG"]))
    credentials = Credentials(access_key_id=settings.access_key_id, secret_access_key=settings.secret_access_key)
    path = api_path("repositories", lake.removeprefix("lakefs://"), "gc", "runs")
    with closing(Client(settings.endpoint, credentials)) as client:
        started = client.call("POST", path, json={"kind": "uncommitted"})
    assert isinstance(started, dict)
    return str(started["run_id"])


def test_a_run_that_was_left_behind_is_abandoned_once(shell: Shell, lake: str) -> None:
    run = start_run(shell, lake)

    refused = shell("gc", "abandon", lake, run)
    abandoned = shell.ok("gc", "abandon", lake, run, "--yes", "-o", "json").json
    unknown = shell("gc", "abandon", lake, "06gvsk16dis1i19se31f", "--yes")

    assert refused.code == 2
    assert (abandoned["run_id"], abandoned["state"]) == (run, "abandoned")
    assert shell.ok("gc", "status", lake, run, "-o", "json").json["state"] == "abandoned"
    assert unknown.code == 3


def test_where_the_bytes_lie_is_checked_before_a_run_begins(shell: Shell, lake: str, tmp_path: Path) -> None:
    unsaid = shell("gc", "plan", lake)
    wrong = shell("gc", "plan", lake, "--data", str(tmp_path))
    unknown = shell("gc", "plan", "lakefs://no-such-lake", "--data", str(tmp_path))

    assert (unsaid.code, unsaid.err) == (
        2,
        "error: say where local:// repositories lie: --data with the server's data folder\n",
    )
    assert (wrong.code, wrong.out) == (3, "")
    assert f"is not below {tmp_path}" in wrong.err
    assert (unknown.code, unknown.err) == (3, "error: repository not found\n")
    assert [*tmp_path.iterdir()] == []


def test_supposed_rules_say_nothing_of_metadata(shell: Shell, lake: str, tmp_path: Path) -> None:
    refused = shell("gc", "plan", lake, "--metadata", "--rules", str(tmp_path / "rules.json"))

    assert (refused.code, refused.out) == (2, "")
    assert "--rules and --metadata do not go together" in refused.err
