"""Servers and lakes that a browser looks at: made through the API, and as old as a picture needs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import httpx

WAIT_S: Final = 60
LONG: Final = ("n" * 200, "many words of " * 14 + "them")
"""Names of 200 characters: one that breaks nowhere, and one of words."""

HOOK: Final = """name: look
on: {post-commit: {}}
hooks: [{id: count, type: lua, properties: {script: 'print("counted")'}}]
"""


@dataclass(frozen=True)
class Server:
    home: str
    key: str
    secret: str

    def api(self) -> httpx.Client:
        return httpx.Client(
            base_url=f"{self.home}/api/v1", auth=(self.key, self.secret), timeout=WAIT_S, trust_env=False
        )


@contextmanager
def serving(folder: Path, *options: str) -> Iterator[str]:
    """Run a server over a new folder with these options, and yield its address."""
    command = [sys.executable, "-m", "lakebed", "serve", "--data", f"{folder / 'lake'}", "--port", "0", *options]
    # A collection of a few objects costs ten times as much with a Java to start.
    environment = {**os.environ, "LAKEBED_GC_ENGINE": "local"}
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment)
    assert process.stdout is not None
    try:
        address = re.search(r"http://\S+", process.stdout.readline())
        assert address, (folder / "log").read_text()
        yield address.group()
    finally:
        process.terminate()
        process.stdout.close()
        assert process.wait(WAIT_S) == 0


def set_up(home: str, user: str = "esti") -> Server:
    pair = httpx.post(f"{home}/api/v1/setup_lakefs", json={"username": user}, trust_env=False).json()
    return Server(home, pair["access_key_id"], pair["secret_access_key"])


def make_repository(server: Server, name: str, objects: dict[str, str] | None = None) -> str:
    """Make a repository with these objects in one commit, and return its page."""
    with server.api() as api:
        send(api, "/repositories", {"name": name, "storage_namespace": f"local://{name}"})
        if objects:
            commit(api, name, "the first load", objects)
    return f"/repositories/{name}"


def make_everything(server: Server, name: str) -> str:
    """Make a repository that has something to show on each of its pages, and return its page."""
    page = make_repository(server, name)
    with server.api() as api:
        upload(api, name, {"_lakefs_actions/look.yaml": HOOK, "README.md": "# The lake\n\nLoads of each *day*.\n"})
        for day in (90, 60):
            commit(api, name, f"load day {day}", {f"in/{n}.csv": f"a,b\n{day},{n}\n" for n in range(3)}, days=day)
        for kind, body in (
            ("branches", {"name": "side", "source": "main"}),
            ("branches", {"name": "gone", "source": "main"}),
            ("tags", {"id": "v1", "ref": "main"}),
            ("tags", {"id": "v0", "ref": "main"}),
            ("holds", {"name": "case-1", "globs": ["court/*"], "why": "the court asks"}),
        ):
            send(api, f"{page}/{kind}", body)
        commit(api, name, "mend it", {"in/0.csv": "mended", "new.csv": "x"}, branch="side")
        commit(api, name, "another hand", {"in/0.csv": "other"})
        upload(api, name, {"loose.csv": "x"})
        send(api, f"{page}/pulls", {"title": "Mended", "source_branch": "side", "destination_branch": "main"})
        check(api.delete(f"{page}/branches/gone"))
        check(api.delete(f"{page}/tags/v0"))
        send(api, f"{page}/sandboxes", {"source": "main", "ttl": "2d", "name": "kim"})
        paths = {"raw": {"prefix": "raw/", "period": "90d"}, "in": {"prefix": "in/", "period": "20d"}}
        policy = {"rules": paths, "branches": {"tmp-*": {"idle": "30d"}}}
        check(api.put(f"{page}/lifecycle/policy", json={"policy": policy}, params={"if_version": 0}))
        send(api, f"{page}/event_subscriptions", {"target": "http://127.0.0.1:1/", "after": 0})
        rules = {"default": "30d", "branches": [{"pattern": "side", "period": "7d"}]}
        check(api.put(f"{page}/gc/rules/full", params={"if_version": "0"}, json=rules))
        run_job(api, name, {"action": "plan", "kinds": ["committed"]})
        run_job(api, name, {"action": "simulate"})
        selection = {"paths": ["in/1.csv", "in/none.csv"]}
        run_job(api, name, {"action": "plan-erasure", "selection": selection, "why": "request 12"})
        run = api.get(f"{page}/gc/plans", params={"kind": "erasure"}).json()["plans"][0]["run_id"]
        run_job(api, name, {"action": "erase", "run_id": run})
        catalog = f"{server.home}/iceberg/v1/{name}.main/namespaces"
        check(api.post(catalog, json={"namespace": ["sales"]}))
        field = {"id": 1, "name": "amount", "required": True, "type": "long", "doc": "in cents"}
        table = {"name": "orders", "schema": {"type": "struct", "fields": [field]}, "properties": {"team": "x"}}
        check(api.post(f"{catalog}/sales/tables", json=table))
        make_repository(server, f"old-{name}")
        check(api.delete(f"/repositories/old-{name}"))
    return page


def run_job(api: httpx.Client, name: str, request: object) -> None:
    """Let the server collect, and wait for the end."""
    send(api, f"/repositories/{name}/gc/jobs", {"request": request})
    wait_for_jobs(api, name)


def wait_for_jobs(api: httpx.Client, name: str) -> None:
    while any(job["state"] == "running" for job in api.get(f"/repositories/{name}/gc/jobs").json()["jobs"]):
        time.sleep(0.1)


def commit(
    api: httpx.Client, name: str, message: str, objects: dict[str, str], *, branch: str = "main", days: int = 0
) -> None:
    """Commit objects, as if that was some days ago."""
    upload(api, name, objects, branch=branch)
    date = int((datetime.now(UTC) - timedelta(days=days)).timestamp())
    send(api, f"/repositories/{name}/branches/{branch}/commits", {"message": message, "date": date})


def upload(api: httpx.Client, name: str, objects: dict[str, str], *, branch: str = "main") -> None:
    for path, text in objects.items():
        url = f"/repositories/{name}/branches/{branch}/objects"
        check(api.post(url, params={"path": path}, content=text.encode()))


def send(api: httpx.Client, path: str, body: object) -> None:
    check(api.post(path, json=body))


def check(answer: httpx.Response) -> None:
    assert answer.is_success, answer.text


def make_long_names(server: Server, name: str) -> str:
    """Make a repository in which each name has 200 characters, and return its page."""
    word, words = LONG
    page = make_repository(server, name)
    with server.api() as api:
        commit(api, name, f"{words}\n\n{word}", {f"{words}/{word}.csv": f"{word},{words}\n" * 5, word: "x"})
        send(api, f"{page}/branches", {"name": word, "source": "main"})
        send(api, f"{page}/tags", {"id": "t" * len(word), "ref": "main"})
        upload(api, name, {words: "x"}, branch=word)
        pull = {"title": words, "description": word, "source_branch": word, "destination_branch": "main"}
        send(api, f"{page}/pulls", pull)
    return page
