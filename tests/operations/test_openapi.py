"""What is made from the table: an OpenAPI document, and the page of the guide."""

from __future__ import annotations

import json
import re
from pathlib import Path

from openapi_spec_validator import validate

from lakebed.operations.openapi import document, reference
from lakebed.operations.table import OPERATIONS

PAGE = Path(__file__).parents[2] / "docs" / "guide" / "api.md"


def test_the_document_is_openapi() -> None:
    validate(json.loads(json.dumps(document("1"))))


def test_the_document_has_every_operation_and_no_other() -> None:
    paths = document("1")["paths"]

    described = {operation["operationId"] for methods in paths.values() for operation in methods.values()}
    assert described == {operation.id for operation in OPERATIONS}


def test_patterns_are_those_of_json_schema() -> None:
    r"""Which has no \Z."""
    assert re.findall(r"\\\\[AZz]", json.dumps(document("1"))) == []


def test_the_page_of_the_guide_is_current() -> None:
    """`python -m lakebed.operations reference > docs/guide/api.md` writes it."""
    assert PAGE.read_text() == reference()
