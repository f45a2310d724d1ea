"""`lakebed migrate`: bring repositories over from another server of the contract (docs/guide/migrating.md)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from lakebed.base import count_of

from .failures import Misuse
from .kv import MetadataUri
from .parameters import Argument, Option
from .session import Session, command
from .tree import noun

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lakebed.migration import Migrated, Migration

app = noun("Bring repositories over from another server, without copying data.")

PLACE = "{repository}"


@app.command()
@command
def migrate(
    session: Session,
    repositories: Annotated[list[str] | None, Argument(metavar="REPOSITORY", help="Default: all of them.")] = None,
    *,
    data: Annotated[Path, Option("--data", metavar="DIR", help="The data folder of the new server.")],
    namespaces: Annotated[
        str,
        Option(
            "--namespaces",
            metavar="URI",
            help=f"Where the new repositories keep their files: s3://bucket/lakebed/{PLACE}. Not below the old ones.",
        ),
    ],
    kv: MetadataUri = None,
    dry_run: Annotated[bool, Option("--dry-run", help="Count what would come over. Makes the data folder.")] = False,
) -> None:
    """Bring repositories over from the configured server: commits, branches, tags and entries, no bytes.

    The configured server is the old one: --profile, or lakectl's settings. Objects stay where they are,
    so stop the old server's collections. Run it again to go on after an error, or to bring over what is new.
    """
    if PLACE not in namespaces:
        raise Misuse(f"--namespaces has no {PLACE} in it: each repository needs a namespace of its own")
    # An exception to the import map: at the folder, the command line is a composition root of the server, too.
    from lakebed.migration import find_sources, migrate_repository, plan_repository
    from lakebed.server import opened, options_of, prepare_folder

    # The hooks of the old server ran when these commits were made.
    options = options_of(data.absolute(), {**session.environment, "LAKEBED_ACTIONS": "0"}, kv)
    prepare_folder(options.data_dir)
    sources = {
        source: namespaces.replace(PLACE, source.name) for source in find_sources(session.client, repositories or [])
    }
    say = session.note if session.shows_progress else lambda _: None

    async def plan() -> list[Migration]:
        async with opened(options) as state:
            return [await plan_repository(state.catalog, source, namespace) for source, namespace in sources.items()]

    async def bring() -> list[Migrated]:
        async with opened(options) as state:
            return [
                await migrate_repository(state.catalog, source, namespace, say) for source, namespace in sources.items()
            ]

    if dry_run:
        session.show_table(
            asyncio.run(plan()),
            {
                "REPOSITORY": lambda one: one.repository,
                "COMMITS": lambda one: f"{one.commits:,}",
                "HERE": lambda one: f"{one.commits_before:,}",
                "BRANCHES": lambda one: one.branches,
                "TAGS": lambda one: one.tags,
                "UNCOMMITTED ON": lambda one: ", ".join(one.dirty) or "-",
            },
        )
    else:
        session.show_all(asyncio.run(bring()), _lines)


def _lines(found: Iterable[Migrated]) -> list[str]:
    lines = []
    for one in found:
        new = count_of(one.commits, "commit") if one.commits or not one.commits_before else "nothing new"
        refs = f"{count_of(one.branches, 'branch', 'branches')}, {count_of(one.tags, 'tag')}"
        entries = count_of(one.entries, "entry", "entries")
        lines.append(f"{one.repository}: {new}, {refs}; {entries} compared, equal")
        lines += [f"  {name}: changed here since, left as it is" for name in one.left]
        lines += [f"  {name}: uncommitted changes stay on the old server" for name in one.dirty]
    return lines
