"""Find files and folders that Lakebed did not write: every plan reports them, none deletes them.

A folder of ranges may hold a colleague's backup, a run folder an editor's lock file, the root of the namespace what
a user put beside a repository. Readers go by manifests and ids, never by listing a folder, so such a file is in no
input; and what a sweep may delete goes by name, so it is in no plan either.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from lakebed.base import parse_slice_name
from lakebed.gc.protocol import (
    CERTIFICATE_KEY,
    CLAIM_KEY,
    DATA_PREFIX,
    GC_PREFIX,
    HOLDS_KEY,
    INSTALLATION_MARK,
    LC_PREFIX,
    UNKNOWN_FILES_MAX,
    Found,
    RunKind,
)
from lakebed.objectstore import ObjectStore

SPECIAL_PREFIX: Final = "_lakefs/"
DUMPS: Final = "refs"
"""The group of all dumps of refs, and their folder."""
LAST_FILE: Final = "_symlinks.json"
"""Of the symlinks that one request wrote."""

_RUN: Final = rf"{GC_PREFIX}({'|'.join(RunKind)})/([0-9a-z][0-9a-z-]*)"
_RUN_FILE: Final = re.compile(
    rf"{_RUN}/(?:"
    r"(?:apply|deferred|plan|purge|report|rules|saved|sweep|closed\.[0-9a-z]+|recheck\.[0-9a-f]{16}|turn\.\d{6})\.json"
    r"|manifests/[0-9a-z._-]+\.json"
    r"|[0-9a-z._]+/(?:(?:due|stays|versions)/)?[a-z]+-[0-9a-z-]+\.(?:parquet|arrow))",
    re.ASCII,
)
_TREE_FILE: Final = re.compile(r"_lakefs/(?:(?:meta)?ranges|sublists)/([0-9a-f]{64})\.parquet", re.ASCII)
_DUMP_FILE: Final = re.compile(r"_lakefs/(refs)/([0-9a-v]{20})/[0-9a-f]{64}\.parquet", re.ASCII)
_SYMLINKS_FILE: Final = re.compile(
    r"_lakefs/(symlinks/[0-9a-f]{16})/([0-9a-v]{20})/(?:(?:.*/)?symlink\.txt|_symlinks\.json)", re.ASCII | re.DOTALL
)
_OTHER: Final = re.compile(
    r"_lakefs/dummy"
    rf"|{CLAIM_KEY}"
    rf"|{HOLDS_KEY}"
    rf"|{CERTIFICATE_KEY}"
    rf"|{INSTALLATION_MARK}"
    rf"|{LC_PREFIX}(?:policy/[0-9a-z-]+\.parquet|stats/\d{{4}}-\d\d-\d\d\.csv)"  # former runs wrote stats there
    rf"|{LC_PREFIX}stats/date=\d{{4}}-\d\d-\d\d/[0-9a-z-]+\.csv"
    rf"|{LC_PREFIX}addresses/date=\d{{4}}-\d\d-\d\d/[0-9a-z-]+\.parquet"
    rf"|{GC_PREFIX}clock\.json"
    rf"|{GC_PREFIX}ledger/date=\d{{4}}-\d\d-\d\d/[0-9a-z-]+\.parquet",
    re.ASCII | re.DOTALL,
)


def tree_file(key: str) -> str | None:
    """Return the id of the range, sublist or metarange whose file this is; None for any other key."""
    found = _TREE_FILE.fullmatch(key)
    return None if found is None else found[1]


def run_file(key: str) -> tuple[str, str] | None:
    """Return kind and id of the run to whose folder this file belongs, if a run writes files of this name."""
    found = _RUN_FILE.fullmatch(key)
    return None if found is None else (found[1], found[2])


def written_file(key: str) -> tuple[str, str] | None:
    """Return for a file that was written on request the group that it belongs to, and the id of the request."""
    found = _DUMP_FILE.fullmatch(key) or _SYMLINKS_FILE.fullmatch(key)
    return None if found is None else (found[1], found[2])


def is_metadata(key: str) -> bool:
    """Return whether a plan of metadata may delete this key."""
    return bool(tree_file(key) or run_file(key) or written_file(key))


def is_special_file(key: str) -> bool:
    """Return whether a part of Lakebed writes files of this name below SPECIAL_PREFIX."""
    return is_metadata(key) or bool(_OTHER.fullmatch(key))


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownFiles:
    """`keys` are the first UNKNOWN_FILES_MAX, in order, of `count`. A key that ends with a slash is a folder, with all
    in it."""

    keys: tuple[str, ...] = ()
    count: int = 0

    def plus(self, more: UnknownFiles) -> UnknownFiles:
        return UnknownFiles(keys=(self.keys + more.keys)[:UNKNOWN_FILES_MAX], count=self.count + more.count)

    def facts(self) -> dict[str, Any]:
        """Return them as a `Plan` has them."""
        return {"unknown_files": self.keys, "unknown_files_count": self.count}


def unknown_files_of(found: Found) -> UnknownFiles:
    """Return those that lie in slices."""
    return UnknownFiles(keys=found.unknown_files, count=found.unknown_files_count)


def unknown_files_among(keys: Iterable[str]) -> UnknownFiles:
    """Return those keys below SPECIAL_PREFIX that no part of Lakebed writes."""
    return _unknown_files(sorted(key for key in keys if not is_special_file(key)))


async def find_unknown_files(store: ObjectStore) -> UnknownFiles:
    """Find them in the special folders and around the slices: one listing of the former, which are small beside
    `data/`, and one level of the root and of `data/`. The listing of a slice finds what lies inside it.
    """
    found = await find_unknown_files_around(store)
    async for page in store.list(SPECIAL_PREFIX):
        found = found.plus(unknown_files_among(stat.key for stat in page))
    return found


async def find_unknown_files_around(store: ObjectStore) -> UnknownFiles:
    """Find them at the root of the namespace, and directly in `data/`."""
    root, data = await store.level(), await store.level(DATA_PREFIX)
    beside = [folder for folder in root.folders if folder not in (DATA_PREFIX, SPECIAL_PREFIX)]
    no_slices = [folder for folder in data.folders if parse_slice_name(folder[len(DATA_PREFIX) : -1]) is None]
    return _unknown_files(sorted([*root.keys, *beside, *data.keys, *no_slices]))


def _unknown_files(keys: Sequence[str]) -> UnknownFiles:
    return UnknownFiles(keys=tuple(keys[:UNKNOWN_FILES_MAX]), count=len(keys))
