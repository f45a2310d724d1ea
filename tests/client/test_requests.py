"""What reaches the server: credentials, paths, queries, bodies."""

from __future__ import annotations

import json
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest

from lakebed.base import Corrupt, Invalid
from lakebed.client import BadSegment, Token, path_to
from lakebed.operations.gc import collectors
from tests.client.support import Script, client_of
from tests.serving import serving

NOTHING = httpx.Response(204)

COMMIT = {
    "id": "c",
    "parents": [],
    "committer": "me",
    "message": "m",
    "creation_date": 1,
    "meta_range_id": "",
    "generation": 1,
    "version": 1,
    "metadata": {},
}


def page(*names: str, more: bool, after: str = "") -> httpx.Response:
    results = [{"id": name, "commit_id": "c"} for name in names]
    pagination = {"has_more": more, "next_offset": after, "results": len(names), "max_per_page": 1000}
    return httpx.Response(200, json={"pagination": pagination, "results": results})


def test_every_request_carries_the_credentials() -> None:
    script = Script(NOTHING)

    client_of(script).objects.delete("lake", "main", "a")

    assert script.requests[0].headers["Authorization"].startswith("Basic ")


def test_a_change_that_hooks_may_check_waits_longer_for_its_answer() -> None:
    """A hook may wait for a run of Airflow, or for a person."""
    script = Script(httpx.Response(201, json=COMMIT), NOTHING)

    client = client_of(script)
    client.history.commit("lake", "main", "message")
    client.objects.delete("lake", "main", "a")

    waits = [(each.extensions["timeout"]["read"], each.extensions["timeout"]["connect"]) for each in script.requests]
    assert waits == [(660.0, 10.0), (60.0, 10.0)]


def test_a_token_goes_in_place_of_a_key_pair() -> None:
    script = Script(NOTHING)

    client_of(script, Token(token="secret")).objects.delete("lake", "main", "a")

    assert script.requests[0].headers["Authorization"] == "Bearer secret"
    assert "secret" not in repr(Token(token="secret"))


@pytest.mark.parametrize("path", ["a b", "a+b", "a//b", "a/", "%2B", "ä/ß", "a?b=c&d#e", "../../etc", "~^@"])
def test_paths_reach_the_server_as_they_are(path: str) -> None:
    script = Script(NOTHING)

    client_of(script).objects.delete("lake", "main", path)

    assert script.requests[0].url.params["path"] == path
    assert "+" not in script.requests[0].url.query.decode()


@pytest.mark.parametrize("ref", ["main~2", "v1^2", "main@", "release/1.0", "a b", "main$"])
def test_a_ref_is_one_segment(ref: str) -> None:
    script = Script(httpx.Response(200, json={"id": "x", "commit_id": "c"}))

    client_of(script).tags.get("lake", ref)

    raw = script.requests[0].url.raw_path.decode()
    assert raw.count("/") == 6
    assert httpx.URL("http://h/" + raw.rpartition("/")[2]).path == "/" + ref


@pytest.mark.parametrize("name", ["", ".", ".."])
def test_a_name_that_would_change_the_path_is_never_sent(name: str) -> None:
    """Deleting the branch `..` must not become deleting the repository."""
    script = Script(NOTHING)

    with pytest.raises(BadSegment):
        client_of(script).branches.delete("lake", name)

    assert script.requests == []
    assert issubclass(BadSegment, Invalid)


def test_fields_without_value_are_left_out_of_bodies() -> None:
    made = {"committer": "", "creation_date": 1, "generation": 1, "id": "c", "message": "m"}
    script = Script(httpx.Response(201, json={**made, "meta_range_id": "", "metadata": {}, "parents": []}))

    client_of(script).history.commit("lake", "main", "m")

    assert json.loads(script.requests[0].content) == {
        "message": "m",
        "metadata": {},
        "allow_empty": False,
        "force": False,
    }


def test_a_listing_fetches_pages_as_they_are_asked_for() -> None:
    script = Script(page("a", "b", more=True, after="b"), page("c", more=False))
    branches = client_of(script).branches.list("lake")

    assert next(branches).id == "a"
    assert len(script.requests) == 1
    assert [branch.id for branch in branches] == ["b", "c"]
    assert script.requests[1].url.params["after"] == "b"


def test_a_limited_listing_asks_for_no_more_than_that() -> None:
    script = Script(page("a", "b", more=True, after="b"))

    assert [branch.id for branch in client_of(script).branches.list("lake", limit=2)] == ["a", "b"]
    assert [request.url.params["amount"] for request in script.requests] == ["2"]


def test_a_listing_that_does_not_move_on_ends_with_an_error() -> None:
    script = Script(page("a", more=True, after="a"))

    with pytest.raises(Corrupt, match="do not move on"):
        list(client_of(script).branches.list("lake"))


def test_an_empty_page_need_not_be_the_last() -> None:
    script = Script(page(more=True, after="x"), page("a", more=False))

    assert [branch.id for branch in client_of(script).branches.list("lake")] == ["a"]
    assert script.requests[1].url.params["after"] == "x"


def test_deleting_many_asks_in_thousands() -> None:
    script = Script(httpx.Response(200, json={"errors": [{"status_code": 403, "message": "no", "path": "x"}]}))

    errors = client_of(script).objects.delete_many("lake", "main", [str(n) for n in range(2500)])

    assert [len(json.loads(request.content)["paths"]) for request in script.requests] == [1000, 1000, 500]
    assert len(errors) == 3


def test_any_route_can_be_called() -> None:
    script = Script(httpx.Response(200, json={"id": "run"}))

    answer = client_of(script).call("POST", path_to(collectors.START_GC_RUN, "lake"), json={"kind": "committed"})

    assert answer == {"id": "run"}
    assert script.requests[0].url.path == "/api/v1/repositories/lake/gc/runs"


def test_a_route_without_body_answers_nothing() -> None:
    assert client_of(Script(NOTHING)).call("POST", "/api/v1/x") is None


class Ports(BaseHTTPRequestHandler):
    """Answers with the port of its caller, and keeps the connection."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        body = str(self.client_address[1]).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


_FORK = """
import os, sys
from lakebed.client.connection import Connection
connection = Connection(sys.argv[1])
print(connection.send("GET", "/").text, flush=True)
if child := os.fork():
    sys.exit(os.waitpid(child, 0)[1])
print(connection.send("GET", "/").text, flush=True)
os._exit(0)
"""


def test_a_process_that_was_forked_makes_a_connection_of_its_own() -> None:
    with serving(ThreadingHTTPServer(("127.0.0.1", 0), Ports)) as port:
        script = [sys.executable, "-c", _FORK, f"http://127.0.0.1:{port}"]
        parent, child = subprocess.run(script, check=True, capture_output=True, text=True).stdout.split()

    assert parent != child
