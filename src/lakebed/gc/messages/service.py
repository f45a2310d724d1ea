"""Declare a collector's requests to the live side: the port `Requests`, and `Service` over it.

The live side makes every decision that races with writers: closed slices, staged entries, whether a run may continue.
`Requests` has two implementations: `lakebed.gc.live.CollectionService` in this process, and the collectors'
`HttpRequests`. `Service` adds the paging and the checks between pages. A collector accepts only a complete answer:
pages must add up to their final manifest.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from msgspec.structs import replace

from lakebed.base import Conflict, Corrupt, NotFound, RunKind
from lakebed.gc.rules import Holds, Selection

from . import calls
from .erasures import UNSTAGED_AT_ONCE, FindStaged, StagedEntry, StagedPage, Unstage, Unstaged
from .restoring import Restore, RestorePage, Undo, Undone
from .run.certificates import Certificate, CertificateHead, head_of
from .run.ledger import DisagreementPage
from .run.plans import BrokenTable, BrokenTables, FindTables
from .run.tables import BadInput, Manifest, Part
from .settings import RulesVersion
from .why import Question, WhyAnswer, WhyPage, WhyProgress

__all__ = ["Requests", "RunAbandoned", "Service", "UnknownAnswer"]

A = TypeVar("A")
P = ParamSpec("P")


class RunAbandoned(Conflict):
    """The run was ended while it worked: discard its results, and delete nothing."""


class UnknownAnswer(Corrupt):
    """The live side's answer is not the record that this release expects."""


class Requests(Protocol):
    """One repository's collections: one method for each request (docs/formats/gc-run.md lists the routes).

    All requests but `start` may be repeated after a lost answer; a repeated `start` only begins another run. Errors
    keep their families (`lakebed.base.errors`) over HTTP.
    """

    async def namespace(self) -> str: ...
    async def planning(self) -> calls.Planning: ...
    async def purging(self) -> calls.Purging: ...
    async def adopting(self) -> calls.Adopting: ...
    async def find_slices(self) -> calls.UnlistedSlices: ...
    async def adopt_slices(self) -> calls.AdoptedSlices: ...
    async def find_missing(self, token: str | None = None) -> calls.MissingCommits: ...
    async def mark_missing(self, token: str | None = None) -> calls.MissingCommits: ...
    async def start(self, body: calls.StartRun) -> calls.StartedRun: ...
    async def read_uncommitted(self, run_id: str, body: calls.ReadUncommitted) -> calls.UncommittedPage: ...
    async def prepare_commits(self, run_id: str, body: calls.PrepareCommits | None = None) -> calls.PreparedCommits: ...
    async def mark(self, run_id: str, body: calls.Mark) -> calls.RunView: ...
    async def note_planned(self, run_id: str, body: calls.NotePlanned) -> calls.PlannedBy: ...
    async def find_tables(self, run_id: str, body: FindTables) -> BrokenTables: ...
    async def apply(self, run_id: str, body: calls.Apply) -> calls.RunView: ...
    async def expire(self, run_id: str, body: calls.Expire) -> calls.RecheckInputs: ...
    async def find_staged(self, run_id: str, body: FindStaged) -> StagedPage: ...
    async def unstage(self, run_id: str, body: Unstage) -> Unstaged: ...
    async def sign_certificate(self, run_id: str, body: CertificateHead) -> CertificateHead: ...
    async def check_certificate(self, run_id: str, body: CertificateHead) -> CertificateHead: ...
    async def retire(self, run_id: str, body: calls.RetireLeftovers) -> calls.LeftoversRetired: ...
    async def sweep(self, run_id: str, body: calls.Sweep) -> calls.RunView: ...
    async def defer(self, run_id: str, body: calls.Defer) -> calls.RunView: ...
    async def purge(self, run_id: str, body: calls.Purge) -> calls.RecheckInputs: ...
    async def undo(self, run_id: str, body: Undo) -> Undone: ...
    async def end(self, run_id: str, body: calls.End) -> calls.RunView: ...
    async def abandon(self, run_id: str) -> calls.RunView: ...
    async def run(self, run_id: str) -> calls.RunView: ...
    async def runs(self, *, forgotten: bool = False) -> calls.RunList: ...
    async def rules_in_force(self) -> RulesVersion: ...
    async def holds_in_force(self) -> Holds: ...
    async def restore(self, body: Restore) -> RestorePage: ...
    async def compare_ledger(self, run_id: str = "", token: str | None = None) -> DisagreementPage: ...
    async def why_page(self, question: Question, token: str | None = None) -> WhyPage: ...


def _sends(
    request: Callable[Concatenate[Requests, P], Coroutine[Any, Any, A]],
) -> Callable[Concatenate[Service, P], Coroutine[Any, Any, A]]:
    """Return the method of `Service` that makes this request, and nothing else."""

    def send(self: Service, /, *given: P.args, **named: P.kwargs) -> Coroutine[Any, Any, A]:
        answer: Coroutine[Any, Any, A] = getattr(self.requests, request.__name__)(*given, **named)
        return answer

    return send


class Service:
    """The live side of one repository, for a collection.

    Every method may raise the errors of `Requests`; over HTTP also the client's errors and UnknownAnswer.
    """

    def __init__(self, requests: Requests) -> None:
        self.requests = requests

    # A caller who may not is Denied, so call `planning` before any slow step of a plan, and `applying` before an apply
    # writes or deletes anything.
    namespace, planning, purging = _sends(Requests.namespace), _sends(Requests.planning), _sends(Requests.purging)
    applying, abandoned, run_list = _sends(Requests.apply), _sends(Requests.abandon), _sends(Requests.runs)
    rules, holds = _sends(Requests.rules_in_force), _sends(Requests.holds_in_force)
    find_slices, adopt_slices = _sends(Requests.find_slices), _sends(Requests.adopt_slices)
    adopting = _sends(Requests.adopting)

    async def start(self, kind: RunKind) -> calls.StartedRun:
        """Begin a run. A repeated call begins another run."""
        return await self.requests.start(calls.StartRun(kind=kind))

    async def uncommitted(self, run_id: str) -> Manifest:
        """Write every address that is staged, being uploaded or being copied into the run's folder.

        Raises:
            BadInput: the pages do not add up to the manifest.
        """
        parts: list[Part] = []
        token: str | None = None
        turns = _Turns("the uncommitted listing", run_id)
        while True:
            page = await self.requests.read_uncommitted(run_id, calls.ReadUncommitted(continuation_token=token))
            parts += page.parts
            token = turns.next(page.continuation_token)
            if token is None:
                return _complete(page.manifest, parts)

    async def commits(self, run_id: str) -> calls.PreparedCommits:
        """Write every commit and ref into the run's folder, and return the rules in force."""
        return await self.requests.prepare_commits(run_id)

    async def commits_for(self, run_id: str, kind: RunKind, *, for_good: bool = False) -> calls.PreparedCommits:
        """Answer as `commits` does, for a run of this kind.

        A kind that uses the lifecycle policy gets the policy in force instead of the rules. For metadata a commit is
        swept only after the readers' grace. With `for_good` it is swept only once no undo can bring it back.
        """
        return await self.requests.prepare_commits(run_id, calls.PrepareCommits(kind=kind, for_good=for_good))

    async def staged(
        self,
        run_id: str,
        selection: Selection,
        *,
        in_queue: bool = False,
        or_restored: bool = False,
        addresses: Sequence[str] = (),
    ) -> tuple[StagedEntry, ...]:
        """Return the selected entries that are staged on any branch, or those in the queue of hard delete.

        With `or_restored` also return every staged copy that a restore made. With `addresses` also return each entry
        that names one of them.
        """
        request = FindStaged(
            selection=selection, in_queue=in_queue, or_restored=or_restored, addresses=tuple(addresses)
        )
        return (await self._find_staged(run_id, request))[0]

    async def staged_and_others(
        self, run_id: str, selection: Selection
    ) -> tuple[tuple[StagedEntry, ...], Manifest | None]:
        """Return the selected staged entries, and the table of the objects that all other entries name.

        A server of an earlier release writes no table.
        """
        return await self._find_staged(run_id, FindStaged(selection=selection, with_others=True))

    async def _find_staged(self, run_id: str, request: FindStaged) -> tuple[tuple[StagedEntry, ...], Manifest | None]:
        found: dict[StagedEntry, None] = {}  # Drop repeats: a token that replaces another has its cells.
        turns = _Turns("the staged entries", run_id)
        while True:
            page = await self.requests.find_staged(run_id, request)
            found |= dict.fromkeys(page.entries)
            token = turns.next(page.continuation_token)
            if token is None:
                return tuple(found), page.others
            request = replace(request, continuation_token=token)

    async def unstage(self, run_id: str, entries: Sequence[StagedEntry], *, uid: str = "") -> int:
        """Delete these entries of the repository `uid` from their branches, and return the number deleted.

        Skip each entry whose cell has changed.
        """
        count = 0
        for start in range(0, len(entries), UNSTAGED_AT_ONCE):
            batch = tuple(entries[start : start + UNSTAGED_AT_ONCE])
            count += (await self.requests.unstage(run_id, Unstage(entries=batch, uid=uid))).count
        return count

    async def sign_certificate(self, made: Certificate) -> Certificate:
        """Have the server add the caller and the time, and sign.

        Raises:
            NotFound, Corrupt: the certificate disagrees with the records of its run. The message gives the difference.
        """
        head = await self.requests.sign_certificate(made.run_id, head_of(made))
        return replace(
            made, made_by=head.made_by, made_ms=head.made_ms, contents=head.contents, signature=head.signature
        )

    async def check_certificate(self, certificate: Certificate) -> None:
        """Succeed if the server signed this very certificate, and it agrees with the records of its run.

        Raises:
            NotFound, Corrupt: the signature or a record does not agree. The message gives the reason.
        """
        await self.requests.check_certificate(certificate.run_id, head_of(certificate))

    async def marked(self, run_id: str, plan: Manifest) -> calls.RunView:
        """Bind a marking run to its plan.

        Raises:
            RunAbandoned: the run no longer marks.
        """
        try:
            return await self.requests.mark(run_id, calls.Mark(plan=plan))
        except Conflict as error:
            raise RunAbandoned(f"run {run_id} was abandoned while it was marking: {error}", run_id=run_id) from error

    async def planned(self, run_id: str, kind: RunKind, plan: str) -> calls.PlannedBy:
        """Have the server record the author of the plan whose file has this SHA-256.

        Raises:
            Conflict: another plan of this run is recorded.
        """
        return await self.requests.note_planned(run_id, calls.NotePlanned(kind=kind, plan=plan))

    async def broken_tables(self, run_id: str, kind: RunKind, files: Manifest) -> tuple[BrokenTable, ...]:
        """Return the tables of branches and tags whose metadata reach one of these files (TABLE_FILES)."""
        return (await self.requests.find_tables(run_id, FindTables(kind=kind, files=files))).tables

    async def expire(self, run_id: str, request: calls.Expire) -> calls.RecheckInputs:
        """Publish the run, so that from now on no writer can name its commits. Return the last page's answer."""

        async def ask(token: str | None) -> calls.RecheckInputs:
            return await self.requests.expire(run_id, replace(request, continuation_token=token))

        return await _last_page("the recheck", run_id, ask)

    async def deferred(self, run_id: str, plan: Manifest, window: str, *, saved: str = "") -> calls.RunView:
        """Keep the objects of `plan` until the end of a window that starts now.

        Raises:
            RunAbandoned: the run may not delete any more, or its window is over and it deletes.
        """
        try:
            return await self.requests.defer(run_id, calls.Defer(plan=plan, window=window, saved=saved))
        except Conflict as error:
            raise RunAbandoned(f"run {run_id} cannot be deferred: {error}", run_id=run_id) from error

    async def undone(self, run_id: str, *, dry_run: bool = False) -> Undone:
        """Undo a deferred run, and remove its records. With `dry_run` only list the effect.

        Raises:
            Conflict: the run is not deferred, its purge began, or other runs rely on it.
        """
        undone = page = await self.requests.undo(run_id, Undo(dry_run=dry_run))
        while not page.is_done:
            page = await self.requests.undo(run_id, Undo())
        return replace(undone, is_done=True)

    async def purged(self, run_id: str) -> calls.RecheckInputs:
        """Let a deferred run delete, and return the inputs of its recheck. From now on the window cannot be made
        longer.

        Raises:
            Conflict: the window is not over.
        """

        async def ask(token: str | None) -> calls.RecheckInputs:
            return await self.requests.purge(run_id, calls.Purge(continuation_token=token))

        return await _last_page("the look before a purge", run_id, ask)

    async def retire(self, run_id: str, request: calls.RetireLeftovers) -> calls.LeftoversRetired:
        """Publish the files that a metadata run takes: from now on no writer uses one of their ids.

        Raises:
            RunAbandoned: the run is over, or another run took its plan.
        """
        try:
            return await self.requests.retire(run_id, request)
        except Conflict as error:
            raise RunAbandoned(f"run {run_id} was abandoned before its sweep: {error}", run_id=run_id) from error

    async def sweeping(self, run_id: str, plan: Manifest, commits: Manifest, *, uid: str = "") -> calls.RunView:
        """Let the run of the repository `uid` delete the objects of `plan`. `commits`: the table used for the recheck.

        Raises:
            RunAbandoned: the run may not sweep any more.
        """
        try:
            return await self.requests.sweep(run_id, calls.Sweep(plan=plan, commits=commits, uid=uid))
        except Conflict as error:
            raise RunAbandoned(f"run {run_id} was abandoned before its sweep: {error}", run_id=run_id) from error

    async def ended(self, run_id: str, plan: Manifest, *, saved: str = "") -> calls.RunView:
        """End the run after every object of this plan was deleted. `saved`: the digest of its saved state."""
        return await self.requests.end(run_id, calls.End(plan=plan.digest(), saved=saved))

    async def missing(self, *, marks: bool) -> calls.MissingCommits:
        """Find all commits whose trees lack files. With `marks` mark those that no ref names as gone."""
        ask = self.requests.mark_missing if marks else self.requests.find_missing
        page = marked = await ask()
        found = {commit.id: commit for commit in page.commits}
        while page.continuation_token is not None:
            page = await ask(page.continuation_token)
            # Each process of a server may search for itself. The process that finishes lists all commits it found. Of
            # several processes that mark, the first one marks.
            found |= {commit.id: commit for commit in page.commits}
            marked = marked if marked.run_id else page
        return replace(page, commits=tuple(found.values()), run_id=marked.run_id, marked=marked.marked)

    async def restore(self, request: Restore) -> AsyncIterator[RestorePage]:
        """Restore page by page, one request a page. The objects of a page are staged when it is yielded.

        Raises:
            NotFound: none of the objects can be restored. The message gives the reason.
            BadInput: the pages repeat in a circle.
        """
        turns = _Turns("the restore", request.run_id)
        while True:
            page = await self.requests.restore(request)
            yield page
            token = turns.next(page.continuation_token)
            if token is None:
                return
            request = replace(request, continuation_token=token)

    async def compared(self, run_id: str = "") -> AsyncIterator[DisagreementPage]:
        """Compare the ledger with plans and the store, page by page, for this run or for all runs.

        Raises:
            BadInput: a file of the ledger or a plan is damaged, or the pages repeat in a circle.
        """
        turns = _Turns("the comparison", run_id)
        token: str | None = None
        while True:
            page = await self.requests.compare_ledger(run_id, token)
            yield page
            token = turns.next(page.continuation_token)
            if token is None:
                return

    async def run(self, run_id: str) -> calls.RunView | None:
        """Return the run's record. None: a committed or metadata run was only planned, or there is no such run."""
        try:
            return await self.requests.run(run_id)
        except NotFound:
            return None

    async def runs(self) -> tuple[calls.RunView, ...]:
        """Return every run, newest first."""
        return (await self.requests.runs()).runs

    async def forgotten_runs(self) -> tuple[calls.RunView, ...]:
        """Return every run, and runs without a record that took objects which commits go on naming."""
        return (await self.requests.runs(forgotten=True)).runs

    async def why(self, question: Question, progress: Callable[[WhyProgress], None] = lambda _: None) -> WhyAnswer:
        """Find the reason that keeps an object, or the run that took it. Call `progress` after each page."""
        token: str | None = None
        while True:
            page = await self.requests.why_page(question, token)
            if page.answer is not None:
                return page.answer
            if page.continuation_token is None:
                raise UnknownAnswer("the server neither answered why, nor how to go on")
            if page.progress is not None:
                progress(page.progress)
            token = page.continuation_token


class _Turns:
    """Detect a circle in the continuation tokens of one listing, in constant memory.

    A page leads to the next, so a repeated token repeats without end. Remember one token at a time, each for twice as
    many pages as the one before: every circle meets a remembered token.
    """

    def __init__(self, what: str, run_id: str) -> None:
        self._what, self._run_id = what, run_id
        self._remembered: str | None = None
        self._turns, self._until = 0, 1

    def next(self, token: str | None) -> str | None:
        """Return the token, or raise BadInput if it was remembered."""
        if token is not None and token == self._remembered:
            raise BadInput(f"{self._what} does not end: a page came twice", run_id=self._run_id)
        self._turns += 1
        if self._turns == self._until:
            self._remembered, self._until = token, 2 * self._until
        return token


async def _last_page(
    what: str, run_id: str, ask: Callable[[str | None], Awaitable[calls.RecheckInputs]]
) -> calls.RecheckInputs:
    turns, token = _Turns(what, run_id), None
    while True:
        answer = await ask(token)
        token = turns.next(answer.continuation_token)
        if token is None:
            return answer


def _complete(manifest: Manifest | None, parts: list[Part]) -> Manifest:
    if manifest is None:
        raise BadInput("the uncommitted listing ended without a manifest", input="uncommitted")
    if sorted(manifest.parts, key=_name) != sorted(parts, key=_name):
        raise BadInput("the pages of the uncommitted listing do not add up to its manifest", input="uncommitted")
    return manifest


def _name(part: Part) -> str:
    return part.name
