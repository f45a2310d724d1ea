"""An agent at /mcp that names no branch: its first write makes a sandbox, which every process of the server finds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from lakebed.auth import Delegation, Identity
from lakebed.runtime import live_ports
from lakebed.sandboxes import Agents
from lakebed.sandboxes import agents as sandboxes_of_agents
from lakebed.server import App, AppState, ServerOptions, create_app, opened
from tests.server.agents.test_door import HEADERS, answer_of, refused
from tests.server.operate.test_audit import lines

Ask = Callable[..., AbstractAsyncContextManager[Client]]
MODES = ("auto", "legacy")


@pytest.fixture
async def agent(app: App, client: httpx.AsyncClient, repo: str) -> Ask:
    """Opens a connection as `esti`, or with another login, and to another process of the server."""
    own = client.auth

    @asynccontextmanager
    async def connect(query: str = "", mode: str = "auto", auth: str = "", to: App = app) -> AsyncIterator[Client]:
        transport = httpx2.ASGITransport(app=to, raise_app_exceptions=False)
        login = auth or (own._auth_header if isinstance(own, httpx.BasicAuth) else "")
        async with httpx2.AsyncClient(transport=transport, headers={"authorization": login}) as http:
            url = f"http://localhost/mcp?{query}"
            async with Client(streamable_http_client(url, http_client=http), mode=mode) as client:
                yield client

    return connect


async def write(tools: Client, path: str = "a", content: str = "x") -> str:
    return str((await answer_of(tools, "write", repository="lake", path=path, content=content))["branch"])


async def boxes(client: httpx.AsyncClient, repo: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await client.get(f"{repo}/sandboxes")).json()["results"]
    return found


@pytest.mark.parametrize("mode", MODES)
async def test_the_first_write_makes_a_sandbox_and_the_agent_proposes_from_it(
    agent: Ask, client: httpx.AsyncClient, repo: str, tmp_path: Path, mode: str
) -> None:
    async with agent(mode=mode) as tools:
        assert "write" in [tool.name for tool in (await tools.list_tools()).tools]
        await answer_of(tools, "list", repository="lake")
        assert await boxes(client, repo) == []
        begun = len(lines(tmp_path))
        written = await answer_of(tools, "write", repository="lake", path="a", content="x")
        made = await answer_of(tools, "commit", repository="lake", message="x")
        pull = await answer_of(tools, "propose", repository="lake", title="x")

    [box] = await boxes(client, repo)
    assert written["branch"] == made["branch"] == made["committer"] == pull["source"] == box["id"]
    assert f"{box['id']} is a sandbox at main, which ends at 20" in written["note"]
    assert (box["created_by"], box["expiration_date"] - box["creation_date"]) == ("esti", 24 * 3600)
    noted = [(line["tool"], line["operation"], line["user"]) for line in lines(tmp_path)[begun:] if line.get("tool")]
    assert noted[:3] == [
        ("sandbox", "getRepository", "esti"),
        ("sandbox", "createSandbox", "esti"),
        ("write", "uploadObject", box["id"]),
    ]
    assert ("commit", "commit", box["id"]) in noted
    assert ("propose", "createPullRequest", box["id"]) in noted
    assert (await client.get(f"{repo}/branches/main/diff")).json()["results"] == []


async def test_a_session_goes_on_with_its_sandbox_and_another_has_its_own(agent: Ask) -> None:
    async with agent(mode="legacy") as tools:
        first = [await write(tools, path) for path in "ab"]
    async with agent(mode="legacy") as tools:
        second = await write(tools)
    named = []
    for mode in MODES:
        async with agent("session=etl", mode=mode) as tools:
            named.append(await write(tools))
    async with agent() as tools:
        without = await write(tools)
    async with agent() as tools:
        again = await write(tools)

    assert first[0] == first[1]
    assert named[0] == named[1]
    assert without == again
    assert len({*first, second, *named, without}) == 4


async def test_a_client_that_comes_back_with_its_session_finds_its_sandbox(
    agent: Ask, client: httpx.AsyncClient
) -> None:
    async def post(method: str, session: str = "", **params: object) -> httpx.Response:
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        headers = {**HEADERS, **({"mcp-session-id": session} if session else {})}
        return await client.post("http://localhost/mcp", json=body, headers=headers)

    about = {"name": "x", "version": "1"}
    begun = await post("initialize", protocolVersion="2025-06-18", capabilities={}, clientInfo=about)
    session = begun.headers["mcp-session-id"]
    arguments = {"repository": "lake", "path": "a", "content": "x"}
    answers = [await post("tools/call", session, name="write", arguments=arguments) for _ in range(2)]
    odd = await post("tools/list", "x" * 129)

    first, second = (answer.json()["result"]["structuredContent"]["branch"] for answer in answers)
    assert first == second
    assert all("mcp-session-id" not in answer.headers for answer in answers)
    assert odd.status_code == 400


async def test_writes_at_once_in_several_processes_make_one_sandbox(tmp_path: Path) -> None:
    options = ServerOptions(data_dir=tmp_path, blockstore="local")
    async with opened(options) as one, opened(options) as two:
        apps = [create_app(one), create_app(two)]
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(app=apps[0]), base_url="http://localhost/api/v1"
        ) as client:
            pair = (await client.post("/setup_lakefs", json={"username": "esti"})).json()
            login = httpx.BasicAuth(pair["access_key_id"], pair["secret_access_key"])
            new = {"name": "lake", "storage_namespace": "local://lake"}
            assert (await client.post("/repositories", json=new, auth=login)).status_code == 201

            async def write_at(app: App, path: str) -> str:
                transport = httpx2.ASGITransport(app=app, raise_app_exceptions=False)
                headers = {"authorization": login._auth_header}
                async with (
                    httpx2.AsyncClient(transport=transport, headers=headers) as http,
                    Client(streamable_http_client("http://localhost/mcp", http_client=http)) as tools,
                ):
                    return await write(tools, path)

            branches = await asyncio.gather(*(write_at(apps[n % 2], f"{n}") for n in range(4)))
            listed = await client.get(f"/repositories/lake/refs/{branches[0]}/objects/ls", auth=login)
            left = (await client.get("/repositories/lake/sandboxes", auth=login)).json()["results"]

    assert len({*branches}) == 1
    assert [row["path"] for row in listed.json()["results"]] == ["0", "1", "2", "3"]
    assert [(box["id"], box["state"]) for box in left] == [(branches[0], "active")]


async def test_after_its_end_one_call_says_so_and_the_next_makes_another(
    agent: Ask, client: httpx.AsyncClient, repo: str
) -> None:
    async with agent() as tools:
        first = await write(tools)
        await client.delete(f"{repo}/sandboxes/{first}")
        words = await refused(tools, "commit", repository="lake", message="x")
        second = await write(tools)

    assert f"the sandbox {first} has ended" in words
    assert second != first


async def test_a_user_may_have_only_so_many(
    agent: Ask, client: httpx.AsyncClient, repo: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandboxes_of_agents, "SANDBOXES_MAX", 2)
    for name in "ab":
        async with agent(f"session={name}") as tools:
            await write(tools)
    async with agent("session=c") as tools:
        words = await refused(tools, "write", repository="lake", path="a", content="x")
    async with agent("session=a") as tools:
        await write(tools)

    assert words.startswith("agents of esti have 2 sandboxes, and may have no more")
    first, _ = await boxes(client, repo)
    answer = await client.delete(f"{repo}/sandboxes/{first['id']}")
    assert answer.status_code == 200, answer.text
    async with agent("session=c") as tools:
        await write(tools)  # one that ended counts no more
    assert len(await boxes(client, repo)) == 2


async def test_no_other_user_writes_to_the_sandbox_of_a_session(
    agent: Ask, client: httpx.AsyncClient, repo: str
) -> None:
    async with agent("session=s") as tools:
        theirs = await write(tools)
    await client.post("/auth/users", json={"id": "vera"})
    pair = (await client.post("/auth/users/vera/credentials")).json()
    login = httpx.BasicAuth(pair["access_key_id"], pair["secret_access_key"])._auth_header
    async with agent("session=s", auth=login) as tools:
        words = await refused(tools, "write", repository="lake", path="b", content="x")
    await client.put("/auth/groups/SuperUsers/members/vera")
    async with agent("session=s", auth=login) as tools:
        own = await write(tools)

    assert "insufficient permissions" in words
    assert own != theirs


async def test_the_token_of_a_job_writes_nothing(
    agent: Ask, state: AppState, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its user may have a sandbox, and the job was not lent it."""

    async def is_running(*_: object) -> None: ...

    monkeypatch.setattr("lakebed.server.agents.door.check_runs", is_running)
    async with agent() as tools:
        await write(tools)
    delegation = Delegation(job="j", repository="lake", actions=("fs:ReadObject", "fs:ListObjects"))
    identity = Identity(user_id="esti")
    token = await state.authenticator.issue_job_token(identity, delegation, lifetime_s=600)
    client.auth = httpx.Auth()
    answer = await client.post(
        "http://localhost/mcp",
        json={"jsonrpc": "2.0", "id": 1, "method": "tools/list"},
        headers={**HEADERS, "authorization": f"Bearer {token}"},
    )

    assert [tool["name"] for tool in answer.json()["result"]["tools"]] == ["list", "read", "table", "diff", "why"]


async def test_the_key_of_a_sandbox_needs_no_name_of_its_branch(
    agent: Ask, client: httpx.AsyncClient, repo: str
) -> None:
    made = (await client.post(f"{repo}/sandboxes", json={"source": "main", "ttl": "1h"})).json()
    login = httpx.BasicAuth(made["access_key_id"], made["secret_access_key"])._auth_header
    async with agent(auth=login) as tools:
        branch = await write(tools)

    assert branch == made["id"]
    assert len(await boxes(client, repo)) == 1


async def test_records_of_ended_sandboxes_are_removed_and_those_of_a_deleted_user(
    state: AppState, agent: Ask, client: httpx.AsyncClient, repo: str
) -> None:
    ports, day_ms = live_ports(), 24 * 3_600_000
    ahead_ms = 0

    class Clock:
        def now_ms(self) -> int:
            return ports.clock.now_ms() + ahead_ms

        def __getattr__(self, name: str) -> Any:
            return getattr(ports.clock, name)

    ports_ahead = type(ports)(Clock(), ports.ids, ports.tasks)
    of_agents = Agents(state.store, ports_ahead, state.sandboxes)
    user = await state.accounts.get_user("esti")
    async with agent() as tools:
        sandbox = await write(tools)

    ahead_ms = 3 * day_ms
    await of_agents.clean()
    assert await of_agents.find(user, "", "lake") == sandbox  # it was extended, as it may seem
    await client.delete(f"{repo}/sandboxes/{sandbox}")
    ahead_ms = day_ms + day_ms // 2
    await of_agents.clean()
    assert await of_agents.find(user, "", "lake") == sandbox  # an agent that comes back learns of its end
    ahead_ms = 3 * day_ms
    await of_agents.clean()
    assert await of_agents.find(user, "", "lake") == ""

    await of_agents.keep(user, "", "lake", sandbox="sandbox-x-0", ends_ms=0)
    await state.accounts.delete_user("esti")
    assert await of_agents.find(user, "", "lake") == ""


async def test_what_is_denied_to_its_maker_is_denied_in_the_sandbox(agent: Ask, client: httpx.AsyncClient) -> None:
    """Writes are those of the sandbox's user, with the rights of its record."""
    await client.post("/auth/users", json={"id": "vera"})
    statement = {"effect": "deny", "action": ["fs:WriteObject"], "resource": "arn:lakefs:fs:::repository/*/object/no/*"}
    await client.post("/auth/policies", json={"id": "no", "statement": [statement]})
    await client.put("/auth/users/vera/policies/no")
    await client.put("/auth/groups/SuperUsers/members/vera")
    pair = (await client.post("/auth/users/vera/credentials")).json()
    login = httpx.BasicAuth(pair["access_key_id"], pair["secret_access_key"])._auth_header
    async with agent(auth=login) as tools:
        box = await write(tools)
        words = await refused(tools, "write", repository="lake", path="no/x", content="x")

    assert f"insufficient permissions: {box} needs fs:WriteObject" in words
