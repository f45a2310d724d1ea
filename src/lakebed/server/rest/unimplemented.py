"""Operations of the contract that this server does not have: it says so (501), rather than that they do not exist.

A test sees to it that every operation of the contract is either implemented or listed here, and none is both.
"""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from lakebed.server.errors import NotImplementedHere
from lakebed.server.requests import RestRequest
from lakebed.server.routing import Route
from lakebed.server.state import AppState

OPERATIONS: Final = (
    ("/auth/external/principal/login", "POST"),
    ("/sts/login", "POST"),
    ("/auth/users/{userId}/external/principals", "POST DELETE"),
    ("/auth/users/{userId}/external/principals/ls", "GET"),
    ("/auth/external/principals", "GET"),
    ("/repositories/{repository}/refs/dump", "PUT"),
    ("/repositories/{repository}/refs/restore", "PUT"),
    ("/repositories/{repository}/dump", "POST GET"),
    ("/repositories/{repository}/restore", "POST GET"),
    ("/repositories/{repository}/commits", "POST"),
    ("/repositories/{repository}/branches/{branch}/staging/pmpu", "POST"),
    ("/repositories/{repository}/branches/{branch}/staging/pmpu/{uploadId}", "PUT DELETE"),
    ("/repositories/{repository}/branches/{branch}/staging/pmpu/{uploadId}/parts/{partNumber}", "PUT"),
    ("/repositories/{repository}/branches/{branch}/staging/pmpu/{uploadId}/parts/{partNumber}/copy", "PUT"),
    ("/repositories/{repository}/branches/{branch}/import", "GET POST DELETE"),
    ("/repositories/{repository}/refs/{branch}/symlink", "POST"),
    ("/repositories/{repository}/actions/runs", "GET"),
    ("/repositories/{repository}/actions/runs/{run_id}", "GET"),
    ("/repositories/{repository}/actions/runs/{run_id}/hooks", "GET"),
    ("/repositories/{repository}/actions/runs/{run_id}/hooks/{hook_run_id}/output", "GET"),
    ("/repositories/{repository}/metadata/object/{type}/{object_id}", "GET"),
    ("/repositories/{repository}/gc/prepare_commits/async", "POST"),
    ("/repositories/{repository}/gc/prepare_commits/status", "GET"),
    ("/repositories/{repository}/branch_protection", "POST DELETE"),
    ("/repositories/{repository}/pulls", "GET POST"),
    ("/repositories/{repository}/pulls/{pull_request}", "GET PATCH"),
    ("/repositories/{repository}/pulls/{pull_request}/merge", "PUT"),
    ("/oidc/callback", "GET"),
)


def routes(_: AppState) -> list[Route]:
    return [Route(method, path, _refuse) for path, methods in OPERATIONS for method in methods.split()]


async def _refuse(_: RestRequest) -> Response:
    raise NotImplementedHere("Not Implemented")
