"""Reach one repository from this process: the server, the storage namespace, and an engine for the heavy steps."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from lakebed.base import NotFound
from lakebed.gc.engines.files import Files, Lake
from lakebed.gc.engines.spark import open_engine
from lakebed.gc.messages import EngineName, Service
from lakebed.gc.runs.context import Progress, RunContext, find
from lakebed.objectstore import ObjectStore, ObjectStoreOptions
from lakebed.runtime import live_ports

from .http_requests import Caller, HttpRequests, RetryingCaller, finish

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")
MARKER: Final = "_lakefs/dummy"
"""Every namespace in use has this file."""


class NamespaceMissing(NotFound):
    """The storage namespace was not found with this process's options."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """The fields are those of `Collector`."""

    client: Caller
    repository: str
    objectstore: ObjectStoreOptions
    session: Callable[[], SparkSession]
    progress: Progress
    deleted: str

    def service(self) -> Service:
        return Service(HttpRequests(self.client, self.repository, deleted=self.deleted))

    def lake(self) -> Lake:
        return Lake(uri=finish(self.service().namespace()), options=self.objectstore)

    def read(self, work: Callable[[ObjectStore], Coroutine[Any, Any, T]]) -> T:
        """Run work that needs only the files of the namespace, in this thread."""
        with Files(self.lake()) as files:
            return files.act(work)

    def act(self, work: Callable[[RunContext], Coroutine[Any, Any, T]], *, engine: EngineName, tasks: int | None) -> T:
        """Run a flow to its end, in this thread."""
        lake = self.lake()

        def with_store(store: ObjectStore) -> Coroutine[Any, Any, T]:
            # A run may take hours, so it waits for a server that restarts. A single request (`service`) fails at once.
            patient = RetryingCaller(self.client, self.progress)
            return work(
                RunContext(
                    repository=self.repository,
                    service=Service(HttpRequests(patient, self.repository, deleted=self.deleted)),
                    engine=open_engine(engine, lake, store, session=self.session, tasks=tasks),
                    store=store,
                    ports=live_ports(),
                    progress=self.progress,
                )
            )

        with Files(lake) as files:
            return files.act(with_store)

    def check_namespace(self) -> None:
        """Check that the namespace is reachable, with one request and one small read.

        Raises:
            NotFound: no such repository.
            NamespaceMissing: `objectstore` does not lead to its storage namespace.
        """
        lake = self.lake()
        with Files(lake) as files:
            if files.act(lambda store: find(store, MARKER)) is None:
                root = self.objectstore.local_root
                where = f"below {root}" if root is not None and lake.uri.startswith("local://") else "there"
                raise NamespaceMissing(f"storage namespace {lake.uri} is not {where}: it has no {MARKER}", uri=lake.uri)
