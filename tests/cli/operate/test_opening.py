"""`lakebed open`: a server and a link, in processes as a person starts them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from urllib.parse import urlsplit

import httpx
import msgspec

from lakebed.auth import SESSION_COOKIE
from lakebed.server.process.folder import noting_address, prepare_folder
from tests.cli.conftest import Shell

WAIT_S = 60


@contextmanager
def opening(folder: Path, *options: str, settings: Mapping[str, str] = MappingProxyType({})) -> Iterator[str]:
    """Run `lakebed open` over a folder, and yield the link that it prints."""
    command = [sys.executable, "-m", "lakebed", "open", str(folder), "--output", "json", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, **settings})
    assert process.stdout is not None
    try:
        text = ""
        for line in process.stdout:
            text += line
            if line == "}\n":
                break
        yield msgspec.json.decode(text, type=dict[str, str])["link"]
    finally:
        process.terminate()
        process.stdout.close()
        assert process.wait(WAIT_S) == 0


def set_up(url: str, user: str = "esti") -> Mapping[str, str]:
    answer = httpx.post(f"{url}/api/v1/setup_lakefs", json={"username": user}, trust_env=False)
    return {name: str(value) for name, value in answer.json().items()}


def get(link: str) -> httpx.Response:
    headers = {"accept": "text/html", "sec-fetch-site": "none"}
    return httpx.get(link, headers=headers, trust_env=False)


def test_a_folder_is_opened_or_its_server_found_and_its_first_user_is_logged_in_once(
    tmp_path: Path, shell: Shell
) -> None:
    lake, seen, other = tmp_path / "lake", tmp_path / "seen", tmp_path / "other"
    browser = tmp_path / "browser"
    # As a browser does: it gets a file, whose name says nothing, and whose contents lead on.
    browser.write_text(
        f"""#!/bin/sh\necho "$1" > {seen}.name; cp "${{1#file://}}" {seen}.part; mv {seen}.part {seen}\n"""
    )
    browser.chmod(0o700)
    lake.mkdir()
    prepare_folder(other)
    with opening(lake, "--no-browser") as new:
        assert get(new).headers["location"].startswith("./login")
        pair = set_up(new.rstrip("/"))
    with opening(lake, settings={"BROWSER": str(browser)}) as link:
        deadline = time.monotonic() + WAIT_S
        while not seen.exists():
            assert time.monotonic() < deadline, "no browser was started"
            time.sleep(0.05)
        opened, again = get(link), get(link)
        home = "://".join(urlsplit(link)[:2])
        made = shell(
            "open",
            "--no-browser",
            "--endpoint",
            home,
            LAKEBED_ACCESS_KEY_ID=pair["access_key_id"],
            LAKEBED_SECRET_ACCESS_KEY=pair["secret_access_key"],
        )
        of_server = get(made.out.split()[-1])
        beside = shell("open", str(lake), "--no-browser", "-o", "json")
        by_second_link = get(beside.json["link"])
        elsewhere = shell("open", str(lake), "--no-browser", "--port", "1")
        # The server of `other` noted this address: it is in a container, and another server listens there.
        with noting_address(other, home, "0123"), opening(other, "--no-browser") as own:
            listened = shell("open", str(other), "--no-browser", "-o", "json")

    secret = re.findall("ticket=(.+)", link)[0]
    assert secret in seen.read_text()
    assert secret not in Path(f"{seen}.name").read_text()
    assert not Path(Path(f"{seen}.name").read_text().strip().removeprefix("file://")).exists()
    assert (opened.status_code, SESSION_COOKIE in opened.headers["set-cookie"]) == (303, True)
    assert again.status_code == 401
    assert (of_server.status_code, of_server.headers["location"]) == (303, "./")
    assert beside.json["endpoint"] == home
    assert (by_second_link.status_code, by_second_link.headers["location"]) == (303, "./")
    assert not own.startswith(home)
    assert own.startswith(listened.json["endpoint"])
    assert (elsewhere.code, f"served at {home} already" in elsewhere.err) == (2, True)


def test_a_folder_of_another_program_and_an_unknown_user_are_refused(tmp_path: Path, shell: Shell) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "file").write_text("x")
    lake = tmp_path / "lake"
    lake.mkdir()
    early = shell("open", str(lake), "--no-browser", "--user", "maia")
    with opening(lake, "--no-browser") as new:
        set_up(new.rstrip("/"))

    strange = shell("open", str(other), "--no-browser")
    unknown = shell("open", str(lake), "--no-browser", "--user", "maia")

    assert (strange.code, "not a Lakebed data folder" in strange.err) == (2, True)
    assert (unknown.code, "maia" in unknown.err) == (3, True)
    assert (early.code, "no user yet" in early.err) == (3, True)
    assert [file.name for file in other.iterdir()] == ["file"]


def test_a_mistyped_folder_is_not_made(tmp_path: Path, shell: Shell) -> None:
    mistyped = tmp_path / "laek"

    outcome = shell("open", str(mistyped), "--no-browser")

    assert (outcome.code, f"`mkdir {mistyped}`" in outcome.err, mistyped.exists()) == (3, True, False)
