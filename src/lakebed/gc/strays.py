"""Files under `_lakefs/` that nobody of ours put there: reported by every plan, deleted by none, in nobody's way.

A folder of ranges may hold a colleague's backup, a run folder an editor's lock file. Readers go by manifests and ids,
never by listing a folder, so such a file is in no input; and nothing outside `data/` is ever swept.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from lakebed.handoff import GC_PREFIX

from .files import Files

SPECIAL_PREFIX: Final = "_lakefs/"
STRAYS_MAX: Final = 1000

_RUN: Final = r"(un)?committed/[0-9a-z-]+"
_KNOWN: Final = re.compile(
    r"_lakefs/dummy"
    r"|_lakefs/(meta)?ranges/[0-9a-f]{64}\.parquet"
    rf"|{GC_PREFIX}{_RUN}/(plan|report|rules|sweep|settled\.[0-9a-z]+|recheck\.[0-9a-f]{{16}})\.json"
    rf"|{GC_PREFIX}{_RUN}/manifests/[0-9a-z.-]+\.json"
    rf"|{GC_PREFIX}{_RUN}/[0-9a-z.]+/[a-z]+-[0-9a-z-]+\.parquet"
    rf"|{GC_PREFIX}(clock|applying/\d{{12}}|quarantined/[0-9a-z-]+)\.json"
    rf"|{GC_PREFIX}quarantine/[0-9a-z-]+/data/.+"
    rf"|{GC_PREFIX}ledger/date=\d{{4}}-\d\d-\d\d/[0-9a-z-]+\.parquet"
)


def strays_among(keys: Iterable[str]) -> tuple[str, ...]:
    """Those that no part of Lakebed writes, in order, at most STRAYS_MAX."""
    found = (key for key in keys if not _KNOWN.fullmatch(key))
    return tuple(key for key, _ in zip(found, range(STRAYS_MAX), strict=False))


def find_strays(files: Files) -> tuple[str, ...]:
    """One listing of the special folders: ranges, metaranges and run folders, so small beside `data/`."""
    return strays_among(SPECIAL_PREFIX + name for name in files.sizes(SPECIAL_PREFIX))
