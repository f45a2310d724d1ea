"""Errors of the catalog. Families: lakebed.base.errors."""

from __future__ import annotations

from lakebed.base import AlreadyExists, Conflict, Denied, Invalid, NotFound, Unavailable


class RepositoryNotFound(NotFound):
    """There is no repository of this id, or it is being made or deleted."""


class RepositoryExists(AlreadyExists):
    """There is a repository of this id."""


class DeletedNotFound(NotFound):
    """No deleted repository of this name is kept: it was forgotten, or brought back. Facts: `repository`."""


class SeveralDeleted(Conflict):
    """Several deleted repositories had this name, and the caller did not say which."""


class WindowNotOver(Conflict):
    """A deleted repository can be brought back still, so no collection deletes its objects. Facts: `until_ms`."""


class DeleteProtected(Denied):
    """A setting protects the repository or branch against deletion, or legal holds do; `force` does not count."""


class NamespaceInUse(Invalid):
    """The storage namespace is a repository's, lies inside another one, or contains one. Facts: `namespace`."""


class NamespaceNested(NamespaceInUse):
    """The storage namespace lies inside another one, or around it."""


class NamespaceUnclear(Unavailable):
    """The store refuses to show whether a namespace is in use, so it counts as in use. Facts: `namespace`."""


class ReadOnly(Denied):
    """The repository is read-only, and the caller did not force the change."""


class ProtectedBranch(Denied):
    """A protection rule matches the branch: only merges change it."""


class DefaultBranchKept(Denied):
    """A repository's default branch cannot be deleted."""


class CommitQueueTimeout(Unavailable):
    """Other commits kept the branch busy until the time to wait was over. Nothing happened. Facts: `waited_s`."""


class SettingChanged(Conflict):
    """The setting is not the one the caller had seen."""


class TooMuchMetadata(Invalid):
    """The metadata of a repository would make a record that not every store takes."""


class TooManyPaths(Invalid):
    """A batch names more paths than one request may."""


class AddressInNamespace(Invalid):
    """No repository can stage an address that lies in a repository's namespace. Facts: `address`.

    Only uploads to that repository, and copies of those, name such an address.
    """


class TooManyPatterns(Invalid):
    """A repository would have more patterns of branches, or dearer ones, than each write should be held against."""


class InvalidImport(Invalid):
    """The import names no location, too many, or one that holds nothing."""


class SourceChanged(Conflict):
    """An object outside the namespace was overwritten since it was imported or staged. Facts: `address`."""


class NotHeaderText(Invalid):
    """The content type or checksum has characters that no HTTP header can carry. Facts: `name`."""


class ReservedMetadata(Invalid):
    """The metadata has a name that only the S3 gateway gives. Facts: `name`."""


class MetadataTooLarge(Invalid):
    """The metadata of a user is more than clients of S3 can read as headers. Facts: `size_bytes`, `names`."""


class StorageMissing(Invalid):
    """The bucket of a storage namespace does not exist. Facts: `namespace`."""


class UploadMissing(Invalid):
    """The address to be linked holds no bytes, or another number of them than declared."""


class BytesInNamespace(Denied):
    """A staged address lies in a namespace that a repository took later: its bytes are that repository's now."""


class ForeignAddress(Invalid):
    """An entry's address is of a store that this server does not open."""
