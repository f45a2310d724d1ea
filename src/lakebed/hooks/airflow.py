"""Airflow hooks: start a run of a DAG through Airflow's REST API, and wait for its end if the action file asks for it.

The DAG gets `dag_conf`, and the event under `lakeFS_event`. A server of Airflow that shows no `/api/v1` (from 3.0 on)
gets the request at `/api/v2`, with a token that it gives for the user's name and password.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote

import msgspec

from .actions import duration_s
from .options import TIMEOUT_S, TIMEOUT_S_MAX, HookFailed, HookOptions, Log
from .webhook import Answer, request

EVENT: Final = "lakeFS_event"
"""The name under which DAGs look for the event."""
POLL_S: Final = 1.0


def trigger(properties: Mapping[str, Any], event: Mapping[str, Any], *, options: HookOptions, log: Log) -> None:
    """Start a DAG run. With `wait_for_dag`, wait until it ended. Blocks; `properties` have their secrets.

    Raises:
        HookFailed: Airflow refused or did not answer, or the DAG run that was waited for failed or took too long.
    """
    until_s = time.monotonic() + min(duration_s(properties.get("timeout", TIMEOUT_S)), TIMEOUT_S_MAX)
    conf = properties.get("dag_conf") or {}
    if not isinstance(conf, dict):
        raise HookFailed("dag_conf is not a mapping")
    airflow = _Airflow(properties, options, until_s)
    run = airflow.start({**conf, EVENT: event}, log)
    state = str(run.get("state"))
    log(f"DAG run {run.get('dag_run_id')}: {state}")
    while properties.get("wait_for_dag") is True and state != "success":
        if state == "failed":
            raise HookFailed(f"the DAG run {run.get('dag_run_id')} failed")
        if time.monotonic() + POLL_S >= until_s:
            raise HookFailed(f"the DAG run {run.get('dag_run_id')} is still {state} at the timeout")
        time.sleep(POLL_S)
        state = airflow.state(str(run.get("dag_run_id")))
        log(f"state {state}")


class _Airflow:
    def __init__(self, properties: Mapping[str, Any], options: HookOptions, until_s: float) -> None:
        self._url = str(properties["url"]).rstrip("/")
        self._user, self._password = str(properties["username"]), str(properties["password"])
        self._runs = f"dags/{quote(str(properties['dag_id']), safe='')}/dagRuns"
        self._options = options
        self._until_s = until_s
        basic = base64.b64encode(f"{self._user}:{self._password}".encode()).decode()
        self._version, self._authorization = "v1", f"Basic {basic}"

    def start(self, conf: Mapping[str, Any], log: Log) -> Mapping[str, Any]:
        log(f"POST {self._url}/api/{self._version}/{self._runs}")
        answer = self._send("POST", self._runs, {"conf": conf})
        if answer.status in {404, 405} and self._log_in():
            log(f"POST {self._url}/api/{self._version}/{self._runs}")
            # Version 2 refuses a request that leaves out the date, and with null a DAG has no `ds`. Version 1 took now.
            date = datetime.now(UTC).isoformat()
            answer = self._send("POST", self._runs, {"conf": conf, "logical_date": date})
        return _body(answer)

    def state(self, run_id: str) -> str:
        return str(_body(self._send("GET", f"{self._runs}/{quote(run_id, safe='')}")).get("state"))

    def _log_in(self) -> bool:
        """Get a token for version 2 of the API. Return False if this server gives none: it speaks version 1."""
        answer = self._request(
            "POST", f"{self._url}/auth/token", {"username": self._user, "password": self._password}, {}
        )
        if not 200 <= answer.status < 300:
            return False
        self._version, self._authorization = "v2", f"Bearer {_body(answer).get('access_token')}"
        return True

    def _send(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Answer:
        url = f"{self._url}/api/{self._version}/{path}"
        return self._request(method, url, body, {"authorization": self._authorization})

    def _request(self, method: str, url: str, body: Mapping[str, Any] | None, headers: Mapping[str, str]) -> Answer:
        # Sent once: a second POST would start a second run.
        return request(
            method,
            url,
            {"content-type": "application/json", **headers},
            b"" if body is None else msgspec.json.encode(body),
            timeout_s=self._until_s - time.monotonic(),
            options=self._options,
        )


def _body(answer: Answer) -> Mapping[str, Any]:
    if not 200 <= answer.status < 300:
        raise HookFailed(f"Airflow answered {answer.reason}")
    try:
        body = msgspec.json.decode(answer.body)
    except ValueError as error:
        raise HookFailed(f"Airflow answered no JSON: {error}") from error
    return body if isinstance(body, dict) else {}
