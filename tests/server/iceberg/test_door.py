"""The catalog of tables, asked as clients ask it: settings, logins, refusals, keys, and what a commit changes.

Programs of others are in `tests/compat/test_iceberg.py`. Here the application is asked without a socket.
"""

from __future__ import annotations

import asyncio
import json
import re
import zlib
from typing import Any

import httpx
import pytest
import zstandard

from lakebed import iceberg
from lakebed.auth.lent import read_lent
from lakebed.iceberg import avro, files, metadata
from lakebed.server import App, AppState
from lakebed.server.iceberg import CatalogDoor
from lakebed.versions import PathExpired
from tests.server.http.test_permissions import allow
from tests.server.s3.signing import asked_as

ROOT = "http://localhost/iceberg/v1"
LAKE = f"{ROOT}/lake.main/namespaces"
SCHEMA: dict[str, Any] = {
    "type": "struct",
    "schema-id": 0,
    "fields": [{"id": 1, "name": "a", "required": False, "type": "long"}],
}


@pytest.fixture
async def sales(client: httpx.AsyncClient, repo: str) -> str:
    """The URL of the tables of a namespace."""
    assert repo
    answer = await client.post(LAKE, json={"namespace": ["sales"], "properties": {"owner": "ann"}})
    assert answer.status_code == 200, answer.text
    return f"{LAKE}/sales/tables"


async def make(client: httpx.AsyncClient, tables: str, name: str = "orders", **more: Any) -> dict[str, Any]:
    answer = await client.post(tables, json={"name": name, "schema": SCHEMA, **more})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def refused(answer: httpx.Response, status: int, kind: str, words: str) -> None:
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, status), answer.text
    assert answer.json()["error"]["type"] == kind
    assert words in answer.json()["error"]["message"]


async def test_settings_name_the_prefix_of_a_ref_and_the_address_of_the_gateway(
    client: httpx.AsyncClient, repo: str
) -> None:
    settings = (await client.get(f"{ROOT}/config", params={"warehouse": "lake/main"})).json()

    assert settings["overrides"] == {"prefix": "lake.main"}
    assert settings["defaults"]["s3.endpoint"] == "http://localhost"
    assert "POST /v1/{prefix}/transactions/commit" in settings["endpoints"]
    await refused(
        await client.get(f"{ROOT}/config", params={"warehouse": "lake/nosuch"}),
        404,
        "NoSuchNamespaceException",
        "not found",
    )
    await refused(
        await client.get(f"{ROOT}/config", params={"warehouse": "lake"}), 400, "BadRequestException", "lake/main"
    )


async def test_a_condition_of_http_is_refused_by_name(client: httpx.AsyncClient, sales: str) -> None:
    """A table's own requirements are its condition. No other is ignored."""
    answer = await client.delete(f"{sales}/orders", headers={"if-match": '"x"'})

    await refused(answer, 501, "UnsupportedOperationException", "If-Match")


async def test_a_key_pair_becomes_a_token_and_a_wrong_one_is_refused_as_oauth_has_it(
    client: httpx.AsyncClient, stranger: httpx.AsyncClient, repo: str
) -> None:
    assert isinstance(client.auth, httpx.BasicAuth)
    pair = (await client.post("/auth/users/esti/credentials")).json()
    form = {"grant_type": "client_credentials", "client_id": pair["access_key_id"], "scope": "catalog"}

    token = (
        await stranger.post(f"{ROOT}/oauth/tokens", data={**form, "client_secret": pair["secret_access_key"]})
    ).json()
    wrong = await stranger.post(f"{ROOT}/oauth/tokens", data={**form, "client_secret": "x"})

    headers = {"authorization": f"Bearer {token['access_token']}"}
    assert (await stranger.get(LAKE, headers=headers)).json() == {"namespaces": []}
    assert (wrong.status_code, wrong.json()["error"]) == (401, "invalid_client")
    await refused(await stranger.get(LAKE), 401, "NotAuthorizedException", "")


async def test_namespaces_and_tables_may_be_named_views(client: httpx.AsyncClient, repo: str) -> None:
    for name in ("views", "viewsdata"):
        assert (await client.post(LAKE, json={"namespace": [name]})).status_code == 200

        table = await make(client, f"{LAKE}/{name}/tables", name)

        assert (await client.get(f"{LAKE}/{name}")).json()["namespace"] == [name]
        listed = (await client.get(f"{LAKE}/{name}/tables")).json()["identifiers"]
        assert listed == [{"namespace": [name], "name": name}]
        loaded = await client.get(f"{LAKE}/{name}/tables/{name}")
        assert loaded.json()["metadata-location"] == table["metadata-location"]
        outside = await client.get(f"{ROOT}/namespaces/lake%1Fmain%1F{name}/tables/{name}")
        assert outside.status_code == 200
        for path in ("views", "views/v", "register-view"):
            await refused(await client.get(f"{LAKE}/{name}/{path}"), 406, "UnsupportedOperationException", "no views")
    await refused(
        await client.post(f"{ROOT}/lake.main/views/rename", json={}), 406, "UnsupportedOperationException", "no views"
    )


async def test_a_client_without_a_warehouse_has_repository_and_branch_in_front(
    client: httpx.AsyncClient, sales: str
) -> None:
    await make(client, sales)
    separated = "lake%1Fmain%1Fsales"

    assert (await client.get(f"{ROOT}/namespaces")).json()["namespaces"] == [["lake"]]
    assert (await client.get(f"{ROOT}/namespaces", params={"parent": "lake"})).json()["namespaces"] == [
        ["lake", "main"]
    ]
    below = await client.get(f"{ROOT}/namespaces", params={"parent": "lake\x1fmain"})
    assert below.json()["namespaces"] == [["lake", "main", "sales"]]
    assert (await client.get(f"{ROOT}/namespaces/lake%1Fmain")).json()["namespace"] == ["lake", "main"]
    listed = (await client.get(f"{ROOT}/namespaces/{separated}/tables")).json()
    assert listed["identifiers"] == [{"namespace": ["lake", "main", "sales"], "name": "orders"}]
    other = {"namespace": ["lake", "dev", "sales"], "name": "orders"}
    rename = {"source": listed["identifiers"][0], "destination": other}
    await refused(await client.post(f"{ROOT}/tables/rename", json=rename), 400, "BadRequestException", "one branch")


async def test_namespaces_have_properties_and_go_only_when_they_are_empty(
    client: httpx.AsyncClient, sales: str
) -> None:
    await make(client, sales)
    change = {"removals": ["owner", "none"], "updates": {"team": "x"}}

    changed = await client.post(f"{LAKE}/sales/properties", json=change)

    assert changed.json() == {"updated": ["team"], "removed": ["owner"], "missing": ["none"]}
    assert (await client.get(f"{LAKE}/sales")).json() == {"namespace": ["sales"], "properties": {"team": "x"}}
    await refused(await client.delete(f"{LAKE}/sales"), 409, "NamespaceNotEmptyException", "sales")
    assert (await client.delete(f"{sales}/orders", params={"purgeRequested": "true"})).status_code == 204
    assert (await client.delete(f"{LAKE}/sales")).status_code == 204
    assert (await client.head(f"{LAKE}/sales")).status_code == 404


async def test_what_no_table_here_can_have_is_refused_in_the_form_of_the_catalog(
    client: httpx.AsyncClient, sales: str
) -> None:
    table = await make(client, sales)
    elsewhere = {"name": "t", "schema": SCHEMA, "location": "s3://other.tables/x"}
    uuid = {"action": "assign-uuid", "uuid": "7d546238-af84-46d7-8f89-ddb2489940fb"}
    snapshot: dict[str, Any] = {
        "action": "add-snapshot",
        "snapshot": {
            "snapshot-id": 1,
            "sequence-number": 1,
            "timestamp-ms": table["metadata"]["last-updated-ms"] + 1,
            "manifest-list": "s3://other.tables/x/metadata/snap-1.avro",
            "summary": {"operation": "append"},
        },
    }
    place = table["metadata"]["location"]
    missing = {**snapshot, "snapshot": {**snapshot["snapshot"], "manifest-list": f"{table['metadata']['location']}/m"}}
    for updates, words in (
        ([{"action": "set-location", "location": "s3://other.tables/x"}], "the table's location is"),
        ([uuid], "keeps its id"),
        ([snapshot], "is no file of this table"),
        ([missing], "/m"),
        ([{"action": "do-magic"}], 'unknown update "do-magic"'),
        *(
            ([{"action": "set-properties", "updates": {"write.data.path": path}}], "below its location")
            for path in ("s3://x/y", f"{place}-else/x", f"{place}/./x", f"{place}/../x")
        ),
        ([{"action": "upgrade-format-version", "format-version": 3}], "table format version: 3"),
    ):
        answer = await client.post(f"{sales}/orders", json={"requirements": [], "updates": updates})
        await refused(answer, 400, "BadRequestException", words)
    for path in ("s3://x/y", "{location}/../z"):
        asked = {"name": "t", "schema": SCHEMA, "properties": {"write.data.path": path}}
        await refused(await client.post(sales, json=asked), 400, "BadRequestException", "below its location")
    magic = await client.post(f"{sales}/orders", json={"requirements": [{"type": "assert-magic"}], "updates": []})
    await refused(magic, 400, "BadRequestException", "unknown requirement")
    await refused(await client.post(sales, json=elsewhere), 400, "BadRequestException", "leave the location out")
    for number in range(3):
        large = {f"n{number}-{n}": "x" * 3_900 for n in range(1_000)}
        body = {"requirements": [], "updates": [{"action": "set-properties", "updates": large}]}
        answer = await client.post(f"{sales}/orders", json=body)
    await refused(answer, 400, "BadRequestException", "may have 10,485,760")
    taken = {"name": "twin", "metadata-location": table["metadata-location"].replace("lake.tables", "other.tables")}
    register = await client.post(f"{LAKE}/sales/register", json=taken)
    await refused(register, 400, "BadRequestException", "other.tables")
    await refused(await client.get(f"{LAKE}/sales/views"), 406, "UnsupportedOperationException", "no views")


async def test_a_file_that_a_run_took_is_gone_and_no_namespace_is_missing(state: AppState) -> None:
    answer = CatalogDoor(state, ()).error(PathExpired("a run took it"), str)

    assert (answer.status_code, json.loads(bytes(answer.body))["error"]["type"]) == (410, "NotFoundException")


async def test_metadata_of_a_later_format_is_no_table_here(client: httpx.AsyncClient, sales: str) -> None:
    """The library reads it, and could not write it again."""
    found = (await make(client, sales))["metadata"]
    later = json.dumps({**found, "format-version": 3, "next-row-id": 0}).encode()

    with pytest.raises(iceberg.InvalidTable, match="tables have format-version 2 here"):
        metadata.parsed(later, f"{found['location']}/m.json", location=found["location"])


async def test_a_file_that_is_larger_than_a_manifest_is_not_read(
    client: httpx.AsyncClient, state: AppState, sales: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer of a table may name any of its files as a list of manifests, or put one in place of its metadata."""
    table = await make(client, sales)
    tables = (await state.catalog.get("lake")).tables
    large = f"{table['metadata']['table-uuid']}/data/large"
    await tables.put(large, b"x" * 2_000)
    monkeypatch.setattr(iceberg, "MANIFEST_BYTES_MAX", 1_000)
    snapshot = {"snapshot-id": 1, "sequence-number": 1, "timestamp-ms": table["metadata"]["last-updated-ms"] + 1}
    snapshot |= {"manifest-list": tables.uri_of(large), "summary": {"operation": "append"}}

    answer = await client.post(
        f"{sales}/orders", json={"requirements": [], "updates": [{"action": "add-snapshot", "snapshot": snapshot}]}
    )
    await refused(answer, 400, "BadRequestException", "has 2,000 bytes, and a manifest may have 1,000")

    monkeypatch.setattr(metadata, "METADATA_BYTES_MAX", 500)
    monkeypatch.setattr(iceberg, "METADATA_BYTES_MAX", 500)
    await refused(await client.get(f"{sales}/orders"), 400, "BadRequestException", "has 501 bytes")
    register = {"name": "twin", "metadata-location": table["metadata-location"]}
    await refused(
        await client.post(f"{LAKE}/sales/register", json=register), 400, "BadRequestException", "has 501 bytes"
    )


@pytest.mark.parametrize("codec", ["deflate", "zstandard"])
async def test_a_small_manifest_that_decodes_to_a_large_one_is_refused(
    codec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = b"\x04" + b"ab"
    data = b"Obj\x01" + avro_map({"avro.schema": AVRO_PATHS, "avro.codec": codec}) + bytes(16)
    block = entry * 10_000
    packed = zlib.compress(block)[2:-4] if codec == "deflate" else zstandard.compress(block)
    data += avro_long(10_000) + avro_long(len(packed)) + packed + bytes(16)

    with pytest.raises(iceberg.InvalidTable, match="ab is no file of this table"):
        files._manifests_in("s3://a/list", data, "s3://a")
    monkeypatch.setattr(avro, "DECODED_BYTES_MAX", 20_000)
    with pytest.raises(iceberg.InvalidTable, match="more than 20,000 bytes, decompressed"):
        files._manifests_in("s3://a/list", data, "s3://a")


AVRO_PATHS = '{"type":"record","name":"list","fields":[{"name":"manifest_path","type":"string","field-id":500}]}'


def avro_long(number: int) -> bytes:
    number, found = number << 1, b""
    while number > 0x7F:
        found, number = found + bytes([number & 0x7F | 0x80]), number >> 7
    return found + bytes([number])


def avro_map(values: dict[str, str]) -> bytes:
    texts = [text.encode() for pair in values.items() for text in pair]
    return avro_long(len(values)) + b"".join(avro_long(len(text)) + text for text in texts) + b"\0"


def creation(metadata: dict[str, Any]) -> dict[str, Any]:
    """The commit of a client that makes a table from these metadata, which it was lent for that."""
    updates = [
        {"action": "assign-uuid", "uuid": metadata["table-uuid"]},
        {"action": "upgrade-format-version", "format-version": 2},
        {"action": "add-schema", "schema": SCHEMA, "last-column-id": 1},
        {"action": "set-current-schema", "schema-id": -1},
        {"action": "add-spec", "spec": {"spec-id": 0, "fields": []}},
        {"action": "set-default-spec", "spec-id": -1},
        {"action": "add-sort-order", "sort-order": {"order-id": 0, "fields": []}},
        {"action": "set-default-sort-order", "sort-order-id": -1},
        {"action": "set-location", "location": metadata["location"]},
    ]
    return {"requirements": [{"type": "assert-create"}], "updates": updates}


async def test_no_table_takes_the_id_of_another_be_it_staged_made_or_dropped(
    client: httpx.AsyncClient, sales: str, state: AppState, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever makes a table gets keys for all files below its id."""
    staged = (await make(client, sales, "orders", **{"stage-create": True}))["metadata"]

    thief = await client.post(f"{sales}/twin", json=creation(staged))
    await refused(thief, 400, "BadRequestException", "gave no table sales.twin of main the id")
    assert (await client.post(f"{sales}/orders", json=creation(staged))).status_code == 200

    thief = await client.post(f"{sales}/twin", json=creation(staged))
    await refused(thief, 400, "BadRequestException", "gave no table sales.twin of main the id")
    other = {"namespace": ["sales"], "name": "secret"}
    body = {"source": {"namespace": ["sales"], "name": "orders"}, "destination": other}
    assert (await client.post(f"{ROOT}/lake.main/tables/rename", json=body)).status_code == 204
    again = await client.post(f"{sales}/orders", json=creation(staged))
    await refused(again, 409, "CommitFailedException", "is or was a table")

    # Other files come before its metadata, and fill a page.
    repository = await state.catalog.get("lake")
    await repository.tables.put(f"{staged['table-uuid']}/metadata/0.avro", b"")
    whole = type(repository.versions.staging).list

    async def by_one(self: Any, *args: Any, **how: Any) -> Any:
        return await whole(self, *args, **{**how, "limit": 1})

    monkeypatch.setattr(type(repository.versions.staging), "list", by_one)
    again = await client.post(f"{sales}/orders", json=creation(staged))
    await refused(again, 409, "CommitFailedException", "is or was a table")


async def test_a_commit_whose_answer_was_lost_is_answered_again_and_made_once(
    client: httpx.AsyncClient, sales: str, repo: str
) -> None:
    staged = (await make(client, sales, "orders", **{"stage-create": True}))["metadata"]
    for _ in range(2):
        answer = await client.post(f"{sales}/orders", json=creation(staged))
        assert answer.status_code == 200, answer.text
    column = {"id": 2, "name": "b", "required": False, "type": "long"}
    wider = {**SCHEMA, "schema-id": 1, "fields": [*SCHEMA["fields"], column]}
    change = {
        "requirements": [{"type": "assert-current-schema-id", "current-schema-id": 0}],
        "updates": [
            {"action": "add-schema", "schema": wider, "last-column-id": 2},
            {"action": "set-current-schema", "schema-id": -1},
        ],
    }
    answers = [(await client.post(f"{sales}/orders", json=change)).json() for _ in range(2)]

    assert answers[0] == answers[1]
    assert answers[0]["metadata"]["current-schema-id"] == 1
    assert len((await client.get(f"{repo}/refs/main/commits")).json()["results"]) == 4
    several = {"table-changes": [{"identifier": {"namespace": ["sales"], "name": "orders"}, **change}]}
    assert (await client.post(f"{ROOT}/lake.main/transactions/commit", json=several)).status_code == 204
    late = {**change, "updates": [{"action": "set-properties", "updates": {"k": "1"}}]}
    await refused(await client.post(f"{sales}/orders", json=late), 409, "CommitFailedException", "current schema")
    late["requirements"] = []
    assert (await client.post(f"{sales}/orders", json=late)).status_code == 200
    await refused(await client.post(f"{sales}/orders", json=change), 409, "CommitFailedException", "current schema")


@pytest.mark.parametrize("size", [10, 100_000], ids=["small", "in a thread"])
async def test_a_creation_without_a_schema_is_refused(client: httpx.AsyncClient, sales: str, size: int) -> None:
    """The library raises StopIteration, which a thread cannot hand on."""
    updates = [{"action": "set-properties", "updates": {"k": "x" * size}}]
    body = {"requirements": [{"type": "assert-create"}], "updates": updates}

    await refused(await client.post(f"{sales}/new", json=body), 400, "BadRequestException", "cannot be applied")


async def test_a_table_registered_over_another_leaves_no_entry_of_it(
    client: httpx.AsyncClient, sales: str, repo: str
) -> None:
    new = await make(client, sales, "new")
    await make(client, sales)
    body = {"name": "orders", "metadata-location": new["metadata-location"], "overwrite": True}

    answer = await client.post(f"{LAKE}/sales/register", json=body)

    assert answer.json()["metadata"]["table-uuid"] == new["metadata"]["table-uuid"], answer.text
    found = await client.get(f"{repo}/refs/main/objects/ls", params={"prefix": "sales/orders.iceberg/"})
    file = new["metadata-location"].rpartition("/")[2]
    paths = [each["path"].removeprefix("sales/orders.iceberg/") for each in found.json()["results"]]
    assert paths == [f"metadata/{file}", "table.json"]


async def test_several_tables_change_in_one_commit_or_none_of_them(
    client: httpx.AsyncClient, sales: str, repo: str
) -> None:
    for name in ("a", "b"):
        await make(client, sales, name)
    before = (await client.get(f"{repo}/branches/main")).json()["commit_id"]
    change = {"requirements": [], "updates": [{"action": "set-properties", "updates": {"k": "1"}}]}
    # All of a table's requirements count.
    stale = {
        "requirements": [
            {"type": "assert-last-assigned-field-id", "last-assigned-field-id": 1},
            {"type": "assert-current-schema-id", "current-schema-id": 7},
        ],
        "updates": change["updates"],
    }

    def of(name: str, changes: dict[str, Any]) -> dict[str, Any]:
        return {"identifier": {"namespace": ["sales"], "name": name}, **changes}

    url = f"{ROOT}/lake.main/transactions/commit"
    failed = await client.post(url, json={"table-changes": [of("a", change), of("b", stale)]})
    await refused(failed, 409, "CommitFailedException", "current schema")
    assert (await client.get(f"{repo}/branches/main")).json()["commit_id"] == before
    assert (await client.post(url, json={"table-changes": [of("a", change), of("b", change)]})).status_code == 204

    commits = (await client.get(f"{repo}/refs/main/commits")).json()["results"]
    assert commits[0]["parents"] == [before]
    assert commits[0]["message"] == "sales.a: settings, sales.b: settings"
    for name in ("a", "b"):
        assert (await client.get(f"{sales}/{name}")).json()["metadata"]["properties"]["k"] == "1"

    # Of one table the commit was made already. The other one is another commit's, so the client was not answered.
    wider = {**SCHEMA, "schema-id": 1, "fields": [*SCHEMA["fields"], {**SCHEMA["fields"][0], "id": 2, "name": "b"}]}
    once = {
        "requirements": [{"type": "assert-current-schema-id", "current-schema-id": 0}],
        "updates": [
            {"action": "add-schema", "schema": wider, "last-column-id": 2},
            {"action": "set-current-schema", "schema-id": -1},
        ],
    }
    (await client.post(f"{sales}/a", json=once)).raise_for_status()
    again = await client.post(url, json={"table-changes": [of("b", once), of("a", once)]})
    await refused(again, 409, "CommitFailedException", "current schema")
    assert (await client.get(f"{sales}/b")).json()["metadata"]["current-schema-id"] == 0


async def test_lent_keys_open_the_files_of_the_table_and_nothing_else(
    client: httpx.AsyncClient, app: App, sales: str
) -> None:
    header = {"x-iceberg-access-delegation": "vended-credentials"}
    await make(client, sales)
    await make(client, sales, "other")
    assert (await client.get(f"{sales}/orders")).json()["config"].keys() & {"s3.access-key-id"} == set()

    lent = (await client.get(f"{sales}/orders", headers=header)).json()

    key, secret = lent["config"]["s3.access-key-id"], lent["config"]["s3.secret-access-key"]
    assert lent["storage-credentials"][0]["prefix"] == lent["metadata"]["location"] + "/"
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost/api/v1", auth=(key, secret)) as thief:
        assert (await thief.get("/user")).status_code == 401
        assert (
            await thief.post("/auth/login", json={"access_key_id": key, "secret_access_key": secret})
        ).status_code == 401


async def test_what_is_written_for_a_table_counts_for_its_branch_and_its_user(
    client: httpx.AsyncClient, app: App, state: AppState, sales: str
) -> None:
    quota, main = "/repositories/lake/quotas", {"branch": "main"}
    user = (await client.get("/user")).json()["user"]["id"]

    async def limit(limit_bytes: int) -> None:
        for url, query in ((quota, main), (f"/auth/users/{user}/quota", {})):
            (await client.put(url, params=query, json={"limit_bytes": limit_bytes})).raise_for_status()

    async def used() -> set[int]:
        await state.catalog.meter.settle(is_stopping=True)
        [branch] = (await client.get(quota, params=main)).json()["results"]
        return {branch["used_bytes"], (await client.get(f"/auth/users/{user}/quota")).json()["used_bytes"]}

    await limit(1 << 20)
    table = await make(client, sales)
    [created] = await used()
    lent = (await client.get(f"{sales}/orders/credentials")).json()["storage-credentials"][0]["config"]
    file = "/" + table["metadata"]["location"].removeprefix("s3://") + "/data/a"
    with asked_as(app, (lent["s3.access-key-id"], lent["s3.secret-access-key"])) as keys:
        begun = re.search(r"<UploadId>([^<]+)", (await keys.post(f"{file}?uploads")).text)
        assert begun
        (await keys.put(f"{file}?partNumber=1&uploadId={begun[1]}", content=b"x" * 1_000)).raise_for_status()
        (await keys.put(f"{file}b", content=b"x" * 100)).raise_for_status()
        [written] = await used()
        await limit(written)
        full = await keys.put(f"{file}c", content=b"x")
    head = (await client.get("/repositories/lake/branches/main")).json()["commit_id"]
    update = {"requirements": [], "updates": [{"action": "set-properties", "updates": {"k": "1"}}]}
    unmade = [
        await client.post(f"{sales}/orders", json=update),
        await client.post(sales, json={"name": "other", "schema": SCHEMA}),
        await client.post(f"{LAKE}/sales/properties", json={"updates": {"k": "1"}}),
    ]

    assert created > 100
    assert written == created + 1_100
    assert "<Code>QuotaExceeded</Code>" in full.text
    for answer in unmade:
        await refused(answer, 403, "ForbiddenException", "quota")
    assert (await client.get("/repositories/lake/branches/main")).json()["commit_id"] == head
    assert await used() == {written}


async def test_a_quota_counts_however_a_client_writes_its_branch(
    client: httpx.AsyncClient, app: App, state: AppState, sales: str
) -> None:
    """No commit takes `main@`. What was stored for it counts all the same: else a client has all the room it likes."""
    quota, main = "/repositories/lake/quotas", {"branch": "main"}
    (await client.put(quota, params=main, json={"limit_bytes": 1 << 20})).raise_for_status()
    table = await make(client, sales)
    at_head = sales.replace("lake.main", "lake.main%40")

    async def used() -> int:
        await state.catalog.meter.settle(is_stopping=True)
        [branch] = (await client.get(quota, params=main)).json()["results"]
        return int(branch["used_bytes"])

    created = await used()
    lent = (await client.get(f"{at_head}/orders/credentials")).json()["storage-credentials"][0]["config"]
    file = "/" + table["metadata"]["location"].removeprefix("s3://") + "/data/a"
    with asked_as(app, (lent["s3.access-key-id"], lent["s3.secret-access-key"])) as keys:
        (await keys.put(file, content=b"x" * 1_000)).raise_for_status()
    written = await used()
    update = {"requirements": [], "updates": [{"action": "set-properties", "updates": {"k": "1" * 500}}]}
    unmade = await client.post(f"{at_head}/orders", json=update)

    assert written == created + 1_000
    await refused(unmade, 403, "ForbiddenException", "is no branch")
    assert await used() > written + 500


async def test_who_may_only_read_gets_keys_that_only_read(
    client: httpx.AsyncClient, app: App, state: AppState, sales: str
) -> None:
    table = await make(client, sales)
    url = table["metadata"]["location"]
    await client.post("/auth/users", json={"id": "ann"})
    pair = (await client.post("/auth/users/ann/credentials")).json()
    policy = {
        "id": "reads",
        "statement": [allow("fs:ReadObject", resource="arn:lakefs:fs:::repository/lake/object/sales/*")],
    }
    await client.post("/auth/policies", json=policy)
    await client.put("/auth/users/ann/policies/reads")
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    auth = (pair["access_key_id"], pair["secret_access_key"])

    async with httpx.AsyncClient(transport=transport, base_url="http://localhost", auth=auth) as ann:
        lent = (await ann.get(f"{sales}/orders/credentials")).json()["storage-credentials"][0]["config"]
        await refused(
            await ann.post(sales, json={"name": "x", "schema": SCHEMA}), 403, "ForbiddenException", "ann needs"
        )
        await refused(await ann.get(sales), 403, "ForbiddenException", "fs:ListObjects")

    assert read_lent(lent["s3.access-key-id"], b"x" * 32) is None, "another server's"
    found = read_lent(lent["s3.access-key-id"], state.authenticator.lent_key)
    assert found is not None
    assert (found[0].branch, found[0].may_write, found[0].folder in url) == ("tables", False, True)
    file = "/" + table["metadata-location"].removeprefix("s3://")
    with asked_as(app, (lent["s3.access-key-id"], lent["s3.secret-access-key"])) as keys:
        assert ((await keys.get(file)).status_code, (await keys.put(file + "x", content=b"x")).status_code) == (
            200,
            403,
        )
        assert (await keys.delete(file)).status_code == 403
        await client.delete("/auth/users/ann/policies/reads")
        assert (await keys.get(file)).status_code == 403, "her rights are over, and the hour is not"


async def test_a_client_without_a_key_has_each_request_signed_also_for_a_table_that_is_staged(
    client: httpx.AsyncClient, app: App, sales: str
) -> None:
    header = {"x-iceberg-access-delegation": "remote-signing"}
    made = (await client.post(sales, json={"name": "a", "schema": SCHEMA}, headers=header)).json()
    staged = await make(client, sales, "b", **{"stage-create": True})
    await make(client, sales, "other")
    config = made["config"]
    bare = httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://localhost")

    async def asked(method: str, location: str, file: str, by: str, **more: Any) -> httpx.Response:
        url = f"http://localhost/{location.removeprefix('s3://')}/{file}"
        body = {"region": "us-east-1", "method": method, "uri": url, "headers": {"Host": ["localhost"]}}
        answer = await client.post(f"http://localhost/iceberg/{by}", json=body)
        if answer.is_error:
            return answer
        headers = {name: ", ".join(values) for name, values in answer.json()["headers"].items()}
        return await bare.request(method, answer.json()["uri"], headers=headers, **more)

    own, by = made["metadata"]["location"], config["s3.signer.endpoint"]
    put = await asked("PUT", own, "data/a b?x-id=PutObject", by, content=b"rows")
    read = await asked("GET", own, "data/a%20b", by)
    foreign = await asked("GET", own.rpartition("/")[0], "x/data/a", by)
    early = await asked("PUT", staged["metadata"]["location"], "data/b", by.replace("/a/sign", "/b/sign"), content=b"x")
    wrong = await asked("PUT", own, "data/c", by.replace("/a/sign", "/c/sign"), content=b"x")

    assert config.keys() & {"s3.access-key-id", "s3.secret-access-key"} == set()
    assert config["s3.signer.uri"] + "/" + by == sales.replace("sales/tables", "sales/tables/a/sign")
    assert (put.status_code, read.content, early.status_code) == (200, b"rows", 200)
    assert foreign.status_code == 403
    await refused(wrong, 404, "NoSuchTableException", "Table does not exist: sales.c")
    both = {"x-iceberg-access-delegation": "vended-credentials,remote-signing"}
    assert "s3.signer.uri" not in (await client.get(f"{sales}/a", headers=both)).json()["config"]


async def test_an_engine_that_tidies_up_is_answered_and_nothing_is_deleted(
    client: httpx.AsyncClient, app: App, sales: str
) -> None:
    """Else it would report that it may not, in place of the reason why its commit failed."""
    lent = (await make(client, sales), await make(client, sales, "other"))
    files = ["/" + one["metadata-location"].removeprefix("s3://") for one in lent]
    config = (await client.get(f"{sales}/orders/credentials")).json()["storage-credentials"][0]["config"]
    with asked_as(app, (config["s3.access-key-id"], config["s3.secret-access-key"])) as keys:
        names = [file.split("/", 2)[2] for file in files]
        body = "".join(f"<Object><Key>{name}</Key></Object>" for name in names)
        many = await keys.post("/lake.tables?delete", content=f"<Delete>{body}</Delete>".encode())
        one, another = await keys.delete(files[0]), await keys.delete(files[1])
        kept = await keys.get(files[0])

    assert (one.status_code, another.status_code, kept.status_code) == (204, 403, 200)
    assert f"<Deleted><Key>{names[0]}</Key></Deleted>" in many.text
    assert f"<Error><Key>{names[1]}</Key><Code>AccessDenied</Code>" in many.text


async def test_no_door_deletes_or_writes_a_file_that_a_table_needs_and_each_says_why(
    client: httpx.AsyncClient, app: App, sales: str, repo: str
) -> None:
    await make(client, sales)
    record, words = "sales/orders.iceberg/table.json", "is a file of table sales.orders: change or drop the table"
    at = {"path": record}
    assert isinstance(client.auth, httpx.BasicAuth)
    pair = (await client.post("/auth/users/esti/credentials")).json()
    with asked_as(app, (pair["access_key_id"], pair["secret_access_key"])) as gateway:
        body = f"<Delete><Object><Key>{record}</Key></Object></Delete>".encode()
        answers = [
            await gateway.delete(f"/lake.main/{record}"),
            await gateway.put(f"/lake/main/{record}", content=b"x"),
            await gateway.post(f"/lake.main/{record}?uploads"),
            await gateway.post("/lake.main?delete", content=body),
        ]
    assert [answer.status_code for answer in answers] == [403, 403, 403, 200]
    assert all("<Code>AccessDenied</Code>" in answer.text and words in answer.text for answer in answers)

    objects = f"{repo}/branches/main/objects"
    for answer in (
        await client.delete(objects, params=at),
        await client.post(objects, params=at, content=b"x"),
        await client.post(f"{objects}/copy", params={"dest_path": record}, json={"src_path": "sales/namespace.json"}),
    ):
        assert (answer.status_code, words in answer.json()["message"]) == (403, True), answer.text
    many = (await client.post(f"{objects}/delete", json={"paths": [record]})).json()["errors"]
    assert [(one["path"], one["status_code"], words in one["message"]) for one in many] == [(record, 403, True)]
    assert (await client.get(f"{sales}/orders")).status_code == 200
    assert (await client.delete(objects, params={**at, "force": "true"})).status_code == 204


async def test_of_two_commits_at_once_the_second_meets_its_requirements_or_fails(
    client: httpx.AsyncClient, sales: str, state: AppState
) -> None:
    """It is made again over what the first one left, so its requirements are checked once more."""
    await make(client, sales)
    column = {"id": 2, "name": "b", "required": False, "type": "long"}
    wider = {**SCHEMA, "schema-id": 1, "fields": [*SCHEMA["fields"], column]}
    first = {
        "requirements": [],
        "updates": [
            {"action": "add-schema", "schema": wider, "last-column-id": 2},
            {"action": "set-current-schema", "schema-id": -1},
        ],
    }
    second = {
        "requirements": [{"type": "assert-current-schema-id", "current-schema-id": 0}],
        "updates": [{"action": "set-properties", "updates": {"k": "1"}}],
    }
    queue = (await state.catalog.get("lake")).changes._queue
    may_go = asyncio.Event()
    holding = asyncio.create_task(queue.run("main", may_go.wait))
    await asyncio.sleep(0)
    tasks: list[asyncio.Task[httpx.Response]] = []
    # Both have read the table when the first one has its turn on the branch.
    for number, body in enumerate((first, second), 1):
        tasks.append(asyncio.create_task(client.post(f"{sales}/orders", json=body)))
        while queue.waiting < number:  # noqa: ASYNC110  # the queue has no event of who waits
            await asyncio.sleep(0.001)
    may_go.set()
    await holding
    one, two = await asyncio.gather(*tasks)

    assert one.status_code == 200, one.text
    await refused(two, 409, "CommitFailedException", "current schema")
