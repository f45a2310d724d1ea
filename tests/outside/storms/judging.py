"""Judge a storm by what it noted: what must not be. It reads the folder alone, so it can be run again."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from .looking import AFTER, BEFORE, GONE, models_of
from .model import DUE, MAIN, Model, Values, shown

UNFORESEEN: Final = "unexpected error in"
NOTES: Final = "notes"
"""`notes.json` has what was wrong while the storm blew: errors of servers and commands."""


def judge(folder: Path) -> list[str]:
    """Return all that is wrong. Empty: the storm found nothing."""
    models = models_of(folder)
    wrong = [text for model in models.values() for text in model.wrong]
    for name in (BEFORE, AFTER):
        state = json.loads((folder / f"{name}.json").read_text())
        wrong += [f"{name} the collections: {text}" for text in _check_values(models, state["refs"])]
    wrong += [*_check_objects(state), *_check_ledger(state), *_check_certificates(state)]
    wrong += [*_check_logs(folder)]
    wrong += json.loads((folder / f"{NOTES}.json").read_text())["wrong"]
    return wrong


def _check_logs(folder: Path) -> Iterator[str]:
    for log in sorted(folder.glob("server-*.log")):
        text = log.read_text(errors="replace")
        if count := text.count(UNFORESEEN):
            start = text.index(UNFORESEEN)
            yield f"{log.name}: {count} errors were not foreseen, such as {text[start : start + 2_000]}"


def _check_values(models: Mapping[int, Model], refs: Mapping[str, Mapping[str, str | None]]) -> Iterator[str]:
    for model in models.values():
        for place in model.current:
            if place[0] in {MAIN, model.own, model.into}:
                yield from _check(place[0], place[1], refs[place[0]][place[1]], model.at(place))
        pinned = set(model.tags.values())
        for commit, (branch, tree) in model.commits.items():
            for path, values in tree.items():
                value = refs[commit][path]
                # Commits of other branches expire, but for those with a tag.
                if value != GONE or branch == MAIN or commit in pinned:
                    yield from _check(f"{commit} of {branch}", path, value, values)
        for tag, commit in model.tags.items():
            for path, values in model.commits[commit][1].items():
                yield from _check(f"tag {tag}", path, refs[tag][path], values)


def _check(ref: str, path: str, value: str | None, values: Values) -> Iterator[str]:
    if path.startswith(DUE) and value in {None, GONE}:
        return
    if value not in values:
        yield f"{path} of {ref} is {value!r}, and {shown(values)} may be"


def _check_objects(state: Mapping[str, Any]) -> Iterator[str]:
    listed, named = set(state["listed"]), set(state["named"])
    if left := sorted(listed - named):
        yield f"nothing names these {len(left)} objects, and an offline run left them: {left[:5]}"
    taken = {row["address"] for row in state["ledger"] if row["state"] == "deleted" and row["rule"]}
    erased = {each["address"] for record in state["certificates"].values() for each in _objects(record)}
    if lost := sorted(set(state["reachable"]) - listed - taken - erased):
        yield f"a branch, or a commit that one leads to, names these {len(lost)} objects, and they are gone: {lost[:5]}"


def _check_ledger(state: Mapping[str, Any]) -> Iterator[str]:
    deleted = [row for row in state["ledger"] if row["state"] == "deleted"]
    listed = set(state["listed"])
    if false := sorted({row["address"] for row in deleted} & listed):
        yield f"the ledger says that these {len(false)} objects were deleted, and they are there: {false[:5]}"
    times = Counter(row["address"] for row in deleted)
    if double := sorted(address for address, count in times.items() if count > 1):
        rows = [row for row in deleted if row["address"] == double[0]]
        yield f"the ledger counts these {len(double)} deleted objects more than once: {double[:5]}, such as {rows}"


def _check_certificates(state: Mapping[str, Any]) -> Iterator[str]:
    listed = set(state["listed"])
    for key, record in state["certificates"].items():
        there = [each["address"] for each in _objects(record) if each.get("is_absent") and each["address"] in listed]
        if there:
            yield f"the certificate {key} says that these are absent, and they are there: {there[:5]}"
    for run, failed in state["commands"].get("verify", {}).items():
        yield f"the certificate of {run} does not hold any more: {failed}"


def _objects(record: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    content = record.get("certificate", record)
    return list(content.get("objects", ())) if isinstance(content, Mapping) else []
