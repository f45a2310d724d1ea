"""Worlds of uploads in parts: beside cleaners, commits, resets, fences, runs, and other requests of the same upload.

The upload's record goes first, its parts after it, and these are given up once the object is there. So no cleaner and
no run takes what an upload still needs, and when all is quiet nothing of it is left.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any, Final

from explorer.actors import Actor, Ending, Violation
from explorer.operations import Operation
from lakebed.base import OutcomeUnknown, RepositoryId, Unavailable
from lakebed.catalog import BranchQueue, Multipart, Namespaces, PartMissing, Repository, Settings
from lakebed.catalog.records import RepositoryRecord, RepositoryState
from lakebed.catalog.repository import Open
from lakebed.objectstore import ObjectStore
from lakebed.quotas import Meter
from lakebed.versions import (
    ANY,
    Condition,
    MultipartNotFound,
    MultipartRecord,
    PathExists,
    UploadRecord,
    UploadRefused,
    UploadState,
    Versions,
    decode_record,
    keys,
)
from lakebed.versions.staging.parts import AGE_MS_MAX
from sim.checkers.views import PARTITION, UID, View
from sim.ports.ports import SimPorts, set_ahead
from sim.ports.scene import Quick, Scene
from sim.scenes import deeds as do
from sim.scenes.collecting import FENCING
from sim.scenes.doing import MAIN, SIDE, Do, doing, put_bytes, versions
from sim.scenes.scenes import client, scene

NAME: Final = RepositoryId("lake")
TYPE: Final = "x/y"
SAME: Final = hashlib.md5(b"b0.1b0.2", usedforsecurity=False).hexdigest()
"""Of the bytes that `begin("b0")` puts."""
_BY_ID: Final = "by id"
"""How statistics and checks tell requests of an upload that others may end."""


def handle_of(repo: Versions) -> Repository:
    """Return what a server has of the repository of a scene."""
    record = RepositoryRecord(
        uid=UID,
        marker=UID,
        state=RepositoryState.ACTIVE,
        storage_namespace=repo.objectstore.uri,
        namespace_uri=repo.objectstore.uri,
        default_branch=MAIN,
        created_ms=0,
    )
    opened = Open(
        versions=repo,
        objectstore=repo.objectstore,
        settings=Settings(UID, repo.store, repo.ports),
        queue=BranchQueue(repo.ports, wait_s_max=60.0),
        store=repo.store,
        meter=Meter(repo.store, repo.ports),
    )

    def open_namespace(_: str) -> ObjectStore:
        return repo.objectstore

    return Repository(NAME, record, opened, Namespaces(open_namespace), repo.ports)


async def _begin(uploads: Multipart, name: str, key: str, branch: str, count: int = 2) -> str:
    upload_id = await uploads.begin(branch, key, content_type=TYPE, metadata={})
    for number in range(1, count + 1):
        await _put_part(uploads, upload_id, number, f"{name}.{number}")
    return upload_id


async def _put_part(uploads: Multipart, upload_id: str, number: int, text: str) -> None:
    await uploads.put_part(upload_id, number, text.encode(), size_bytes=None, checksums={})


async def _complete(repo: Versions, uploads: Multipart, upload_id: str, value: str, condition: Condition = ANY) -> None:
    parts = [part for _, part in await repo.parts.every(upload_id)]
    if len(parts) == 1:
        await uploads.link_only_part(
            upload_id, parts[0], md5=parts[0].md5, checksum=value, metadata={}, condition=condition
        )
        return
    size_bytes = sum(part.size_bytes for part in parts)
    body = uploads.stream(parts)
    await uploads.complete(upload_id, body, size_bytes=size_bytes, checksum=value, metadata={}, condition=condition)


def send(name: str, key: str, *, branch: str = MAIN) -> Do:
    """Upload in two parts, from the first request to the last."""

    async def act(repo: Versions) -> None:
        uploads = handle_of(repo).multipart
        await _complete(repo, uploads, await _begin(uploads, name, key, branch), name)

    return Do(Operation(name, "write", branch, key.encode(), name), act)


def begin(name: str, key: str, *, branch: str = MAIN, count: int = 2) -> Do:
    """Do all but the last request."""
    beginning = Operation(name, "issue", branch, key.encode())
    return Do(beginning, lambda repo: _begin(handle_of(repo).multipart, name, key, branch, count))


async def _begun(repo: Versions) -> str:
    """Return the id of the upload that was begun. Its clients know it; here they look it up."""
    async for upload_id, _ in repo.parts.begun():
        return upload_id
    raise MultipartNotFound("aborted")


def put_part(name: str, number: int) -> Do:
    """Put one more part of the upload that was begun, or another one in place of its part of this number."""

    async def act(repo: Versions) -> None:
        await _put_part(handle_of(repo).multipart, await _begun(repo), number, name)

    return Do(Operation(name, "part"), act)


def complete(name: str, key: str, value: str, *, branch: str = MAIN, condition: Condition = ANY) -> Do:
    """Complete the upload that was begun."""

    async def act(repo: Versions) -> None:
        await _complete(repo, handle_of(repo).multipart, await _begun(repo), value, condition)

    return Do(Operation(name, "write", branch, key.encode(), value, _BY_ID), act)


def create_same(name: str, key: str) -> Do:
    """Upload at once what `begin("b0")` puts in parts, if nothing is there."""
    how: dict[str, Any] = {"condition": Condition(if_none_match=True), "content_type": TYPE}
    path = key.encode()
    creating = Operation(name, "write", MAIN, path, SAME)
    return Do(creating, lambda repo: put_bytes(repo, MAIN, path, b"b0.1b0.2", SAME, **how))


@doing("abort")
async def abort(repo: Versions) -> None:
    """Abort the upload that was begun."""
    await handle_of(repo).multipart.abort(await _begun(repo))


@doing("clean")
async def clean_parts(repo: Versions, *, late_ms: int = 0) -> None:
    set_ahead(repo.ports, late_ms)
    await repo.parts.clean()


def uploads_are_not_lost(ending: Ending) -> None:
    """Check that an upload that no client aborts, to a branch that stays, is never told that it or a part is gone."""
    for record in ending.of("write"):
        lost = record.error in {MultipartNotFound, PartMissing}
        if lost and record.operation.what != _BY_ID and not ending.of("delete_branch"):
            raise Violation(f"{record.operation.name} lost its upload, or a part of it")


def an_upload_sets_its_path_once(ending: Ending) -> None:
    """Check that of the objects that the completions of one upload made, one was linked at most."""
    records = ending.disk.cells.get(PARTITION, {}).items()
    uploads = [decode_record(UploadRecord, value) for key, value in records if key.startswith(keys.UPLOAD)]
    if sum(upload.state is UploadState.LINKED for upload in uploads) > 1:
        raise Violation("an upload set its path twice")


def refused_completions_set_nothing(ending: Ending) -> None:
    """Check that a path shows no object of a completion that was told for good that there is none.

    An object of equal content may be another writer's.
    """
    refusals = {MultipartNotFound, UploadRefused, PathExists, PartMissing}
    view = View(ending.disk)
    shown = {name: view.visible(branch) for name, branch in view.branches().items()}
    writes = [record.operation for record in ending.of("write")]
    for record in ending.of("write"):
        asked = record.operation
        if asked.what != _BY_ID or any(one.value == asked.value and one.what != _BY_ID for one in writes):
            continue
        if record.error in refusals and asked.value == shown.get(asked.branch, {}).get(asked.key):
            raise Violation(f"{asked.name} was refused, and its object is at {asked.key!r}")


def aborts_leave_nothing(ending: Ending) -> None:
    """Check that an upload that was aborted was not completed. If all its requests have their answers, it keeps no part
    and no address: so no cleaner need come, and a collection may take the bytes.
    """
    if ending.acknowledged("abort"):
        view = View(ending.disk)
        shown = {name: view.visible(branch) for name, branch in view.branches().items()}
        for record in ending.of("write"):
            asked = record.operation
            if asked.what == _BY_ID and asked.value == shown.get(asked.branch, {}).get(asked.key):
                raise Violation(f"an upload was aborted, and the object of {asked.name} is at {asked.key!r}")
    unclear = (OutcomeUnknown, Unavailable)
    records = ending.records.values()
    if ending.crashed or any(one.ended is None or (one.ended.error or Violation) in unclear for one in records):
        return
    if ending.acknowledged("abort"):
        stored = ending.disk.cells.get(PARTITION, {}).items()
        # The record of a completion that came last stays, so that it may be sent again.
        kept = [key for key, value in stored if key.startswith(keys.MULTIPART)]
        begun = {key for key in kept if not decode_record(MultipartRecord, ending.disk.cells[PARTITION][key]).etag}
        if left := sorted({key for key, _ in stored if key.startswith(keys.PART)} | begun):
            raise Violation(f"an upload was aborted, and {left} stay")
        uploads = [decode_record(UploadRecord, value) for key, value in stored if key.startswith(keys.UPLOAD)]
        if any(upload.state is UploadState.ISSUED for upload in uploads):
            raise Violation("an upload was aborted, and an address of it can still be linked")


def no_upload_is_left(ending: Ending) -> None:
    """Check that cleaners leave no record of an upload, nor of a part."""
    records = ending.disk.cells.get(PARTITION, {})
    if left := [key for key in records if key.startswith((keys.MULTIPART, keys.PART))]:
        raise Violation(f"records of uploads in parts stay: {sorted(left)}")


def multipart_scenes() -> Iterator[Scene]:
    u, k = client("u", send("w2", "a")), client("k", clean_parts("k1"))
    yield _scene("uploader in parts, cleaner of parts", u, k, quick=Quick.NO_LOSS)
    c, w = client("c", do.commit("c1")), client("w", do.write("w3", "a", "3"))
    staged = [do.write("w1", "a", "1")]
    yield _scene("uploader in parts, committer, cleaner of parts", u, c, k, staged=staged, quick=Quick.NEVER)
    yield _scene("uploader in parts, writer, committer", u, w, c, staged=staged, quick=Quick.NEVER)
    yield _scene("uploader in parts, resetter", u, client("s", do.reset("s1"), do.commit("c1")), staged=staged)
    again = client("u", send("w2", "a"), again=[clean_parts("k2"), send("w4", "a")])
    yield _scene("uploader in parts that comes back, cleaner of parts", again, k, quick=Quick.NO_FAULT)
    r, late = client("r", do.uncommitted_run("r1")), client("r", do.uncommitted_run("r1", options=FENCING))
    yield _scene("uploader in parts, run", u, r)
    yield _scene("uploader in parts, cleaner of parts, run that fences", u, k, late)
    deletes = client("u", send("w2", "a"), do.delete("d2", "a"))
    yield _scene("uploader in parts that deletes, committer, run", deletes, c, r)
    # Several requests of one upload.
    begun = [begin("b0", "a")]
    one, two = client("v", complete("w2", "a", "2")), client("w", complete("w3", "a", "2"))
    both = _scene("two completions of an upload", one, two, before=begun, quick=Quick.NO_FAULT)
    yield both.also(an_upload_sets_its_path_once)
    a = client("x", abort("x1"))
    yield _scene("completion of an upload, aborter", one, a, before=begun, quick=Quick.NO_LOSS)
    yield _scene("completion of an upload, aborter, run", one, a, r, before=begun)
    records = client("k", do.clean_records("k1"), clean_parts("k2"))
    yield _scene("completion of an upload, cleaner, run that fences", one, records, late, before=begun)
    old = client("k", clean_parts("k1", late_ms=AGE_MS_MAX))
    yield _scene("completion of an upload, impatient cleaner of parts", one, old, before=begun, clocks_agree=False)
    yield from _aborted()
    # The branch of the upload is deleted, and made again.
    side = [do.create_branch("b0")]
    x = client("x", do.delete_branch("x1"), do.create_branch("x2"))
    there = client("u", send("w2", "z", branch=SIDE))
    yield _scene("uploader in parts to a branch made again", there, x, before=side)


def _aborted() -> Iterator[Scene]:
    """Yield scenes in which an upload is aborted amid other requests of it."""
    a, r = client("x", abort("x1")), client("r", do.uncommitted_run("r1"))
    # The only part becomes the object: the abort gives up the very address that the completion links.
    single, double = [begin("b0", "a", count=1)], [begin("b0", "a")]
    link = client("v", complete("w2", "a", "2"))
    yield _scene("completion of an only part, aborter", link, a, before=single, quick=Quick.NO_LOSS)
    yield _scene("completion of an only part, aborter, run", link, a, r, before=single)
    reads = client("c", do.commit("c1"))
    yield _scene("completion of an only part, aborter, committer", link, a, reads, before=single)
    again = client("v", complete("w2", "a", "2"), again=[complete("w4", "a", "2")])
    yield _scene("completion of an only part that comes back, aborter", again, a, before=single)
    new = client("v", complete("w2", "a", "2", condition=Condition(if_none_match=True)))
    write_a = client("w", do.write("w3", "a", "3"))
    yield _scene("completion on a condition, writer, aborter", new, write_a, a, before=double)
    # A part comes, or takes the place of another.
    more, other = client("p", put_part("p1", 3)), client("p", put_part("p1", 1))
    yield _scene("uploader of a part, aborter", more, a, before=double, quick=Quick.NO_LOSS)
    yield _scene("uploader of a part again, aborter", other, a, before=double, quick=Quick.NO_LOSS)
    yield _scene("completion of an only part, uploader of it again, aborter", link, other, a, before=single)
    died = client("x", abort("x1"), again=[abort("x2")])
    yield _scene("completion of an upload, aborter that comes back", link, died, before=double, quick=Quick.NO_FAULT)
    two = client("y", abort("y1"))
    yield _scene("completion of an upload, twice aborted", link, a, two, before=double)


def _scene(name: str, *actors: Actor, quick: Quick = Quick.NEVER, **how: Any) -> Scene:
    # Of two completions one waits for the other, and gives up in the end.
    return with_parts(scene(name, *actors, quick=quick, **how)).also(is_lock_free="two" not in name)


async def _clean_old_parts(ports: SimPorts) -> None:
    ports.clock.ms += AGE_MS_MAX
    await versions(ports).parts.clean()


def with_parts(made: Scene) -> Scene:
    """Check a scene with uploads in parts, too. Those that are left are old at its end."""
    checks = (uploads_are_not_lost, refused_completions_set_nothing, aborts_leave_nothing)
    return made.tidied_by(first=_clean_old_parts).also(*checks, tidied=[no_upload_is_left])
