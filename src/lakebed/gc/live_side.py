"""`Service` over HTTP for callers that do not await: the same names, each of which blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from lakebed.client import path_to
from lakebed.gc.protocol import (
    Adopting,
    Apply,
    Expire,
    LeftoversRetired,
    Manifest,
    Planning,
    PreparedCommits,
    Question,
    RecheckInputs,
    Restore,
    RestorePage,
    RetireLeftovers,
    RulesVersion,
    RunAbandoned,
    RunKind,
    RunView,
    Service,
    StartedRun,
    UnknownAnswer,
    WhyAnswer,
    WhyProgress,
)
from lakebed.operations import history

from .http_requests import Caller, HttpRequests, convert, finish

__all__ = ["Caller", "LiveSide", "RunAbandoned", "UnknownAnswer"]


class LiveSide:
    def __init__(self, client: Caller, repository: str, service: Service | None = None) -> None:
        self.repository = repository
        self.service = service or Service(HttpRequests(client, repository))
        self._client = client

    def message_of(self, commit: str) -> str:
        """Return the first line of a commit's message.

        Raises:
            Denied, NotFound: the caller may not read it, or there is no such commit.
        """
        answer = convert(self._client.call("GET", path_to(history.GET_COMMIT, self.repository, commit)), _Commit)
        return next(iter(answer.message.splitlines()), "")

    def namespace(self) -> str:
        return finish(self.service.namespace())

    def planning(self) -> Planning:
        return finish(self.service.planning())

    def start(self, kind: RunKind) -> StartedRun:
        return finish(self.service.start(kind))

    def uncommitted(self, run_id: str) -> Manifest:
        return finish(self.service.uncommitted(run_id))

    def commits(self, run_id: str) -> PreparedCommits:
        return finish(self.service.commits(run_id))

    def commits_for_metadata(self, run_id: str) -> PreparedCommits:
        return finish(self.service.commits_for_metadata(run_id))

    def retire(self, run_id: str, request: RetireLeftovers) -> LeftoversRetired:
        return finish(self.service.retire(run_id, request))

    def marked(self, run_id: str, plan: Manifest) -> RunView:
        return finish(self.service.marked(run_id, plan))

    def applying(self, run_id: str, request: Apply) -> RunView:
        return finish(self.service.applying(run_id, request))

    def purging(self) -> str:
        return finish(self.service.purging())

    def expire(self, run_id: str, request: Expire) -> RecheckInputs:
        return finish(self.service.expire(run_id, request))

    def sweeping(self, run_id: str, plan: Manifest, commits: Manifest) -> RunView:
        return finish(self.service.sweeping(run_id, plan, commits))

    def ended(self, run_id: str, plan: Manifest) -> RunView:
        return finish(self.service.ended(run_id, plan))

    def abandoned(self, run_id: str) -> RunView:
        return finish(self.service.abandoned(run_id))

    def adopting(self) -> Adopting:
        return finish(self.service.adopting())

    def restore(self, request: Restore) -> Iterator[RestorePage]:
        pages = self.service.restore(request)
        while (page := finish(anext(pages, None))) is not None:
            yield page

    def run(self, run_id: str) -> RunView | None:
        return finish(self.service.run(run_id))

    def runs(self) -> tuple[RunView, ...]:
        return finish(self.service.runs())

    def rules(self) -> RulesVersion:
        return finish(self.service.rules())

    def why(
        self,
        *,
        address: str = "",
        ref: str = "",
        path: str = "",
        progress: Callable[[WhyProgress], None] = lambda _: None,
    ) -> WhyAnswer:
        return finish(self.service.why(Question(address=address, ref=ref, path=path), progress))


class _Commit(msgspec.Struct, frozen=True, kw_only=True):
    message: str
