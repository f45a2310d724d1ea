"""The clock of tests over in-memory stores."""

from __future__ import annotations


class TurnableClock:
    """Stands still but where it is turned to, and for sleepers: they wake at once, and it is later."""

    def __init__(self, ms: int = 1_790_000_000_000) -> None:
        self.ms = ms

    def now_ms(self) -> int:
        return self.ms

    async def sleep(self, seconds: float) -> None:
        self.ms += int(seconds * 1000)
