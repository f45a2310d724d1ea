"""Let clients of the larger scenes do more than write and commit: links, copies, refs, freezes, collections."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from msgspec.structs import replace

from lakebed.base import Conflict, Entry, OutcomeUnknown, RunKind, RunState, to_row
from lakebed.gc.live import CollectionService, ServiceOptions
from lakebed.gc.live.records.runs import RunBook
from lakebed.gc.live.records.settings import RuleBook
from lakebed.gc.messages import End, Mode, Restore
from lakebed.gc.rules import Rules
from lakebed.objectstore import ObjectMissing
from lakebed.versions import (
    ANY,
    Condition,
    Note,
    Options,
    PathExists,
    PathNotFound,
    UploadRecord,
    UploadRefused,
    UploadState,
    Versions,
    keys,
)
from sim.checkers.reachable import NAMED, PROMISES, SIGNED
from sim.checkers.views import value_of
from sim.ports.actors import Violation
from sim.ports.operations import Operation
from sim.ports.ports import set_ahead

from .collecting import DAY_MS, FENCING, OPTIONS, READERS, Collecting
from .scenes import FAR_FUTURE_MS, MAIN, SIDE, Do, doing, type_of

_PUBLISHED = frozenset({RunState.EXPIRING, RunState.SWEEPING, RunState.ENDED})


def issue(name: str, *, branch: str = MAIN) -> Do:
    """Hand an address out, and put bytes there as its client."""

    async def act(repo: Versions) -> None:
        await _issue(repo, name, branch)

    return Do(Operation(name, "issue", branch), act)


def link(name: str, key: str, value: str, *, branch: str = MAIN) -> Do:
    """Hand an address out, fill it and link it."""

    async def act(repo: Versions) -> None:
        await repo.uploads.link(branch, key.encode(), _entry(await _issue(repo, name, branch), value))

    return Do(Operation(name, "write", branch, key.encode(), value), act)


def link_issued(name: str, key: str, value: str, *, branch: str = MAIN, condition: Condition = ANY) -> Do:
    """Link the first address that is open. The client knows it; here it looks it up, which is one step more."""

    async def act(repo: Versions) -> None:
        page = await repo.store.scan(repo.partition, keys.UPLOAD, 1)
        if not page.keys or not page.keys[0].startswith(keys.UPLOAD):
            raise UploadRefused("cleaned away")
        address = page.keys[0][len(keys.UPLOAD) :].decode()
        await repo.uploads.link(branch, key.encode(), _entry(address, value), condition=condition)

    return Do(Operation(name, "write", branch, key.encode(), value), act)


def link_signed(name: str, key: str, value: str, *, late_ms: int = 0) -> Do:
    """Have a URL signed, put bytes with it, and link them so much later. A put that is slow may still be under way."""

    async def act(repo: Versions) -> None:
        address = await repo.uploads.issue(MAIN, key.encode(), is_signed=True)
        await repo.store.set(SIGNED, address.encode(), b"")
        await repo.objectstore.put(address, b"1")
        set_ahead(repo.ports, late_ms)
        await repo.uploads.link(MAIN, key.encode(), _entry(address, value))

    return Do(Operation(name, "write", MAIN, key.encode(), value), act)


@doing("expire")
async def expire(repo: Versions) -> None:
    """Expire every address that is open, as a cleaner does when it is time."""
    async for key, upload in repo.context.records(UploadRecord, keys.UPLOAD):  # a scan
        if upload.state is UploadState.ISSUED:
            await repo.uploads.expire(key[len(keys.UPLOAD) :].decode())


def copy(name: str, source: str, key: str, value: str, *, ref: str = MAIN, branch: str = MAIN) -> Do:
    """Copy without bytes. The entry differs from its source in its checksum: so its value is its own."""

    async def act(repo: Versions) -> None:
        def alter(entry: Entry) -> Entry:
            return Entry(
                address=entry.address, size_bytes=entry.size_bytes, checksum=value, modified_ms=entry.modified_ms
            )

        await repo.copies.copy(ref, source.encode(), branch, key.encode(), alter=alter, shallow=True)

    return Do(Operation(name, "write", branch, key.encode(), value), act)


def read_bytes(name: str, key: str, *, branch: str = MAIN, ref: str = "") -> Do:
    """Resolve a path, then read what is there: that must succeed, however late (invariant 7). With a `ref` it is read
    through that, and no check asks what it shows."""

    async def act(repo: Versions) -> str:
        await repo.store.set(READERS, name.encode(), b"")
        try:
            entry = await repo.staging.open(ref or branch, key.encode())
            if entry.address.startswith("data/"):
                await repo.objectstore.get(entry.address)
        except ObjectMissing as error:
            raise Violation(f"{name} resolved {key}, and {entry.address} is gone") from error
        finally:
            await repo.store.delete(READERS, name.encode())
        return value_of(to_row(b"", entry))

    return Do(Operation(name, "peek" if ref else "read", branch, key.encode()), act)


@doing("close")
async def close(repo: Versions) -> None:
    """Shut down in order: this process's slices close."""
    await repo.slices.end()


@doing("fence")
async def fence(repo: Versions) -> None:
    """Take every owner for dead: fence, freeze, close."""
    await RunBook(repo, FENCING).closed_slices()


def freeze(name: str, *, branch: str = MAIN) -> Do:
    """Do the middle of fencing: every token of a branch is replaced by a frozen one."""

    async def act(repo: Versions) -> None:
        await repo.fencing.freeze(branch)

    return Do(Operation(name, "fence", branch), act)


def bump(name: str, *, branch: str = MAIN) -> Do:
    """Bump a branch, as a run does where it reads in its tokens."""

    async def act(repo: Versions) -> None:
        await repo.fencing.bump(branch)

    return Do(Operation(name, "run", branch), act)


@doing("clean")
async def abandon(repo: Versions) -> None:
    """Take every run that marks for dead."""
    await RunBook(repo, OPTIONS).abandon_dead()


@doing("clean")
async def end(repo: Versions) -> None:
    """End every run that sweeps, whichever actor began it."""
    service = CollectionService(repo, OPTIONS)
    for run_id, record in await repo.retired.runs():
        if record.state is RunState.SWEEPING:
            await service.end(run_id, End(plan=record.plan))


@doing("clean")
async def clean_records(repo: Versions, *, late_ms: int = 0) -> None:
    """Remove finished records as a cleaner does, whose clock is `late_ms` ahead."""
    set_ahead(repo.ports, late_ms)
    await repo.cleanup._clean_records()  # noqa: SLF001  # a part of it, for fewer states


@doing("clean")
async def clean_refs(repo: Versions) -> None:
    """Remove refs half made as a cleaner does, which takes all of them for old."""
    set_ahead(repo.ports, FAR_FUTURE_MS)
    await repo.cleanup._clean_refs()  # noqa: SLF001  # a part of it, for fewer states


# Collections


def collect(
    name: str,
    kind: RunKind,
    *,
    mode: Mode = Mode.CLEAN,
    options: ServiceOptions = OPTIONS,
    has_grace: bool = False,
    window: str | None = None,
    between: Do | None = None,
    elsewhere: bool = False,
    days: int | None = None,
    active_only: bool = False,
) -> Do:
    """Plan and apply; `between` the two this process does something else. Committed data goes `days` after
    everything was made, ten by default. `elsewhere`: in another process than what else this actor does. `active_only`:
    to a lifecycle run, commits that the retention rules let go keep nothing.
    """

    async def act(repo: Versions) -> None:
        collecting = Collecting(_elsewhere(repo) if elsewhere else repo, options, has_grace=has_grace)
        plan = await collecting.plan(kind, mode, active_only=active_only)
        if between is not None:
            with suppress(Conflict):
                await between.act(repo)
        await collecting.apply(plan.run_id, window=window)

    if days is None:
        days = 10 if kind in {RunKind.COMMITTED, RunKind.LIFECYCLE} else 0
    return run_later(name, act, days=days)


def uncommitted_run(name: str, **how: Any) -> Do:
    return collect(name, RunKind.UNCOMMITTED, **how)


def committed_run(name: str, **how: Any) -> Do:
    return collect(name, RunKind.COMMITTED, **how)


def metadata_run(name: str) -> Do:
    return collect(name, RunKind.METADATA)


def plan_only(name: str, kind: RunKind) -> Do:
    async def act(repo: Versions) -> None:
        await Collecting(repo).plan(kind)

    return run_later(name, act, days=10 if kind in {RunKind.COMMITTED, RunKind.LIFECYCLE} else 0)


def apply_planned(name: str, *, window: str | None = None) -> Do:
    """Carry out every plan there is: another apply of each may be under way, or have died anywhere."""

    async def act(repo: Versions) -> None:
        await Collecting(repo).apply_all(window=window)

    return run_later(name, act, days=10)


def apply_one(name: str, number: int, *, window: str | None = None, days: int = 10) -> Do:
    """Carry out one plan, by its place among those there are."""

    async def act(repo: Versions) -> None:
        await Collecting(repo).apply_one(number, window=window)

    return run_later(name, act, days=days)


def resume(name: str) -> Do:
    """Take every run that marks for dead, and go on with every run whose deletes began."""

    async def act(repo: Versions) -> None:
        await Collecting(repo).resume()

    return run_later(name, act, days=10)


def purge(name: str) -> Do:
    """Apply every run whose window is over, which all are by then."""

    async def act(repo: Versions) -> None:
        await Collecting(repo).purge()

    return run_later(name, act, days=30)


@doing("run")
async def run_later(repo: Versions, act: Callable[[Versions], Awaitable[str | None]], *, days: int) -> str | None:
    set_ahead(repo.ports, days * DAY_MS)
    try:
        return await act(repo)
    finally:
        set_ahead(repo.ports, -days * DAY_MS)  # what else this process does is done now


def days_later(do: Do, days: int) -> Do:
    """Do it by a clock that is so many days ahead."""
    return Do(do.operation, run_later(do.operation.name, do.act, days=days).act)


def _elsewhere(repo: Versions) -> Versions:
    return Versions(
        uid=repo.uid,
        store=repo.store,
        objectstore=repo.objectstore,
        trees=repo.trees,
        ports=repo.ports,
        options=Options(owner="elsewhere"),
    )


def restore(name: str, *, key: str = "a", content: bytes, path: str = "", overwrite: bool = False) -> Do:
    """Put back what the latest deferred run holds of this path (its own if none is given). It is a write of the upload
    with this content, unless something was there or it was deleted.
    """

    async def act(repo: Versions) -> None:
        service = CollectionService(repo, OPTIONS, continuation_key=b"sim")
        body = Restore(path=path or key, overwrite=overwrite)
        page = await service.restore(body)
        while page.continuation_token is not None and not page.restored:
            page = await service.restore(replace(body, continuation_token=page.continuation_token))
        if not page.restored + page.present:
            # A commit may have taken the write before another one came over it.
            if any(failure.error.startswith("a commit may have") for failure in page.failures):
                raise OutcomeUnknown(page.failures[0].error)
            raise PathExists("another object is there, or it was deleted")

    return Do(Operation(name, "write", MAIN, key.encode(), shown(content)), act)


def shown(content: bytes) -> str:
    """Return the value of a restored upload: its content was its checksum, and gave it a content type."""
    return f"{content.decode()}+{type_of(content.decode())}"


@doing("close")
async def behind(repo: Versions) -> None:
    """Let this process's clock turn out to be an hour behind all others."""
    set_ahead(repo.ports, -3_600_000)


def hand_out(name: str) -> Do:
    """Hand an address out; its client puts nothing there yet."""

    async def act(repo: Versions) -> None:
        await repo.uploads.issue("main")

    return Do(Operation(name, "issue", "main"), act)


def fill(name: str) -> Do:
    """Put bytes at the first address that is open. The client knows it; here it looks it up."""

    async def act(repo: Versions) -> None:
        page = await repo.store.scan(repo.partition, keys.UPLOAD, 1)
        if page.keys and page.keys[0].startswith(keys.UPLOAD):
            await repo.objectstore.put(page.keys[0][len(keys.UPLOAD) :].decode(), name[:1].encode())

    return Do(Operation(name, "issue", "main"), act)


@doing("run")
async def strand(repo: Versions, *, branch: str = MAIN) -> None:
    """Write the files of the tree that a commit of the branch would make now, and nothing else."""
    record = (await repo.context.branches.fresh(branch)).record  # the first half of a commit
    await repo.commits.lay(await repo.context.commits.metarange(record.commit_id), record.tokens())


def commit_in_vain(name: str, *, branch: str = MAIN) -> Do:
    """Commit as a process that dies when its commit record is there, and no claim."""

    async def act(repo: Versions) -> None:
        _, seen = await repo.commits.seal(branch)
        note = Note(message=name, committer="sim")
        await repo.commits._build(branch, seen.record, seen.record.sealed, note, allow_empty=False)  # noqa: SLF001  # as above

    return Do(Operation(name, "run"), act)


@doing("run")
async def strand_merge(repo: Versions, source: str, *, branch: str = MAIN) -> None:
    """Merge as a strand."""
    head, other = await repo.refs.resolve_commit(branch), await repo.refs.resolve_commit(source)
    base = (await repo.history.merge_base(source, branch)).id
    await repo.merges._three_way(base, other, head, "none")  # noqa: SLF001  # as above


# The rest


def set_rules(name: str, period: str) -> Do:
    """Set the period of all branches; if the answer is that it counts at once, a promise is noted for checkers."""

    async def act(repo: Versions) -> None:
        answer = await RuleBook(repo).write(Rules(default=period))
        if not answer.counts_after:
            await repo.store.set(PROMISES, name.encode(), str(answer.version).encode())

    return Do(Operation(name, "rules"), act)


def promised(do: Do, commit: str) -> Do:
    """Do it, and note that this commit keeps what it names, unless a run was published by then that takes by what it
    saw before: such a run is there to be seen.
    """

    async def act(repo: Versions) -> str | None:
        commit_id = await repo.refs.resolve_commit(commit)
        made = await do.act(repo)
        if not any(record.state in _PUBLISHED for _, record in await repo.retired.runs()):
            await repo.store.set(NAMED, commit_id.encode(), b"")
        return made

    return Do(do.operation, act)


def create_branch(name: str, source: str = MAIN, *, branch: str = SIDE) -> Do:
    async def act(repo: Versions) -> str:
        return await repo.refs.create_branch(branch, source)

    return Do(Operation(name, "create_branch", branch, value=source), act)


def create_tag(name: str, source: str, *, tag: str = "tag") -> Do:
    async def act(repo: Versions) -> str:
        return await repo.refs.create_tag(tag, source)

    return Do(Operation(name, "create_tag", tag, value=source), act)


def delete_tag(name: str, *, tag: str = "tag") -> Do:
    async def act(repo: Versions) -> None:
        await repo.refs.delete_tag(tag)

    return Do(Operation(name, "delete_tag", tag), act)


def delete_branch(name: str, *, branch: str = SIDE) -> Do:
    async def act(repo: Versions) -> None:
        await repo.refs.delete_branch(branch)

    return Do(Operation(name, "delete_branch", branch), act)


def undelete_branch(name: str, *, branch: str = SIDE) -> Do:
    async def act(repo: Versions) -> str:
        return await repo.refs.undelete_branch(branch)

    return Do(Operation(name, "undelete_branch", branch), act)


def hard_reset(name: str, ref: str, *, branch: str = MAIN, force: bool = True) -> Do:
    async def act(repo: Versions) -> str:
        return await repo.resets.hard_reset(branch, ref, force=force)

    return Do(Operation(name, "hard_reset" if force else "unforced_reset", branch), act)


def revert(name: str, ref: str, *, branch: str = MAIN) -> Do:
    async def act(repo: Versions) -> str:
        return (await repo.merges.revert(branch, ref, Note(message=name, committer="sim"))).id

    return Do(Operation(name, "revert", branch), act)


def cherry_pick(name: str, ref: str, *, branch: str = MAIN) -> Do:
    async def act(repo: Versions) -> str:
        return (await repo.merges.cherry_pick(branch, ref, Note(message=name, committer="sim"))).id

    return Do(Operation(name, "cherry_pick", branch), act)


def read_listed(name: str, key: str, *, branch: str = MAIN) -> Do:
    """Read by a listing in pages of one path."""

    async def act(repo: Versions) -> str:
        after, more = b"", True
        while more:
            page = await repo.staging.list(branch, after=after, limit=1)
            for after, row in page.items:
                if after == key.encode() and row is not None:
                    return value_of(row)
            more = page.has_more
        raise PathNotFound("not listed", key=key.encode())

    return Do(Operation(name, "read", branch, key.encode()), act)


def reset_object(name: str, key: str, *, branch: str = MAIN) -> Do:
    async def act(repo: Versions) -> None:
        await repo.resets.reset_object(branch, key.encode())

    return Do(Operation(name, "reset_object", branch, key.encode()), act)


async def _issue(repo: Versions, name: str, branch: str) -> str:
    """Hand an address out, and put one byte there: a link says how many there are."""
    address = await repo.uploads.issue(branch)
    await repo.objectstore.put(address, name[:1].encode())
    return address


def _entry(address: str, value: str) -> Entry:
    return Entry(address=address, size_bytes=1, checksum=value, modified_ms=0)
