"""Collections in the browser: what a run takes, its charts, and what applying asks for."""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest

from lakebed.base import bars, posts, shares
from lakebed.gc.messages import RunKind
from lakebed.server import App
from tests.server.test_plans import write as write
from tests.server.web.browsing import Browser

LAKE = "/repositories/lake"


async def test_a_plan_is_shown_and_applied_only_for_its_number_of_objects(
    app: App, client: httpx.AsyncClient, repo: str, write: Any
) -> None:
    await write("r0", ["x/1", "x/0"], now_ms=0)
    await write("r1", ["x/1", "x/2"])
    await write("u1", [], RunKind.UNCOMMITTED)
    for kind in RunKind:
        if not kind.can_wait:
            await write(f"x-{kind.value}", ["x/1"], kind)
    pair = (await client.post("/auth/users/esti/credentials")).json()
    browser = Browser(app)
    async with browser.http:
        await browser.log_in(pair["access_key_id"], pair["secret_access_key"])
        every = await browser.get(f"{LAKE}/collections")
        one = await browser.get(f"{LAKE}/collections/r1")
        since = await browser.get(f"{LAKE}/collections/r1", difference="1")
        first = await browser.get(f"{LAKE}/collections/r0", difference="1")
        nothing = await browser.get(f"{LAKE}/collections/u1")
        others = [await browser.get(f"{LAKE}/collections/x-{kind.value}") for kind in RunKind if not kind.can_wait]
        wrong = await browser.fill(one, "apply", typed="1")
        right = await browser.fill(one, "apply", typed="2", window="never")

    assert every.status_code == 200, every.text
    assert every.text.count("collections/r1") == 1
    assert "Waits for a run" in every.text
    assert "x/1" in one.text
    assert 'class="drawn line"' in every.text
    assert "difference=1" in one.text
    counts = re.findall(
        r'take(?:s|) them</th><td class="number">(\d+)|took them</th><td class="number">(\d+)', since.text
    )
    assert counts == [("1", ""), ("", "1"), ("1", "")]
    assert "This is the first plan of its kind" in first.text
    assert "This plan takes no object" in nothing.text
    assert [page.status_code for page in others] == [200] * len(others) != []
    assert not [page.url for page in (nothing, *others) if "/apply" in page.text]
    assert (wrong.status_code, "type 2 to confirm" in wrong.text) == (400, True)
    assert right.status_code in {400, 501}, right.text


async def test_rules_are_saved_only_over_the_version_that_was_shown(
    app: App, client: httpx.AsyncClient, repo: str
) -> None:
    pair = (await client.post("/auth/users/esti/credentials")).json()
    browser = Browser(app)
    async with browser.http:
        await browser.log_in(pair["access_key_id"], pair["secret_access_key"])
        page = await browser.get(f"{LAKE}/rules")
        saved = await browser.follow(await browser.fill(page, "by=json", typed="lake", rules='{"default": "30d"}'))
        late = await browser.fill(page, "by=json", typed="lake", rules='{"default": "1d"}')
        bad = await browser.fill(saved, "by=fields", typed="lake", default="soon")
        fields = {"pattern": "etl-*", "period": "7d", "keep_pattern": "main", "keep_commits": "3", "min_age": "2d"}
        written = await browser.follow(await browser.fill(saved, "by=fields", typed="lake", tags_pin="", **fields))
        tried = await browser.post(
            f"{LAKE}/rules/try?by=fields", fields | {"token": await browser.token(), "default": "1h"}
        )
        no_number = await browser.fill(written, "by=fields", typed="lake", keep_commits="many", keep_pattern="x")

    assert "Version 1 is in force" in saved.text
    assert late.status_code == 412
    assert bad.status_code == 400
    assert 'value="soon"' in bad.text
    assert (no_number.status_code, "Write a number for" in no_number.text) == (400, True)
    assert "Would expire now" in tried.text
    assert (await client.get(f"{repo}/gc/rules/full")).json()["rules"] == {
        "default": "30d",
        "branches": [{"pattern": "etl-*", "period": "7d"}],
        "keep_last": [{"pattern": "main", "commits": 3}],
        "tags_pin": False,
        "uncommitted_min_age": "2d",
    }


async def test_a_folder_shows_its_size_and_last_commits_on_demand(
    app: App, client: httpx.AsyncClient, repo: str
) -> None:
    await client.post(f"{repo}/branches/main/objects", params={"path": "a/x"}, content=b"x" * 2048)
    await client.post(f"{repo}/branches/main/commits", json={"message": "the first load"})
    pair = (await client.post("/auth/users/esti/credentials")).json()
    browser = Browser(app)
    async with browser.http:
        await browser.log_in(pair["access_key_id"], pair["secret_access_key"])
        plain = await browser.get(f"{LAKE}/objects")
        detailed = await browser.get(f"{LAKE}/objects", details="1")
        compared = await browser.get(f"{LAKE}/compare", ref="main", base="main~1")

    assert "details=1" in plain.text
    assert "the first load" not in plain.text
    assert "1 object, 2.0 KiB" in detailed.text
    assert "the first load" in detailed.text
    assert "1 commit ahead, 0 behind" in compared.text


@pytest.mark.parametrize("values", [[], [0, 0], [1, 2, 4], [-1, 3]])
def test_bars_and_shares_stay_within_the_chart(values: list[int]) -> None:
    assert all(0 <= bar.length <= 100 for bar in bars(values))
    assert all(0 <= bar.start + bar.length <= 100.01 for bar in shares(values))
    assert all(0 <= post.at <= 100 >= post.height >= 0 for post in posts(values, values))
    assert [post.at for post in posts([10, 20, 15], [1, 1, 1])] == [0, 100, 50]
    assert [bar.length for bar in bars([1, 2, 4])] == [25, 50, 100]
    assert [(bar.start, bar.length) for bar in shares([1, 3])] == [(0, 25), (25, 75)]
