"""`lakebed migrate`: bring repositories over from another server of the contract (docs/guide/migrating.md)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from lakebed.base import count_of
from lakebed.cli.kit.failures import Misuse
from lakebed.cli.kit.parameters import Argument, Option
from lakebed.cli.kit.session import Session, command
from lakebed.cli.kit.tree import noun

from .kv import MetadataUri

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lakebed.migration import AccountsMigrated, Migrated, Migration

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
    objects: Annotated[
        str,
        Option("--objects", metavar="OLD-ROOT", help="The folder that the old server's local store has as its root."),
    ] = "",
    accounts: Annotated[
        bool, Option("--accounts", help="Bring users, groups and policies over, too, without passwords and keys.")
    ] = False,
    kv: MetadataUri = None,
    dry_run: Annotated[
        bool, Option("--dry-run", help="Check everything and name what stays behind. Makes the data folder.")
    ] = False,
) -> None:
    """Bring repositories over from the configured server: commits, branches, tags and entries, no bytes.

    The configured server is the old one: --profile, or lakectl's settings. Objects stay where they are,
    so stop the old server's collections. Run it again to go on after an error, or to bring over what is new.
    """
    if PLACE not in namespaces:
        raise Misuse(f"--namespaces has no {PLACE} in it: each repository needs a namespace of its own")
    # An exception to the import map: at the folder, the command line is a composition root of the server, too.
    from lakebed.migration import (
        AccountsHere,
        SourceAccounts,
        bring_accounts,
        find_sources,
        migrate_repository,
        plan_repository,
    )
    from lakebed.server import opened, options_of, prepare_folder

    # The hooks of the old server ran when these commits were made.
    options = options_of(data.absolute(), {**session.environment, "LAKEBED_ACTIONS": "0"}, kv)
    prepare_folder(options.data_dir)
    sources = {
        source: namespaces.replace(PLACE, source.name) for source in find_sources(session.client, repositories or [])
    }
    say = session.note if session.shows_progress else lambda _: None

    seen = SourceAccounts(session.client) if accounts else None

    async def run() -> list[Migrated | Migration | AccountsMigrated]:
        one = plan_repository if dry_run else migrate_repository
        found: list[Migrated | Migration | AccountsMigrated] = []
        async with opened(options) as state:
            for source, namespace in sources.items():
                found.append(await one(state.catalog, source, namespace, old_root=objects, say=say))
            if seen is not None:
                here = AccountsHere(accounts=state.accounts, groups=state.groups, policies=state.policies)
                found.append(await bring_accounts(seen, here, dry_run=dry_run))
        return found

    session.show_all(asyncio.run(run()), lambda found: _lines(found, "would come over" if dry_run else ""))


def _lines(found: Iterable[Migrated | Migration | AccountsMigrated], planned: str) -> list[str]:
    from lakebed.migration import AccountsMigrated

    lines = []
    for one in found:
        if isinstance(one, AccountsMigrated):
            counts = [count_of(one.users, "user"), count_of(one.groups, "group")]
            lines.append(
                f"accounts: {', '.join(counts)}, {count_of(one.policies, 'policy', 'policies')} {planned}".rstrip()
            )
        else:
            lines.append(f"{one.repository}: {_counts(one)}")
            lines += [f"  {name}: changed here since, left as it is" for name in getattr(one, "left", [])]
        lines += [f"  {line}" for line in one.stays]
    return lines


def _counts(one: Migrated | Migration) -> str:
    new = count_of(one.commits, "commit") if one.commits or not one.commits_before else "nothing new"
    refs = f"{count_of(one.branches, 'branch', 'branches')}, {count_of(one.tags, 'tag')}"
    from lakebed.migration import Migrated

    if isinstance(one, Migrated):
        return f"{new}, {refs}; {count_of(one.entries, 'entry', 'entries')} compared, equal"
    return f"{new}, {refs}, {count_of(one.changes, 'change')} of entries checked; nothing was written"
