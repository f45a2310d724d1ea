"""`lakebed hard-delete`: delete replaced objects that no commit ever had at once, without a collection."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from lakebed.base import count_of, grace_seconds, human_size
from lakebed.cli.kit.arguments import RepositoryArgument
from lakebed.cli.kit.failures import Misuse
from lakebed.cli.kit.output import human_time, table
from lakebed.cli.kit.parameters import Option
from lakebed.cli.kit.session import Session
from lakebed.cli.kit.tree import noun
from lakebed.cli.kit.uris import parse_repository
from lakebed.wire import HardDeleted, HardDeletedList, HardDeleteStatus, SetHardDelete

from .options import hard_delete

app = noun("Delete replaced objects at once, without a collection.")


@app.command("on")
def on(
    session: Session,
    uri: RepositoryArgument,
    grace: Annotated[
        str | None, Option("--grace", help="How long readers have: 900 (seconds), 15m or 1h; `default`.")
    ] = None,
) -> None:
    """Delete objects that are replaced before any commit. All servers must be of this release.

    A pause stays until `resume`.
    """
    _change(session, uri, SetHardDelete(is_on=True, grace_s=_seconds(grace)))


@app.command("off")
def off(session: Session, uri: RepositoryArgument) -> None:
    """Leave replaced objects to collections from now on. Objects that wait already are still deleted."""
    _change(session, uri, SetHardDelete(is_on=False))


@app.command("pause")
def pause(session: Session, uri: RepositoryArgument) -> None:
    """Delete nothing until `resume`. Objects that are replaced meanwhile wait."""
    _change(session, uri, SetHardDelete(is_paused=True))


@app.command("resume")
def resume(session: Session, uri: RepositoryArgument) -> None:
    """Go on deleting."""
    _change(session, uri, SetHardDelete(is_paused=False))


@app.command("status")
def status(session: Session, uri: RepositoryArgument) -> None:
    """Show the setting, and how much waits."""
    session.show(session.client.do(hard_delete.GET_HARD_DELETE, parse_repository(uri)), _status_text)


@app.command("why")
def why(
    session: Session,
    uri: RepositoryArgument,
    path: Annotated[str, Option("--path", help="Objects that this path named.")] = "",
    address: Annotated[str, Option("--address", help="The object at this address: data/SLICE/NUMBER.")] = "",
) -> None:
    """Show which objects wait or were deleted, when, and which change removed their last name."""
    if bool(path) == bool(address):
        raise Misuse("give either --path or --address")
    query = {"path": path or None, "address": address or None}
    found = session.client.do(hard_delete.WHY_HARD_DELETED, parse_repository(uri), query=query)
    session.show(found, partial(_why_text, given="path" if path else "address"))


def _change(session: Session, uri: str, body: SetHardDelete) -> None:
    session.show(session.client.do(hard_delete.SET_HARD_DELETE, parse_repository(uri), body=body), _status_text)


def _seconds(grace: str | None) -> int | None:
    return None if grace is None else -1 if grace == "default" else grace_seconds(grace)


def _status_text(found: HardDeleteStatus) -> str:
    state = "on" if found.is_on else "off"
    lines = [f"hard delete is {state}{', and paused' if found.is_paused else ''}; readers have {found.grace_s} s"]
    if found.queued:
        more = "" if found.is_complete else "at least "
        oldest = human_time(found.oldest_ms // 1000)
        lines.append(
            f"waiting: {more}{count_of(found.queued, 'object')}, {human_size(found.queued_bytes)}, since {oldest}"
        )
        lines.append("let go by " + ", ".join(f"{by}: {count}" for by, count in sorted(found.by.items())))
    else:
        lines.append("nothing waits")
    lines += [f"failed: {count_of(count, 'object')}: {reason}" for reason, count in sorted(found.failed.items())]
    return "\n".join(lines)


def _why_text(found: HardDeletedList, *, given: str) -> str:
    """Write a table. `given`, path or address, is left out: it would be the same in each row."""
    if not found.results:
        return "no record of hard delete names it: see `lakebed gc why`"
    columns = {
        "what": [_fate(one, is_paused=found.is_paused) for one in found.results],
        "reason": [one.reason for one in found.results],
        "path": [one.path for one in found.results],
        "address": [one.address for one in found.results],
        "size": [human_size(one.size_bytes) for one in found.results],
        "error": [one.error for one in found.results],
    }
    shown = {name: cells for name, cells in columns.items() if name != given and any(cells)}
    return "\n".join(table(tuple(shown), zip(*shown.values(), strict=True)))


def _fate(one: HardDeleted, *, is_paused: bool) -> str:
    if one.deleted_ms:
        return f"deleted {human_time(one.deleted_ms // 1000)}"
    if is_paused:
        return "waits: hard delete is paused"
    return f"waits until {human_time(one.due_ms // 1000)}"
