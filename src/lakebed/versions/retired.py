"""What a collection of committed data means to everybody else: which commits may no longer be named.

Whoever is about to name a commit first writes where a run will look (a ref that is `creating`, an intent, a commit
record), then checks here; a run first publishes what it condemns, then looks there. So one of the two sees the other
(docs/design/protocols.md, "Naming a commit while a collection of committed data runs"). A commit that was given up is
not read through either: else a path would resolve until its object goes, and no reader had any grace.

And what one of metadata means: which ids of files may no longer be written ("A collection of metadata").
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from lakebed.base import CommitId, RunId, RunState
from lakebed.ranges import FileCorrupt

from . import keys
from .context import Context
from .errors import Condemned, ContentsGone
from .records import RunRecord, SweptRecord, decode_record
from .trees.files import MISSING

P = ParamSpec("P")
T = TypeVar("T")
TAKING = frozenset({RunState.CONDEMNING, RunState.SWEEPING})


class Retired:
    def __init__(self, context: Context) -> None:
        self._context = context

    async def check_not_condemned(self, commits: Iterable[CommitId]) -> None:
        """Costs a scan of the runs, and for each commit one `get` and one more for each run that condemns just now.

        Raises:
            Condemned: a run took, or is about to take, the data of one of these commits.
        """
        wanted = sorted(set(commits) - {CommitId("")})
        taking = [run for run, record in await self.runs() if record.state in TAKING]
        for run in taking:
            partition = keys.condemned_partition(self._context.uid, run)
            for commit, held in zip(
                wanted,
                await self._context.store.get_many(partition, [commit.encode() for commit in wanted]),
                strict=True,
            ):
                if held is not None:
                    raise _condemned(commit, run)
        # After the runs, never before: a run writes these before it ends, so one of the two looks finds it.
        swept = await self._context.get_many([keys.SWEPT + commit.encode() for commit in wanted])
        for commit, held in zip(wanted, swept, strict=True):
            if held is not None:
                raise _condemned(commit, RunId(decode_record(SweptRecord, held.value).run))

    async def check_contents(self, commits: Sequence[CommitId]) -> None:
        """To be asked after the contents were read: what was read before the run gave them up is readable for the grace
        that it waits then (lakebed.gc, grace.py). Heads of branches need no look. Costs one `get_many`.

        Raises:
            ContentsGone: a run gave one of these commits up.
        """
        found = await self._context.get_many([keys.SWEPT + commit.encode() for commit in commits])
        for commit, held in zip(commits, found, strict=True):
            if held is not None:
                run = decode_record(SweptRecord, held.value).run
                what = f"the contents of commit {commit[:12]} were given up by collection run {run}"
                raise ContentsGone(what, commit=commit, run=run)

    async def retired_by(self, ids: Sequence[str]) -> list[str]:
        """For each id of a file nothing, or the run that gave it up: then the file is written with that for a salt.

        One `get_many`, which for a writer must begin after the branch was read that the files are for.
        """
        found = await self._context.store.get_many(
            keys.retired_partition(self._context.uid), [id_.encode() for id_ in ids]
        )
        return ["" if held is None else held.value.decode() for held in found]

    async def took(self, error: FileCorrupt) -> Condemned | None:
        """Where a file of a tree is missing because a collection gave it up, that in so many words."""
        [run] = await self.retired_by([error.id]) if error.reason == MISSING else [""]
        if not run:
            return None
        return Condemned(f"the contents of this commit were given up by collection run {run}", run=run)

    async def runs(self) -> list[tuple[RunId, RunRecord]]:
        """Every run, oldest first."""
        return [
            (RunId(key[len(keys.RUN) :].decode()), record)
            async for key, record in self._context.records(RunRecord, keys.RUN)
        ]


def says_who_took(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """Wrap a method of a part with `_retired` that reads what commits hold.

    Where a file is missing because a collection took it, the method raises Condemned.
    """

    @wraps(method)
    async def asking(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return await method(self, *args, **kwargs)
        except FileCorrupt as error:
            taken = await self._retired.took(error)
            if taken is None:
                raise
            raise taken from error

    return asking


def _condemned(commit: CommitId, run: str) -> Condemned:
    return Condemned(f"commit {commit[:12]} was given up by collection run {run}", commit=commit, run=run)
