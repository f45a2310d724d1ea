"""Tell the quickstart: chapters and short sentences on stdout, or on stderr where stdout is for programs."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from lakebed.cli import Session, human_duration


class Teller:
    """Say what happens, and how long each chapter took. Only a terminal gets bars and spinners."""

    def __init__(self, session: Session) -> None:
        # rich is imported here, when a quickstart begins, and not when the command line starts.
        from rich.console import Console

        self._console = Console(file=sys.stderr if session.is_json else sys.stdout, highlight=False)
        self.shows_progress = session.shows_progress
        self._begun_at = time.perf_counter()

    @contextmanager
    def chapter(self, title: str) -> Iterator[None]:
        """Show a heading, the sentences inside, and the time that they took."""
        begun_at = time.perf_counter()
        self.heading(title)
        yield
        self._console.print(f"  [dim]{human_duration(time.perf_counter() - begun_at)}[/]")

    def heading(self, title: str) -> None:
        self._console.print(f"\n[bold cyan]{title}[/]")

    def say(self, sentence: str) -> None:
        """Say one sentence, as it is: no markup. A terminal wraps it at words."""
        self._console.print(f"  {sentence}", markup=False, soft_wrap=not self._console.is_terminal)

    def lines(self, lines: Iterable[str]) -> None:
        """Show lines of a table or a listing, further in, as they are: they can be copied."""
        for line in lines:
            self._console.print(f"    {line}", markup=False, soft_wrap=True)

    @contextmanager
    def waiting(self, what: str) -> Iterator[Callable[[str], None]]:
        """Show a spinner with changing words, for work that cannot be counted."""
        if not self.shows_progress:
            yield lambda _: None
            return
        with self._console.status(f"  {what}") as status:
            yield lambda now: status.update(f"  {now}")

    def elapsed_s(self) -> float:
        """Return the time since the story began."""
        return time.perf_counter() - self._begun_at
