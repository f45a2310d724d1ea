"""Work in a process of its own, forked from this one with everything imported.

A bug that is planted there leaves nothing behind, whatever it does to caches, threads or the process.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import resource
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any, Final

IDLE_S: Final = 120
POLL_S: Final = 10
IDLE_TICKS: Final = 10
"""Hundredths of a second of CPU between two looks that are no work: a JVM that waits uses as much."""
ROOT: Final = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Done:
    """Hold what the work returned, or `ended` where the process ended before it did; and its CPU seconds."""

    answer: str
    cpu_s: float


def apart(work: Callable[[], str], *, ended: str, cpu_s_max: int) -> Done:
    """Do the work in a process of its own, silently. An error that it raises is raised here.

    It is ended where it uses more CPU, and where it and its children use next to none for IDLE_S: then it waits.
    """
    receiving, sending = multiprocessing.Pipe(duplex=False)
    child = multiprocessing.get_context("fork").Process(target=_work, args=(work, sending, cpu_s_max))
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    child.start()
    sending.close()
    answer: Any = ended
    if _answers(child, receiving):
        with contextlib.suppress(EOFError):
            answer = receiving.recv()
    child.join()
    if isinstance(answer, Exception):
        raise answer
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Done(answer, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def _answers(child: ForkProcess, receiving: Connection) -> bool:
    """Wait for an answer, or for the end of the process. False: it was idle for so long that it was killed."""
    spent, idle_s = 0, 0
    while not receiving.poll(POLL_S):
        now = ticks_of(child.pid or 0)
        idle_s = idle_s + POLL_S if now - spent <= IDLE_TICKS else 0
        spent = now
        if idle_s >= IDLE_S:
            child.kill()
            return False
    return True


def ticks_of(pid: int) -> int:
    """Return the CPU that a process used, with all that it started: a test may wait for a JVM or a server."""
    parents, ticks = {}, {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        # Processes end while others are read.
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            number = int(stat.parent.name)
            parents[number], ticks[number] = int(fields[1]), sum(map(int, fields[11:15]))
    family, found = {pid}, {pid}
    while found:
        found = {number for number, parent in parents.items() if parent in family} - family
        family |= found
    return sum(ticks.get(number, 0) for number in family)


def _work(work: Callable[[], str], sending: Connection, cpu_s_max: int) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s_max, cpu_s_max))
    with (
        Path(os.devnull).open("w") as nowhere,
        contextlib.redirect_stdout(nowhere),
        contextlib.redirect_stderr(nowhere),
    ):
        try:
            sending.send(work())
        except Exception as error:  # noqa: BLE001  # raised again by who asked
            sending.send(error)
    sending.close()
    # Threads that tests left behind must not hold up the end.
    os._exit(0)
