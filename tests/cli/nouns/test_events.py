"""`lakebed events`: what it says of events that wait, and while it waits for events."""

from __future__ import annotations

import os
import pty
from collections.abc import Callable

from tests.cli.conftest import Shell


def test_events_that_a_filter_leaves_out_are_not_said_to_wait(
    shell: Shell, lake: str, put: Callable[[str, str], None]
) -> None:
    unreachable = "http://127.0.0.1:9/hook?token=x"
    wanted = shell.ok("events", "subscribe", lake, unreachable, "--operation", "commit", "-o", "json").json["id"]
    shell.ok("events", "subscribe", lake, unreachable)
    put(f"{lake}/main/file", "x")
    shell.ok("commit", f"{lake}/main", "--message", "first")
    shell.ok("branch", "create", f"{lake}/trial")
    shell.ok("events", "list", lake)  # gathers them

    table = shell.ok("events", "subscriptions", lake).out
    found = shell.ok("events", "subscriptions", lake, "-o", "json").json
    refused = shell("events", "unsubscribe", lake, wanted)

    assert [one["behind"] for one in found] == [2, 2]
    assert "  up to 2  " in table
    assert "        2  " in table  # below it, at the right
    assert f"to end {wanted} without --yes" in refused.err
    assert "http://127.0.0.1:9/hook?***: up to 2" in refused.err


def test_who_follows_events_at_a_terminal_reads_what_is_waited_for(shell: Shell, lake: str) -> None:
    ours, theirs = pty.openpty()
    process = shell.process("events", "follow", lake)
    at_terminal = shell.process("events", "follow", lake, stderr=theirs)
    os.close(theirs)
    with os.fdopen(ours, "rb", buffering=0) as terminal:
        said = terminal.readline().decode()
    at_terminal.kill()
    process.kill()

    assert said.startswith("waiting for events behind position 0, until Ctrl-C.")
    assert process.communicate() == (b"", b"")
    at_terminal.communicate()
