"""Listing, deleting, copying, staging."""

from __future__ import annotations

import httpx
import pytest

from lakebed.server import AppState


async def put(client: httpx.AsyncClient, repo: str, *paths: str) -> None:
    for path in paths:
        answer = await client.post(repo + "/branches/main/objects", params={"path": path}, content=path.encode())
        assert answer.status_code == 201, answer.text


async def pages(client: httpx.AsyncClient, url: str, **params: str | int) -> list[str]:
    """Every path, page by page."""
    found: list[str] = []
    after = ""
    while True:
        answer = (await client.get(url, params={**params, "after": after})).json()
        assert answer["pagination"]["results"] == len(answer["results"])
        found += [result["path"] for result in answer["results"]]
        if not answer["pagination"]["has_more"]:
            assert answer["pagination"]["next_offset"] == ""
            return found
        after = answer["pagination"]["next_offset"]


class TestListing:
    async def test_pages_are_in_order_and_complete(self, client: httpx.AsyncClient, repo: str) -> None:
        paths = sorted(f"d{i % 3}/{i:02d}" for i in range(10))
        await put(client, repo, *paths)

        for amount in (1, 2, 3, 10, 11):
            assert await pages(client, repo + "/refs/main/objects/ls", amount=amount) == paths

    async def test_a_delimiter_folds_what_lies_deeper(self, client: httpx.AsyncClient, repo: str) -> None:
        await put(client, repo, "a", "b/1", "b/2", "b/c/3", "d/", "e")

        ls = repo + "/refs/main/objects/ls"
        assert await pages(client, ls, delimiter="/") == ["a", "b/", "d/", "e"]
        assert await pages(client, ls, delimiter="/", amount=1) == ["a", "b/", "d/", "e"]
        assert await pages(client, ls, delimiter="/", prefix="b/") == ["b/1", "b/2", "b/c/"]
        assert await pages(client, ls, prefix="b/c") == ["b/c/3"]

    async def test_staged_and_committed_are_one_list(self, client: httpx.AsyncClient, repo: str) -> None:
        await put(client, repo, "a", "b", "c")
        await client.post(repo + "/branches/main/commits", json={"message": "m"})
        await client.post(repo + "/branches/main/objects", params={"path": "b"}, content=b"another b")
        await put(client, repo, "d")
        await client.delete(repo + "/branches/main/objects?path=a")

        assert await pages(client, repo + "/refs/main/objects/ls") == ["b", "c", "d"]
        assert await pages(client, repo + "/refs/main@/objects/ls") == ["a", "b", "c"]
        assert await pages(client, repo + "/branches/main/diff") == ["a", "b", "d"]

    @pytest.mark.parametrize("amount", ["1001", "-2", "many", "1.5", "9" * 30])
    async def test_an_amount_out_of_bounds_is_refused(self, client: httpx.AsyncClient, repo: str, amount: str) -> None:
        assert (await client.get(repo + f"/refs/main/objects/ls?amount={amount}")).status_code == 400

    async def test_zero_and_minus_one_are_the_largest_page(self, client: httpx.AsyncClient, repo: str) -> None:
        await put(client, repo, *(f"{i:03d}" for i in range(101)))

        for amount, expected in (("", 100), ("?amount=0", 101), ("?amount=-1", 101)):
            answer = (await client.get(repo + "/refs/main/objects/ls" + amount)).json()
            assert len(answer["results"]) == expected


class TestChanges:
    async def test_deleting_is_repeatable(self, client: httpx.AsyncClient, repo: str) -> None:
        await put(client, repo, "a")

        for _ in range(2):
            assert (await client.delete(repo + "/branches/main/objects?path=a")).status_code == 204
        assert (await client.get(repo + "/refs/main/objects/stat?path=a")).status_code == 404

    async def test_many_are_deleted_in_one_request(self, client: httpx.AsyncClient, repo: str) -> None:
        await put(client, repo, "a", "b", "c")
        url = repo + "/branches/main/objects/delete"

        answer = await client.post(url, json={"paths": ["a", "c", "never"]})

        assert (answer.status_code, answer.json()) == (200, {"errors": []})
        assert await pages(client, repo + "/refs/main/objects/ls") == ["b"]
        assert (await client.post(url, json={"paths": ["x"] * 1001})).status_code == 400
        answer = await client.post(url, json={"paths": ["", "b"]})
        assert [error["path"] for error in answer.json()["errors"]] == [""]
        assert await pages(client, repo + "/refs/main/objects/ls") == []

    async def test_a_copy_is_its_own_object(self, client: httpx.AsyncClient, repo: str) -> None:
        await put(client, repo, "a")
        copied = await client.post(
            repo + "/branches/main/objects/copy?dest_path=b", json={"src_path": "a", "src_ref": "main"}
        )
        assert copied.status_code == 201

        await client.delete(repo + "/branches/main/objects?path=a")

        assert (await client.get(repo + "/refs/main/objects?path=b")).content == b"a"
        gone = await client.post(repo + "/branches/main/objects/copy?dest_path=b", json={"src_path": "a"})
        assert gone.status_code == 404

    async def test_an_outside_object_is_staged_with_all_that_is_said_of_it(
        self, client: httpx.AsyncClient, repo: str
    ) -> None:
        body = {
            "physical_address": "mem://outside/x",
            "checksum": "c",
            "size_bytes": 7,
            "mtime": 1234,
            "metadata": {"k": "v"},
            "content_type": "text/plain",
        }

        staged = await client.put(repo + "/branches/main/objects?path=a", json=body)

        assert staged.status_code == 201
        assert body.items() <= (await client.get(repo + "/refs/main/objects/stat?path=a")).json().items()
        inside = {**body, "physical_address": staged.json()["physical_address"].replace("outside/x", "")}
        assert (
            await client.put(repo + "/branches/main/objects?path=b", json={**inside, "physical_address": "data/x"})
        ).status_code == 400

    async def test_an_object_of_another_repository_is_not_staged_and_so_not_read_through_this_one(
        self, client: httpx.AsyncClient, repo: str, namespace: str
    ) -> None:
        theirs = await client.post("/repositories", json={"name": "other", "storage_namespace": f"{namespace}-b"})
        assert theirs.status_code == 201
        await put(client, "/repositories/other", "secret")
        stat = await client.get("/repositories/other/refs/main/objects/stat?path=secret")
        address = stat.json()["physical_address"]

        for inside in (address, f"{namespace}-b/_lakefs/dummy"):
            body = {"physical_address": inside, "checksum": "c", "size_bytes": 7}
            answer = await client.put(repo + "/branches/main/objects?path=mine", json=body)
            assert answer.status_code == 400, answer.text
        assert (await client.get(repo + "/refs/main/objects?path=mine")).status_code == 404

    async def test_metadata_that_no_client_of_s3_could_read_are_refused(
        self, client: httpx.AsyncClient, repo: str
    ) -> None:
        url, params = f"{repo}/branches/main/objects", {"path": "a"}
        await client.post(url, params=params, content=b"x")
        many = {f"n{number}": "" for number in range(65)}
        for metadata in ({"a": "x" * 8192}, many):
            answer = await client.put(f"{url}/stat/user_metadata", params=params, json={"set": metadata})

            assert answer.status_code == 400
            assert "an object may have 8,192 bytes and 64 names" in answer.json()["message"]
        right = await client.put(f"{url}/stat/user_metadata", params=params, json={"set": {"a": "x" * 8191}})
        assert right.status_code == 204

    async def test_user_metadata_is_replaced(self, client: httpx.AsyncClient, repo: str) -> None:
        await put(client, repo, "a")

        answer = await client.put(
            repo + "/branches/main/objects/stat/user_metadata?path=a", json={"set": {"owner": "esti"}}
        )

        assert answer.status_code == 204
        stats = (await client.get(repo + "/refs/main/objects/stat?path=a")).json()
        assert stats["metadata"] == {"owner": "esti"}

    async def test_what_the_s3_gateway_keeps_survives_a_change_of_metadata_and_is_nobody_elses_to_set(
        self, client: httpx.AsyncClient, repo: str, state: AppState
    ) -> None:
        kept, forged = {"::s3::cache-control": "no-cache"}, {"::s3::parts": "1*99999999999"}
        objects = (await state.catalog.get("lake")).objects
        await objects.upload("main", "a", b"x", metadata={**kept, "old": "x"})
        setting = repo + "/branches/main/objects/stat/user_metadata?path=a"
        outside = {"physical_address": "mem://outside/x", "checksum": "c", "size_bytes": 7, "metadata": forged}
        backing = repo + "/branches/main/staging/backing?path=b"
        link = {
            "staging": (await client.get(backing)).json(),
            "checksum": "c",
            "size_bytes": 3,
            "user_metadata": forged,
        }

        assert (await client.put(setting, json={"set": {"owner": "esti", **kept}})).status_code == 204
        for answer in (
            await client.put(setting, json={"set": forged}),
            await client.put(repo + "/branches/main/objects?path=b", json=outside),
            await client.put(backing, json=link),
        ):
            assert (answer.status_code, "reserved" in answer.text) == (400, True)
        assert (await objects.get("main", "a")).metadata == {**kept, "owner": "esti"}
        assert (await client.put(setting, json={"set": {}})).status_code == 204
        assert (await objects.get("main", "a")).metadata == kept

    async def test_an_address_is_handed_out_put_to_and_linked(self, client: httpx.AsyncClient, repo: str) -> None:
        backing = repo + "/branches/main/staging/backing?path=a"
        location = (await client.get(backing)).json()
        body = {"staging": location, "checksum": "c", "size_bytes": 3}

        assert location["physical_address"].startswith("mem://")
        assert "presigned_url" not in location
        assert (await client.put(backing, json=body)).status_code == 400
        unheeded = await client.put(backing, json=body, headers={"if-none-match": '"x"'})
        assert (unheeded.status_code, "If-None-Match" in unheeded.json()["message"]) == (400, True)
        assert (await client.get(repo + "/refs/main/objects/stat?path=a")).status_code == 404

    async def test_whether_an_upload_is_allowed_is_told(self, client: httpx.AsyncClient, repo: str) -> None:
        allowed = repo + "/branches/main/objects/stage_allowed?path=a"
        assert (await client.get(allowed)).status_code == 204

        await client.put(repo + "/settings/branch_protection", json=[{"pattern": "ma*"}])

        answer = await client.get(allowed)
        assert (answer.status_code, answer.json()) == (403, {"message": "cannot write to protected branch"})
        refused = await client.post(repo + "/branches/main/objects?path=a", content=b"x")
        assert refused.status_code == 403
        assert (await client.get(repo + "/settings/branch_protection")).json() == [{"pattern": "ma*"}]
