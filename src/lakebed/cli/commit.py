"""`lakebed commit`: make what is uncommitted on a branch part of its history."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer

from .arguments import BranchArgument, MessageOption, MetaOption, parse_meta
from .failures import Misuse
from .session import Session, command
from .tree import noun
from .uris import parse_ref

app = noun("Commit what is uncommitted on a branch.")


@app.command()
@command
def commit(
    session: Session,
    uri: BranchArgument,
    message: MessageOption,
    meta: MetaOption = None,
    date: Annotated[
        str, typer.Option("--date", help="The commit's date instead of now: Unix seconds or ISO 8601.")
    ] = "",
    allow_empty: Annotated[bool, typer.Option("--allow-empty", help="Commit even if nothing changed.")] = False,
) -> None:
    """Commit what is uncommitted on a branch."""
    branch = parse_ref(uri)
    made = session.client.history.commit(
        branch.repository,
        branch.ref,
        message,
        metadata=parse_meta(meta),
        date_s=parse_date(date) if date else None,
        allow_empty=allow_empty,
    )
    session.show(made, lambda _: f"{made.id[:12]} on {branch}: {made.message}")


def parse_date(text: str) -> int:
    """Unix seconds of `1767225600`, `2026-01-01` or `2026-01-01T12:00:00+02:00`; UTC where no offset is given.

    Raises:
        Misuse: none of these.
    """
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        date = datetime.fromisoformat(text)
    except ValueError as error:
        raise Misuse(f"{text!r} is neither Unix seconds nor an ISO 8601 date") from error
    return int((date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp())
