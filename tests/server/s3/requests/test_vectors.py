"""The vectors of signature version 4 that are published with the crate `aws-sigv4`, where cargo can load it.

They are for services that normalise paths. S3 does not, so the path of a vector that was normalised is taken as it is.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import pytest

from lakebed.server.http.fields import query_pairs
from lakebed.server.s3.requests.signatures import (
    canonical_path,
    canonical_request,
    signing_key,
    string_to_sign,
)
from tests.kv.servers import crate

FOLDED: Final = "get-header-value-multiline"
"""Its header goes on in a second line, which no HTTP server takes any more."""


@pytest.fixture(scope="module")
def vectors() -> list[Path]:
    suite = crate("aws-sigv4", "1.6.4") / "aws-signing-test-suite" / "v4"
    return [file.parent for file in sorted(suite.glob("*/context.json")) if file.parent.name != FOLDED]


def request_of(text: str) -> tuple[str, str, str, list[tuple[bytes, bytes]]]:
    head, _, _ = text.partition("\n\n")
    first, *lines = head.split("\n")
    method, target = first.removesuffix(" HTTP/1.1").split(" ", 1)
    path, _, query = target.partition("?")
    pairs = [line.partition(":") for line in lines if line]
    return method, path, query, [(name.lower().encode(), value.encode()) for name, _, value in pairs]


@pytest.mark.parametrize("door", ["header", "query"])
def test_every_published_request_has_its_published_signature(vectors: list[Path], door: str) -> None:
    assert len(vectors) > 30

    for vector in vectors:
        context = json.loads((vector / "context.json").read_text())
        expected = (vector / f"{door}-canonical-request.txt").read_text()
        method, path, query, headers = request_of((vector / f"{door}-signed-request.txt").read_text())
        time = context["timestamp"].replace("-", "").replace(":", "")
        scope = f"{time[:8]}/{context['region']}/{context['service']}/aws4_request"
        *_, names, payload = expected.split("\n")
        pairs = [pair for pair in query_pairs(query.encode(), most=1_000) if pair[0] != "X-Amz-Signature"]
        if context.get("omit_session_token"):
            pairs = [pair for pair in pairs if pair[0] != "X-Amz-Security-Token"]

        shown_path = expected.split("\n")[1].encode() if context["normalize"] else canonical_path(path.encode())
        made = canonical_request(method, shown_path, pairs, headers, names.encode().split(b";"), payload)

        assert made.decode("latin-1") == expected, vector.name
        key = signing_key(context["credentials"]["secret_access_key"], scope)
        signature = (vector / f"{door}-signature.txt").read_text()
        assert key.sign(string_to_sign(time, scope, made)) == signature, vector.name
