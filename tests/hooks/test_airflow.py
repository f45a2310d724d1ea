"""Airflow hooks: what is asked of a server of version 2 or 3, and which of its answers fail the hook."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from lakebed.hooks import HookFailed, HookOptions, airflow
from tests.serving import serving

EVENT = {"event_type": "pre-commit", "repository_id": "lake"}
RUNS = "/api/v1/dags/my%20dag/dagRuns"


class Airflow:
    """A server that answers requests by method and path, each time with the next of its answers."""

    def __init__(self, answers: dict[str, list[tuple[int, Any]]]) -> None:
        self.answers = answers
        self.asked: list[tuple[str, Any, str]] = []
        self.url = ""

    def trigger(self, **properties: Any) -> list[str]:
        lines: list[str] = []
        known = {"url": self.url, "dag_id": "my dag", "username": "me", "password": "pass"}
        airflow.trigger(
            known | properties, EVENT, options=HookOptions(loopback=True), log=lambda *line: lines.append(line[0])
        )
        return lines


@pytest.fixture
def server() -> Iterator[Airflow]:
    found = Airflow({})

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"] or 0))
            name = f"{self.command} {self.path}"
            found.asked.append((name, json.loads(body or b"null"), self.headers["authorization"] or ""))
            answers = found.answers.get(name) or [(404, {"detail": "no such page"})]
            status, answer = answers.pop(0) if len(answers) > 1 else answers[0]
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(answer).encode())

        def do_GET(self) -> None:
            self.answer()

        def do_POST(self) -> None:
            self.answer()

        def log_message(self, *args: object) -> None:
            pass

    with serving(HTTPServer(("127.0.0.1", 0), Handler)) as port:
        found.url = f"http://127.0.0.1:{port}"
        yield found


def test_a_dag_is_started_with_its_settings_and_the_event(server: Airflow) -> None:
    server.answers = {f"POST {RUNS}": [(200, {"dag_run_id": "r1", "state": "queued"})]}

    server.trigger(dag_conf={"a": 1})

    assert server.asked == [(f"POST {RUNS}", {"conf": {"a": 1, "lakeFS_event": EVENT}}, "Basic bWU6cGFzcw==")]


def test_a_server_without_version_1_gets_the_request_with_a_token(server: Airflow) -> None:
    runs = RUNS.replace("v1", "v2")
    server.answers = {
        "POST /auth/token": [(201, {"access_token": "t"})],
        f"POST {runs}": [(200, {"dag_run_id": "r1", "state": "queued"})],
    }

    server.trigger()

    name, body, authorization = server.asked[-1]
    assert (name, body["conf"], authorization) == (f"POST {runs}", {"lakeFS_event": EVENT}, "Bearer t")
    age = datetime.now(UTC) - datetime.fromisoformat(body["logical_date"])  # Without it, a DAG has no `ds`.
    assert timedelta(0) <= age < timedelta(minutes=10)


@pytest.mark.parametrize("state", ["success", "failed"])
def test_a_hook_that_waits_ends_as_the_dag_does(server: Airflow, state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(airflow, "POLL_S", 0.0)
    server.answers = {
        f"POST {RUNS}": [(200, {"dag_run_id": "r/1", "state": "queued"})],
        f"GET {RUNS}/r%2F1": [(200, {"state": "running"}), (200, {"state": state})],
    }

    if state == "success":
        assert server.trigger(wait_for_dag=True)[-1] == "state success"
    else:
        with pytest.raises(HookFailed, match="the DAG run r/1 failed"):
            server.trigger(wait_for_dag=True)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ((401, {"title": "Unauthorized"}), 'Airflow answered 401: {"title": "Unauthorized"}'),
        ((404, {"title": "DAG not found"}), "Airflow answered 404: .*DAG not found"),
        ((409, {}), "Airflow answered 409"),
    ],
)
def test_what_airflow_refuses_fails_the_hook_and_says_why(server: Airflow, answer: tuple[int, Any], words: str) -> None:
    server.answers = {f"POST {RUNS}": [answer]}

    with pytest.raises(HookFailed, match=words):
        server.trigger()


def test_a_dag_that_takes_too_long_fails_the_hook(server: Airflow, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(airflow, "POLL_S", 1000.0)
    server.answers = {f"POST {RUNS}": [(200, {"dag_run_id": "r1", "state": "queued"})]}

    with pytest.raises(HookFailed, match="is still queued at the timeout"):
        server.trigger(wait_for_dag=True)
