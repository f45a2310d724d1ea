"""Make, extend and end sandboxes. One record decides: only while it is active has the key any right.

    create   1 record `creating`   2 branch, marked   3 user, then its key pair   4 record `active` by `set_if`
    end      1 record `ending` by `set_if`   2 key pair, logins, user   3 branch, if it has the mark   4 no record

A crash leaves a record, and `clean`, which every process repeats, ends sandboxes that should be over. An end removes
only things with the sandbox's uid or mark. So a branch that was brought back after the end, and a user who has the
name by chance, stay.
"""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final, Protocol

from msgspec.structs import replace

from lakebed.auth import (
    PARTITION,
    SANDBOXES,
    Accounts,
    Condition,
    InvalidPolicy,
    IssuedCredentials,
    Ref,
    SandboxRecord,
    SandboxState,
    Statement,
    check_statements,
    decode,
    encode,
    no_action_files,
)
from lakebed.base import (
    Conflict,
    Denied,
    Invalid,
    LakebedError,
    NotFound,
    OutcomeUnknown,
    Ports,
    RepositoryUid,
    Unavailable,
    in_digits,
)
from lakebed.catalog import HookRefused, Repository, RepositoryNotFound
from lakebed.kv import Held, PredicateFailed, Store, scan_prefix
from lakebed.quotas import Books, Meter, Scope, of_branch
from lakebed.versions import BranchNotFound, RefKind, Versions

READ: Final = ("fs:ReadBranch", "fs:ReadTag", "fs:ReadCommit", "fs:ReadObject", "fs:ListObjects", "fs:ListCommits")


logger = logging.getLogger(__name__)

LASTS_MS_MAX: Final = 366 * 24 * 3_600_000
HALF_MADE_MS: Final = 15 * 60_000
"""A record may be `creating` for this time, and stays for it when it ends so: a stalled maker may write until then."""
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{0,64}")


class SandboxNotFound(NotFound):
    """The repository has no sandbox of this id, or it has ended."""


class Repositories(Protocol):
    async def get(self, repository_id: str) -> Repository: ...


async def is_current(repositories: Repositories, record: SandboxRecord) -> bool:
    """Return whether the repository of this name is the one that the sandbox was made in."""
    try:
        return (await repositories.get(record.repository)).versions.uid == record.repository_uid
    except RepositoryNotFound:
        return False


class Sandboxes:
    """`forget` drops keys and users from this process's caches; other processes follow within seconds."""

    def __init__(
        self,
        store: Store,
        ports: Ports,
        accounts: Accounts,
        repositories: Repositories,
        forget: Callable[[], None] = lambda: None,
        *,
        books: Books | None = None,
    ) -> None:
        self._store = store
        self._ports = ports
        self._accounts = accounts
        self._repositories = repositories
        self._forget = forget
        self._books = books or Books(Meter(store, ports))

    # Making

    def fresh_id(self, name: str = "") -> str:
        """Return a name that no sandbox, branch or user had before.

        Raises:
            Invalid: the name has other characters than a branch.
        """
        if not _NAME.fullmatch(name):
            raise Invalid("a sandbox's name has up to 64 letters, digits, underscores and dashes", name=name)
        suffix = in_digits(self._ports.ids.bits(50), 10)
        return f"sandbox-{name}-{suffix}" if name else f"sandbox-{suffix}"

    async def create(
        self,
        repository: Repository,
        id_: str,
        *,
        source: str,
        read: Ref,
        lasts_ms: int,
        by: str,
        denials: Sequence[Statement] = (),
        quota_bytes: int = 0,
    ) -> tuple[SandboxRecord, IssuedCredentials]:
        """Make a branch from `source` and a key pair for it. Nothing is left of it if an error is raised, in the end.

        `id_` is a `fresh_id`, and `read` the ref that the key may read beside its branch. `quota_bytes`: how many may
        be written to the branch, 0: any number.

        Raises:
            Invalid: it would last too long, or not at all, or its quota is too large.
            InvalidPolicy: see `rights_of`.
            RefNotFound, ReadOnly, HookRefused: as for a branch.
        """
        _check_lasts(lasts_ms)
        now_ms = self._ports.clock.now_ms()
        record = SandboxRecord(
            id=id_,
            state=SandboxState.CREATING,
            repository=repository.id,
            repository_uid=repository.versions.uid,
            source=source,
            commit_id="",
            user_uid=self._ports.ids.fresh(),
            access_key_id=self._accounts.fresh_access_key_id(),
            created_ms=now_ms,
            created_by=by,
            expires_ms=now_ms + lasts_ms,
            statements=rights_of(repository.id, id_, read, denials),
            quota_bytes=quota_bytes,
        )
        held = await self._set(record, None)
        try:
            if quota_bytes:
                await self._books.set(_scope(record), limit_bytes=quota_bytes, by=by)
            commit_id = await repository.changes.create_branch(id_, source, by=by, sandbox=id_)
            issued = await self._accounts.create_sandbox_user(record)
            record = replace(record, state=SandboxState.ACTIVE, commit_id=commit_id)
            await self._set(record, held)
        except BaseException as error:
            if not isinstance(error, GeneratorExit):
                await self._give_up(record, by, error)
            raise
        return record, issued

    async def _give_up(self, record: SandboxRecord, by: str, error: BaseException) -> None:
        with suppress(LakebedError):
            ending = await self._begin_end(record)
            if ending is not None:
                # Without a clear answer, or cancelled, a write of ours may yet come: `clean` looks again later.
                is_over = isinstance(error, LakebedError) and not isinstance(error, OutcomeUnknown | Unavailable)
                await self._finish(*ending, by=by, is_over=is_over)

    # Looking

    async def get(self, repository: Repository, id_: str) -> SandboxRecord:
        """
        Raises:
            SandboxNotFound: see there.
        """
        return (await self._find(repository, id_))[0]

    async def lasts(self, id_: str) -> bool:
        """Return whether a sandbox has this id, also one that is being made or ended."""
        return await self._read(id_) is not None

    async def list(
        self, repository: Repository, *, prefix: str = "", after: str = "", limit: int = 1000
    ) -> tuple[Sequence[SandboxRecord], bool]:
        """Return the sandboxes of a repository by id, and whether more follow. Reads past those of others."""
        found: list[SandboxRecord] = []
        async for one in self._all(prefix, after):
            if one.repository_uid == repository.versions.uid:
                if len(found) == limit:
                    return found, True
                found.append(one)
        return found, False

    async def _find(self, repository: Repository, id_: str) -> tuple[SandboxRecord, Held]:
        found = await self._read(id_)
        if found is None or found[0].repository_uid != repository.versions.uid:
            raise SandboxNotFound(f"there is no sandbox {id_}", sandbox=id_)
        return found

    async def _read(self, id_: str) -> tuple[SandboxRecord, Held] | None:
        held = await self._store.get(PARTITION, SANDBOXES + id_.encode()) if _is_id(id_) else None
        return None if held is None else (decode(SandboxRecord, held.value), held)

    async def _all(self, prefix: str = "", after: str = "") -> AsyncIterator[SandboxRecord]:
        start = SANDBOXES + after.encode() + b"\0" if after else b""
        async for _, value in scan_prefix(self._store, PARTITION, SANDBOXES + prefix.encode(), start=start):
            yield decode(SandboxRecord, value)

    # Extending and ending

    async def extend(self, repository: Repository, id_: str, *, lasts_ms: int) -> SandboxRecord:
        """Let a sandbox last so long from now.

        Raises:
            SandboxNotFound, Conflict.
            Invalid: it lasts that long already, or would last too long.
        """
        _check_lasts(lasts_ms)
        while True:
            record, held = await self._find(repository, id_)
            now_ms = self._ports.clock.now_ms()
            # One that has expired is ending, although no process may have begun with it.
            if record.state is not SandboxState.ACTIVE or now_ms >= record.expires_ms:
                raise Conflict(f"sandbox {id_} is {record.state}, and cannot be extended", sandbox=id_)
            if now_ms + lasts_ms < record.expires_ms:
                raise Invalid(f"sandbox {id_} lasts longer already: end it, if it should end", sandbox=id_)
            extended = replace(record, expires_ms=now_ms + lasts_ms)
            with suppress(PredicateFailed):
                await self._set(extended, held)
                self._forget()
                return extended

    async def end(self, repository: Repository, id_: str, *, by: str, keeps_branch: bool = False) -> str:
        """Revoke the key and delete the branch, or keep it. Return why the branch is still there, "" where it is not.

        Raises:
            SandboxNotFound.
            Conflict: it is ending, and its branch goes.
        """
        record, _ = await self._find(repository, id_)
        ending = await self._begin_end(record, keeps_branch=keeps_branch)
        if ending is None:
            raise SandboxNotFound(f"there is no sandbox {id_}", sandbox=id_)
        if keeps_branch and not ending[0].keeps_branch:
            raise Conflict(f"sandbox {id_} is ending already, and its branch with it", sandbox=id_)
        return await self._finish(*ending, by=by, is_over=not ending[0].was_half_made)

    async def clean(self, repository: str = "") -> None:
        """End sandboxes that expired, lost their branch, or were left half made or half ended. Many may run at once.

        With `repository`, only those of that id. An error of one sandbox, or of one repository, is logged, and the
        others go on. A crash leaves nothing that this does not remove, at the latest at its second pass HALF_MADE_MS
        apart.
        """
        records = [one async for one in self._all() if repository in ("", one.repository)]
        now_ms = self._ports.clock.now_ms()
        alone = await self._without_branch([one for one in records if one.state is SandboxState.ACTIVE])

        def is_due(record: SandboxRecord) -> bool:
            match record.state:
                case SandboxState.ACTIVE:
                    return now_ms >= record.expires_ms or record.id in alone
                case SandboxState.CREATING:
                    return now_ms >= record.created_ms + HALF_MADE_MS
                case SandboxState.ENDING:
                    return True

        for record in records:
            # One that fails must not keep the keys of those behind it alive.
            with _logged(f"sandbox {record.id}"):
                ending = await self._begin_end(record, is_due) if is_due(record) else None
                if ending is not None:
                    is_over = not ending[0].was_half_made or now_ms >= ending[0].ending_ms + HALF_MADE_MS
                    await self._finish(*ending, by=record.created_by, is_over=is_over)

    async def _without_branch(self, records: Sequence[SandboxRecord]) -> set[str]:
        """Return the ids of those whose branch is gone, or is another one that was brought back. In doubt it stays."""
        by_repository: dict[str, list[SandboxRecord]] = {}
        for record in records:
            by_repository.setdefault(record.repository, []).append(record)
        alone: set[str] = set()
        for name, those in by_repository.items():
            with _logged(f"sandboxes of {name}"):
                try:
                    repository = await self._repositories.get(name)
                except RepositoryNotFound:
                    alone.update(one.id for one in those)
                    continue
                alone.update(one.id for one in those if one.repository_uid != repository.versions.uid)
                marks = await repository.versions.refs.sandboxes_of([one.id for one in those])
                alone.update(one.id for one, mark in zip(those, marks, strict=True) if mark != one.id)
        return alone

    async def _begin_end(
        self,
        record: SandboxRecord,
        is_due: Callable[[SandboxRecord], bool] = lambda _: True,
        *,
        keeps_branch: bool = False,
    ) -> tuple[SandboxRecord, Held] | None:
        """Take the rights from the key, if no request has, and return the ending record.

        None: it has ended, or it is not due any more by the record that the end would replace.
        """
        while True:
            found = await self._read(record.id)
            if found is None or found[0].user_uid != record.user_uid:
                return None
            now, held = found
            if now.state is SandboxState.ENDING:
                return found
            if not is_due(now):
                return None  # It was extended, or became active, since `record` was read.
            ending = replace(
                now,
                state=SandboxState.ENDING,
                ending_ms=self._ports.clock.now_ms(),
                was_half_made=now.state is SandboxState.CREATING,
                keeps_branch=keeps_branch and now.state is SandboxState.ACTIVE,
            )
            with suppress(PredicateFailed):
                held = await self._set(ending, held)
                self._forget()
                return ending, held

    async def _finish(self, record: SandboxRecord, held: Held, *, by: str, is_over: bool) -> str:
        """Remove the user and the branch; with `is_over` the record, too. Return why the branch stays."""
        assert record.state is SandboxState.ENDING
        await self._accounts.delete_sandbox_user(record)
        self._forget()
        kept = "it was promoted" if record.keeps_branch else await self._delete_branch(record, by)
        # Without one of its own, the branch may have one that was set later. That stays with a branch that stays.
        if record.quota_bytes or not kept:
            await self._books.remove(_scope(record))
        if is_over:
            with suppress(PredicateFailed):  # Another process has removed it.
                await self._store.delete_if(PARTITION, SANDBOXES + record.id.encode(), held.predicate)
        return kept

    async def _delete_branch(self, record: SandboxRecord, by: str) -> str:
        try:
            repository = await self._repositories.get(record.repository)
            if repository.versions.uid != record.repository_uid:
                return ""
            # Before hooks hear of it: a branch that was brought back is no part of the sandbox any more.
            [mark] = await repository.versions.refs.sandboxes_of([record.id])
            if mark == record.id:
                await repository.changes.delete_branch(record.id, by=by, sandbox=record.id)
        except (RepositoryNotFound, BranchNotFound):
            return ""
        except (Denied, HookRefused) as error:
            return str(error)  # A setting or a hook keeps it. The key is revoked all the same.
        return ""

    async def _set(self, record: SandboxRecord, held: Held | None) -> Held:
        """Write over exactly the record that was read.

        Raises:
            PredicateFailed: it is another by now.
            OutcomeUnknown: an answer was lost, and the record is not this one.
        """
        key, value = SANDBOXES + record.id.encode(), encode(record)
        try:
            predicate = await self._store.set_if(PARTITION, key, value, held.predicate if held else None)
        except OutcomeUnknown as error:
            try:
                now = await self._read(record.id)
            except Unavailable:
                raise error from None  # Its own error would say that nothing happened.
            if now is None or now[1].value != value:
                raise
            return now[1]
        return Held(value, predicate)


@contextmanager
def _logged(about: str) -> Iterator[None]:
    """Log an error, and go on after it: the next pass tries again."""
    try:
        yield
    except LakebedError as error:
        logger.warning("%s: %s", about, error)


def _check_lasts(lasts_ms: int) -> None:
    if not 0 < lasts_ms <= LASTS_MS_MAX:
        raise Invalid("a sandbox lasts at most 366 days: say how long, as 36h, 20d or 2w")


def _scope(record: SandboxRecord) -> Scope:
    return of_branch(RepositoryUid(record.repository_uid), record.id)


def _is_id(id_: str) -> bool:
    return id_.startswith("sandbox-") and _NAME.fullmatch(id_[len("sandbox-") :][:64]) is not None and len(id_) < 128


# The rights of its key, made once, with the sandbox
#
# It may read the source and the branch, write, commit and reset on the branch, and open pull requests from it. A merge
# or reset puts a commit of another ref on the branch and asks for no allow of that ref, so the rights deny all others.
# They deny action files, too: these have the server send its values anywhere, and decide which checks a merge passes.


def rights_of(repository: str, branch: str, source: Ref, denials: Sequence[Statement] = ()) -> tuple[Statement, ...]:
    """Return the statements of a sandbox's user. `denials` are those of its maker: they hold for its key, too.

    Raises:
        InvalidPolicy: the name of a tag, or a denial, has characters that no statement can have.
    """
    lake = f"arn:lakefs:fs:::repository/{repository}"
    refs = (branch, str(source.ref))
    at_refs = (Condition(operator="StringEquals", key="ref", values=refs),)
    elsewhere = (Condition(operator="StringNotEquals", key="ref", values=refs),)
    on_branch = (Condition(operator="StringEquals", key="branch", values=(branch,)),)
    written, moved = ("fs:WriteObject", "fs:DeleteObject"), ("fs:CreateCommit", "fs:RevertBranch")
    return check_statements(
        [
            Statement(effect="allow", actions=("fs:ReadRepository", "pr:ReadPullRequest"), resource=lake),
            Statement(effect="allow", actions=READ, resource=lake, conditions=at_refs),
            Statement(effect="allow", actions=READ, resource=f"{lake}/*", conditions=at_refs),
            Statement(effect="allow", actions=written, resource=f"{lake}/object/*", conditions=on_branch),
            Statement(effect="allow", actions=moved, resource=f"{lake}/branch/{branch}", conditions=on_branch),
            Statement(effect="allow", actions=("pr:WritePullRequest",), resource=lake, conditions=on_branch),
            Statement(effect="deny", actions=READ, resource="*", conditions=elsewhere),
            no_action_files(repository),
            *denials,
        ]
    )


async def source_of(versions: Versions, expression: str) -> Ref:
    """Return the branch or tag that the key may go on reading. Another expression stands for its commit of now.

    Raises:
        RefNotFound, BranchNotFound, CommitNotFound: it names nothing.
    """
    kind = await versions.refs.kind_of(expression)
    if kind is RefKind.BRANCH:
        return Ref.of_branch(expression)
    if kind is RefKind.TAG:
        tag = Ref.of_tag(expression)
        try:
            rights_of("lake", "branch", tag)
        except InvalidPolicy:
            pass  # No condition can name this tag.
        else:
            return tag
    return Ref(ref=await versions.refs.resolve_commit(expression))
