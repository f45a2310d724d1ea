"""The files by which one apply stops those before it (`lakebed.gc`, fencing.py; the server writes one, too).

    _lakefs/retention/gc/applying/<12 digits>.json

An apply goes on for as long as no higher number is there. A number that a billion applies would have to come before is
no claim: such a file is unknown, and stops no apply.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from lakebed.base import Conflict

from .paths import GC_PREFIX

APPLYING_PREFIX: Final = f"{GC_PREFIX}applying/"
CLAIM_ATTEMPTS_MAX: Final = 100
"""If this many others come between a listing and the file that follows, the store does not list what is there."""

NUMBERS_MAX: Final = 10**9
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
