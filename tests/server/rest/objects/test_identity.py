"""Entries are the same when size, checksum, content type and metadata are. Address and date do not count.

Random programs run on two branches beside a model that knows contents only, so an answer that depends on where the
bytes lie differs from the model.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import httpx
import pytest

Contents = dict[str, str]
PATHS: Final = ("a", "b", "c/d")
BRANCHES: Final = ("main", "dev")


async def upload(client: httpx.AsyncClient, repo: str, branch: str, path: str, content: str, **headers: str) -> str:
    url = f"{repo}/branches/{branch}/objects"
    answer = await client.post(url, params={"path": path}, content=content.encode(), headers=headers)
    assert answer.status_code == 201, answer.text
    address: str = answer.json()["physical_address"]
    return address


async def commit(client: httpx.AsyncClient, repo: str, branch: str) -> httpx.Response:
    return await client.post(f"{repo}/branches/{branch}/commits", json={"message": "m"})


async def differences(client: httpx.AsyncClient, url: str, **params: str) -> dict[str, str]:
    answer = await client.get(url, params=params)
    assert answer.status_code == 200, answer.text
    return {row["path"]: row["type"] for row in answer.json()["results"]}


async def test_the_same_bytes_uploaded_again_are_no_change(client: httpx.AsyncClient, repo: str) -> None:
    first = await upload(client, repo, "main", "k", "same")
    await commit(client, repo, "main")

    again = await upload(client, repo, "main", "k", "same")

    assert again != first
    assert await differences(client, f"{repo}/branches/main/diff") == {}
    answer = await commit(client, repo, "main")
    assert (answer.status_code, answer.json()["message"]) == (400, "commit: no changes")


async def test_a_commit_keeps_the_address_of_what_did_not_change(client: httpx.AsyncClient, repo: str) -> None:
    kept = await upload(client, repo, "main", "k", "same")
    await commit(client, repo, "main")

    await upload(client, repo, "main", "k", "same")
    await upload(client, repo, "main", "other", "new")
    assert (await commit(client, repo, "main")).status_code == 201

    stat = await client.get(f"{repo}/refs/main/objects/stat", params={"path": "k"})
    assert stat.json()["physical_address"] == kept


async def test_the_same_new_file_on_two_branches_is_no_conflict(client: httpx.AsyncClient, repo: str) -> None:
    await client.post(f"{repo}/branches", json={"name": "dev", "source": "main"})
    for branch in BRANCHES:
        await upload(client, repo, branch, "k", "same")
        await commit(client, repo, branch)

    assert await differences(client, f"{repo}/refs/main/diff/dev") == {}
    assert (await client.post(f"{repo}/refs/dev/merge/main", json={})).status_code == 200


@pytest.mark.parametrize(
    "headers", [{"content-type": "text/csv"}, {"x-lakefs-meta-owner": "me"}], ids=["content type", "metadata"]
)
async def test_what_is_said_of_the_bytes_counts(
    client: httpx.AsyncClient, repo: str, headers: Mapping[str, str]
) -> None:
    await upload(client, repo, "main", "k", "same", **{"content-type": "text/plain"})
    await commit(client, repo, "main")

    await upload(client, repo, "main", "k", "same", **{"content-type": "text/plain", **headers})

    assert await differences(client, f"{repo}/branches/main/diff") == {"k": "changed"}
    assert (await commit(client, repo, "main")).status_code == 201


@dataclass
class Model:
    """Contents by path: of each branch's head, of what is staged on it, and of each commit."""

    heads: dict[str, str]
    staged: dict[str, Contents]
    commits: dict[str, Contents] = field(default_factory=dict)

    def committed(self, branch: str) -> Contents:
        return self.commits[self.heads[branch]]

    def took(self, branch: str, commit_id: str, contents: Contents) -> None:
        self.commits[commit_id] = contents
        self.heads[branch], self.staged[branch] = commit_id, dict(contents)


def merged(base: Contents, source: Contents, destination: Contents) -> Contents | None:
    """The three-way merge by content; None where both sides changed a path in different ways."""
    result = dict(destination)
    for path in PATHS:
        was, theirs, ours = (side.get(path) for side in (base, source, destination))
        if theirs in (was, ours):
            continue
        if ours != was:
            return None
        result.pop(path, None)
        if theirs is not None:
            result[path] = theirs
    return result


def kinds(left: Contents, right: Contents) -> dict[str, str]:
    found = {}
    for path in PATHS:
        was, now = left.get(path), right.get(path)
        if was != now:
            found[path] = "added" if was is None else "removed" if now is None else "changed"
    return found


class Program:
    def __init__(self, client: httpx.AsyncClient, repo: str, seed: int, head: str) -> None:
        self.client, self.repo, self.random = client, repo, random.Random(seed)
        self.model = Model(dict.fromkeys(BRANCHES, head), {branch: {} for branch in BRANCHES}, {head: {}})
        self.parents: dict[str, str] = {}

    async def step(self) -> None:
        steps = [self.write, self.write, self.delete, self.commit, self.commit, self.merge, self.revert]
        steps += [self.cherry_pick, self.reset_object]
        await self.random.choice(steps)(self.random.choice(BRANCHES))

    async def write(self, branch: str) -> None:
        path, content = self.random.choice(PATHS), self.random.choice(["x", "y"])
        await upload(self.client, self.repo, branch, path, content)
        self.model.staged[branch][path] = content

    async def delete(self, branch: str) -> None:
        path = self.random.choice(PATHS)
        await self.client.delete(f"{self.repo}/branches/{branch}/objects", params={"path": path})
        self.model.staged[branch].pop(path, None)

    async def reset_object(self, branch: str) -> None:
        path = self.random.choice(PATHS)
        await self.client.put(f"{self.repo}/branches/{branch}", json={"type": "object", "path": path})
        staged, committed = self.model.staged[branch], self.model.committed(branch)
        staged.pop(path, None)
        if path in committed:
            staged[path] = committed[path]

    async def commit(self, branch: str) -> None:
        staged, committed = dict(self.model.staged[branch]), self.model.committed(branch)
        answer = await commit(self.client, self.repo, branch)
        assert answer.status_code == (400 if staged == committed else 201), answer.text
        if answer.status_code == 201:
            self.record(branch, answer.json()["id"], staged)

    def record(self, branch: str, commit_id: str, contents: Contents) -> None:
        self.parents[commit_id] = self.model.heads[branch]
        self.model.took(branch, commit_id, contents)

    async def clean(self, branch: str) -> None:
        """Drop what is staged: these operations are for a branch without changes."""
        await self.client.put(f"{self.repo}/branches/{branch}", json={"type": "reset"})
        self.model.staged[branch] = dict(self.model.committed(branch))

    async def merge(self, branch: str) -> None:
        await self.clean(branch)
        source = BRANCHES[1 - BRANCHES.index(branch)]
        ancestor = await self.client.get(f"{self.repo}/refs/{source}/merge/{branch}")
        base = self.model.commits[ancestor.json()["base_commit_id"]]
        ours = self.model.committed(branch)
        expected = merged(base, self.model.committed(source), ours)
        answer = await self.client.post(f"{self.repo}/refs/{source}/merge/{branch}", json={})
        if expected is None:
            assert answer.status_code == 409, answer.text
        elif answer.status_code == 200:
            self.record(branch, answer.json()["reference"], expected)
        else:
            assert (answer.status_code, expected) == (400, ours), answer.text

    async def revert(self, branch: str) -> None:
        await self.change_by(branch, "revert", lambda parent, at: (at, parent))

    async def cherry_pick(self, branch: str) -> None:
        await self.change_by(branch, "cherry-pick", lambda parent, at: (parent, at))

    async def change_by(
        self, branch: str, verb: str, sides: Callable[[Contents, Contents], tuple[Contents, Contents]]
    ) -> None:
        """Do what one commit did to its first parent, or undo it. Both are a merge with another base."""
        if not self.parents:
            return
        commit_id = self.random.choice(sorted(self.parents))
        await self.clean(branch)
        base, source = sides(self.model.commits[self.parents[commit_id]], self.model.commits[commit_id])
        ours = self.model.committed(branch)
        expected = merged(base, source, ours)
        url = f"{self.repo}/branches/{branch}/{verb}"
        number = 1 if await self.is_merge(commit_id) else 0
        answer = await self.client.post(url, json={"ref": commit_id, "parent_number": number})
        if expected is None:
            assert answer.status_code == 409, answer.text
        elif expected == ours:
            assert answer.status_code == 400, answer.text
        else:
            assert answer.status_code in (201, 204), answer.text
            head = (await self.client.get(f"{self.repo}/branches/{branch}")).json()["commit_id"]
            self.record(branch, head, expected)

    async def is_merge(self, commit_id: str) -> bool:
        return len((await self.client.get(f"{self.repo}/commits/{commit_id}")).json()["parents"]) > 1

    async def check(self) -> None:
        for branch in BRANCHES:
            committed, staged = self.model.committed(branch), self.model.staged[branch]
            assert await differences(self.client, f"{self.repo}/branches/{branch}/diff") == kinds(committed, staged)
        main, dev = (self.model.committed(branch) for branch in BRANCHES)
        two_dot = f"{self.repo}/refs/main/diff/dev"
        assert await differences(self.client, two_dot, type="two_dot") == kinds(main, dev)


@pytest.mark.parametrize("seed", range(12))
async def test_histories_follow_contents_and_not_addresses(client: httpx.AsyncClient, repo: str, seed: int) -> None:
    await client.post(f"{repo}/branches", json={"name": "dev", "source": "main"})
    head = (await client.get(f"{repo}/branches/main")).json()["commit_id"]
    program = Program(client, repo, seed, head)

    for _ in range(40):
        await program.step()
        await program.check()
