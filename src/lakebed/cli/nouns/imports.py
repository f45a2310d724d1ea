"""`lakebed import`: commit objects that lie elsewhere in the object store, without copying them."""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from lakebed.base import OUTCOME_UNKNOWN, Conflict, OutcomeUnknown, count_of
from lakebed.cli.kit.arguments import MessageOption, MetaOption, parse_meta
from lakebed.cli.kit.completion import complete_object
from lakebed.cli.kit.failures import Failed, Misuse
from lakebed.cli.kit.output import printable
from lakebed.cli.kit.parameters import Argument, Option
from lakebed.cli.kit.progress import Line
from lakebed.cli.kit.session import Session
from lakebed.cli.kit.tree import noun
from lakebed.cli.kit.uris import ObjectUri, parse_prefix
from lakebed.wire import ImportLocation, ImportStatus

if TYPE_CHECKING:
    from collections.abc import Callable

app = noun("Commit objects that lie elsewhere in the object store, without copying them.")

LOOK_S = 0.5


@app.command()
def import_(
    session: Session,
    source: Annotated[
        str,
        Argument(
            metavar="SOURCE",
            help="A folder of the object store: s3://bucket/folder, local://folder",
            example="s3://bucket/logs",
        ),
    ],
    destination: Annotated[
        str,
        Argument(
            metavar="TARGET",
            help="lakefs://repository/branch/folder",
            example="lakefs://lake/main/logs",
            complete=complete_object,
        ),
    ],
    is_object: Annotated[bool, Option("--object", help="SOURCE is one object, and TARGET its path.")] = False,
    is_prefix: Annotated[
        bool, Option("--prefix", help="SOURCE is the beginning of addresses. Paths begin behind its last slash.")
    ] = False,
    message: MessageOption = "",
    meta: MetaOption = None,
) -> None:
    """Commit a folder, or one object, that lies elsewhere in the object store. No bytes are copied.

    Objects of TARGET with the same paths are replaced. Those that an earlier import brought, and SOURCE no longer has,
    go. All others stay. Ctrl-C cancels the import: nothing changes.
    """
    if is_object and is_prefix:
        raise Misuse("--object and --prefix: SOURCE is one of the two")
    if "://" not in source:
        upload = (
            f"lakebed object upload{' -r' * Path(source).is_dir()} {shlex.quote(source)} {shlex.quote(destination)}"
        )
        here = f" A {'folder' if Path(source).is_dir() else 'file'} of this machine comes by `{upload}`"
        raise Misuse(
            f"{source!r} is no address of an object store, such as s3://bucket/folder or local://folder."
            + here * Path(source).exists()
        )
    target = parse_prefix(destination)
    if is_object and not target.path:
        raise Misuse(f"{destination}: the path is missing (lakefs://repository/branch/path)")
    path = source if is_object or is_prefix or source.endswith("/") else f"{source}/"
    location = ImportLocation(type="object" if is_object else "common_prefix", path=path, destination=target.path)
    history = session.client.history
    head = session.client.branches.get(target.repository, target.ref).commit_id
    begun = history.start_import(
        target.repository,
        target.ref,
        [location],
        message or f"Import {source}",
        metadata=parse_meta(meta),
    )
    try:
        status = _wait(session, lambda: history.import_status(target.repository, target.ref, begun))
    except KeyboardInterrupt:
        _cancel(session, target, begun)
        raise
    commit = status.commit
    if commit is None:
        reason = status.error.message if status.error else "it ended without a commit"
        if reason.startswith(OUTCOME_UNKNOWN):
            raise OutcomeUnknown(f"{destination}: {reason}", id=begun)
        raise Failed(f"{destination}: {reason}. The branch is as it was", id=begun)
    count = count_of(status.ingested_objects, "object")
    if commit.id == head:
        session.done(f"nothing to import: {target} has all of {count} in commit {head[:12]}", status)
    else:
        session.done(f"imported {count} into {target}: commit {commit.id[:12]}", status)
    if status.left_out_objects:
        for address in status.left_out:
            session.note(f"left out: {printable(address)}")
        count = count_of(status.left_out_objects, "object")
        raise Failed(
            f"{count} of {source} cannot be imported, for their names are no keys: rename them there", id=begun
        )


def _wait(session: Session, look: Callable[[], ImportStatus]) -> ImportStatus:
    line = Line(visible=session.shows_progress)
    try:
        while True:
            status = look()
            if status.completed or status.error is not None:
                return status
            line.update(lambda: f"importing: {status.ingested_objects:,} objects")  # noqa: B023  # called before the next round
            time.sleep(LOOK_S)
    finally:
        line.erase()


def _cancel(session: Session, target: ObjectUri, import_id: str) -> None:
    try:
        session.client.history.cancel_import(target.repository, target.ref, import_id)
    except Conflict:
        session.stopped("stopped: the import had ended before it could be cancelled")
    else:
        session.stopped("stopped: the import was cancelled, and the branch is as it was")
