"""Errors of the catalog. Families: lakebed.base.errors."""

from __future__ import annotations

from lakebed.base import AlreadyExists, Conflict, Denied, Invalid, NotFound


class RepositoryNotFound(NotFound):
    """No repository has this id, or it is being made or deleted."""


class RepositoryExists(AlreadyExists):
    """A repository has this id."""


class DeletedNotFound(NotFound):
    """No deleted repository of this name is kept: it was forgotten or restored. Facts: `repository`."""


class WindowNotOver(Conflict):
    """A deleted repository can still be restored, so no collection deletes its objects. Facts: `until_ms`."""


class DeleteProtected(Denied):
    """A setting or legal holds protect the repository or branch against deletion. `force` does not override it."""


class NamespaceInUse(Invalid):
    """The storage namespace belongs to a repository, is inside another one, or contains one. Facts: `namespace`."""


class NamespaceNested(NamespaceInUse):
    """The storage namespace is inside another one, or contains one."""


class ReadOnly(Denied):
    """The repository is read-only, and the caller did not force the change."""


class ProtectedBranch(Denied):
    """A protection rule matches the branch: only merges change it."""


class FileOfTable(Denied):
    """A table of the branch needs the file, or a copy would be one without its files. Facts: `table`, `path`."""


class SettingChanged(Conflict):
    """The setting is not the version that the caller had read."""


class AddressInNamespace(Invalid):
    """No repository can stage an address inside a repository's namespace. Facts: `address`.

    Only uploads to that repository, and copies of them, name such an address.
    """


class TooManyPatterns(Invalid):
    """The repository would have more branch patterns, or more complex ones, than each write can check."""


class InvalidImport(Invalid):
    """The import names no location, too many, or a location without objects."""


class NotHeaderText(Invalid):
    """The content type or checksum has characters that no HTTP header can have. Facts: `name`."""
