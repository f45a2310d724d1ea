"""The words of scenes: what clients do. A scene names them `do.commit`, `do.uncommitted_run`."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from msgspec.structs import replace

from explorer.actors import Violation
from explorer.operations import Operation
from lakebed.base import Conflict, Entry, Etags, OutcomeUnknown, RunKind, RunState, to_row
from lakebed.gc.live import CollectionService, ServiceOptions
from lakebed.gc.live.records.runs import RunBook
from lakebed.gc.live.records.settings import RuleBook
from lakebed.gc.messages import End, Mode, Restore
from lakebed.gc.rules import Rules
from lakebed.objectstore import ObjectMissing, ShortBody
from lakebed.versions import (
    ANY,
    Condition,
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
from sim.ports.ports import set_ahead

from .collecting import DAY_MS, FENCING, OPTIONS, READERS, Collecting
from .doing import FAR_FUTURE_MS, MAIN, SIDE, Act, Do, doing, entry_of, note, put_bytes, type_of

_OF_COMMITS = frozenset({RunKind.COMMITTED, RunKind.LIFECYCLE})
_PUBLISHED = frozenset({RunState.EXPIRING, RunState.SWEEPING, RunState.ENDED})


@doing("write", "branch", "key", "value")
async def write(repo: Versions, key: str, value: str, *, branch: str = MAIN) -> None:
    await repo.staging.put(branch, key.encode(), entry_of(value))


@doing("write", "branch", "key", "value")
async def upload(
    repo: Versions,
    key: str,
    value: str,
    *,
    branch: str = MAIN,
    is_new: bool = False,
    if_none_match: bool = False,
    if_match: str | None = None,
) -> None:
    """Write a path whose bytes go to a fresh address first. Its entry is old, or of now if it `is_new`."""
    condition = Condition(if_none_match, None if if_match is None else Etags.of(if_match))
    fields = {"modified_ms": repo.ports.clock.now_ms() if is_new else 0, "content_type": type_of(value)}
    await put_bytes(repo, branch, key.encode(), value.encode(), value, condition=condition, **fields)


def fail_upload(name: str, key: str, *, puts: bool) -> Do:
    """Fail an upload: before its bytes are put, or once they are there where it `puts` them."""

    async def act(repo: Versions) -> None:
        async def store_body(address: str) -> Entry:
            if puts:
                await repo.objectstore.put(address, name.encode())
            raise ShortBody("the body broke off")

        await repo.staging.upload(MAIN, key.encode(), store_body)

    return Do(Operation(name, "issue", MAIN, key.encode()), act)


@doing("delete", "branch", "key")
async def delete(repo: Versions, key: str, *, branch: str = MAIN, if_match: str | None = None) -> None:
    await repo.staging.delete(branch, key.encode(), if_match=None if if_match is None else Etags.of(if_match))


def commit(name: str, *, branch: str = MAIN, message: str = "") -> Do:
    return Do(Operation(name, "commit", branch), lambda repo: repo.commits.commit(branch, note(message or name)))


@doing("read", "branch", "key")
async def read(repo: Versions, key: str, *, branch: str = MAIN) -> str:
    return value_of(to_row(b"", await repo.staging.get(branch, key.encode())))


reset = doing("reset", "branch")(lambda repo, branch=MAIN: repo.resets.reset(branch))


def merge(name: str, source: str, *, branch: str = MAIN) -> Do:
    merging = Operation(name, "merge", branch, value=source)
    return Do(merging, lambda repo: repo.merges.merge(source, branch, note(name)))


@doing("clean")
async def clean(repo: Versions, *, late_ms: int = 0) -> None:
    """Clean, by a clock that is `late_ms` ahead."""
    set_ahead(repo.ports, late_ms)
    await repo.cleanup.clean()


def issue(name: str, *, branch: str = MAIN) -> Do:
    """Hand an address out, and put bytes there as its client."""

    async def act(repo: Versions) -> None:
        await _issue(repo, name, branch)

    return Do(Operation(name, "issue", branch), act)


def link(name: str, key: str, value: str, *, branch: str = MAIN) -> Do:
    """Hand an address out, fill it and link it."""

    async def act(repo: Versions) -> None:
        await repo.uploads.link(branch, key.encode(), entry_of(value, await _issue(repo, name, branch)))

    return Do(Operation(name, "write", branch, key.encode(), value), act)


@doing("write", "branch", "key", "value")
async def link_issued(repo: Versions, key: str, value: str, *, branch: str = MAIN, condition: Condition = ANY) -> None:
    """Link the first address that is open. The client knows it; here it looks it up, which is one step more."""
    page = await repo.store.scan(repo.partition, keys.UPLOAD, 1)
    if not page.keys or not page.keys[0].startswith(keys.UPLOAD):
        raise UploadRefused("cleaned away")
    address = page.keys[0][len(keys.UPLOAD) :].decode()
    await repo.uploads.link(branch, key.encode(), entry_of(value, address), condition=condition)


@doing("write", "branch", "key", "value")
async def link_signed(repo: Versions, key: str, value: str, *, branch: str = MAIN, late_ms: int = 0) -> None:
    """Have a URL signed, put bytes with it, and link them so much later. A put that is slow may still be under way."""
    address = await repo.uploads.issue(branch, key.encode(), is_signed=True)
    await repo.store.set(SIGNED, address.encode(), b"")
    await repo.objectstore.put(address, b"1")
    set_ahead(repo.ports, late_ms)
    await repo.uploads.link(branch, key.encode(), entry_of(value, address))


@doing("expire")
async def expire(repo: Versions) -> None:
    """Expire every address that is open, as a cleaner does when it is time."""
    async for key, upload in repo.context.records(UploadRecord, keys.UPLOAD):  # a scan
        if upload.state is UploadState.ISSUED:
            await repo.uploads.expire(key[len(keys.UPLOAD) :].decode())


@doing("write", "branch", "key", "value")
async def copy(repo: Versions, source: str, key: str, value: str, *, ref: str = MAIN, branch: str = MAIN) -> None:
    """Copy without bytes. The entry differs from its source in its checksum: so its value is its own."""

    def alter(entry: Entry) -> Entry:
        return Entry(address=entry.address, size_bytes=entry.size_bytes, checksum=value, modified_ms=entry.modified_ms)

    await repo.copies.copy(ref, source.encode(), branch, key.encode(), alter=alter, shallow=True)


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


close = doing("close")(lambda repo: repo.slices.end())
"""Shut down in order: this process's slices close."""
fence = doing("fence")(lambda repo: RunBook(repo, FENCING).closed_slices())
"""Take every owner for dead: fence, freeze, close."""
freeze = doing("fence", "branch")(lambda repo, branch=MAIN: repo.fencing.freeze(branch))
"""Do the middle of fencing: every token of a branch is replaced by a frozen one."""
bump = doing("run", "branch")(lambda repo, branch=MAIN: repo.fencing.bump(branch))
"""Bump a branch, as a run does where it reads in its tokens."""
abandon = doing("clean")(lambda repo: RunBook(repo, OPTIONS).abandon_dead())
"""Take every run that marks for dead."""


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
    is_elsewhere: bool = False,
    days: int | None = None,
    active_only: bool = False,
) -> Do:
    """Plan and apply; `between` the two this process does something else. Committed data goes `days` after
    everything was made, ten by default. `is_elsewhere`: in another process than what else this actor does.
    `active_only`: to a lifecycle run, commits that the retention rules let go keep nothing.
    """

    async def act(repo: Versions) -> None:
        collecting = Collecting(_other(repo) if is_elsewhere else repo, options, has_grace=has_grace)
        plan = await collecting.plan(kind, mode, active_only=active_only)
        if between is not None:
            with suppress(Conflict):
                await between.act(repo)
        await collecting.apply(plan.run_id, window=window)

    if days is None:
        days = 10 if kind in _OF_COMMITS else 0
    return run_later(name, act, days=days)


def uncommitted_run(name: str, **how: Any) -> Do:
    return collect(name, RunKind.UNCOMMITTED, **how)


def committed_run(name: str, **how: Any) -> Do:
    return collect(name, RunKind.COMMITTED, **how)


def metadata_run(name: str) -> Do:
    return collect(name, RunKind.METADATA)


def plan_only(name: str, kind: RunKind) -> Do:
    return run_later(name, lambda repo: Collecting(repo).plan(kind), days=10 if kind in _OF_COMMITS else 0)


def later(usual: int) -> Callable[[Callable[..., Awaitable[object]]], Callable[..., Do]]:
    """Make runs of a function that acts on a repository, by a clock that is so many days ahead.

    A call takes the name of the run, the other arguments of the function, and may say other `days`.
    """

    def made(act: Callable[..., Awaitable[object]]) -> Callable[..., Do]:
        def do(name: str, /, *args: Any, days: int = usual, **kwargs: Any) -> Do:
            return run_later(name, lambda repo: act(repo, *args, **kwargs), days=days)

        return do

    return made


@later(10)
async def apply_planned(repo: Versions, *, window: str | None = None) -> None:
    """Carry out every plan there is: another apply of each may be under way, or have died anywhere."""
    await Collecting(repo).apply_all(window=window)


@later(10)
async def apply_one(repo: Versions, number: int, *, window: str | None = None) -> None:
    """Carry out one plan, by its place among those there are."""
    await Collecting(repo).apply_one(number, window=window)


resume = later(10)(lambda repo: Collecting(repo).resume())
"""Take every run that marks for dead, and go on with every run whose deletes began."""
purge = later(30)(lambda repo: Collecting(repo).purge())
"""Apply every run whose window is over, which all are by then."""


@doing("run")
async def run_later(repo: Versions, act: Act, *, days: int) -> object:
    set_ahead(repo.ports, days * DAY_MS)
    try:
        return await act(repo)
    finally:
        set_ahead(repo.ports, -days * DAY_MS)  # what else this process does is done now


def days_later(do: Do, days: int) -> Do:
    """Do it by a clock that is so many days ahead."""
    return Do(do.operation, run_later(do.operation.name, do.act, days=days).act)


def _other(repo: Versions) -> Versions:
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


@doing("issue", "branch")
async def hand_out(repo: Versions, *, branch: str = MAIN) -> None:
    """Hand an address out; its client puts nothing there yet."""
    await repo.uploads.issue(branch)


def fill(name: str) -> Do:
    """Put bytes at the first address that is open. The client knows it; here it looks it up."""

    async def act(repo: Versions) -> None:
        page = await repo.store.scan(repo.partition, keys.UPLOAD, 1)
        if page.keys and page.keys[0].startswith(keys.UPLOAD):
            await repo.objectstore.put(page.keys[0][len(keys.UPLOAD) :].decode(), name[:1].encode())

    return Do(Operation(name, "issue", MAIN), act)


@doing("run")
async def strand(repo: Versions, *, branch: str = MAIN) -> None:
    """Write the files of the tree that a commit of the branch would make now, and nothing else."""
    record = (await repo.context.branches.fresh(branch)).record  # the first half of a commit
    await repo.commits.lay(await repo.context.commits.metarange(record.commit_id), record.tokens())


def commit_in_vain(name: str, *, branch: str = MAIN) -> Do:
    """Commit as a process that dies when its commit record is there, and no claim."""

    async def act(repo: Versions) -> None:
        _, seen = await repo.commits.seal(branch)
        await repo.commits._build(branch, seen.record, seen.record.sealed, note(name), allow_empty=False)  # noqa: SLF001  # as above

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

    async def act(repo: Versions) -> object:
        commit_id = await repo.refs.resolve_commit(commit)
        made = await do.act(repo)
        if not any(record.state in _PUBLISHED for _, record in await repo.retired.runs()):
            await repo.store.set(NAMED, commit_id.encode(), b"")
        return made

    return Do(do.operation, act)


@doing("create_branch", "branch", value="source")
async def create_branch(repo: Versions, source: str = MAIN, *, branch: str = SIDE) -> str:
    return await repo.refs.create_branch(branch, source)


@doing("create_tag", branch="tag", value="source")
async def create_tag(repo: Versions, source: str, *, tag: str = "tag") -> str:
    return await repo.refs.create_tag(tag, source)


delete_tag = doing("delete_tag", branch="tag")(lambda repo, tag="tag": repo.refs.delete_tag(tag))
undelete_tag = doing("undelete_tag", branch="tag")(lambda repo, tag="tag": repo.refs.undelete_tag(tag))
delete_branch = doing("delete_branch", "branch")(lambda repo, branch=SIDE: repo.refs.delete_branch(branch))
undelete_branch = doing("undelete_branch", "branch")(lambda repo, branch=SIDE: repo.refs.undelete_branch(branch))


def hard_reset(name: str, ref: str, *, branch: str = MAIN, force: bool = True) -> Do:
    resetting = Operation(name, "hard_reset" if force else "unforced_reset", branch)
    return Do(resetting, lambda repo: repo.resets.hard_reset(branch, ref, force=force))


def revert(name: str, ref: str, *, branch: str = MAIN) -> Do:
    return Do(Operation(name, "revert", branch), lambda repo: repo.merges.revert(branch, ref, note(name)))


def cherry_pick(name: str, ref: str, *, branch: str = MAIN) -> Do:
    return Do(Operation(name, "cherry_pick", branch), lambda repo: repo.merges.cherry_pick(branch, ref, note(name)))


@doing("read", "branch", "key")
async def read_listed(repo: Versions, key: str, *, branch: str = MAIN) -> str:
    """Read by a listing in pages of one path."""
    after, more = b"", True
    while more:
        page = await repo.staging.list(branch, after=after, limit=1)
        for after, row in page.items:
            if after == key.encode() and row is not None:
                return value_of(row)
        more = page.has_more
    raise PathNotFound("not listed", key=key.encode())


@doing("reset_object", "branch", "key")
async def reset_object(repo: Versions, key: str, *, branch: str = MAIN) -> None:
    await repo.resets.reset_object(branch, key.encode())


@doing("reset_prefix", "branch", key="prefix")
async def reset_prefix(repo: Versions, prefix: str, *, branch: str = MAIN) -> None:
    await repo.resets.reset_prefix(branch, prefix.encode())


async def _issue(repo: Versions, name: str, branch: str) -> str:
    """Hand an address out, and put one byte there: a link says how many there are."""
    address = await repo.uploads.issue(branch)
    await repo.objectstore.put(address, name[:1].encode())
    return address


def in_pages(do: Do) -> Do:
    """Make a process whose listings show one key a step, and whose scans of cells one cell."""

    async def act(repo: Versions) -> object:
        repo.objectstore.list_page = 1  # type: ignore[attr-defined]  # a SimObjectStore, as in every scene
        repo.context.options = dataclasses.replace(repo.context.options, scan_page=1)
        return await do.act(repo)

    return Do(do.operation, act)
