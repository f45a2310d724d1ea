"""Fields of requests that the doors share, and the page that says which operation heeds which of them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest

from lakebed.base import Etags
from lakebed.operations.table import OPERATIONS
from lakebed.server.http.fields import CONDITIONS, read_date, read_range
from lakebed.server.s3 import operations as s3

PAGE: Final = Path(__file__).parents[3] / "docs/guide/conditional.md"
OTHERS: Final = {"range", "if-range", "content-md5"}


@pytest.mark.parametrize(
    ("header", "strongly", "weakly"),
    [
        ('"a"', True, True),
        ("a", True, True),
        ('"b", "a"', True, True),
        ("b,a", True, True),
        ('W/"a"', False, True),
        ('"b", W/"a"', False, True),
        (" * ", True, True),
        ('"*"', False, False),
        ('"b", *', False, False),
        ('"a,b"', False, False),
        ('"b"', False, False),
        ('""', False, False),
        ("", False, False),
        ('"a', True, True),
        ('"' * 5_001, False, False),
    ],
)
def test_a_list_of_etags_names_an_object_or_not(header: str, strongly: bool, weakly: bool) -> None:
    tags = Etags.read(header)

    assert (tags.match("a"), tags.match_weakly("a")) == (strongly, weakly)
    assert tags.match("") == tags.match_weakly("") == (header.strip() == "*")


@pytest.mark.parametrize(
    ("text", "bounds"),
    [
        ("bytes=0-4", (0, 4)),
        ("Bytes=3-", (3, None)),
        ("bytes=-3", (None, 3)),
        ("bytes=5-2", None),
        ("bytes=-", None),
        ("bytes=0-1,3-4", None),
        ("items=0-1", None),
        ("bytes=٣-٤", None),
        ("bytes=" + "9" * 5_000 + "-", None),
    ],
)
def test_a_range_has_bounds_or_is_none(text: str, bounds: tuple[int | None, int | None] | None) -> None:
    assert read_range(text) == bounds


def test_a_date_is_read_as_utc_and_one_out_of_all_years_is_none() -> None:
    assert read_date("Thu, 01 Jan 1970 00:00:01 GMT") == read_date("Thu, 01 Jan 1970 00:00:01 -0000") == 1
    assert read_date("Fri, 31 Dec 9999 23:59:59 -2300") is read_date("no date") is read_date(None) is None


def test_the_page_says_which_operation_heeds_which_header() -> None:
    """Of S3, a read takes all conditions; `conditions` are those of writes. The tests of both doors try each."""
    api, ours = _tables(PAGE.read_text())

    assert api == {
        operation.id: heeded
        for operation in OPERATIONS
        if (heeded := {each.name.lower() for each in operation.parameters} & {*_names(CONDITIONS), *OTHERS})
    }
    reads = {*_names(CONDITIONS), "range", "if-range"}
    of_writes = {each.name: _names(each.conditions) for each in s3.OPERATIONS if each.conditions}
    assert ours == {"GetObject": reads, "HeadObject": reads, **of_writes}


def _names(headers: frozenset[bytes]) -> set[str]:
    return {header.decode() for header in headers}


def _tables(text: str) -> list[Mapping[str, set[str]]]:
    found: list[dict[str, set[str]]] = []
    for line in text.splitlines():
        if line.endswith("| headers |"):
            found.append({})
        elif line.startswith("| ") and found and not line.startswith("| ---"):
            names, headers = line.strip("| ").split(" | ")
            for name in names.replace("`", "").split(", "):
                found[-1][name] = {header.lower() for header in re.findall(r"`([^`]+)`", headers)}
    return list(found)
