"""Files and folders that nobody of ours made: reported by every plan, deleted by none, in nobody's way.

A folder of ranges may hold a colleague's backup, a run folder an editor's lock file, the root of the namespace what
somebody put beside a repository. Readers go by manifests and ids, never by listing a folder, so such a file is in no
input; and what a sweep may delete goes by name, so it is in no plan either.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from lakebed.handoff import GC_PREFIX, QUARANTINE_PREFIX, RunKind

from .files import Files

SPECIAL_PREFIX: Final = "_lakefs/"
STRAYS_MAX: Final = 1000

_RUN: Final = rf"{GC_PREFIX}({'|'.join(RunKind)})/([0-9a-z][0-9a-z-]*)"
_RUN_FILE: Final = re.compile(
    rf"{_RUN}/(?:"
    r"(?:plan|report|rules|saved|sweep|settled\.[0-9a-z]+|recheck\.[0-9a-f]{16})\.json"
    r"|manifests/[0-9a-z.-]+\.json"
    r"|[0-9a-z.]+/[a-z]+-[0-9a-z-]+\.(?:parquet|arrow))",
    re.ASCII,
)
_TREE_FILE: Final = re.compile(r"_lakefs/(?:meta)?ranges/([0-9a-f]{64})\.parquet", re.ASCII)
_OTHER: Final = re.compile(
    r"_lakefs/dummy"
    rf"|{GC_PREFIX}(?:clock|applying/\d{{12}}|quarantined/[0-9a-z-]+)\.json"
    rf"|{GC_PREFIX}quarantine/[0-9a-z-]+/.+"
    rf"|{GC_PREFIX}ledger/date=\d{{4}}-\d\d-\d\d/[0-9a-z-]+\.parquet",
    re.ASCII | re.DOTALL,
)


def tree_file(key: str) -> str | None:
    """The id of the range or metarange whose file this is; None for any other key."""
    found = _TREE_FILE.fullmatch(key)
    return None if found is None else found[1]


def run_file(key: str) -> tuple[str, str] | None:
    """Kind and id of the run to whose folder this file belongs, if a run writes files of this name."""
    found = _RUN_FILE.fullmatch(key)
    return None if found is None else (found[1], found[2])


def is_special_file(key: str) -> bool:
    """Whether a part of Lakebed writes files of this name below SPECIAL_PREFIX."""
    return bool(tree_file(key) or run_file(key) or _OTHER.fullmatch(key))


def strays_among(keys: Iterable[str]) -> tuple[str, ...]:
    """Those that no part of Lakebed writes, in order, at most STRAYS_MAX."""
    found = (key for key in keys if not is_special_file(key))
    return tuple(key for key, _ in zip(found, range(STRAYS_MAX), strict=False))


def find_strays(files: Files) -> tuple[str, ...]:
    """One listing of the special folders: ranges, metaranges and run folders, so small beside `data/`. What lies in
    quarantine may be a lot, and is not listed."""
    return strays_among(SPECIAL_PREFIX + name for name in files.sizes(SPECIAL_PREFIX, without=QUARANTINE_PREFIX))
