"""Write a source's commits into a repository here, one for one, then its branches and tags, then compare.

0. `plan_repository` makes the same checks, and writes nothing.
1. Make the repository, if it is new, over a namespace of its own.
2. Replay each commit on a hidden branch at its first parent. Hidden branches keep commits that have no branch yet. Each
   new commit has the id of its source commit in its metadata: a later call continues from these ids alone.
3. Move or make branches and tags. A branch that has commits or changes of its own here is kept unchanged.
4. Compare the listings of all heads, entry by entry. Then remove the hidden branches, and migrate settings.

Entries keep their addresses, as imported objects do: bytes do not move, and no collection here deletes them. The
collections of the source still do, so the guide says to stop the source.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, TypeVar

import msgspec
import pyarrow as pa

from lakebed.base import (
    CommitId,
    Conflict,
    Etags,
    Invalid,
    Row,
    check_branch,
    check_repository,
    check_tag,
    count_of,
    path_to_key,
    to_row,
)
from lakebed.catalog import Catalog, Event, EventType, Repository, RepositoryNotFound, SettingChanged, overlap
from lakebed.hooks import InvalidAction, parse
from lakebed.objectstore import normalise_namespace, store_clock_ms
from lakebed.ranges import changes_from_rows
from lakebed.versions import BranchNotFound, Note, TagNotFound, UncommittedChanges
from lakebed.wire import Commit, GarbageCollectionRules

from .adopting import WORK, check_named_nowhere_else, note_compared
from .entries import Entries
from .source import Changed, SourceRepository, in_pages

T = TypeVar("T")

CAME_FROM: Final = "lakebed.migrated-from"
"""The key in the metadata of a commit here, for the id of the source's commit."""
CLOCK_KEY: Final = "_lakefs/retention/gc/clock.json"
"""The file with which collections read the store's clock."""
PART_OBJECTS: Final = 50_000
"""Apply at most this many changes of a commit at a time."""
SHOWN: Final = 5
"""Differences that an error names."""

Say = Callable[[str], object]


class MigrationDiffers(Conflict):
    """A listing here differs from the source's.

    Nothing is lost: run the migration again, or delete the repository here.
    """


class Migrated(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of one repository's migration.

    `commits` were written by this call, `commits_before` by earlier calls. `entries` were compared, over the heads of
    all branches and tags. `left` names branches and tags that were kept unchanged here. `stays` has a line for each
    item that is not migrated, or does not work here.
    """

    repository: str
    commits: int
    commits_before: int
    branches: int
    tags: int
    entries: int
    left: list[str]
    stays: list[str]


class Migration(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of a planned migration of one repository; nothing was written. `changes` are those of its commits."""

    repository: str
    namespace: str
    commits: int
    commits_before: int
    branches: int
    tags: int
    changes: int
    read_only: bool
    stays: list[str]


@dataclass(slots=True)
class _Work:
    """The migration of one repository.

    `here` maps the source's commits to ours; `tips` has our hidden branches by head.
    """

    source: SourceRepository
    target: Repository
    entries: Entries
    here: dict[str, CommitId] = field(default_factory=dict)
    tips: dict[CommitId, list[str]] = field(default_factory=dict)

    def add_tip(self, commit_id: CommitId, branch: str) -> None:
        # Several branches may have one head: a killed call leaves the branch that it just made.
        self.tips.setdefault(commit_id, []).append(branch)

    def take_tip(self, commit_id: CommitId) -> str | None:
        """Return a hidden branch with this head, for the next commit, or None."""
        branches = self.tips.get(commit_id)
        return branches.pop() if branches else None

    async def drop_tips(self, commit_id: CommitId) -> None:
        for branch in self.tips.pop(commit_id, []):
            await self.target.changes.delete_branch(branch, force=True, is_ours=True)


async def plan_repository(
    catalog: Catalog, source: SourceRepository, namespace: str | None, *, old_root: str = "", say: Say = lambda _: None
) -> Migration:
    """Make the checks of `migrate_repository`, and count its work. Writes no repository; reads each change.

    Raises:
        As `migrate_repository`, and InvalidName, InvalidNote.
    """
    entries = Entries(catalog, source.record.storage_namespace, old_root=old_root, is_in_place=namespace is None)
    target = await _find(catalog, source.name)
    here = {} if target is None else await _replayed(target)
    branches, tags, commits = await _read_refs(source, here)
    check_repository(source.name)
    for name in (source.record.default_branch, *branches):
        check_branch(name)
    for name in tags:
        check_tag(name)
    await _check_readable(entries, source, [*branches.values(), *tags.values()])
    if target is not None:
        _check_place(target, namespace, entries)
    elif namespace is None:
        await catalog.namespaces.check_old(entries.namespace)
        await check_named_nowhere_else(catalog, "", entries.namespace)
    else:
        _check_beside(namespace, entries)
        await catalog.namespaces.check_free(namespace)
    changes = 0
    for at, commit in enumerate(commits):
        _note_of(commit)
        async for page in _in_thread(source.changes(commit)):
            await _table(entries, page)
            changes += len(page)
        if at % 100 == 0:
            say(f"{source.name}: checked {at + 1:,} of {count_of(len(commits), 'commit')}")
    return Migration(
        repository=source.name,
        namespace=namespace or entries.namespace,
        commits=len(commits),
        commits_before=len(here),
        branches=len(branches),
        tags=len(tags),
        changes=changes,
        read_only=source.record.read_only,
        stays=await asyncio.to_thread(staying, source, branches),
    )


async def migrate_repository(
    catalog: Catalog, source: SourceRepository, namespace: str | None, *, old_root: str = "", say: Say = lambda _: None
) -> Migrated:
    """Migrate one repository, or continue. `namespace` is that of the new repository; None means the source's own.

    Raises:
        NotFound, Invalid: this server cannot read the source's objects.
        AddressInNamespace: the objects are in a namespace of a Lakebed server, whose collections delete there.
        NamespaceInUse, NamespaceNested, Invalid: `namespace` cannot be used.
        MigrationDiffers: after the migration, a listing here differs from the source's.
    """
    entries = Entries(catalog, source.record.storage_namespace, old_root=old_root, is_in_place=namespace is None)
    target = await _find(catalog, source.name)
    here = {} if target is None else await _replayed(target)
    branches, tags, commits = await _read_refs(source, here)
    await _check_readable(entries, source, [*branches.values(), *tags.values()])
    if target is None:
        target = await _create(catalog, source, namespace, entries)
    _check_place(target, namespace, entries)
    # Read the clock before the commits: the old server may write objects meanwhile, which are not compared.
    began_ms = 0 if namespace is not None else await store_clock_ms(target.objectstore, CLOCK_KEY)
    work = _Work(source, target, entries, here=here)
    ours = await target.settings.work_branches(WORK)
    async for branch in target.versions.refs.every_branch():
        if branch.name in ours:
            work.add_tip(branch.commit_id, branch.name)
    before = len(here)
    for at, commit in enumerate(commits):
        await _replay(work, commit)
        if at % 100 == 0:
            say(f"{source.name}: {at + 1:,} of {count_of(len(commits), 'commit')}")
    left = await _set_refs(work, branches, tags)
    compared = 0
    for head in dict.fromkeys([*branches.values(), *tags.values()]):
        say(f"{source.name}: comparing commit {head[:12]}")
        compared += await _compare(work, head)
    for tip in [*work.tips]:
        await work.drop_tips(tip)
    await _bring_settings(catalog, work)
    if namespace is None and not left:
        await note_compared(target, began_ms)
    return Migrated(
        repository=source.name,
        commits=len(commits),
        commits_before=before,
        branches=len(branches),
        tags=len(tags),
        entries=compared,
        left=left,
        stays=await asyncio.to_thread(staying, source, branches),
    )


def _check_beside(namespace: str, entries: Entries) -> None:
    if overlap(namespace.rstrip("/"), entries.namespace):
        raise Invalid(
            f"{namespace} meets {entries.namespace}, the namespace of the repository that is left:"
            " choose a folder beside it",
            namespace=namespace,
        )


def _check_place(target: Repository, namespace: str | None, entries: Entries) -> None:
    """Refuse another namespace than that of the first call: entries would have other addresses."""
    if (target.objectstore.uri == normalise_namespace(entries.namespace)) is not (namespace is None):
        raise Invalid(
            f"{target.id} was brought to {target.objectstore.uri}: call this as then, in place or with --namespaces",
            namespace=target.objectstore.uri,
        )


async def _create(catalog: Catalog, source: SourceRepository, namespace: str | None, entries: Entries) -> Repository:
    if namespace is None:
        await check_named_nowhere_else(catalog, "", entries.namespace)
    else:
        _check_beside(namespace, entries)
    return await catalog.create(
        source.name,
        storage_namespace=namespace or entries.namespace,
        default_branch=source.record.default_branch,
        read_only=source.record.read_only,
        old_server=None if namespace else source.server,
    )


async def _bring_settings(catalog: Catalog, work: _Work) -> None:
    """Set each setting that was never set here. After the first time, this server's users may change it."""
    patterns = await asyncio.to_thread(work.source.protected)
    if patterns:
        with suppress(SettingChanged):
            await work.target.set_protection([*patterns], if_match=Etags.of(""), force=True)
    theirs = await asyncio.to_thread(work.source.metadata)
    missing = {name: text for name, text in theirs.items() if name not in work.target.record.metadata}
    if missing:
        await catalog.set_metadata(work.source.name, missing)


async def _find(catalog: Catalog, name: str) -> Repository | None:
    try:
        return await catalog.get(name)
    except RepositoryNotFound:
        return None


async def _read_refs(
    source: SourceRepository, here: dict[str, CommitId]
) -> tuple[dict[str, str], dict[str, str], list[Commit]]:
    """Return branches and tags with their commits, and the commits that are not here, parents first."""
    branches = {ref.id: ref.commit_id for ref in await asyncio.to_thread(source.branches)}
    tags = {ref.id: ref.commit_id for ref in await asyncio.to_thread(source.tags)}
    first = source.record.default_branch
    heads = dict.fromkeys([*(branches[one] for one in branches if one == first), *branches.values(), *tags.values()])
    return branches, tags, await asyncio.to_thread(source.commits, [*heads], here)


async def _replayed(target: Repository) -> dict[str, CommitId]:
    """Return the commits of earlier calls: our id for each of the source's."""
    refs = target.versions.refs
    heads = [branch.commit_id async for branch in refs.every_branch()]
    heads += [tag.commit_id async for tag in refs.every_tag()]
    ancestry = target.versions.history.ancestry(heads)
    return {commit.metadata[CAME_FROM]: commit.id async for commit in ancestry if CAME_FROM in commit.metadata}


async def _check_readable(entries: Entries, source: SourceRepository, heads: Iterable[str]) -> None:
    """Check one object before anything is written: it fails at once if this server cannot open the source's
    addresses.
    """
    for head in dict.fromkeys(heads):
        stats = await asyncio.to_thread(next, source.listing(head), None)
        if stats is not None:
            await entries.check_readable(stats)
            return


async def _replay(work: _Work, commit: Commit) -> None:
    parents = [work.here[one] for one in commit.parents]
    first = parents[0] if parents else await _root(work.target)
    branch = work.take_tip(first)
    if branch is None:
        branch = f"{WORK}-{secrets.token_hex(16)}"
        await work.target.changes.create_branch(branch, first, force=True, work_of=WORK)

    async def changes() -> AsyncIterator[pa.Table]:
        part: list[Changed] = []
        async for page in _in_thread(work.source.changes(commit)):
            part += page
            if len(part) >= PART_OBJECTS:
                yield await _table(work.entries, part)
                part = []
        if part:
            yield await _table(work.entries, part)

    made = await work.target.versions.merges.replay(branch, changes, _note_of(commit), merged=tuple(parents[1:]))
    work.here[commit.id] = made.id
    work.add_tip(made.id, branch)
    for merged in parents[1:]:
        await work.drop_tips(merged)  # the new commit has it as a parent


def _note_of(commit: Commit) -> Note:
    return Note(
        message=commit.message,
        committer=commit.committer,
        metadata={**commit.metadata, CAME_FROM: commit.id},
        created_ms=commit.creation_date * 1000,
    )


async def _root(target: Repository) -> CommitId:
    """Return the first commit of a new repository. The source's commits without parents are replayed onto it."""
    head = (await target.versions.refs.get_branch(target.record.default_branch)).commit_id
    async for commit in target.versions.history.ancestry([head], first_parent=True):
        head = commit.id
    return head


async def _table(entries: Entries, changed: list[Changed]) -> pa.Table:
    keys = [path_to_key(path) for path, _ in changed]
    rows = []
    for key, (_, stats) in zip(keys, changed, strict=True):
        rows.append(None if stats is None else to_row(key, await entries.checked(stats)))
    return changes_from_rows(keys, rows)


async def _set_refs(work: _Work, branches: dict[str, str], tags: dict[str, str]) -> list[str]:
    """Move or make branches and tags. Return those that were kept, because users of this server changed them."""
    left = []
    refs, changes, resets = work.target.versions.refs, work.target.changes, work.target.versions.resets
    for name, theirs in branches.items():
        wanted = work.here[theirs]
        try:
            head = (await refs.get_branch(name)).commit_id
        except BranchNotFound:
            await changes.create_branch(name, wanted, force=True)
            continue
        if head == wanted:
            continue
        base = await work.target.versions.history.common_ancestor(head, wanted)
        if base.id != head:
            left.append(name)
            continue
        try:
            # Below the guards: the migrated branch protection restricts users, not the migration.
            await resets.hard_reset(name, wanted)
        except UncommittedChanges:
            left.append(name)
    for name, theirs in tags.items():
        wanted = work.here[theirs]
        try:
            if await refs.get_tag(name) != wanted:
                left.append(name)
        except TagNotFound:
            await changes.create_tag(name, wanted, force=True)
    return left


async def _compare(work: _Work, theirs: str) -> int:
    """Compare both listings of a commit, or raise MigrationDiffers. Return the number of its entries."""
    listing = work.target.versions.staging.list
    commit_id, after, count = work.here[theirs], b"", 0
    async for page in _in_thread(in_pages(work.source.listing(theirs))):
        wanted = [(key := path_to_key(stats.path), to_row(key, work.entries.of(stats))) for stats in page]
        here = (await listing(commit_id, after=after, limit=len(page))).items
        _check_equal(work, theirs, wanted, here)
        after, count = wanted[-1][0], count + len(page)
    _check_equal(work, theirs, [], (await listing(commit_id, after=after, limit=SHOWN)).items)
    return count


def _check_equal(
    work: _Work, theirs: str, wanted: Sequence[tuple[bytes, Row]], here: Sequence[tuple[bytes, Row | None]]
) -> None:
    if differing := sorted({key for key, _ in {*wanted} ^ {*here}})[:SHOWN]:
        paths = [key.decode() for key in differing]
        raise MigrationDiffers(
            f"{work.source.name}: commit {theirs[:12]} is not the same here, first at {', '.join(paths)}", paths=paths
        )


async def _in_thread(pages: Iterator[T]) -> AsyncIterator[T]:
    """Take each item in a thread: the source's client blocks."""
    end = object()
    while (item := await asyncio.to_thread(next, pages, end)) is not end:
        yield item  # type: ignore[misc]  # only the mark of the end is no T


def staying(source: SourceRepository, branches: Iterable[str]) -> list[str]:
    """Return a line for each item of a repository that needs the user's attention. Costs some requests for each
    branch.
    """
    names = [*branches]
    lines = [
        f"uncommitted changes on {name} stay there: commit or reset them" for name in names if source.is_dirty(name)
    ]
    rules = source.retention_rules()
    if rules is not None:
        lines.append(f"retention rules stay there ({_words(rules)}): `lakebed gc rules` sets them here")
    if open_pulls := source.count_pulls():
        lines.append(f"{count_of(open_pulls, 'open pull request')} stay there")
    refusing: dict[str, list[str]] = {}
    for name in names:
        for reason in _refusing(source, name):
            refusing.setdefault(reason, []).append(name)
    lines += [f"changes of {', '.join(on)} will be refused here: {reason}" for reason, on in refusing.items()]
    return lines


def _refusing(source: SourceRepository, branch: str) -> Sequence[str]:
    """Return why action files refuse changes here.

    They are objects, so they are migrated; an invalid one refuses the changes that it applies to.
    """
    reasons = []
    for stats in source.action_files(branch):
        try:
            action = parse(stats.path, source.read(branch, stats.path))
            for type_ in EventType:
                action.hooks_for(Event(type=type_, source_ref=branch, branch=branch))
        except InvalidAction as error:
            reasons.append(str(error))
    return reasons


def _words(rules: GarbageCollectionRules) -> str:
    branches = (f"{rule.branch_id} {count_of(rule.retention_days, 'day')}" for rule in rules.branches)
    return ", ".join([f"default {count_of(rules.default_retention_days, 'day')}", *branches])
