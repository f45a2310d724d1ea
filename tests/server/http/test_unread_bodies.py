"""No body is read before the caller's permission is known, and none is large enough to keep the event loop busy.

Every operation of both tables is tried, so a new one is too.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping
from typing import Any

import httpx
import pytest
from msgspec import inspect

from lakebed.auth import Delegation, Permissions, Statement
from lakebed.operations import LOGGED_IN, NOTHING, PUBLIC
from lakebed.operations.operation import PUBLIC_BYTES_MAX, RECORD_BYTES_MAX
from lakebed.operations.table import OPERATIONS
from lakebed.server import App
from lakebed.server.s3.operations import OPERATIONS as S3_OPERATIONS
from tests.server.http.test_permissions import url_of
from tests.server.s3.signing import Signer, allow, keys_of
from tests.server.s3.test_gateway import ROUTES

RECORDS = [operation for operation in OPERATIONS if operation.body not in (NOTHING, bytes)]
LARGE = {
    "setGCRules": 512,
    "internalSetGarbageCollectionRules": 512,
    "setFullGcRules": 512,
    "tryGcRules": 512,
    "startGcJob": 512,
    "importStart": 512,
    "completePresignMultipartUpload": 768,
    "findGcStaged": 1024,
    "signGcCertificate": 2048,
    "checkGcCertificate": 2048,
    # Lists of short texts decode fastest, and a policy has a reader of its own.
    "commitTable": 4096,
    "commitTables": 4096,
    "deferGcRun": 4096,
    "deleteObjects": 4096,
    "expireGcCommits": 4096,
    "findBrokenTables": 4096,
    "markGcRun": 4096,
    "retireGcIds": 4096,
    "setLifecyclePolicy": 4096,
    "sweepGcRun": 4096,
    "unstageGcEntries": 4096,
    "validateLifecyclePolicy": 4096,
}
"""Operations whose record may have more than 256 KiB, and how much, in KiB. `python -m tests.server.holding` measures
for how long each holds the event loop; docs/design/requests.md has the figures."""
LIMITED_LATER = {
    "setBranchProtectionRules": "TooManyPatterns, 200",
    "ImportCreation.paths": "InvalidImport, 1,000",
    "SweepBranches.branches": "TooManyBranches, 100",
    "Rules.branches": "InvalidRules, 1,000",
    "Rules.keep_last": "InvalidRules, 1,000",
    "Selection.paths": "InvalidSelection, 100,000",
    "Selection.digests": "InvalidSelection, 100,000",
    "Selection.globs": "InvalidSelection, 1,000",
    "Selection.metadata": "the body's 1 MiB: stored in plans, whose reader refuses nothing that was written",
    "Manifest.parts": "the body's 4 MiB: stored in runs",
    "PlanRequest.kinds": "the body: kinds count once",
    "RunRequest.kinds": "the body: kinds count once",
    "TableCommit.requirements": "the body's 4 MiB: the library reads each, in a thread",
    "TableCommit.updates": "the same",
    "TableCreation.schema": "the body's 256 KiB: read by the library",
    "TableCreation.partition-spec": "the same",
    "TableCreation.write-order": "the same",
    "Statement.condition": "refused, whatever it has",
    "Statement.condition[]": "the same",
    "Statement.condition[][]": "the same",
    "ExternalLoginInformation.identityRequest[]": "the body's 64 KiB: a proof of a provider's own form",
    "SetPolicy.policy": "100,000 bytes",
}
"""Lists and maps whose type has no limit, and where the limit is."""
S3_ROUTES: dict[str, tuple[str, str, Mapping[str, str]]] = {
    **{name: (method, path, {}) for name, (method, path, _) in ROUTES.items()},
    "s3:CopyObject": ("PUT", "/lake/main/b", {"x-amz-copy-source": "/lake/main/a"}),
    "s3:UploadPartCopy": ("PUT", "/lake/main/b?uploadId=x&partNumber=1", {"x-amz-copy-source": "/lake/main/a"}),
    "s3:DeleteObjects": ("POST", "/lake.main?delete", {}),
}
ELSEWHERE = "arn:lakefs:fs:::repository/elsewhere/*"


class Spy:
    """The application, and whether it asked for the body of the last request."""

    def __init__(self, app: App) -> None:
        self._app = app
        self.is_asked = False

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.is_asked = False

        async def receive_and_tell() -> Any:
            self.is_asked = True
            return await receive()

        await self._app(scope, receive_and_tell, send)


@pytest.fixture
def spy(app: App) -> Spy:
    return Spy(app)


@pytest.fixture
async def pairs(client: httpx.AsyncClient, repo: str) -> dict[str, tuple[str, str]]:
    """Callers who may do nothing in the repository, by the reason."""
    assert repo
    deny: dict[str, object] = {"effect": "deny", "action": ["*"], "resource": "*"}
    return {
        "nothing": await keys_of(client, "nothing", allow("fs:ListRepositories", resource="arn:lakefs:fs:::none")),
        "elsewhere": await keys_of(client, "elsewhere", allow("*", resource=ELSEWHERE)),
        "denied": await keys_of(client, "denied", allow("*"), deny),
    }


async def callers(spy: Spy, pairs: Mapping[str, tuple[str, str]]) -> AsyncIterator[tuple[str, httpx.AsyncClient]]:
    auths: list[tuple[str, httpx.Auth | None]] = [(name, httpx.BasicAuth(*pair)) for name, pair in pairs.items()]
    for name, auth in [*auths, ("stranger", None)]:
        transport = httpx.ASGITransport(app=spy)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost/api/v1", auth=auth) as client:
            yield name, client


async def test_no_rest_operation_reads_a_body_that_its_caller_may_not_send(
    spy: Spy, pairs: dict[str, tuple[str, str]]
) -> None:
    async for name, client in callers(spy, pairs):
        for operation in OPERATIONS:
            is_admitted = operation.permissions == LOGGED_IN and name != "stranger"
            names_its_repository = "{repository}" in operation.path
            if operation.permissions is PUBLIC or is_admitted or (name == "elsewhere" and not names_its_repository):
                continue
            path = url_of(operation, re.sub(r"\{\w+\}", "lake", operation.path))

            answer = await client.request(operation.method, path, content=b"[", params={"path": "a", "dest_path": "a"})

            assert answer.status_code in {401, 403}, (name, operation.id, answer.text)
            assert not spy.is_asked, (name, operation.id)


@pytest.mark.parametrize("name", S3_ROUTES)
async def test_no_operation_of_s3_reads_a_body_that_its_caller_may_not_send(
    name: str, spy: Spy, pairs: dict[str, tuple[str, str]]
) -> None:
    method, path, headers = S3_ROUTES[name]
    signers: list[tuple[str, httpx.Auth | None]] = [(caller, Signer(*pair)) for caller, pair in pairs.items()]
    for caller, auth in [*signers, ("stranger", None)]:
        transport = httpx.ASGITransport(app=spy)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost", auth=auth) as client:
            if auth is None:
                headers = {
                    **headers,
                    "authorization": "AWS4-HMAC-SHA256 Credential=x/20200101/us-east-1/s3/aws4_request",
                }

            answer = await client.request(method, path, headers=headers, content=b"<Delete>")

        assert answer.status_code in {400, 401, 403}, (caller, answer.text)
        assert not spy.is_asked, caller


def test_every_operation_of_s3_is_tried() -> None:
    assert {f"s3:{operation.name}" for operation in S3_OPERATIONS} == set(S3_ROUTES)


def test_large_records_are_a_short_list() -> None:
    """A decoder lets nothing else run, so the size of a body is how long it may take."""
    large = {each.id: each.body_bytes_max >> 10 for each in RECORDS if each.body_bytes_max > RECORD_BYTES_MAX}
    assert large == LARGE
    assert RECORD_BYTES_MAX == 256 << 10
    for operation in RECORDS:
        if operation.permissions is PUBLIC:
            assert operation.body_bytes_max <= PUBLIC_BYTES_MAX, operation.id


def unlimited(kind: Any, name: str) -> set[str]:
    """Return the names of lists and maps in a type that may have any number of items."""
    found: set[str] = set()
    match kind:
        case inspect.ListType(item_type=item) | inspect.VarTupleType(item_type=item):
            found = unlimited(item, name) | (set() if kind.max_length else {name})
        case inspect.DictType(value_type=value):
            found = unlimited(value, name + "[]") | (set() if kind.max_length else {name})
        case inspect.UnionType(types=types):
            found = set().union(*(unlimited(each, name) for each in types))
        case inspect.StructType(fields=fields):
            names = [(field, f"{kind.cls.__name__}.{field.encode_name}") for field in fields]
            found = set().union(*(unlimited(field.type, name) for field, name in names))
        case inspect.AnyType() | inspect.RawType():
            found = {name}
    return found


def test_each_list_and_map_of_a_body_has_a_limit() -> None:
    open_ended = set().union(*(unlimited(inspect.type_info(each.body), each.id) for each in RECORDS))

    assert open_ended == set(LIMITED_LATER)


async def test_a_list_that_is_too_long_is_refused_with_its_name_and_its_limit(
    client: httpx.AsyncClient, repo: str
) -> None:
    names = {f"n{number}": "" for number in range(1_001)}
    answers = [
        await client.post(f"{repo}/branches/main/commits", json={"message": "m", "metadata": names}),
        await client.put(f"{repo}/settings/delete_protection", json={"repository": True, "branches": ["a"] * 1_001}),
        await client.put(f"{repo}/settings/branch_protection", json=[{"pattern": "a"}] * 201),
        await client.put(f"{repo}/settings/branch_protection", json=[{"pattern": "a" * 257}]),
        await client.put(f"{repo}/settings/branch_protection", json=[{"pattern": "a*" * 9}]),
        await client.put(f"{repo}/settings/delete_protection", json={"repository": True, "branches": ["a?" * 9]}),
    ]

    assert [answer.status_code for answer in answers] == [400] * 6
    words = [
        '"/metadata": Expected `object` of length <= 1000',
        '"/branches": Expected `array` of length <= 1000',
        "at most 200 patterns of branches, got 201",
        "Expected `str` of length <= 256",
        "has more than 8 of the wildcards *, ? and [",
        "has more than 8 of the wildcards *, ? and [",
    ]
    for answer, word in zip(answers, words, strict=True):
        assert word in answer.json()["message"]


def has_lists_of_maps(kind: Any) -> bool:
    """Return whether a type has a list of maps: each costs two bytes and a comma, and makes an object."""
    match kind:
        case inspect.ListType(item_type=inspect.DictType()) | inspect.VarTupleType(item_type=inspect.DictType()):
            return True
        case inspect.ListType(item_type=item) | inspect.VarTupleType(item_type=item):
            return has_lists_of_maps(item)
        case inspect.DictType(value_type=value):
            return has_lists_of_maps(value)
        case inspect.UnionType(types=types):
            return any(map(has_lists_of_maps, types))
        case inspect.StructType(fields=fields):
            return any(has_lists_of_maps(field.type) for field in fields)
    return False


def test_records_with_lists_of_maps_are_small() -> None:
    slow = {each.id: each.body_bytes_max for each in RECORDS if has_lists_of_maps(inspect.type_info(each.body))}

    assert "createUserExternalPrincipal" in slow
    assert {name for name, most in slow.items() if most > 64 << 10} == set()


async def test_more_paths_than_a_request_may_delete_are_refused_before_any_is_looked_at(
    client: httpx.AsyncClient, repo: str
) -> None:
    answer = await client.post(f"{repo}/branches/main/objects/delete", json={"paths": ["a"] * 1_001})

    assert answer.status_code == 400
    assert "length <= 1000" in answer.json()["message"]


# What a beginning allows


@pytest.mark.parametrize(
    ("pattern", "is_allowed"),
    [
        ("*", True),
        ("lake/object/*", True),
        ("lake/*", True),
        ("lake/object/a", True),
        ("lake/object/a*b", True),
        ("*/b", True),
        ("lake/obj", False),
        ("lake/obj*", True),
        ("lake/branch/*", False),
        ("other/*", False),
        ("lake", False),
    ],
)
def test_a_beginning_is_allowed_where_something_below_it_may_be(pattern: str, is_allowed: bool) -> None:
    statement = Statement(effect="allow", actions=("fs:DeleteObject",), resource=pattern)

    assert Permissions("ann", [statement]).allows_below("fs:DeleteObject", "lake/object/") == is_allowed


@pytest.mark.parametrize(
    ("pattern", "is_allowed"),
    [("*", False), ("lake/*", False), ("lake/object/*", False), ("lake/object/a*", True), ("*b", True), ("x", True)],
)
def test_a_beginning_is_denied_where_one_statement_denies_all_below_it(pattern: str, is_allowed: bool) -> None:
    everything = Statement(effect="allow", actions=("*",), resource="*")
    statement = Statement(effect="deny", actions=("fs:DeleteObject",), resource=pattern)

    assert Permissions("ann", [everything, statement]).allows_below("fs:DeleteObject", "lake/object/") == is_allowed


def test_a_job_may_ask_only_below_its_own_repository() -> None:
    delegation = Delegation(job="j", repository="lake", actions=("gc:Plan",), on_branches=("fs:DeleteBranch",))
    job = Permissions.everything("ann").within(delegation)
    lake = "arn:lakefs:fs:::repository/lake"

    assert job.allows_below("gc:Plan", "arn:lakefs:fs:::repository/")
    assert not job.allows_below("gc:Plan", f"{lake}/object/")
    assert job.allows_below("fs:DeleteBranch", f"{lake}/branch/")
    assert not job.allows_below("fs:DeleteBranch", f"{lake}s/branch/")
    assert not job.allows_below("fs:DeleteObject", f"{lake}/object/")


@pytest.mark.parametrize(
    "pattern", ["*", "lake/*", "lake/object/a*", "lake/object/*b", "*b", "lake/object/a", "other/*", "l"]
)
def test_a_listing_denies_the_rows_that_one_look_at_each_denies(pattern: str) -> None:
    everything = Statement(effect="allow", actions=("*",), resource="*")
    denied = Statement(effect="deny", actions=("fs:ReadObject",), resource=pattern)
    permissions = Permissions("ann", [everything, denied])
    is_denied = permissions.denied_below("fs:ReadObject", "lake/object/")

    for path in ("a", "ab", "b", "c"):
        assert (is_denied is not None and is_denied(path)) is not permissions.allows(
            "fs:ReadObject", "lake/object/" + path
        )
