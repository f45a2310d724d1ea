"""Sandboxes: made, listed, extended, ended, promoted."""

from __future__ import annotations

from msgspec.structs import asdict

from lakebed.auth import SandboxRecord
from lakebed.base import Invalid
from lakebed.catalog import Repository
from lakebed.gc.rules import parse_lifetime
from lakebed.operations import sandboxes
from lakebed.sandboxes import source_of
from lakebed.server.http.gate import ask
from lakebed.server.http.requests import RestRequest, page_of
from lakebed.server.http.routing import Resource, in_repository, serves
from lakebed.wire import Sandbox, SandboxCreation, SandboxEnded, SandboxExtension, SandboxList, SandboxWithSecret


class SandboxRoutes(Resource):
    @in_repository(sandboxes.LIST_SANDBOXES)
    async def list(self, request: RestRequest, repository: Repository) -> SandboxList:
        found, has_more = await self._state.sandboxes.list(repository, **request.page())
        results = [_shown(record) for record in found]
        pagination = page_of(results, has_more=has_more, last=results[-1].id if results else "")
        return SandboxList(pagination=pagination, results=results)

    @in_repository(sandboxes.CREATE_SANDBOX)
    async def create(self, request: RestRequest, repository: Repository, body: SandboxCreation) -> SandboxWithSecret:
        id_ = self._state.sandboxes.fresh_id(body.name)
        lasts_ms = self._lasts_ms(body.ttl)
        await _check_lent(request, repository, id_, body.source)
        record, issued = await self._state.sandboxes.create(
            repository,
            id_,
            source=body.source,
            read=await source_of(repository.versions, body.source),
            lasts_ms=lasts_ms,
            by=request.identity.user_id,
            denials=request.permissions.denials(),
            quota_bytes=body.quota_bytes,
        )
        request.what = {"repository": repository.id, "sandbox": id_, "access_key_id": issued.access_key_id}
        return SandboxWithSecret(**asdict(_shown(record)), secret_access_key=issued.secret_access_key)

    @in_repository(sandboxes.GET_SANDBOX)
    async def get(self, request: RestRequest, repository: Repository) -> Sandbox:
        return _shown(await self._state.sandboxes.get(repository, request.args[1]))

    @in_repository(sandboxes.EXTEND_SANDBOX)
    async def extend(self, request: RestRequest, repository: Repository, body: SandboxExtension) -> Sandbox:
        id_ = request.args[1]
        lasts_ms = self._lasts_ms(body.ttl)
        await _check_lent(request, repository, id_, (await self._state.sandboxes.get(repository, id_)).source)
        return _shown(await self._state.sandboxes.extend(repository, id_, lasts_ms=lasts_ms))

    @serves(sandboxes.END_SANDBOX)
    async def end(self, request: RestRequest) -> SandboxEnded:
        return await self._end(request, keeps_branch=False)

    @serves(sandboxes.PROMOTE_SANDBOX)
    async def promote(self, request: RestRequest) -> SandboxEnded:
        return await self._end(request, keeps_branch=True)

    async def _end(self, request: RestRequest, *, keeps_branch: bool) -> SandboxEnded:
        repository, id_ = await self._catalog.get(request.args[0]), request.args[1]
        kept = await self._state.sandboxes.end(repository, id_, by=request.identity.user_id, keeps_branch=keeps_branch)
        return SandboxEnded(id=id_, branch_kept=kept)

    def _lasts_ms(self, ttl: str) -> int:
        """
        Raises:
            InvalidDuration, Invalid: it is none, or for ever.
        """
        now_ms = self._state.ports.clock.now_ms()
        over_ms = parse_lifetime(ttl).over_ms(now_ms, now_ms)
        if over_ms is None:
            raise Invalid("a sandbox has an end: say how long it lasts, as 36h, 20d or 2w")
        return over_ms - 1 - now_ms


async def _check_lent(request: RestRequest, repository: Repository, id_: str, source: str) -> None:
    """Refuse to lend rights, or to lend them for longer, that the caller lacks (NotPermitted).

    The key may use them from any address and at any time, so what is allowed only there or then does not count.
    """
    names = {"repository": repository.id, "ref": source, "name": id_, "path": "*"}
    await ask(sandboxes.LENT, request.permissions.lasting(), names)


def _shown(record: SandboxRecord) -> Sandbox:
    return Sandbox(
        id=record.id,
        state=record.state.value,
        source=record.source,
        commit_id=record.commit_id,
        created_by=record.created_by,
        creation_date=record.created_ms // 1000,
        expiration_date=record.expires_ms // 1000,
        access_key_id=record.access_key_id,
        quota_bytes=record.quota_bytes,
    )
