"""Declare the answer to why an object is there, until when, or which run took it (JSON).

    GET  why      -> WhyPage      ?address=ADDRESS, or ?ref=REF&path=PATH; then &continuation_token=TOKEN too

until a page has the answer; below `/api/v1/repositories/{repository}/gc`. An address may be relative to the storage
namespace or absolute: both spellings of one object have one answer. Nothing is decided on it: a run decides anew.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

import msgspec

from lakebed.gc.rules import Stay
from lakebed.gc.rules.lifecycle import Keeps

from .run.ledger import LedgerRow


class Question(NamedTuple):
    """An address; or a ref and a path."""

    address: str = ""
    ref: str = ""
    path: str = ""


class Fate(StrEnum):
    """`kept`: something keeps it now. `expired`: only commits that expired name it, so the next collection of committed
    data may take it. `deferred`: a run deletes it once its window is over. `unreferenced`: nothing names it, so the
    next collection of uncommitted data may take it. `young`: nor does anything name this one, but the rules let it
    stay for its age. `taken`: a run took it. `missing`: something names it, and it is not there. `unknown`: it is not
    there, and no ledger knows it. `outside`: not in the storage namespace, so no run ever takes it. `own`: a file of
    Lakebed's own, which only a collection of metadata may take, and none while a commit shown names it.

    Of a deleted repository: `deleted`, its collection takes it; `unrecorded`, it stays, for no record says that the
    repository wrote it. Of its own files the collection takes those of trees and of runs.
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
    """Name an object outside of commits: `source` is staging, upload or copy. `path` is that of a staged cell."""

    source: str
    branch: str
    path: str = ""
    since_ms: int


class CommittedName(msgspec.Struct, frozen=True, kw_only=True):
    """A commit that has the object at `path`. `run` is the run that expires its data or took it, empty for most."""

    commit: str
    created_ms: int
    path: str
    run: str = ""


class DueName(msgspec.Struct, frozen=True, kw_only=True):
    """A path that commits have the object at, by the lifecycle policy. Equal ones of several commits are one.

    `due_ms` is the first instant at which it is due, None for never, which `keeps` explains. `rule` counts for it, as a
    plan shows it. `branch` keeps it longest; empty for commits that no branch reaches. Of the branches that reach the
    commits some are shown, and all counted. `commit` is the newest of them.
    """

    path: str
    modified_ms: int
    rule: str = ""
    due_ms: int | None = None
    keeps: Keeps = Keeps.NOTHING
    branch: str = ""
    branches: tuple[str, ...] = ()
    branches_count: int = 0
    commit: str
    commits_count: int = 1


class WhyObject(msgspec.Struct, frozen=True, kw_only=True):
    """One object. `address` is relative to the namespace, or absolute outside of it.

    `goes_ms` is the first instant at which a run may take it if nothing changes, None where there is no such.
    `slice_closed` says whether uploads into its slice have ended, which a run waits for; None for foreign addresses.
    Of `stays` (those that keep it first), `commits` (newest first) and `uncommitted` some are shown, and all counted.
    `taken` is what the ledger says of one that is not there, the latest deed first. `run` is the run that deletes one
    that is deferred, which `goes_ms` then is about. `holds` are the legal holds that keep it, by name.

    By the lifecycle policy it is due once all of `due_names` are (the latest first; some are shown, and all counted),
    which is at `due_ms`: None for never, and where no policy is set or no commit names it.

    `elsewhere` are other repositories that name an object of a deleted one, which therefore stays.
    """

    address: str
    fate: Fate
    size_bytes: int | None = None
    modified_ms: int | None = None
    goes_ms: int | None = None
    slice_closed: bool | None = None
    stays: tuple[Stay, ...] = ()
    stays_count: int = 0
    commits: tuple[CommittedName, ...] = ()
    commits_count: int = 0
    uncommitted: tuple[UncommittedName, ...] = ()
    uncommitted_count: int = 0
    taken: tuple[LedgerRow, ...] = ()
    holds: tuple[str, ...] = ()
    run: str = ""
    due_ms: int | None = None
    due_names: tuple[DueName, ...] = ()
    due_names_count: int = 0
    elsewhere: tuple[str, ...] = ()


class WhyAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The objects that the question is about: the one at the path, or those that were ever there, the newest first.

    `at_ref`: whether the path names an object at the ref now. `objects_count` counts those that are not shown, too.
    `policy_version` is that of the lifecycle policy in force, None where there is none. `deleted_uid`: the repository
    is this deleted one, of which neither commits nor rules keep anything.
    """

    repository_uri: str
    address: str = ""
    ref: str = ""
    path: str = ""
    at_ref: bool = False
    now_ms: int
    rules_version: int
    has_rules: bool
    policy_version: int | None = None
    deleted_uid: str = ""
    objects: tuple[WhyObject, ...]
    objects_count: int


class WhyProgress(msgspec.Struct, frozen=True, kw_only=True):
    """Say how far a search is. `stage`: `commits`, `staging`, `deferred`, `ledger` or `elsewhere`. `done` counts trees,
    branches or files that it is through with, `of` how many there are (0: not known). `files` were read since the last
    word.
    """

    stage: str
    done: int = 0
    of: int = 0
    files: int = 0


class WhyPage(msgspec.Struct, frozen=True, kw_only=True):
    """An answer; or how far the search is, and the token to ask again with."""

    answer: WhyAnswer | None = None
    progress: WhyProgress | None = None
    continuation_token: str | None = None
