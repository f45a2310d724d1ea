"""Show a ref: folders, objects with a preview, upload, import, copy, move and delete; and Iceberg tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from starlette.responses import Response

from lakebed import wire
from lakebed.base import LakebedError, NotFound, human_size, path_to_key
from lakebed.operations import API_ROOT, history, objects, repositories, tables
from lakebed.server.http.errors import Answer
from lakebed.server.http.forms import open_form
from lakebed.server.web.visit import Visit, page_at

ROWS: Final = 50
DETAILED: Final = 30
"""Rows with their last commits: each costs as much as three others."""
REFS: Final = 100
COMMITS: Final = 50
"""Look first at this many commits for the last ones of a folder's rows: 3 ms each at the first look."""
COMMITS_MAX: Final = 500
"""The operation looks at this many."""
README: Final = "README.md"
README_BYTES_MAX: Final = 8 << 10
IMAGES: Final = frozenset({"image/gif", "image/jpeg", "image/png", "image/webp"})
"""Image types that cannot run scripts. SVG can."""
IMAGE_BYTES_MAX: Final = 32 << 20
VERSIONS: Final = 20
"""Versions of a table on its page: each reads a metadata file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row of a folder. `change`: the difference from the last commit. `stats`: None for a removed object."""

    path: str
    stats: wire.ObjectStats | None
    change: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """An object in a ref, and the URL of its bytes for a browser."""

    ref: str
    stats: wire.ObjectStats
    download: str
    is_image: bool


@page_at("/repositories/{repository}/objects")
async def show_folder(visit: Visit, name: str) -> Response:
    ref, choices = await choose_ref(visit, name)
    path = visit.query("path")
    rows: dict[str, Any] = {"prefix": path, "delimiter": "/", "after": visit.query("after")}
    rows["amount"] = DETAILED if visit.query("details") else ROWS
    listing = await visit.call(objects.LIST_OBJECTS, name, ref, **rows, user_metadata=False)
    size = last = changes = None
    is_head = False
    if choices["is_branch"]:
        changes = await visit.look(history.DIFF_BRANCH, name, ref, **rows)
    if details := visit.query("details"):
        size = await visit.look(objects.MEASURE_OBJECTS, name, ref, prefix=path)
        if is_head := size is not None and size.has_more:
            size = await visit.look(objects.MEASURE_OBJECTS, name, f"{ref}@", prefix=path)
        last = await visit.look(objects.LAST_COMMITS, name, ref, **rows, commits=COMMITS if details == "1" else None)
    folder = path[: path.rfind("/") + 1]
    is_told = listing.pagination.has_more or any(each.path == folder + README for each in listing.results)
    return visit.render(
        "objects",
        name=name,
        ref=ref,
        path=path,
        folder=folder,
        parents=parents_of(folder),
        pagination=listing.pagination,
        rows=rows_of(listing, changes),
        is_cut=changes is not None and changes.pagination.has_more,
        readme=await readme_of(visit, name, ref, folder) if is_told and not visit.query("after") else None,
        size=size,
        is_head=is_head,
        last=None if last is None else {row.path: row for row in last.results},
        looked_at=None if last is None or last.is_complete else COMMITS if details == "1" else COMMITS_MAX,
        **choices,
    )


def rows_of(listing: wire.ObjectStatsList, changes: wire.DiffList | None) -> list[Row]:
    """Return the rows of a folder with its uncommitted changes, including removed objects."""
    marks = {} if changes is None else {each.path: each.type for each in changes.results}
    rows = [Row(path=each.path, stats=each, change=marks.pop(each.path, "")) for each in listing.results]
    end = path_to_key(listing.results[-1].path) if listing.pagination.has_more and listing.results else None
    for path, change in marks.items():
        # A change after the last row belongs to the next page.
        if end is None or path_to_key(path) < end:
            rows.append(Row(path=path, stats=None, change=change))
    return sorted(rows, key=lambda row: path_to_key(row.path))


async def readme_of(visit: Visit, name: str, ref: str, folder: str = "") -> tuple[str, str] | None:
    """Return the README of a folder as text, and a note about the shown part if it is cut."""
    try:
        stats = await visit.look(objects.STAT_OBJECT, name, ref, path=folder + README)
        if stats is None or stats.expired or not stats.size_bytes:
            return None
        span = {"range": f"bytes=0-{README_BYTES_MAX - 1}"}
        answer = await visit.respond(objects.GET_OBJECT, name, ref, path=folder + README, headers=span)
    except NotFound:
        return None
    except LakebedError as error:
        visit.hidden.append(str(error))
        return None
    data, cut = bytes(answer.body), ""
    if stats.size_bytes > README_BYTES_MAX:
        data = _without_end(data)
        cut = f"The first {human_size(len(data))} of {human_size(stats.size_bytes)}."
    return data.decode(errors="replace").replace("\r\n", "\n"), cut


def _without_end(data: bytes) -> bytes:
    """Return a text without its last paragraph, else without its last line or word, which may be cut."""
    ends = (data.rfind(mark) for mark in (b"\n\n", b"\r\n\r\n", b"\n", b" "))
    return data[: next((end for end in ends if end > 0), len(data))]


@page_at("/repositories/{repository}/object")
async def show_object(visit: Visit, name: str) -> Response:
    ref, choices = await choose_ref(visit, name)
    path = visit.query("path")
    side = side_of(visit, name, ref, await visit.call(objects.STAT_OBJECT, name, ref, path=path))
    signed = None
    if visit.query("presign") == "1":
        signed = await visit.look(objects.STAT_OBJECT, name, ref, path=path, presign=True)
    return visit.render(
        "object",
        name=name,
        ref=ref,
        path=path,
        folder=path[: path.rfind("/") + 1],
        parents=parents_of(path[: path.rfind("/") + 1]),
        last=path.rpartition("/")[2] or path,
        stats=side.stats,
        side=side,
        signed=signed,
        **choices,
    )


def side_of(visit: Visit, name: str, ref: str, stats: wire.ObjectStats) -> Side:
    content_type = (stats.content_type or "").partition(";")[0].strip().lower()
    return Side(
        ref=ref,
        stats=stats,
        download=visit.url(*API_ROOT[1:].split("/"), "repositories", name, "refs", ref, "objects", path=stats.path),
        is_image=content_type in IMAGES and (stats.size_bytes or 0) <= IMAGE_BYTES_MAX,
    )


@show_folder.form(is_upload=True)
async def upload(visit: Visit, name: str) -> Response:
    """Accept one file of a form. The token comes before the file, so check it before storing any byte."""
    request = visit.request
    form = await open_form(request.header(b"content-type") or "", request.stream(), "content")
    visit.entered = {key: [value] for key, value in form.fields.items()}
    visit.check_token()
    path = visit.entry("path")
    if not path or path.endswith("/"):
        path += form.filename
    if not path or path.endswith("/"):
        raise Answer(400, "Choose a file to upload.")
    ref = visit.query("ref")
    await visit.send(
        objects.UPLOAD_OBJECT,
        name,
        ref,
        path=path,
        chunks=form.body(),
        headers={"content-type": form.content_type or "application/octet-stream"},
    )
    notice = f"Uploaded {path}. It is not committed yet."
    return visit.go("repositories", name, "object", ref=ref, path=path, notice=notice)


@show_object.form("/delete")
async def delete(visit: Visit, name: str) -> Response:
    ref, path = visit.query("ref"), visit.query("path")
    visit.check_typed(path.rpartition("/")[2] or path)
    await visit.call(objects.DELETE_OBJECT, name, ref, path=path)
    notice = f"Deleted {path} from {ref}. Until it is committed, you can discard this change."
    return visit.go("repositories", name, "objects", ref=ref, path=path[: path.rfind("/") + 1], notice=notice)


@show_object.form("/copy")
async def copy(visit: Visit, name: str) -> Response:
    """Copy an object of any ref to a branch. This also restores an old version."""
    branch, target = visit.entry("branch").strip(), visit.entry("to")
    body = wire.ObjectCopyCreation(src_path=visit.query("path"), src_ref=visit.query("ref"))
    await visit.call(objects.COPY_OBJECT, name, branch, dest_path=target, body=body)
    notice = f"Copied it to {target} on {branch}. It is not committed yet."
    return visit.go("repositories", name, "object", ref=branch, path=target, notice=notice)


@show_object.form("/move")
async def move(visit: Visit, name: str) -> Response:
    branch, target = visit.query("ref"), visit.entry("to")
    body = wire.ObjectMove(src_path=visit.query("path"), if_absent=visit.entry("replace") != "1")
    await visit.call(objects.MOVE_OBJECT, name, branch, dest_path=target, body=body)
    notice = f"Moved it to {target}. It is not committed yet."
    return visit.go("repositories", name, "object", ref=branch, path=target, notice=notice)


async def choose_ref(visit: Visit, name: str) -> tuple[str, dict[str, object]]:
    """Return the ref of the address, or the default branch, with the values for the ref picker and the frame."""
    ref = visit.query("ref")
    if not ref:
        ref = (await visit.call(repositories.GET_REPOSITORY, name)).default_branch
    is_branch = await is_branch_of(visit, name, ref)
    branches = await visit.look(history.LIST_BRANCHES, name, amount=REFS)
    tags = await visit.look(history.LIST_TAGS, name, amount=REFS)
    every = [each for listing in (branches, tags) if listing is not None for each in listing.results]
    heads: dict[str, list[str]] = {}
    for each in every:
        heads.setdefault(each.commit_id, []).append(each.id)
    return ref, {"is_branch": is_branch, "refs": [each.id for each in every], "heads": heads}


async def is_branch_of(visit: Visit, name: str, ref: str) -> bool:
    try:
        return await visit.look(history.GET_BRANCH, name, ref) is not None
    except NotFound:
        return False


@page_at("/repositories/{repository}/import")
async def show_import(visit: Visit, name: str) -> Response:
    """Show the form, or how far an import is."""
    ref = visit.query("ref", "main")
    await visit.call(history.GET_BRANCH, name, ref)
    status, id_ = None, visit.query("id")
    if id_:
        status = await visit.call(objects.IMPORT_STATUS, name, ref, id=id_)
    return visit.render("import", name=name, ref=ref, id=id_, status=status)


@show_import.form()
async def start_import(visit: Visit, name: str) -> Response:
    source, ref = visit.entry("source").strip(), visit.query("ref")
    folder = source if source.endswith("/") else f"{source}/"
    kind, path = ("object", source) if visit.entry("kind") == "object" else ("common_prefix", folder)
    body = wire.ImportCreation(
        paths=[wire.ImportLocation(type=kind, path=path, destination=visit.entry("to"))],
        commit=wire.CommitCreation(message=visit.entry("message") or f"Import {source}"),
    )
    begun = await visit.call(objects.IMPORT_START, name, ref, body=body)
    return visit.go("repositories", name, "import", ref=ref, id=begun.id)


@show_import.form("/cancel")
async def cancel_import(visit: Visit, name: str) -> Response:
    ref, id_ = visit.query("ref"), visit.query("id")
    await visit.call(objects.IMPORT_CANCEL, name, ref, id=id_)
    return visit.go("repositories", name, "import", ref=ref, id=id_, notice="The import was asked to stop.")


def parents_of(folder: str) -> Sequence[tuple[str, str]]:
    """Return name and path of each parent folder."""
    names = folder.split("/")[:-1]
    return [(each, "/".join(names[: index + 1]) + "/") for index, each in enumerate(names)]


@page_at("/repositories/{repository}/tables")
async def show_tables(visit: Visit, name: str) -> Response:
    ref, choices = await choose_ref(visit, name)
    namespace = visit.query("namespace").replace(".", "/").strip("/")
    found = await visit.call(
        tables.LIST_ALL_TABLES, name, ref, namespace=namespace, after=visit.query("after"), amount=ROWS
    )
    return visit.render("tables", name=name, ref=ref, namespace=namespace, found=found, **choices)


@page_at("/repositories/{repository}/table")
async def show_table(visit: Visit, name: str) -> Response:
    ref, choices = await choose_ref(visit, name)
    path = visit.query("table")
    table = await visit.call(tables.STAT_TABLE, name, ref, table=path)
    versions = await visit.look(
        tables.LIST_TABLE_VERSIONS, name, ref, table=path, after=visit.query("after"), amount=VERSIONS
    )
    return visit.render("table", name=name, ref=ref, path=path, table=table, versions=versions, **choices)
