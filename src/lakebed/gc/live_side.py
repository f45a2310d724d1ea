"""The server as a collector sees it: a few calls, each a record there and a record back (protocol/messages.py).

The server owns every decision that races with writers: which slices are settled, what is staged, whether a run may go
on. A collector asks, and believes an answer only if it is complete: pages must add up to the manifest that ends them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from lakebed.base import Conflict, Corrupt, NotFound
from lakebed.client import api_path
from lakebed.gc.protocol import (
    Adopting,
    Apply,
    BadInput,
    Condemn,
    Condemnation,
    End,
    GivenUp,
    GiveUp,
    Manifest,
    Mark,
    Part,
    Planning,
    PrepareCommits,
    PreparedCommits,
    Purging,
    ReadUncommitted,
    Restore,
    RestorePage,
    RulesVersion,
    RunKind,
    RunList,
    RunView,
    StartedRun,
    StartRun,
    Sweep,
    UncommittedPage,
    WhyAnswer,
    WhyPage,
    WhyProgress,
)

T = TypeVar("T")


class RunAbandoned(Conflict):
    """Somebody ended the run while it was working: what it found counts for nothing, and nothing may be deleted."""


class UnknownAnswer(Corrupt):
    """The server's answer is not the record that this release expects."""


class Caller(Protocol):
    """What is needed of `lakebed.client.Client`."""

    def call(self, method: str, path: str, *, json: object = None) -> object: ...


class LiveSide:
    """One repository's collection routes. Every method may raise the client's errors and UnknownAnswer."""

    def __init__(self, client: Caller, repository: str) -> None:
        self.repository = repository
        self._client = client

    def namespace(self) -> str:
        """The repository's storage namespace."""
        answer = self._client.call("GET", api_path("repositories", self.repository))
        return _convert(answer, _Repository).storage_namespace

    def message_of(self, commit: str) -> str:
        """The first line of a commit's message.

        Raises:
            Denied, NotFound: the caller may not read it, or it is not there.
        """
        answer = _convert(
            self._client.call("GET", api_path("repositories", self.repository, "commits", commit)), _Commit
        )
        return next(iter(answer.message.splitlines()), "")

    def planning(self) -> Planning:
        """To be asked before anything that is slow begins.

        Raises:
            Denied: the caller may not plan.
        """
        path = api_path("repositories", self.repository, "gc", "planning")
        return _convert(self._client.call("POST", path), Planning)

    def start(self, kind: RunKind) -> StartedRun:
        return self._post(StartRun(kind=kind), StartedRun)

    def uncommitted(self, run_id: str) -> Manifest:
        """Everything that is staged, being uploaded or copied, written into the run's folder.

        Raises:
            BadInput: the pages do not add up to the manifest.
        """
        parts: list[Part] = []
        token: str | None = None
        turns = _Turns("the uncommitted listing", run_id)
        while True:
            page = self._post(ReadUncommitted(continuation_token=token), UncommittedPage, run_id, "uncommitted")
            parts += page.parts
            token = turns.next(page.continuation_token)
            if token is None:
                return _complete(page.manifest, parts)

    def commits(self, run_id: str) -> PreparedCommits:
        return self._post(None, PreparedCommits, run_id, "commits")

    def commits_for_metadata(self, run_id: str) -> PreparedCommits:
        """The same, where a commit counts as swept only if that was longer ago than readers are given."""
        return self._post(PrepareCommits(kind=RunKind.METADATA), PreparedCommits, run_id, "commits")

    def give_up(self, run_id: str, request: GiveUp) -> GivenUp:
        """Publishes what a run of metadata wants: from here on nobody writes a file under one of these ids.

        Raises:
            RunAbandoned: the run is over, or another one gave up its plan.
        """
        try:
            return self._post(request, GivenUp, run_id, "give-up")
        except Conflict as error:
            raise RunAbandoned(f"run {run_id} was abandoned before its sweep: {error}", run_id=run_id) from error

    def marked(self, run_id: str, plan: Manifest) -> RunView:
        """
        Raises:
            RunAbandoned: the run is not marking any more.
        """
        try:
            return self._post(Mark(plan=plan), RunView, run_id, "marked")
        except Conflict as error:
            raise RunAbandoned(f"run {run_id} was abandoned while it was marking: {error}", run_id=run_id) from error

    def applying(self, run_id: str, request: Apply) -> RunView:
        """To be asked before an apply writes or deletes anything.

        Raises:
            Denied: the caller may not apply.
            Conflict, NotFound: the plan may not be carried out; the message says why.
        """
        return self._post(request, RunView, run_id, "applying")

    def purging(self) -> str:
        """The namespace in which the caller may purge. To be asked before anything is deleted.

        Raises:
            Denied: the caller may not.
        """
        path = api_path("repositories", self.repository, "gc", "purging")
        return _convert(self._client.call("POST", path), Purging).namespace

    def condemn(self, run_id: str, request: Condemn) -> Condemnation:
        """The last page's answer. Publishes the run: from here on nobody can name the commits it lists."""
        turns = _Turns("the condemnation", run_id)
        while True:
            answer = self._post(request, Condemnation, run_id, "condemn")
            token = turns.next(answer.continuation_token)
            if token is None:
                return answer
            request = msgspec.structs.replace(request, continuation_token=token)

    def sweeping(self, run_id: str, plan: Manifest, commits: Manifest) -> RunView:
        """From here on the plan may be deleted. `commits` are those of the `Condemnation` that it was rechecked with.

        Raises:
            RunAbandoned: the run is not condemning any more.
        """
        try:
            return self._post(Sweep(plan=plan, commits=commits), RunView, run_id, "sweeping")
        except Conflict as error:
            raise RunAbandoned(f"run {run_id} was abandoned before its sweep: {error}", run_id=run_id) from error

    def ended(self, run_id: str, plan: Manifest) -> RunView:
        """All of this plan is deleted."""
        return self._post(End(plan=plan.digest()), RunView, run_id, "ended")

    def abandoned(self, run_id: str) -> RunView:
        return self._post(None, RunView, run_id, "abandoned")

    def adopting(self) -> Adopting:
        """Of several installations in the namespace the one that we ask goes on."""
        return _convert(
            self._client.call("POST", api_path("repositories", self.repository, "gc", "adopting")), Adopting
        )

    def restore(self, request: Restore) -> Iterator[RestorePage]:
        """Page by page: each is a call, and is done when it comes.

        Raises:
            NotFound: nothing that was asked for lies in quarantine; the message says what became of it.
            BadInput: the pages go round in a circle.
        """
        path = api_path("repositories", self.repository, "gc", "restore")
        turns = _Turns("the restore", request.run_id)
        while True:
            page = _convert(self._client.call("POST", path, json=request), RestorePage)
            yield page
            token = turns.next(page.continuation_token)
            if token is None:
                return
            request = msgspec.structs.replace(request, continuation_token=token)

    def run(self, run_id: str) -> RunView | None:
        """None where there is no record: a committed run that has not been published yet, or no run at all."""
        try:
            return _convert(self._client.call("GET", self._path(run_id)), RunView)
        except NotFound:
            return None

    def runs(self) -> tuple[RunView, ...]:
        """Newest first."""
        return _convert(self._client.call("GET", self._path()), RunList).runs

    def rules(self) -> RulesVersion:
        """Those in force."""
        path = api_path("repositories", self.repository, "gc", "rules", "full")
        return _convert(self._client.call("GET", path), RulesVersion)

    def why(
        self,
        *,
        address: str = "",
        ref: str = "",
        path: str = "",
        progress: Callable[[WhyProgress], None] = lambda _: None,
    ) -> WhyAnswer:
        """Why an object is there and until when, or which run took it: by an address, or by a ref and a path. Each page
        takes the server a second or so, and `progress` is told how far it is."""
        asked = {"address": address, "ref": ref, "path": path}
        route = api_path("repositories", self.repository, "gc", "why")
        while True:
            query = urlencode({name: text for name, text in asked.items() if text}, quote_via=quote, safe="")
            page = _convert(self._client.call("GET", f"{route}?{query}"), WhyPage)
            if page.answer is not None:
                return page.answer
            if page.continuation_token is None:
                raise UnknownAnswer("the server neither answered why, nor said how to go on")
            if page.progress is not None:
                progress(page.progress)
            asked["continuation_token"] = page.continuation_token

    def _path(self, *rest: str) -> str:
        return api_path("repositories", self.repository, "gc", "runs", *rest)

    def _post(self, request: object, type_: type[T], *rest: str) -> T:
        return _convert(self._client.call("POST", self._path(*rest), json=request), type_)


class _Turns:
    """The tokens of one listing, however many there are: a page leads to the next one, so a token that came before
    comes for ever. One is remembered at a time, each twice as long as the one before, and any circle ends at one.
    """

    def __init__(self, what: str, run_id: str) -> None:
        self._what, self._run_id = what, run_id
        self._remembered: str | None = None
        self._turns, self._until = 0, 1

    def next(self, token: str | None) -> str | None:
        """
        Raises:
            BadInput: this is a circle.
        """
        if token is not None and token == self._remembered:
            raise BadInput(f"{self._what} does not end: a page came twice", run_id=self._run_id)
        self._turns += 1
        if self._turns == self._until:
            self._remembered, self._until = token, 2 * self._until
        return token


class _Commit(msgspec.Struct, frozen=True, kw_only=True):
    message: str


class _Repository(msgspec.Struct, frozen=True, kw_only=True):
    storage_namespace: str


def _convert(answer: object, type_: type[T]) -> T:
    try:
        result: Any = msgspec.convert(answer, type_)
    except msgspec.ValidationError as error:
        raise UnknownAnswer(f"the server's answer is no {type_.__name__}: {error}") from error
    return result  # type: ignore[no-any-return]  # convert is typed by its second argument, which is a variable here


def _complete(manifest: Manifest | None, parts: list[Part]) -> Manifest:
    if manifest is None:
        raise BadInput("the uncommitted listing ended without a manifest", input="uncommitted")
    if sorted(manifest.parts, key=_name) != sorted(parts, key=_name):
        raise BadInput("the pages of the uncommitted listing do not add up to its manifest", input="uncommitted")
    return manifest


def _name(part: Part) -> str:
    return part.name
