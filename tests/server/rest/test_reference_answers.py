"""What the reference server answered to some sixty requests, as a table: status, message or fields, headers.

The requests are made in the order of the table against one server: later rows see what earlier ones did. Where we
answer differently on purpose, the row says so.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

JSON = "application/json"
HEX = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Row:
    """`fields` must be in the answer, with these values; a pattern must match; `message` is the error's, in full."""

    name: str
    method: str
    path: str
    status: int
    message: str | None = None
    fields: dict[str, Any] = field(default_factory=dict)
    json: Any = None
    content: bytes | None = None
    headers: dict[str, str] = field(default_factory=dict)
    auth: tuple[str, str] | None = None
    body: bytes | None = None
    answered: dict[str, str] = field(default_factory=dict)
    files: dict[str, tuple[str, bytes]] | None = None


R = "/repositories/lake"
OBJECTS = R + "/branches/main/objects"
PAGE_OF_ONE = {"has_more": False, "max_per_page": 1000, "next_offset": "", "results": 1}
TWO_ADDED = {
    "results": [
        {"path": "a/b.txt", "path_type": "object", "size_bytes": 5, "type": "added"},
        {"path": "a/c.txt", "path_type": "object", "size_bytes": 3, "type": "added"},
    ]
}
NOBODY = ("AKIAJAAAAAAAAAAAAAAQ", "wrong")

TABLE = [
    Row("config-noauth", "GET", "/config", 401, "error authenticating request", auth=("", "")),
    Row("version", "GET", "/config/version", 200, fields={"version_context": "lakeFS"}),
    Row(
        "storage",
        "GET",
        "/config/storage",
        200,
        fields={
            "blockstore_type": "mem",
            "blockstore_namespace_ValidityRegex": "^mem://",
            "default_namespace_prefix": "mem://",
            "pre_sign_support": False,
            "pre_sign_multipart_upload": False,
        },
    ),
    Row("config", "GET", "/config", 200, fields={"storage_config_list": [], "ui_config": {}}),
    Row("setup-state", "GET", "/setup_lakefs", 200, fields={"state": "initialized", "comm_prefs_missing": False}),
    Row("health", "GET", "/healthcheck", 204, body=b""),
    Row("user", "GET", "/user", 200, fields={"user": dict}),
    Row("setup-again", "POST", "/setup_lakefs", 409, "lakeFS already initialized", json={"username": "x"}),
    Row(
        "create-repo-dup",
        "POST",
        "/repositories",
        409,
        "error creating repository: not unique",
        json={"name": "lake", "storage_namespace": "mem://reference-other"},
    ),
    Row(
        "create-repo-ns-used",
        "POST",
        "/repositories",
        400,
        "failed to create repository: found lakeFS objects in the storage (:{namespace}) key(_lakefs/dummy): "
        "storage namespace already in use",
        json={"name": "lake2", "storage_namespace": "{namespace}"},
    ),
    Row(
        "get-repo",
        "GET",
        R,
        200,
        fields={"default_branch": "main", "id": "lake", "read_only": False, "storage_id": "", "creation_date": int},
    ),
    Row("get-repo-404", "GET", "/repositories/nope", 404, "repository not found"),
    Row("noauth", "GET", R, 401, "error authenticating request", auth=("", "")),
    Row("badauth", "GET", R, 401, "error authenticating request", auth=NOBODY),
    Row("get-branch", "GET", R + "/branches/main", 200, fields={"id": "main", "commit_id": HEX}),
    Row("log", "GET", R + "/refs/main/commits", 200, fields={"pagination": PAGE_OF_ONE}),
    Row("stat-404", "GET", R + "/refs/main/objects/stat?path=nope", 404, "not found"),
    Row(
        "stat-nopath",
        "GET",
        R + "/refs/main/objects/stat",
        400,
        'parameter "path" in query has an error: value is required but missing',
    ),
    Row("ls-badref", "GET", R + "/refs/nope/objects/ls", 404, "not found"),
    Row(
        "ls-5000",
        "GET",
        R + "/refs/main/objects/ls?amount=5000",
        400,
        'parameter "amount" in query has an error: number must be at most 1000\nSchema:\n  {\n    "default": 100,\n'
        '    "maximum": 1000,\n    "minimum": -1,\n    "type": "integer"\n  }\n\nValue:\n  5000\n',
    ),
    Row("commit-empty", "POST", R + "/branches/main/commits", 400, "commit: no changes", json={"message": "x"}),
    Row("branch-new", "POST", R + "/branches", 201, json={"name": "dev", "source": "main"}, body=b"{commit}"),
    Row(
        "branch-dup",
        "POST",
        R + "/branches",
        409,
        "branch already exists: not unique",
        json={"name": "dev", "source": "main"},
    ),
    Row(
        "branch-badsrc",
        "POST",
        R + "/branches",
        404,
        "source reference 'nope': not found",
        json={"name": "dev2", "source": "nope"},
    ),
    Row(
        "branch-badname",
        "POST",
        R + "/branches",
        400,
        "argument branch: branch id: invalid value: validation error: branch id must consist of letters, digits, "
        "underscores and dashes, and cannot start with a dash",
        json={"name": "-a/b", "source": "main"},
    ),
    Row("merge-same", "POST", R + "/refs/dev/merge/main", 400, "update branch main: no changes", json={}),
    Row("del-default", "DELETE", R + "/branches/main", 403, "cannot delete repository default branch"),
    Row("bad-endpoint", "GET", "/nope", 404, "invalid API endpoint"),
    Row(
        "upload",
        "POST",
        OBJECTS + "?path=a/b.txt",
        201,
        content=b"hello",
        headers={"content-type": "application/octet-stream"},
        fields={
            "checksum": "5d41402abc4b2a76b9719d911017c592",
            "content_type": "application/octet-stream",
            "metadata": {},
            "path": "a/b.txt",
            "path_type": "object",
            "physical_address": re.compile(r"{namespace}/data/[0-9a-v]{13}/[0-9]{8}"),
            "size_bytes": 5,
            "mtime": int,
        },
    ),
    Row(
        "upload-form",
        "POST",
        OBJECTS + "?path=a/c.txt",
        201,
        files={"content": ("c", b"abd")},
        fields={"checksum": "4911e516e5aa21d327512e0c8b197616", "size_bytes": 3},
    ),
    Row(
        "upload-ifnonematch",
        "POST",
        OBJECTS + "?path=a/b.txt",
        412,
        "path already exists",
        content=b"x",
        headers={"if-none-match": "*"},
    ),
    Row(
        "get",
        "GET",
        R + "/refs/main/objects?path=a/b.txt",
        200,
        body=b"hello",
        answered={
            "cache-control": "no-store, must-revalidate",
            "content-disposition": "attachment",
            "content-security-policy": "default-src 'none'",
            "content-type": "application/octet-stream",
            "etag": '"5d41402abc4b2a76b9719d911017c592"',
            "x-frame-options": "SAMEORIGIN",
            "content-length": "5",
        },
    ),
    Row(
        "head",
        "HEAD",
        R + "/refs/main/objects?path=a/b.txt",
        200,
        body=b"",
        answered={
            "accept-ranges": "bytes",
            "cache-control": "no-store, must-revalidate",
            "etag": '"5d41402abc4b2a76b9719d911017c592"',
            "content-length": "5",
        },
    ),
    Row(
        "range",
        "GET",
        R + "/refs/main/objects?path=a/b.txt",
        206,
        headers={"range": "bytes=1-2"},
        body=b"el",
        answered={"content-range": "bytes 1-2/5", "content-length": "2"},
    ),
    Row("stat", "GET", R + "/refs/main/objects/stat?path=a/b.txt", 200, fields={"path": "a/b.txt", "size_bytes": 5}),
    Row(
        "ls",
        "GET",
        R + "/refs/main/objects/ls?delimiter=/",
        200,
        fields={
            "pagination": PAGE_OF_ONE,
            "results.0": {"checksum": "", "path": "a/", "path_type": "common_prefix", "physical_address": ""},
        },
    ),
    Row(
        "bdiff",
        "GET",
        R + "/branches/main/diff",
        200,
        fields=TWO_ADDED,
    ),
    Row(
        "commit",
        "POST",
        R + "/branches/main/commits",
        201,
        json={"message": "x", "metadata": {"k": "v"}},
        fields={
            "committer": "esti",
            "generation": 2,
            "message": "x",
            "metadata": {"k": "v"},
            "meta_range_id": HEX,
            "id": HEX,
            "version": 1,
        },
    ),
    Row(
        "diff",
        "GET",
        R + "/refs/dev/diff/main",
        200,
        fields=TWO_ADDED,
    ),
    Row("merge", "POST", R + "/refs/main/merge/dev", 200, json={"message": "m"}, fields={"reference": HEX}),
    Row("merge-again", "POST", R + "/refs/main/merge/dev", 400, "update branch dev: no changes", json={}),
    Row("tag", "POST", R + "/tags", 201, json={"id": "v1", "ref": "main"}, fields={"id": "v1", "commit_id": HEX}),
    Row("tag-dup", "POST", R + "/tags", 409, "tag already exists: not unique", json={"id": "v1", "ref": "main"}),
    Row("statistics", "POST", "/statistics", 204, json={"events": [{"class": "a", "name": "b", "count": 1}]}),
    Row(
        "login-bad",
        "POST",
        "/auth/login",
        401,
        "error authenticating request",
        json=dict.fromkeys(("access_key_id", "secret_access_key"), "x"),
    ),
    Row("users", "GET", "/auth/users", 200, fields={"results.0": {"email": "", "friendly_name": "", "id": "esti"}}),
    # The reference has groups and policies only in its paid edition.
    Row("groups", "GET", "/auth/groups", 200, fields={"results.0": {"id": "Admins"}}),
    Row("policies", "GET", "/auth/policies", 200, fields={"results.0": {"id": "AllAccess"}}),
    # The reference counts requests; we keep no statistics of our users.
    Row("usage", "GET", "/usage-report/summary", 200, fields={"installation_id": str, "reports": []}),
    # The reference copies objects only in its paid edition.
    Row("copy", "POST", OBJECTS + "/copy?dest_path=z", 201, json={"src_path": "a/b.txt"}, fields={"path": "z"}),
    Row("gcrules", "GET", R + "/settings/gc_rules", 404, "not found"),
    Row("protect", "GET", R + "/settings/branch_protection", 200, body=b"[]", answered={"etag": ""}),
    Row("metadata", "GET", R + "/metadata", 200, body=b"{}"),
    Row("commit-404", "GET", R + "/commits/" + "0" * 64, 404, "commit not found"),
    Row("user-404", "GET", "/auth/users/nope", 404, "user not found"),
    Row("user-new", "POST", "/auth/users", 201, json={"id": "bob"}, fields={"id": "bob"}),
    Row("user-dup", "POST", "/auth/users", 409, "Already exists", json={"id": "bob"}),
    Row("del-repo", "DELETE", R, 204, body=b""),
    Row("get-repo-deleted", "GET", R, 404, "repository not found"),
]


async def test_we_answer_as_the_reference_does(client: httpx.AsyncClient, repo: str, namespace: str) -> None:
    commit = (await client.get(repo + "/branches/main")).json()["commit_id"]
    wrong = []
    for row in TABLE:
        answer = await _ask(client, row, namespace)
        wrong += [f"{row.name}: {problem}" for problem in _problems(row, answer, namespace, commit)]

    assert wrong == []


async def _ask(client: httpx.AsyncClient, row: Row, namespace: str) -> httpx.Response:
    body = row.json
    if body is not None and "storage_namespace" in body:
        body = {**body, "storage_namespace": body["storage_namespace"].replace("{namespace}", namespace)}
    extra: dict[str, Any] = {} if row.auth is None else {"auth": None if row.auth == ("", "") else row.auth}
    return await client.request(
        row.method, row.path, json=body, content=row.content, headers=row.headers, files=row.files, **extra
    )


def _problems(row: Row, answer: httpx.Response, namespace: str, commit: str) -> list[str]:
    if answer.status_code != row.status:
        return [f"{answer.status_code} {answer.text[:200]}"]
    problems = []
    if row.message is not None:
        expected = {"message": row.message.replace("{namespace}", namespace)}
        if answer.json() != expected or answer.headers["content-type"] != JSON:
            problems.append(answer.text)
    if row.body is not None and answer.content != row.body.replace(b"{commit}", commit.encode()):
        problems.append(answer.text)
    problems += [
        f"header {name}: {answer.headers.get(name)}"
        for name, value in row.answered.items()
        if answer.headers.get(name) != value
    ]
    for name, value in row.fields.items():
        found = answer.json()
        for step in name.split("."):
            found = found[int(step)] if step.isdigit() else found.get(step)
        if not _fits(found, value, namespace):
            problems.append(f"{name}: {found!r}")
    return problems


def _fits(found: Any, value: Any, namespace: str) -> bool:
    if isinstance(value, type):
        return isinstance(found, value)
    if isinstance(value, re.Pattern):
        return re.fullmatch(value.pattern.replace("{namespace}", re.escape(namespace)), found) is not None
    if isinstance(value, dict):
        return bool(value.items() <= found.items())
    return bool(found == value)


@pytest.mark.parametrize(
    ("body", "place", "words"),
    [
        ({"name": "E_bad!", "storage_namespace": "mem://x"}, "/name", "matching regex"),
        ({"read_only": False}, "/name", 'property "name" is missing'),
        ({"name": "abc", "storage_namespace": "elsewhere"}, "/storage_namespace", "matching regex"),
        ({"name": "abc", "storage_namespace": 5}, "/storage_namespace", "Expected `str`"),
    ],
)
async def test_a_body_that_breaks_its_schema_is_told_where(
    client: httpx.AsyncClient, body: dict[str, object], place: str, words: str
) -> None:
    answer = await client.post("/repositories", json=body)

    assert answer.status_code == 400
    message = answer.json()["message"]
    assert message.startswith(
        "request body has an error: doesn't match schema #/components/schemas/RepositoryCreation:"
    )
    assert f'Error at "{place}"' in message
    assert words in message


async def test_an_unknown_kind_of_reset_is_told_the_known_ones(client: httpx.AsyncClient, repo: str) -> None:
    answer = await client.put(repo + "/branches/main", json={"type": "nope"})

    assert answer.status_code == 400
    assert 'schema #/components/schemas/ResetCreation: Error at "/type"' in answer.json()["message"]
