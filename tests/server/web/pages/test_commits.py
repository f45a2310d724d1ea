"""Pages that work with commits and objects: pick, go back, copy, move, and look before a merge."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

import httpx
import pytest

from lakebed.server import App
from lakebed.server.web.pages import changes, compare, objects
from tests.server.web.browsing import Browser
from tests.server.web.lakes import HOOK

LAKE = "/repositories/lake"
HOSTILE = "# Lake <script>alert(1)</script>\n\n[go](javascript:alert(1)) \u202e"


async def write(client: httpx.AsyncClient, branch: str, *paths: str, data: str = "x") -> str:
    """Commit these objects, and return the commit."""
    for path in paths:
        await client.post(f"{LAKE}/branches/{branch}/objects", params={"path": path}, content=data.encode())
    made = await client.post(f"{LAKE}/branches/{branch}/commits", json={"message": f"{branch}: {paths[0]}"})
    return str(made.json()["id"])


@pytest.fixture
async def browser(app: App, client: httpx.AsyncClient, repo: str) -> AsyncIterator[Browser]:
    """A browser that is logged in, and a lake with a commit on `main` and on `side`."""
    await write(client, "main", "a/b.csv")
    await client.post(f"{repo}/branches", json={"name": "side", "source": "main"})
    await write(client, "side", "a/s.csv")
    pair = (await client.post("/auth/users/esti/credentials")).json()
    browser = Browser(app)
    async with browser.http:
        await browser.log_in(pair["access_key_id"], pair["secret_access_key"])
        yield browser


async def test_a_commit_is_picked_and_named(browser: Browser, client: httpx.AsyncClient) -> None:
    commit = await browser.get(f"{LAKE}/commits/side", ref="side")
    picked = await browser.follow(await browser.fill(commit, "cherry-pick", branch="main"))
    twice = await browser.fill(commit, "cherry-pick", branch="main")
    branch = await browser.follow(await browser.fill(commit, "branches", name="here"))
    tag = await browser.follow(await browser.fill(commit, "tags", name="v1"))

    assert "Picked the commit on main." in picked.text
    assert (await client.get(f"{LAKE}/refs/main/objects/stat", params={"path": "a/s.csv"})).status_code == 200
    assert (twice.status_code, 'role="alert"' in twice.text) == (400, True)
    assert "Created the branch here." in branch.text
    assert "Created the tag v1." in tag.text


async def test_a_branch_goes_back_to_where_it_was_and_forward_again(
    browser: Browser, client: httpx.AsyncClient
) -> None:
    before, after = [(await client.get(f"{LAKE}/branches/{name}")).json()["commit_id"] for name in ("main", "side")]
    branches = await browser.get(f"{LAKE}/branches")
    moves = await browser.get(f"{LAKE}/moves", branch="side")
    wrong = await browser.fill(moves, f"commit={before}", typed="main")
    back = await browser.follow(await browser.fill(moves, f"commit={before}", typed="side"))
    was = (await client.get(f"{LAKE}/branches/side")).json()["commit_id"]
    forward = await browser.follow(await browser.fill(back, f"commit={after}", typed="side"))
    await client.delete(f"{LAKE}/branches/side")
    gone = await browser.get(f"{LAKE}/moves", branch="side")

    assert "moves?branch=side" in branches.text
    assert (wrong.status_code, "type side to confirm" in wrong.text) == (400, True)
    assert was == before
    assert f"side is at {before[:12]} again." in back.text
    assert (await client.get(f"{LAKE}/branches/main")).json()["commit_id"] == before
    assert f"side is at {after[:12]} again." in forward.text
    assert (gone.status_code, "deleted" in gone.text) == (200, True)
    assert (await browser.get(f"{LAKE}/moves", tag="none")).status_code == 404


async def test_history_is_filtered_by_date_and_to_the_line_of_the_branch(
    browser: Browser, client: httpx.AsyncClient
) -> None:
    await write(client, "main", "a/m.csv")
    await client.post(f"{LAKE}/refs/side/merge/main", json={"message": "merge side"})
    theirs = await browser.get(f"{LAKE}/commits", ref="main", committer="esti")
    others = await browser.get(f"{LAKE}/commits", ref="main", committer="nox")
    whole = await browser.get(f"{LAKE}/commits", ref="main", since="2020-01-31")
    line = await browser.get(f"{LAKE}/commits", ref="main", first="1")
    late = await browser.get(f"{LAKE}/commits", ref="main", since="2999-01-31")
    wrong = await browser.get(f"{LAKE}/commits", ref="main", since="soon")
    of_path = await browser.get(f"{LAKE}/commits", ref="main", path="a/m.csv")

    assert ["side: a/s.csv" in page.text for page in (whole, line, late)] == [True, False, False]
    assert "merge side" in line.text
    # The merge has a line to either parent, and the two lanes join at the commit from which they parted.
    assert re.findall(r'y1="50%" x2="(\d+)"|<circle cx="(\d+)"', whole.text)[:3] == [("7", ""), ("21", ""), ("", "7")]
    assert 'x1="21" y1="50%" x2="7" y2="100%"' in whole.text
    assert 'x2="21"' not in line.text
    assert ("merge side" in theirs.text, "circle" in theirs.text) == (True, False)
    assert "No commit by <bdi>nox</bdi>." in others.text
    assert "No commit since 2999-01-31." in late.text
    assert (wrong.status_code, "not a date-time" in wrong.text) == (400, True)
    assert ("the object then" in of_path.text, "the object then" in whole.text) == (True, False)


async def test_a_merge_is_looked_at_before(
    browser: Browser, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compare, "ROWS_OF_PAGE", 2)
    query = {"base": "main", "ref": "side", "conflicts": "1"}
    plain = await browser.get(f"{LAKE}/compare", base="main", ref="side")
    tree = await browser.get(f"{LAKE}/compare", base="main", ref="side", tree="1", count="1")
    easy = await browser.get(f"{LAKE}/compare", **query)
    await write(client, "main", "a/b.csv", "z", data="other")
    await write(client, "side", "a/b.csv", "c", "d", "e", "f", "z", data="mine")
    hard = await browser.get(f"{LAKE}/compare", **query)
    sides = await browser.get(f"{LAKE}/compare/contents", base="main", ref="side", path="a/b.csv")
    lone = await browser.get(f"{LAKE}/compare/contents", base="main", ref="side", path="c")
    same = await browser.get(f"{LAKE}/compare/contents", base="main", ref="main", path="z")
    monkeypatch.setattr(compare, "CONFLICTS", 1)
    many = await browser.get(f"{LAKE}/compare", **query)
    monkeypatch.setattr(compare, "PAGES_MAX", 1)
    long = await browser.get(f"{LAKE}/compare", **query)

    assert "where would this merge stop?" in plain.text
    assert '<bdi>a/</bdi></a> <span class="meta">1 added</span>' in tree.text
    assert sides.text.count("data-preview") == 2
    assert ("No object has this path." in lone.text, lone.text.count("data-preview")) == (True, 1)
    assert "Both sides have the same bytes" in same.text
    assert "compare/contents?base=main&amp;ref=side&amp;path=a%2Fb.csv" in hard.text
    assert "No conflict: the merge takes 1 change." in easy.text
    assert "Both changed 2 paths in different ways" in hard.text
    assert "Both changed at least 1 path in" in many.text
    assert "The search ended after 2 changes" in long.text


async def test_objects_are_copied_moved_and_linked(browser: Browser, client: httpx.AsyncClient) -> None:
    old = await browser.get(f"{LAKE}/object", ref="side", path="a/s.csv")
    copied = await browser.follow(await browser.fill(old, "object/copy", branch="main", to="back.csv"))
    taken = await browser.fill(copied, "object/move", to="a/b.csv", replace="")
    moved = await browser.follow(await browser.fill(copied, "object/move", to="b/moved.csv", replace=""))
    signed = await browser.get(f"{LAKE}/object", ref="main", path="a/b.csv", presign="1")
    at_commit = await browser.get(f"{LAKE}/object", ref="main~1", path="a/b.csv")

    assert "Copied it to back.csv on main." in copied.text
    assert (taken.status_code, 'role="alert"' in taken.text) == (412, True)
    assert "Moved it to b/moved.csv." in moved.text
    assert (await client.get(f"{LAKE}/refs/main/objects/stat", params={"path": "back.csv"})).status_code == 404
    assert "This object store signs no links." in signed.text
    assert "object/move" not in at_commit.text


async def test_a_folder_marks_what_is_not_committed(
    browser: Browser, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await write(client, "main", "gone/x", "b/1", "b/2", "c.csv", "z.csv")
    branch = f"{LAKE}/branches/main/objects"
    for path in ("gone/x", "z.csv"):
        await client.delete(branch, params={"path": path})
    for path in ("b/1", "c.csv", "d.csv"):
        await client.post(branch, params={"path": path}, content=b"other")
    page = await browser.get(f"{LAKE}/objects")
    at_commit = await browser.get(f"{LAKE}/objects", ref="main@")
    removed = await browser.get(f"{LAKE}/object", ref="main@", path="z.csv")
    tree = await browser.get(f"{LAKE}/changes", ref="main", tree="1", count="1")
    below = await browser.get(f"{LAKE}/changes", ref="main", tree="1", prefix="b/")
    monkeypatch.setattr(changes, "COUNTED", 2)
    many = await browser.get(f"{LAKE}/changes", ref="main", tree="1", count="1")
    monkeypatch.setattr(objects, "ROWS", 2)
    first = await browser.get(f"{LAKE}/objects")

    marks = re.findall(r"<bdi>([^<]+)</bdi>(?:</a>)? <(?:a|span) class=\"tag\"[^>]*>([a-z ]+)<", page.text)
    assert marks == [
        ("b/", "changes"),
        ("c.csv", "changed"),
        ("d.csv", "added"),
        ("gone/", "all removed"),
        ("z.csv", "removed"),
    ]
    counts = re.findall(
        r'<bdi>([^<]+/)</bdi></a> <span class="meta">([^<]+)</span></td>\n<td class="number">([^<]*)', tree.text
    )
    assert counts == [("b/", "1 changed", "5 B"), ("gone/", "1 removed", "0 B")]
    assert ("b/1" in below.text, "b/2" in below.text, "Folder above" in below.text) == (True, False, True)
    assert "There are more than 2 changes here" in many.text
    assert "A mark says" not in at_commit.text
    assert (removed.status_code, "z.csv" in removed.text) == (200, True)
    assert ("z.csv" in first.text, "more are below than the marks show" in first.text) == (False, True)


async def test_a_table_is_compared_in_one_view(browser: Browser, client: httpx.AsyncClient) -> None:
    catalog = "http://localhost/iceberg/v1/lake.{}/namespaces"
    field = {"id": 1, "name": "amount", "required": True, "type": "int"}
    table = {"name": "orders", "schema": {"type": "struct", "fields": [field]}, "properties": {"team": "x", "old": "y"}}
    await client.post(catalog.format("main"), json={"namespace": ["sales"]})
    made = await client.post(f"{catalog.format('main')}/sales/tables", json=table)
    assert made.is_success, made.text
    await client.post(f"{LAKE}/branches", json={"name": "wide", "source": "main"})
    schema = {
        "schema-id": 1,
        "type": "struct",
        "fields": [{**field, "type": "long"}, {**field, "id": 2, "name": "tax"}],
    }
    updates = [
        {"action": "add-schema", "schema": schema},
        {"action": "set-current-schema", "schema-id": 1},
        {"action": "set-properties", "updates": {"team": "z"}},
        {"action": "remove-properties", "removals": ["old"]},
    ]
    changed = await client.post(
        f"{catalog.format('wide')}/sales/tables/orders", json={"requirements": [], "updates": updates}
    )
    assert changed.is_success, changed.text
    query = {"base": "main", "ref": "wide"}
    listed = await browser.get(f"{LAKE}/compare", **query)
    compared = await browser.get(f"{LAKE}/compare/table", **query, table="sales/orders")
    same = await browser.get(f"{LAKE}/compare/table", base="main", ref="main", table="sales/orders")
    lone = await browser.get(f"{LAKE}/compare/table", base="side", ref="wide", table="sales/orders")

    assert "compare/table?base=main&amp;ref=wide&amp;table=sales%2Forders" in listed.text
    assert re.findall(r'<tr class="(\w*)"><th scope="row"><bdi>(\w+)', compared.text) == [
        ("changed", "amount"),
        ("added", "tax"),
    ]
    assert "<code>int</code>" in compared.text
    assert ["<bdi>team</bdi>" in compared.text, "<bdi>old</bdi>" in compared.text] == [True, True]
    assert ("Both sides have the same table." in same.text, "No field differs." in same.text) == (True, True)
    assert "Only <bdi>wide</bdi> has this table." in lone.text


async def test_branches_show_author_protection_and_distance(browser: Browser, client: httpx.AsyncClient) -> None:
    await client.put(f"{LAKE}/settings/branch_protection", json=[{"pattern": "ma*"}])
    plain = await browser.get(f"{LAKE}/branches")
    far = await browser.get(f"{LAKE}/branches", distances="1")

    assert plain.text.count('<span class="tag">protected</span>') == 1
    assert plain.text.count("<td><bdi>esti</bdi></td>") == 2
    assert re.findall(r'<td class="number">(\d*)</td>', far.text) == ["", "", "1", "0"]


async def test_changes_of_a_folder_are_discarded_and_a_commit_is_shown_by_folder(
    browser: Browser, client: httpx.AsyncClient
) -> None:
    commit = await write(client, "side", "x/1", "x/2", "y/1")
    tree = await browser.get(f"{LAKE}/commits/{commit}", ref="side", tree="1", count="1")
    for path in ("x/3", "x/4", "z"):
        await client.post(f"{LAKE}/branches/side/objects", params={"path": path}, content=b"x")
    folders = await browser.get(f"{LAKE}/changes", ref="side", tree="1")
    left = await browser.follow(await browser.fill(folders, "path=x%2F&folder=1"))
    found = await browser.get("/search", repository="lake", text="a/")

    assert ("2 added" in tree.text, "1 added" in tree.text) == (True, True)
    assert "commits/" + commit in tree.text
    assert ["x/3" in left.text, "x/" in left.text, ">z<" in left.text] == [False, True, True]
    assert "a/b.csv" in found.text


async def test_a_pull_request_shows_the_runs_of_its_hooks(browser: Browser, client: httpx.AsyncClient) -> None:
    await client.post(
        f"{LAKE}/branches/side/objects",
        params={"path": "_lakefs_actions/look.yaml"},
        content=HOOK.replace("post-", "pre-").encode(),
    )
    await client.post(f"{LAKE}/branches/side/commits", json={"message": "hooks"})
    pull = {"title": "one", "source_branch": "side", "destination_branch": "main"}
    made = (await client.post(f"{LAKE}/pulls", json=pull)).json()
    page = await browser.get(f"{LAKE}/pulls/{made['id']}")

    assert ("Hooks of <bdi>side</bdi>" in page.text, "pre-commit" in page.text) == (True, True)


async def test_a_readme_is_shown_as_text_and_cut(
    browser: Browser, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    without = await browser.get(LAKE)
    await write(client, "main", "README.md", data=HOSTILE)
    shown = await browser.get(LAKE)
    await write(client, "main", "a/README.md", data="below")
    below = await browser.get(f"{LAKE}/objects", path="a/")
    cut = []
    text = "# Lake\n\nöne and two\nthree\n\nlast"
    for data, sizes in (
        (text, (28, 30, 16)),
        (text.replace("\n", "\r\n"), (33,)),
        ("one two\nthree", (6, 11)),
        ("word", (2,)),
    ):
        await write(client, "main", "README.md", data=data)
        for size in sizes:
            monkeypatch.setattr(objects, "README_BYTES_MAX", size)
            page = await browser.get(LAKE)
            words = page.text.partition("data-markdown><bdi>")[2].partition("</bdi>")[0]
            cut.append((words, re.findall(r"The first .* B\.", page.text)))

    assert "below</bdi>" in below.text
    assert "README.md" not in without.text
    assert "Some parts of this page" not in without.text
    assert "# Lake &lt;script&gt;alert(1)&lt;/script&gt;" in shown.text
    assert "⟨202E⟩" in shown.text
    assert cut == [
        ("# Lake\n\nöne and two\nthree", ["The first 26 B of 32 B."]),
        ("# Lake\n\nöne and two\nthree", ["The first 26 B of 32 B."]),
        ("# Lake", ["The first 6 B of 32 B."]),
        ("# Lake\n\nöne and two\nthree", ["The first 29 B of 37 B."]),
        ("one", ["The first 3 B of 13 B."]),
        ("one two", ["The first 7 B of 13 B."]),
        ("wo", ["The first 2 B of 4 B."]),
    ]
