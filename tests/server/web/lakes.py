"""Servers and lakes that a browser looks at: made through the API, and as old as a picture needs."""

from __future__ import annotations

import re
import subprocess
import sys
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
def serving(folder: Path) -> Iterator[str]:
    """Run a server over a new folder, and yield its address."""
    command = [sys.executable, "-m", "lakebed", "serve", "--data", f"{folder / 'lake'}", "--port", "0"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
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
