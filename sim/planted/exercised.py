"""Count how often each fault happened and each guard was reached: a search that misses a guard proves nothing of it.

A guard is reached when a line runs that its planted bug changes (`mutants/`). Counting makes a run three times slower.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from types import CodeType, FrameType, TracebackType
from typing import Any, Final

from .planting import SOURCE, Mutant, place_of

_Lines = dict[int, list[str]]
"""Which guards a line of a file has."""


class Exercised:
    """Counts, while a `with` lasts, how often the guards of these mutants are reached."""

    def __init__(self, mutants: Sequence[Mutant]) -> None:
        self.guards: Counter[str] = Counter({mutant.name: 0 for mutant in mutants})
        self._files: dict[str, _Lines] = {}
        self._known: dict[CodeType, _Lines | None] = {}
        for mutant in mutants:
            for hunk in mutant.hunks:
                file = SOURCE / hunk.file
                first = place_of(file.read_text(), hunk) + 1
                lines = self._files.setdefault(str(file), {})
                for line in range(first, first + len(hunk.old)):
                    lines.setdefault(line, []).append(mutant.name)

    def __enter__(self) -> Exercised:
        sys.settrace(self._called)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        sys.settrace(None)

    @property
    def unreached(self) -> list[str]:
        return sorted(name for name, count in self.guards.items() if not count)

    def _called(self, frame: FrameType, event: str, _: Any) -> Any:
        code = frame.f_code
        if code not in self._known:
            lines = self._files.get(code.co_filename, _NONE)
            own = {line for _, _, line in code.co_lines() if line is not None}
            self._known[code] = lines if own & lines.keys() else None
        lines_here = self._known[code]
        if lines_here is None:
            return None

        def at_line(frame: FrameType, event: str, _: Any) -> Any:
            if event == "line":
                self.guards.update(lines_here.get(frame.f_lineno, ()))
            return at_line

        return at_line(frame, event, None)


_NONE: Final[_Lines] = {}
