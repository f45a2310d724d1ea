"""Waiting for a server that is away."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from lakebed.base import Conflict, LakebedError, OutcomeUnknown, Unavailable
from lakebed.gc.api.http_requests import RetryingCaller

SWEEPING = "/api/v1/repositories/lake/gc/runs/r1/sweeping"
START = "/api/v1/repositories/lake/gc/runs"


class Server:
    """Fails so often, then answers."""

    def __init__(self, failures: Sequence[LakebedError]) -> None:
        self.failures = list(failures)
        self.now_s = 0.0

    def call(self, method: str, path: str, *, json: object = None) -> object:
        if self.failures:
            raise self.failures.pop(0)
        return [method, path, json]

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


def patient(server: Server, said: list[str], *, retry_for_s: float = 120.0) -> RetryingCaller:
    return RetryingCaller(server, said.append, retry_for_s=retry_for_s, sleep=server.sleep, clock=lambda: server.now_s)


def test_a_server_that_is_restarted_is_waited_for_and_that_is_said_once() -> None:
    server, said = Server([Unavailable("cannot reach it")] * 15), list[str]()

    assert patient(server, said).call("POST", SWEEPING, json={"a": 1}) == ["POST", SWEEPING, {"a": 1}]
    assert server.now_s > 60
    assert said == ["the server does not answer (cannot reach it): waiting for it, up to 120 s"]


def test_a_step_whose_answer_was_lost_is_made_again() -> None:
    assert patient(Server([OutcomeUnknown("lost")]), []).call("POST", SWEEPING)


def test_a_wait_ends() -> None:
    server = Server([Unavailable("gone")] * 1000)

    with pytest.raises(Unavailable):
        patient(server, []).call("GET", START)

    assert server.now_s == pytest.approx(120)


@pytest.mark.parametrize(
    ("error", "method", "path"),
    [
        (OutcomeUnknown("lost"), "POST", START),
        (OutcomeUnknown("a fault", status=500), "POST", SWEEPING),
        (Conflict("no"), "POST", SWEEPING),
    ],
)
def test_what_may_not_be_repeated_and_what_is_an_answer_is_told_at_once(
    error: LakebedError, method: str, path: str
) -> None:
    server, said = Server([error]), list[str]()

    with pytest.raises(type(error)):
        patient(server, said).call(method, path)

    assert (server.now_s, said) == (0, [])
