"""Name the files of collections, relative to the repository's storage namespace.

    _lakefs/retention/gc/<kind>/<run_id>/
        <input>/part-<NNNNN>.parquet     one folder for each input (tables.py), with no other files
        manifests/<input>.json           the parts of the input; written last, so an input with a manifest is complete
        manifests/<input>.page-<NNNNN>.json   the parts of one page of an input that is written in pages
        rules.json                       the retention rules of the run's plan
        report.json                      for people; the design document's saved information
    _lakefs/retention/gc/applying/<12 digits>.json   a claim: an apply continues while no higher number exists
    _lakefs/retention/gc/holds/<12 digits>.json      a mark for each change of the legal holds
The states of runs are in lakebed.base.runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

# docs/design/0001-uncommitted-gc.md fixes `uncommitted/<run_id>/uncommitted/` for the addresses of an uncommitted run.
from lakebed.base import Conflict, Invalid, RunId, RunKind, RunState

__all__ = [
    "APPLYING_PREFIX",
    "CLAIM_ATTEMPTS_MAX",
    "CLAIM_KEY",
    "CLOCK_KEY",
    "DATA_PREFIX",
    "DELETES_ALLOWED",
    "GC_PREFIX",
    "HOLDS_KEY",
    "HOLDS_PREFIX",
    "INSTALLATION_MARK",
    "INSTALLATION_PREFIX",
    "LC_PREFIX",
    "Claim",
    "InvalidRunId",
    "NoClaimLeft",
    "check_run_id",
    "claims_in",
    "holds_mark",
    "input_folder",
    "is_special",
    "manifest_path",
    "next_claim",
    "page_manifest_path",
    "part_name",
    "report_path",
    "rules_path",
    "run_folder",
]


class InvalidRunId(Invalid):
    """The text cannot be the id of a run."""


DELETES_ALLOWED: Final = frozenset({RunState.MARKED, RunState.SWEEPING})
"""The states in which a sweep may delete the objects of the run's plan."""

_DIGITS: Final = frozenset("0123456789abcdefghijklmnopqrstuvwxyz-")


def check_run_id(text: str) -> RunId:
    """Return the text as a run id. It names a folder: 1 to 64 lower-case letters, digits and hyphens, no hyphen first.

    Raises:
        InvalidRunId: the text has another form.
    """
    if not 0 < len(text) <= 64 or not _DIGITS.issuperset(text) or text.startswith("-"):
        raise InvalidRunId(f"{text!r} is not a run id: `gc list` shows them, and `latest` is one", run_id=text)
    return RunId(text)


GC_PREFIX: Final = "_lakefs/retention/gc/"
LC_PREFIX: Final = "_lakefs/retention/lc/"
"""Tables of lifecycle runs for people. Lakebed does not read them."""
INSTALLATION_PREFIX: Final = "_lakefs/installation/"
INSTALLATION_MARK: Final = rf"{INSTALLATION_PREFIX}(\d{{12}})-([0-9A-Za-z]+)"
"""Matches the key of an installation's mark (docs/formats/installation.md): its number, and the mark."""
CLOCK_KEY: Final = f"{GC_PREFIX}clock.json"
"""A file that a server writes to read the object store's clock."""
DATA_PREFIX: Final = "data/"
"""Users' bytes. Only runs of metadata, a deleted repository or an old layout delete keys outside this prefix."""


def run_folder(kind: RunKind, run_id: RunId) -> str:
    """Return the run's folder, with a slash at its end."""
    return f"{GC_PREFIX}{kind.value}/{run_id}/"


def input_folder(kind: RunKind, run_id: RunId, name: str) -> str:
    """Return a table's folder, with a slash at its end. `name`: `Table.name`, or `<name>.<suffix>` for a second one."""
    return f"{run_folder(kind, run_id)}{name}/"


def part_name(number: int) -> str:
    return f"part-{number:05d}.parquet"


def manifest_path(kind: RunKind, run_id: RunId, name: str) -> str:
    return f"{run_folder(kind, run_id)}manifests/{name}.json"


def page_manifest_path(kind: RunKind, run_id: RunId, name: str, page: int) -> str:
    return f"{run_folder(kind, run_id)}manifests/{name}.page-{page:05d}.json"


def rules_path(kind: RunKind, run_id: RunId) -> str:
    return f"{run_folder(kind, run_id)}rules.json"


def report_path(kind: RunKind, run_id: RunId) -> str:
    return f"{run_folder(kind, run_id)}report.json"


def is_special(key: str) -> bool:
    """Return whether a key is outside of users' bytes. A plan of users' bytes never deletes a special key."""
    return not key.startswith(DATA_PREFIX)


APPLYING_PREFIX: Final = f"{GC_PREFIX}applying/"
CLAIM_ATTEMPTS_MAX: Final = 100
"""Attempts to claim a number. If all lose, the store's listings do not show existing files."""

NUMBERS_MAX: Final = 10**9
"""Numbers from here on are no claims: a billion applies would have to precede one. Such a file stops no apply."""
CLAIM_KEY: Final = rf"{APPLYING_PREFIX}000\d{{9}}\.json"
"""Matches the key of a claim. Its number is below NUMBERS_MAX."""

_CLAIM: Final = re.compile(CLAIM_KEY, re.ASCII)


class NoClaimLeft(Conflict):
    """The last claim number is taken."""


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a claim's file, for people and for the error of an overtaken apply.

    Without a `run_id` the server claimed, because a repository was made or chosen over this namespace.
    """

    run_id: str
    started_ms: int


def claims_in(keys: Iterable[str]) -> list[str]:
    """Return the keys that are claims, in their order."""
    return [key for key in keys if _CLAIM.fullmatch(key)]


def next_claim(claims: Sequence[str]) -> str:
    """Return the key of the claim that overtakes these claims, which are in order of number, or raise NoClaimLeft."""
    number = int(claims[-1].removeprefix(APPLYING_PREFIX).removesuffix(".json")) + 1 if claims else 1
    if number == NUMBERS_MAX:
        raise NoClaimLeft(f"there is no number after {claims[-1]}, which no apply made: remove it")
    return f"{APPLYING_PREFIX}{number:012d}.json"


HOLDS_PREFIX: Final = f"{GC_PREFIX}holds/"
HOLDS_KEY: Final = rf"{HOLDS_PREFIX}\d{{12}}\.json"
"""Matches the key of a mark, one for each change of the holds."""


def holds_mark(version: int) -> str:
    """Return the key of the mark for this version of the holds. A sweep looks for later marks before each delete."""
    return f"{HOLDS_PREFIX}{version:012d}.json"
