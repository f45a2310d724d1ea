"""The audit log: who did what to what, when, from where, allowed or not, and never a secret."""

from __future__ import annotations

import asyncio
import errno
import json
import os
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from lakebed.base import Invalid
from lakebed.server import App, AppState, ServerOptions, create_app, opened, options_of, recover
from lakebed.server.operate.audit import BLOCK_BYTES, REFUSALS_MAX, SOURCE_MAX, AuditLog, AuditQuery, lines_backwards
from lakebed.wire import TOOL_HEADER, AuditRecord
from tests.server.process.test_serving import serving, set_up


def lines(folder: Path) -> list[dict[str, Any]]:
    return [
        json.loads(line)
        for file in sorted((folder / "audit").glob("*.jsonl"))
        for line in file.read_text().splitlines()
    ]


@pytest.fixture
def log(state: AppState) -> AuditLog:
    return state.audit


async def user(client: httpx.AsyncClient, app: App, name: str) -> httpx.AsyncClient:
    await client.post("/auth/users", json={"id": name})
    pair = (await client.post(f"/auth/users/{name}/credentials")).json()
    auth = (pair["access_key_id"], pair["secret_access_key"])
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://lake/api/v1", auth=auth)


class TestLines:
    async def test_a_change_says_who_what_when_and_from_where(
        self, client: httpx.AsyncClient, repo: str, tmp_path: Path
    ) -> None:
        headers = {"x-request-id": "mine", "x-forwarded-for": "10.1.2.3", "user-agent": "test/1"}
        await client.post(f"{repo}/branches/main/objects", params={"path": "a/b"}, content=b"x", headers=headers)

        line = lines(tmp_path)[-1]

        assert line.pop("time").endswith("Z")
        assert line.pop("through").startswith("key ")
        assert line == {
            "user": "esti",
            "from": "127.0.0.1",
            "forwarded": "10.1.2.3",
            "agent": "test/1",
            "operation": "uploadObject",
            "what": {"repository": "lake", "branch": "main", "path": "a/b"},
            "status": 201,
            "allowed": True,
            "request": "mine",
        }

    async def test_reads_are_written_where_all_is_asked_for(self, tmp_path: Path) -> None:
        for mode, expected in {"changes": 0, "all": 1, "off": 0}.items():
            environment = {"LAKEBED_STORE_URI": "mem://", "LAKEBED_AUDIT": mode}
            async with opened(options_of(tmp_path / mode, environment)) as state:
                transport = httpx.ASGITransport(app=create_app(state))
                async with httpx.AsyncClient(transport=transport, base_url="http://lake/api/v1") as client:
                    await client.get("/setup_lakefs")
            assert len(lines(tmp_path / mode)) == expected

    async def test_a_question_with_a_body_is_no_change(
        self, client: httpx.AsyncClient, repo: str, tmp_path: Path
    ) -> None:
        before = lines(tmp_path)
        policy = {"policy": {"logs": {"prefix": "logs/", "days": 1}}}
        checked = await client.post(f"{repo}/lifecycle/policy/validate", json=policy)
        planning = await client.post(f"{repo}/gc/planning", json={"kinds": ["uncommitted"]})

        assert (checked.status_code, planning.status_code) == (200, 200), (checked.text, planning.text)
        assert lines(tmp_path) == before

    async def test_what_a_body_names_is_named(self, client: httpx.AsyncClient, repo: str, tmp_path: Path) -> None:
        await client.post(f"{repo}/branches/main/objects/delete", json={"paths": ["a", "b"]})

        assert lines(tmp_path)[-1]["what"]["paths"] == ["a", "b"]
        [made] = [line["what"] for line in lines(tmp_path) if line["operation"] == "createRepository"]
        assert made["name"] == "lake"

    async def test_a_missing_permission_is_written_also_for_reads(
        self, client: httpx.AsyncClient, app: App, repo: str, tmp_path: Path
    ) -> None:
        async with await user(client, app, "mallory") as mallory:
            answer = await mallory.get(f"{repo}/refs/main/objects", params={"path": "secret"})

        line = lines(tmp_path)[-1]
        assert answer.status_code in {401, 403}
        assert (line["user"], line["operation"], line["allowed"]) == ("mallory", "getObject", False)
        assert line["what"] == {"repository": "lake", "ref": "main", "path": "secret"}
        assert "permission" in line["reason"]

    async def test_a_wrong_login_has_the_key_that_was_tried(
        self, stranger: httpx.AsyncClient, client: httpx.AsyncClient, tmp_path: Path
    ) -> None:
        await stranger.get("/user", auth=("AKIAWRONG", "hunter2"))
        await stranger.post("/auth/login", json={"access_key_id": "AKIAOTHER", "secret_access_key": "hunter3"})

        basic, login = lines(tmp_path)[-2:]

        assert (basic["allowed"], basic["through"]) == (False, "key AKIAWRONG")
        assert (login["allowed"], login["operation"], login["what"]) == (False, "login", {"access_key_id": "AKIAOTHER"})

    async def test_a_new_key_pair_and_the_sources_of_an_import_are_named(
        self, client: httpx.AsyncClient, repo: str, tmp_path: Path
    ) -> None:
        made = (await client.post("/auth/users/esti/credentials")).json()
        paths = [{"type": "object", "path": "mem://other/a", "destination": "a"}]
        await client.post(f"{repo}/branches/main/import", json={"paths": paths, "commit": {"message": "m"}})

        key, started = [line for line in lines(tmp_path) if line["operation"] in {"createCredentials", "importStart"}]

        assert key["what"] == {"userId": "esti", "access_key_id": made["access_key_id"]}
        assert started["what"] == {
            "repository": "lake",
            "branch": "main",
            "sources": ["mem://other/a"],
            "sources_count": "1",
        }

    async def test_no_line_holds_a_secret(
        self, client: httpx.AsyncClient, stranger: httpx.AsyncClient, app: App, tmp_path: Path
    ) -> None:
        made = (await client.post("/auth/users/esti/credentials")).json()
        login = {"access_key_id": made["access_key_id"], "secret_access_key": made["secret_access_key"]}
        token = (await stranger.post("/auth/login", json=login)).json()["token"]
        bearer = {"authorization": f"Bearer {token}"}
        await stranger.post("/repositories", json={"name": "x", "storage_namespace": "mem://x"}, headers=bearer)
        await stranger.get("/user", auth=("AKIAWRONG", "hunter2"))

        text = "".join(file.read_text() for file in (tmp_path / "audit").iterdir())

        assert made["access_key_id"] in text
        assert [secret for secret in (made["secret_access_key"], token, "hunter2") if secret in text] == []

    async def test_files_are_private_and_old_ones_go(self, tmp_path: Path) -> None:
        folder = tmp_path / "audit"
        folder.mkdir()
        today = datetime.now(UTC).date()
        for days in (10_000, 31, 30):
            (folder / f"{today - timedelta(days=days)}.jsonl").write_text("")
        AuditLog(tmp_path).note_local("recover", id="a")
        assert len(list(folder.iterdir())) == 4

        AuditLog(tmp_path, keep_days=30).note_local("recover", id="b")

        oldest, file = sorted(folder.iterdir())
        assert oldest.stem == str(today - timedelta(days=30))
        assert file.stat().st_mode & 0o777 == 0o600
        assert [line["what"]["id"] for line in lines(tmp_path)] == ["a", "b"]

    async def test_a_flood_of_wrong_logins_is_counted_and_not_written(
        self, stranger: httpx.AsyncClient, client: httpx.AsyncClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("lakebed.server.operate.audit.time.monotonic", lambda: 1.0)
        before = len(lines(tmp_path))
        for _ in range(SOURCE_MAX + 7):
            await stranger.get("/user", headers={"authorization": "Bearer no"})
        await client.post("/auth/users", json={"id": "vera"})

        written = lines(tmp_path)[before:]

        assert len(written) == SOURCE_MAX + 1
        assert written[-1]["skipped"] == 7

    async def test_a_flood_of_reads_that_name_a_tool_is_counted_and_not_written(
        self, client: httpx.AsyncClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("lakebed.server.operate.audit.time.monotonic", lambda: 1.0)
        before = len(lines(tmp_path))
        for _ in range(REFUSALS_MAX + 7):
            await client.get("/user", headers={TOOL_HEADER: "list"})
        await client.post("/auth/users", json={"id": "vera"})

        written = lines(tmp_path)[before:]

        assert len(written) == REFUSALS_MAX + 1
        assert written[-1]["skipped"] == 7

    async def test_one_caller_with_many_addresses_of_ipv6_has_the_lines_of_one(
        self, app: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("lakebed.server.operate.audit.time.monotonic", lambda: 1.0)
        for place in [*[f"2001:db8::{number:x}" for number in range(2 * SOURCE_MAX)], "2001:db8:0:1::1", "fe80::1%lo"]:
            transport = httpx.ASGITransport(app=app, client=(place, 1))
            async with httpx.AsyncClient(transport=transport) as stranger:
                await stranger.get("http://lake/api/v1/user", headers={"authorization": "Bearer no"})

        written = [line["from"] for line in lines(tmp_path)]

        assert sum(place.startswith("2001:db8::") for place in written) == SOURCE_MAX
        assert written[-2:] == ["2001:db8:0:1::1", "fe80::1%lo"]

    async def test_a_flood_hides_neither_denials_nor_what_comes_from_elsewhere(
        self, app: App, client: httpx.AsyncClient, repo: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        mallory, vera = [await user(client, app, name) for name in ("mallory", "vera")]
        monkeypatch.setattr("lakebed.server.operate.audit.time.monotonic", lambda: 1.0)
        for number in range(REFUSALS_MAX + 1):
            place = (f"10.0.{number}.1", 1)
            async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app, client=place)) as elsewhere:
                for _ in range(2 * SOURCE_MAX if number == 0 else 1):
                    await elsewhere.get("http://lake/api/v1/user", headers={"authorization": "Bearer no"})
        async with mallory, vera:
            for _ in range(REFUSALS_MAX + 1):
                await mallory.get(repo)
            await vera.get(repo)

        written = lines(tmp_path)

        assert sum(line["from"] == "10.0.0.1" for line in written) == SOURCE_MAX
        assert sum(line["from"].startswith("10.0.") for line in written) == REFUSALS_MAX
        assert [(line["user"], line["allowed"]) for line in written[-2:]] == [("mallory", False), ("vera", False)]

    async def test_paths_that_protection_refuses_are_written_as_refused(
        self, client: httpx.AsyncClient, repo: str, tmp_path: Path
    ) -> None:
        await client.put(repo + "/settings/branch_protection", json=[{"pattern": "main"}])

        answer = await client.post(repo + "/branches/main/objects/delete", json={"paths": ["a"]})

        line = lines(tmp_path)[-1]
        assert (answer.status_code, line["allowed"], line["reason"]) == (200, False, "cannot write to protected branch")

    async def test_a_log_that_cannot_be_written_stops_no_request(
        self, client: httpx.AsyncClient, state: AppState, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        state.audit.close()
        for file in (tmp_path / "audit").iterdir():
            file.unlink()
        (tmp_path / "audit").rmdir()
        (tmp_path / "audit").write_text("in the way")

        assert (await client.post("/auth/users", json={"id": "vera"})).status_code == 201
        assert state.audit.failures == 1
        assert "audit log cannot be written" in caplog.text

    async def test_a_full_disk_cuts_one_line_and_hides_no_other(
        self, client: httpx.AsyncClient, state: AppState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """How many lines were left out stays to be told until a line that has it is written."""
        write, room = os.write, [10, 0]

        def full(descriptor: int, data: bytes) -> int:
            if not room or data == b"\n":
                return write(descriptor, data)
            if not (bytes_left := room.pop(0)):
                raise OSError(errno.ENOSPC, "no space left")
            return write(descriptor, data[:bytes_left])

        await client.post("/auth/users", json={"id": "first"})
        monkeypatch.setattr("lakebed.server.operate.audit.os.write", full)
        await client.post("/auth/users", json={"id": "cut"})
        state.audit._skipped = 7
        for name in ("lost", "last"):
            await client.post("/auth/users", json={"id": name})

        [file] = (tmp_path / "audit").glob("*.jsonl")
        *_, cut, last = file.read_text().splitlines()
        assert (len(cut), json.loads(last)["skipped"], state.audit.failures) == (10, 7, 1)

    def test_lines_are_printed_where_that_is_asked_for(self, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
        AuditLog(tmp_path).note_local("recover", id="a")
        assert capfd.readouterr().out == ""
        assert options_of(tmp_path, {"LAKEBED_AUDIT_STDOUT": "1"}).audit_printed

        AuditLog(tmp_path, is_printed=True).note_local("recover", id="b")

        assert capfd.readouterr().out == f"{json.dumps(lines(tmp_path)[-1], separators=(',', ':'))}\n"

    def test_a_recovery_at_the_folder_is_written(self, tmp_path: Path) -> None:
        with serving(tmp_path / "lake") as (_, url), set_up(url):
            pass

        asyncio.run(recover(ServerOptions(data_dir=tmp_path / "lake"), "root"))

        line = lines(tmp_path / "lake")[-1]
        assert (line["operation"], line["what"], line["through"]) == ("recover", {"id": "root"}, "data folder")


class TestQueries:
    def record(self, number: int, **fields: Any) -> AuditRecord:
        known = {
            "time": f"2026-11-{number:02d}T12:00:00.000Z",
            "user": "a",
            "operation": "o",
            "what": {},
            "status": 200,
        }
        return AuditRecord(**{**known, "allowed": True, "request": str(number), **fields})

    def write(self, folder: Path, records: Sequence[AuditRecord]) -> AuditLog:
        log = AuditLog(folder)
        for record in records:
            log._write(record)
        return log

    def test_records_come_newest_first_in_pages(self, tmp_path: Path) -> None:
        log = self.write(tmp_path, [self.record(day, request=f"{day}-{n}") for day in range(1, 5) for n in range(5)])

        found: list[str] = []
        after = ""
        while True:
            page, after = log.read(AuditQuery(), after=after, limit=3)
            found += [record.request for record in page]
            if not after:
                break

        assert found == [f"{day}-{n}" for day in range(4, 0, -1) for n in range(4, -1, -1)]

    @pytest.mark.parametrize(
        ("query", "expected"),
        [
            (AuditQuery(user="b"), ["3"]),
            (AuditQuery(is_denied=True), ["4"]),
            (AuditQuery(operation="p"), ["2"]),
            (AuditQuery(repository="lake"), ["1"]),
            (AuditQuery(since="2026-11-03T12:00:00.000Z"), ["4", "3"]),
            (AuditQuery(until="2026-11-03T12:00:00.000Z"), ["2", "1"]),
            (AuditQuery(until="2026-11-02T18:00:00.000Z"), ["2", "1"]),
            (AuditQuery(since="2026-11-02", until="2026-11-03"), ["2"]),
        ],
    )
    def test_a_query_selects(self, tmp_path: Path, query: AuditQuery, expected: list[str]) -> None:
        log = self.write(
            tmp_path,
            [
                self.record(1, what={"repository": "lake"}),
                self.record(2, operation="p"),
                self.record(3, user="b"),
                self.record(4, allowed=False),
            ],
        )

        assert [record.request for record in log.read(query)[0]] == expected

    def test_damaged_lines_hide_no_others(self, tmp_path: Path) -> None:
        log = self.write(tmp_path, [self.record(1, request="x")])
        with (tmp_path / "audit" / "2026-11-01.jsonl").open("ab") as file:
            file.write(b'{"time": "20\n')
        log._write(self.record(1, request="y"))

        assert [record.request for record in log.read(AuditQuery())[0]] == ["y", "x"]

    @pytest.mark.parametrize("size", [10, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 3 * BLOCK_BYTES])
    def test_lines_are_read_backwards_over_blocks(self, tmp_path: Path, size: int) -> None:
        whole = [b"first", b"x" * size, b"third", b"y" * 7, b"last"]
        file = tmp_path / "f"
        file.write_bytes(b"\n".join(whole) + b"\n")

        found = list(lines_backwards(file))

        assert [line for _, line in found] == whole[::-1]
        for offset, line in found:
            with file.open("rb") as opened:
                assert os.pread(opened.fileno(), len(line), offset - len(line)) == line
        assert [line for _, line in lines_backwards(file, found[1][0])] == whole[:4][::-1]

    async def test_the_server_answers_those_who_may_ask(self, client: httpx.AsyncClient, app: App, repo: str) -> None:
        answer = await client.get("/audit", params={"operation": "createRepository", "amount": 1})

        [record] = answer.json()["results"]
        assert (record["user"], record["what"]["name"]) == ("esti", "lake")
        assert (await client.get("/audit", params={"since": "yesterday"})).status_code == 400
        assert (await client.get("/audit", params={"after": "x"})).status_code == 400
        async with await user(client, app, "mallory") as mallory:
            assert (await mallory.get("/audit")).status_code in {401, 403}
        denied = (await client.get("/audit", params={"denied": "true"})).json()["results"]
        assert [record["user"] for record in denied] == ["mallory"]


# The address of a caller behind a proxy


@pytest.mark.parametrize(
    ("proxies", "forwarded", "address"),
    [
        ("", "10.1.2.3", "127.0.0.1"),
        ("10.0.0.0/8", "10.1.2.3", "127.0.0.1"),
        ("127.0.0.1", "10.1.2.3", "10.1.2.3"),
        ("127.0.0.0/8, 10.0.0.0/8", "1.1.1.1, 192.0.2.7, 10.1.2.3", "192.0.2.7"),
    ],
    ids=["none", "another", "one", "two"],
)
def test_only_trusted_proxies_say_where_a_request_comes_from(
    proxies: str, forwarded: str, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKEBED_TRUSTED_PROXIES", proxies)
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "*")
    with serving(tmp_path / "lake") as (_, url):
        httpx.get(url + "/api/v1/user", headers={"authorization": "Bearer no", "x-forwarded-for": forwarded})

    [line] = lines(tmp_path / "lake")

    assert (line["from"], line["forwarded"]) == (address, forwarded)


@pytest.mark.parametrize("text", ["*", "proxy.example", "10.0.0.1/8", "10.0.0.300"])
def test_a_trusted_proxy_is_an_address_or_a_network(text: str) -> None:
    with pytest.raises(Invalid, match="LAKEBED_TRUSTED_PROXIES"):
        options_of(Path("lake"), {"LAKEBED_TRUSTED_PROXIES": text})
