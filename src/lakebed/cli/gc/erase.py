"""`lakebed erase`: objects go for good, from every commit and branch, whatever rules, tags and windows say.

`plan` shows what goes and deletes nothing; `apply` is that of `lakebed gc`. Legal holds are respected.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lakebed.cli.arguments import RepositoryArgument
from lakebed.cli.failures import Misuse, describe
from lakebed.cli.session import Session, command
from lakebed.cli.tree import noun

from . import apply
from .options import Working, asked
from .session import RootOption, checked_collector, with_spark
from .text import plan_texts

if TYPE_CHECKING:
    # At run time only in the commands: these load Arrow, for which `--help` need not wait.
    from lakebed.gc.rules import Selection

app = noun("Erase objects for good, from every commit and branch.")
app.command("apply")(apply)

PathsArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="[PATH]...", help="Paths. One with * is a glob, one that ends with / is all below."),
]


@app.command("plan")
@command
def plan(
    session: Session,
    uri: RepositoryArgument,
    working: Working,
    why: Annotated[str, typer.Option("--why", help="The reason, such as a request's number. The plan keeps it.")],
    paths: PathsArgument = None,
    file: Annotated[
        Path | None, typer.Option("--from", metavar="FILE", help="Paths, one a line, taken as they are.")
    ] = None,
    digests: Annotated[list[str] | None, typer.Option("--digest", help="A checksum. Repeatable.")] = None,
    metadata: Annotated[
        list[str] | None, typer.Option("--metadata", metavar="KEY=VALUE", help="Only entries with this. Repeatable.")
    ] = None,
    shared: Annotated[
        bool, typer.Option("--shared", help="Also objects that other entries name: these then read as erased.")
    ] = False,
    local_root: RootOption = None,
) -> None:
    """Find every object that these entries ever named, and write down what goes. Deletes nothing."""
    from lakebed.gc.protocol import ErasureOrder

    request: Any = asked("plan", working, kinds=[])
    order = ErasureOrder(
        selection=_selection(paths or [], file, digests or [], metadata or []), why=why, takes_shared=shared
    )
    collector = checked_collector(session, uri, local_root)
    with with_spark(session, collector) as collector:
        session.show_all([collector.plan_erasure(order, engine=request.engine)], plan_texts)


def _selection(paths: list[str], file: Path | None, digests: list[str], metadata: list[str]) -> Selection:
    from lakebed.gc.rules import Selection, check_selection

    named = [path for path in paths if "*" not in path and not path.endswith("/")]
    try:
        listed = [] if file is None else [line for line in file.read_text().splitlines() if line]
    except OSError as error:
        raise Misuse(describe(error)) from error
    except UnicodeDecodeError as error:
        raise Misuse(f"{file} is no text: {error}") from error
    pairs = [text.partition("=") for text in metadata]
    if wrong := next((text for text, (key, sign, _) in zip(metadata, pairs, strict=True) if not (key and sign)), None):
        raise Misuse(f"{wrong!r} is not KEY=VALUE")
    return check_selection(
        Selection(
            paths=(*named, *listed),
            globs=tuple(path for path in paths if path not in named),
            digests=tuple(digests),
            metadata={key: value for key, _, value in pairs},
        )
    )
