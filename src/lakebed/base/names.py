"""Identifiers, and the names that users give. A kind of names has one function, which raises `InvalidName` with the
reason. Each identifier is a type of its own, so that mypy keeps them apart; all are strings at run time.
"""

from __future__ import annotations

import re
from typing import AnyStr, Final, NewType

from .errors import Invalid

__all__ = [
    "ACTIONS_FOLDER",
    "EMPTY_METARANGE",
    "KEY_BYTES_MAX",
    "TABLES",
    "TABLE_FILE",
    "TABLE_RECORD",
    "TABLE_SUFFIX",
    "BranchName",
    "CommitId",
    "InvalidName",
    "MetarangeId",
    "RangeId",
    "RepositoryId",
    "RepositoryUid",
    "RunId",
    "StagingToken",
    "SublistId",
    "TagName",
    "check_branch",
    "check_repository",
    "check_tag",
    "common_prefix",
    "is_commit_id",
    "key_to_path",
    "path_to_key",
]

RepositoryId = NewType("RepositoryId", str)
"""The name of a repository for users: `[a-z0-9][a-z0-9-]{2,62}`."""

RepositoryUid = NewType("RepositoryUid", str)
"""The name of a repository in KV partitions. A repository that is made again under a deleted id gets a new one."""

BranchName = NewType("BranchName", str)
TagName = NewType("TagName", str)

CommitId = NewType("CommitId", str)
"""64 lower-case hex digits: SHA-256 of the canonical commit record (docs/formats/commit.md)."""

StagingToken = NewType("StagingToken", str)
"""The name of the KV partition `<uid>/<token>` with the cells of one staging area. Never used twice."""

RangeId = NewType("RangeId", str)
SublistId = NewType("SublistId", str)
MetarangeId = NewType("MetarangeId", str)
"""64 lower-case hex digits over logical content; `EMPTY_METARANGE` (the empty string) is the tree without entries."""

EMPTY_METARANGE = MetarangeId("")

RunId = NewType("RunId", str)
"""A collection run. Sorts by the time of its start."""


KEY_BYTES_MAX: Final = 1024
"""The longest object path, in bytes of UTF-8; also the longest KV key that a driver must accept."""

ACTIONS_FOLDER: Final = "_lakefs_actions/"
"""Objects below are action files: they say which hooks run."""

TABLES: Final = "tables"
"""The hidden branch of the files of tables (catalog/tables). Its name is the bucket that engines use: it never changes.
"""

TABLE_SUFFIX: Final = ".iceberg"
"""The end of the name of a table's folder on a branch."""
TABLE_FILE: Final = "table.json"
"""The entry of a table that names the object of its current metadata file."""
TABLE_RECORD: Final = f"{TABLE_SUFFIX}/{TABLE_FILE}".encode()
"""The end of the path of a table's own entry. The other entries of its folder belong to this one."""

_REPOSITORY: Final = re.compile(r"[a-z0-9][a-z0-9-]{2,62}")
_BRANCH: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,255}")
_COMMIT_ID: Final = re.compile(r"[0-9a-f]{64}")
_TAG_FORBIDDEN: Final = re.compile(r"[\x00-\x20\x7f~^:?*\[\\/]|\.\.|@\{")


class InvalidName(Invalid):
    """The name breaks a rule that the message spells out."""


def check_repository(name: str) -> RepositoryId:
    if not _REPOSITORY.fullmatch(name):
        raise InvalidName(
            f"repository id {name!r}: 3 to 63 lower-case letters, digits and hyphens, not starting with a hyphen",
            name=name,
        )
    return RepositoryId(name)


def check_branch(name: str) -> BranchName:
    if not _BRANCH.fullmatch(name):
        raise InvalidName(
            "branch id must consist of letters, digits, underscores and dashes, and cannot start with a dash", name=name
        )
    return BranchName(name)


def check_tag(name: str) -> TagName:
    """Apply Git's rules for a ref name, without slashes."""
    bad = (
        not name
        or len(name.encode()) > 255
        or _TAG_FORBIDDEN.search(name)
        or name.startswith((".", "-"))
        or name.endswith((".", ".lock"))
        or name == "@"
        or "$" in name
    )
    if bad:
        raise InvalidName(
            f"tag id {name!r} is not a valid ref name: 1 to 255 bytes, no blanks, none of ~^:?*[\\/$, no '..' or '@{{',"
            " no dot or dash first, no dot or .lock last",
            name=name,
        )
    return TagName(name)


def is_commit_id(name: str) -> bool:
    """Return whether `name` has the form of a whole commit id.

    Such a name means that commit, never a new branch or tag.
    """
    return len(name) == 64 and _COMMIT_ID.fullmatch(name) is not None


def path_to_key(path: str) -> bytes:
    """Convert an object path to bytes, in this one function. `a//b`, `a/` and `./a` are kept: three different paths.

    Raises:
        InvalidName: empty, over 1,024 bytes of UTF-8, or not encodable (lone surrogates).
    """
    try:
        key = path.encode()
    except UnicodeEncodeError as error:
        raise InvalidName("path is not valid Unicode", path=ascii(path)) from error
    if not key:
        raise InvalidName("path is empty")
    if len(key) > KEY_BYTES_MAX:
        raise InvalidName(f"path is {len(key)} bytes long, at most {KEY_BYTES_MAX} are allowed", size_bytes=len(key))
    return key


def key_to_path(key: bytes) -> str:
    return key.decode()


def common_prefix(key: AnyStr, prefix: AnyStr, delimiter: AnyStr) -> AnyStr:
    """Return what stands for the key in a folded list of those with `prefix`; empty where the key stands for itself."""
    cut = key.find(delimiter, len(prefix)) if delimiter else -1
    return key[: cut + len(delimiter)] if cut >= 0 else key[:0]
