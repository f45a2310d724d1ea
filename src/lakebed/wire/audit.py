"""The audit log, line by line."""

from __future__ import annotations

from typing import Final

import msgspec

from .common import Pagination

TOOL_HEADER: Final = "x-lakebed-tool"
"""Names the tool of an agent that asks. The audit log has a line for each request with it, reads too."""


class AuditRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One request: who (`user`, and `through` which key, login or job), what, when, from where, allowed or not.

    `time` is in UTC with milliseconds. `operation` is an id of the API reference and `what` names its subject.
    `allowed` is false for a wrong login and for a missing permission; `reason` then has the words of the answer.
    `tool` is that of an agent which asked, by the caller's own word.
    `forwarded` is the client's own claim. `skipped` counts refusals before this one that were too many to write.
    """

    time: str
    user: str
    through: str = ""
    address: str = msgspec.field(name="from", default="")
    forwarded: str = ""
    agent: str = ""
    tool: str = ""
    operation: str
    what: dict[str, str | list[str]]
    status: int
    allowed: bool
    reason: str = ""
    request: str
    skipped: int = 0


class AuditRecordList(msgspec.Struct, frozen=True, kw_only=True):
    pagination: Pagination
    results: list[AuditRecord]
