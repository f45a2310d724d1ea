"""Pull requests."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec

from lakebed import wire
from lakebed.catalog import PullRecord, Repository
from lakebed.operations import history, repositories
from lakebed.server.http.errors import Answer
from lakebed.server.http.gate import check_source, require
from lakebed.server.http.requests import RestRequest, page_of
from lakebed.server.http.routing import Resource, in_repository
from lakebed.versions import BranchNotFound


class PullRequests(Resource):
    @in_repository(repositories.LIST_PULL_REQUESTS)
    async def list(self, request: RestRequest, repository: Repository) -> wire.PullRequestsList:
        status = request.choice("status", ("all", "open", "closed"))
        found, has_more = await repository.pulls.list(state="" if status == "all" else status, **request.page())
        results = [_pull(pull_id, record) for pull_id, record in found]
        pagination = page_of(results, has_more=has_more, last=results[-1].id if results else "")
        return wire.PullRequestsList(pagination=pagination, results=results)

    @in_repository(repositories.CREATE_PULL_REQUEST)
    async def create(
        self, request: RestRequest, repository: Repository, body: wire.PullRequestCreation
    ) -> wire.PullRequestCreationResponse:
        try:
            pull_id = await repository.pulls.create(
                source=body.source_branch,
                destination=body.destination_branch,
                title=body.title,
                description=body.description or "",
                author=request.identity.user_id,
            )
        except BranchNotFound as error:
            raise Answer(404, f"{error.facts.get('branch', 'branch')}: branch not found") from error
        return wire.PullRequestCreationResponse(id=pull_id)

    @in_repository(repositories.GET_PULL_REQUEST)
    async def get(self, request: RestRequest, repository: Repository) -> wire.PullRequest:
        return _pull(request.args[1], await repository.pulls.get(request.args[1]))

    @in_repository(repositories.UPDATE_PULL_REQUEST)
    async def update(self, request: RestRequest, repository: Repository, body: wire.PullRequestBasic) -> None:
        await repository.pulls.change(
            request.args[1],
            title=body.title,
            description=body.description,
            state=body.status,
            by=request.identity.user_id,
        )

    @in_repository(repositories.MERGE_PULL_REQUEST)
    async def merge(self, request: RestRequest, repository: Repository) -> wire.MergeResult:
        record = await repository.pulls.get(request.args[1])
        # Check as for a direct merge: the permission to write pull requests does not allow commits.
        names = {"repository": request.args[0], "branch": record.destination, "destinationBranch": record.destination}
        require(history.MERGE_INTO_BRANCH.permissions or (), request.permissions, names)
        await check_source(request.permissions, repository, record.source)
        commit_id = await repository.pulls.merge(request.args[1], committer=request.identity.user_id)
        return wire.MergeResult(reference=commit_id)


def _pull(pull_id: str, record: PullRecord) -> wire.PullRequest:
    return wire.PullRequest(
        id=pull_id,
        status=record.state,
        title=record.title,
        description=record.description,
        creation_date=_time(record.created_ms),
        author=record.author,
        source_branch=record.source,
        destination_branch=record.destination,
        merged_commit_id=record.commit_id or msgspec.UNSET,
        closed_date=_time(record.closed_ms) if record.closed_ms else msgspec.UNSET,
    )


def _time(unix_ms: int) -> str:
    return datetime.fromtimestamp(unix_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
