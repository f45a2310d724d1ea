"""Take the pictures of the guide: `python -m tests.server.web.pictures docs/guide/page`.

It needs Chromium and its driver. Run it again when the pages change.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Final

from tests.server.web.chromium import WIDE, Chromium, driving, log_in
from tests.server.web.lakes import Server, check, commit, make_repository, send, serving, set_up, upload

HEIGHT: Final = 800
MONTHS: Final = ("january", "february", "march")
LAKE: Final = "flights"
README: Final = "# Flights of 2013\n\nLoaded each month, and **mended** where offices differ.\n"


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="lakebed-pictures-") as name, serving(Path(name)) as home, driving() as at:
        server = set_up(home, "ann")
        page = tell(server)
        browser = Chromium(at, home, Path(name))
        try:
            log_in(browser, server.key, server.secret)
            run = plan(browser, page)
            shots = {
                "repository": (page, "waits for a run:"),
                "object": (f"{page}/object?ref=main&path=2013/march.csv", "carrier"),
                "compare": (f"{page}/compare?base=main&ref=fix-march&conflicts=1", "The merge takes"),
                "plan": (run, "Goes by folder"),
                "why": (f"{page}/why?ref=main&path=2013/february.csv", "What would release it"),
            }
            for shot, (path, words) in shots.items():
                browser.become(WIDE, is_dark=shot in {"compare", "why"}, height=HEIGHT)
                browser.open(path)
                browser.see(words)
                (folder / f"{shot}.png").write_bytes(browser.screenshot())
        finally:
            browser.close()


def tell(server: Server) -> str:
    """Give the lake its history: two loads of each month, a branch that is open, a tag; and return its page."""
    page = make_repository(server, LAKE)
    with server.api() as api:
        commit(api, LAKE, "raw data of airports", {f"raw/{n}.csv": table("raw", 40 * n) for n in range(1, 9)}, days=170)
        commit(api, LAKE, "raw data again", {f"raw/{n}.csv": table("new", 40 * n) for n in range(1, 9)}, days=130)
        for day, month in enumerate(MONTHS):
            commit(api, LAKE, f"load {month.title()}", {f"2013/{month}.csv": table(month, 300)}, days=90 - day)
        send(api, f"{page}/branches", {"name": "report-q1", "source": "main"})
        for day, month in enumerate(MONTHS[:2]):
            commit(api, LAKE, f"mend {month.title()}", {f"2013/{month}.csv": table(month, 299)}, days=60 - day)
        send(api, f"{page}/tags", {"id": "v1.0", "ref": "main"})
        send(api, f"{page}/branches", {"name": "fix-march", "source": "main"})
        send(api, f"{page}/branches", {"name": "report-q2", "source": "main"})
        send(api, f"{page}/branches", {"name": "etl-nightly", "source": "main"})
        more = {"2013/march.csv": table("mended", 300), "2013/april.csv": table("april", 300)}
        commit(api, LAKE, "mend March, load April", more, branch="fix-march", days=3)
        commit(api, LAKE, "March from the other office", {"2013/march.csv": table("march", 298)}, days=1)
        commit(api, LAKE, "say what this is", {"README.md": README})
        upload(api, LAKE, {"2013/may.csv": table("may", 300)}, branch="etl-nightly")
        for branch in ("report-q1", "report-q2"):
            check(api.delete(f"{page}/branches/{branch}"))
        send(api, f"{page}/holds", {"name": "case-1", "globs": ["2013/february.csv"], "why": "the court asks"})
        rules = {"default": "30d", "branches": [{"pattern": "etl-*", "period": "7d"}]}
        check(api.put(f"{page}/gc/rules/full", params={"if_version": "0"}, json=rules))
    return page


def plan(browser: Chromium, page: str) -> str:
    """Let the server plan, and return the page of the plan."""
    browser.open(f"{page}/collections")
    browser.choose("Data", "committed data")
    browser.press("Plan on the server")
    run = browser.text_at("//tbody/tr/th/a[contains(@href, 'collections')]")
    return f"{page}/collections/{run}"


def table(month: str, rows: int) -> str:
    lines = [f"{carrier},{month},{row * 7919 % 900},{row * 31 % 90}" for row in range(rows) for carrier in ("AA", "LH")]
    return "\n".join(["carrier,month,flights,delayed", *lines, ""])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
