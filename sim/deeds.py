"""What clients of the larger scenes do besides writing and committing: links, copies, refs, freezes, collections."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from lakebed.base import Entry, from_row
from lakebed.gc.rules import Rules
from lakebed.gc.service.rules import RuleBook
from lakebed.objectstore import ObjectMissing
from lakebed.versions import (
    CommitOvertaken,
    NoChanges,
    PathNotFound,
    UploadRecord,
    UploadRefused,
    UploadState,
    Versions,
    keys,
)

from .actors import Violation
from .collecting import CELL_BY_CELL, OPTIONS, READERS, SimCollector
from .operations import Operation
from .reachable import PROMISES
from .scenes import FAR_FUTURE_MS, MAIN, SIDE, Do

DAY_MS: Final = 86_400_000


def issue(name: str, *, branch: str = MAIN) -> Do:
    """An address is handed out, and its client puts bytes there."""

    async def act(repo: Versions) -> None:
        await _issue(repo, name, branch)

    return Do(Operation(name, "issue", branch), act)


def link(name: str, key: str, value: str, *, branch: str = MAIN) -> Do:
    """The whole of it: an address is handed out, filled, linked."""

    async def act(repo: Versions) -> None:
        await repo.uploads.link(branch, key.encode(), _entry(await _issue(repo, name, branch), value))

    return Do(Operation(name, "write", branch, key.encode(), value), act)


def link_issued(name: str, key: str, value: str, *, branch: str = MAIN) -> Do:
    """Link the first address that is open. The client knows it; here it looks it up, which is one step more."""

    async def act(repo: Versions) -> None:
        page = await repo.store.scan(repo.partition, keys.UPLOAD, 1)
        if not page.keys or not page.keys[0].startswith(keys.UPLOAD):
            raise UploadRefused("cleaned away")
        address = page.keys[0][len(keys.UPLOAD) :].decode()
        await repo.uploads.link(branch, key.encode(), _entry(address, value))

    return Do(Operation(name, "write", branch, key.encode(), value), act)


def expire(name: str) -> Do:
    """Expire every address that is open, as a cleaner does when it is time."""

    async def act(repo: Versions) -> None:
        async for key, upload in repo.context.records(UploadRecord, keys.UPLOAD):  # a scan
            if upload.state is UploadState.ISSUED:
                await repo.uploads.expire(key[len(keys.UPLOAD) :].decode())

    return Do(Operation(name, "expire"), act)


def copy(name: str, source: str, key: str, value: str, *, ref: str = MAIN, branch: str = MAIN) -> Do:
    """A shallow copy, whose entry differs from its source's in its checksum: so its value is its own."""

    async def act(repo: Versions) -> None:
        def alter(entry: Entry) -> Entry:
            return Entry(
                address=entry.address, size_bytes=entry.size_bytes, checksum=value, modified_ms=entry.modified_ms
            )

        await repo.copies.copy(ref, source.encode(), branch, key.encode(), alter=alter, shallow=True)

    return Do(Operation(name, "write", branch, key.encode(), value), act)


def read_bytes(name: str, key: str, *, branch: str = MAIN, ref: str = "") -> Do:
    """Resolve a path, then read what is there: that must succeed, however late (invariant 7). With a `ref` it is read
    through that, and what it shows is nobody's business."""

    async def act(repo: Versions) -> str:
        await repo.store.set(READERS, name.encode(), b"")
        try:
            entry = await repo.staging.get(ref or branch, key.encode())
            if entry.address.startswith("data/"):
                await repo.objectstore.get(entry.address)
        except ObjectMissing as error:
            raise Violation(f"{name} resolved {key}, and {entry.address} is gone") from error
        finally:
            await repo.store.delete(READERS, name.encode())
        return entry.checksum

    return Do(Operation(name, "peek" if ref else "read", branch, key.encode()), act)


def close(name: str) -> Do:
    """An orderly shutdown: this process's slices close."""

    async def act(repo: Versions) -> None:
        await repo.slices.end()

    return Do(Operation(name, "close"), act)


def fence(name: str) -> Do:
    """Take every owner for dead: fence, freeze, close."""

    async def act(repo: Versions) -> None:
        await SimCollector(repo).fence_all()

    return Do(Operation(name, "fence"), act)


def freeze(name: str, *, branch: str = MAIN) -> Do:
    """The middle of fencing: every token of a branch is replaced by a frozen one."""

    async def act(repo: Versions) -> None:
        await repo.fencing.freeze(branch)

    return Do(Operation(name, "fence", branch), act)


def bump(name: str, *, branch: str = MAIN) -> Do:
    """What a run does to a branch in whose tokens it reads."""

    async def act(repo: Versions) -> None:
        await repo.fencing.bump(branch)

    return Do(Operation(name, "run", branch), act)


def abandon(name: str) -> Do:
    """Take every run that marks for dead."""

    async def act(repo: Versions) -> None:
        await SimCollector(repo).runs.abandon_dead()

    return Do(Operation(name, "clean"), act)


def end(name: str) -> Do:
    """End every run that sweeps, whoever is at it."""

    async def act(repo: Versions) -> None:
        await SimCollector(repo).end()

    return Do(Operation(name, "clean"), act)


def clean_records(name: str, *, late_ms: int = 0) -> Do:
    """The part of a cleaner that removes finished records; its clock is `late_ms` ahead."""

    async def act(repo: Versions) -> None:
        repo.ports.clock.ms += late_ms  # type: ignore[attr-defined]  # a SimClock, as in every scene
        await repo.cleanup._clean_records()  # noqa: SLF001  # a part of it, for fewer states

    return Do(Operation(name, "clean"), act)


def clean_refs(name: str) -> Do:
    """The part of a cleaner that removes refs half made, all of which it takes for old."""

    async def act(repo: Versions) -> None:
        repo.ports.clock.ms += FAR_FUTURE_MS  # type: ignore[attr-defined]  # a SimClock, as in every scene
        await repo.cleanup._clean_refs()  # noqa: SLF001  # a part of it, for fewer states

    return Do(Operation(name, "clean"), act)


def resume(name: str) -> Do:
    """Take every run that marks for dead, and every run that sweeps to its end: what a second apply does, too."""

    async def act(repo: Versions) -> None:
        collector = SimCollector(repo)
        await collector.runs.abandon_dead()
        await collector.carry_on()

    return Do(Operation(name, "run"), act)


def run(
    name: str, *, fences: bool = False, in_pages: bool = False, has_grace: bool = False, commits: bool = False
) -> Do:
    """A collection of uncommitted data, to its deletes. `in_pages`: it reads one cell at a time. `commits`: the process
    commits between its last look and its first delete."""

    async def act(repo: Versions) -> None:
        options = CELL_BY_CELL if in_pages else OPTIONS

        async def commit() -> None:
            with suppress(NoChanges, CommitOvertaken):
                await repo.commits.commit(MAIN, message=name, committer="sim")

        collector = SimCollector(repo, options)
        await collector.collect_uncommitted(fences=fences, has_grace=has_grace, meanwhile=commit if commits else None)

    return Do(Operation(name, "run"), act)


def committed_run(name: str, *, has_grace: bool = False) -> Do:
    """A collection of committed data whose rules let everything go that nothing names."""

    async def act(repo: Versions) -> None:
        await SimCollector(repo).collect_committed(has_grace=has_grace)

    return Do(Operation(name, "run"), act)


def run_by_rules(name: str) -> Do:
    """The same by the rules in force, ten days after everything was made."""

    async def act(repo: Versions) -> None:
        clock = repo.ports.clock
        clock.ms += 10 * DAY_MS  # type: ignore[attr-defined]  # a SimClock, as in every scene
        try:
            await SimCollector(repo).collect_committed(by_rules=True)
        finally:
            clock.ms -= 10 * DAY_MS  # type: ignore[attr-defined]  # as above: what else it does is done now

    return Do(Operation(name, "run"), act)


def set_rules(name: str, period: str) -> Do:
    """Set the period of all branches; if the answer is that it counts at once, a promise is noted for checkers."""

    async def act(repo: Versions) -> None:
        answer = await RuleBook(repo).write(Rules(default=period))
        if not answer.counts_after:
            await repo.store.set(PROMISES, name.encode(), str(answer.version).encode())

    return Do(Operation(name, "rules"), act)


def create_branch(name: str, source: str = MAIN, *, branch: str = SIDE) -> Do:
    async def act(repo: Versions) -> str:
        return await repo.refs.create_branch(branch, source)

    return Do(Operation(name, "create_branch", branch, value=source), act)


def create_tag(name: str, source: str, *, tag: str = "tag") -> Do:
    async def act(repo: Versions) -> str:
        return await repo.refs.create_tag(tag, source)

    return Do(Operation(name, "create_tag", tag, value=source), act)


def delete_branch(name: str, *, branch: str = SIDE) -> Do:
    async def act(repo: Versions) -> None:
        await repo.refs.delete_branch(branch)

    return Do(Operation(name, "delete_branch", branch), act)


def hard_reset(name: str, ref: str, *, branch: str = MAIN, force: bool = True) -> Do:
    async def act(repo: Versions) -> str:
        return await repo.resets.hard_reset(branch, ref, force=force)

    return Do(Operation(name, "hard_reset" if force else "unforced_reset", branch), act)


def revert(name: str, ref: str, *, branch: str = MAIN) -> Do:
    async def act(repo: Versions) -> str:
        return (await repo.merges.revert(branch, ref, committer="sim", message=name)).id

    return Do(Operation(name, "revert", branch), act)


def cherry_pick(name: str, ref: str, *, branch: str = MAIN) -> Do:
    async def act(repo: Versions) -> str:
        return (await repo.merges.cherry_pick(branch, ref, committer="sim", message=name)).id

    return Do(Operation(name, "cherry_pick", branch), act)


def read_listed(name: str, key: str, *, branch: str = MAIN) -> Do:
    """The same as a read, by a listing in pages of one path."""

    async def act(repo: Versions) -> str:
        after, more = b"", True
        while more:
            page = await repo.staging.list(branch, after=after, limit=1)
            for after, row in page.items:
                if after == key.encode() and row is not None:
                    return from_row(row).checksum
            more = page.has_more
        raise PathNotFound("not listed", key=key.encode())

    return Do(Operation(name, "read", branch, key.encode()), act)


def reset_object(name: str, key: str, *, branch: str = MAIN) -> Do:
    async def act(repo: Versions) -> None:
        await repo.resets.reset_object(branch, key.encode())

    return Do(Operation(name, "reset_object", branch, key.encode()), act)


async def _issue(repo: Versions, name: str, branch: str) -> str:
    address = await repo.uploads.issue(branch)
    await repo.objectstore.put(address, name.encode())
    return address


def _entry(address: str, value: str) -> Entry:
    return Entry(address=address, size_bytes=1, checksum=value, modified_ms=0)
