"""Branches and tags: names for commits, and resets."""

from __future__ import annotations

from starlette.responses import Response

from lakebed import wire
from lakebed.base import InvalidName, path_to_key
from lakebed.server.errors import Answer, InvalidParameter
from lakebed.server.requests import RestRequest
from lakebed.server.responses import answer, nothing, page_of, text
from lakebed.server.routing import Route
from lakebed.server.state import AppState
from lakebed.versions import BranchNotFound, CommitNotFound, RefNotFound


class Branches:
    def __init__(self, state: AppState) -> None:
        self._catalog = state.catalog

    async def list(self, request: RestRequest) -> Response:
        repository = await self._catalog.get(request.args[0])
        hidden = frozenset() if request.flag("show_hidden") else await repository.settings.hidden_branches()
        limit = request.amount()
        found: list[wire.Ref] = []
        after, has_more = request.query("after"), True
        while has_more and len(found) < limit:
            branches, has_more = await repository.versions.list_branches(
                prefix=request.query("prefix"), after=after, limit=limit - len(found)
            )
            found += [wire.Ref(id=b.name, commit_id=b.commit_id) for b in branches if b.name not in hidden]
            after = branches[-1].name if branches else after
        return answer(wire.RefList(pagination=page_of(found, has_more=has_more, last=after), results=found))

    async def create(self, request: RestRequest) -> Response:
        repository = await self._catalog.get(request.args[0])
        body = await request.decoded(wire.BranchCreation)
        try:
            commit_id = await repository.changes.create_branch(
                body.name, body.source, hidden=bool(body.hidden), force=bool(body.force)
            )
        except InvalidName as error:
            raise Answer(400, f"argument branch: branch id: invalid value: validation error: {error}") from error
        except (RefNotFound, BranchNotFound, CommitNotFound) as error:
            raise Answer(404, f"source reference '{body.source}': not found") from error
        return text(commit_id, 201)

    async def get(self, request: RestRequest) -> Response:
        repository = await self._catalog.get(request.args[0])
        branch = await repository.versions.get_branch(request.args[1])
        return answer(wire.Ref(id=branch.name, commit_id=branch.commit_id))

    async def delete(self, request: RestRequest) -> Response:
        repository = await self._catalog.get(request.args[0])
        await repository.changes.delete_branch(request.args[1], force=request.flag("force"))
        return nothing()

    async def reset(self, request: RestRequest) -> Response:
        repository = await self._catalog.get(request.args[0])
        branch = request.args[1]
        body = await request.decoded(wire.ResetCreation)
        force = bool(body.force)
        match body.type:
            case "reset":
                await repository.changes.reset(branch, force=force)
            case "common_prefix":
                await repository.changes.reset_prefix(branch, body.path or "", force=force)
            case "object":
                if not body.path:
                    raise InvalidParameter("resetting an object needs its path")
                await repository.changes.reset_object(branch, path_to_key(body.path), force=force)
        return nothing()

    async def hard_reset(self, request: RestRequest) -> Response:
        repository = await self._catalog.get(request.args[0])
        await repository.changes.hard_reset(request.args[1], request.required("ref"), force=request.flag("force"))
        return nothing()


class Tags:
    def __init__(self, state: AppState) -> None:
        self._catalog = state.catalog

    async def list(self, request: RestRequest) -> Response:
        repository = await self._catalog.get(request.args[0])
        tags, has_more = await repository.versions.list_tags(
            prefix=request.query("prefix"), after=request.query("after"), limit=request.amount()
        )
        results = [wire.Ref(id=tag.name, commit_id=tag.commit_id) for tag in tags]
        last = tags[-1].name if tags else ""
        return answer(wire.RefList(pagination=page_of(results, has_more=has_more, last=last), results=results))

    async def create(self, request: RestRequest) -> Response:
        repository = await self._catalog.get(request.args[0])
        body = await request.decoded(wire.TagCreation)
        commit_id = await repository.changes.create_tag(body.id, body.ref, force=bool(body.force))
        return answer(wire.Ref(id=body.id, commit_id=commit_id), 201)

    async def get(self, request: RestRequest) -> Response:
        repository = await self._catalog.get(request.args[0])
        commit_id = await repository.versions.get_tag(request.args[1])
        return answer(wire.Ref(id=request.args[1], commit_id=commit_id))

    async def delete(self, request: RestRequest) -> Response:
        repository = await self._catalog.get(request.args[0])
        await repository.changes.delete_tag(request.args[1], force=request.flag("force"))
        return nothing()


def routes(state: AppState) -> list[Route]:
    branches, tags = Branches(state), Tags(state)
    all_branches, all_tags = "/repositories/{repository}/branches", "/repositories/{repository}/tags"
    return [
        Route("GET", all_branches, branches.list),
        Route("POST", all_branches, branches.create),
        Route("GET", all_branches + "/{branch}", branches.get),
        Route("DELETE", all_branches + "/{branch}", branches.delete),
        Route("PUT", all_branches + "/{branch}", branches.reset),
        Route("PUT", all_branches + "/{branch}/hard_reset", branches.hard_reset),
        Route("GET", all_tags, tags.list),
        Route("POST", all_tags, tags.create),
        Route("GET", all_tags + "/{tag}", tags.get),
        Route("DELETE", all_tags + "/{tag}", tags.delete),
    ]
