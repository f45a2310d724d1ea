"""Commands are made of annotated functions: their types, defaults, help and completion."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated, Any, TextIO

import click
import pytest
from click.testing import CliRunner

from lakebed.cli.kit.parameters import Argument, Option, Verbs

seen: dict[str, Any] = {}


class Side(enum.StrEnum):
    OURS = "ours"
    THEIRS = "theirs"


def everything(
    *,
    name: Annotated[str, Argument(help="A name.")],
    rest: Annotated[list[str] | None, Argument(metavar="MORE")] = None,
    count: Annotated[int | None, Option("--count", "-c", min=1, max=9, help="How many.")] = None,
    size: Annotated[int, Option("--size")] = 0,
    wait: Annotated[float, Option("--wait", min=0, metavar="SECONDS")] = 1.5,
    side: Annotated[Side, Option("--side")] = Side.OURS,
    other: Annotated[Side | None, Option("--other")] = None,
    folder: Annotated[Path, Option("--folder")] = Path(),
    key: Annotated[bool, Option("--key/--no-key", help="Make one.")] = True,
    force: Annotated[bool, Option("--force", "-f")] = False,
    tags: Annotated[list[str] | None, Option("--tag")] = None,
    secret: Annotated[str, Option("--secret", envvar="TEST_SECRET")] = "",
) -> None:
    """Do everything. And more."""
    seen.clear()
    seen.update(locals())


def read(source: Annotated[TextIO, Argument(metavar="FILE")], token: Annotated[str, Option("--token")]) -> None:
    """Read a file."""
    seen.clear()
    seen.update(text=source.read(), token=token)


def group() -> Verbs:
    made = Verbs("top")
    inner = Verbs("inner")
    inner.command()(read)
    made.add_command(inner)
    made.command()(everything)
    made.command("read")(read)
    made.command("secret-read", hidden=True)(read)
    return made


def run(*words: str, stdin: str = "", **environment: str) -> Any:
    return CliRunner().invoke(group(), [*words], input=stdin, env=environment)


def test_values_come_in_the_types_of_the_signature() -> None:
    words = [
        "a",
        "b",
        "c",
        "-c",
        "3",
        "--side",
        "theirs",
        "--folder",
        "x",
        "--no-key",
        "-f",
        "--tag",
        "t",
        "--tag",
        "u",
    ]

    result = run("everything", *words, "--wait", "0.5", TEST_SECRET="hush")

    assert result.exit_code == 0, result.output
    assert seen == {
        "name": "a",
        "rest": ["b", "c"],
        "count": 3,
        "size": 0,
        "wait": 0.5,
        "side": Side.THEIRS,
        "other": None,
        "folder": Path("x"),
        "key": False,
        "force": True,
        "tags": ["t", "u"],
        "secret": "hush",
    }
    assert isinstance(seen["side"], Side)


def test_what_is_not_given_is_as_the_signature_says() -> None:
    assert run("everything", "a").exit_code == 0

    assert {name: seen[name] for name in ("rest", "count", "wait", "other", "tags", "secret", "force", "key")} == {
        "rest": None,
        "count": None,
        "wait": 1.5,
        "other": None,
        "tags": None,
        "secret": "",
        "force": False,
        "key": True,
    }
    assert seen["side"] is Side.OURS
    assert seen["folder"] == Path()


def test_a_variable_holds_text_too() -> None:
    result = run("everything", "a", TEST_SECRET="\udcff")

    assert result.exit_code == 2
    assert "its bytes are not UTF-8" in result.output


def test_the_name_of_a_file_may_hold_any_bytes() -> None:
    made = Verbs("top")
    named: list[str] = []

    def read_file(name: Annotated[str, Argument(names_file=True)]) -> None:
        named.append(name)

    made.command()(read_file)

    assert CliRunner().invoke(made, ["read-file", "\udcff"]).exit_code == 0
    assert named == ["\udcff"]


def test_a_file_may_be_standard_input() -> None:
    assert run("read", "-", "--token", "t", stdin="words").exit_code == 0
    assert seen == {"text": "words", "token": "t"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["everything"], "Missing argument 'NAME'"),
        (["read", "-"], "Missing option '--token'"),
        (["everything", "a", "-c", "0"], "0 is out of range: 1 to 9"),
        (["everything", "a", "-c", "x"], "'x' is not a whole number"),
        (["everything", "a", "-c", "١"], "'١' is not a whole number"),
        (["everything", "a", "--wait", "1_0"], "'1_0' is not a number"),
        (["everything", "a", "--size", "9007199254740992"], "is out of range: at most 9007199254740991"),
        (["everything", "a", "--wait", "inf"], "inf is out of range"),
        (["everything", "\udcff"], "its bytes are not UTF-8"),
        (["everything", "a", "b", "\udcff"], "its bytes are not UTF-8"),
        (["everything", "a", "--tag", "\udcff"], "its bytes are not UTF-8"),
        (["everything", "a", "--wait", "-1"], "-1 is out of range: at least 0"),
        (["everything", "a", "--wait", "nan"], "nan is out of range"),
        (["everything", "a", "--side", "both"], "'both' is not one of 'ours', 'theirs'"),
    ],
)
def test_a_value_that_is_none_is_a_misuse_in_plain_words(words: list[str], message: str) -> None:
    result = run(*words)

    assert result.exit_code == 2
    assert message in result.output


def test_the_help_lists_arguments_and_options_with_what_they_are() -> None:
    shown = run("everything", "--help").output

    assert shown.startswith("Usage: top everything [OPTIONS] NAME [MORE...]\n\n  Do everything. And more.\n")
    listed = [" ".join(line.split()) for line in shown.splitlines()]
    for line in [
        "Arguments:",
        "NAME A name. [required]",
        "MORE",
        "-c, --count N How many. [1 to 9]",
        "--wait SECONDS [default: 1.5; at least 0]",
        "--side ours|theirs [default: ours]",
        "--other ours|theirs",
        "--folder PATH [default: .]",
        "--key / --no-key Make one. [default: key]",
        "-f, --force",
        "--tag TEXT",
        "--secret TEXT [env var: TEST_SECRET]",
    ]:
        assert line in listed


def test_groups_are_listed_behind_commands_and_hidden_ones_are_not() -> None:
    listed = run("--help").output.partition("Commands:\n")[2]

    assert [line.split()[0] for line in listed.splitlines()] == ["everything", "read", "inner"]


def test_a_function_stays_callable() -> None:
    made = Verbs("top")

    assert made.command()(everything) is everything


def test_a_text_is_completed_as_a_file_unless_something_else_is_known() -> None:
    made = Verbs("top")

    def known(
        one: Annotated[str, Argument(complete=lambda _, __: ["main", "dev"])] = "",
        two: Annotated[str, Argument()] = "",
    ) -> None: ...

    made.command()(known)
    command = made.commands["known"]
    context = click.Context(command)
    one, two = command.params

    assert [item.value for item in one.shell_complete(context, "m")] == ["main"]
    assert [(item.value, item.type) for item in two.shell_complete(context, "al")] == [("al", "file")]
