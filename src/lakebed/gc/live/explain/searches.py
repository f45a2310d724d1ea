"""Cut searches of minutes into pages of seconds or less, for `gc why`, `missing`, `deleted`, `storage`, `rules try`.

A search remembers up to a hundred thousand files and their names, too much for a token. So its state is in the memory
of its process, and the token is its id. A page ends after a number of files, about a second's work.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol, TypeAlias

from msgspec.structs import replace

from lakebed.base import Ports, Unavailable
from lakebed.gc.live.errors import BadContinuation
from lakebed.gc.live.installation.missing import Lacking, Looked, Missing
from lakebed.gc.live.reading.elsewhere import Elsewhere, NamedElsewhere
from lakebed.gc.live.records.settings import RuleBook
from lakebed.gc.messages import MissingCommits, Question, RulesTrial, WhyAnswer, WhyPage, WhyProgress
from lakebed.gc.rules import Rules
from lakebed.versions import Versions

from .trees import CommittedParts, committed_steps
from .trying import trial_steps
from .why import Why
from .why_deleted import DeletedWhy

__all__ = [
    "Searches",
]

FILES_A_PAGE: Final = 1_000
COMMITS_A_PAGE: Final = 1_000
SEARCHES_MAX: Final = 16
IDLE_MS: Final = 60_000
_TOKEN_CHARS_MAX: Final = 64
_PAGE_DIGITS_MAX: Final = 9


Answer: TypeAlias = WhyAnswer | Lacking | NamedElsewhere | CommittedParts | RulesTrial


class _Step(Protocol):
    """Report the progress of a search. `files` were read since the last step."""

    @property
    def files(self) -> int: ...


@dataclass(slots=True)
class _Search:
    token: str
    steps: AsyncGenerator[_Step | Answer, None]
    touched_ms: int
    progress: _Step | None = None
    answer: Answer | None = None
    is_busy: bool = False


class Searches:
    """Hold the searches of one process of a server.

    Every page may raise BadContinuation, if the token is malformed, and Unavailable, if too many searches are at work.
    """

    def __init__(self, ports: Ports, *, files_a_page: int = FILES_A_PAGE, commits_a_page: int = COMMITS_A_PAGE) -> None:
        self._ports = ports
        self._files_a_page = files_a_page
        self._commits_a_page = commits_a_page
        self._searches: dict[tuple[str, str, object], _Search] = {}

    async def page(
        self,
        versions: Versions,
        question: Question,
        token: str | None = None,
        *,
        default_branch: str,
        files: int = 0,
    ) -> WhyPage:
        """Return the answer if this page finds it, else a token for the next page. See `Why.steps`.

        `files`: the number to read, about; by default what takes a second.
        """
        steps = partial(Why(versions, RuleBook(versions), default_branch).steps, **question._asdict())
        return await self._page(versions, (question, False), token, steps, files)

    async def page_of_deleted(
        self, versions: Versions, question: Question, token: str | None = None, *, why: DeletedWhy, files: int = 0
    ) -> WhyPage:
        """Answer for a deleted repository, as `page` does. See `DeletedWhy.steps`."""
        return await self._page(versions, (question, True), token, partial(why.steps, question), files)

    async def _page(
        self,
        versions: Versions,
        question: object,
        token: str | None,
        steps: Callable[[], AsyncGenerator[WhyProgress | WhyAnswer, None]],
        files: int,
    ) -> WhyPage:
        search = await self._step(versions.uid, question, token, steps, files)
        if isinstance(search.answer, WhyAnswer):
            return WhyPage(answer=search.answer)
        progress = search.progress if isinstance(search.progress, WhyProgress) else None
        return WhyPage(progress=progress, continuation_token=search.token)

    async def missing(
        self, versions: Versions, missing: Missing, token: str | None = None, *, marks: bool = False
    ) -> MissingCommits:
        """Return a page of the commits if the search has finished, else its progress. See `Missing.steps`.

        A request for a later page never marks. If the search is unknown, it only lists again.
        """
        # The token has the last listed commit too, so that a page with a lost answer can be repeated.
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
        """Return the token for the next page, and the names if this page finds them."""
        # A collector stops at a token that came before, so each page has another.
        name, _, number = (token or "").partition("-")
        if number and not (number.isascii() and number.isdigit() and len(number) <= _PAGE_DIGITS_MAX):
            raise BadContinuation("this is not a continuation token")
        search = await self._step(uid, ("elsewhere", run_id), None if token is None else name, elsewhere.steps)
        found = search.answer if isinstance(search.answer, NamedElsewhere) else None
        return f"{search.token}-{int(number or 0) + 1}", found

    async def committed(
        self, versions: Versions, default_branch: str, token: str | None, *, files: int
    ) -> tuple[str, CommittedParts | WhyProgress | None]:
        """Return the token for the next page, and the parts if this page finds them, else the progress. See
        `committed_steps`.
        """
        steps = partial(committed_steps, versions, default_branch=default_branch)
        search = await self._step(versions.uid, "committed", token, steps, files)
        reached = search.answer or search.progress
        return search.token, reached if isinstance(reached, CommittedParts | WhyProgress) else None

    async def tried(self, versions: Versions, rules: Rules, token: str | None, *, files: int) -> RulesTrial:
        """Return the trial if this page finds it, else one that has only progress and a token. See `trial_steps`."""
        search = await self._step(versions.uid, rules, token, partial(trial_steps, versions, rules), files)
        if isinstance(search.answer, RulesTrial):
            return search.answer
        return RulesTrial(
            now_ms=search.touched_ms,
            kept=0,
            expired=0,
            gone=0,
            in_force=(),
            branches=(),
            branches_count=0,
            commits=(),
            days=(),
            at_most=None,
            path_holds=(),
            continuation_token=search.token,
            progress=search.progress if isinstance(search.progress, WhyProgress) else None,
        )

    async def _step(
        self,
        uid: str,
        question: object,
        token: str | None,
        steps: Callable[[], AsyncGenerator[_Step | Answer, None]],
        files: int = 0,
    ) -> _Search:
        if token is not None and not (0 < len(token) <= _TOKEN_CHARS_MAX and token.isascii() and token.isalnum()):
            raise BadContinuation("this is not a continuation token")
        name = (uid, token or self._ports.ids.fresh(), question)
        # A token is unknown in another process, after a restart, or without a request for IDLE_MS. The search then
        # begins again under it. Each process continues its own search, and the first to finish answers.
        search = self._searches.get(name) or await self._begin(name, steps)
        if search.is_busy:
            # The client repeated a request before its answer. It may ask again.
            await self._ports.clock.sleep(1)
            return search
        search.is_busy = True
        try:
            await self._go_on(search, files)
        except BaseException:
            del self._searches[name]
            raise
        finally:
            search.is_busy, search.touched_ms = False, self._ports.clock.now_ms()
        return search

    async def _begin(
        self,
        name: tuple[str, str, object],
        steps: Callable[[], AsyncGenerator[_Step | Answer, None]],
    ) -> _Search:
        now_ms = self._ports.clock.now_ms()
        for other, search in list(self._searches.items()):
            if not search.is_busy and not 0 <= now_ms - search.touched_ms < IDLE_MS:
                del self._searches[other]
                await search.steps.aclose()
        if len(self._searches) >= SEARCHES_MAX:
            # Finished searches are kept only for repeated requests. Drop one: such a request begins a new search.
            done = [other for other, search in self._searches.items() if search.answer is not None]
            for other in done[:1]:
                del self._searches[other]
        if len(self._searches) >= SEARCHES_MAX:
            raise Unavailable(f"{SEARCHES_MAX} searches are at work here; ask again in a minute")
        begun = self._searches[name] = _Search(name[1], steps(), now_ms)
        return begun

    async def _go_on(self, search: _Search, files: int) -> None:
        left = min(files, self._files_a_page) if files > 0 else self._files_a_page
        while search.answer is None and left > 0:
            step = await anext(search.steps)
            if isinstance(step, WhyAnswer | Lacking | NamedElsewhere | CommittedParts | RulesTrial):
                search.answer = step
                await search.steps.aclose()
            else:
                left -= step.files
                search.progress = step
