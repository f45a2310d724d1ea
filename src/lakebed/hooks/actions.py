"""Action files: which hooks run at which events. Pure: YAML in, checked records out.

A file is checked in two steps: `parse` reads its events, `Action.hooks_for` checks the parts for one event. So a
mistake in a part for another event or branch refuses no change of this one.

    name: Good files
    on: {pre-commit: {branches: [main, "release-*"]}}
    hooks: [{id: check, type: webhook, if: success(), properties: {url: "https://checks.example/files"}}]
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from typing import Any, Final

from lakebed.base import ACTIONS_FOLDER, Invalid, Later
from lakebed.catalog import Event

yaml: Any = Later("yaml")  # slow to import, and few repositories have actions

FOLDER: Final = ACTIONS_FOLDER
FILES_MAX: Final = 100
FILE_BYTES_MAX: Final = 256 << 10
HOOKS_MAX: Final = 50
NODES_MAX: Final = 10_000
DEPTH_MAX: Final = 50
NEEDED: Final[Mapping[str, Sequence[Sequence[str]]]] = {
    "webhook": [["url"]],
    "lua": [["script", "script_path"]],
    "airflow": [["url"], ["dag_id"], ["username"], ["password"]],
}
"""The types of hooks, and the properties of each: one of every group is needed."""
CONDITIONS: Final = ("success()", "failure()", "always()")
_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,100}")
_DURATION: Final = re.compile(r"(?:(\d+)h)?(?:(\d+)m(?!s))?(?:(\d+(?:\.\d+)?)s)?(?:(\d+)ms)?")


class InvalidAction(Invalid):
    """An action file cannot be read. Facts: `path`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hook:
    id: str
    type: str
    condition: str
    properties: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """One action file. `events` and `hooks` are as they were read, unchecked."""

    path: str
    name: str
    events: Mapping[Any, Any]
    """The options of each event: patterns of branches or tags. None: every branch, and every tag."""
    hooks: Any

    def hooks_for(self, event: Event) -> Sequence[Hook]:
        """Return the hooks that run at an event: none where the file is for other events or branches.

        Raises:
            InvalidAction: the file is for this event, and does not follow the schema.
        """
        if event.type not in self.events:
            return ()
        with _naming(self.path):
            patterns = _patterns(event.type, self.events[event.type])
            if patterns and not any(fnmatchcase(event.branch or event.tag, pattern) for pattern in patterns):
                return ()
            return _hooks(self.hooks)


@cache
def _loader() -> Any:
    """Return the class that reads plain YAML. It is made when a server reads its first action file."""

    class Loader(yaml.SafeLoader):  # type: ignore[misc]  # PyYAML brings no types
        """Read plain YAML without aliases: a few lines of them stand for more values than memory holds."""

        def __init__(self, text: bytes) -> None:
            super().__init__(text)
            self._nodes = self._depth = 0

        def compose_node(self, parent: Any, index: Any) -> Any:
            """Read one node, while the file stays within its limits.

            Raises:
                InvalidAction: the file has an alias, or too many nodes, or they lie too deep.
            """
            if self.check_event(yaml.AliasEvent):
                raise InvalidAction("aliases are not taken")
            self._nodes += 1
            self._depth += 1
            if self._nodes > NODES_MAX or self._depth > DEPTH_MAX:
                raise InvalidAction(f"it has more than {NODES_MAX} values, or they lie deeper than {DEPTH_MAX}")
            node = super().compose_node(parent, index)
            self._depth -= 1
            if isinstance(node, yaml.ScalarNode):
                node.value.encode()  # half a surrogate pair could not be recorded later
            return node

    return Loader


def parse(path: str, text: bytes) -> Action:
    """Read one action file.

    Raises:
        InvalidAction: it is no YAML, or names no event: so it could be for every event.
    """
    with _naming(path):
        data = _loaded(text)
        if not isinstance(data, dict):
            raise InvalidAction("it is not a mapping")
        # YAML 1.1 reads the key `on` as the truth value.
        events = data.get("on", data.get(True))
        if not isinstance(events, dict) or not events:
            raise InvalidAction("`on` names no event")
        name = _text(data.get("name") or path.removeprefix(FOLDER), "name")
    return Action(path=path, name=name, events=events, hooks=data.get("hooks"))


@contextmanager
def _naming(path: str) -> Iterator[None]:
    """Name the file in every error."""
    try:
        yield
    except InvalidAction as error:
        raise InvalidAction(f"action file {path}: {error}", path=path) from error
    except (yaml.YAMLError, ValueError, LookupError, ArithmeticError, AttributeError, TypeError) as error:
        # The constructors of YAML raise these for a date that is none, for `0b_`, for `!!bool x`, and so on.
        raise InvalidAction(f"action file {path}: no YAML: {error}", path=path) from error


def _loaded(text: bytes) -> Any:
    loader = _loader()(text)
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()


def _patterns(name: object, options: object) -> tuple[str, ...]:
    if options is None:
        return ()
    if not isinstance(options, dict) or not set(options) <= {"branches", "tags"}:
        raise InvalidAction(f"`{name}` takes `branches`, a list of patterns")
    patterns = []
    for field, given in options.items():
        # A text is refused: its letters would be the patterns, and the check would run for no branch.
        if given is not None and not isinstance(given, list):
            raise InvalidAction(f"`{field}` of `{name}` is not a list")
        patterns += [_text(pattern, field) for pattern in given or []]
    return tuple(patterns)


def _hooks(data: object) -> Sequence[Hook]:
    if not isinstance(data, list) or not 1 <= len(data) <= HOOKS_MAX:
        raise InvalidAction(f"`hooks` is not a list of 1 to {HOOKS_MAX}")
    hooks = [_hook(each) for each in data]
    if len({hook.id for hook in hooks}) < len(hooks):
        raise InvalidAction("two hooks have the same id")
    return hooks


def _hook(data: object) -> Hook:
    if not isinstance(data, dict):
        raise InvalidAction("a hook is not a mapping")
    id_, kind, properties = data.get("id"), data.get("type"), data.get("properties") or {}
    if not isinstance(id_, str) or not _ID.fullmatch(id_):
        raise InvalidAction(f"the hook id {id_!r} is not of letters, digits, `_` and `-`")
    if not isinstance(kind, str) or kind not in NEEDED:
        raise InvalidAction(f"hook {id_}: the type {kind!r} is not known: {', '.join(sorted(NEEDED))}")
    condition = str(data.get("if") or CONDITIONS[0]).strip()
    if condition not in CONDITIONS:
        raise InvalidAction(f"hook {id_}: `if` is one of {', '.join(CONDITIONS)}")
    if not isinstance(properties, dict):
        raise InvalidAction(f"hook {id_}: `properties` is not a mapping")
    for names in NEEDED[kind]:
        if not any(isinstance(properties.get(name), str) and properties[name] for name in names):
            raise InvalidAction(f"hook {id_}: the property {' or '.join(names)} is missing")
    if "timeout" in properties:
        duration_s(properties["timeout"])
    return Hook(id=id_, type=kind, condition=condition, properties=properties)


def duration_s(value: object) -> float:
    """Read a duration as `1m30s`, or a number of seconds.

    Raises:
        InvalidAction: it is neither.
    """
    if isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
        return float(value)
    match = _DURATION.fullmatch(str(value).strip())
    if match is None or not any(match.groups()):
        raise InvalidAction(f"the timeout {value!r} is not a duration such as 1m30s")
    hours, minutes, seconds, millis = (float(part or 0) for part in match.groups())
    return hours * 3600 + minutes * 60 + seconds + millis / 1000


def _text(value: object, name: str) -> str:
    if not isinstance(value, str) or not value or len(value) > 1024:
        raise InvalidAction(f"`{name}` is not text")
    return value


def should_run(condition: str, *, has_failed: bool) -> bool:
    """Decide whether a hook runs, by the outcomes of those before it in its action."""
    return condition == "always()" or (condition == "failure()") == has_failed
