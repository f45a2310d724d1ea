"""Ask the machine for the cores that a server process may use, and for the ends of processes that it inherited."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Set
from pathlib import Path


def usable_cores(limit: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """Return how many cores this process may use: those of its affinity, or fewer where a container limits its time."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with contextlib.suppress(OSError, ValueError):  # no cgroup, another version, or `max`
        quota, period = (int(number) for number in limit.read_text().split())
        return min(cores, max(1, quota // period))
    return cores


def reap_others(known: Set[int]) -> None:
    """Read the ends of children that this process did not start.

    The first process of a container inherits what a dead worker left, and each that ended keeps its number until then.
    """
    with contextlib.suppress(ChildProcessError):  # there is no child
        # Only look, for the end of a known one is its own object's to read.
        while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) and ended.si_pid not in known:
            os.waitpid(ended.si_pid, 0)
