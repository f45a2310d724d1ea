"""Decide what Ctrl-C does: end the process at once, or raise KeyboardInterrupt in the command that runs.

Python's own handler raises wherever the program is. While modules are imported that is a traceback, and nothing was
begun. So the process starts with `end_at_once`, and a command that begins calls `raise_in_command`.

This module imports `signal` and nothing that Python has not loaded: until it is there, Ctrl-C shows a traceback.
"""

import os
import signal

_INTERRUPTED = 130
"""`ExitCode.INTERRUPTED`. Its module takes longer to import than a user may wait with Ctrl-C."""


def end_at_once() -> None:
    """From now on Ctrl-C ends the process, without a word. A handler of the caller's own, or none, stays."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def raise_in_command() -> None:
    """From now on Ctrl-C raises KeyboardInterrupt again, where `end_at_once` was called before."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(_number: int, _frame: object) -> None:
    os._exit(_INTERRUPTED)
