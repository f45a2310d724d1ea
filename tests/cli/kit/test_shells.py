"""Completion is set up in bash, zsh and fish, for the shell that asks."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
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


def run_in(shell: str, script: str, home: Path) -> list[str]:
    """Run a script in a shell of this home folder, where `lakebed` is a program of the path; return what it printed."""
    program = home / "bin" / "lakebed"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m lakebed "$@"\n')
    program.chmod(0o755)
    environment = {
        "HOME": str(home),
        "PATH": f"{program.parent}:/usr/bin:/bin",
        "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
    }
    done = subprocess.run([shell, "-c", script], cwd=home, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish_completes_commands_with_their_whole_description_and_files_with_commas(at_home: Shell, home: Path) -> None:
    (home / "day=1,a.csv").touch()
    at_home.ok("--install-completion", "fish")

    [command, *files] = run_in("fish", "complete -C 'lakebed rep'; complete -C 'lakebed object upload ./day=1,'", home)

    assert command.startswith("repo\tCreate, list")
    assert files == ["./day=1,a.csv"]


# What zsh's own functions would offer, printed: they work only while a person types.
OFFERED = """
compdef() { : }
_describe() { print -l -- $completions_with_descriptions }
compadd() { print -l -- $completions }
_path_files() { print -- files }
source ~/.zfunc/_lakebed
words=(lakebed rep); CURRENT=2; _lakebed_completion
words=(lakebed object upload ./day=1,); CURRENT=4; _lakebed_completion
words=(lakebed object ls lake); CURRENT=4; _lakebed_completion
"""


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_zsh_completes_commands_files_and_the_beginning_of_a_uri(at_home: Shell, home: Path) -> None:
    at_home.ok("--install-completion", "zsh")

    [command, files, uri] = run_in("zsh", OFFERED, home)

    assert command.startswith("repo:Create, list")
    assert (files, uri) == ("files", "lakefs://")


def test_commands_in_messages_are_as_the_user_types_them(tmp_path: Path) -> None:
    """`run.py` says how it was called; the program itself finds out whether it is on the path."""
    environment = {"LAKEBED_CONFIG": str(tmp_path / "config.toml"), "PATH": os.environ["PATH"]}
    outside = {**environment, "PATH": "/usr/bin:/bin"}
    beside = Path(sys.executable).with_name("lakebed")

    def said(*words: str, **more: str) -> str:
        program = [sys.executable, "-m", "lakebed", *words]
        ran = subprocess.run(
            program, env={**outside, **more}, cwd=tmp_path, capture_output=True, text=True, check=False
        )
        return ran.stderr

    assert "as in `python3 run.py branch list lakefs://lake`" in said("branch", "list", LAKEBED_CALLED="python3 run.py")
    assert f"`{beside} setup` or `{beside} config set`" in said("config", "show", "--export")
    assert "`lakebed setup` or `lakebed config" in said("config", "show", "--export", PATH=str(beside.parent))
