"""Show progress on a terminal: a bar of bytes, or one line of words. A file or a pipe gets nothing.

Answers go to the same terminal: erase the line before one is written.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from lakebed.base import count_of, human_size

from .output import WIDTH, human_duration, printable

CLEAR: Final = "\r\x1b[K"
_DRAWN_EVERY_S: Final = 0.1
_RATE_OVER_S: Final = 10.0
_BAR_MAX: Final = 30


class Line:
    """One line of a terminal that is written over. Threads may write and erase it."""

    def __init__(self, *, visible: bool) -> None:
        self._lock = threading.Lock()
        self._is_visible = visible
        self._is_shown = False

    def update(self, look: Callable[[], str]) -> None:
        """Show the text that `look` returns; erase the line if it is empty. No other thread writes between the two."""
        if not self._is_visible:
            return
        with self._lock:
            found = look()
            if found or self._is_shown:
                sys.stderr.write(CLEAR + found)
                sys.stderr.flush()
            self._is_shown = bool(found)

    def erase(self) -> None:
        self.update(str)


class Bar:
    """Count bytes that moved, and draw them on the line. Many threads may use it."""

    def __init__(self, description: str, total: int, line: Line) -> None:
        self._description = printable(description)
        self._line = line
        self._lock = threading.Lock()
        self._total = total
        self._done = 0
        self._files = self._files_done = 0
        now = time.monotonic()
        self._drawn_at = now - _DRAWN_EVERY_S
        # The count at some moments of the last seconds, oldest first: the rate is between the first and now.
        self._past = deque([(now, 0)])
        self._draw()

    def advance(self, amount: int) -> None:
        """Add to the bytes done; negative: they must be moved again."""
        with self._lock:
            self._done += amount
        self._draw()

    def expect(self, amount: int, *, files: int = 0) -> None:
        """Add to the bytes to move."""
        with self._lock:
            self._total += amount
            self._files += files
        self._draw()

    def end_file(self) -> None:
        """Count a file of those expected as done, moved or not."""
        with self._lock:
            self._files_done += 1
        self._draw()

    def erase(self) -> None:
        """Make room for a line; the bar comes back below it."""
        self._line.erase()

    def _draw(self) -> None:
        now = time.monotonic()
        with self._lock:
            if now - self._drawn_at < _DRAWN_EVERY_S:
                return
            self._drawn_at = now
            while len(self._past) > 1 and now - self._past[0][0] > _RATE_OVER_S:
                self._past.popleft()
            (since, before), done, total = self._past[0], self._done, self._total
            self._past.append((now, done))
            description = self._description
            if self._files:
                description += f"  {self._files_done:,} / {count_of(self._files, 'file')}"
        rate = (done - before) / (now - since) if now > since else 0.0
        self._line.update(lambda: bar_text(description, done, total, rate, _columns()))


def bar_text(description: str, done: int, total: int, rate: float, columns: int) -> str:
    """Return a line of at most this many columns: `uploading f  [####....]  2.0 MiB / 4.0 MiB  1.0 MiB/s  2.0 s left`.

    `rate` is in bytes a second. Where the line is too narrow, the bar goes first, then the end of the description.
    """
    amounts = f"{human_size(done)} / {human_size(total)}"
    if rate > 0:
        amounts += f"  {human_size(int(rate))}/s"
        if done < total:
            amounts += f"  {human_duration((total - done) / rate)} left"
    room = min(columns - len(description) - len(amounts) - 6, _BAR_MAX)
    if room < 5:  # a shorter one tells nothing
        return f"{description[: max(columns - len(amounts) - 2, 0)]}  {amounts}"[:columns]
    filled = round(room * min(max(done / total, 0), 1)) if total else 0
    return f"{description}  [{'#' * filled}{'.' * (room - filled)}]  {amounts}"


def _columns() -> int:
    # A terminal that does not know its size says 0. A line that reaches the last column would wrap at some.
    return (os.get_terminal_size(sys.stderr.fileno()).columns or WIDTH) - 1


@contextmanager
def bar(description: str, total: int = 0, *, visible: bool) -> Iterator[Bar]:
    """Show a bar on stderr while the block runs, if `visible`, and remove it at the end."""
    line = Line(visible=visible)
    try:
        yield Bar(description, total, line)
    finally:
        line.erase()
