"""The table as an OpenAPI 3.1 document, for generators of clients and for fuzzers."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from lakebed.wire import CatalogError, Error

from .operation import API_ROOT, LOGGED_IN, NOTHING, PUBLIC, AnyOperation, Parameter
from .table import NOUNS, OPERATIONS

_TYPES: Final[dict[str, dict[str, Any]]] = {
    "string": {"type": "string"},
    "integer": {"type": "integer"},
    "boolean": {"type": "boolean"},
    "list": {"type": "array", "items": {"type": "string"}},
}
_MEDIA: Final[dict[type, str]] = {bytes: "application/octet-stream", str: "text/plain"}
_NO_RECORD: Final = {NOTHING, bytes, str}


def document(version: str) -> dict[str, Any]:
    """Describe every operation, its parameters, records and permissions."""
    records = {kind for one in OPERATIONS for kind in (one.body, one.answer) if kind not in _NO_RECORD}
    records |= {Error, CatalogError}
    ordered = sorted(records, key=str)
    schemas, components = msgspec.json.schema_components(ordered, ref_template="#/components/schemas/{name}")
    schema_of = dict(zip(ordered, schemas, strict=True)) | {kind: {"type": "string"} for kind in _MEDIA}
    nouns = {operation.id: noun for noun, operations in NOUNS.items() for operation in operations}
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        described = _operation(operation, nouns[operation.id], schema_of)
        path = operation.path
        if operation.root != API_ROOT:
            path = operation.full_path
            described["servers"] = [{"url": "/"}]
        paths.setdefault(path, {})[operation.method.lower()] = described
    return {
        "openapi": "3.1.0",
        "info": {"title": "Lakebed", "version": version},
        "servers": [{"url": API_ROOT}],
        "security": [{"basic": []}, {"bearer": []}, {"cookie": []}],
        "tags": [{"name": noun} for noun in NOUNS],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "basic": {"type": "http", "scheme": "basic"},
                "bearer": {"type": "http", "scheme": "bearer"},
                "cookie": {"type": "apiKey", "in": "cookie", "name": "internal_auth_session"},
            },
        },
    }


def _operation(operation: AnyOperation, noun: str, schema_of: dict[Any, Any]) -> dict[str, Any]:
    asked = [f"{one.action} on {one.resource}" for one in operation.permissions or ()]
    asked += [f"{one.action} on {one.resource}, {one.when}" for one in operation.asked_later]
    arguments = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in operation.arguments
    ]
    described: dict[str, Any] = {
        "operationId": operation.id,
        "tags": [noun],
        "summary": operation.summary,
        "parameters": [*arguments, *map(_parameter, operation.parameters)],
        "responses": {
            str(operation.status): _content("Success.", operation.answer, schema_of),
            **{str(status): {"description": "Success, without a record."} for status in operation.other_statuses},
            "default": _content("Refused or failed.", _error_of(operation), schema_of),
        },
        "x-permissions": asked,
        "x-repeatable": operation.may_be_repeated,
    }
    if operation.body is not NOTHING:
        body = _content("", operation.body, schema_of)
        described["requestBody"] = {"content": body["content"], "required": not operation.is_body_optional}
    if operation.permissions is PUBLIC:
        described["security"] = []
    return described


def _error_of(operation: AnyOperation) -> type:
    return Error if operation.root == API_ROOT else CatalogError


def _content(description: str, kind: Any, schema_of: dict[Any, Any]) -> dict[str, Any]:
    if kind is NOTHING:
        return {"description": description}
    media = _MEDIA.get(kind, "application/json")
    return {"description": description, "content": {media: {"schema": schema_of[kind]}}}


def _parameter(parameter: Parameter) -> dict[str, Any]:
    schema = dict(_TYPES[parameter.kind])
    if parameter.choices:
        schema["enum"] = [*parameter.choices]
    if parameter.default is not None:
        schema["default"] = parameter.default
    return {"name": parameter.name, "in": parameter.place, "required": parameter.is_required, "schema": schema}


def reference() -> str:
    """Describe every operation in Markdown, for the guide."""
    lines = [
        "# The HTTP API, operation by operation",
        "",
        "This page is made from the table of operations: `python -m lakebed.operations reference`. Paths begin with",
        f"`{API_ROOT}`, but those of tables. A running server has the same as OpenAPI 3.1 at `/openapi.json`.",
        "`{…}` in a resource is an argument of the path, a parameter (\\* required), or a field of the body.",
        "*Again*: twice ends like once.",
    ]
    for noun, operations in NOUNS.items():
        lines += ["", f"## {noun}"]
        for operation in operations:
            lines += ["", *_described(operation)]
    return "\n".join(lines) + "\n"


def _described(operation: AnyOperation) -> list[str]:
    parameters = ", ".join(f"`{one.name}`{'*' if one.is_required else ''}" for one in operation.parameters)
    asked = [f"`{one.action}` on `{one.resource}`" for one in operation.permissions or ()]
    asked += [f"`{one.action}` on `{one.resource}` ({one.when})" for one in operation.asked_later]
    access = {PUBLIC: "none, public", LOGGED_IN: "a login"}.get(operation.permissions, "; ".join(asked))
    rows = {
        "Parameters": parameters,
        "Body": _named(operation.body),
        "Answer": f"{operation.status} {_named(operation.answer)}".strip(),
        "Permission": access,
        "Again": "yes" if operation.may_be_repeated else "no",
    }
    path = operation.path if operation.root == API_ROOT else operation.full_path
    return [
        f"### {operation.id}",
        "",
        f"`{operation.method} {path}`",
        "",
        operation.summary,
        "",
        *(f"- {name}: {text}" for name, text in rows.items() if text),
    ]


def _named(kind: Any) -> str:
    if kind is NOTHING:
        return ""
    return "`" + (kind.__name__ if isinstance(kind, type) and not hasattr(kind, "__args__") else str(kind)) + "`"
