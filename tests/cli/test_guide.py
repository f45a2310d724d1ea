"""The commands of the guide's pages: each is one that there is, with options that it has; the tour runs as it stands.

Examples in Python run in tests/lake/test_guide.py and tests/compat/test_guide.py.
"""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

import click
import pytest

from lakebed.cli.kit.tree import Group, app, example_of

from .conftest import Shell

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "lakebed"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs" / "guide").glob("*.md"))]
PROGRAMS = (["lakebed"], ["python3", "run.py"])
ENDS = {"|", "&", "&&", ";", ">", ">>", "<", "2>&1", "\\"}


def lines_of(page: Path) -> Iterator[str]:
    """Yield each line of the shell examples of a page; one that ends in a backslash with those that go on with it."""
    for example in re.findall(r"```sh\n(.*?)```", page.read_text(), re.DOTALL):
        yield from example.replace("\\\n", " ").splitlines()


def commands_of(page: Path) -> Iterator[list[str]]:
    """Yield the words behind `lakebed` of each command, without comments and redirections."""
    for line in lines_of(page):
        words: list[str] = []
        inner = [word for text in re.findall(r"\$\(([^()]*)\)", line) for word in [*shlex.split(text), ";"]]
        for word in [*shlex.split(line, comments=True), ";", *inner]:
            if word not in ENDS:
                words.append(word)
                continue
            for program in PROGRAMS:
                # `run.py test` is its own.
                if words[: len(program)] == program and words[-1] != "test":
                    yield words[len(program) :]
            words = []


def parse(words: list[str]) -> None:
    """Read words with the real parser, down to the command that they name. Nothing is carried out.

    Raises:
        UsageError: there is no such command, option or value.
    """
    context, rest = app.make_context("lakebed", list(words)), list(words)
    command: click.Command = app
    while isinstance(command, click.Group):
        name, found, rest = command.resolve_command(context, rest)
        assert found is not None
        context, command = found.make_context(name, list(rest), parent=context), found


def wrong_among(commands: Iterable[list[str]]) -> list[str]:
    """Return the commands that the parser refuses, with its reasons."""
    wrong = []
    for words in commands:
        try:
            parse(words)
        except click.UsageError as error:
            # Files that an example names are the reader's.
            if "No such file" not in error.format_message():
                wrong.append(f"lakebed {' '.join(words)}: {error.format_message()}")
        except click.exceptions.Exit:
            pass  # `--version`, `-h`
    return wrong


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_each_command_of_a_page_is_one_that_there_is(page: Path) -> None:
    assert wrong_among(commands_of(page)) == []


def nouns_in(group: click.Group) -> Iterator[click.Group]:
    context = click.Context(group)
    for name in group.list_commands(context):
        if isinstance(found := group.get_command(context, name), click.Group):
            yield from [found, *nouns_in(found)]


def test_each_example_of_the_help_is_a_command_that_there_is() -> None:
    examples = [example for noun in nouns_in(app) if isinstance(noun, Group) for example in noun.examples]

    assert len(examples) >= 10
    assert wrong_among(shlex.split(example, comments=True)[1:] for example in examples) == []
    # In a terminal of 80 columns, indented by two.
    assert [example for example in examples if len(example) > 78] == []


def commands_in(command: click.Command, context: click.Context) -> Iterator[click.Context]:
    if not isinstance(command, click.Group):
        yield context
        return
    for name in command.list_commands(context):
        if (inner := command.get_command(context, name)) is not None:
            yield from commands_in(inner, click.Context(inner, parent=context, info_name=name))


def test_the_message_about_a_missing_argument_has_a_call_that_is_right() -> None:
    # With the root's settings: click keeps the help option that a command's first context gives it.
    contexts = [*commands_in(app, click.Context(app, info_name="lakebed", **app.context_settings))]
    examples = [example_of(one) for one in contexts if any(each.required for each in one.command.params)]

    assert len(examples) >= 150
    assert wrong_among(shlex.split(example)[1:] for example in examples) == []
    assert [example for example in examples if len(example) > 80] == []


def test_the_table_of_commands_has_each_command_with_its_verbs() -> None:
    rows = re.findall(r"^\| (`.*?`) \|", (ROOT / "docs" / "guide" / "cli.md").read_text(), re.MULTILINE)
    words: dict[str, set[str]] = {}
    for row in rows:
        for command in row.split("; "):
            noun, *verbs = re.findall(r"[a-z-]+", command)
            words.setdefault(noun, set()).update(verbs)

    context = click.Context(app)
    for name in app.list_commands(context):
        command = app.get_command(context, name)
        known = set(command.list_commands(context) if isinstance(command, click.Group) else ())
        assert not known - words.get(name, set()), name
        assert name in words or any(name in row for row in rows), name


def test_each_message_of_the_page_about_failures_is_one_of_the_source() -> None:
    page = (ROOT / "docs" / "guide" / "troubleshooting.md").read_text()
    sources = "".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    # The first cell of a row; `…` stands for what a message names.
    messages = [text for row in re.findall(r"^\| (.*?) \|", page, re.MULTILINE) for text in re.findall(r"`(.*?)`", row)]
    parts = {part.strip() for message in messages for part in message.split("…") if part.strip()}

    assert len(parts) >= 15
    assert {part for part in parts if part not in sources} == {"main~9"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_no_command_of_a_page_is_passed_over(page: Path) -> None:
    texts = [" ".join(shlex.split(line, comments=True)) for line in lines_of(page)]
    written = sum(len(re.findall(r"(?<![\w/])(?:lakebed|run\.py) (?=(?!test)[\w-])", text)) for text in texts)

    assert len([*commands_of(page)]) == written


def test_each_command_that_a_page_in_the_browser_names_is_one_that_there_is() -> None:
    templates = (SOURCE / "server" / "web" / "templates").glob("*.html")
    given = [text for file in templates for text in re.findall(r"frame\.command\((.+)\) }}", file.read_text())]
    plain = [re.sub(r"\([^()]*\)| ~ visit\.data_option", "", text) for text in given]
    # What is joined to the texts is a name.
    commands = ["".join(text or "tag" for text in re.findall(r'"([^"]*)"|[^"]+', one)) for one in plain]

    assert len(commands) >= 40
    assert wrong_among(shlex.split(command)[1:] for command in commands) == []


def test_each_command_that_a_message_names_is_one_that_there_is() -> None:
    texts = [
        text for file in SOURCE.rglob("*.py") for text in re.findall(r"`lakebed ([a-z][^`\n]*)`", file.read_text())
    ]

    assert len(texts) >= 100
    assert [f"lakebed {text}: {lack}" for text in texts if (lack := lacking(text))] == []


def lacking(text: str) -> str:
    """Return the first word of a command, of which a message may leave arguments out, that is no verb or option."""
    words = re.sub(r"\{[^{}]*\}", "NAME", text).split()
    command: click.Command = app
    while isinstance(command, click.Group) and words and re.fullmatch("[a-z-]+", words[0]):
        found = command.get_command(click.Context(command), words[0])
        if found is None:
            return words[0]
        command, words = found, words[1:]
    has = {name for one in command.params for name in (*one.opts, *one.secondary_opts)}
    given = [word.partition("=")[0] for word in words if word.startswith("-") and word != "-"]
    return "" if isinstance(command, click.Group) else next((word for word in given if word not in has), "")


def test_a_command_that_is_none_is_noticed() -> None:
    with pytest.raises(click.UsageError):
        parse(["gc", "plan", "lakefs://lake", "--bogus"])
    with pytest.raises(click.UsageError):
        parse(["gc", "nonsense"])


def test_the_tour_of_the_command_line_runs_as_it_stands(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (ROOT / "docs" / "guide" / "cli.md").read_text()
    section = page.split("\n## A tour\n", 1)[1].split("\n## ", 1)[0]
    serving, tour = re.findall(r"```sh\n(.*?)```", section, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "a.csv").write_text("a,1\n")
    (tmp_path / "notes.txt").write_text("the old words\n")
    # The page's server is the reader's own.
    setting_up, *lines = tour.replace("://lake", "://tour").splitlines()
    assert (serving.split()[:2], setting_up) == (["lakebed", "serve"], "lakebed setup")

    for line in lines:
        before, _, last = line.rpartition(" | ")
        stdin = subprocess.run(["sh", "-c", before], capture_output=True, check=True).stdout if before else b""
        outcome = shell.ok(*shlex.split(last, comments=True)[1:], stdin=stdin)

    assert shell.ok("object", "cat", "lakefs://tour/main/notes.txt").out == "the new words\n"
    assert "First tables" in outcome.out
