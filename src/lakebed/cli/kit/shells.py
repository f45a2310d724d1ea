"""Set up completion in a shell: print its script, or put it where the shell finds it. The scripts are click's own.

completion.py makes the candidates.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import click
from click.shell_completion import get_completion_class

from .output import PROGRAM

VARIABLE: Final = "_LAKEBED_COMPLETE"
"""The environment variable by which a shell asks for completions."""
SHELLS: Final = ("bash", "zsh", "fish", "powershell")

_SCRIPTS: Final = {
    "bash": ".bash_completions/lakebed.sh",
    "zsh": ".zfunc/_lakebed",
    "fish": ".config/fish/completions/lakebed.fish",
}
"""The file of the script below the home folder."""
_STARTS: Final = {
    "bash": (".bashrc", "source ~/.bash_completions/lakebed.sh"),
    "zsh": (".zshrc", "fpath+=~/.zfunc; autoload -Uz compinit; compinit"),
}
"""The file that a shell reads when it starts, and the line that it needs there. fish needs none."""


def program_name() -> str:
    """Return what runs this very `lakebed` in this folder, whether or not its environment is on the path."""
    script, found = Path(sys.executable).with_name(PROGRAM), shutil.which(PROGRAM)
    if found and (Path(found) == script or Path(found).resolve() == script):
        return PROGRAM
    if not script.exists():
        return shlex.join([sys.executable, "-m", PROGRAM])
    is_below = script.is_relative_to(Path.cwd())
    return shlex.quote(str(script.relative_to(Path.cwd()) if is_below else script))


def completion_options() -> list[click.Parameter]:
    """Return the options `--install-completion` and `--show-completion`."""
    return [
        _option("--install-completion", _install, "Install completion for this shell, or the named one."),
        _option("--show-completion", _show, "Show the script of completion, to install it by hand."),
    ]


def _option(name: str, callback: object, help_text: str) -> click.Option:
    return click.Option(
        [name],
        is_flag=False,
        flag_value="",
        default=None,
        metavar="[SHELL]",
        is_eager=True,
        expose_value=False,
        callback=callback,
        help=help_text,
    )


def _show(context: click.Context, _: click.Parameter, shell: str | None) -> None:
    if shell is not None and not context.resilient_parsing:
        click.echo(_script(_named(context, shell), context))
        context.exit()


def _install(context: click.Context, _: click.Parameter, shell: str | None) -> None:
    if shell is None or context.resilient_parsing:
        return
    shell = _named(context, shell)
    if shell not in _SCRIPTS:
        raise click.UsageError(
            f"{shell} says where its profile is: {PROGRAM} --show-completion {shell} >> $PROFILE", ctx=context
        )
    home = Path((context.obj or {}).get("HOME") or Path.home())
    script = home / _SCRIPTS[shell]
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text(_script(shell, context))
    if shell in _STARTS:
        file, line = _STARTS[shell]
        start = home / file
        # The file is the user's: its bytes, in whatever encoding, stay as they are.
        before = start.read_bytes() if start.exists() else b""
        if line.encode() not in before.splitlines():
            with start.open("ab") as profile:
                profile.write(b"" if before.endswith(b"\n") or not before else b"\n")
                profile.write(f"{line}\n".encode())
    click.echo(f"{shell} completes {PROGRAM} once it is started again: {script}")
    context.exit()


def _script(shell: str, context: click.Context) -> str:
    complete = get_completion_class(shell)
    if complete is None:
        # click knows PowerShell since 8.5.
        raise click.UsageError(f"the installed release of click cannot complete in {shell}", ctx=context)
    script = complete(context.command, {}, PROGRAM, VARIABLE).source()
    # Names and descriptions hold commas: click's script of fish would cut them there.
    return script.replace('(string split "," $completion)', '(string split --max 1 "," $completion)')


def _named(context: click.Context, shell: str) -> str:
    """Return the given shell, else the one that started this process, else the user's."""
    if shell:
        if shell not in SHELLS:
            raise click.UsageError(f"no such shell: {shell}. There are: {', '.join(SHELLS)}", ctx=context)
        return shell
    for name in (_parent(), (context.obj or {}).get("SHELL", "")):
        found = {"pwsh": "powershell"}.get(known := Path(name).stem.lstrip("-"), known)
        if found in SHELLS:
            return found
    raise click.UsageError(f"which shell? Name one: {', '.join(SHELLS)}", ctx=context)


def _parent() -> str:
    """Return the name of the program that started this one; empty where the system does not say."""
    try:
        words = ["ps", "-o", "comm=", "-p", str(os.getppid())]
        return subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip()  # noqa: S603  # no input
    except OSError:
        return ""
