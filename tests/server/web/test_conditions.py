"""The page where not all is as usual: without JavaScript, by keyboard alone, behind a proxy, without its database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import pytest

from lakebed.testing.contracts.network import held_port
from tests.kv.servers import Server as Program
from tests.kv.servers import program, redis, running
from tests.server.web.chromium import ENTER, Chromium, is_installed, log_in, log_out
from tests.server.web.lakes import Server, commit, make_repository, send, serving, set_up, wait_for_jobs

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not is_installed(), reason="no Chromium with its driver is installed"),
]

AWAY: Final = "Not available now"
PROXY: Final = """
defaults
    mode http
    timeout connect 60s
    timeout client 600s
    timeout server 600s
    option forwardfor

frontend site
    bind 127.0.0.1:{port}
    http-request redirect location /data/lake/ code 301 if {{ path /data/lake }}
    use_backend lakebed if {{ path_beg /data/lake/ }}

backend lakebed
    http-request replace-path /data/lake(/.*) \\1
    server one {server}
"""


def test_without_javascript_pages_are_read_and_forms_work(browser: Chromium, server: Server, tmp_path: Path) -> None:
    page = make_repository(server, "plain", {"a.csv": "a,b\n1,2\n"})
    (tmp_path / "more.csv").write_text("c\n3\n")
    browser.command("Emulation.setScriptExecutionDisabled", {"value": True})

    browser.open("/")
    browser.choose("Colours", "Dark")
    browser.press("Set")
    browser.find("//html[@data-colours='dark']")
    browser.follow("plain")
    browser.follow("Objects")
    browser.follow("a.csv")
    browser.see("A preview needs JavaScript.")
    browser.follow("Objects")
    browser.give_file(tmp_path / "more.csv")
    browser.press("Upload")
    browser.see("Uploaded more.csv.")
    browser.follow("Uncommitted")
    browser.unfold("Discard all changes")
    browser.enter("Type", "main")
    browser.press("Discard all changes")
    browser.see("Everything on main is committed.")
    browser.follow("Branches")
    browser.fill(Name="short")
    browser.press("Create")
    browser.see("Created the branch short.")
    browser.open(f"{page}/tags")
    browser.fill(Name="v1")
    browser.press("Create")
    browser.see("v1")
    browser.unfold("Delete")
    browser.enter("Type", "v1")
    browser.press("Delete")
    browser.press("Undelete v1")
    browser.see("v1")
    log_out(browser)


def test_without_javascript_objects_are_erased(browser: Chromium, server: Server) -> None:
    page = make_repository(server, "plainly", {"ann.json": "secret", "bob.json": "kept"})
    browser.command("Emulation.setScriptExecutionDisabled", {"value": True})

    browser.open(f"{page}/erasures")
    browser.fill(Reason="request 12")
    browser.enter("Paths, one on each line; a star makes a glob, a slash at the end a folder", "ann.json")
    browser.press("Plan on the server")
    browser.see("It deletes nothing.")
    with server.api() as api:
        wait_for_jobs(api, "plainly")
        browser.open(f"{page}/erasures")
        browser.follow(browser.text_at("//tbody/tr/th/a[contains(@href, 'erasures')]//code"))
        browser.see("Nothing that is selected would stand.")
        browser.unfold("Erase for good")
        browser.enter("Type", "1")
        browser.press("Erase for good")
        browser.see("erases, and then certifies.")
        wait_for_jobs(api, "plainly")
    browser.reload()
    browser.follow("Certificate")
    browser.see("request 12")
    browser.open(f"{page}/object?ref=main&path=ann.json")
    browser.see("The data of this object is gone: it is erased")
    log_out(browser)


def test_a_conflict_is_merged_by_keyboard_alone(browser: Chromium, server: Server) -> None:
    page = make_repository(server, "keys", {"a.csv": "first\n"})
    with server.api() as api:
        send(api, f"{page}/branches", {"name": "mend", "source": "main"})
        commit(api, "keys", "mended", {"a.csv": "mended\n"}, branch="mend")
        commit(api, "keys", "another hand", {"a.csv": "other\n"})

    browser.open(page)
    browser.tab_to("Skip to the content")
    browser.keys(ENTER)
    browser.tab_to("Compare")
    browser.keys(ENTER)
    browser.tab_to("Into")
    browser.keys("main")
    browser.tab_to("from")
    browser.keys("mend" + ENTER)
    browser.see("1 commit ahead, 1 behind.")
    browser.tab_to("Merge")
    browser.keys(ENTER)
    browser.problem("conflict")
    browser.tab_to("Where both changed a path")
    browser.keys("take")
    browser.tab_to("Merge")
    browser.keys(ENTER)
    browser.see("Merged mend into main.")


def test_two_processes_serve_the_page_below_a_path_of_a_proxy(blank: Chromium, tmp_path: Path) -> None:
    browser = blank
    with serving(tmp_path, "--workers", "2") as inner, proxy(inner, tmp_path) as browser.home:
        server = set_up(inner)  # Behind a proxy the set-up asks for a secret.
        make_repository(server, "far", {"a/b.csv": "a,b\n1,2\n"})
        browser.open("")  # The proxy adds the slash.
        browser.fill(Access_key_id=server.key, Secret_access_key=server.secret + ENTER)
        browser.see("Log out")
        for _ in range(5):  # By either process.
            browser.open("/repositories/far")
            browser.follow("Objects")
            browser.follow("a/")
            browser.follow("b.csv")
            browser.find("//td[.='1']")  # The preview reads the object below the same path.
        browser.choose("Colours", "Dark")
        browser.find("//html[@data-colours='dark']")
        browser.follow("Branches")
        browser.fill(Name="side")
        browser.press("Create")
        browser.see("Created the branch side.")
        log_out(browser)
        assert browser.path.startswith("/login")


def test_while_the_database_is_away_the_page_says_so_and_comes_back(blank: Chromium, tmp_path: Path) -> None:
    browser = blank
    # Each page waits this long for the database.
    with redis() as database, serving(tmp_path, "--kv", f"redis://127.0.0.1:{database.port}?wait_s=1") as browser.home:
        server = set_up(browser.home)
        page = make_repository(server, "waits", {"a.csv": "x"})
        log_in(browser, server.key, server.secret)
        browser.open(page)
        browser.see("the first load")
        browser.unfold("Delete this repository")
        browser.enter("Type", "waits")
        database.kill()
        browser.press("Delete this repository")
        browser.see(AWAY)
        browser.see("Look before you send it again.")
        browser.open(f"{page}/objects")
        browser.see(AWAY)
        database.start()
        browser.follow("Try again")
        browser.see("a.csv")


@contextmanager
def proxy(server: str, folder: Path) -> Iterator[str]:
    """Serve this server below a path, and yield the address."""
    with held_port() as port:
        file = folder / "proxy.cfg"
        file.write_text(PROXY.format(port=port, server=urlsplit(server).netloc))
        command = [program("haproxy", "haproxy"), "-db", "-f", f"{file}"]
        with running(Program(command, folder, port, as_root=True)):
            yield f"http://127.0.0.1:{port}/data/lake"
