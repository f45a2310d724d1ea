"""`lakebed health`: the state of the server, as people and as programs read it."""

from __future__ import annotations

from tests.cli.conftest import Shell


def test_the_health_of_the_server_is_shown(shell: Shell) -> None:
    record = shell.ok("health", "-o", "json").json
    text = shell.ok("health").out

    assert (record["ready"], set(record["checks"].values())) == (True, {"ok"})
    assert [process["draining"] for process in record["processes"]] == [False]
    assert "yes" in text
    assert f"{record['processes'][0]['process']}" in text
