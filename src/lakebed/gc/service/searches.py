"""Searches that take minutes, in pages that take seconds: what `lakebed gc why` asks, as a server answers it.

A search remembers which of a hundred thousand files it read, and what they named; a token could not hold that. So it
stays in the memory of the process that began it, and the token is its name. Nothing rests on it: where a token is not
known (another process of the server was asked, this one started anew, or no request came for IDLE_MS), the search
begins again under it. Of several processes each goes on with a search of its own, and the first that is through
answers.

A page ends after a number of files, not after a time: about a second's work.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Final

from lakebed.base import Ports, Unavailable
from lakebed.gc.protocol import Question, WhyAnswer, WhyPage, WhyProgress
from lakebed.versions import Versions

from .errors import BadContinuation
from .rules import RuleBook
from .why import Why

FILES_A_PAGE: Final = 1_000
SEARCHES_MAX: Final = 16
IDLE_MS: Final = 60_000
_TOKEN_CHARS_MAX: Final = 64


class TooManySearches(Unavailable):
    """This process is at work on SEARCHES_MAX searches, and a client waits for each."""


@dataclass(slots=True)
class _Search:
    steps: AsyncGenerator[WhyProgress | WhyAnswer, None]
    page: WhyPage
    touched_ms: int
    is_busy: bool = False


class Searches:
    """One for each process of a server."""

    def __init__(self, ports: Ports, *, files_a_page: int = FILES_A_PAGE) -> None:
        self._ports = ports
        self._files_a_page = files_a_page
        self._searches: dict[tuple[str, str, Question], _Search] = {}

    async def page(self, versions: Versions, question: Question, token: str | None = None) -> WhyPage:
        """The answer, if it is found within this page; else a token to ask for the next one with. See `Why.steps`.

        Raises:
            BadContinuation: nothing that could be a token.
            TooManySearches: others are at work; this one is not begun.
        """
        if token is not None and not (0 < len(token) <= _TOKEN_CHARS_MAX and token.isascii() and token.isalnum()):
            raise BadContinuation("this is no continuation token")
        name = (versions.uid, token or self._ports.ids.fresh(), question)
        search = self._searches.get(name) or await self._begin(name, versions)
        if search.is_busy:
            # The same page asked for twice, by a client that had not waited for the first: he may ask again.
            await self._ports.clock.sleep(1)
            return search.page
        search.is_busy = True
        try:
            await self._go_on(search)
        except BaseException:
            del self._searches[name]
            raise
        finally:
            search.is_busy, search.touched_ms = False, self._ports.clock.now_ms()
        return search.page

    async def _begin(self, name: tuple[str, str, Question], versions: Versions) -> _Search:
        now_ms = self._ports.clock.now_ms()
        for other, search in list(self._searches.items()):
            if not search.is_busy and not 0 <= now_ms - search.touched_ms < IDLE_MS:
                del self._searches[other]
                await search.steps.aclose()
        if len(self._searches) >= SEARCHES_MAX:
            raise TooManySearches(f"{SEARCHES_MAX} searches are at work here; ask again in a minute")
        steps = Why(versions, RuleBook(versions)).steps(**name[2]._asdict())
        found = self._searches[name] = _Search(steps, WhyPage(continuation_token=name[1]), now_ms)
        return found

    async def _go_on(self, search: _Search) -> None:
        left = self._files_a_page
        while search.page.answer is None and left > 0:
            step = await anext(search.steps)
            if isinstance(step, WhyAnswer):
                search.page = WhyPage(answer=step)
                await search.steps.aclose()
            else:
                left -= step.files
                search.page = WhyPage(progress=step, continuation_token=search.page.continuation_token)
