"""Settings that no bucket and no object has here: a read answers S3's default, and a write is refused by name."""

from __future__ import annotations

import re
from urllib.parse import quote

import httpx
import pytest

UNSET = {
    "cors": "NoSuchCORSConfiguration",
    "encryption": "ServerSideEncryptionConfigurationNotFoundError",
    "lifecycle": "NoSuchLifecycleConfiguration",
    "object-lock": "ObjectLockConfigurationNotFoundError",
    "policy": "NoSuchBucketPolicy",
    "policyStatus": "NoSuchBucketPolicy",
    "replication": "ReplicationConfigurationNotFoundError",
    "tagging": "NoSuchTagSet",
    "website": "NoSuchWebsiteConfiguration",
}
DEFAULTS = {
    "accelerate": "<AccelerateConfiguration ",
    "acl": "<Permission>FULL_CONTROL</Permission>",
    "location": "<LocationConstraint ",
    "logging": "<BucketLoggingStatus ",
    "notification": "<NotificationConfiguration ",
    "ownershipControls": "<ObjectOwnership>BucketOwnerEnforced</ObjectOwnership>",
    "publicAccessBlock": "<RestrictPublicBuckets>true</RestrictPublicBuckets>",
    "requestPayment": "<Payer>BucketOwner</Payer>",
    "versioning": "<VersioningConfiguration ",
}


@pytest.mark.parametrize("bucket", ["lake", "lake.main"])
async def test_a_setting_that_a_bucket_has_not_is_named_so_and_one_that_holds_is_answered(
    s3: httpx.AsyncClient, bucket: str
) -> None:
    for name, code in UNSET.items():
        answer = await s3.get(f"/{bucket}?{name}")
        assert (answer.status_code, f"<Code>{code}</Code>" in answer.text) == (404, True), answer.text
    for name, text in DEFAULTS.items():
        answer = await s3.get(f"/{bucket}?{name}")
        assert (answer.status_code, text in answer.text) == (200, True), answer.text


async def test_minios_client_may_ask_for_the_date_of_rules_that_are_not_there(s3: httpx.AsyncClient) -> None:
    """`mc ilm rule ls` does."""
    answer = await s3.get("/lake.main?lifecycle&withUpdatedAt=true")

    assert (answer.status_code, "<Code>NoSuchLifecycleConfiguration</Code>" in answer.text) == (404, True)


async def test_an_object_has_no_tags_and_its_owner_has_full_control(s3: httpx.AsyncClient) -> None:
    tags = await s3.get("/lake.main/a?tagging")
    owner = await s3.get("/lake/main/a?acl&versionId=null")
    lock = await s3.get("/lake.main/a?retention")

    assert (tags.status_code, "<TagSet></TagSet>" in tags.text) == (200, True)
    assert (owner.status_code, "<Permission>FULL_CONTROL</Permission>" in owner.text) == (200, True)
    assert (lock.status_code, "<Code>NoSuchObjectLockConfiguration</Code>" in lock.text) == (404, True)


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("/none?acl", "NoSuchBucket"),
        ("/lake.none?policy", "NoSuchBucket"),
        ("/lake.main/none?tagging", "NoSuchKey"),
        ("/lake.none/a?acl", "NoSuchBucket"),
    ],
)
async def test_what_is_not_there_has_no_settings(s3: httpx.AsyncClient, path: str, code: str) -> None:
    answer = await s3.get(path)

    assert (answer.status_code, f"<Code>{code}</Code>" in answer.text) == (404, True), answer.text


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/lake?acl", "PutBucketAcl"),
        ("/lake.main?tagging", "PutBucketTagging"),
        ("/lake?policy", "PutBucketPolicy"),
        ("/lake?versioning", "PutBucketVersioning"),
        ("/lake.main/a?tagging", "PutObjectTagging"),
        ("/lake.main/a?acl", "PutObjectAcl"),
        ("/lake.main/a?retention", "PutObjectRetention"),
    ],
)
async def test_a_setting_is_never_taken(s3: httpx.AsyncClient, path: str, name: str) -> None:
    answer = await s3.put(path, content=b"<x/>")

    assert (answer.status_code, f"{name} is not implemented" in answer.text) == (501, True)
    assert (await s3.get("/lake.main/a")).content == b"hello"


# Versions


async def versions(s3: httpx.AsyncClient, query: str, bucket: str = "lake.main") -> tuple[list[str], str]:
    """The keys and common prefixes of a page, and its whole text."""
    answer = await s3.get(f"/{bucket}?versions" + (f"&{query}" if query else ""))
    assert answer.status_code == 200, answer.text
    return re.findall(r"<(?:Key|CommonPrefixes><Prefix)>(.*?)<", answer.text), answer.text


async def test_each_object_is_listed_with_the_one_version_null(s3: httpx.AsyncClient) -> None:
    for key in ("b/1", "b/2", "c"):
        (await s3.put(f"/lake.main/{key}", content=key.encode())).raise_for_status()

    every, text = await versions(s3, "")
    assert every == ["a", "b/1", "b/2", "c"]
    assert text.count("<VersionId>null</VersionId><IsLatest>true</IsLatest>") == 4
    assert text.startswith('<?xml version="1.0" encoding="UTF-8"?>\n<ListVersionsResult')
    assert (await versions(s3, "delimiter=%2F"))[0] == ["a", "b/", "c"]
    assert (await versions(s3, "prefix=main%2Fb", bucket="lake"))[0] == ["main/b/1", "main/b/2"]
    assert (await s3.get("/lake.main/b/1?versionId=null")).content == b"b/1"


@pytest.mark.parametrize("delimiter", ["", "delimiter=%2F&"])
async def test_a_listing_of_versions_goes_on_from_its_markers(s3: httpx.AsyncClient, delimiter: str) -> None:
    for key in ("b/1", "b/2", "c"):
        (await s3.put(f"/lake.main/{key}", content=b"x")).raise_for_status()
    found: list[str] = []
    query = ""
    while True:
        keys, text = await versions(s3, f"{delimiter}max-keys=1{query}")
        found += keys
        if "<IsTruncated>true</IsTruncated>" not in text:
            break
        marker = re.search(r"<NextKeyMarker>(.*?)<", text)
        version = re.search(r"<NextVersionIdMarker>(.*?)<", text)
        assert marker is not None
        query = f"&key-marker={quote(marker[1], safe='')}" + (f"&version-id-marker={version[1]}" if version else "")

    assert found == (["a", "b/", "c"] if delimiter else ["a", "b/1", "b/2", "c"])


@pytest.mark.parametrize("listing", ["list-type=2", "versions"])
async def test_a_listing_shows_metadata_to_minios_client_which_asks_for_it(s3: httpx.AsyncClient, listing: str) -> None:
    """`mc mirror --preserve` and `mc find --metadata` ask. S3 shows none, MinIO's servers show it so."""
    sent = {b"x-amz-meta-mc-attrs": "mtime:1/<ü>".encode(), b"x-amz-meta-a!b": b"no name of an element"}
    put = await s3.put("/lake.main/b", content=b"x", headers={b"content-type": b"text/plain", **sent})
    put.raise_for_status()

    asked = (await s3.get(f"/lake.main?{listing}&metadata=true")).text
    unasked = [(await s3.get(f"/lake.main?{listing}{more}")).text for more in ("", "&metadata=false")]

    type_, attributes = "<content-type>text/plain</content-type>", "<X-Amz-Meta-Mc-Attrs>mtime:1/&lt;ü&gt;<"
    assert f"<UserMetadata>{type_}{attributes}/X-Amz-Meta-Mc-Attrs></UserMetadata>" in asked
    assert asked.count("<UserMetadata>") == 2
    assert not any("UserMetadata" in text for text in unasked)


async def test_a_version_marker_needs_a_key(s3: httpx.AsyncClient) -> None:
    assert (await s3.get("/lake.main?versions&version-id-marker=null")).status_code == 400
