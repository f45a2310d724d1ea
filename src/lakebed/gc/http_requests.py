"""The live side over HTTP: `lakebed.gc.protocol.Requests`, each method one call of a route (protocol/messages.py).

A call blocks: a collection asks one thing at a time, and nothing else of it could run meanwhile. So no method of
`HttpRequests` ever suspends, and `finish` runs a coroutine that awaits nothing else without an event loop.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Protocol, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from lakebed.client import api_path
from lakebed.gc.protocol import (
    Adopting,
    Apply,
    Condemn,
    Condemnation,
    Defer,
    End,
    GivenUp,
    GiveUp,
    Mark,
    Planning,
    PrepareCommits,
    PreparedCommits,
    Purge,
    Purging,
    Question,
    ReadUncommitted,
    Restore,
    RestorePage,
    RulesVersion,
    RunList,
    RunView,
    StartedRun,
    StartRun,
    Sweep,
    UncommittedPage,
    UnknownAnswer,
    WhyPage,
)

T = TypeVar("T")


class Caller(Protocol):
    """The part of `lakebed.client.Client` that collectors need."""

    def call(self, method: str, path: str, *, json: object = None) -> object: ...


class HttpRequests:
    """One repository's collection routes. Every method may raise the client's errors and UnknownAnswer."""

    def __init__(self, client: Caller, repository: str) -> None:
        self._client = client
        self._repository = repository

    async def namespace(self) -> str:
        return self._ask("GET", api_path("repositories", self._repository), _Repository).storage_namespace

    async def planning(self) -> Planning:
        return self._ask("POST", self._path("planning"), Planning)

    async def purging(self) -> Purging:
        return self._ask("POST", self._path("purging"), Purging)

    async def adopting(self) -> Adopting:
        return self._ask("POST", self._path("adopting"), Adopting)

    async def start(self, body: StartRun) -> StartedRun:
        return self._ask("POST", self._path("runs"), StartedRun, body)

    async def read_uncommitted(self, run_id: str, body: ReadUncommitted) -> UncommittedPage:
        return self._ask("POST", self._path("runs", run_id, "uncommitted"), UncommittedPage, body)

    async def prepare_commits(self, run_id: str, body: PrepareCommits | None = None) -> PreparedCommits:
        return self._ask("POST", self._path("runs", run_id, "commits"), PreparedCommits, body)

    async def mark(self, run_id: str, body: Mark) -> RunView:
        return self._ask("POST", self._path("runs", run_id, "marked"), RunView, body)

    async def apply(self, run_id: str, body: Apply) -> RunView:
        return self._ask("POST", self._path("runs", run_id, "applying"), RunView, body)

    async def condemn(self, run_id: str, body: Condemn) -> Condemnation:
        return self._ask("POST", self._path("runs", run_id, "condemn"), Condemnation, body)

    async def give_up(self, run_id: str, body: GiveUp) -> GivenUp:
        return self._ask("POST", self._path("runs", run_id, "give-up"), GivenUp, body)

    async def sweep(self, run_id: str, body: Sweep) -> RunView:
        return self._ask("POST", self._path("runs", run_id, "sweeping"), RunView, body)

    async def defer(self, run_id: str, body: Defer) -> RunView:
        return self._ask("POST", self._path("runs", run_id, "deferred"), RunView, body)

    async def purge(self, run_id: str, body: Purge) -> Condemnation:
        return self._ask("POST", self._path("runs", run_id, "purging"), Condemnation, body)

    async def end(self, run_id: str, body: End) -> RunView:
        return self._ask("POST", self._path("runs", run_id, "ended"), RunView, body)

    async def abandon(self, run_id: str) -> RunView:
        return self._ask("POST", self._path("runs", run_id, "abandoned"), RunView)

    async def run(self, run_id: str) -> RunView:
        return self._ask("GET", self._path("runs", run_id), RunView)

    async def runs(self) -> RunList:
        return self._ask("GET", self._path("runs"), RunList)

    async def rules_in_force(self) -> RulesVersion:
        return self._ask("GET", self._path("rules", "full"), RulesVersion)

    async def restore(self, body: Restore) -> RestorePage:
        return self._ask("POST", self._path("restore"), RestorePage, body)

    async def why_page(self, question: Question, token: str | None = None) -> WhyPage:
        asked = {**question._asdict(), "continuation_token": token}
        query = urlencode({name: text for name, text in asked.items() if text}, quote_via=quote, safe="")
        return self._ask("GET", f"{self._path('why')}?{query}", WhyPage)

    def _path(self, *rest: str) -> str:
        return api_path("repositories", self._repository, "gc", *rest)

    def _ask(self, method: str, path: str, type_: type[T], body: object = None) -> T:
        return convert(self._client.call(method, path, json=body), type_)


def convert(answer: object, type_: type[T]) -> T:
    """
    Raises:
        UnknownAnswer: the answer is no such record.
    """
    try:
        result: Any = msgspec.convert(answer, type_)
    except msgspec.ValidationError as error:
        raise UnknownAnswer(f"the server's answer is no {type_.__name__}: {error}") from error
    return result  # type: ignore[no-any-return]  # convert is typed by its second argument, which is a variable here


def finish(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never suspends, and return its result."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    coroutine.close()
    raise AssertionError("a request over HTTP suspended")


class _Repository(msgspec.Struct, frozen=True, kw_only=True):
    storage_namespace: str
