"""Repositories: the list, a new one, the overview of one, deleting it, and the search of the frame."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from starlette.responses import Response

from lakebed import wire
from lakebed.base import LakebedError, NotFound
from lakebed.gc.messages import Keeper, Total
from lakebed.operations import deleted, history, installation, objects, repositories
from lakebed.operations.gc import collectors
from lakebed.server.web.visit import Visit, page_at

from .objects import readme_of

SAMPLE: Final = "sample-lake"
ROWS: Final = 50
DETAILED: Final = 20
PATHS: Final = 20
BRANCHES: Final = 1000
"""Count the branches of a repository to this many."""
_SCHEMES_WITHOUT_BUCKETS: Final = ("local://", "mem://")


@dataclass(frozen=True, slots=True, kw_only=True)
class Details:
    """Figures of a repository; None where the user may not see them, or no run counted. `waiting`: bytes of plans."""

    branches: wire.RefList | None
    commit: wire.Commit | None
    listed: Total | None
    waiting: int


@page_at("/")
async def show_all(visit: Visit) -> Response:
    """Show a page of repositories. Their figures take a request each, so they are counted on demand."""
    has_details = visit.query("details") == "1"
    listing = await visit.call(
        repositories.LIST_REPOSITORIES,
        search=visit.query("search"),
        after=visit.query("after"),
        amount=DETAILED if has_details else ROWS,
    )
    details = {each.id: await _details(visit, each) for each in listing.results} if has_details else None
    return visit.render("repositories", repositories=listing, details=details, counted=BRANCHES)


async def _details(visit: Visit, repository: wire.Repository) -> Details:
    name = repository.id
    branches = await visit.look(history.LIST_BRANCHES, name, amount=BRANCHES)
    commits = None
    with suppress(NotFound):  # A bare repository has no branch yet.
        commits = await visit.look(history.LOG_COMMITS, name, repository.default_branch, amount=1, limit=True)
    storage = await visit.look(collectors.GET_GC_STORAGE, name)
    return Details(
        branches=branches,
        commit=commits.results[0] if commits is not None and commits.results else None,
        listed=None if storage is None else storage.listed,
        waiting=sum(
            part.total.size_bytes
            for part in (() if storage is None else storage.parts)
            if part.keeper is Keeper.WAITING
        ),
    )


@page_at("/new-repository")
async def show_new(visit: Visit) -> Response:
    storage = await visit.call(installation.GET_STORAGE_CONFIG)
    prefix = storage.default_namespace_prefix or ""
    is_sample = visit.query("sample") == "1"
    namespace = f"{prefix}{SAMPLE}" if is_sample and prefix in _SCHEMES_WITHOUT_BUCKETS else ""
    return visit.render("new_repository", storage=storage, is_sample=is_sample, name=SAMPLE, namespace=namespace)


@show_new.form()
async def create(visit: Visit) -> Response:
    name = visit.entry("name").strip()
    await visit.call(
        repositories.CREATE_REPOSITORY,
        body=wire.RepositoryCreation(
            name=name,
            storage_namespace=visit.entry("namespace").strip(),
            default_branch=visit.entry("branch").strip() or None,
            sample_data=visit.entry("sample") == "1",
        ),
    )
    return visit.go("repositories", name, notice=f"Created the repository {name}.")


@page_at("/repositories/{repository}")
async def show_one(visit: Visit, name: str) -> Response:
    repository = await visit.call(repositories.GET_REPOSITORY, name)
    branches = await visit.look(history.LIST_BRANCHES, name, amount=20, details=True)
    tags = await visit.look(history.LIST_TAGS, name, amount=20)
    try:
        commits = await visit.look(history.LOG_COMMITS, name, repository.default_branch, amount=5, limit=True)
    except LakebedError as error:  # A bare repository has no branch yet.
        visit.hidden.append(str(error))
        commits = None
    return visit.render(
        "repository",
        repository=repository,
        branches=branches,
        tags=tags,
        commits=commits,
        readme=await readme_of(visit, name, repository.default_branch),
    )


@page_at("/deleted-repositories")
async def show_deleted(visit: Visit) -> Response:
    gone = await visit.call(deleted.LIST_DELETED_REPOSITORIES, after=visit.query("after"), amount=50)
    return visit.render("deleted_repositories", gone=gone)


@show_deleted.form()
async def undelete(visit: Visit) -> Response:
    name = visit.query("repository")
    await visit.call(deleted.UNDELETE_REPOSITORY, name, body=wire.RepositoryUndeletion(uid=visit.query("uid")))
    return visit.go("repositories", name, notice=f"The repository {name} is back.")


@page_at("/search")
async def search(visit: Visit) -> Response:
    """Go to an address that begins with `lakefs://`, or list the repositories whose names contain the text."""
    text = visit.query("text").strip()
    if text.startswith("lakefs://"):
        name, _, rest = text.removeprefix("lakefs://").partition("/")
        ref, _, path = rest.partition("/")
        if not ref:
            return visit.go("repositories", name)
        page = "objects" if not path or path.endswith("/") else "object"
        return visit.go("repositories", name, page, ref=ref, path=path)
    name = visit.query("repository")
    listing = await visit.look(repositories.LIST_REPOSITORIES, search=text, amount=50)
    branches = await visit.look(history.LIST_BRANCHES, name, prefix=text, amount=50) if name else None
    tags = await visit.look(history.LIST_TAGS, name, prefix=text, amount=50) if name else None
    return visit.render(
        "search",
        text=text,
        repository=name,
        repositories=listing,
        branches=branches,
        tags=tags,
        paths=await _paths(visit, name, text) if name and text else None,
    )


async def _paths(visit: Visit, name: str, text: str) -> wire.ObjectStatsList | None:
    """Return the first paths of the default branch that begin with a text, to the end of a folder's name."""
    try:
        repository = await visit.look(repositories.GET_REPOSITORY, name)
        if repository is None:
            return None
        ref = repository.default_branch
        return await visit.look(
            objects.LIST_OBJECTS, name, ref, prefix=text, delimiter="/", amount=PATHS, user_metadata=False
        )
    except LakebedError:  # The text is no path, or the repository is bare or gone.
        return None


delete = show_one.carry_out(
    "/delete",
    repositories.DELETE_REPOSITORY,
    "repository",
    "Deleted the repository {repository}. It can be undeleted.",
    typed="repository",
    to=show_all,
)
