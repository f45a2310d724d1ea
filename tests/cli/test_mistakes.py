"""What a user meets who makes a mistake: mistakes.txt, each with its exit code. Each answer says what happened and,
but for a few, what to do next. `python -m pytest tests/cli/test_mistakes.py -s` prints all of them to read.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from .conftest import Shell

NEXT_MIN = 140
TOGETHER_MIN = 150
# A command in backticks, an option, a page of the help, a name that is near, or the form that is wanted.
NEXT = re.compile(
    r"`[^`]+`|--[a-z]|-h\)|did you mean|there are: |lakefs://repository|try |run |name |choose |one of |"
    r"must be |add |is wanted|such as|again|first|say \d|use |docs/|look like|of the form|letters, digits",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a command answered to a mistake."""

    words: str
    expected: int
    code: int
    text: str

    @property
    def says_what(self) -> bool:
        """It ends in one error, with the code that scripts rely on, and shows nothing of the inside."""
        errors = [line for line in self.text.splitlines() if line.startswith("error: ")]
        return self.code == self.expected and len(errors) == 1 and "Traceback" not in self.text

    @property
    def says_next(self) -> bool:
        return NEXT.search(self.text) is not None


@pytest.fixture(scope="module")
def answers(shell: Shell, data: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Answer]:
    lake, folder = "lakefs://mistakes", tmp_path_factory.mktemp("mistakes")
    prepare(shell, lake, folder)
    names = {"LAKE": lake, "TMP": str(folder), "HERE": f"--engine local --data {data}", "FOLDER": str(data)}
    return list(made(shell, names))


def prepare(shell: Shell, lake: str, folder: Path) -> None:
    """Make what the head of mistakes.txt names."""
    (folder / "empty").mkdir()
    (folder / "bytes").write_bytes(b"\xff\xfe")
    (folder / "file").write_text("no rules\n")
    (folder / "rules.json").write_text('{"default": "7d"}')
    (folder / "full").mkdir()
    (folder / "full" / "thesis.tex").touch()
    shell.ok("repo", "create", lake, "local://taken")
    for path in ("a.csv", "folder/b.csv"):
        shell.ok("object", "upload", str(folder / "file"), f"{lake}/main/{path}")
    shell.ok("commit", f"{lake}/main", "-m", "begin")
    shell.ok("tag", "create", f"{lake}/v1", "main")
    shell.ok("branch", "create", f"{lake}/trial")
    shell.ok("branch", "create", f"{lake}/clash")
    for branch, text in (("clash", "mine\n"), ("main", "yours\n")):
        shell.ok("object", "upload", "-", f"{lake}/{branch}/a.csv", stdin=text)
        shell.ok("commit", f"{lake}/{branch}", "-m", text)


def made(shell: Shell, names: dict[str, str]) -> Iterator[Answer]:
    for line in (Path(__file__).parent / "mistakes.txt").read_text().splitlines():
        if line.startswith("#"):
            continue
        code, words = line.split(" ", 1)
        typed = re.sub(r"\b(TMP|HERE|FOLDER)\b|\bLAKE", lambda match: names[match[0]], words)
        outcome = shell(*shlex.split(typed))
        yield Answer(words=words, expected=int(code), code=outcome.code, text=outcome.err)


def test_each_of_150_mistakes_is_answered_by_one_error_that_says_what_happened(answers: list[Answer]) -> None:
    silent = [f"{one.words}: {one.code}, not {one.expected}: {one.text}" for one in answers if not one.says_what]

    assert len(answers) >= TOGETHER_MIN
    assert silent == []


def test_of_150_mistakes_at_least_140_are_answered_with_the_next_step(answers: list[Answer]) -> None:
    for one in answers:
        print(f"[{one.code}] lakebed {one.words}\n    {one.text.rstrip()}")
    open_ended = [f"{one.words}: {one.text}" for one in answers if not one.says_next]

    assert len(open_ended) <= len(answers) - (NEXT_MIN + len(answers) - TOGETHER_MIN), open_ended
