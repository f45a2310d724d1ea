"""Runs of hooks."""

from __future__ import annotations

import msgspec

from .common import Pagination

__all__ = ["ActionRun", "ActionRunList", "HookRun", "HookRunList"]


class ActionRun(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The hooks of one event. `status` is completed or failed; times are in RFC 3339."""

    run_id: str
    branch: str
    start_time: str
    end_time: str = ""
    event_type: str
    status: str
    commit_id: str


class ActionRunList(msgspec.Struct, frozen=True, kw_only=True):
    pagination: Pagination
    results: list[ActionRun]


class HookRun(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    hook_run_id: str
    action: str
    hook_id: str
    start_time: str
    end_time: str = ""
    status: str


class HookRunList(msgspec.Struct, frozen=True, kw_only=True):
    pagination: Pagination
    results: list[HookRun]
