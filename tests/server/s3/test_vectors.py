"""The vectors of signature version 4 that are published with the crate `aws-sigv4`, read from cargo's cache.

`cargo fetch` of any project that depends on the crate puts them there; without them the tests are left out. They are
for services that normalise paths. S3 does not, so the path of a vector that was normalised is taken as it is.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Final

import pytest

from lakebed.server.s3.signatures import (
    canonical_path,
    canonical_request,
    parse_query,
    sign,
    signing_key,
    string_to_sign,
)

CARGO: Final = Path(os.environ.get("CARGO_HOME") or Path.home() / ".cargo")
VECTORS: Final = sorted(CARGO.glob("registry/src/*/aws-sigv4-*/aws-signing-test-suite/v4/*/context.json"))
FOLDED: Final = "get-header-value-multiline"
"""Its header goes on in a second line, which no HTTP server takes any more."""

pytestmark = pytest.mark.skipif(not VECTORS, reason="cargo's cache does not have the crate aws-sigv4")


def request_of(text: str) -> tuple[str, str, str, list[tuple[bytes, bytes]]]:
    head, _, _ = text.partition("\n\n")
    first, *lines = head.split("\n")
    method, target = first.removesuffix(" HTTP/1.1").split(" ", 1)
    path, _, query = target.partition("?")
    pairs = [line.partition(":") for line in lines if line]
    return method, path, query, [(name.lower().encode(), value.encode()) for name, _, value in pairs]


@pytest.mark.parametrize("door", ["header", "query"])
@pytest.mark.parametrize(
    "vector", [file.parent for file in VECTORS if file.parent.name != FOLDED], ids=lambda f: f.name
)
def test_a_published_request_has_its_published_signature(vector: Path, door: str) -> None:
    context = json.loads((vector / "context.json").read_text())
    expected = (vector / f"{door}-canonical-request.txt").read_text()
    method, path, query, headers = request_of((vector / f"{door}-signed-request.txt").read_text())
    time = context["timestamp"].replace("-", "").replace(":", "")
    scope = f"{time[:8]}/{context['region']}/{context['service']}/aws4_request"
    *_, names, payload = expected.split("\n")
    pairs = [pair for pair in parse_query(query.encode()) if pair[0] != "X-Amz-Signature"]
    if context.get("omit_session_token"):
        pairs = [pair for pair in pairs if pair[0] != "X-Amz-Security-Token"]

    shown_path = expected.split("\n")[1].encode() if context["normalize"] else canonical_path(path.encode())
    made = canonical_request(method, shown_path, pairs, headers, names.encode().split(b";"), payload)

    assert made.decode("latin-1") == expected
    key = signing_key(context["credentials"]["secret_access_key"], scope)
    assert sign(key, string_to_sign(time, scope, made)) == (vector / f"{door}-signature.txt").read_text()
