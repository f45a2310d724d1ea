"""Errors of one repository's versions. Families: lakebed.base.errors."""

from __future__ import annotations

from lakebed.base import AlreadyExists, Conflict, Invalid, NotFound, Unavailable


class BranchNotFound(NotFound):
    """There is no branch of this name."""


class TagNotFound(NotFound):
    """There is no tag of this name."""


class CommitNotFound(NotFound):
    """There is no published commit of this id."""


class RefNotFound(NotFound):
    """The expression names no branch, tag or commit."""


class PathNotFound(NotFound):
    """Nothing is at this path in this ref."""


class DeletedRefNotFound(NotFound):
    """No deleted branch or tag of this name is kept. Facts: `name`."""


class BranchExists(AlreadyExists):
    """A branch of this name exists."""


class TagExists(AlreadyExists):
    """A tag of this name exists."""


class MovedAsCopy(Conflict):
    """The source of a move was replaced or removed meanwhile: it stays as it is, and the target is a copy."""


class NameTaken(Conflict):
    """The name is taken: of a tag by a branch, of a branch by a tag, or it is a commit id. Facts: `name`."""


class PathExists(AlreadyExists):
    """`if_none_match`, and something is at the path."""


class PreconditionFailed(Conflict):
    """`if_match` or `if_address`, and another entry is at the path."""


class AnotherObject(PreconditionFailed):
    """`if_address`: the path has another object than its caller read, or none."""


class NoChanges(Invalid):
    """Nothing to commit or to merge."""


class BadRef(Invalid):
    """The ref expression is malformed, or asks for a parent that there is not; or a branch was needed."""


class InvalidNote(Invalid):
    """The date of a commit is out of bounds, or its message and metadata are too long."""


class UncommittedChanges(Invalid):
    """The operation would drop staged changes, and is not forced."""


class AddressNotAllowed(Invalid):
    """An address of this repository's namespace may only be named through its upload record."""


class MergeConflict(Conflict):
    """Both sides changed these paths. Facts: `conflicts`, keys in order, at most 1,000."""


class CommitOvertaken(Conflict):
    """A later commit, a reset or a deletion of the branch took the sealed tokens of this commit."""


class UploadMissing(Invalid):
    """The address to be linked has no bytes, or not the declared number."""


class UploadRefused(Conflict):
    """The address was not issued here, has expired, or was used before."""


class CopyGivenUp(UploadRefused):
    """The copy took so long that a cleaner took its maker for dead. The same copy may succeed now."""


class MultipartNotFound(NotFound):
    """There is no such upload in parts: it was never begun, or has been completed or aborted."""


class CompletionUnderWay(Unavailable):
    """Another request is completing this upload in parts, or died at it a moment ago."""


class CommitExpired(Conflict):
    """A collection run took this commit's data, or is about to. Facts: `commit`, `run`."""


class PathExpired(NotFound):
    """A lifecycle run took the object that the commit names. Facts: `by` (a TakenBy)."""


class ContentsGone(CommitExpired):
    """A read of a commit that a collection run took: its objects go at any moment. Facts: `commit`, `run`."""
