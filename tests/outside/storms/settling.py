"""Bring a repository to rest after a storm: what its branches have, what something names, and what is left over."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from lakebed.base import Entry, from_row
from lakebed.gc.engines import LocalEngine
from lakebed.gc.kinds import kind_to_plan
from lakebed.gc.live import CollectionService, QueueWorker, ServiceOptions
from lakebed.gc.machine import flow
from lakebed.gc.messages import Mode, RunKind, Service, UncommittedOptions
from lakebed.gc.rules import MetadataRule
from lakebed.gc.runs.context import RunContext
from lakebed.gc.runs.resume import unfinished_runs
from lakebed.kv import scan_prefix
from lakebed.objectstore import Deleter
from lakebed.versions import Commit, Note, Versions, decode_record, keys

ALL: Final = 1_000_000
AFTER: Final = b"after the storm"
"""`clean_up` leaves this at the path `after` of each branch."""


async def read_branch(versions: Versions, ref: str = "main") -> dict[str, bytes]:
    """Return the bytes of each path."""
    listing = await versions.staging.list(ref, limit=ALL)
    entries = {key.decode(): await versions.staging.get(ref, key) for key, _ in listing.items}
    return {path: await versions.objectstore.get(entry.address) for path, entry in entries.items()}


async def named_addresses(versions: Versions) -> set[str]:
    """Return each address that a branch or a commit record names, but for commits that a collection swept."""
    scanned = scan_prefix(versions.store, versions.partition, keys.SWEPT)
    swept = {key.removeprefix(keys.SWEPT) async for key, _ in scanned}
    commits = {name: commit for name, commit in (await _commits(versions)).items() if name not in swept}
    return await _addresses(versions, commits.values())


async def reachable_addresses(versions: Versions) -> set[str]:
    """Return each address that a branch names, or a commit that a branch leads to and no collection swept.

    A commit that lost its race, or whose publishing failed, has a record that names objects and that no branch took.
    """
    scanned = scan_prefix(versions.store, versions.partition, keys.SWEPT)
    swept = {key.removeprefix(keys.SWEPT) async for key, _ in scanned}
    commits, reached = await _commits(versions), set[bytes]()
    waiting = [record.commit_id.encode() for _, record in await versions.context.branches.every()]
    while waiting:
        name = waiting.pop()
        if name not in reached and name in commits:
            reached.add(name)
            waiting += [parent.encode() for parent in commits[name].parents]
    return await _addresses(versions, [commits[name] for name in reached - swept])


async def _commits(versions: Versions) -> dict[bytes, Commit]:
    scanned = scan_prefix(versions.store, versions.partition, keys.COMMIT)
    return {key.removeprefix(keys.COMMIT): decode_record(Commit, value) async for key, value in scanned}


async def _addresses(versions: Versions, commits: Iterable[Commit]) -> set[str]:
    listings = [await versions.staging.list(branch, limit=ALL) for branch in await _branches(versions)]
    rows = [row for listing in listings for _, row in listing.items]
    for metarange in {commit.metarange_id for commit in commits}:
        rows += [row for _, row in await versions.trees.scan(metarange, b"", ALL)]
    return {from_row(row).address for row in rows if row is not None}


async def _branches(versions: Versions) -> list[str]:
    return [name for name, _ in await versions.context.branches.every()]


async def clean_up(versions: Versions) -> None:
    """Leave no claim and no retired token, whatever its age. A killed committer's claim stays for as long as a branch
    holds one of its tokens, so each branch takes one more commit.

    An address that a killed server handed out, as for a part, keeps its object until it expires: let all expire.
    """
    handed_out = scan_prefix(versions.store, versions.partition, keys.UPLOAD)
    for key in [key async for key, _ in handed_out]:
        await versions.uploads.expire(key.removeprefix(keys.UPLOAD).decode())
    versions.context.options = replace(versions.context.options, claim_age_ms_max=0)
    for branch in await _branches(versions):
        await _commit_once_more(versions, branch)
    for _ in range(3):
        await versions.cleanup.clean()


async def _commit_once_more(versions: Versions, branch: str) -> None:
    async def store_body(address: str) -> Entry:
        stored = await versions.objectstore.put(address, AFTER)
        return Entry(address=address, size_bytes=stored.size_bytes, checksum=stored.md5, modified_ms=1)

    await versions.staging.upload(branch, b"after", store_body)
    await versions.commits.commit(branch, Note(message="after the storm", committer="tests"))


async def drain(versions: Versions, deleter: Deleter) -> None:
    """Delete what waits in the queue of hard delete, at once."""
    await versions.hard_delete.change(by="storm", is_paused=False, grace_s=0)
    await QueueWorker(versions, deleter, linger_ms=0).work()


async def collect(versions: Versions, deleter: Deleter) -> None:
    """Run one uncommitted collection that looks at everything, and takes every other owner and run for dead.

    First end those that stopped in their sweep, as a nightly run does: no other run takes what they hold.
    """
    live = CollectionService(versions, ServiceOptions(dead_owner_age_ms=0, dead_run_age_ms=0))
    context = RunContext(
        repository="storm",
        service=Service(live),
        engine=LocalEngine(versions.objectstore, versions.ports, open_deleter=lambda: deleter),
        store=versions.objectstore,
        ports=versions.ports,
        progress=lambda _: None,
    )
    for run in await unfinished_runs(versions.objectstore, versions.ports.tasks, await context.service.runs()):
        await flow.apply(context, run.run_id, grace_s=0)
    # A run whose collector was killed as it planned keeps records of copies, and they keep their objects.
    await live.abandon_dead_runs()
    await versions.cleanup.clean()
    options = UncommittedOptions(mode=Mode.CLEAN)
    plan = await flow.plan(context, kind_to_plan(RunKind.UNCOMMITTED, options, MetadataRule()))
    await flow.apply(context, plan.run_id, grace_s=0)


async def unnamed(versions: Versions) -> set[str]:
    """Return the objects that nothing names."""
    listed = {stat.key async for page in versions.objectstore.list("data/") for stat in page}
    return listed - await named_addresses(versions)


async def claims(versions: Versions) -> list[bytes]:
    return [key async for key, _ in scan_prefix(versions.store, versions.partition, keys.CLAIM)]
