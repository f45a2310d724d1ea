"""Declare the answer to why an object is kept, until when, or which run took it (JSON).

Repeat the request with the token of its page until a page has the answer. An address is relative to the storage
namespace, or absolute: both spellings give one answer. No run acts on the answer; each run decides anew.
"""

from __future__ import annotations

from enum import StrEnum
from itertools import takewhile
from typing import NamedTuple

import msgspec

from lakebed.gc.rules import Stay
from lakebed.gc.rules.lifecycle import Keeps

from .run.ledger import LedgerRow, LedgerState

__all__ = [
    "CommittedName",
    "DueName",
    "Fate",
    "Question",
    "UncommittedName",
    "WhyAnswer",
    "WhyObject",
    "WhyPage",
    "WhyProgress",
]


class Question(NamedTuple):
    """Ask about an address, or about a path at a ref."""

    address: str = ""
    ref: str = ""
    path: str = ""


class Fate(StrEnum):
    """Name the state of an object.

    `kept`: an entry, a rule or a hold keeps it now.
    `expired`: only expired commits name it, so the next collection of committed data may take it.
    `deferred`: a run deletes it when its window is over.
    `unreferenced`: no entry names it, so the next collection of uncommitted data may take it.
    `young`: no entry names it, but the rules keep it for its age.
    `taken`: a run took it.
    `missing`: an entry names it, but the object is not in the store.
    `unknown`: the object is not in the store, and no ledger has a row of it.
    `outside`: it is not in the storage namespace, so no run ever takes it.
    `own`: a file of Lakebed itself. Only a metadata run may take it, and not while a commit in the answer names it.

    In a deleted repository: `deleted`, its collection takes the object; `unrecorded`, the object stays, because no
    record says that the repository wrote it. Of Lakebed's own files that collection takes those of trees and runs.
    """

    KEPT = "kept"
    EXPIRED = "expired"
    DEFERRED = "deferred"
    UNREFERENCED = "unreferenced"
    YOUNG = "young"
    TAKEN = "taken"
    MISSING = "missing"
    UNKNOWN = "unknown"
    OUTSIDE = "outside"
    OWN = "own"
    DELETED = "deleted"
    UNRECORDED = "unrecorded"


class UncommittedName(msgspec.Struct, frozen=True, kw_only=True):
    """A name of an object outside of commits. `source`: staging, upload or copy. `path`: the path of a staged cell."""

    source: str
    branch: str
    path: str = ""
    since_ms: int


class CommittedName(msgspec.Struct, frozen=True, kw_only=True):
    """A commit that has the object at `path`. `run`: the run that expires or took the commit's data, usually empty."""

    commit: str
    created_ms: int
    path: str
    run: str = ""


class DueName(msgspec.Struct, frozen=True, kw_only=True):
    """A path at which commits have the object, judged by the policy. Equal names of several commits are one."""

    path: str
    modified_ms: int
    # The rule that applies, as a plan shows it.
    rule: str = ""
    # The first instant at which the name is due, or None for never; `keeps` gives the reason.
    due_ms: int | None = None
    keeps: Keeps = Keeps.NOTHING
    # The branch that keeps the name longest, or empty.
    branch: str = ""
    # Some of the branches that reach the commits; `branches_count` counts all.
    branches: tuple[str, ...] = ()
    branches_count: int = 0
    # The newest of the commits.
    commit: str
    commits_count: int = 1


class WhyObject(msgspec.Struct, frozen=True, kw_only=True):
    """One object. `address` is relative to the namespace, or absolute outside of it."""

    address: str
    fate: Fate
    size_bytes: int | None = None
    modified_ms: int | None = None
    # The first instant at which a run may take the object if nothing changes, or None.
    goes_ms: int | None = None
    # Uploads into its slice have ended, which a run waits for; None for foreign addresses. `stays` (reasons that keep
    # it first), `commits` (newest first), `uncommitted`: the first few; the counts are of all.
    slice_closed: bool | None = None
    stays: tuple[Stay, ...] = ()
    stays_count: int = 0
    commits: tuple[CommittedName, ...] = ()
    commits_count: int = 0
    uncommitted: tuple[UncommittedName, ...] = ()
    uncommitted_count: int = 0
    # The ledger's rows of a missing object, latest first.
    taken: tuple[LedgerRow, ...] = ()
    # The names of the legal holds that keep it.
    holds: tuple[str, ...] = ()
    # The run that deletes a deferred object, at `goes_ms`.
    run: str = ""
    # When all `due_names` are due (latest first, the first few). None: never, no policy, or no commit names it.
    due_ms: int | None = None
    due_names: tuple[DueName, ...] = ()
    due_names_count: int = 0
    # Other repositories that name an object of a deleted repository, so that it stays.
    elsewhere: tuple[str, ...] = ()

    @property
    def taker(self) -> LedgerRow | None:
        """The row of the run that deleted a taken object, an erasure first.

        Where two plans had one object, the first apply took it, and the other found it gone.
        """
        # A row of a table has its state as text.
        last = takewhile(lambda row: row.state != LedgerState.RESTORED, self.taken)
        deleted = [row for row in last if row.state == LedgerState.DELETED]
        erased = [row for row in deleted if row.is_erasure]
        return next(reversed(erased or deleted), None)


class WhyAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The objects of the question: the object at the path, or every object that was ever at the path, newest first."""

    repository_uri: str
    address: str = ""
    ref: str = ""
    path: str = ""
    # The path names an object at the ref now. `objects_count` includes objects that are not in `objects`.
    at_ref: bool = False
    now_ms: int
    rules_version: int
    has_rules: bool
    # The version of the lifecycle policy in force, or None.
    policy_version: int | None = None
    # The uid of the deleted repository of the question; neither commits nor rules keep its objects.
    deleted_uid: str = ""
    objects: tuple[WhyObject, ...]
    objects_count: int


class WhyProgress(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of a search. `stage`: `commits`, `staging`, `deferred`, `ledger` or `elsewhere`; where what commits
    keep is counted, or rules are tried, `commits`, `rules`, `trees` or `ranges`.

    `done` counts finished records, days, trees, branches or files, and `of` all (0: unknown). `files` were read since
    the last report.
    """

    stage: str
    done: int = 0
    of: int = 0
    files: int = 0


class WhyPage(msgspec.Struct, frozen=True, kw_only=True):
    """The answer; or the progress of the search, and the token for the next request."""

    answer: WhyAnswer | None = None
    progress: WhyProgress | None = None
    continuation_token: str | None = None
