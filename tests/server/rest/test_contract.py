"""What unchanged clients of the contract met elsewhere: answers, words and headers that they rest on."""

from __future__ import annotations

import httpx
import pytest

from lakebed.server import App


async def put(client: httpx.AsyncClient, repo: str, path: str, data: bytes = b"x", branch: str = "main") -> None:
    answer = await client.post(f"{repo}/branches/{branch}/objects", params={"path": path}, content=data)
    assert answer.status_code == 201, answer.text


async def commit(client: httpx.AsyncClient, repo: str, branch: str = "main") -> str:
    answer = await client.post(f"{repo}/branches/{branch}/commits", json={"message": "m"})
    assert answer.status_code == 201, answer.text
    found: str = answer.json()["id"]
    return found


async def protect(client: httpx.AsyncClient, repo: str, *patterns: str) -> None:
    rules = [{"pattern": pattern} for pattern in patterns]
    assert (await client.put(repo + "/settings/branch_protection", json=rules)).status_code == 204


class TestObjects:
    async def test_internal_headers_become_metadata(self, client: httpx.AsyncClient, repo: str) -> None:
        """Clients keep times and permissions of local files there, and compare them later."""
        headers = {"X-Lakefs-Internal-Client-Mtime": "123", "X-Lakefs-Internal-Posix-Uid": "7", "x-lakefs-meta-a": "b"}

        answer = await client.post(repo + "/branches/main/objects", params={"path": "a"}, content=b"", headers=headers)

        assert answer.json()["metadata"] == {"::lakefs::client-mtime": "123", "::lakefs::posix-uid": "7", "a": "b"}

    async def test_changed_metadata_answers_204(self, client: httpx.AsyncClient, repo: str) -> None:
        await put(client, repo, "a")

        answer = await client.put(
            repo + "/branches/main/objects/stat/user_metadata", params={"path": "a"}, json={"set": {"k": "v"}}
        )

        assert (answer.status_code, answer.content) == (204, b"")

    async def test_metadata_that_is_not_wanted_is_empty(self, client: httpx.AsyncClient, repo: str) -> None:
        headers = {"x-lakefs-meta-a": "b"}
        await client.post(repo + "/branches/main/objects", params={"path": "a"}, content=b"", headers=headers)

        stats = await client.get(repo + "/refs/main/objects/stat", params={"path": "a", "user_metadata": "false"})
        page = await client.get(repo + "/refs/main/objects/ls", params={"user_metadata": "false"})

        assert [stats.json()["metadata"], page.json()["results"][0]["metadata"]] == [{}, {}]

    async def test_an_uncommitted_removal_has_no_size(self, client: httpx.AsyncClient, repo: str) -> None:
        await put(client, repo, "a", b"four")
        await commit(client, repo)
        await client.delete(repo + "/branches/main/objects", params={"path": "a"})

        [removed] = (await client.get(repo + "/branches/main/diff")).json()["results"]

        assert (removed["type"], removed["size_bytes"]) == ("removed", 0)

    async def test_protection_rules_are_replaced_only_while_they_are_those_of_if_match(
        self, client: httpx.AsyncClient, repo: str
    ) -> None:
        url = repo + "/settings/branch_protection"

        async def put(pattern: str, if_match: str) -> int:
            return (await client.put(url, json=[{"pattern": pattern}], headers={"if-match": if_match})).status_code

        assert [await put("a", tag) for tag in ("*", "x", "")] == [412, 412, 204]
        etag = (await client.get(url)).headers["etag"].strip('"')
        assert [await put("b", tag) for tag in ("", '""', f'W/"{etag}"', f'"x", "{etag}"', etag)] == [412] * 3 + [
            204,
            412,
        ]
        assert await put("c", "*") == 204

    @pytest.mark.parametrize(
        "ranges", ["bytes=1" + "-11" * 2000 + "x", "bytes=" + "1-1, " * 5000 + "x", "bytes=" + "9" * 5000 + "-"]
    )
    async def test_no_range_takes_long_to_read(self, client: httpx.AsyncClient, repo: str, ranges: str) -> None:
        """A pattern that goes back and forth would hold the worker for ever."""
        await put(client, repo, "a", b"12345")

        answer = await client.get(repo + "/refs/main/objects", params={"path": "a"}, headers={"Range": ranges})

        assert answer.status_code in {200, 416}

    @pytest.mark.parametrize(
        ("content_type", "disposition"),
        [
            ("text/plain; charset=utf-8", "inline"),
            ("image/png", "inline"),
            ("application/json", "inline"),
            ("application/pdf", "inline"),
            ("text/html", "attachment"),
            ("image/svg+xml", "attachment"),
            ("application/octet-stream", "attachment"),
        ],
    )
    async def test_a_browser_shows_what_cannot_run_scripts(
        self, client: httpx.AsyncClient, repo: str, content_type: str, disposition: str
    ) -> None:
        headers = {"Content-Type": content_type}
        await client.post(repo + "/branches/main/objects", params={"path": "a"}, content=b"x", headers=headers)

        answer = await client.get(repo + "/refs/main/objects", params={"path": "a"})

        assert answer.headers["content-disposition"] == disposition
        assert answer.headers["x-content-type-options"] == "nosniff"

    @pytest.mark.parametrize("text", ["a\r\nx: y", "a\x00", "text/\u20ac", "a\x7f", "\x9b1m"])
    async def test_what_no_header_can_carry_is_refused(self, client: httpx.AsyncClient, repo: str, text: str) -> None:
        staged = {"physical_address": "mem://outside/x", "checksum": "c", "size_bytes": 1}
        address = (await client.get(repo + "/branches/main/staging/backing", params={"path": "a"})).json()
        linked = {"staging": address, "checksum": "c", "size_bytes": 0}

        for fields in ({"content_type": text}, {"checksum": text}):
            for path, body in (("objects", staged), ("staging/backing", linked)):
                answer = await client.put(f"{repo}/branches/main/{path}", params={"path": "a"}, json={**body, **fields})
                assert answer.status_code == 400, answer.text
                assert "header" in answer.json()["message"]


class TestBranches:
    async def test_uncommitted_changes_stop_a_merge_a_revert_and_a_pick(
        self, client: httpx.AsyncClient, repo: str
    ) -> None:
        """Transactions of the `lakefs` package rest on it: they merge only into what nobody else writes to."""
        await client.post(repo + "/branches", json={"name": "work", "source": "main"})
        await put(client, repo, "a", branch="work")
        picked = await commit(client, repo, "work")
        await put(client, repo, "b")

        merged = await client.post(repo + "/refs/work/merge/main", json={})
        reverted = await client.post(repo + "/branches/main/revert", json={"ref": picked, "parent_number": 1})
        cherry_picked = await client.post(repo + "/branches/main/cherry-pick", json={"ref": picked})

        for answer in (merged, reverted, cherry_picked):
            assert (answer.status_code, answer.json()["message"]) == (
                400,
                "uncommitted changes (dirty branch): main",
            )
        await commit(client, repo)
        assert (await client.post(repo + "/refs/work/merge/main", json={})).status_code == 200

    async def test_a_picked_commit_names_its_origin(self, client: httpx.AsyncClient, repo: str) -> None:
        await client.post(repo + "/branches", json={"name": "work", "source": "main"})
        await put(client, repo, "a", branch="work")
        picked = await commit(client, repo, "work")

        made = (await client.post(repo + "/branches/main/cherry-pick", json={"ref": "work"})).json()

        assert made["metadata"] == {"cherry-pick-origin": picked, "cherry-pick-committer": "esti"}

    async def test_a_merge_is_reverted_or_picked_only_against_a_named_parent(
        self, client: httpx.AsyncClient, repo: str
    ) -> None:
        await client.post(repo + "/branches", json={"name": "work", "source": "main"})
        await put(client, repo, "a", branch="work")
        await commit(client, repo, "work")
        await client.post(repo + "/refs/work/merge/main", json={})

        for change, doing in (("revert", "reverting"), ("cherry-pick", "cherry-picking")):
            body = {"ref": "main", "parent_number": 0} if change == "revert" else {"ref": "main"}
            answer = await client.post(f"{repo}/branches/main/{change}", json=body)
            words = f"must specify 1-based parent number for {doing} merge commit"
            assert (answer.status_code, answer.json()["message"]) == (409, words)

    async def test_a_revert_names_the_ref_as_it_was_given(self, client: httpx.AsyncClient, repo: str) -> None:
        await put(client, repo, "a")
        await commit(client, repo)

        await client.post(repo + "/branches/main/revert", json={"ref": "main@", "parent_number": 0})

        head = (await client.get(repo + "/refs/main/commits", params={"amount": 1})).json()["results"][0]
        assert head["message"] == "Revert main@"

    async def test_a_limited_log_promises_no_more(self, client: httpx.AsyncClient, repo: str) -> None:
        """Clients that page until there is no more would read all of it."""
        for path in ("a", "b", "c"):
            await put(client, repo, path)
            await commit(client, repo)

        page = (await client.get(repo + "/refs/main/commits", params={"limit": "true", "amount": 2})).json()

        assert len(page["results"]) == 2
        assert (page["pagination"]["has_more"], page["pagination"]["next_offset"]) == (False, "")

    @pytest.mark.parametrize("expression", ["main$", "main^2", "main~1^2"])
    async def test_what_cannot_be_a_commit_is_malformed(
        self, client: httpx.AsyncClient, repo: str, expression: str
    ) -> None:
        for path in ("a", "b"):
            await put(client, repo, path)
            await commit(client, repo)

        assert (await client.get(f"{repo}/commits/{expression}")).status_code == 400

    async def test_staged_changes_are_no_commit_to_begin_at_to_merge_or_to_compare(
        self, client: httpx.AsyncClient, repo: str
    ) -> None:
        """The head in their place would leave out just what was asked for."""
        await put(client, repo, "a")
        await commit(client, repo)
        await client.post(f"{repo}/branches", json={"name": "dev", "source": "main"})
        await put(client, repo, "staged")

        refused = [
            await client.post(f"{repo}/branches", json={"name": "x", "source": "main$"}),
            await client.post(f"{repo}/tags", json={"id": "x", "ref": "main$"}),
            await client.post(f"{repo}/sandboxes", json={"source": "main$", "ttl": "1h"}),
            await client.post(f"{repo}/refs/main$/merge/dev", json={}),
            await client.put(f"{repo}/branches/dev/hard_reset", params={"ref": "main$"}),
            await client.post(f"{repo}/branches/dev/cherry-pick", json={"ref": "main$"}),
            await client.post(f"{repo}/branches/dev/revert", json={"ref": "main$", "parent_number": 0}),
            await client.get(f"{repo}/refs/dev/diff/main$"),
            await client.get(f"{repo}/refs/main$/commits"),
        ]
        pull = {"title": "t", "source_branch": "main$", "destination_branch": "dev"}
        asked = await client.post(f"{repo}/pulls", json=pull)
        read = await client.get(f"{repo}/refs/main$/objects", params={"path": "staged"})
        listed = await client.get(f"{repo}/refs/main$/objects/ls")
        last = await client.get(f"{repo}/refs/main$/objects/commits")

        assert [(answer.url, answer.text) for answer in refused if answer.status_code != 400] == []
        assert all("`$` stands for what is staged" in answer.text for answer in refused)
        assert asked.status_code in {400, 404}
        assert read.status_code == listed.status_code == 200
        assert [row["path"] for row in last.json()["results"]] == ["a", "staged"]

    async def test_what_is_not_found_is_named(self, client: httpx.AsyncClient, repo: str) -> None:
        for path, params, message in (
            ("/refs/nope/commits", {}, "ref: not found"),
            ("/refs/main/commits", {"stop_at": "nope"}, "stop_at: not found"),
        ):
            answer = await client.get(repo + path, params=params)
            assert (answer.status_code, answer.json()["message"]) == (404, message)
        for change, body in (("revert", {"ref": "nope", "parent_number": 0}), ("cherry-pick", {"ref": "nope"})):
            answer = await client.post(f"{repo}/branches/main/{change}", json=body)
            assert (answer.status_code, answer.json()["message"]) == (404, "get commit by ref nope: not found")

    async def test_a_log_ends_at_the_first_commit_that_is_too_old(self, client: httpx.AsyncClient, repo: str) -> None:
        for path, date in (("a", 2_000_000_000), ("b", 1_000_000_000), ("c", 2_000_000_000)):
            await put(client, repo, path)
            made = await client.post(repo + "/branches/main/commits", json={"message": path, "date": date})
            assert made.status_code == 201

        page = (await client.get(repo + "/refs/main/commits", params={"since": "2020-01-01T00:00:00Z"})).json()

        assert [one["message"] for one in page["results"]] == ["c"]


class TestProtection:
    async def test_an_address_is_handed_out_and_refused_when_it_is_linked(
        self, client: httpx.AsyncClient, repo: str
    ) -> None:
        await protect(client, repo, "main")
        backing = repo + "/branches/main/staging/backing"

        address = await client.get(backing, params={"path": "a"})
        linked = await client.put(
            backing, params={"path": "a"}, json={"staging": address.json(), "checksum": "c", "size_bytes": 0}
        )

        assert address.status_code == 200
        assert (linked.status_code, linked.json()["message"]) == (403, "cannot write to protected branch")

    async def test_paths_of_a_bulk_deletion_are_refused_one_by_one(self, client: httpx.AsyncClient, repo: str) -> None:
        await put(client, repo, "a")
        await protect(client, repo, "main")

        answer = await client.post(repo + "/branches/main/objects/delete", json={"paths": ["a", "b"]})

        assert answer.status_code == 200
        words = {"status_code": 403, "message": "cannot write to protected branch"}
        assert answer.json()["errors"] == [{"path": "a", **words}, {"path": "b", **words}]

    async def test_a_protected_branch_takes_picks_and_can_be_deleted(
        self, client: httpx.AsyncClient, repo: str
    ) -> None:
        for branch in ("work", "kept"):
            await client.post(repo + "/branches", json={"name": branch, "source": "main"})
        await put(client, repo, "a", branch="work")
        await commit(client, repo, "work")
        await protect(client, repo, "kept")

        refused = await client.post(repo + "/branches/kept/commits", json={"message": "m", "allow_empty": True})

        assert (refused.status_code, refused.json()["message"]) == (403, "cannot commit to protected branch")
        assert (await client.post(repo + "/branches/kept/cherry-pick", json={"ref": "work"})).status_code == 201
        assert (await client.delete(repo + "/branches/kept")).status_code == 204

    async def test_a_pattern_protected_twice_is_listed_once(self, client: httpx.AsyncClient, repo: str) -> None:
        await protect(client, repo, "main", "v*", "main")

        rules = (await client.get(repo + "/settings/branch_protection")).json()

        assert [rule["pattern"] for rule in rules] == ["main", "v*"]


class TestInstallation:
    async def test_the_version_is_the_contracts_and_ours_stands_beside_it(self, client: httpx.AsyncClient) -> None:
        """A client that needs 1.3.1 compares."""
        config = (await client.get("/config")).json()["version_config"]

        assert tuple(map(int, config["version"].split("."))) >= (1, 3, 1)
        assert config["lakebed_version"]

    async def test_a_path_outside_the_api_answers_with_a_page(self, app: App) -> None:
        """By it clients tell a wrong endpoint from wrong credentials."""
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://lake") as client:
            for path in ("/", "/api/v11/config", "/favicon.ico"):
                answer = await client.get(path)
                assert (answer.status_code, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
                assert "<h1>Lakebed</h1>" in answer.text

    async def test_an_unknown_storage_is_refused(self, client: httpx.AsyncClient, namespace: str) -> None:
        body = {"name": "lake", "storage_namespace": namespace, "storage_id": "bogus"}

        answer = await client.post("/repositories", json=body)

        assert answer.status_code == 400
        assert answer.json()["message"].startswith("storage id: invalid value: validation error")

    async def test_the_metadata_of_a_read_only_repository_may_change(
        self, client: httpx.AsyncClient, namespace: str
    ) -> None:
        body = {"name": "fixed", "storage_namespace": namespace, "read_only": True}
        assert (await client.post("/repositories", json=body)).status_code == 201
        metadata = "/repositories/fixed/metadata"

        added = await client.post(metadata, json={"metadata": {"a": "1", "b": "2"}})
        removed = await client.request("DELETE", metadata, json={"keys": ["a"]})

        assert (added.status_code, removed.status_code) == (204, 204)
        assert (await client.get(metadata)).json() == {"b": "2"}

    async def test_a_policy_keeps_its_id(self, client: httpx.AsyncClient) -> None:
        statement = [{"effect": "allow", "action": ["fs:ReadObject"], "resource": "*"}]
        await client.post("/auth/policies", json={"id": "P", "statement": statement})

        answer = await client.put("/auth/policies/P", json={"id": "Q", "statement": statement})

        assert (answer.status_code, answer.json()["message"]) == (400, "can't update policy id")


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/branches", {"name": "x", "source": ""}, "source"),
        ("/tags", {"id": "x", "ref": ""}, "ref"),
        ("/branches/main/revert", {"ref": "", "parent_number": 0}, "ref"),
        ("/branches/main/cherry-pick", {"ref": ""}, "ref"),
        ("/branches/main/objects/copy?dest_path=x", {"src_path": ""}, "src_path"),
        ("/branches/main/objects/move?dest_path=x", {"src_path": ""}, "src_path"),
        ("/sandboxes", {"source": "", "ttl": "1h"}, "source"),
        ("/gc/restore", {}, "path"),
    ],
)
async def test_a_field_that_is_empty_or_missing_is_refused_by_its_name(
    client: httpx.AsyncClient, repo: str, path: str, body: dict[str, object], field: str
) -> None:
    answer = await client.post(repo + path, json=body)

    assert answer.status_code == 400
    assert f"/{field}" in answer.text or f"`{field}`" in answer.text
