"""Resolve ref expressions of users to commits.

A ref expression is a branch, a tag, a commit id or an unambiguous prefix of one. Any number of `~N` (the N-th
first-parent ancestor) and `^N` (the N-th parent) may follow it. So may one of `@` (the branch's head without staged
changes) and `$` (with them, as a bare branch means, too). A branch or tag may be followed by `@{yesterday}`,
`@{3 days ago}`, `@{2}` or a date: its commit at that time (reflog.py). Where names clash, a whole
commit id wins over a branch, a branch over a tag, and a tag over the beginning of a commit id.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from lakebed.base import BranchName, CommitId, InvalidName, check_tag, is_commit_id
from lakebed.kv import scan_prefix
from lakebed.versions import keys
from lakebed.versions.context import Context
from lakebed.versions.errors import BadRef, BranchNotFound, CommitNotFound, RefNotFound
from lakebed.versions.records import BranchRecord, RefKind, RefState, TagRecord

from .reflog import Reflog

_EXPRESSION: Final = re.compile(r"(?P<base>[^~^@$]+)(?:@\{(?P<when>[^{}]+)\})?(?P<steps>(?:[~^]\d*)*)(?P<suffix>[@$]?)")
_SIGN: Final = re.compile(r"[~^@$]")
_STEP: Final = re.compile(r"([~^])(\d*)")
_HEX: Final = re.compile(r"[0-9a-f]{1,64}")
STEPS_MAX: Final = 1_000_000


class Resolved(msgspec.Struct, frozen=True):
    """`branch` is set where its staged changes count, too."""

    commit_id: CommitId
    branch: BranchName | None = None


class Expressions:
    def __init__(self, context: Context, reflog: Reflog) -> None:
        self._context = context
        self._reflog = reflog

    async def resolve(self, expression: str, *, to_name: bool = False) -> Resolved:
        """Resolve an expression. A branch without steps or `@` is read through its cached head, but not `to_name` it.

        Raises:
            RefNotFound: nothing has this name.
            BadRef: malformed, or no such parent.
        """
        base, when, steps, suffix = _parts_of(expression)
        if to_name and suffix == "$":
            # Its head would leave out just what was asked for.
            raise BadRef(f"{expression!r}: `$` stands for what is staged, which is no commit", ref=expression)
        if when is not None:
            return Resolved(await self._walk(await self._find_then(base, when, expression), steps, expression))
        # First, because a branch or tag of this name may be left from before such names were refused, or come from a
        # dump. It must not be read in the commit's place.
        if is_commit_id(base) and await self._is_commit(CommitId(base)):
            if suffix:
                raise RefNotFound("not found", ref=expression)
            return Resolved(await self._walk(CommitId(base), steps, expression))
        is_staged = not steps and suffix != "@"
        branches = self._context.branches
        # A cached head is good enough to read through, but not to name: that would be an old commit.
        read = branches.cached if is_staged and not to_name else branches.fresh
        try:
            seen = await read(base)
        except BranchNotFound:
            if suffix:
                raise RefNotFound("not found", ref=expression) from None
            commit_id = await self._resolve_tag_or_commit(base)
        else:
            if is_staged:
                return Resolved(seen.record.commit_id, BranchName(base))
            commit_id = seen.record.commit_id
        if steps and suffix == "$":
            raise BadRef(f"{expression!r}: `$` stands for what is staged, which has no parents", ref=expression)
        return Resolved(await self._walk(commit_id, steps, expression))

    async def resolve_commit(self, expression: str) -> CommitId:
        """Return the published commit that an expression names: of a branch its head, as of after the call began.

        Raises:
            RefNotFound: as for `resolve`.
            BadRef: as for `resolve`, or it ends with `$`.
        """
        return (await self.resolve(expression, to_name=True)).commit_id

    async def _find_then(self, name: str, when: str, expression: str) -> CommitId:
        try:
            # The rules of tags allow more: every name of a branch is one of a tag.
            check_tag(name)
        except InvalidName as error:
            raise BadRef(f"{expression!r}: only a branch or a tag has a log", ref=expression) from error
        parsed = self._reflog.parse(when, expression=expression)
        branch, tag = await self.branch_or_none(name), await self.tag_or_none(name)
        kind = RefKind.BRANCH if branch is not None or tag is None else RefKind.TAG
        if branch is None and tag is None and not (await self._reflog.list(kind, name, None, limit=1))[0]:
            kind = RefKind.TAG  # Neither is there, and no log of a branch: a tag that was deleted.
        return await self._reflog.find(kind, name, branch or tag, parsed, expression=expression)

    async def branch_or_none(self, name: str) -> BranchRecord | None:
        """Return the record of a branch, read anew."""
        try:
            return (await self._context.branches.fresh(name)).record
        except BranchNotFound:
            return None

    async def tag_or_none(self, name: str) -> TagRecord | None:
        """Return the record of a tag that can be used."""
        found = await self._context.read(TagRecord, keys.TAG + name.encode())
        return None if found is None or found[0].state is not RefState.ACTIVE else found[0]

    async def _is_commit(self, commit_id: CommitId) -> bool:
        try:
            return await self._context.commits.is_published(commit_id)
        except CommitNotFound:
            return False

    async def _resolve_tag_or_commit(self, name: str) -> CommitId:
        tag = await self.tag_or_none(name)
        if tag is not None:
            return tag.commit_id
        if not _HEX.fullmatch(name):
            raise RefNotFound("not found", ref=name)
        if is_commit_id(name):
            raise RefNotFound("not found", ref=name)
        return await self._resolve_prefix(name)

    async def _resolve_prefix(self, prefix: str) -> CommitId:
        found: list[CommitId] = []
        async for key, _ in scan_prefix(
            self._context.store, self._context.partition, keys.COMMIT + prefix.encode(), page_size=16
        ):
            commit_id = CommitId(key[len(keys.COMMIT) :].decode())
            if await self._context.commits.is_published(commit_id):
                found.append(commit_id)
            if len(found) > 1:
                raise BadRef(f"{prefix} is the beginning of several commit ids", ref=prefix)
        if not found:
            raise RefNotFound("not found", ref=prefix)
        return found[0]

    async def _walk(self, commit_id: CommitId, steps: str, expression: str) -> CommitId:
        for kind, digits in _STEP.findall(steps):
            count = int(digits[:8]) if digits else 1  # Python refuses to read numbers of thousands of digits.
            if len(digits) > 7 or count > STEPS_MAX:
                raise BadRef(f"{expression!r}: more than {STEPS_MAX} steps", ref=expression)
            if kind == "~":
                ancestor = await self._context.commits.ancestors.nth(commit_id, count)
                if ancestor is None:
                    raise RefNotFound("not found", ref=expression)
                commit_id = ancestor
            elif count:
                parents = (await self._context.commits.read(commit_id)).parents
                if count > len(parents):
                    raise BadRef(f"{expression!r}: the commit has no parent {count}", ref=expression)
                commit_id = parents[count - 1]
        return commit_id


def name_in(expression: str) -> str:
    """Return the branch, tag or commit with which an expression begins, also where it is malformed."""
    sign = _SIGN.search(expression)
    return expression if sign is None else expression[: sign.start()]


def _parts_of(expression: str) -> tuple[str, str | None, str, str]:
    """Return name, time in braces, steps and suffix.

    Raises:
        BadRef: malformed.
    """
    if expression and _SIGN.search(expression) is None:
        return expression, None, "", ""  # A plain name, as nearly always: a third of the cost of the whole pattern.
    match = _EXPRESSION.fullmatch(expression)
    if match is None:
        raise BadRef(f"{expression!r} is not a ref expression", ref=expression)
    return match["base"], match["when"], match["steps"], match["suffix"]
