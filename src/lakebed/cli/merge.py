"""`lakebed merge`: bring the changes of one ref into a branch."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from lakebed.wire import MergeResult

from .arguments import BranchArgument, MetaOption, RefArgument, parse_meta
from .branch import same_repository
from .session import Session, command
from .tree import noun
from .uris import parse_ref

app = noun("Merge one ref into a branch.")


class StrategyName(StrEnum):
    """Who wins where both sides changed a path."""

    SOURCE_WINS = "source-wins"
    DEST_WINS = "dest-wins"


@app.command()
@command
def merge(
    session: Session,
    source: RefArgument,
    destination: BranchArgument,
    message: Annotated[str, typer.Option("--message", "-m", help="What the commit says.")] = "",
    meta: MetaOption = None,
    strategy: Annotated[
        StrategyName | None, typer.Option("--strategy", "-s", help="Who wins where both changed a path.")
    ] = None,
    squash: Annotated[bool, typer.Option("--squash", help="One commit, without the source's history.")] = False,
    allow_empty: Annotated[bool, typer.Option("--allow-empty", help="Commit even if nothing changed.")] = False,
) -> None:
    """Bring what a ref changed into a branch. Conflicts end it, and change nothing, unless a strategy decides them."""
    left, right = parse_ref(source), parse_ref(destination)
    reference = session.client.history.merge(
        same_repository(left, right),
        left.ref,
        right.ref,
        message=message,
        metadata=parse_meta(meta),
        strategy=strategy.value if strategy else None,
        squash=squash,
        allow_empty=allow_empty,
    )
    session.show(MergeResult(reference=reference), lambda _: f"merged {left} into {right}: {reference[:12]}")
