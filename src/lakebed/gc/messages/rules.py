"""Retention rules as the server and its clients exchange them (JSON), beside the contract's form in days.

Routes, below `/api/v1/repositories/{repository}/gc/rules`:

    GET    full                                   -> RulesVersion    ?version=N: that one instead of the one in force
    PUT    full      lakebed.gc.rules.Rules      -> RulesWritten    ?if_version=N: only if that one is in force
    DELETE full      (empty)                      -> RulesWritten    likewise
    GET    history                                -> RulesHistory    newest first; ?before=N, ?amount=N
    GET    explain                                -> lakebed.gc.rules.Explanation    ?branch=NAME, or what is on none

412 says that another version is in force. Version 0 is that of a repository whose rules were never set.
"""

from __future__ import annotations

import msgspec

from lakebed.gc.rules import Rules


class RulesVersion(msgspec.Struct, frozen=True, kw_only=True):
    """`rules` None: none count from this version on. `changed_by` is a user's id, empty where no user signed in."""

    version: int
    rules: Rules | None
    changed_ms: int
    changed_by: str


class RulesHistory(msgspec.Struct, frozen=True, kw_only=True):
    versions: tuple[RulesVersion, ...]
    has_more: bool


class RulesWritten(msgspec.Struct, frozen=True, kw_only=True):
    """`counts_after` are runs that expire or sweep by the former rules: for these the change comes too late."""

    version: int
    counts_after: tuple[str, ...]
