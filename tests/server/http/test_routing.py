"""From raw paths to handlers, and what answers when nothing fits."""

from __future__ import annotations

from typing import Literal

import httpx
import pytest
from starlette.responses import Response

from lakebed.catalog import Repository
from lakebed.operations import LOGGED_IN, NOTHING, Operation, openapi
from lakebed.server import App
from lakebed.server.http.errors import MethodNotAllowed, NoSuchEndpoint
from lakebed.server.http.requests import RestRequest
from lakebed.server.http.routing import Resource, Route, Router, in_repository
from lakebed.server.rest.auth.roles import Permitting
from lakebed.server.state import AppState


async def handler(_: RestRequest) -> Response:
    return Response()


METHODS_AND_PATHS: tuple[tuple[Literal["GET", "PUT"], str], ...] = (
    ("GET", "/a/{x}"),
    ("PUT", "/a/{x}"),
    ("GET", "/a/fixed"),
    ("GET", "/a/{x}/b/{y}"),
    ("GET", "/a/fixed/c"),
)
ROUTER = Router(
    Route(Operation(path, method, path, NOTHING, NOTHING, LOGGED_IN, ""), handler) for method, path in METHODS_AND_PATHS
)


@pytest.mark.parametrize(
    ("path", "route", "args"),
    [
        (b"a/1", "/a/{x}", ["1"]),
        (b"a/fixed", "/a/fixed", []),
        (b"a/fixed/b/2", "/a/{x}/b/{y}", ["fixed", "2"]),
        (b"a/x%2Fy", "/a/{x}", ["x/y"]),
        (b"a/%2B+%20", "/a/{x}", ["++ "]),
        (b"a/..", "/a/{x}", [".."]),
        (b"a/%C3%BC", "/a/{x}", ["ü"]),
    ],
)
def test_segments_are_split_before_they_are_decoded(path: bytes, route: str, args: list[str]) -> None:
    found, decoded = ROUTER.find("GET", path)

    assert (found.operation.path, decoded) == (route, args)


@pytest.mark.parametrize("path", [b"", b"a", b"a/", b"a//", b"a/1/", b"/a/1", b"a/1/b", b"b/1", b"a/1/b/2/3"])
def test_nothing_is_normalised_into_a_route(path: bytes) -> None:
    with pytest.raises(NoSuchEndpoint):
        ROUTER.find("GET", path)


def test_a_known_path_with_another_method_names_its_methods() -> None:
    with pytest.raises(MethodNotAllowed) as caught:
        ROUTER.find("DELETE", b"a/1")

    assert caught.value.facts["allowed"] == "GET, PUT"


async def test_a_wrong_method_is_405(client: httpx.AsyncClient) -> None:
    answer = await client.patch("/repositories")

    assert (answer.status_code, answer.headers["allow"]) == (405, "GET, POST")


async def test_whatever_is_outside_the_api_is_no_endpoint(app: App) -> None:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://localhost") as client:
        assert (await client.get("/_health")).status_code == 200
        for path in ("/api/v1/", "/api/v1/config/", "/api/v1//config"):
            answer = await client.get(path)
            assert (answer.status_code, answer.json()) == (404, {"message": "invalid API endpoint"}), path
        for path in ("/api", "/api/v2/config", "//api/v1/config"):
            assert (await client.post(path)).status_code == 404


async def test_an_empty_name_in_a_path_is_said_to_be_empty(client: httpx.AsyncClient) -> None:
    for path in ("/repositories//branches", "/repositories/lake/branches//commits", "/repositories//branches/x"):
        answer = await client.request("POST" if path.endswith("commits") else "GET", path)
        assert (answer.status_code, answer.json()) == (400, {"message": "a name in the path is empty"}), path


async def test_a_path_that_is_no_utf8_is_refused(client: httpx.AsyncClient) -> None:
    assert (await client.get("/repositories/%ff")).status_code == 400


async def test_a_server_shows_its_openapi_document_to_anyone_and_makes_it_once(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    make = openapi.document

    def noting(version: str) -> object:
        made.append(version)
        return make(version)

    monkeypatch.setattr(openapi, "document", noting)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://lake") as client:
        answer, again = [await client.get("/openapi.json") for _ in range(2)]

    assert len(made) == 1
    assert again.content == answer.content
    assert answer.json()["paths"]["/repositories/{repository}"].keys() == {"get", "delete"}


def operation_at(path: str) -> Operation[None, None]:
    return Operation("put", "PUT", path, NOTHING, NOTHING, LOGGED_IN, "")


@pytest.mark.parametrize("path", ["/users/{userId}", "/users/{userId}/at/{repository}", "/repositories"])
def test_a_handler_takes_a_repository_only_where_the_path_names_one_first(state: AppState, path: str) -> None:
    class Odd(Resource):
        @in_repository(operation_at(path))
        async def put(self, request: RestRequest, repository: Repository) -> None: ...

    with pytest.raises(AssertionError, match="of which repository"):
        Odd(state).routes()


@pytest.mark.parametrize("path", ["/repositories/{repository}/x", "/{repository}.{ref}/x"])
def test_a_handler_that_changes_permissions_takes_a_repository_as_any_does(state: AppState, path: str) -> None:
    class Granting(Permitting):
        @in_repository(operation_at(path))
        async def put(self, request: RestRequest, repository: Repository) -> None: ...

    [route] = Granting(state).routes()

    assert route.catalog is state.catalog
