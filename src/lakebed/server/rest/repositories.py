"""Repositories, their metadata, and the rules that protect their branches."""

from __future__ import annotations

import builtins
import logging
from collections.abc import Callable, Iterator, Sequence

from starlette.responses import Response

from lakebed import wire
from lakebed.base import Etags, LakebedError
from lakebed.catalog import MARKER_KEY, NamespaceInUse, NamespaceNested, Repository, RepositoryRecord, SettingChanged
from lakebed.gc.live import CollectionService, Installation
from lakebed.operations import repositories
from lakebed.server.http.errors import Answer
from lakebed.server.http.requests import RestRequest, answer, page_of
from lakebed.server.http.routing import Resource, in_repository, serves
from lakebed.versions import Note, Versions

logger = logging.getLogger(__name__)


class Repositories(Resource):
    @serves(repositories.LIST_REPOSITORIES)
    async def list(self, request: RestRequest) -> wire.RepositoryList:
        found, has_more = await self._catalog.list(
            prefix=request.query("prefix"),
            search=request.query("search"),
            after=request.query("after"),
            limit=request.amount(),
        )
        pagination = page_of(found, has_more=has_more, last=found[-1][0] if found else "")
        results = [repository_record(name, record) for name, record in found]
        return wire.RepositoryList(pagination=pagination, results=results)

    @serves(repositories.CREATE_REPOSITORY)
    async def create(self, request: RestRequest, body: wire.RepositoryCreation) -> wire.Repository:
        if body.storage_id:
            raise Answer(400, "storage id: invalid value: validation error: this server has one storage, without an id")
        is_bare = request.flag("bare")
        if body.sample_data and is_bare:
            raise Answer(400, "a bare repository takes no sample data")
        if body.sample_data and body.read_only:
            raise Answer(400, "a read-only repository takes no sample data")

        default_branch = body.default_branch or "main"

        async def distrust(versions: Versions) -> None:
            await Installation(versions).distrust(default_branch=default_branch)

        try:
            repository = await self._catalog.create(
                body.name,
                storage_namespace=body.storage_namespace,
                default_branch=default_branch,
                read_only=bool(body.read_only),
                reuse=request.flag("reuse"),
                bare=distrust if is_bare else None,
            )
        except NamespaceNested as error:
            message = f"failed to create repository: {error}: a storage namespace holds one repository and no other"
            raise Answer(400, message) from error
        except NamespaceInUse as error:
            where = f"(:{error.facts['namespace']}) key({MARKER_KEY})"
            raise Answer(
                400,
                f"failed to create repository: found lakeFS objects in the storage {where}: "
                "storage namespace already in use",
            ) from error
        if repository.record.salted and not is_bare:
            # The marks of the earlier repository are higher than ours. Adopt them, or no collection can run.
            await CollectionService(repository.versions, user_id=request.identity.user_id).adopting()
        if body.sample_data:
            branch = repository.record.default_branch
            await add_sample_data(repository, branch, committer=request.identity.user_id)
        return repository_record(repository.id, repository.record)

    @in_repository(repositories.GET_REPOSITORY)
    async def get(self, _: RestRequest, repository: Repository) -> wire.Repository:
        return repository_record(repository.id, repository.record)

    @serves(repositories.DELETE_REPOSITORY)
    async def delete(self, request: RestRequest) -> None:
        by = request.identity.user_id
        await self._catalog.delete(request.args[0], force=request.flag("force"), by=by)
        # Their keys name the repository by id, which a new repository may get. Upkeep would end the sandboxes later.
        try:
            await self._state.sandboxes.clean(request.args[0])
        except LakebedError as error:
            logger.warning("sandboxes of %s: %s", request.args[0], error)

    @in_repository(repositories.GET_REPOSITORY_METADATA)
    async def metadata(self, _: RestRequest, repository: Repository) -> dict[str, str]:
        return repository.record.metadata

    @serves(repositories.SET_REPOSITORY_METADATA)
    async def set_metadata(self, request: RestRequest, body: wire.RepositoryMetadataSet) -> None:
        await self._catalog.set_metadata(request.args[0], body.metadata)

    @serves(repositories.DELETE_REPOSITORY_METADATA)
    async def remove_metadata(self, request: RestRequest, body: wire.RepositoryMetadataKeys) -> None:
        await self._catalog.remove_metadata(request.args[0], body.keys)

    @in_repository(repositories.INTERNAL_GET_BRANCH_PROTECTION_RULES)
    @in_repository(repositories.GET_BRANCH_PROTECTION_RULES)
    async def protection(self, _: RestRequest, repository: Repository) -> Response:
        settings = repository.settings
        patterns, etag = await settings.protection_patterns()
        response = answer([wire.BranchProtectionRule(pattern=pattern) for pattern in patterns])
        response.headers["etag"] = etag
        return response

    @in_repository(repositories.SET_BRANCH_PROTECTION_RULES)
    async def set_protection(
        self, request: RestRequest, repository: Repository, rules: builtins.list[wire.BranchProtectionRule]
    ) -> None:
        header, tags = request.header(b"if-match"), None
        if header is not None:
            # The contract's empty ETag, with quotes or not, is that of a repository without rules.
            tags = Etags.read(header) if header.strip(' "') else Etags.of("")
        await repository.set_protection([rule.pattern for rule in rules], if_match=tags)

    @serves(repositories.INTERNAL_CREATE_BRANCH_PROTECTION_RULE)
    async def add_protection(self, request: RestRequest, rule: wire.BranchProtectionRule) -> None:
        await self._change_protection(request, lambda patterns: [*patterns, rule.pattern])

    @serves(repositories.INTERNAL_DELETE_BRANCH_PROTECTION_RULE)
    async def remove_protection(self, request: RestRequest, rule: wire.BranchProtectionRule) -> None:
        """Remove a protection rule."""

        def without(patterns: Sequence[str]) -> Sequence[str]:
            if rule.pattern not in patterns:
                raise Answer(404, "branch protection rule not found")
            return [pattern for pattern in patterns if pattern != rule.pattern]

        await self._change_protection(request, without)

    async def _change_protection(self, request: RestRequest, change: Callable[[Sequence[str]], Sequence[str]]) -> None:
        repository = await self._catalog.get(request.args[0])
        while True:
            patterns, etag = await repository.settings.protection_patterns()
            try:
                await repository.set_protection(change(patterns), if_match=Etags.of(etag))
            except SettingChanged:
                continue
            return

    @in_repository(repositories.CREATE_BRANCH_PROTECTION_RULE_PREFLIGHT)
    async def may_set_protection(self, _: RestRequest, repository: Repository) -> None:
        repository.guards.check_writable()


def repository_record(name: str, record: RepositoryRecord) -> wire.Repository:
    return wire.Repository(
        id=name,
        creation_date=record.created_ms // 1000,
        default_branch=record.default_branch,
        read_only=record.read_only,
        storage_namespace=record.storage_namespace,
    )


MESSAGE = "Add sample data"
_README = """# Sample data

`stations.csv` names three stations, `readings/` has what they measured, a file for each month.
Make a branch, change a file, look at the difference, merge it:

    lakebed branch create lakefs://REPOSITORY/try --source main
    lakebed object upload readings.csv lakefs://REPOSITORY/try/sample/readings/2026-02.csv
    lakebed diff lakefs://REPOSITORY/try
"""
_STATIONS = {"hamburg": (53.55, 9.99), "lisbon": (38.72, -9.14), "oslo": (59.91, 10.75)}
_DAYS = {"2026-01": 31, "2026-02": 28}


def sample_files() -> Iterator[tuple[str, str, str]]:
    """Yield path, content type and text of each file. The files are always the same."""
    yield "sample/README.md", "text/markdown", _README
    rows = [f"{name},{latitude},{longitude}" for name, (latitude, longitude) in _STATIONS.items()]
    yield "sample/stations.csv", "text/csv", "\n".join(["station,latitude,longitude", *rows]) + "\n"
    for month, days in _DAYS.items():
        lines = ["day,station,celsius"]
        for day in range(1, days + 1):
            # Colder in the north, and varying within a week: enough to draw a line.
            lines += [
                f"{month}-{day:02},{name},{30 - latitude / 2 + day % 7 - 3:.1f}"
                for name, (latitude, _) in _STATIONS.items()
            ]
        yield f"sample/readings/{month}.csv", "text/csv", "\n".join(lines) + "\n"


async def add_sample_data(repository: Repository, branch: str, *, committer: str) -> None:
    """Upload the sample files to a branch and commit them."""
    for path, content_type, text in sample_files():
        await repository.objects.upload(branch, path, text.encode(), content_type=content_type)
    await repository.changes.commit(branch, Note(message=MESSAGE, committer=committer))
