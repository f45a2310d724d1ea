"""What the gateway shares with the other doors: permissions, the audit log, and which requests are its own."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest

from lakebed.auth import SESSION_COOKIE
from lakebed.server import App, AppState, ServerOptions, create_app, opened, options_of
from lakebed.server.operate.audit import AuditQuery
from lakebed.server.s3.gateway import BROWSER_KEY
from lakebed.server.s3.operations import BUCKET_SETTINGS, OBJECT_SETTINGS, OPERATIONS
from lakebed.server.s3.options import InvalidGatewaySetting, S3Options

from .signing import Signer, allow, asked_as, keys_of

ROUTES = {
    "s3:ListBuckets": ("GET", "/", "fs:ListRepositories"),
    "s3:HeadBucket": ("HEAD", "/lake", "fs:ReadRepository"),
    "s3:GetBucketLocation": ("GET", "/lake.main?location", "fs:ReadBranch"),
    "s3:ListObjectVersions": ("GET", "/lake.main?versions", "fs:ListObjects"),
    "s3:CreateBucket": ("PUT", "/lake.dev", "fs:CreateBranch"),
    "s3:DeleteBucket": ("DELETE", "/lake.gone", "fs:DeleteBranch"),
    "s3:ListObjects": ("GET", "/lake.main", "fs:ListObjects"),
    "s3:ListObjectsV2": ("GET", "/lake.main?list-type=2", "fs:ListObjects"),
    "s3:GetObject": ("GET", "/lake/main/a", "fs:ReadObject"),
    "s3:HeadObject": ("HEAD", "/lake/main/a", "fs:ReadObject"),
    "s3:GetObjectAttributes": ("GET", "/lake/main/a?attributes", "fs:ReadObject"),
    "s3:PutObject": ("PUT", "/lake/main/b", "fs:WriteObject"),
    "s3:DeleteObject": ("DELETE", "/lake/main/b", "fs:DeleteObject"),
    "s3:CreateMultipartUpload": ("POST", "/lake/main/b?uploads", "fs:WriteObject"),
    "s3:UploadPart": ("PUT", "/lake/main/b?uploadId=x&partNumber=1", "fs:WriteObject"),
    "s3:CompleteMultipartUpload": ("POST", "/lake/main/b?uploadId=x", "fs:WriteObject"),
    "s3:AbortMultipartUpload": ("DELETE", "/lake/main/b?uploadId=x", "fs:WriteObject"),
    "s3:ListParts": ("GET", "/lake/main/b?uploadId=x", "fs:WriteObject"),
    "s3:ListMultipartUploads": ("GET", "/lake?uploads", "fs:ListObjects"),
}
ROUTES |= {f"s3:{each.name}": ("GET", f"/lake?{name}", "fs:ReadRepository") for name, each in BUCKET_SETTINGS.items()}
ROUTES |= {
    f"s3:{each.name}": ("GET", f"/lake/main/a?{name}", "fs:ReadObject") for name, each in OBJECT_SETTINGS.items()
}
UNKNOWN = "uploadId=x"
"""A caller who may ask learns that there is no such upload."""
PRESIGNED = {
    "X-Amz-Algorithm": "AWS4-HMAC-SHA256",
    "X-Amz-Credential": f"{BROWSER_KEY}/20300101/us-east-1/s3/aws4_request",
    "X-Amz-Date": "20300101T000000Z",
    "X-Amz-Expires": "60",
    "X-Amz-SignedHeaders": "host",
    "X-Amz-Signature": "0" * 64,
}
"""What a link can carry: all but a header."""
SENT = {"s3:GetObjectAttributes": {"x-amz-object-attributes": "ETag"}}


@pytest.mark.parametrize("name", ROUTES)
async def test_each_operation_asks_for_the_permission_of_the_table(
    name: str, app: App, lake: httpx.AsyncClient
) -> None:
    method, path, action = ROUTES[name]
    may = await keys_of(lake, "may", allow(action))
    may_not = await keys_of(lake, "may-not", allow("fs:*"), {"effect": "deny", "action": [action], "resource": "*"})

    with asked_as(app, may_not) as denied:
        assert (await denied.request(method, path, headers=SENT.get(name))).status_code == 403
    with asked_as(app, may) as allowed:
        answer = await allowed.request(method, path, headers=SENT.get(name))
    refused = {"s3:DeleteBucket": 501}
    unset = "<Error>" in answer.text and name.startswith("s3:Get")
    expected = {404} if UNKNOWN in path or unset else {refused.get(name, 200), 204}
    assert answer.status_code in expected, answer.text


def test_every_operation_of_the_gateway_is_in_this_list() -> None:
    told_apart = {"s3:CopyObject", "s3:UploadPartCopy", "s3:DeleteObjects"}

    assert {f"s3:{operation.name}" for operation in OPERATIONS} == {*ROUTES, *told_apart}


async def test_a_copy_needs_to_read_its_source_and_to_write_its_target(app: App, lake: httpx.AsyncClient) -> None:
    source, target = "arn:lakefs:fs:::repository/lake/object/a", "arn:lakefs:fs:::repository/lake/object/b"
    read, write = allow("fs:ReadObject", resource=source), allow("fs:WriteObject", resource=target)
    header = {"x-amz-copy-source": "/lake/main/a"}

    for user, statements, status in (("r", [read], 403), ("w", [write], 403), ("rw", [read, write], 200)):
        with asked_as(app, await keys_of(lake, user, *statements)) as client:
            assert (await client.put("/lake.main/b", headers=header)).status_code == status


async def test_a_batch_deletes_the_keys_that_its_caller_may_delete_and_names_the_others(
    app: App, lake: httpx.AsyncClient
) -> None:
    mine = "arn:lakefs:fs:::repository/lake/object/mine/*"
    pair = await keys_of(lake, "ann", allow("fs:WriteObject"), allow("fs:DeleteObject", resource=mine))
    body = b"<Delete><Object><Key>mine/x</Key></Object><Object><Key>a</Key></Object></Delete>"

    with asked_as(app, pair) as client:
        (await client.put("/lake.main/mine/x", content=b"x")).raise_for_status()
        answer = await client.post("/lake.main?delete", content=body)

    assert "<Deleted><Key>mine/x</Key></Deleted>" in answer.text
    assert "<Error><Key>a</Key><Code>AccessDenied</Code>" in answer.text
    assert (await lake.get("/repositories/lake/refs/main/objects?path=a")).content == b"hello"


async def test_a_listing_shows_no_etag_of_an_object_that_is_denied(app: App, lake: httpx.AsyncClient) -> None:
    secret = "arn:lakefs:fs:::repository/lake/object/secret/*"
    deny: dict[str, object] = {"effect": "deny", "action": ["fs:ReadObject"], "resource": secret}
    pair = await keys_of(lake, "ann", allow("fs:*"), deny)
    checksum = {"x-amz-checksum-algorithm": "CRC32", "x-amz-checksum-crc32": "OncRQw=="}
    queries = ("", "list-type=2", "versions")

    with asked_as(app, pair) as client:
        (await client.put("/lake.main/secret/b", content=b"world", headers=checksum)).raise_for_status()
        ways = [f"/lake.main?{query}" for query in queries] + [
            f"/lake?{query}{'&' if query else ''}prefix=main%2F" for query in queries
        ]
        texts = [(await client.get(way)).text for way in ways]

    for way, text in zip(ways, texts, strict=True):
        etags = re.findall(r"<Key>([^<]+)</Key>.*?<ETag>&quot;([^&]*)&quot;</ETag><Size>5</Size>", text)
        assert [(key.removeprefix("main/"), bool(etag)) for key, etag in etags] == [
            ("a", True),
            ("secret/b", False),
        ], way
        assert "ChecksumAlgorithm" not in text, way


async def test_a_page_of_the_contracts_server_reads_by_the_login_of_its_user(app: App, lake: httpx.AsyncClient) -> None:
    key_id, secret = await keys_of(lake, "ann", allow("fs:*"))
    login = {"access_key_id": key_id, "secret_access_key": secret}
    token = (await lake.post("/auth/login", json=login)).json()["token"]
    cookie = {"cookie": f"{SESSION_COOKIE}={token}"}
    foreign = {"origin": "http://elsewhere.example"}

    with asked_as(app, (BROWSER_KEY, "means nothing")) as page:
        assert (await page.get("/lake/main/a?r=0.5", headers=cookie)).content == b"hello"
        assert (await page.put("/lake/main/b", headers=cookie, content=b"x")).status_code == 200
        refused = [
            await page.get("/lake/main/a"),
            await page.get("/lake/main/a", headers=cookie | foreign),
            await page.get("/lake/main/a", headers={"cookie": f"{SESSION_COOKIE}={token}x"}),
            await page.get("/lake/main/a", auth=httpx.Auth(), headers=cookie, params=PRESIGNED),
        ]
        await lake.post("/auth/logout", auth=httpx.Auth(), headers={"authorization": f"Bearer {token}"})
        refused.append(await page.get("/lake/main/a", headers=cookie))
    with asked_as(app, (key_id, "means nothing")) as other:
        refused.append(await other.get("/lake/main/a", headers=cookie))

    assert [answer.status_code for answer in refused] == [403] * 6, [answer.text for answer in refused]


async def test_the_audit_log_has_changes_and_refusals_with_their_names(
    app: App, state: AppState, lake: httpx.AsyncClient
) -> None:
    mine = "arn:lakefs:fs:::repository/lake/object/mine/*"
    pair = await keys_of(lake, "ann", allow("fs:WriteObject"), allow("fs:DeleteObject", resource=mine))

    with asked_as(app, pair) as client:
        await client.put("/lake/main/b", content=b"x")
        await client.get("/lake/main/b")
        await client.post("/else.main?delete", content=b"<Delete><Object><Key>mine/a</Key></Object></Delete>")
        await client.post("/lake.main?delete", content=b"<Delete><Object><Key>a</Key></Object></Delete>")

    found = [each for each in state.audit.read(AuditQuery())[0] if each.operation.startswith("s3:")]
    assert [(each.operation, each.user, each.status, each.allowed) for each in found] == [
        ("s3:DeleteObjects", "ann", 200, False),
        ("s3:DeleteObjects", "ann", 403, False),
        ("s3:GetObject", "ann", 403, False),
        ("s3:PutObject", "ann", 200, True),
    ]
    assert found[0].what["paths"] == ["a"]
    assert "paths" not in found[1].what  # The body was not read: its sender may delete nothing in that repository.
    assert found[3].what == {"repository": "lake", "ref": "main", "path": "b"}
    assert {each.through for each in found} == {f"key {pair[0]}"}


async def test_a_forged_request_is_refused_and_noted(app: App, state: AppState, lake: httpx.AsyncClient) -> None:
    pair = await keys_of(lake, "ann", allow("fs:*"))

    with asked_as(app, (pair[0], "x" * 40)) as client:
        answer = await client.get("/lake/main/a")

    assert answer.status_code == 403
    assert "<Code>SignatureDoesNotMatch</Code>" in answer.text
    newest = state.audit.read(AuditQuery())[0][0]
    assert (newest.allowed, newest.status, newest.through) == (False, 403, f"key {pair[0]}")


async def test_a_host_of_the_gateway_names_the_bucket(tmp_path: Path) -> None:
    options = S3Options(domains=("s3.example.com",))
    async with opened(ServerOptions(data_dir=tmp_path, blockstore="mem", store_uri="mem://", s3=options)) as state:
        app = create_app(state)
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost/api/v1") as stranger:
            pair = (await stranger.post("/setup_lakefs", json={"username": "esti"})).json()
            anonymous = await stranger.get("http://lake.main.s3.example.com/a")
            assert (anonymous.status_code, "<Code>AccessDenied</Code>" in anonymous.text) == (403, True)
            keys = pair["access_key_id"], pair["secret_access_key"]
            made = {"name": "lake", "storage_namespace": "mem://hosts"}
            (await stranger.post("/repositories", json=made, auth=keys)).raise_for_status()
            for host, path in (("lake.main", "/a"), ("lake", "/main/b")):
                url = f"http://{host}.s3.example.com{path}"
                (await stranger.put(url, content=b"x", auth=Signer(*keys))).raise_for_status()
                assert (await stranger.get(url, auth=Signer(*keys))).content == b"x"


async def test_a_gateway_of_one_repository_takes_buckets_for_its_branches(tmp_path: Path) -> None:
    options = S3Options(repository="lake")
    async with opened(ServerOptions(data_dir=tmp_path, blockstore="mem", store_uri="mem://", s3=options)) as state:
        transport = httpx.ASGITransport(app=create_app(state))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            pair = (await client.post("/api/v1/setup_lakefs", json={"username": "esti"})).json()
            keys = pair["access_key_id"], pair["secret_access_key"]
            made = {"name": "lake", "storage_namespace": "mem://single"}
            (await client.post("/api/v1/repositories", json=made, auth=keys)).raise_for_status()
            hidden = {"name": "eve", "source": "main", "hidden": True}
            (await client.post("/api/v1/repositories/lake/branches", json=hidden, auth=keys)).raise_for_status()
            client.auth = Signer(*keys)
            assert (await client.put("/dev")).status_code == 200
            assert (await client.put("/dev/main/a", content=b"x")).status_code == 200
            assert re.findall("<Name>(.*?)</Name>", (await client.get("/")).text) == ["dev", "main"]
            first = (await client.get("/?max-buckets=1")).text
            token = re.findall("<ContinuationToken>(.*?)</ContinuationToken>", first)[0]
            second = (await client.get(f"/?max-buckets=1&continuation-token={quote(token, safe='')}")).text
            assert [re.findall("<Name>(.*?)</Name>", text) for text in (first, second)] == [["dev"], ["main"]]
            assert "<Key>main/a</Key>" in (await client.get("/dev?list-type=2")).text


@pytest.mark.parametrize(
    "environment",
    [{"LAKEBED_GATEWAY_DOMAINS": "a b"}, {"LAKEBED_GATEWAY_DOMAINS": "-a"}, {"LAKEBED_GATEWAY_REPOSITORY": "A"}],
)
def test_an_impossible_setting_is_refused_at_the_start(environment: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(InvalidGatewaySetting):
        options_of(tmp_path, environment)


async def test_a_bucket_is_never_deleted_for_a_write_may_arrive_between_the_look_and_the_deletion(
    app: App, lake: httpx.AsyncClient
) -> None:
    pair = await keys_of(lake, "ann", allow("fs:*"))

    with asked_as(app, pair) as client:
        empty = await client.delete("/lake.gone")
        full = await client.delete("/lake.main")

    assert (empty.status_code, "<Code>NotImplemented</Code>" in empty.text) == (501, True)
    assert (full.status_code, "<Code>BucketNotEmpty</Code>" in full.text) == (409, True)
    assert (await lake.get("/repositories/lake/branches/gone")).status_code == 200
