"""Call the live side over HTTP: `lakebed.gc.messages.Requests`, one route for each method (gc/messages/calls.py).

A call blocks: a collection makes one call at a time, and has nothing else to run meanwhile. So no method of
`HttpRequests` ever suspends, and `finish` runs a coroutine that awaits only these without an event loop.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from lakebed.base import Conflict, OutcomeUnknown, Unavailable
from lakebed.client import path_to
from lakebed.gc.messages import (
    AdoptedSlices,
    Adopting,
    Apply,
    BrokenTables,
    CertificateHead,
    Defer,
    DisagreementPage,
    End,
    Expire,
    FindStaged,
    FindTables,
    LeftoversRetired,
    Mark,
    MissingCommits,
    NotePlanned,
    PlannedBy,
    Planning,
    PrepareCommits,
    PreparedCommits,
    Purge,
    Purging,
    Question,
    ReadUncommitted,
    RecheckInputs,
    Restore,
    RestorePage,
    RetireLeftovers,
    RulesVersion,
    RunList,
    RunView,
    StagedPage,
    StartedRun,
    StartRun,
    Sweep,
    UncommittedPage,
    Undo,
    Undone,
    UnknownAnswer,
    UnlistedSlices,
    Unstage,
    Unstaged,
    WhyPage,
)
from lakebed.gc.rules import Holds
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


class HttpRequests:
    """Call the collection routes of one repository. Every method may raise the client's errors and UnknownAnswer.

    `deleted` is the uid of a deleted repository. ONLY selects it by name when the name is unique.
    """

    def __init__(self, client: Caller, repository: str, *, deleted: str = "") -> None:
        self._client = client
        self._repository = repository
        self._deleted = deleted

    async def namespace(self) -> str:
        if self._deleted:
            # GET_REPOSITORY answers only for repositories in use.
            return (await self.planning()).namespace
        path = path_to(repositories.GET_REPOSITORY, self._repository)
        return convert(self._client.call("GET", path), _Repository).storage_namespace

    async def planning(self) -> Planning:
        return self._ask(collectors.CHECK_GC_PLANNING)

    async def purging(self) -> Purging:
        return self._ask(collectors.CHECK_GC_PURGING)

    async def adopting(self) -> Adopting:
        return self._ask(collectors.CHOOSE_GC_INSTALLATION)

    async def find_slices(self) -> UnlistedSlices:
        return self._ask(collectors.FIND_GC_SLICES)

    async def adopt_slices(self) -> AdoptedSlices:
        return self._ask(collectors.ADOPT_GC_SLICES)

    async def find_missing(self, token: str | None = None) -> MissingCommits:
        return self._ask_page(collectors.FIND_GC_MISSING, continuation_token=token)

    async def mark_missing(self, token: str | None = None) -> MissingCommits:
        return self._ask_page(collectors.MARK_GC_MISSING, continuation_token=token)

    async def start(self, body: StartRun) -> StartedRun:
        return self._ask(collectors.START_GC_RUN, body=body)

    async def read_uncommitted(self, run_id: str, body: ReadUncommitted) -> UncommittedPage:
        return self._ask(collectors.READ_GC_UNCOMMITTED, run_id, body=body)

    async def prepare_commits(self, run_id: str, body: PrepareCommits | None = None) -> PreparedCommits:
        return self._ask(collectors.READ_GC_COMMITS, run_id, body=body)

    async def mark(self, run_id: str, body: Mark) -> RunView:
        return self._ask(collectors.MARK_GC_RUN, run_id, body=body)

    async def note_planned(self, run_id: str, body: NotePlanned) -> PlannedBy:
        return self._ask(collectors.NOTE_GC_PLAN, run_id, body=body)

    async def find_tables(self, run_id: str, body: FindTables) -> BrokenTables:
        return self._ask(collectors.FIND_BROKEN_TABLES, run_id, body=body)

    async def apply(self, run_id: str, body: Apply) -> RunView:
        return self._ask(collectors.APPLY_GC_RUN, run_id, body=body)

    async def expire(self, run_id: str, body: Expire) -> RecheckInputs:
        return self._ask(collectors.EXPIRE_GC_COMMITS, run_id, body=body)

    async def find_staged(self, run_id: str, body: FindStaged) -> StagedPage:
        return self._ask(collectors.FIND_GC_STAGED, run_id, body=body)

    async def unstage(self, run_id: str, body: Unstage) -> Unstaged:
        return self._ask(collectors.UNSTAGE_GC_ENTRIES, run_id, body=body)

    async def sign_certificate(self, run_id: str, body: CertificateHead) -> CertificateHead:
        return self._ask(collectors.SIGN_GC_CERTIFICATE, run_id, body=body)

    async def check_certificate(self, run_id: str, body: CertificateHead) -> CertificateHead:
        return self._ask(collectors.CHECK_GC_CERTIFICATE, run_id, body=body)

    async def retire(self, run_id: str, body: RetireLeftovers) -> LeftoversRetired:
        return self._ask(collectors.RETIRE_GC_IDS, run_id, body=body)

    async def sweep(self, run_id: str, body: Sweep) -> RunView:
        return self._ask(collectors.SWEEP_GC_RUN, run_id, body=body)

    async def defer(self, run_id: str, body: Defer) -> RunView:
        return self._ask(collectors.DEFER_GC_RUN, run_id, body=body)

    async def purge(self, run_id: str, body: Purge) -> RecheckInputs:
        return self._ask(collectors.PURGE_GC_RUN, run_id, body=body)

    async def undo(self, run_id: str, body: Undo) -> Undone:
        return self._ask(collectors.UNDO_GC_RUN, run_id, body=body)

    async def end(self, run_id: str, body: End) -> RunView:
        return self._ask(collectors.END_GC_RUN, run_id, body=body)

    async def abandon(self, run_id: str) -> RunView:
        return self._ask(collectors.ABANDON_GC_RUN, run_id)

    async def run(self, run_id: str) -> RunView:
        return self._ask(collectors.GET_GC_RUN, run_id)

    async def runs(self, *, forgotten: bool = False) -> RunList:
        return self._ask_page(collectors.LIST_GC_RUNS, forgotten="true" if forgotten else None)

    async def rules_in_force(self) -> RulesVersion:
        return self._ask(collectors.GET_FULL_GC_RULES)

    async def holds_in_force(self) -> Holds:
        return self._ask(holds.GET_LEGAL_HOLDS)

    async def restore(self, body: Restore) -> RestorePage:
        return self._ask(collectors.RESTORE_GC_OBJECTS, body=body)

    async def compare_ledger(self, run_id: str = "", token: str | None = None) -> DisagreementPage:
        return self._ask_page(collectors.COMPARE_GC_LEDGER, run_id=run_id, continuation_token=token)

    async def why_page(self, question: Question, token: str | None = None) -> WhyPage:
        return self._ask_page(collectors.WHY_GC_OBJECT, **question._asdict(), continuation_token=token)

    def _ask_page(self, operation: Operation[Any, A], **asked: str | None) -> A:
        path = self._path(operation, **asked)
        return convert(self._client.call(operation.method, path), operation.answer)

    def _ask(self, operation: Operation[B, A], *arguments: str, body: B | None = None) -> A:
        path = self._path(operation, *arguments)
        return convert(self._client.call(operation.method, path, json=body), operation.answer)

    def _path(self, operation: Operation[Any, Any], *arguments: str, **asked: str | None) -> str:
        if self._deleted and not any(one.name == "deleted" for one in operation.parameters):
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
    """Convert a decoded answer to its record.

    Raises:
        UnknownAnswer: the answer has another form.
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


class _Commit(msgspec.Struct, frozen=True, kw_only=True):
    message: str
    committer: str = ""
