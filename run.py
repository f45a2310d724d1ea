#!/usr/bin/env python3
"""Sets up everything in `.venv` beside this file, then runs one of the project's commands. Standard library only.

    python3 run.py quickstart [--data DIR] [--once]   the main job, on real data
    python3 run.py test [pytest options]              every check and test
    python3 run.py serve | gc | ...                   any other lakebed command

The set-up is done once for each change of the dependencies; `constraints.txt` pins the versions that were tested.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
PYTHON = VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
OLDEST, NEWEST = (3, 11), (3, 13)


def main(arguments: list[str]) -> int:
    if not arguments or arguments[0] in {"-h", "--help"}:
        print(__doc__)
        return 0
    if not OLDEST <= sys.version_info[:2] <= NEWEST:
        print(f"lakebed needs Python 3.11, 3.12 or 3.13; this is {sys.version.split()[0]}", file=sys.stderr)
        return 2
    command, *rest = arguments
    set_up("dev" if command in {"test", "check"} else "quickstart")
    if command in {"test", "check"}:
        return subprocess.call([PYTHON, ROOT / "checks.py", *rest], cwd=ROOT)
    # The command takes this process's place, so that Ctrl-C and signals reach it and nobody else.
    os.execv(PYTHON, [str(PYTHON), "-m", "lakebed", *arguments])


def set_up(extra: str) -> None:
    """Make the environment and install into it what `extra` needs, unless that was done already."""
    wanted = hashlib.sha256()
    for name in ("pyproject.toml", "constraints.txt"):
        wanted.update((ROOT / name).read_bytes())
    marks = [VENV / f".installed-{name}" for name in ({extra, "dev"} if extra == "quickstart" else {extra})]
    if any(mark.exists() and mark.read_text() == wanted.hexdigest() for mark in marks):
        return
    if not PYTHON.exists():
        print("Making the environment in .venv ...", flush=True)
        make_environment()
    print("Installing lakebed and what it needs; the first time this takes a few minutes ...", flush=True)
    install = [PYTHON, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.check_call([*install, "--constraint", ROOT / "constraints.txt", "--editable", f"{ROOT}[{extra}]"])
    (VENV / f".installed-{extra}").write_text(wanted.hexdigest())


def make_environment() -> None:
    try:
        venv.create(VENV, with_pip=True)
    except subprocess.CalledProcessError:
        # Some distributions ship Python without ensurepip; virtualenv brings its own pip.
        tools = ROOT / ".venv-tools"
        subprocess.check_call([sys.executable, "-m", "pip", "install", "--quiet", "--target", tools, "virtualenv"])
        environment = {**os.environ, "PYTHONPATH": str(tools)}
        subprocess.check_call([sys.executable, "-m", "virtualenv", "--quiet", "--clear", VENV], env=environment)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except subprocess.CalledProcessError as error:
        print(f"set-up failed: {' '.join(map(str, error.cmd))} ended with {error.returncode}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
