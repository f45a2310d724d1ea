"""The table of tools, and one call of a tool: its arguments are checked, its answer has an end.

A tool states the operations that it calls, as a page does. So permissions, limits, errors and lines in the audit log
are those of the API, over either transport.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec

from lakebed.base import Denied, Invalid, LakebedError, NotFound, Unavailable
from lakebed.operations import accounts

from .calling import Call, Tool
from .reading import READING
from .scope import READ_ONLY, Scope
from .writing import WRITING

TOOLS: Final[tuple[Tool[Any], ...]] = (*READING, *WRITING)
BY_NAME: Final[Mapping[str, Tool[Any]]] = {tool.name: tool for tool in TOOLS}
NOTING: Final = accounts.GET_CURRENT_USER
ANSWER_BYTES_MAX: Final = 256 << 10
WORDS_MAX: Final = 1000
"""An error may repeat a name that its caller made up."""


class UnknownTool(Invalid):
    """No tool has this name. The message lists those that there are."""


def tools_of(scope: Scope) -> Sequence[Tool[Any]]:
    """Return the tools that a connection offers."""
    return [tool for tool in TOOLS if not (tool.changes and scope.writers.is_read_only)]


def schema_of(tool: Tool[Any]) -> dict[str, Any]:
    """Return the JSON schema of a tool's arguments."""
    _, components = msgspec.json.schema_components([tool.arguments])
    schema = dict(components[tool.arguments.__name__])
    schema.pop("title", None)
    schema.pop("description", None)
    return schema


async def call_tool(scope: Scope, name: str, arguments: Mapping[str, object]) -> dict[str, object]:
    """Carry out one call, and return its answer: a record that JSON can hold.

    A call that is refused here, before it asks the server, leaves its line in the audit log by `NOTING`.

    Raises:
        UnknownTool: there is no such tool.
        LakebedError: bad arguments, a missing permission, or the error of an operation. The message says how to go on.
    """
    asked: list[str] = []
    try:
        answer = await _call(scope, name, arguments, asked)
    except LakebedError:
        if not asked:
            with suppress(LakebedError):
                noted = f"{name if name in BY_NAME else 'unknown'}_refused"
                await scope.operations.call(NOTING, (), {}, tool=noted)
        raise
    size_bytes = len(msgspec.json.encode(answer))
    if size_bytes > ANSWER_BYTES_MAX:
        raise Invalid(
            f"the answer has {size_bytes:,} bytes, and at most {ANSWER_BYTES_MAX:,} are sent: ask for less at once"
        )
    return answer


async def _call(scope: Scope, name: str, arguments: Mapping[str, object], asked: list[str]) -> dict[str, object]:
    tool = BY_NAME.get(name)
    if tool is None:
        known = ", ".join(each.name for each in tools_of(scope))
        raise UnknownTool(f"there is no tool {name[:WORDS_MAX]!a}: there are {known}")
    if tool.changes and scope.writers.is_read_only:
        raise Denied(READ_ONLY)
    return await tool.handler(Call(scope=scope, tool=tool, asked=asked), _arguments(tool, arguments))


def _arguments(tool: Tool[Any], arguments: Mapping[str, object]) -> Any:
    try:
        given = msgspec.convert(dict(arguments), tool.arguments)
        # A lone surrogate is valid JSON and no text.
        msgspec.json.encode(given)
    except msgspec.ValidationError as error:
        names = ", ".join(tool.arguments.__struct_fields__)
        raise Invalid(f"{tool.name}: {error}. Its arguments are {names}: see its schema") from error
    except UnicodeEncodeError as error:
        raise Invalid(f"{tool.name}: an argument is not valid Unicode") from error
    return given


def words_of(error: LakebedError) -> str:
    """Return an error for an agent: its words, and the next step where they do not say it."""
    words = error.first_line[:WORDS_MAX]
    match error:
        case Invalid():
            step = ""
        case Denied():
            step = "This login may not do it: do not try again, tell the person"
        case NotFound():
            step = "Look with the tool list for the names that there are"
        case Unavailable():
            step = "Nothing was changed: try again later"
        case _:
            step = ""
    return f"{words}. {step}" if step and READ_ONLY not in words else words
