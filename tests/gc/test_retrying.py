"""Wait for a server that is away."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from lakebed.base import Conflict, LakebedError, OutcomeUnknown, RunKind, RunState, Unavailable
from lakebed.gc.http_requests import HttpRequests, Waiting, finish
from lakebed.gc.protocol import StartRun

VIEW = {"run_id": "r1", "kind": "uncommitted", "state": "abandoned", "started_ms": 1}


class Server:
    """Fails so often, then answers."""

    def __init__(self, failures: Sequence[LakebedError]) -> None:
        self.failures = list(failures)
        self.now_s = 0.0
        self.said: list[str] = []

    def call(self, method: str, path: str, *, json: object = None) -> object:
        if self.failures:
            raise self.failures.pop(0)
        return VIEW

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def requests(self) -> HttpRequests:
        waiting = Waiting(progress=self.said.append, sleep=self.sleep, clock=lambda: self.now_s)
        return HttpRequests(self, "lake", waiting)


def start(requests: HttpRequests) -> None:
    finish(requests.start(StartRun(kind=RunKind.UNCOMMITTED)))


def abandon(requests: HttpRequests) -> None:
    finish(requests.abandon("r1"))


def test_a_server_that_is_restarted_is_waited_for_and_that_is_said_once() -> None:
    server = Server([Unavailable("cannot reach it")] * 15)

    assert finish(server.requests().abandon("r1")).state is RunState.ABANDONED
    assert server.now_s > 60
    assert server.said == ["the server does not answer (cannot reach it): waiting for it, up to 120 s"]


def test_a_step_whose_answer_was_lost_is_made_again() -> None:
    server = Server([OutcomeUnknown("lost")])

    assert finish(server.requests().abandon("r1")).run_id == "r1"
    assert server.failures == []


def test_a_wait_ends() -> None:
    server = Server([Unavailable("gone")] * 1000)

    with pytest.raises(Unavailable):
        finish(server.requests().runs())

    assert server.now_s == pytest.approx(120)


@pytest.mark.parametrize(
    ("error", "step"),
    [(OutcomeUnknown("lost"), start), (OutcomeUnknown("a fault", status=500), abandon), (Conflict("no"), abandon)],
)
def test_what_may_not_be_repeated_and_what_is_an_answer_is_told_at_once(
    error: LakebedError, step: Callable[[HttpRequests], None]
) -> None:
    server = Server([error])

    with pytest.raises(type(error)):
        step(server.requests())

    assert (server.now_s, server.said) == (0, [])
