"""The lake for asyncio programs: every call is awaited, and every iterator is asynchronous.

A synchronous lake does the work in threads of this module, so both lakes run the same code. A call holds a thread and a
connection while it waits. At most THREADS calls run at once; further calls wait for a thread.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from itertools import islice
from types import TracebackType
from typing import Any, Concatenate, Final, Generic, ParamSpec, Self, TypeVar

from lakebed.client import Strategy

from .lake import Lake
from .refs import Branch, Ref, Transaction
from .repository import Repository

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")
S_co = TypeVar("S_co", covariant=True)
Ref_co = TypeVar("Ref_co", bound=Ref, covariant=True)
Wrapped = TypeVar("Wrapped", bound="_Async[Any]")

THREADS: Final = 32
PAGE: Final = 1000
"""Take this many results from an iterator at a time, as many as one request returns."""


class _Async(Generic[S_co]):
    """One object of the synchronous library, and the threads that call it."""

    def __init__(self, sync: S_co, pool: ThreadPoolExecutor) -> None:
        self.sync = sync
        """The synchronous object, for code without await."""
        self._pool = pool

    def __repr__(self) -> str:
        return f"Async{self.sync!r}"

    async def _call(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, functools.partial(function, *args, **kwargs))


def _awaited(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[_Async[S], P], Coroutine[Any, Any, R]]:
    """Make an awaitable method of a blocking method."""

    @functools.wraps(method)
    async def call(self: _Async[S], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await self._call(method, self.sync, *args, **kwargs)

    return call


def _giving(
    kind: type[Wrapped], method: Callable[Concatenate[S, P], object]
) -> Callable[Concatenate[_Async[S], P], Coroutine[Any, Any, Wrapped]]:
    """Make an awaitable method, as `_awaited`, that wraps the result in `kind`."""

    @functools.wraps(method)
    async def call(self: _Async[S], /, *args: P.args, **kwargs: P.kwargs) -> Wrapped:
        return kind(await self._call(method, self.sync, *args, **kwargs), self._pool)

    return call


def _iterated(
    method: Callable[Concatenate[S, P], Iterator[R]],
) -> Callable[Concatenate[_Async[S], P], AsyncIterator[R]]:
    """Make an async iterator of a generator method."""

    @functools.wraps(method)
    async def call(self: _Async[S], /, *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[R]:
        found = method(self.sync, *args, **kwargs)
        while page := await self._call(lambda: [*islice(found, PAGE)]):
            for one in page:
                yield one

    return call


class _Reading(_Async[Ref_co]):
    def __str__(self) -> str:
        return self.sync.name

    commit_record = _awaited(Ref.commit_record)
    log = _iterated(Ref.log)
    diff = _iterated(Ref.diff)
    list = _iterated(Ref.list)
    stat = _awaited(Ref.stat)
    exists = _awaited(Ref.exists)
    read = _awaited(Ref.read)
    download = _awaited(Ref.download)


class AsyncRef(_Reading[Ref]):
    """See `Ref`."""


class AsyncBranch(_Reading[Branch]):
    """See `Branch`."""

    write = _awaited(Branch.write)
    upload = _awaited(Branch.upload)
    copy = _awaited(Branch.copy)
    delete = _awaited(Branch.delete)
    uncommitted = _iterated(Branch.uncommitted)
    commit = _awaited(Branch.commit)
    reset = _awaited(Branch.reset)
    merge = _awaited(Branch.merge)
    import_folder = _awaited(Branch.import_folder)
    revert = _awaited(Branch.revert)
    cherry_pick = _awaited(Branch.cherry_pick)
    drop = _awaited(Branch.drop)

    @asynccontextmanager
    async def transaction(
        self, message: str, *, metadata: Mapping[str, str] | None = None, strategy: Strategy | None = None
    ) -> AsyncIterator[AsyncTransaction]:
        """Write all or nothing, as `Branch.transaction`, with the same errors."""
        block = self.sync.transaction(message, metadata=metadata, strategy=strategy)
        entering = asyncio.ensure_future(self._call(block.__enter__))
        try:
            own = AsyncTransaction(await asyncio.shield(entering), self._pool)
            yield own
        except BaseException as error:
            # The synchronous transaction's exit handles the error. A cancelled task, even one that is still making its
            # branch, still removes that branch.
            await asyncio.wait([entering])
            if not entering.cancelled() and entering.exception() is None:
                await asyncio.shield(self._call(block.__exit__, type(error), error, error.__traceback__))
            raise
        await asyncio.shield(self._call(block.__exit__, None, None, None))


class AsyncTransaction(AsyncBranch):
    """See `Transaction`."""

    @property
    def result(self) -> str:
        """The id of the commit, once the block has ended; empty if nothing changed."""
        assert isinstance(self.sync, Transaction)
        return self.sync.result


class AsyncRepository(_Async[Repository]):
    """See `Repository`."""

    def ref(self, expression: str) -> AsyncRef:
        """Return the ref of a tag, a commit id, or an expression such as `main~2`. Sends no request."""
        return AsyncRef(self.sync.ref(expression), self._pool)

    def branch(self, name: str = "") -> AsyncBranch:
        """Return a branch; without a name, the default branch. Sends no request."""
        return AsyncBranch(self.sync.branch(name), self._pool)

    async def branches(self, *, prefix: str = "") -> AsyncIterator[AsyncBranch]:
        """Yield branches by name, ascending."""
        async for found in _names(self, prefix=prefix):
            yield AsyncBranch(found, self._pool)

    async def tags(self, *, prefix: str = "") -> AsyncIterator[AsyncRef]:
        """Yield tags by name, ascending."""
        async for found in _tags(self, prefix=prefix):
            yield AsyncRef(found, self._pool)

    create_branch = _giving(AsyncBranch, Repository.create_branch)
    create_tag = _giving(AsyncRef, Repository.create_tag)
    delete_tag = _awaited(Repository.delete_tag)
    delete = _awaited(Repository.delete)


_names = _iterated(Repository.branches)
_tags = _iterated(Repository.tags)
_repositories = _iterated(Lake.repositories)


class AsyncLake(_Async[Lake]):
    """A lake with awaited calls: `AsyncLake(lakebed.connect())`, or over `lakebed.open_local`.

    An async context manager: leaving it closes the given lake.
    """

    def __init__(self, lake: Lake) -> None:
        super().__init__(lake, ThreadPoolExecutor(THREADS, thread_name_prefix="lakebed"))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        await self.close()

    async def close(self) -> None:
        """Wait for the calls under way, then close the lake."""
        await asyncio.to_thread(self._pool.shutdown)
        await asyncio.to_thread(self.sync.close)

    async def repositories(self, *, prefix: str = "") -> AsyncIterator[AsyncRepository]:
        """Yield repositories by name, ascending."""
        async for found in _repositories(self, prefix=prefix):
            yield AsyncRepository(found, self._pool)

    repository = _giving(AsyncRepository, Lake.repository)
    create_repository = _giving(AsyncRepository, Lake.create_repository)
