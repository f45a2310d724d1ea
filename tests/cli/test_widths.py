"""At a terminal of 80 columns no line is wider, but for a word that is: a path, an address, a command to be copied."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from lakebed.cli import app

from .conftest import Shell

WIDTH = 80
WORD_MAX = 40
"""A line may be wider where a word has more: nothing is gained by a break before it."""
LONG = (": message", ": title", ": why", ": what", ": description", ": object", ": path")
"""What may be a sentence or a path, and then stands below its row."""
BELOW = re.compile(r"^    ([a-z][a-z ]*): ", re.MULTILINE)
NAME = "fix-the-values-of-november"
FILE = "stations/2026/november/values.csv"
COMMANDS = f"""
config show
doctor
open --no-browser
repo list
repo show LAKE
branch list LAKE
branch reflog LAKE/main
branch ahead LAKE/{NAME}
tag list LAKE
tag reflog LAKE/v1
log LAKE/main
show LAKE/main
diff LAKE/main LAKE/{NAME}
diff LAKE/main LAKE/{NAME} --stat
merge LAKE/{NAME} LAKE/main --dry-run
pulls create LAKE/{NAME} LAKE/main --title "fix the values of a station that sent a wrong unit for two weeks"
pulls list LAKE
object ls LAKE/main/
object stat LAKE/main/{FILE}
object du LAKE/main/
gc storage LAKE
gc rules set-default LAKE 30d
gc rules show LAKE
gc rules explain LAKE
gc rules history LAKE
gc plan LAKE --engine local --data DATA
gc show LAKE latest-uncommitted --data DATA
gc apply LAKE latest-uncommitted --window 7d --yes --data DATA
gc list LAKE --data DATA
gc ledger LAKE --data DATA
gc restore LAKE latest-uncommitted --undo --yes --data DATA
gc why LAKE/main/{FILE}
hold add LAKE case-17 --path stations/ --why "the court of the district asked for all measurements of this year"
hold list LAKE
hold history LAKE
lifecycle status LAKE
hard-delete status LAKE
actions list LAKE
sandbox create LAKE --from main --ttl 2d --name kim
sandbox list LAKE
events list LAKE
quota set LAKE --limit 2TiB
quota show LAKE
auth users show ann
auth groups list
auth policies list
auth policies show FSFullAccess
audit
health
"""


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let what a command writes go to a terminal of this width."""
    monkeypatch.setattr("click.testing._NamedTextIOWrapper.isatty", lambda _: True, raising=False)
    monkeypatch.setattr("click.testing._NamedTextIOWrapper.fileno", lambda _: 2, raising=False)
    monkeypatch.setattr(os, "get_terminal_size", lambda *_: os.terminal_size((WIDTH, 24)))
    monkeypatch.setenv("COLUMNS", str(WIDTH))


def too_wide(command: str, text: str) -> list[str]:
    lines = click.unstyle(text).replace("\r", "\n").splitlines()
    is_plain = [len(line) > WIDTH and max(map(len, line.split())) < WORD_MAX for line in lines]
    return [f"{command}: {line}" for line, is_long in zip(lines, is_plain, strict=True) if is_long]


def helps(command: click.Command, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield words
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            if (inner := command.get_command(context, name)) is not None:
                yield from helps(inner, (*words, name))


def test_each_help_fits() -> None:
    commands = [*helps(app)]
    wide = [
        line
        for words in commands
        for line in too_wide(" ".join(words), CliRunner().invoke(app, [*words, "-h"], obj={}).output)
    ]

    assert len(commands) > 150
    assert wide == []


@pytest.mark.usefixtures("terminal")
def test_tables_and_messages_fit(shell: Shell, lake: str, data: Path) -> None:
    for number, text in enumerate(("a,b\n1,2\n", "a,b\n3,4\n")):
        shell.ok("object", "upload", "-", f"{lake}/main/{FILE}", stdin=text)
        words = f"values of station {number} for the whole month, by the nightly job of the measuring team"
        shell.ok("commit", f"{lake}/main", "-m", words, "--meta", "source=nightly-job")
    shell.ok("tag", "create", f"{lake}/v1", "main")
    shell.ok("branch", "create", f"{lake}/{NAME}", "--source", "main~1")
    for text in ("a", "b"):
        shell.ok("object", "upload", "-", f"{lake}/{NAME}/{FILE}", stdin=text)

    wide: list[str] = []
    folded: list[str] = []
    for line in COMMANDS.replace("LAKE", lake).replace("DATA", str(data)).strip().splitlines():
        outcome = shell(*shlex.split(line))
        wide += too_wide(line, outcome.out + "\n" + outcome.err) if outcome.code == 0 else [outcome.err]
        folded += [f"{line}: {below[1]}" for below in BELOW.finditer(outcome.out)]

    assert wide == []
    assert {line for line in folded if not line.endswith(LONG)} == set()
