"""Show long lists a screen at a time, as git does: only at a terminal, and only lists that do not fit on it.

`LAKEBED_PAGER`, else `PAGER`, names the program; without both it is `less`, where there is one. An empty value or `cat`
turns it off.
"""

from __future__ import annotations

import contextlib
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from itertools import chain, islice
from typing import Final

from .failures import Misuse

_VARIABLES: Final = ("LAKEBED_PAGER", "PAGER")


def pager_of(environment: Mapping[str, str]) -> list[str]:
    """Return the pager's command line; empty where there is none, or standard output is no terminal."""
    if not sys.stdout.isatty():
        return []
    name = next((environment[name] for name in _VARIABLES if name in environment), "less")
    try:
        command = [] if name == "cat" else shlex.split(name)
    except ValueError as error:
        raise Misuse(f"the pager {name!r} is not a command: {error}") from error
    return command if command and shutil.which(command[0]) else []


def show_paged(
    lines: Iterable[str], pager: list[str], environment: Mapping[str, str], say: Callable[[str], None]
) -> None:
    """Pass lines to `say` if they fit on the screen, else to the pager, as they come.

    A reader who leaves the pager early ends the list.
    """
    left = iter(lines)
    # The prompt comes back on the last line of the screen.
    first = [*islice(left, max(shutil.get_terminal_size().lines - 1, 1))]
    after = next(left, None)
    if after is None:
        for line in first:
            say(line)
        return
    # -R shows colours, -X leaves the text on the screen, -F is for a screen that grew meanwhile.
    own = {"LESS": "FRX", **environment}
    with subprocess.Popen(  # noqa: S603  # the user's own choice of a program
        pager, stdin=subprocess.PIPE, encoding="utf-8", errors="backslashreplace", env=own
    ) as process:
        assert process.stdin is not None
        # Ctrl-C belongs to the pager: there it stops a search, and must not end the list.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            with contextlib.suppress(BrokenPipeError):
                for line in chain(first, [after], left):
                    process.stdin.write(line + "\n")
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
            process.wait()
        finally:
            signal.signal(signal.SIGINT, before)
