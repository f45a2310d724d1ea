"""The page in a real browser: a week of a person who looks at a lake, changes it, and cleans it up.

Each story ends with a look at the console: there a browser says what our policy refused and which script failed.
"""

from __future__ import annotations

import io
import os
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakebed.gc.messages import decode_certificate, is_signed
from tests.server.web.chromium import ENTER, NARROW, WIDE, Chromium, is_installed, log_in, log_out
from tests.server.web.lakes import (
    LONG,
    Server,
    commit,
    make_long_names,
    make_repository,
    serving,
    upload,
    wait_for_jobs,
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not is_installed(), reason="no Chromium with its driver is installed"),
]


def test_a_first_visit_ends_in_a_sample_lake(blank: Chromium, tmp_path: Path) -> None:
    browser = blank
    with serving(tmp_path) as browser.home:
        browser.open("/")
        browser.see("Welcome to Lakebed")
        browser.fill(Name_of_the_administrator="esti")
        browser.press("Create the administrator")
        browser.see("The secret is shown this one time.")
        browser.press("Download")
        browser.follow("Create a sample lake")
        browser.press("Create")
        browser.see("Last commits of main")
        browser.follow("Objects")
        browser.follow("sample/")
        log_out(browser)

        pair = browser.downloaded("lakebed-key-pair.txt").decode()
        key, secret = re.findall(r'"(.+)"', pair)
        log_in(browser, key, secret)
        browser.see("sample-lake")


MARKDOWN = """# The lake
Loads of **each day**, *twice*, in `in/`. See [here](https://example.org/x), not [there](javascript:alert(1)).

- one
  more
- two
1. first

| a | **b** |
|---|---|
| 1 | <b>2</b> |
| `x \\| y` | [*there*](https://example.org/y) ![a lake](lake.png) |

[![built](badge.svg)](https://example.org/z) and [`code`](docs/code.md)

```sh
ls
```
> said
---
"""
SLOW = "\n\n".join(
    (
        f"# {'#' * 40_000}x",
        "[" * 40_000,
        "[](" + "a" * 40_000,
        "|\n" + "-" * 40_000 + "x",
        "[![](" * 1_000,
        "[![a](b)" * 1_000,
        *[f"# {' ' * 1_900}a\u2028b"] * 40,
        "# the end",
    )
)
"""Markdown that takes a browser minutes where a pattern tries all parts of a line."""
MARKS = (
    "h3 p strong em code a ul li li ol li div table thead tr th th strong tbody tr td td tr td code td a em "
    "p a code pre blockquote p hr"
)


def parquet(table: pa.Table, **options: Any) -> bytes:
    file = io.BytesIO()
    pq.write_table(table, file, **options)
    return file.getvalue()


def test_the_first_rows_of_parquet_are_read_by_the_browser(browser: Chromium, server: Server) -> None:
    page = make_repository(server, "tables")
    table = pa.table(
        {
            "<script>x": ["<b>first</b>", None, "last"] * 100,
            "when": pa.array([datetime(2026, 1, 2, tzinfo=UTC)] * 300),
            "many": pa.array([[1, 2]] * 300),
            "big": pa.array([2**60, 7, 9] * 100),
        }
    )
    noise = pa.table({"raw": [os.urandom(1 << 20) for _ in range(18)]})
    objects = {kind: parquet(table, compression=kind) for kind in ("snappy", "zstd", "gzip", "lz4", "none")}
    objects |= {"broken": objects["zstd"][:-9] + b"junkxPAR1", "brotli": parquet(table, compression="brotli")}
    objects |= {"large": parquet(noise, compression="none"), "nothing": parquet(table.slice(0, 0))}
    with server.api() as api:
        for name, data in objects.items():
            url = "/repositories/tables/branches/main/objects"
            assert api.post(url, params={"path": f"{name}.parquet"}, content=data).is_success

    def show(name: str) -> None:
        browser.open(f"{page}/object?ref=main&path={name}.parquet")

    for name in ("snappy", "zstd", "gzip", "lz4", "none"):
        show(name)
        browser.see("The first rows: 200.")
        cells = browser.run(
            "return [...document.querySelectorAll('.preview > .wide tbody tr')[0].children].map(e => e.innerText)"
        )
        assert cells == ["<b>first</b>", "2026-01-02T00:00:00.000Z", "[1,2]", "1152921504606846976"], name
    browser.unfold("300 rows in 1 row group; 4 columns")
    browser.see("many.list.element")
    with server.api() as api:
        assert api.post("/repositories/tables/branches/main/commits", json={"message": "all"}).is_success
        changed = table.slice(0, 150).append_column("new", pa.array([1] * 150)).drop_columns(["big"])
        url = "/repositories/tables/branches/main/objects"
        assert api.post(url, params={"path": "zstd.parquet"}, content=parquet(changed)).is_success
    browser.open(f"{page}/compare/contents?base=main@&ref=main&path=zstd.parquet")
    browser.see("300 rows in 1 row group on the left, 150 rows in 1 row group on the right.")
    cells = browser.run("return [...document.querySelectorAll('section > .wide .tag')].map(e => e.innerText)")
    assert cells == ["changed", "removed", "added"]
    for name, words in (
        ("broken", "There is no preview of rows: "),
        ("brotli", "There is no preview of rows: "),
        ("large", "its first rows need more than 16 MiB"),
        ("nothing", "It has no rows."),
    ):
        show(name)
        browser.see(words)


def test_a_preview_shows_tables_text_and_images_and_runs_nothing(browser: Chromium, server: Server) -> None:
    page = make_repository(
        server,
        "previews",
        {
            "a/table.csv": 'name,"says"\nada,"hello, ""world"""\n',
            "a/rows.jsonl": '{"k": 1}\n{"k": 2, "more": [3]}\n',
            "a/tree.json": '{"k":{"deep":1}}',
            "a/page.html": "<script>document.title = 'ran'</script>",
            "a/empty.txt": "",
            "a/raw.txt": "\0\1",
            "a/long.txt": "line\n" * 100_000,
            "README.md": MARKDOWN,
            "a/slow.md": SLOW,
        },
    )

    def show(name: str) -> None:
        browser.open(f"{page}/object?ref=main&path=a/{name}")

    show("table.csv")
    browser.see('hello, "world"')
    assert browser.run("return document.querySelectorAll('[data-preview] tbody tr').length") == 1
    show("rows.jsonl")
    browser.see("[3]")
    show("tree.json")
    browser.see('"deep": 1')
    show("page.html")
    browser.see("document.title = 'ran'")
    assert browser.run("return document.title").startswith("page.html")
    show("empty.txt")
    browser.see("The object is empty.")
    show("raw.txt")
    browser.see("The object is not text.")
    show("long.txt")
    browser.see("The first 262,144 of 500,000 bytes.")
    show("slow.md")
    browser.find("//*[@class='prose']/h3[.='the end']")
    browser.open(page)
    assert browser.text_at("//*[@class='prose']/h3") == "The lake"
    marks = "return [...document.querySelector('.prose').querySelectorAll('*')].map((each) => each.localName).join(' ')"
    assert browser.run(marks) == MARKS
    assert browser.run("return [...document.querySelectorAll('.prose a')].map((each) => each.href)") == [
        "https://example.org/x",
        "https://example.org/y",
        "https://example.org/z",
    ]
    cells = browser.run("return [...document.querySelectorAll('.prose td')].map((each) => each.innerText)")
    assert cells == ["1", "<b>2</b>", "x | y", "there a lake"]
    browser.see("built and code")


def test_files_and_folders_are_dropped_and_committed(browser: Chromium, server: Server, tmp_path: Path) -> None:
    page = make_repository(server, "drops", {"old.txt": "old"})
    folder = tmp_path / "january"
    (folder / "deep").mkdir(parents=True)
    (folder / "one.csv").write_text("a,b\n1,2\n")
    (folder / "deep" / "two words.csv").write_text("a\n1\n")
    (tmp_path / "single.txt").write_text("single")

    browser.open(f"{page}/objects?ref=main")
    browser.drop("[data-upload]", folder, tmp_path / "single.txt")
    browser.find("//a[.='january/']")  # The page loads again when all is there.
    browser.give_file(tmp_path / "single.txt")
    browser.enter("Path", "by form/")
    browser.press("Upload")
    browser.see("Uploaded by form/single.txt. It is not committed yet.")
    browser.follow("Uncommitted")
    browser.see("january/deep/two words.csv")
    browser.press("Discard the change of by form/single.txt")
    browser.see("Discarded the change of by form/single.txt.")
    browser.fill(Message="load January")
    browser.enter("Metadata, a line for each", "source = a drop")
    browser.press("Commit every change of this branch")
    browser.see("Committed to main.")
    browser.see("a drop")
    browser.follow("Uncommitted")
    browser.see("Everything on main is committed.")


def test_a_branch_is_changed_compared_and_merged_over_a_conflict(browser: Chromium, server: Server) -> None:
    page = make_repository(server, "merges", {"a.csv": "first\n"})

    browser.open(page)
    browser.follow("Branches")
    browser.fill(Name="mend")
    browser.press("Create")
    browser.see("Created the branch mend.")
    with server.api() as api:
        commit(api, "merges", "mended", {"a.csv": "mended\n", "b.csv": "new\n"}, branch="mend")
        commit(api, "merges", "another hand", {"a.csv": "other\n"})
    browser.follow("Compare")
    browser.enter("Into", "main")
    browser.enter("from", "mend")
    browser.press("Compare")
    browser.see("1 commit ahead, 1 behind.")
    browser.follow("a.csv side by side")
    browser.find("//tr[td[@class='old']='other' and td[@class='new']='mended']")
    browser.follow("All changes of mend")
    browser.see("conflict")
    browser.press("Merge")
    browser.see("a.csv")
    browser.see("conflict")
    browser.problem("conflict")
    browser.follow("Preview: where would this merge stop?")
    browser.choose("The merge takes of a.csv", "mend")
    browser.fill(Message="merge the mending")
    browser.press("Merge")
    browser.see("Merged mend into main.")
    browser.see("merge the mending")

    browser.press("Commit the opposite")
    browser.see("Reverted the commit on main.")
    browser.open(f"{page}/object?ref=main&path=a.csv")
    browser.see("other")


def test_rules_are_saved_a_plan_is_applied_with_a_window_restored_and_undone(browser: Chromium, server: Server) -> None:
    page = make_repository(server, "nights")
    with server.api() as api:
        commit(api, "nights", "january", {"log/january.csv": "january\n" * 1000}, days=90)
        commit(api, "nights", "february", {"log/january.csv": "mended\n" * 100}, days=60)

    browser.open(page)
    browser.follow("Rules")
    browser.see("No rule is in force")
    browser.fill(Default_period="soon")
    browser.press("Save")
    browser.problem("soon")
    browser.fill(Default_period="30d")
    browser.press("Save")
    browser.problem("Nothing is saved yet")
    browser.see("Bytes that could be deleted, at most")
    browser.enter("Type", "1")
    browser.press("Save")
    browser.see("Version 1 is in force.")

    browser.follow("Lifecycle")
    browser.fill(Name_of_rule_1="logs", Paths_of_rule_1="log/", Period_of_rule_1="10d", Days_ahead="20")
    browser.press("Simulate")
    browser.see("saves no policy")
    browser.see("2 objects, 8.5 KiB, become due within 20 days")
    browser.see("Goes by branch that kept it last")

    browser.follow("Collections")
    browser.choose("Data", "committed data")
    browser.press("Plan on the server")
    browser.see("It deletes nothing.")
    # The page asks by itself until the plan is there.
    run = browser.text_at("//tbody/tr/th/a[contains(@href, 'collections')]//code")
    browser.follow(run)
    browser.see("log/january.csv")
    browser.see("1 object, ")
    browser.unfold("Apply this plan")
    browser.fill(Type="2", Window="1h")
    browser.press("Apply")
    browser.see("type 1 to confirm")
    with server.api() as api:
        wait_for_jobs(api, "nights")  # The plan is there before its job has ended.
    browser.unfold("Apply this plan")
    browser.enter("Type", "1")
    browser.press("Apply")
    browser.see("applies the plan")
    browser.see("deferred")
    browser.follow(run)
    browser.enter("Path, or a folder with its slash; empty for all", "log/january.csv")
    browser.enter("Below this folder", "back/")
    browser.press("Restore")
    browser.see("1 object, ")
    browser.follow("Look at it and commit")
    browser.see("back/")
    browser.open(f"{page}/collections/{run}")
    browser.unfold("Undo this run")
    browser.enter("Type", run)
    browser.press("Undo this run")
    browser.see("is undone: its objects stay.")

    browser.follow("Why")
    browser.fill(Path="log/january.csv", Ref="main" + ENTER)
    browser.see("head")


def test_objects_are_erased_from_every_commit_and_the_certificate_is_checked(browser: Chromium, server: Server) -> None:
    page = make_repository(server, "forget", {"users/ann.json": "secret", "users/bob.json": "kept"})
    with server.api() as api:
        commit(api, "forget", "again", {"users/ann.json": "<script>secret</script>"})
        upload(api, "forget", {"users/ann.json": "staged"})

    browser.open(page)
    browser.follow("Erasures")
    browser.see("No erasure was planned yet.")
    browser.fill(Reason="  ")
    browser.enter("Paths, one on each line; a star makes a glob, a slash at the end a folder", "users/ann*")
    browser.press("Plan on the server")
    browser.problem("reason")
    browser.fill(Reason="request <b>12</b>")
    browser.press("Plan on the server")
    browser.see("It deletes nothing.")
    # The page asks by itself until the plan is there.
    run = browser.text_at("//tbody/tr/th/a[contains(@href, 'erasures')]//code")
    with server.api() as api:
        wait_for_jobs(api, "forget")  # The plan is there before its job has ended.
    browser.follow(run)
    browser.see("request <b>12</b>")
    browser.see("Nothing that is selected would stand.")
    browser.see("3 objects")
    browser.unfold("Erase for good")
    browser.enter("Type", "2")
    browser.press("Erase for good")
    browser.see("type 3 to confirm")
    browser.unfold("Erase for good")
    browser.enter("Type", "3")
    browser.press("Erase for good")
    browser.see("erases, and then certifies.")
    with server.api() as api:
        wait_for_jobs(api, "forget")
        pem = api.get("/repositories/forget/gc/certificate-key").json()["pem"]
    browser.reload()
    browser.see("deleted")
    browser.follow("Certificate")
    browser.see("Nothing stands: 3 of 3 objects absent.")
    browser.see("the server signed this certificate as it is")
    browser.follow("Download")
    assert is_signed(decode_certificate(browser.downloaded(f"certificate-{run}.json")), pem)
    browser.open(f"{page}/object?ref=main~1&path=users/ann.json")
    browser.see("The data of this object is gone: it is erased")
    browser.open(f"{page}/why?ref=main~1&path=users/ann.json")
    browser.see(f"UTC by run {run}")
    facts = browser.run("return [...document.querySelectorAll('dl.facts dt')].map((each) => each.innerText)")
    assert facts == ["Erased"]
    assert (
        browser.run(
            "return [...document.querySelectorAll('tr:not(.over) td:last-child')].map((e) => e.innerText).join('')"
        )
        == ""
    )


def test_a_legal_hold_is_put_and_released(browser: Chromium, server: Server) -> None:
    page = make_repository(server, "courts", {"a.csv": "x"})

    browser.open(f"{page}/holds")
    browser.fill(Name="case-1", Why="the court asks")
    browser.enter("Paths, a glob or a folder with its slash on each line", "a*")
    browser.press("Hold")
    browser.see("case-1 is held.")
    browser.unfold("Release")
    browser.fill(Why="it is over", Type="case-1")
    browser.press("Release")
    browser.see("case-1 is released.")


def test_a_second_user_with_few_rights_sees_less_and_why(browser: Chromium, server: Server) -> None:
    make_repository(server, "rights", {"a.csv": "x"})

    browser.follow("People")
    browser.fill(Name="vera")
    browser.press("Create")
    browser.see("Created the user vera")
    browser.choose("Add to", "Viewers")
    browser.press("Add")
    browser.see("vera is in the group Viewers.")
    browser.fill(Action="fs:DeleteObject", Resource="arn:lakefs:fs:::repository/rights/object/a.csv")
    browser.press("Ask")
    browser.see("No, for no statement")
    browser.follow("People")
    browser.fill(Name_of_the_group="menders")
    browser.press("Create the group")
    browser.follow("People")
    browser.follow("Policies")
    browser.fill(Name="mend", Statements_as_JSON='[{"effect": "allow", "action": "fs:DeleteObject"}]')
    browser.press("Create")
    browser.problem("Expected `array`")
    browser.enter("Statements as JSON", '[{"effect": "allow", "action": ["fs:DeleteObject"], "resource": "*"}]')
    browser.press("Create")
    browser.see("Created the policy mend.")
    browser.enter("Statements as JSON", '[{"effect": "deny", "action": ["fs:Mend"], "resource": "*"}]')
    browser.press("Save")
    browser.problem("fs:Mend")
    browser.follow("People")
    browser.follow("menders")
    browser.enter("Add the user", "vera")
    browser.press("Add")
    browser.see("vera is in the group menders.")
    browser.enter("Attach the policy", "mend")
    browser.press("Attach")
    browser.see("Attached the policy mend.")
    browser.follow("vera")
    browser.fill(Action="fs:DeleteObject", Resource="arn:lakefs:fs:::repository/rights/object/a.csv")
    browser.press("Ask")
    browser.see("Yes, by statement 1 of the policy mend, through the group menders.")
    browser.press("Create a key pair")
    key, secret = (browser.text_at(f"(//*[@data-key-pair]//code)[{number}]") for number in (1, 2))

    log_out(browser)
    log_in(browser, key, secret)
    browser.follow("rights")
    browser.unfold("Delete this repository")
    browser.enter("Type", "rights")
    browser.press("Delete this repository")
    browser.problem("vera")
    browser.follow("Collections")
    browser.press("Plan on the server")
    browser.problem("vera")
    browser.follow("Audit")
    browser.see("Not allowed")
    log_out(browser)
    log_in(browser, server.key, server.secret)
    browser.follow("Audit")
    browser.tick("Refusals only")
    browser.press("Filter")
    browser.see("vera")


@pytest.fixture(scope="module")
def long_names(server: Server) -> str:
    """The page of a repository in which each name has 200 characters."""
    return make_long_names(server, "long-names")


@pytest.mark.parametrize(("width", "is_dark"), [(NARROW, False), (NARROW, True), (WIDE, False)])
def test_no_name_of_200_characters_sticks_out_of_a_page(
    browser: Chromium, long_names: str, width: int, *, is_dark: bool
) -> None:
    page = long_names
    branch, path = LONG[0], quote(f"{LONG[1]}/{LONG[0]}.csv")
    browser.become(width, is_dark=is_dark)

    stuck = {}
    for each in (
        "/",
        page,
        f"{page}/erasures",
        f"{page}/objects?ref={branch}&path={quote(LONG[1])}/",
        f"{page}/object?ref={branch}&path={path}",
        f"{page}/changes?ref={branch}",
        f"{page}/commits?ref={branch}",
        f"{page}/commits/main",
        f"{page}/branches",
        f"{page}/tags",
        f"{page}/compare?base=main&ref={branch}",
        f"{page}/pulls",
        f"{page}/pulls/1",
        f"{page}/why?ref=main&path={path}",
        f"{page}/holds",
        f"{page}/objects?ref={branch}&path=no{path}",
        f"/search?repository=long-names&text={branch}",
        "/users",
        "/policies",
        "/policy?policy=FSReadWriteAll",
        "/group?group=Developers",
        "/audit",
        "/no-such-page",
    ):
        browser.open(each)
        if sticking := browser.overflow():
            stuck[each] = sticking

    assert stuck == {}


def test_keys_reach_the_search_and_the_content(browser: Chromium, server: Server) -> None:
    make_repository(server, "keyboards", {"a.csv": "x"})

    browser.keys("/")
    assert browser.focused()["name"] == "text"
    browser.keys("lakefs://keyboards/main/a.csv" + ENTER)
    browser.see("lakefs://keyboards/main/a.csv")
    with server.api() as api:
        for number in range(101):
            made = {"name": f"branch-{number:03d}", "source": "main"}
            assert api.post("/repositories/keyboards/branches", json=made).is_success
    browser.reload()
    offered = "return [...document.querySelectorAll('#refs option')].map((each) => each.value)"
    assert "branch-100" not in browser.run(offered)
    browser.enter("Ref", "branch-10")
    browser.find("//datalist[@id='refs'][count(option)=1]/option[@value='branch-100']")
    browser.become(WIDE, is_dark=True)
    browser.choose("Colours", "Light")
    browser.see("lakefs://keyboards/main/a.csv")
    assert browser.run("return getComputedStyle(document.documentElement).colorScheme") == "light"
