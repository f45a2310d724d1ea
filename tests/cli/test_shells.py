"""Completion is set up in bash, zsh and fish, for the shell that asks."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.cli.conftest import Shell


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def at_home(home: Path) -> Shell:
    home.mkdir()
    return Shell(environment={"HOME": str(home)})


@pytest.mark.parametrize(("shell", "words"), [("bash", "bash_complete"), ("zsh", "#compdef"), ("fish", "complete --")])
def test_the_script_of_a_shell_is_printed(at_home: Shell, shell: str, words: str) -> None:
    assert words in at_home.ok("--show-completion", shell).out


def test_a_script_is_installed_once_and_the_rest_of_the_file_stays(at_home: Shell, home: Path) -> None:
    (home / ".bashrc").write_text("alias ll='ls -l'")

    for _ in range(2):
        at_home.ok("--install-completion", "bash")

    assert (home / ".bashrc").read_text() == "alias ll='ls -l'\nsource ~/.bash_completions/lakebed.sh\n"
    assert "_LAKEBED_COMPLETE=bash_complete" in (home / ".bash_completions" / "lakebed.sh").read_text()


def test_a_file_in_another_encoding_stays_as_it_is(at_home: Shell, home: Path) -> None:
    (home / ".bashrc").write_bytes(b"export A=\xe9\r\n\n")

    at_home.ok("--install-completion", "bash")

    assert (home / ".bashrc").read_bytes() == b"export A=\xe9\r\n\nsource ~/.bash_completions/lakebed.sh\n"


def test_a_file_where_the_folder_should_be_is_one_line(at_home: Shell, home: Path) -> None:
    (home / ".bash_completions").touch()

    outcome = at_home("--install-completion", "bash")

    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.err == f"error: {home}/.bash_completions: File exists\n"


def test_fish_and_zsh_find_their_scripts(at_home: Shell, home: Path) -> None:
    at_home.ok("--install-completion", "fish")
    at_home.ok("--install-completion", "zsh")

    assert (home / ".config" / "fish" / "completions" / "lakebed.fish").is_file()
    assert (home / ".zfunc" / "_lakebed").read_text().startswith("#compdef lakebed")
    assert "fpath+=~/.zfunc" in (home / ".zshrc").read_text()


def test_an_unknown_shell_is_a_misuse_that_names_the_others(at_home: Shell, home: Path) -> None:
    outcome = at_home("--show-completion", "ksh")

    assert (outcome.code, outcome.out) == (2, "")
    assert "bash, zsh, fish" in outcome.err
    assert list(home.iterdir()) == []


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_the_installed_script_is_one_that_bash_runs(at_home: Shell, home: Path) -> None:
    at_home.ok("--install-completion", "bash")
    script = f"source {home}/.bash_completions/lakebed.sh && complete -p lakebed"

    done = subprocess.run(["bash", "--norc", "-c", script], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("-F _lakebed_completion lakebed\n")
