"""The steps of docs/guide/migrating.md, as printed, from the recorded server to a repository adopted for good."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest

from .conftest import Move
from .old_server import OLD_ROOT
from .test_adopting import stop

PAGE = Path(__file__).parents[2] / "docs" / "guide" / "migrating.md"


def steps(heading: str, kind: str) -> list[list[str]]:
    """Return the commands of `lakebed migrate` below a heading. `kind` chooses where a block is for one store alone."""
    section = PAGE.read_text().split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    blocks = [
        [shlex.split(line, comments=True) for line in block.splitlines() if line.startswith("lakebed migrate ")]
        for block in re.findall(r"```sh\n(.*?)```", section, re.DOTALL)
    ]
    return blocks[0] if len(blocks) == 1 else blocks[["s3", "local"].index(kind)]


@pytest.fixture
def typed(move: Move) -> Move:
    """The store is there as the page has it: the recorded root is `/OLD-ROOT`, and the bucket another one."""
    move.new = move.new.with_name("lake")
    if move.scheme == "local://":
        shutil.move(move.new.with_name("new"), move.new)
    return move


def run(move: Move, words: list[str]) -> None:
    typed = [word.replace("s3://bucket/", "s3://oldb/") for word in words[1:]]
    place = typed.index("--data") + 1
    assert typed[place] == "./lake"
    typed[place] = str(move.new)
    done = move.shell(*typed, *(["--yes"] if "--final" in typed else []))
    assert done.code == 0, (typed, done)


def test_repositories_come_over_by_the_steps_of_the_page(typed: Move) -> None:
    for words in steps("Do it", "local" if typed.scheme == "local://" else "s3"):
        run(typed, words)

    with typed.opened() as lake:
        assert lake.repository("old").branch("main").read("raw/d=0/f0.txt") == b"changed\n"


def test_a_repository_is_adopted_by_the_steps_of_the_page(typed: Move) -> None:
    if typed.scheme != "local://":
        pytest.skip("the log of a local store can be changed, so that the old server seems to be stopped")
    assert f"a local store: --objects {OLD_ROOT}" in PAGE.read_text()
    in_place, *adopting = steps("In place, and adopted", "")

    run(typed, [*in_place, "--objects", OLD_ROOT])
    stop(typed)
    for words in adopting:
        run(typed, words)

    with typed.opened() as lake:
        assert lake.repository("old").branch("main").read("raw/d=0/f0.txt") == b"changed\n"
