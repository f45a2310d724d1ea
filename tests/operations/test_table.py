"""The table of operations is whole, and says nothing twice."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from lakebed.operations import (
    NOTHING,
    AnyOperation,
    Operation,
    Permission,
    accounts,
    deleted,
    events,
    history,
    installation,
    objects,
    operators,
    repositories,
    sandboxes,
    tables,
)
from lakebed.operations.gc import collections, collectors, hard_delete, holds, lifecycle
from lakebed.operations.table import CONTRACT, OPERATIONS

FILES = (
    accounts,
    collections,
    collectors,
    deleted,
    events,
    hard_delete,
    history,
    holds,
    installation,
    lifecycle,
    objects,
    operators,
    repositories,
    sandboxes,
    tables,
)


def test_the_contract_has_134_operations() -> None:
    assert len(CONTRACT) == 134


def test_an_id_and_a_route_stand_for_one_operation() -> None:
    routes = [(operation.method, re.sub(r"\{\w+\}", "{}", operation.full_path)) for operation in OPERATIONS]

    for names in (routes, [operation.id for operation in OPERATIONS]):
        assert [name for name, count in Counter(names).items() if count > 1] == []


def test_an_operation_is_called_by_its_id() -> None:
    names = [(name, value.id) for file in FILES for name, value in vars(file).items() if isinstance(value, Operation)]

    assert [pair for pair in names if pair[0].replace("_", "").lower() != pair[1].lower()] == []
    assert len(names) == len(OPERATIONS)


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.id)
def test_every_name_of_a_resource_is_somewhere_in_the_request(operation: AnyOperation) -> None:
    fields = getattr(operation.body, "__struct_fields__", ())
    known = {*operation.arguments, *(parameter.name for parameter in operation.parameters), *fields}

    assert {name for permission in operation.permissions or () for name in permission.names} <= known


def test_what_answers_with_a_record_does_not_answer_without_a_body() -> None:
    wrong = [one.id for one in OPERATIONS if one.answer is not NOTHING and one.status == 204]

    assert wrong == []


def test_a_permission_can_be_asked_for_without_a_url() -> None:
    """So that other doors than REST ask for the same."""
    permission = Permission("fs:DeleteObject", "arn:x:{repository}/object/{paths}")
    names = {"repository": "lake", "paths": ["a", "b"]}

    assert permission.resources(names.__getitem__) == ["arn:x:lake/object/a", "arn:x:lake/object/b"]
