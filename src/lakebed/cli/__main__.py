"""Run the command line that `lakebed/__main__.py` starts. Only this file reads the environment."""

from __future__ import annotations

import os
import sys
from typing import Final

from .kit.completion import with_whole_uris
from .kit.failures import INTERRUPTED
from .kit.shells import VARIABLE, program_name
from .kit.tree import app

CALLED: Final = "LAKEBED_CALLED"
"""The variable by which `run.py` says how the user called it, for messages that name a command."""


def main() -> None:
    """Run one command and exit with its code (docs/guide/cli.md lists them)."""
    if os.environ.get(VARIABLE) == "bash_complete":
        os.environ.update(with_whole_uris(os.environ))
    try:
        # What `run.py` calls is not for the processes that this one starts.
        program = os.environ.pop(CALLED, "") or program_name()
        # click passes `obj` to every command: settings come from here and nowhere else.
        app(prog_name=program, complete_var=VARIABLE, obj=dict(os.environ))
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
