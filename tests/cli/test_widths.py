"""The help of each command fits into 80 columns, but for a word that is wider, such as an address."""

from __future__ import annotations

from collections.abc import Iterator

import click
from click.testing import CliRunner

from lakebed.cli import app

WIDTH = 80
WORD_MAX = 40
"""A line may be wider where a word has more: nothing is gained by a break before it."""


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
