"""What can go wrong above versions. Families: lakebed.base.errors."""

from __future__ import annotations

from lakebed.base import AlreadyExists, Conflict, Denied, Invalid, NotFound, Unavailable


class RepositoryNotFound(NotFound):
    """There is no repository of this id, or it is being made or deleted."""


class RepositoryExists(AlreadyExists):
    """There is a repository of this id."""


class NamespaceInUse(Invalid):
    """The storage namespace is a repository's, or lies inside one, or has one inside it. Facts: `namespace`."""


class NamespaceUnclear(Unavailable):
    """We may not look whether a namespace is in use, so it counts as in use. Facts: `namespace`."""


class ReadOnly(Denied):
    """The repository is read-only, and the caller did not force the change."""


class ProtectedBranch(Denied):
    """A protection rule matches the branch: only merges change it."""


class DefaultBranchKept(Denied):
    """A repository's default branch cannot be deleted."""


class CommitQueueTimeout(Unavailable):
    """The branch was busy with other commits for as long as we wait. Nothing happened. Facts: `waited_s`."""


class SettingChanged(Conflict):
    """The setting is not the one the caller had seen."""


class TooMuchMetadata(Invalid):
    """A repository's metadata would outgrow what every store takes as a value."""


class TooManyPaths(Invalid):
    """A batch names more paths than one request may."""


class AddressInNamespace(Invalid):
    """An address in a repository's namespace cannot be staged, in whichever repository: only uploads to it, and copies
    of those, name one. Facts: `address`."""


class NotHeaderText(Invalid):
    """A content type or checksum that no answer could carry in its headers. Facts: `name`."""


class StorageMissing(Invalid):
    """The bucket of a storage namespace does not exist. Facts: `namespace`."""


class UploadMissing(Invalid):
    """Nothing was stored at the address that should be linked, or something of another size."""


class ForeignAddress(Invalid):
    """An entry's address is of a store that this server does not open."""
