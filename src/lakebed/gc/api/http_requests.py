"""Call the live side over HTTP: `lakebed.gc.messages.Requests`, one route for each method (docs/formats/gc-run.md).

A call blocks: a collection makes one call at a time, and has nothing else to run meanwhile. So no method of
`HttpRequests` ever suspends, and `finish` runs a coroutine that awaits only these without an event loop.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from lakebed.base import Conflict, OutcomeUnknown, Unavailable, name_in_words
from lakebed.client import path_to
from lakebed.gc.messages import DisagreementPage, MissingCommits, Question, RunList, UnknownAnswer, WhyPage
from lakebed.operations import Operation, history, repositories
from lakebed.operations.gc import collectors, holds

RETRY_FOR_S: Final = 120.0
ONLY: Final = "only"
_NAP_MIN_S: Final = 0.5
_NAP_MAX_S: Final = 5.0
_STARTS: Final = "/gc/runs"

A = TypeVar("A")
B = TypeVar("B")
T = TypeVar("T")


class Caller(Protocol):
    """Declare the part of `lakebed.client.Client` that collectors need."""

    def call(self, method: str, path: str, *, json: object = None) -> object: ...


def _sends(operation: Operation[Any, A]) -> Callable[..., Coroutine[Any, Any, A]]:
    """Return a method of `HttpRequests`. It takes the arguments of the operation's path, and then its body, if any."""

    async def send(self: HttpRequests, *given: Any) -> A:
        path = given[: len(operation.arguments) - 1]
        return self.call(operation, *path, body=given[len(path)] if len(given) > len(path) else None)

    return send


class HttpRequests:
    """Call the collection routes of one repository. Every method may raise the client's errors and UnknownAnswer.

    `deleted` is the uid of a deleted repository. ONLY selects it by name when the name is unique.
    """

    def __init__(self, client: Caller, repository: str, *, deleted: str = "") -> None:
        self._client = client
        self._repository = repository
        self._deleted = deleted

    planning = _sends(collectors.CHECK_GC_PLANNING)
    purging = _sends(collectors.CHECK_GC_PURGING)
    adopting = _sends(collectors.CHOOSE_GC_INSTALLATION)
    find_slices = _sends(collectors.FIND_GC_SLICES)
    adopt_slices = _sends(collectors.ADOPT_GC_SLICES)
    start = _sends(collectors.START_GC_RUN)
    read_uncommitted = _sends(collectors.READ_GC_UNCOMMITTED)
    prepare_commits = _sends(collectors.READ_GC_COMMITS)
    mark = _sends(collectors.MARK_GC_RUN)
    note_planned = _sends(collectors.NOTE_GC_PLAN)
    find_tables = _sends(collectors.FIND_BROKEN_TABLES)
    apply = _sends(collectors.APPLY_GC_RUN)
    expire = _sends(collectors.EXPIRE_GC_COMMITS)
    find_staged = _sends(collectors.FIND_GC_STAGED)
    unstage = _sends(collectors.UNSTAGE_GC_ENTRIES)
    sign_certificate = _sends(collectors.SIGN_GC_CERTIFICATE)
    check_certificate = _sends(collectors.CHECK_GC_CERTIFICATE)
    retire = _sends(collectors.RETIRE_GC_IDS)
    sweep = _sends(collectors.SWEEP_GC_RUN)
    defer = _sends(collectors.DEFER_GC_RUN)
    purge = _sends(collectors.PURGE_GC_RUN)
    undo = _sends(collectors.UNDO_GC_RUN)
    end = _sends(collectors.END_GC_RUN)
    abandon = _sends(collectors.ABANDON_GC_RUN)
    run = _sends(collectors.GET_GC_RUN)
    rules_in_force = _sends(collectors.GET_FULL_GC_RULES)
    holds_in_force = _sends(holds.GET_LEGAL_HOLDS)
    restore = _sends(collectors.RESTORE_GC_OBJECTS)

    async def namespace(self) -> str:
        if self._deleted:
            # GET_REPOSITORY answers only for repositories in use.
            return (await self.planning()).namespace
        path = path_to(repositories.GET_REPOSITORY, self._repository)
        return convert(self._client.call("GET", path), _Repository).storage_namespace

    async def find_missing(self, token: str | None = None) -> MissingCommits:
        return self.call(collectors.FIND_GC_MISSING, continuation_token=token)

    async def mark_missing(self, token: str | None = None) -> MissingCommits:
        return self.call(collectors.MARK_GC_MISSING, continuation_token=token)

    async def runs(self, *, forgotten: bool = False) -> RunList:
        return self.call(collectors.LIST_GC_RUNS, forgotten="true" if forgotten else None)

    async def compare_ledger(self, run_id: str = "", token: str | None = None) -> DisagreementPage:
        return self.call(collectors.COMPARE_GC_LEDGER, run_id=run_id, continuation_token=token)

    async def why_page(self, question: Question, token: str | None = None) -> WhyPage:
        return self.call(collectors.WHY_GC_OBJECT, **question._asdict(), continuation_token=token)

    def call(self, operation: Operation[B, A], *arguments: str, body: B | None = None, **asked: str | None) -> A:
        """Send one request. `arguments` are those of the path behind the repository, `asked` those of the query."""
        path = self._path(operation, *arguments, **asked)
        return convert(self._client.call(operation.method, path, json=body), operation.answer)

    def _path(self, operation: Operation[Any, Any], *arguments: str, **asked: str | None) -> str:
        if self._deleted and not any(parameter.name == "deleted" for parameter in operation.parameters):
            # Without the parameter the server would answer for a repository that has the same name now.
            raise Conflict(f"a deleted repository has no {operation.id}", repository=self._repository)
        given = {name: text for name, text in {**asked, "deleted": self._deleted}.items() if text}
        path = path_to(operation, self._repository, *arguments)
        return f"{path}?{urlencode(given, quote_via=quote, safe='')}" if given else path


class RetryingCaller:
    """Repeat calls while the server is unavailable. `sleep` and `clock` (both in seconds) are for tests."""

    def __init__(
        self,
        caller: Caller,
        progress: Callable[[str], None],
        *,
        retry_for_s: float = RETRY_FOR_S,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._caller = caller
        self._progress = progress
        # A repeated step of a run is as safe as a second apply.
        self._patience_s = retry_for_s
        self._sleep = sleep
        self._clock = clock

    def call(self, method: str, path: str, *, json: object = None) -> object:
        """Make the call, and repeat it while the server is unavailable.

        Raises:
            Unavailable, OutcomeUnknown: the server did not answer for `retry_for_s`.
        """
        began_s, nap_s = self._clock(), 0.0
        while True:
            try:
                return self._caller.call(method, path, json=json)
            except (Unavailable, OutcomeUnknown) as error:
                left_s = began_s + self._patience_s - self._clock()
                if left_s <= 0 or not _may_repeat(error, method, path):
                    raise
                if not nap_s:
                    self._progress(f"the server does not answer ({error}): waiting for it, up to {left_s:.0f} s")
            nap_s = min(max(_NAP_MIN_S, 2 * nap_s), _NAP_MAX_S, left_s)
            self._sleep(nap_s)


def _may_repeat(error: Unavailable | OutcomeUnknown, method: str, path: str) -> bool:
    if isinstance(error, Unavailable):
        return True
    # With a status the server did answer. A start whose answer was lost is not repeated: it could make a second run.
    return "status" not in error.facts and (method == "GET" or not path.partition("?")[0].endswith(_STARTS))


def message_of(client: Caller, repository: str, commit: str) -> tuple[str, str]:
    """Return the first line of a commit's message, and its committer.

    Raises:
        Denied, NotFound: the caller may not read the commit, or it does not exist.
    """
    answer = convert(client.call("GET", path_to(history.GET_COMMIT, repository, commit)), _Commit)
    return next(iter(answer.message.splitlines()), ""), answer.committer


def convert(answer: object, type_: type[T]) -> T:
    """Convert a decoded answer to its record, or raise UnknownAnswer."""
    try:
        result: Any = msgspec.convert(answer, type_)
    except msgspec.ValidationError as error:
        raise UnknownAnswer(f"the server's answer is no {name_in_words(type_)}: {error}") from error
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


class _Commit(msgspec.Struct, frozen=True, kw_only=True):
    message: str
    committer: str = ""
