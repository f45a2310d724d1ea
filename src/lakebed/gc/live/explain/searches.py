"""Searches that take minutes, in pages that take seconds: what `gc why`, `gc missing` and `gc deleted` ask a server.

A search remembers which of a hundred thousand files it read, and what they named; a token could not hold that. So it
stays in the memory of the process that began it, and the token is its name. Nothing rests on it: where a token is not
known (another process of the server was asked, this one started anew, or no request came for IDLE_MS), the search
begins again under it. Of several processes each goes on with a search of its own, and the first that is through
answers.

A page ends after a number of files, not after a time: about a second's work.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

from msgspec.structs import replace

from lakebed.base import Ports, Unavailable
from lakebed.gc.live.errors import BadContinuation
from lakebed.gc.live.installation.missing import Lacking, Looked, Missing
from lakebed.gc.live.reading.elsewhere import Elsewhere, NamedElsewhere
from lakebed.gc.live.records.settings import RuleBook
from lakebed.gc.messages import MissingCommits, Question, WhyAnswer, WhyPage, WhyProgress
from lakebed.versions import Versions

from .why import Why
from .why_deleted import DeletedWhy

FILES_A_PAGE: Final = 1_000
COMMITS_A_PAGE: Final = 1_000
SEARCHES_MAX: Final = 16
IDLE_MS: Final = 60_000
_TOKEN_CHARS_MAX: Final = 64


class TooManySearches(Unavailable):
    """This process is at work on SEARCHES_MAX searches, and a client waits for each."""


class _Step(Protocol):
    """Say how far a search is. `files` were read since the last step."""

    @property
    def files(self) -> int: ...


@dataclass(slots=True)
class _Search:
    token: str
    steps: AsyncGenerator[_Step | WhyAnswer | Lacking | NamedElsewhere, None]
    touched_ms: int
    progress: _Step | None = None
    answer: WhyAnswer | Lacking | NamedElsewhere | None = None
    is_busy: bool = False


class Searches:
    """One for each process of a server."""

    def __init__(self, ports: Ports, *, files_a_page: int = FILES_A_PAGE, commits_a_page: int = COMMITS_A_PAGE) -> None:
        self._ports = ports
        self._files_a_page = files_a_page
        self._commits_a_page = commits_a_page
        self._searches: dict[tuple[str, str, object], _Search] = {}

    async def page(
        self, versions: Versions, question: Question, token: str | None = None, *, deleted: DeletedWhy | None = None
    ) -> WhyPage:
        """The answer, if it is found within this page; else a token to ask for the next one with. See `Why.steps`.

        `deleted`: the repository is deleted, and this one looks.

        Raises:
            BadContinuation: nothing that could be a token.
            TooManySearches: others are at work; this one is not begun.
        """
        if deleted is None:
            steps = partial(Why(versions, RuleBook(versions)).steps, **question._asdict())
        else:
            steps = partial(deleted.steps, question)
        search = await self._step(versions.uid, (question, deleted is not None), token, steps)
        if isinstance(search.answer, WhyAnswer):
            return WhyPage(answer=search.answer)
        progress = search.progress if isinstance(search.progress, WhyProgress) else None
        return WhyPage(progress=progress, continuation_token=search.token)

    async def missing(
        self, versions: Versions, missing: Missing, token: str | None = None, *, marks: bool = False
    ) -> MissingCommits:
        """A page of the commits, if they are found within this page; else how far it is. See `Missing.steps`.

        A later page of the list begins no marking: where the search is not known any more, it lists again.

        Raises:
            BadContinuation, TooManySearches: as above.
        """
        # What was listed last, too: a page whose answer was lost must not be passed over.
        name, _, after = (token or "").partition("-")
        steps = partial(missing.steps, marks=marks and not after)
        search = await self._step(versions.uid, ("missing", marks), None if token is None else name, steps)
        if isinstance(search.answer, Lacking):
            page, last = search.answer.page(after, most=self._commits_a_page)
            return replace(page, continuation_token=f"{search.token}-{last}" if last else None)
        read = search.progress.read if isinstance(search.progress, Looked) else 0
        return MissingCommits(read=read, continuation_token=search.token)

    async def elsewhere(
        self, uid: str, run_id: str, elsewhere: Elsewhere, token: str | None
    ) -> tuple[str, NamedElsewhere | None]:
        """The token to ask for the next page with, and the names, if they are found within this page.

        Raises:
            BadContinuation, TooManySearches: as above.
        """
        search = await self._step(uid, ("elsewhere", run_id), token, elsewhere.steps)
        return search.token, search.answer if isinstance(search.answer, NamedElsewhere) else None

    async def _step(
        self,
        uid: str,
        question: object,
        token: str | None,
        steps: Callable[[], AsyncGenerator[_Step | WhyAnswer | Lacking | NamedElsewhere, None]],
    ) -> _Search:
        if token is not None and not (0 < len(token) <= _TOKEN_CHARS_MAX and token.isascii() and token.isalnum()):
            raise BadContinuation("this is no continuation token")
        name = (uid, token or self._ports.ids.fresh(), question)
        search = self._searches.get(name) or await self._begin(name, steps)
        if search.is_busy:
            # The same page asked for twice, by a client that had not waited for the first: he may ask again.
            await self._ports.clock.sleep(1)
            return search
        search.is_busy = True
        try:
            await self._go_on(search)
        except BaseException:
            del self._searches[name]
            raise
        finally:
            search.is_busy, search.touched_ms = False, self._ports.clock.now_ms()
        return search

    async def _begin(
        self,
        name: tuple[str, str, object],
        steps: Callable[[], AsyncGenerator[_Step | WhyAnswer | Lacking | NamedElsewhere, None]],
    ) -> _Search:
        now_ms = self._ports.clock.now_ms()
        for other, search in list(self._searches.items()):
            if not search.is_busy and not 0 <= now_ms - search.touched_ms < IDLE_MS:
                del self._searches[other]
                await search.steps.aclose()
        if len(self._searches) >= SEARCHES_MAX:
            # One that has its answer is kept for a client that asks again. Without it the search begins anew.
            done = [other for other, search in self._searches.items() if search.answer is not None]
            for other in done[:1]:
                del self._searches[other]
        if len(self._searches) >= SEARCHES_MAX:
            raise TooManySearches(f"{SEARCHES_MAX} searches are at work here; ask again in a minute")
        found = self._searches[name] = _Search(name[1], steps(), now_ms)
        return found

    async def _go_on(self, search: _Search) -> None:
        left = self._files_a_page
        while search.answer is None and left > 0:
            step = await anext(search.steps)
            if isinstance(step, (WhyAnswer, Lacking, NamedElsewhere)):
                search.answer = step
                await search.steps.aclose()
            else:
                left -= step.files
                search.progress = step
