"""Names of collection runs, and where files of collections lie, relative to the repository's storage namespace.

    _lakefs/retention/gc/<kind>/<run_id>/
        <input>/part-<NNNNN>.parquet     one folder an input (tables.py), nothing else in it
        manifests/<input>.json           what the input consists of; written after its parts, so its presence says
                                         that the input is complete
        manifests/<input>.page-<NNNNN>.json   the same for one page of an input that is written in pages
        rules.json                       the retention rules the run was planned by
        report.json                      for people, and the design document's saved information
    _lakefs/retention/gc/applying/<12 digits>.json   a claim: an apply goes on while no higher number is there
    _lakefs/retention/gc/holds/<12 digits>.json      a mark for each change of the legal holds

The uncommitted addresses of an uncommitted run so lie in `_lakefs/retention/gc/uncommitted/<run_id>/uncommitted/`, as
docs/design/0001-uncommitted-gc.md has it. States and moves of runs: lakebed.base.runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from lakebed.base import Conflict, Invalid, RunId, RunKind, RunState


class InvalidRunId(Invalid):
    """Not a name that a run of ours can have."""


DELETES_ALLOWED: Final = frozenset({RunState.MARKED, RunState.SWEEPING})
"""The states in which a sweep may delete what the run's plan names."""

_DIGITS: Final = frozenset("0123456789abcdefghijklmnopqrstuvwxyz-")


def check_run_id(text: str) -> RunId:
    """Return the text as a run id. It names a folder: lower-case letters, digits and hyphens, 1 to 64 of them, not
    starting with a hyphen.

    Raises:
        InvalidRunId: anything else.
    """
    if not 0 < len(text) <= 64 or not _DIGITS.issuperset(text) or text.startswith("-"):
        raise InvalidRunId(f"{text!r} is not a run id", run_id=text)
    return RunId(text)


GC_PREFIX: Final = "_lakefs/retention/gc/"
LC_PREFIX: Final = "_lakefs/retention/lc/"
"""Tables of lifecycle runs for people. Nothing of Lakebed reads them."""
INSTALLATION_PREFIX: Final = "_lakefs/installation/"
INSTALLATION_MARK: Final = rf"{INSTALLATION_PREFIX}(\d{{12}})-([0-9A-Za-z]+)"
"""What the key of a mark looks like (docs/formats/installation.md): its number, and the mark."""
CLOCK_KEY: Final = f"{GC_PREFIX}clock.json"
"""Written to learn what time the object store thinks it is."""
DATA_PREFIX: Final = "data/"
"""Users' bytes. Whatever lies elsewhere in a namespace is special and is never swept."""


def run_folder(kind: RunKind, run_id: RunId) -> str:
    """Ends with a slash."""
    return f"{GC_PREFIX}{kind.value}/{run_id}/"


def input_folder(kind: RunKind, run_id: RunId, name: str) -> str:
    """Ends with a slash. `name` is a table's name (`Table.name`) or, for a second one, `<name>.<suffix>`."""
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
    """Return whether a key of the namespace is none of a user's bytes. Special keys are never garbage."""
    return not key.startswith(DATA_PREFIX)


APPLYING_PREFIX: Final = f"{GC_PREFIX}applying/"
CLAIM_ATTEMPTS_MAX: Final = 100
"""If this many others come between a listing and the file that follows, the store does not list what is there."""

NUMBERS_MAX: Final = 10**9
"""A number that a billion applies would have to come before is no claim: such a file is unknown, and stops no apply."""
CLAIM_KEY: Final = rf"{APPLYING_PREFIX}000\d{{9}}\.json"
"""Matches the key of a claim. Its number is below NUMBERS_MAX."""

_CLAIM: Final = re.compile(CLAIM_KEY, re.ASCII)


class NoClaimLeft(Conflict):
    """The last number there is has been taken."""


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """Hold the content of the file: for people, and for the error of an apply that was overtaken. Without a `run_id`
    the server wrote it, for a repository over this namespace that was chosen or made."""

    run_id: str
    started_ms: int


def claims_in(keys: Iterable[str]) -> list[str]:
    """Return those of these keys, in their order, that are claims."""
    return [key for key in keys if _CLAIM.fullmatch(key)]


def next_claim(claims: Sequence[str]) -> str:
    """Return the key of the claim that overtakes these, which are in order of number.

    Raises:
        NoClaimLeft: there is none.
    """
    number = int(claims[-1].removeprefix(APPLYING_PREFIX).removesuffix(".json")) + 1 if claims else 1
    if number == NUMBERS_MAX:
        raise NoClaimLeft(f"there is no number after {claims[-1]}, which no apply made: remove it")
    return f"{APPLYING_PREFIX}{number:012d}.json"


HOLDS_PREFIX: Final = f"{GC_PREFIX}holds/"
HOLDS_KEY: Final = rf"{HOLDS_PREFIX}\d{{12}}\.json"
"""What the key of a mark looks like: one for each change of the holds."""


def holds_mark(version: int) -> str:
    """Return the file that says that the holds have this version. A sweep looks for later ones before each delete."""
    return f"{HOLDS_PREFIX}{version:012d}.json"
