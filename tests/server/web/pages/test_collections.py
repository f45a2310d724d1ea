"""Collections in the browser: what a run takes, its charts, and what applying asks for."""

from __future__ import annotations

import dataclasses
import html
import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import httpx
import pytest

from lakebed.base import bars, curve, posts, shares, size_ticks, spans
from lakebed.gc.messages import RunKind
from lakebed.server import App, AppState, create_app
from lakebed.server.app import storage_config
from lakebed.wire import StorageConfig
from tests.server.rest.gc.test_plans import write as write
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
        storage = await browser.get(f"{LAKE}/storage")
        few = await browser.get(f"{LAKE}/collections", shown="erasure")
        one = await browser.get(f"{LAKE}/collections/r1")
        since = await browser.get(f"{LAKE}/collections/r1", difference="1")
        first = await browser.get(f"{LAKE}/collections/r0", difference="1")
        nothing = await browser.get(f"{LAKE}/collections/u1")
        others = [await browser.get(f"{LAKE}/collections/x-{kind.value}") for kind in RunKind if not kind.can_wait]
        wrong = await browser.fill(one, "apply", typed="1")
        right = await browser.fill(one, "apply", typed="2", window="never")

    assert every.status_code == 200, every.text
    assert every.text.count("collections/r1") == 1
    assert [each in few.text for each in ("collections/x-erasure", "collections/r1")] == [True, False]
    assert 'data-later="storage"' in every.text
    assert "Waits for a run" in storage.text
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


async def test_a_command_that_plans_has_the_folder_only_for_an_administrator(
    state: AppState, client: httpx.AsyncClient, repo: str, tmp_path: Path
) -> None:
    folder = tmp_path / "a lake"
    (folder / "objects").mkdir(parents=True)
    await client.post("/auth/users", json={"id": "dev"})
    await client.put("/auth/groups/Developers/members/dev")
    pairs = {user: (await client.post(f"/auth/users/{user}/credentials")).json() for user in ("esti", "dev")}
    local = storage_config("local", presign=False)

    async def options(storage: StorageConfig, data_dir: Path) -> list[str]:
        app = create_app(dataclasses.replace(state, storage=storage, data_dir=data_dir))
        found = []
        for pair in pairs.values():
            browser = Browser(app)
            async with browser.http:
                await browser.log_in(pair["access_key_id"], pair["secret_access_key"])
                pages = [(await browser.get(f"{LAKE}/{page}")).text for page in ("collections", "erasures")]
                shown = r"lakebed (?:gc plan lakefs://lake|erase plan lakefs://lake PATH --why REASON)(.*?)</code>"
                collected, erased = re.findall(shown, html.unescape("".join(pages)))
                assert collected == erased
                found.append(collected)
        return found

    assert await options(local, folder) == [f" --data '{folder}'", " --data DIR"]
    assert await options(local, tmp_path / "other") == [" --data DIR"] * 2
    assert await options(state.storage, folder) == ["", ""]


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
        await client.post(f"{repo}/branches/main/objects", params={"path": "old"}, content=b"x")
        for path, date in (("old", 1_700_000_000), ("new", 1_700_000_001)):
            await client.post(f"{repo}/branches/main/objects", params={"path": path}, content=path.encode())
            await client.post(f"{repo}/branches/main/commits", json={"message": path, "date": date})
            await client.delete(f"{repo}/branches/main/objects", params={"path": "old"})
        await client.post(f"{repo}/branches/main/commits", json={"message": "gone", "date": 1_700_000_002})
        asked = await browser.fill(saved, "by=fields", default="2d", tags_pin="1")
        other = await browser.fill(asked, "by=fields", typed="lake")
        confirmed = await browser.follow(await browser.fill(asked, "by=fields", typed="1"))
        saved = await browser.get(f"{LAKE}/rules")
        bad = await browser.fill(saved, "by=fields", typed="lake", default="soon")
        fields = {"pattern": "etl-*", "period": "7d", "keep_pattern": "main", "keep_commits": "3", "min_age": "2d"}
        written = await browser.follow(await browser.fill(saved, "by=fields", typed="lake", tags_pin="", **fields))
        tried = await browser.post(
            f"{LAKE}/rules/try?by=fields", fields | {"token": await browser.token(), "default": "1h"}
        )
        no_number = await browser.fill(written, "by=fields", typed="lake", keep_commits="many", keep_pattern="x")

    assert [page.status_code for page in (asked, other)] == [400, 400]
    assert "Type <strong><bdi>1</bdi></strong>, the number of objects that become due," in asked.text
    assert ("Nothing is saved yet" in asked.text, 'value="2d"' in asked.text) == (True, True)
    assert "Version 2 is in force" in confirmed.text
    assert late.status_code == 412
    assert bad.status_code == 400
    assert 'value="soon"' in bad.text
    assert (no_number.status_code, "Write a number for" in no_number.text) == (400, True)
    assert "Would expire now" in tried.text
    assert 'class="drawn curve"' in tried.text
    assert ("; dashed: by the rules in force" in tried.text, 'class="before"' in tried.text) == (True, True)
    assert (await client.get(f"{repo}/gc/rules/full")).json()["rules"] == {
        "default": "2d",
        "branches": [{"pattern": "etl-*", "period": "7d"}],
        "keep_last": [{"pattern": "main", "commits": 3}],
        "tags_pin": False,
        "uncommitted_min_age": "2d",
    }


async def test_a_lifecycle_policy_is_changed_by_fields_and_keeps_what_they_do_not_show(
    app: App, client: httpx.AsyncClient, repo: str
) -> None:
    policy: dict[str, Any] = {
        "rules": {"logs": {"prefix": "logs/", "days": 10, "branch_days": {"main": 30}, "min_size": 5}},
        "pins": {"prefixes": ["logs/audit/"]},
        "branches": {"tmp-*": {"idle": "36h", "uncommitted": "drop"}},
    }
    await client.put(f"{repo}/lifecycle/policy", json={"policy": policy}, params={"if_version": 0})
    pair = (await client.post("/auth/users/esti/credentials")).json()
    browser = Browser(app)
    async with browser.http:
        await browser.log_in(pair["access_key_id"], pair["secret_access_key"])
        page = await browser.get(f"{LAKE}/lifecycle")
        fields = {"token": await browser.token(), "if_version": "1", "typed": "lake", "id": "logs", "path": "logs/*.a"}
        fields |= {"period": "2w", "exceptions": "main=6mo, dev-*=1d", "pattern": "tmp-*", "idle": "3d"}
        fields |= {"was": json.dumps(policy["rules"]["logs"]), "idle_was": json.dumps(policy["branches"]["tmp-*"])}
        checked = await browser.post(f"{LAKE}/lifecycle/check?by=fields", fields | {"period": "soon"})
        wrong = await browser.post(f"{LAKE}/lifecycle?by=fields", fields | {"exceptions": "main"})
        saved = await browser.follow(await browser.post(f"{LAKE}/lifecycle?by=fields", fields))
        late = await browser.fill(page, "by=json", typed="lake", policy="{}")
        no_json = await browser.fill(saved, "by=json", typed="lake", policy="{")
        gone = await browser.follow(await browser.fill(saved, "lifecycle/remove", typed="lake"))

    for words in ("logs/audit/", 'value="main=30d"', 'value="10d"', "from 5 B", "idle for 36h", "default branch"):
        assert words in page.text
    assert (checked.status_code, "The policy would be refused" in checked.text) == (200, True)
    assert "rules.logs.period" in checked.text
    assert (wrong.status_code, "is not BRANCH=PERIOD" in wrong.text) == (400, True)
    assert "Version 2 is in force. Nothing was deleted." in saved.text
    assert (late.status_code, no_json.status_code, "This is no JSON" in no_json.text) == (412, 400, True)
    assert "No policy is in force" in gone.text
    written = (await client.get(f"{repo}/lifecycle/policy", params={"version": 2})).json()["policy"]
    rule = {"path": "logs/*.a", "period": "2w", "branches": {"main": "6mo", "dev-*": "1d"}, "min_size": 5}
    idle = {"tmp-*": {"idle": "3d", "uncommitted": "drop"}}
    assert written == {"rules": {"logs": rule}, "pins": policy["pins"], "branches": idle}


async def test_a_rule_of_a_lifecycle_policy_keeps_its_conditions_and_its_glob_under_a_new_name(
    app: App, client: httpx.AsyncClient, repo: str
) -> None:
    rule = {"path": "tmp", "period": "2d", "metadata": {"keep": "no"}, "enabled": False}
    policy: dict[str, Any] = {"rules": {"a": rule}, "branches": {"dev-*": {"idle": "9d", "merged": True}}}
    await client.put(f"{repo}/lifecycle/policy", json={"policy": policy}, params={"if_version": 0})
    pair = (await client.post("/auth/users/esti/credentials")).json()
    browser = Browser(app)
    async with browser.http:
        await browser.log_in(pair["access_key_id"], pair["secret_access_key"])
        page = await browser.get(f"{LAKE}/lifecycle")
        rows: dict[str, Any] = {
            field: [html.unescape(value) for value in re.findall(rf'name="{field}" value="([^"]*)"', page.text)]
            for field in ("id", "was", "path", "period", "exceptions", "pattern", "idle_was", "idle")
        }
        rows |= {"id": ["b", *rows["id"][1:]], "pattern": ["dev-?", *rows["pattern"][1:]]}
        fields: dict[str, Any] = {"token": await browser.token(), "if_version": "1", "typed": "lake"}
        short = await browser.post(f"{LAKE}/lifecycle?by=fields", fields | rows | {"was": []})
        saved = await browser.post(f"{LAKE}/lifecycle?by=fields", fields | rows)

    assert (short.status_code, saved.status_code) == (400, 303)
    written = (await client.get(f"{repo}/lifecycle/policy", params={"version": 2})).json()["policy"]
    assert written == {"rules": {"b": rule}, "branches": {"dev-?": policy["branches"]["dev-*"]}}


async def test_a_sandbox_is_lent_extended_and_ended(app: App, client: httpx.AsyncClient, repo: str) -> None:
    pair = (await client.post("/auth/users/esti/credentials")).json()
    browser = Browser(app)
    async with browser.http:
        await browser.log_in(pair["access_key_id"], pair["secret_access_key"])
        empty = await browser.get(f"{LAKE}/sandboxes")
        made = await browser.fill(empty, "sandboxes", source="main", ttl="2d", name="kim")
        bad = await browser.fill(empty, "sandboxes", source="main", ttl="soon")
        [sandbox] = (await client.get(f"{repo}/sandboxes")).json()["results"]
        one = await browser.get(f"{LAKE}/sandboxes/{sandbox['id']}")
        others = await browser.get(f"{LAKE}/sandboxes", prefix="other")
        longer = await browser.follow(await browser.fill(one, "extend", ttl="9d"))
        wrong = await browser.fill(one, "/end", typed="kim")
        ended = await browser.follow(await browser.fill(one, "/end", typed=sandbox["id"]))

    assert "No sandbox yet" in empty.text
    assert "No sandbox has a name that begins so" in others.text
    assert (made.text.count("data-copy"), sandbox["access_key_id"] in made.text) == (2, True)
    assert (bad.status_code, 'value="soon"' in bad.text) == (400, True)
    assert "lasts 9d from now" in longer.text
    assert (wrong.status_code, "Nothing was changed" in wrong.text) == (400, True)
    assert "Its key is revoked. Its branch can be undeleted." in ended.text
    assert (await client.get(f"{repo}/sandboxes")).json()["results"] == []


async def test_quotas_are_set_shown_and_removed(app: App, client: httpx.AsyncClient, repo: str) -> None:
    pair = (await client.post("/auth/users/esti/credentials")).json()
    await client.post(f"{repo}/branches/main/objects", params={"path": "a"}, content=b"x" * 512)
    browser = Browser(app)
    async with browser.http:
        await browser.log_in(pair["access_key_id"], pair["secret_access_key"])
        empty = await browser.get(f"{LAKE}/quotas")
        bad = await browser.fill(empty, "quotas", branch="main", limit="much")
        await browser.fill(empty, "quotas", branch="", limit="1KiB")
        both = await browser.follow(await browser.fill(empty, "quotas", branch="main", limit="2KiB"))
        full = await client.post(f"{repo}/branches/main/objects", params={"path": "b"}, content=b"x" * 1024)
        own = await browser.follow(await browser.fill(await browser.get("/user"), "/user/quota", limit="3KiB"))
        counted = await browser.follow(await browser.fill(both, "/count"))
        left = await browser.follow(await browser.fill(counted, "branch=main", typed="main"))

    assert "only the storage limits" in empty.text
    assert (bad.status_code, 'value="much"' in bad.text) == (400, True)
    assert ("512 B" in both.text, "1.0 KiB" in both.text, "2.0 KiB" in both.text) == (True, True, True)
    assert both.text.count('<rect x="0.0" width="50.0"') == 1
    assert full.status_code == 403
    assert "3.0 KiB" in own.text
    assert ("1.0 KiB" in left.text, "2.0 KiB" in left.text, "Last counted" in counted.text) == (True, False, True)


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
    assert curve([0, 1, 4], [0, 1, 2], highest=4) == [(0, 100), (25, 75), (100, 50)]
    assert curve([], [], highest=0) == []
    assert [size_ticks(size) for size in (0, 65, 1536)] == [[0, 1], [0, 20, 40, 60, 80], [0, 512, 1024, 1536]]
    assert all(
        size <= size_ticks(size)[-1] < 2 * size + 2 and len(size_ticks(size)) <= 5 for size in range(0, 9**9, 7**7)
    )
    assert spans([(None, 5), (10, None), (7, 7)], start=0, end=20) == [(0, 25), (50, 50), (35, 0)]
    assert [(bar.start, bar.length) for bar in shares([1, 3])] == [(0, 25), (25, 75)]


async def test_a_search_that_takes_longer_than_a_page_goes_on_by_itself(
    app: App, client: httpx.AsyncClient, repo: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lakebed.server.web.pages.keeping.SEARCHED_FILES", 1)
    monkeypatch.setattr("lakebed.server.web.pages.collections.SEARCHED_FILES", 1)
    await client.post(f"{repo}/branches/main/objects", params={"path": "a/x&y"}, content=b"x")
    await client.post(f"{repo}/branches/main/commits", json={"message": "the first load"})
    pair = (await client.post("/auth/users/esti/credentials")).json()
    browser = Browser(app)

    async def followed(page: str, **query: str) -> tuple[httpx.Response, int]:
        answer, pages = await browser.get(f"{LAKE}/{page}", **query), 1
        while found := re.search(r'<noscript><meta http-equiv="refresh" content="0; url=([^"]+)">', answer.text):
            assert re.search(rf'data-following>Looking through [^<]+ <a href="{re.escape(found[1])}">', answer.text)
            answer, pages = await browser.http.get(urljoin(str(answer.url), html.unescape(found[1]))), pages + 1
        assert answer.status_code == 200
        return answer, pages

    monkeypatch.setattr("lakebed.versions.history.history.SEARCHED_MAX", 1)
    async with browser.http:
        await browser.log_in(pair["access_key_id"], pair["secret_access_key"])
        history, of_history = await followed("commits", ref="main", path="b&/")
        against_commit = await browser.get(f"{LAKE}/compare", ref="main", base="main~1")
        why, pages = await followed("why", ref="main", path="a/x&y")
        storage, of_storage = await followed("storage", committed="1")

    assert (pages > 2, of_storage > 2) == (True, True)
    assert ("changed this path" in history.text, of_history) == (True, 2)
    assert ("choose a branch to merge into" in against_commit.text, ">Merge<" in against_commit.text) == (True, False)
    assert ("kept" in why.text, "Looking through" in why.text) == (True, False)
    assert ("Other commits, at most" in storage.text, "Count branches" in storage.text) == (True, False)


async def test_rules_are_tried_page_by_page_and_saved_by_the_number_that_was_shown(
    app: App, client: httpx.AsyncClient, repo: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lakebed.server.web.pages.keeping.SEARCHED_FILES", 1)
    for date, path in enumerate(("old", "new", "newest"), 1_700_000_000):
        await client.post(f"{repo}/branches/main/objects", params={"path": path}, content=path.encode())
        await client.post(f"{repo}/branches/main/commits", json={"message": path, "date": date})
        await client.delete(f"{repo}/branches/main/objects", params={"path": path})
    await client.post(f"{repo}/branches/main/commits", json={"message": "gone", "date": 1_700_000_003})
    pair = (await client.post("/auth/users/esti/credentials")).json()
    browser = Browser(app)

    async def followed(answer: httpx.Response) -> tuple[httpx.Response, int]:
        answer, pages = await browser.follow(answer), 1
        while found := re.search(r'<noscript><meta http-equiv="refresh" content="0; url=([^"]+)">', answer.text):
            assert "Nothing is saved or deleted" in answer.text
            answer, pages = await browser.http.get(urljoin(str(answer.url), html.unescape(found[1]))), pages + 1
        assert answer.status_code == 200, answer.text
        return answer, pages

    async with browser.http:
        await browser.log_in(pair["access_key_id"], pair["secret_access_key"])
        page = await browser.get(f"{LAKE}/rules")
        tried, pages = await followed(await browser.fill(page, "rules/try?by=fields", default="2d", tags_pin="1"))
        shared = await browser.http.get(str(tried.url))
        asked, _ = await followed(await browser.fill(page, "rules?by=fields", default="2d", tags_pin="1"))
        wrong, _ = await followed(await browser.fill(asked, "rules?by=fields", typed="4"))
        other, _ = await followed(await browser.fill(asked, "rules?by=fields", typed="3", default="1d"))
        before = (await client.get(f"{repo}/gc/rules/full")).json()["version"]
        saved = await browser.follow(await browser.fill(asked, "rules?by=fields", typed="3"))
        long = json.dumps({"default": "2d", "branches": [{"pattern": f"b-{n:03}", "period": "2d"} for n in range(200)]})
        whole = await browser.fill(saved, "rules/try?by=json", rules=long)
        nothing = await browser.follow(await browser.get(f"{LAKE}/rules/try"))

    assert pages > 5
    assert "Would expire now" in tried.text
    assert ("Nothing is saved yet" in tried.text, "Nothing is saved yet" in asked.text) == (False, True)
    # The address has the rules, so another person sees the same trial.
    assert "rules=%7B%22default%22%3A%222d%22" in str(tried.url)
    assert 'value="2d"' in shared.text
    assert "Type <strong><bdi>3</bdi></strong>, the number of objects that become due," in asked.text
    assert ["Nothing is saved yet" in answer.text for answer in (wrong, other)] == [True, True]
    assert (before, "Version 1 is in force" in saved.text) == (0, True)
    assert (whole.status_code, "Would expire now" in whole.text) == (200, True)
    assert "Try and change" in nothing.text
    # The page of a trial explains a branch at the address of the rules.
    assert '<form class="filter" action="../rules" method="get">' in whole.text
