"""Commits, branches, tags, differences, merges over HTTP."""

from __future__ import annotations

import httpx
import pytest

from lakebed.server import App
from tests.server.s3.signing import asked_as


async def commit(client: httpx.AsyncClient, repo: str, branch: str, path: str, content: bytes = b"x") -> str:
    """Upload one object, commit it; the commit's id."""
    await client.post(f"{repo}/branches/{branch}/objects", params={"path": path}, content=content)
    answer = await client.post(f"{repo}/branches/{branch}/commits", json={"message": f"add {path}"})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


async def messages(client: httpx.AsyncClient, repo: str, ref: str, **params: str | int) -> list[str]:
    answer = await client.get(f"{repo}/refs/{ref}/commits", params=params)
    assert answer.status_code == 200, answer.text
    return [found["message"] for found in answer.json()["results"]]


class TestLog:
    async def test_pages_resume_after_a_commit(self, client: httpx.AsyncClient, repo: str) -> None:
        for path in ("a", "b", "c"):
            await commit(client, repo, "main", path)

        first = (await client.get(repo + "/refs/main/commits?amount=2")).json()

        assert [found["message"] for found in first["results"]] == ["add c", "add b"]
        assert first["pagination"]["has_more"]
        rest = await messages(client, repo, "main", after=first["pagination"]["next_offset"])
        assert rest == ["add a", "Repository created"]

    async def test_it_stops_where_it_is_told(self, client: httpx.AsyncClient, repo: str) -> None:
        await commit(client, repo, "main", "a")
        stop = await commit(client, repo, "main", "b")
        await commit(client, repo, "main", "c")

        assert await messages(client, repo, "main", stop_at=stop) == ["add c", "add b"]
        assert await messages(client, repo, "main", since="2100-01-01T00:00:00Z") == []
        assert len(await messages(client, repo, "main", since="2000-01-01T00:00:00+02:00")) == 4
        assert (await client.get(repo + "/refs/main/commits?since=yesterday")).status_code == 400

    async def test_it_shows_who_touched_a_path(self, client: httpx.AsyncClient, repo: str) -> None:
        await commit(client, repo, "main", "a/1")
        await commit(client, repo, "main", "b/1")
        await commit(client, repo, "main", "a/1", b"changed")

        assert await messages(client, repo, "main", objects="a/1") == ["add a/1", "add a/1"]
        assert await messages(client, repo, "main", prefixes="b/") == ["add b/1"]

    async def test_it_can_follow_first_parents_alone(self, client: httpx.AsyncClient, repo: str) -> None:
        await client.post(repo + "/branches", json={"name": "dev", "source": "main"})
        await commit(client, repo, "dev", "d")
        await commit(client, repo, "main", "m")
        await client.post(repo + "/refs/dev/merge/main", json={"message": "merged"})

        assert set(await messages(client, repo, "main")) == {"merged", "add d", "add m", "Repository created"}
        assert await messages(client, repo, "main", first_parent="true") == ["merged", "add m", "Repository created"]


class TestRefs:
    async def test_expressions_name_commits(self, client: httpx.AsyncClient, repo: str) -> None:
        first = await commit(client, repo, "main", "a")
        second = await commit(client, repo, "main", "b")
        await client.post(repo + "/tags", json={"id": "v1-x", "ref": "main~1"})

        for expression, expected in (
            ("main", second),
            ("main@", second),
            ("main~", first),
            ("main^1", first),
            ("v1-x", first),
            (first[:12], first),
            (second, second),
        ):
            answer = await client.get(f"{repo}/commits/{expression}")
            assert (answer.status_code, answer.json().get("id")) == (200, expected), expression

    @pytest.mark.parametrize("expression", ["nope", "main~99", "0" * 64, "abc"])
    async def test_an_expression_that_names_nothing_is_not_found(
        self, client: httpx.AsyncClient, repo: str, expression: str
    ) -> None:
        answer = await client.get(f"{repo}/commits/{expression}")

        assert (answer.status_code, answer.json()) == (404, {"message": "commit not found"})

    @pytest.mark.parametrize("expression", ["main~x", "~1", "main@@", "main$~1"])
    async def test_a_malformed_expression_is_refused(
        self, client: httpx.AsyncClient, repo: str, expression: str
    ) -> None:
        assert (await client.get(f"{repo}/commits/{expression}")).status_code in {400, 404}
        assert (await client.get(f"{repo}/refs/{expression}/objects/ls")).status_code in {400, 404}

    async def test_a_tag_comes_and_goes(self, client: httpx.AsyncClient, repo: str) -> None:
        assert (await client.post(repo + "/tags", json={"id": "r-1.0", "ref": "main"})).status_code == 201
        assert (await client.get(repo + "/tags/r-1.0")).json()["id"] == "r-1.0"
        assert [tag["id"] for tag in (await client.get(repo + "/tags")).json()["results"]] == ["r-1.0"]
        assert (await client.delete(repo + "/tags/r-1.0")).status_code == 204
        assert (await client.get(repo + "/tags/r-1.0")).json() == {"message": "tag not found"}

    @pytest.mark.parametrize("tag", ["", "a b", "a..b", "/a", "r/1", "a^b", "x.lock"])
    async def test_a_bad_tag_is_refused(self, client: httpx.AsyncClient, repo: str, tag: str) -> None:
        assert (await client.post(repo + "/tags", json={"id": tag, "ref": "main"})).status_code == 400

    async def test_hidden_branches_are_shown_only_on_request(self, client: httpx.AsyncClient, repo: str) -> None:
        await client.post(repo + "/branches", json={"name": "tx-1", "source": "main", "hidden": True})

        shown = (await client.get(repo + "/branches")).json()["results"]
        all_of_them = (await client.get(repo + "/branches?show_hidden=true")).json()["results"]

        assert [branch["id"] for branch in shown] == ["main"]
        assert [branch["id"] for branch in all_of_them] == ["main", "tx-1"]

    async def test_branches_are_paged_past_hidden_ones(self, client: httpx.AsyncClient, repo: str) -> None:
        for name, hidden in (("a", False), ("b", True), ("c", True), ("d", False)):
            await client.post(repo + "/branches", json={"name": name, "source": "main", "hidden": hidden})

        first = (await client.get(repo + "/branches?amount=2")).json()
        rest = (await client.get(repo + "/branches", params={"after": first["pagination"]["next_offset"]})).json()

        assert [branch["id"] for branch in first["results"] + rest["results"]] == ["a", "d", "main"]


class TestChanging:
    async def test_a_conflict_is_told_and_a_strategy_settles_it(self, client: httpx.AsyncClient, repo: str) -> None:
        await client.post(repo + "/branches", json={"name": "dev", "source": "main"})
        await commit(client, repo, "dev", "a", b"theirs")
        await commit(client, repo, "main", "a", b"ours")

        conflict = await client.post(repo + "/refs/dev/merge/main", json={})
        nonsense = await client.post(repo + "/refs/dev/merge/main", json={"strategy": "coin"})
        diff = (await client.get(repo + "/refs/main/diff/dev")).json()["results"]
        settled = await client.post(repo + "/refs/dev/merge/main", json={"strategy": "source-wins"})

        assert (conflict.status_code, conflict.json()) == (409, {"message": "update branch: conflict found"})
        assert nonsense.status_code == 400
        assert [(found["path"], found["type"]) for found in diff] == [("a", "conflict")]
        assert settled.status_code == 200
        assert (await client.get(repo + "/refs/main/objects?path=a")).content == b"theirs"
        merged = (await client.get(repo + "/commits/main")).json()
        assert merged["metadata"][".lakefs.merge.strategy"] == "source-wins"

    async def test_each_path_of_a_conflict_may_have_its_side(self, client: httpx.AsyncClient, repo: str) -> None:
        await client.post(repo + "/branches", json={"name": "dev", "source": "main"})
        for path in "abc":
            await commit(client, repo, "dev", path, b"theirs")
            await commit(client, repo, "main", path, b"ours")
        choices = {"a": "source-wins", "b": "dest-wins", "elsewhere": "dest-wins"}

        merge = repo + "/refs/dev/merge/main"
        nonsense = await client.post(merge, json={"choices": {"a": "coin"}})
        open_ = await client.post(merge, json={"choices": choices})
        settled = await client.post(merge, json={"choices": choices, "strategy": "source-wins"})

        assert (nonsense.status_code, open_.status_code, settled.status_code) == (400, 409, 200)
        contents = [(await client.get(f"{repo}/refs/main/objects?path={path}")).content for path in "abc"]
        assert contents == [b"theirs", b"ours", b"theirs"]

    async def test_a_merge_needs_no_body(self, client: httpx.AsyncClient, repo: str) -> None:
        await client.post(repo + "/branches", json={"name": "dev", "source": "main"})
        await commit(client, repo, "dev", "a")

        assert (await client.post(repo + "/refs/dev/merge/main")).status_code == 200

    async def test_the_merge_base_is_found(self, client: httpx.AsyncClient, repo: str) -> None:
        base = await commit(client, repo, "main", "a")
        await client.post(repo + "/branches", json={"name": "dev", "source": "main"})
        source = await commit(client, repo, "dev", "b")
        destination = await commit(client, repo, "main", "c")

        answer = await client.get(repo + "/refs/dev/merge/main")

        assert answer.json() == {
            "source_commit_id": source,
            "destination_commit_id": destination,
            "base_commit_id": base,
        }

    async def test_a_commit_is_reverted_and_picked_again(self, client: httpx.AsyncClient, repo: str) -> None:
        added = await commit(client, repo, "main", "a")

        undo = await client.post(
            repo + "/branches/main/revert",
            json={"ref": added, "parent_number": 0, "commit_overrides": {"message": "no", "metadata": {"why": "x"}}},
        )
        assert undo.status_code == 204
        assert (await client.get(repo + "/refs/main/objects/stat?path=a")).status_code == 404
        head = (await client.get(repo + "/commits/main")).json()
        assert (head["message"], head["metadata"]) == ("no", {"why": "x"})

        redo = await client.post(repo + "/branches/main/cherry-pick", json={"ref": added})
        assert (redo.status_code, redo.json()["message"]) == (201, "add a")
        assert (await client.get(repo + "/refs/main/objects/stat?path=a")).status_code == 200

    async def test_resets_give_up_what_is_staged(self, client: httpx.AsyncClient, repo: str) -> None:
        branch = repo + "/branches/main"
        for path in ("a/1", "a/2", "b", "c"):
            await client.post(branch + "/objects", params={"path": path}, content=b"x")

        async def staged() -> list[str]:
            return [found["path"] for found in (await client.get(branch + "/diff")).json()["results"]]

        assert (await client.put(branch, json={"type": "object", "path": "b"})).status_code == 204
        assert await staged() == ["a/1", "a/2", "c"]
        assert (await client.put(branch, json={"type": "common_prefix", "path": "a/"})).status_code == 204
        assert await staged() == ["c"]
        assert (await client.put(branch, json={"type": "object"})).status_code == 400
        assert (await client.put(branch, json={"type": "reset"})).status_code == 204
        assert await staged() == []

    async def test_a_hard_reset_moves_the_head(self, client: httpx.AsyncClient, repo: str) -> None:
        first = await commit(client, repo, "main", "a")
        await commit(client, repo, "main", "b")

        assert (await client.put(repo + "/branches/main/hard_reset", params={"ref": first})).status_code == 204

        assert (await client.get(repo + "/branches/main")).json()["commit_id"] == first
        assert (await client.put(repo + "/branches/main/hard_reset")).status_code == 400

    async def test_a_commit_has_the_date_and_the_empty_change_it_is_given(
        self, client: httpx.AsyncClient, repo: str
    ) -> None:
        answer = await client.post(
            repo + "/branches/main/commits", json={"message": "m", "date": 1234, "allow_empty": True, "metadata": None}
        )

        assert (answer.status_code, answer.json()["creation_date"]) == (201, 1234)

    async def test_a_commits_files_are_named(self, client: httpx.AsyncClient, repo: str) -> None:
        await commit(client, repo, "main", "a")
        metarange = (await client.get(repo + "/commits/main")).json()["meta_range_id"]

        location = (await client.get(repo + "/metadata/meta_range/" + metarange)).json()["location"]

        assert location.endswith(f"/_lakefs/metaranges/{metarange}.parquet")
        assert (await client.get(repo + "/metadata/meta_range/" + "0" * 64)).status_code == 404

    async def test_the_files_of_a_tree_are_served(self, client: httpx.AsyncClient, repo: str) -> None:
        await client.post(f"{repo}/branches/main/objects", params={"path": "a"}, content=b"x")
        made = await client.post(f"{repo}/branches/main/commits", json={"message": "m"})
        files = repo + "/metadata/object"

        found = await client.get(f"{files}/meta_range/{made.json()['meta_range_id']}")

        assert (found.status_code, found.headers["content-type"]) == (200, "application/octet-stream")
        assert found.content[:4] == b"PAR1"
        assert len(found.content) == int(found.headers["content-length"])
        assert (await client.get(f"{files}/range/{made.json()['meta_range_id']}")).status_code == 404
        assert (await client.get(f"{files}/range/{'0' * 63}..")).status_code == 404
        assert (await client.get(f"{files}/other/{'0' * 64}")).status_code == 400
        assert (await client.get(repo + "/metadata/range/..%2F..%2Fx")).status_code == 404

    async def test_two_dots_compare_as_it_stands_three_since_they_parted(
        self, client: httpx.AsyncClient, repo: str
    ) -> None:
        await client.post(repo + "/branches", json={"name": "dev", "source": "main"})
        await commit(client, repo, "main", "m/1")
        await commit(client, repo, "dev", "d/1")

        async def diff(query: str) -> list[tuple[str, str]]:
            answer = await client.get(repo + "/refs/main/diff/dev" + query)
            return [(found["path"], found["type"]) for found in answer.json()["results"]]

        assert await diff("") == [("d/1", "added")]
        assert await diff("?type=two_dot") == [("d/1", "added"), ("m/1", "removed")]
        assert await diff("?type=two_dot&delimiter=/") == [("d/", "prefix_changed"), ("m/", "prefix_changed")]
        assert (await client.get(repo + "/refs/main/diff/dev?type=four")).status_code == 400
        right = (await client.get(repo + "/refs/main/diff/dev?include_right_stats=true")).json()["results"][0]["right"]
        assert right["content_type"] == "application/octet-stream"


async def test_no_door_gives_a_ref_the_name_of_a_commit(
    app: App, client: httpx.AsyncClient, repo: str, namespace: str
) -> None:
    taken = await commit(client, repo, "main", "k", b"one")
    await commit(client, repo, "main", "k", b"two")
    asked = [
        (f"{repo}/branches", {"name": taken, "source": "main"}),
        (f"{repo}/tags", {"id": taken, "ref": "main"}),
        ("/repositories", {"name": "other", "storage_namespace": f"{namespace}-other", "default_branch": taken}),
    ]

    for path, body in asked:
        answer = await client.post(path, json=body)
        assert (answer.status_code, answer.json()) == (409, {"message": f"commit ID {taken}: conflict found"})

    # The namespace of the refused repository is free again.
    assert (await client.post("/repositories", json={**asked[2][1], "default_branch": "main"})).status_code == 201
    pair = (await client.post("/auth/users/esti/credentials")).json()
    with asked_as(app, (pair["access_key_id"], pair["secret_access_key"])) as s3:
        bucket = await s3.put(f"/lake.{taken}")
        assert (bucket.status_code, "BucketAlreadyExists" in bucket.text) == (409, True), bucket.text
        assert (await s3.get(f"/lake/{taken}/k")).text == "one"
    assert (await client.get(f"{repo}/refs/{taken}/objects", params={"path": "k"})).text == "one"


async def test_a_listing_names_the_last_commit_of_each_row(client: httpx.AsyncClient, repo: str) -> None:
    async def put(branch: str, path: str, content: str) -> None:
        assert (await client.post(f"{repo}/branches/{branch}/objects?path={path}", content=content)).status_code == 201

    async def commit(branch: str, message: str) -> str:
        answer = await client.post(f"{repo}/branches/{branch}/commits", json={"message": message})
        return str(answer.json()["id"])

    await put("main", "a", "1")
    await put("main", "d/x", "1")
    await put("main", "d/y", "1")
    first = await commit("main", "first")
    await client.post(f"{repo}/branches", json={"name": "dev", "source": "main"})
    await put("dev", "d/y", "2")
    second = await commit("dev", "second")
    await put("main", "b", "1")
    third = await commit("main", "third")
    assert (await client.post(f"{repo}/refs/dev/merge/main", json={})).status_code == 200
    await put("main", "a", "2")
    await put("main", "c", "2")

    async def rows(ref: str, **query: str) -> list[tuple[str, str, bool]]:
        answer = (await client.get(f"{repo}/refs/{ref}/objects/commits", params=query)).json()
        assert answer["is_complete"]
        return [
            (row["path"], row.get("commit", {}).get("id", ""), row.get("uncommitted", False))
            for row in answer["results"]
        ]

    # Once as it is read, and once as it is kept.
    assert (
        await rows("dev", delimiter="/")
        == await rows("dev", delimiter="/")
        == [("a", first, False), ("d/", second, False)]
    )
    assert await rows("main@", prefix="d/") == [("d/x", first, False), ("d/y", second, False)]
    assert await rows("main@", prefix="b") == [("b", third, False)]
    answer = (await client.get(f"{repo}/refs/main/objects/commits", params={"delimiter": "/"})).json()
    by_path = {
        row["path"]: (row.get("commit", {}).get("id"), row.get("uncommitted", False)) for row in answer["results"]
    }
    assert by_path == {
        "a": (first, True),
        "b": (third, False),
        "c": (None, True),
        "d/": (second, False),
    }
    shorter = (await client.get(f"{repo}/refs/dev/objects/commits", params={"commits": 1})).json()
    assert not shorter["is_complete"]
    assert [row.get("commit") for row in shorter["results"] if row["path"] == "d/x"] == [None]
