"""Branches and tags: names for commits, and resets."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from msgspec.structs import replace

from lakebed import wire
from lakebed.auth import NotPermitted
from lakebed.base import (
    CommitId,
    Conflict,
    Corrupt,
    InvalidName,
    LakebedError,
    NotFound,
    Unavailable,
    in_waves,
    path_to_key,
)
from lakebed.catalog import Repository
from lakebed.gc.rules import parse_lifetime
from lakebed.operations import history
from lakebed.sandboxes import SandboxNotFound
from lakebed.server.http.errors import Answer, InvalidParameter
from lakebed.server.http.gate import check_source, keep_actions, require
from lakebed.server.http.requests import RestRequest, page_of
from lakebed.server.http.routing import Resource, in_repository
from lakebed.versions import Branch, BranchNotFound, CommitNotFound, RefNotFound

logger = logging.getLogger(__name__)


class Branches(Resource):
    @in_repository(history.LIST_BRANCHES)
    async def list(self, request: RestRequest, repository: Repository) -> wire.RefList:
        hidden = frozenset() if request.flag("show_hidden") else await repository.settings.hidden_branches()
        limit = request.amount()
        found: list[wire.Ref] = []
        after, has_more = request.query("after"), True
        while has_more and len(found) < limit:
            branches, has_more = await repository.versions.refs.list_branches(
                prefix=request.query("prefix"), after=after, limit=limit - len(found)
            )
            found += [_shown(branch) for branch in branches if branch.name not in hidden]
            after = branches[-1].name if branches else after
        if request.flag("details"):
            shown = [ref for ref in found if _may_read_commits(request, ref.id)]
            detailed = {ref.id: ref for ref in await _with_details(repository, shown)}
            found = [detailed.get(ref.id, ref) for ref in found]
        return wire.RefList(pagination=page_of(found, has_more=has_more, last=after), results=found)

    @in_repository(history.CREATE_BRANCH)
    async def create(self, request: RestRequest, repository: Repository, body: wire.BranchCreation) -> str:
        await check_source(request.permissions, repository, body.source)
        try:
            commit_id = await repository.changes.create_branch(
                body.name,
                body.source,
                hidden=bool(body.hidden),
                force=bool(body.force),
                by=request.identity.user_id,
                lasts_ms=_lasts_ms(body.ttl, self._state.ports.clock.now_ms()),
            )
        except InvalidName as error:
            raise Answer(400, f"argument branch: branch id: invalid value: validation error: {error}") from error
        except (RefNotFound, BranchNotFound, CommitNotFound) as error:
            raise Answer(404, f"source reference '{body.source}': not found") from error
        return commit_id

    @in_repository(history.GET_BRANCH)
    async def get(self, request: RestRequest, repository: Repository) -> wire.Ref:
        return _shown(await repository.versions.refs.get_branch(request.args[1]))

    @in_repository(history.DELETE_BRANCH)
    async def delete(self, request: RestRequest, repository: Repository) -> None:
        branch, by = request.args[1], request.identity.user_id
        await repository.changes.delete_branch(branch, force=request.flag("force"), by=by)
        try:
            await self._state.sandboxes.end(repository, branch, by=by)
        except SandboxNotFound:
            pass
        except LakebedError as error:
            # The branch is deleted, and that is the answer. Upkeep ends a sandbox without its branch.
            logger.warning("sandbox %s: %s", branch, error)

    @in_repository(history.RESET_BRANCH)
    async def reset(self, request: RestRequest, repository: Repository, body: wire.ResetCreation) -> None:
        branch = request.args[1]
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

    @in_repository(history.HARD_RESET_BRANCH)
    async def hard_reset(self, request: RestRequest, repository: Repository) -> None:
        ref = request.required("ref")
        await check_source(request.permissions, repository, ref)
        ref = await keep_actions(request.permissions, repository, ref, against=request.args[1])
        await repository.changes.hard_reset(
            request.args[1],
            ref,
            force=request.flag("force"),
            refuse_expired=request.flag("refuse_expired"),
            by=request.identity.user_id,
        )


async def _with_details(repository: Repository, refs: Sequence[wire.Ref]) -> list[wire.Ref]:
    versions = repository.versions
    commits = await versions.inventory.commits([CommitId(ref.commit_id) for ref in refs])

    async def has_uncommitted(ref: wire.Ref) -> bool | None:
        try:
            changes, _ = await versions.history.diff_branch(ref.id, limit=1)
        except (Conflict, Corrupt, NotFound, Unavailable):
            # The branch was deleted meanwhile, or files of its tree are lost. A recovery starts with this list, so
            # return it.
            return None
        return bool(changes)

    changed = await in_waves(versions.ports.tasks, refs, has_uncommitted)
    return [
        replace(
            ref,
            commit_date=None if commit is None else commit.created_ms // 1000,
            commit_committer=None if commit is None else commit.committer,
            commit_message=None if commit is None else commit.message,
            has_uncommitted=is_changed,
        )
        for ref, commit, is_changed in zip(refs, commits, changed, strict=True)
    ]


def _may_read_commits(request: RestRequest, branch: str) -> bool:
    names = {"repository": request.args[0], "branch": branch}
    try:
        require(history.LIST_BRANCHES.asked_later, request.permissions, names)
    except NotPermitted:
        return False
    return True


def _shown(branch: Branch) -> wire.Ref:
    expires_s = branch.expires_ms // 1000 if branch.expires_ms else None
    return wire.Ref(id=branch.name, commit_id=branch.commit_id, expiration_date=expires_s)


def _lasts_ms(ttl: str | None, now_ms: int) -> int:
    """Return how long a branch lives in ms, or 0 without an end.

    Raises:
        InvalidDuration: the text is no duration.
    """
    if not ttl:
        return 0
    over_ms = parse_lifetime(ttl).over_ms(now_ms, now_ms)
    # The branch is deleted at exactly this age; `over_ms` is the instant after that.
    return 0 if over_ms is None else over_ms - 1 - now_ms


class Tags(Resource):
    @in_repository(history.LIST_TAGS)
    async def list(self, request: RestRequest, repository: Repository) -> wire.RefList:
        tags, has_more = await repository.versions.refs.list_tags(**request.page())
        results = [wire.Ref(id=tag.name, commit_id=tag.commit_id) for tag in tags]
        last = tags[-1].name if tags else ""
        return wire.RefList(pagination=page_of(results, has_more=has_more, last=last), results=results)

    @in_repository(history.CREATE_TAG)
    async def create(self, request: RestRequest, repository: Repository, body: wire.TagCreation) -> wire.Ref:
        await check_source(request.permissions, repository, body.ref)
        commit_id = await repository.changes.create_tag(
            body.id, body.ref, force=bool(body.force), by=request.identity.user_id
        )
        return wire.Ref(id=body.id, commit_id=commit_id)

    @in_repository(history.GET_TAG)
    async def get(self, request: RestRequest, repository: Repository) -> wire.Ref:
        commit_id = await repository.versions.refs.get_tag(request.args[1])
        return wire.Ref(id=request.args[1], commit_id=commit_id)

    @in_repository(history.DELETE_TAG)
    async def delete(self, request: RestRequest, repository: Repository) -> None:
        await repository.changes.delete_tag(request.args[1], force=request.flag("force"), by=request.identity.user_id)
