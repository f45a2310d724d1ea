#!/usr/bin/env python3
"""Sets up `.venv` beside this file, then runs one of the project's commands.

    python3 run.py quickstart [--data DIR] [--once]  the main job, on real data
    python3 run.py test [--all]              what a change needs checked, or all
    python3 run.py test [pytest options]     the tests that these name
    python3 run.py serve | gc | ...          any other lakebed command
    python3 run.py help                      the list of lakebed commands

The set-up is done once for each change of the dependencies; `constraints.txt`
pins the versions that were tested. It needs Python 3.11 to 3.13 and a package
registry that pip can reach, nothing else (this file: no package at all).
"""

# No syntax here that Python 3.6 cannot parse: an old Python is to say that it is too old, and not "invalid syntax".
import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
OLDEST, NEWEST = (3, 11), (3, 13)
LINES_SHOWN = 15
LINE_MAX = 77
QUIET_S = 5
LONG_STEPS = ("Installing collected packages",)


class SetUpFailed(Exception):
    """What to tell the person."""


def main(arguments: "list[str]") -> int:
    if not arguments or arguments[0] in {"-h", "--help"}:
        print(__doc__)
        return 0
    if not OLDEST <= sys.version_info[:2] <= NEWEST:
        found = f"{sys.version.split()[0]} ({sys.executable})"
        raise SetUpFailed(f"lakebed needs Python 3.11, 3.12 or 3.13; this is {found}")
    command, *rest = arguments
    set_up("dev" if command in {"test", "check"} else "quickstart")
    if command in {"test", "check"}:
        return subprocess.call([str(PYTHON), str(ROOT / "checks.py"), *rest], cwd=str(ROOT))
    # The command takes this process's place, so that Ctrl-C and signals reach it and nobody else.
    called = f"python3 {shlex.quote(sys.argv[0])}"  # its messages name commands as the person can type them
    os.execve(str(PYTHON), [str(PYTHON), "-m", "lakebed", *arguments], {**os.environ, "LAKEBED_CALLED": called})
    raise AssertionError("exec does not return")


def set_up(extra: str) -> None:
    """Make the environment and install into it what `extra` needs, unless that was done already."""
    wanted = hashlib.sha256(str(ROOT).encode())  # a moved checkout is installed again: the environment names its place
    for name in ("pyproject.toml", "constraints.txt"):
        wanted.update((ROOT / name).read_bytes())
    marks = [VENV / f".installed-{name}" for name in sorted({extra, "dev"})]
    if PYTHON.exists() and any(mark.exists() and mark.read_text() == wanted.hexdigest() for mark in marks):
        return
    if not can_install():
        say("Making the environment in .venv ...")
        make_environment()
    needed = "what its tests need" if extra == "dev" else "what it needs (450 MB)"
    say(f"Installing lakebed and {needed}: some minutes the first time ...")
    install(extra)
    (VENV / f".installed-{extra}").write_text(wanted.hexdigest())


def can_install() -> bool:
    """Whether the environment is there and whole; a set-up that was stopped half-way may have left a torso."""
    return PYTHON.exists() and subprocess.call([str(PYTHON), "-c", "import pip"], stderr=subprocess.DEVNULL) == 0


def make_environment() -> None:
    """
    Raises:
        SetUpFailed: this Python brings no pip, and none can be had.
    """
    try:
        import venv

        venv.create(str(VENV), clear=True, with_pip=True)
    except (ImportError, subprocess.CalledProcessError):
        # Some distributions ship Python without ensurepip; virtualenv brings its own pip.
        tools = ROOT / ".venv-tools"
        try:
            run_quietly([sys.executable, "-m", "pip", "install", "--target", str(tools), "virtualenv"])
            run_quietly([sys.executable, "-m", "virtualenv", "--clear", str(VENV)], PYTHONPATH=str(tools))
        except SetUpFailed as error:
            shutil.rmtree(str(VENV), ignore_errors=True)
            raise SetUpFailed(
                f"{error}\n{sys.executable} comes without venv or pip; on Debian and Ubuntu: apt install python3-venv"
            ) from None


def install(extra: str) -> None:
    """
    Raises:
        SetUpFailed: pip did; its last words are in the message.
    """
    pip = [str(PYTHON), "-m", "pip", "install", "--disable-pip-version-check", "--progress-bar", "off"]
    try:
        run_quietly([*pip, "--constraint", str(ROOT / "constraints.txt"), "--editable", f"{ROOT}[{extra}]"])
    except SetUpFailed as error:
        raise SetUpFailed(
            f"{error}\nThe installation failed. pip must reach a registry: the public one, or that of its settings.\n"
            "Once it can, run the same command again: what was loaded is kept."
        ) from None


def run_quietly(command: "list[str]", **environment: str) -> None:
    """Run it to its end; a terminal shows what it says in one line that keeps changing, a log one line now and then.

    Raises:
        SetUpFailed: it failed; its last lines.
    """
    said = []
    is_terminal = sys.stdout.isatty()
    shown_s = time.monotonic()
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        universal_newlines=True,
        errors="replace",
        env={**os.environ, **environment},
    ) as process:
        for line in process.stdout or ():
            said.append(line.rstrip())
            if is_terminal:
                width = shutil.get_terminal_size().columns - 3
                print(f"\r\033[K  {said[-1].strip()[:width]}", end="", flush=True)
            elif said[-1].startswith(LONG_STEPS) or time.monotonic() - shown_s > QUIET_S:
                say(f"  {said[-1].strip()[:LINE_MAX]}")
                shown_s = time.monotonic()
    if is_terminal:
        print("\r\033[K", end="", flush=True)
    if process.returncode:
        raise SetUpFailed("\n".join(said[-LINES_SHOWN:]))


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except SetUpFailed as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
