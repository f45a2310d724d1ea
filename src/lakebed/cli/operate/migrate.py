"""`lakebed migrate`: bring repositories over from another server of the contract (docs/guide/migrating.md)."""

from __future__ import annotations

import asyncio
import getpass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from lakebed.base import LakebedError, NotFound, count_of, human_size
from lakebed.cli.kit.failures import Failed, Misuse, describe
from lakebed.cli.kit.output import called
from lakebed.cli.kit.parameters import Argument, Option
from lakebed.cli.kit.session import Session
from lakebed.cli.kit.tree import noun

from .kv import MetadataUri

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lakebed.migration import AccountsMigrated, Migrated, Migration

app = noun("Bring repositories over from another server, without copying data.")

PLACE = "{repository}"


@app.command()
def migrate(
    session: Session,
    repositories: Annotated[list[str] | None, Argument(metavar="REPOSITORY", help="Default: all of them.")] = None,
    *,
    data: Annotated[Path, Option("--data", metavar="DIR", help="The data folder of the new server.")],
    namespaces: Annotated[
        str | None,
        Option(
            "--namespaces",
            metavar="URI",
            help=f"Where the new repositories keep their files: s3://bucket/lakebed/{PLACE}. Not below the old ones.",
        ),
    ] = None,
    in_place: Annotated[
        bool,
        Option("--in-place", help="Instead of --namespaces: each takes the old namespace over, to adopt it later."),
    ] = False,
    adopt: Annotated[
        bool,
        Option(
            "--adopt",
            help="Adopt repositories that came over in place, with the old server stopped. Plans count its objects.",
        ),
    ] = False,
    undo: Annotated[
        bool, Option("--undo", help="With --adopt: go back, so that the old server can start again.")
    ] = False,
    final: Annotated[
        bool, Option("--final", help="With --adopt: collections may delete its objects. There is no way back.")
    ] = False,
    yes: Annotated[bool, Option("--yes", help="With --final: do not ask.")] = False,
    objects: Annotated[
        str,
        Option(
            "--objects",
            metavar="OLD-ROOT",
            help="The absolute folder that is the root of the old server's local store.",
        ),
    ] = "",
    accounts: Annotated[
        bool, Option("--accounts", help="Bring users, groups and policies over, too, without passwords and keys.")
    ] = False,
    kv: MetadataUri = None,
    dry_run: Annotated[
        bool, Option("--dry-run", help="Check everything and name all that stays behind. Makes the data folder.")
    ] = False,
) -> None:
    """Bring repositories over from the configured server: commits, branches, tags and entries, no bytes.

    The configured server is the old one: --profile, or lakectl's settings. Objects stay where they are,
    so stop the old server's collections. Run it again to go on after an error, or to bring over new commits.
    """
    if adopt:
        if namespaces or in_place or accounts or objects or (undo and final) or not repositories:
            raise Misuse("--adopt takes repositories by name, --data, --kv, --dry-run, and --undo or --final")
        _adopt(session, repositories, data, kv, undo=undo, final=final, dry_run=dry_run, yes=yes)
        return
    if undo or final:
        raise Misuse("--undo and --final are steps of an adoption: add --adopt")
    if (namespaces is None) is not in_place:
        raise Misuse("choose --namespaces URI, or --in-place to adopt the old namespaces later; or --adopt")
    if objects and not objects.startswith("/"):
        raise Misuse(f"--objects {objects} is not absolute: the old server names its folders from the root of its disk")
    if namespaces is not None and PLACE not in namespaces:
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
        source: namespaces and namespaces.replace(PLACE, source.name)
        for source in find_sources(session.client, repositories or [])
    }
    session.when_stopped = lambda: (
        "stopped: no repository was written; run the same command again"
        if dry_run
        else "stopped: the commits that came over stay; run the same command again, and it goes on with the next one"
    )
    say = session.note if session.shows_progress else lambda _: None

    seen = SourceAccounts(session.client) if accounts else None
    failed: list[str] = []

    async def run() -> list[Migrated | Migration | AccountsMigrated]:
        one = plan_repository if dry_run else migrate_repository
        found: list[Migrated | Migration | AccountsMigrated] = []
        async with opened(options) as state:
            for source, namespace in sources.items():
                try:
                    found.append(await one(state.catalog, source, namespace, old_root=objects, say=say))
                except LakebedError as error:
                    if len(sources) == 1:
                        raise
                    # An error of one repository does not stop the others.
                    session.warn(f"{source.name}: {describe(error)}")
                    failed.append(source.name)
            if seen is not None:
                here = AccountsHere(accounts=state.accounts, groups=state.groups, policies=state.policies)
                found.append(await bring_accounts(seen, here, dry_run=dry_run))
        return found

    session.show_all(asyncio.run(run()), lambda found: _lines(found, "would come over" if dry_run else ""))
    if failed:
        verb, total = "would" if dry_run else "did", count_of(len(sources), "repository", "repositories")
        raise Failed(
            f"{len(failed)} of {total} {verb} not come over: {', '.join(failed)}."
            f" A line for each says why{'' if dry_run else '; run the same command again, and it goes on'}",
            repositories=failed,
        )


def _adopt(
    session: Session,
    repositories: list[str],
    data: Path,
    kv: str | None,
    *,
    undo: bool,
    final: bool,
    dry_run: bool,
    yes: bool,
) -> None:
    from lakebed.migration import Adopted, Step, adopt, answers
    from lakebed.server import opened, options_of, prepare_folder

    options = options_of(session.data_folder(data), {**session.environment, "LAKEBED_ACTIONS": "0"}, kv)
    prepare_folder(options.data_dir)
    wanted = Step.UNDO if undo else Step.FINISH if final else Step.ADOPT

    async def run(step: Step) -> list[Adopted]:
        async with opened(options) as state:
            try:
                return [await adopt(state.catalog, name, step, answers=answers, by=user) for name in repositories]
            except NotFound as error:
                name = error.facts.get("repository", "")
                raise NotFound(
                    f"{name}: no such repository in {data}. First bring it over there, with --in-place", **error.facts
                ) from error

    user = getpass.getuser()
    if final and not dry_run:
        session.confirm(
            f"Let collections delete what the old server wrote in {', '.join(repositories)}?"
            " It must be gone for good, and there is no way back.",
            yes=yes,
        )
    names = " ".join(repositories)
    session.when_stopped = lambda: (
        "stopped: nothing was changed; run the same command again"
        if dry_run
        else f"stopped: some may have their new state. `{called()} migrate {names} --data {data} --adopt --dry-run`"
        " shows it; run the same command again for the rest"
    )
    session.show_table(
        asyncio.run(run(Step.LOOK if dry_run else wanted)),
        {
            "REPOSITORY": lambda one: one.repository,
            "STATE": lambda one: one.state,
            "OBJECTS": lambda one: f"{one.objects:,}",
            "SIZE": lambda one: human_size(one.size_bytes),
            "NAMED": lambda one: f"{one.named:,}",
            "MISSING": lambda one: f"{one.missing:,}",
            "UNNAMED": lambda one: f"{one.unnamed:,}",
        },
    )


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
