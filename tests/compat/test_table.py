"""The table of operations against the generated client: the same routes, by method and path."""

from __future__ import annotations

import re
from pathlib import Path

import lakefs_sdk

from lakebed.operations.table import CONTRACT

SDK = Path(lakefs_sdk.__file__).parent / "api"
CALL = re.compile(r"call_api\(\s*'(/[^']*)', '([A-Z]+)'")


def test_the_table_has_every_operation_of_the_generated_client_and_no_other_but_ours() -> None:
    theirs = {(method, path) for file in SDK.glob("*.py") for path, method in CALL.findall(file.read_text())}

    assert {(operation.method, operation.path) for operation in CONTRACT} == theirs
