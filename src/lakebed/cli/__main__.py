"""Run the command line that `lakebed/__main__.py` starts. Only this file reads the environment."""

from __future__ import annotations

import os
import sys

from .kit.completion import with_whole_uris
from .kit.failures import INTERRUPTED
from .kit.shells import PROGRAM, VARIABLE
from .kit.tree import app


def main() -> None:
    """Run one command and exit with its code (docs/guide/cli.md lists them)."""
    if os.environ.get(VARIABLE) == "bash_complete":
        os.environ.update(with_whole_uris(os.environ))
    try:
        # click passes `obj` to every command: settings come from here and nowhere else.
        app(prog_name=PROGRAM, obj=dict(os.environ))
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
