"""A double of the server that is left: it serves recorded answers over HTTP, and its objects lie where they lay.

Answers were recorded for GET alone. A listing is cut by `after` and `amount`, as that server cuts it. Anything else
is answered 404, so a client that asks for more than was recorded is seen.
"""

from __future__ import annotations

import base64
import gzip
import json
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

from tests.serving import serving

RECORDED: Final = Path(__file__).parent / "recorded"
OLD_ROOT: Final = "/OLD-ROOT"
SHAPE: Final = {
    "after",
    "amount",
    "effective",
    "limit",
    "presign",
    "status",
    "user_metadata",
    "show_hidden",
    "include_same_content",
}
"""Parameters that choose no other rows: a listing is served whole or cut."""

Rows = dict[tuple[str, frozenset[tuple[str, str]]], Any]


def answers(kind: str) -> Rows:
    """Return the answers of one recording, by path and by the parameters that choose."""
    rows: Rows = {}
    for line in gzip.decompress((RECORDED / f"{kind}.jsonl.gz").read_bytes()).splitlines():
        answer = json.loads(line)
        chosen = frozenset((name, str(value)) for name, value in answer["query"].items() if name not in SHAPE)
        rows.setdefault((answer["path"], chosen), answer)
    return rows


def objects(kind: str) -> Iterator[tuple[str, bytes]]:
    """Yield key (for S3 with its bucket) and bytes of each object that lay in the store."""
    with tarfile.open(RECORDED / f"{kind}-objects.tar.gz") as archive:
        for member in archive:
            if member.isfile():
                file = archive.extractfile(member)
                assert file is not None
                yield member.name.removeprefix("./").replace("%EMPTY-MARKER", ""), file.read()


def unpack(kind: str, root: Path) -> None:
    for key, body in objects(kind):
        (root / key).parent.mkdir(parents=True, exist_ok=True)
        (root / key).write_bytes(body)


class OldServer:
    """Serve these answers. `replace` puts another answer (JSON) in the place of one, or adds one."""

    def __init__(self, kind: str) -> None:
        self.rows = answers(kind)
        self.asked: list[str] = []
        self.endpoint = ""

    def replace(self, path: str, body: Any, **query: str) -> None:
        self.rows[f"/api/v1{path}", frozenset(query.items())] = {"status": 200, "headers": {}, "body": body}

    def respell(self, theirs: str, ours: str) -> None:
        """Name another store in all answers."""
        for row in self.rows.values():
            if isinstance(row["body"], dict):
                row["body"] = json.loads(json.dumps(row["body"]).replace(theirs, ours))

    def answer(self, path: str, query: Mapping[str, str]) -> tuple[int, dict[str, str], bytes]:
        self.asked.append(path)
        chosen = frozenset((name, value) for name, value in query.items() if name not in SHAPE and value)
        found = self.rows.get((path, chosen)) or self.rows.get((self._by_name(path), chosen - _prefix(query)))
        if found is None:
            return 404, {}, json.dumps({"message": f"not recorded: {path} {dict(query)}"}).encode()
        body = found["body"]
        if path.endswith("/objects") and found["status"] == 200:
            return 200, dict(found["headers"]), base64.b64decode(body)
        if isinstance(body, dict) and "pagination" in body:
            body = _page(body, query)
        data = b"" if body == "" else json.dumps(body).encode()
        return found["status"], {"content-type": "application/json"}, data

    def _by_name(self, path: str) -> str:
        """The log was recorded for branches and tags, and is asked for by the commit that one stands at."""
        before, _, rest = path.partition("/refs/")
        commit, slash, what = rest.partition("/")
        if what != "commits":
            return path
        for noun in ("branches", "tags"):
            for ref in self.rows[f"{before}/{noun}", frozenset()]["body"]["results"]:
                if ref["commit_id"] == commit:
                    return f"{before}/refs/{ref['id']}{slash}{what}"
        return path


def _prefix(query: Mapping[str, str]) -> set[tuple[str, str]]:
    return {("prefix", query["prefix"])} if "prefix" in query else set()


def _page(body: dict[str, Any], query: Mapping[str, str]) -> dict[str, Any]:
    """Cut what follows `after`. The log goes by place in the list, everything else by its name."""
    rows, after, prefix = body["results"], query.get("after", ""), query.get("prefix", "")
    rows = [row for row in rows if row.get("path", "").startswith(prefix)]
    if after and rows and "parents" in rows[0]:
        ids = [row["id"] for row in rows]
        rows = rows[ids.index(after) + 1 :]
    elif after:
        rows = [row for row in rows if row.get("path", row.get("id")).encode() > after.encode()]
    most = int(query.get("amount", 100))
    page = rows[:most]
    last = page[-1].get("path", page[-1].get("id")) if page else ""
    is_more = len(rows) > most
    pagination = {**body["pagination"], "has_more": is_more, "results": len(page), "next_offset": last * is_more}
    return {"pagination": pagination, "results": page}


@contextmanager
def serve_old(kind: str) -> Iterator[OldServer]:
    old = OldServer(kind)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            url = urlsplit(self.path)
            status, headers, data = old.answer(unquote(url.path), dict(parse_qsl(url.query, keep_blank_values=True)))
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            if status != 204:
                self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    with serving(server) as port:
        old.endpoint = f"http://127.0.0.1:{port}"
        yield old
