"""Describe what a collection is asked to do: one record for each action, and one check for all front ends.

The Python functions, the command line, `python -m lakebed.gc` and the jobs of a server all make these records. A front
end that reads words (`request_of`) spells them as the fields below, with dashes. As JSON, `action` names the record:

    {"action": "plan", "kinds": ["uncommitted"], "mode": "clean"}
    {"action": "apply", "run_id": "06gvsk16dis1i19se31f", "window": "7d"}

`check` decides by the record alone. What only the server or the namespace knows, `Collector.check` asks.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias, TypeVar

import msgspec

from lakebed.base import Basis, Invalid, RunKind
from lakebed.gc.rules import DAY_MS, Rules, Selection, check_rules, check_selection, parse_duration

from .erasures import ErasureOrder
from .run.paths import check_run_id
from .run.plans import window_end_ms

SELECTION_BYTES_MAX: Final = 64 << 10
"""A job writes its request again every few seconds. An erasure that selects by more is planned by the command."""
CLEAN_EVERY: Final = 10
CLEAN_AFTER_MS: Final = 7 * DAY_MS
OLD_LAYOUT_AGE_MS: Final = 7 * DAY_MS
ENGINE_SETTING: Final = "LAKEBED_GC_ENGINE"
"""The environment variable with the engine of requests that name none."""

_GRACE_FORM: Final = re.compile(r"([0-9]{1,9})(s|m|min|h)?")
_GRACE_UNITS_S: Final = {None: 1, "s": 1, "m": 60, "min": 60, "h": 3600}

E = TypeVar("E", bound=enum.StrEnum)


class InvalidRequest(Invalid):
    """The request names an unknown option, or options that exclude each other. The message says which."""


class UnknownChoice(InvalidRequest):
    """An unknown kind, mode or engine. The message lists the known ones."""


class BadGrace(InvalidRequest):
    """The grace of readers is negative, or no time at all."""


SIGNED_S: Final = 15 * 60
"""The readers' grace where clients read by themselves: as long as the URLs last that the server signs."""

SERVED_S: Final = 2
"""The same where all reads go through the server."""


class Mode(enum.StrEnum):
    """Choose how a run looks for uncommitted data. `automatic`: optimised where a saved state allows it and no clean
    run is due, else clean."""

    AUTOMATIC = "automatic"
    CLEAN = "clean"
    OPTIMISED = "optimised"
    OLD_LAYOUT = "old-layout"


class EngineName(enum.StrEnum):
    """Choose what carries out the work. `auto`: Spark, unless there is so little to do that a session costs more."""

    AUTO = "auto"
    SPARK = "spark"
    LOCAL = "local"


@dataclass(frozen=True, slots=True, kw_only=True)
class UncommittedOptions:
    """`clean_every`: one of this many automatic runs is clean, and none is optimised once the last clean one began
    `clean_after_ms` ago. `token_expiry_ms`: slices opened within so long are left to a later run (the cut-off of
    docs/design/0001-uncommitted-gc.md; only closed slices are looked at in any case). `old_layout_age_ms`: how long
    ago an object outside slices must have been written before it may go. `mode` and `active_only` (see `PlanRequest`)
    are for lifecycle runs, too.
    """

    mode: Mode = Mode.AUTOMATIC
    active_only: bool = False
    clean_every: int = CLEAN_EVERY
    clean_after_ms: int = CLEAN_AFTER_MS
    token_expiry_ms: int = 0
    old_layout_age_ms: int = OLD_LAYOUT_AGE_MS


class _Any(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="action"
):
    """Every request has these. `engine` None: the collector's (`Collector.engine`). `tasks`: into how many the work is
    dealt; None: as fits the session."""

    engine: EngineName | None = None
    tasks: int | None = None


class _Planning(_Any, frozen=True, kw_only=True):
    """Options of a plan. No `kinds`: all but `lifecycle`, and committed data only where rules are set. The others say
    how uncommitted data is looked for: see `UncommittedOptions`. Durations are written as in rules (`36h`, `7d`).

    `active_only`: to a lifecycle run, commits that the retention rules let go keep nothing, as if they had been swept.
    """

    kinds: tuple[RunKind, ...] = ()
    mode: Mode = Mode.AUTOMATIC
    clean_every: int | None = None
    clean_after: str | None = None
    token_expiry: str | None = None
    older_than: str | None = None
    active_only: bool = False

    def uncommitted(self) -> UncommittedOptions:
        """
        Raises:
            InvalidDuration: a period is none.
        """
        default = UncommittedOptions()
        return UncommittedOptions(
            mode=self.mode,
            active_only=self.active_only,
            clean_every=default.clean_every if self.clean_every is None else self.clean_every,
            clean_after_ms=_milliseconds(self.clean_after, default.clean_after_ms),
            token_expiry_ms=_milliseconds(self.token_expiry, default.token_expiry_ms),
            old_layout_age_ms=_milliseconds(self.older_than, default.old_layout_age_ms),
        )


class PlanRequest(_Planning, frozen=True, kw_only=True, tag="plan"):
    """Decide what goes, write it down, and delete nothing. `rules`: plan as if these were the repository's."""

    rules: Rules | None = None

    def check(self) -> None:
        """
        Raises:
            InvalidRequest, InvalidDuration, InvalidRules: the options exclude each other, or one is invalid.
        """
        _check_any(self)
        _check_planning(self)
        if self.rules is not None:
            check_rules(self.rules)
            if not all(kind.takes_objects for kind in self.kinds):
                raise InvalidRequest("rules do not apply to metadata: name other kinds, or none")


class ApplyRequest(_Any, frozen=True, kw_only=True, tag="apply"):
    """Carry out one plan. `window`: delete nothing yet, and keep objects for this long. `readers_grace`: delete
    nothing that a read may have found so shortly before."""

    run_id: str
    window: str | None = None
    readers_grace: str | None = None

    def check(self) -> None:
        """
        Raises:
            InvalidRequest, InvalidRunId, InvalidDuration, BadWindow: an option is invalid.
        """
        _check_any(self)
        check_run_id(self.run_id)
        _check_deleting(self.window, self.readers_grace)


class RunRequest(_Planning, frozen=True, kw_only=True, tag="run"):
    """Finish what is unfinished, plan and apply one kind after the other, then purge. `branches`: before that, delete
    the branches that go by the lifecycle policy."""

    window: str | None = None
    readers_grace: str | None = None
    branches: bool = False

    def check(self) -> None:
        """
        Raises:
            InvalidRequest, InvalidDuration, BadWindow: the options exclude each other, or one is invalid.
        """
        _check_any(self)
        _check_planning(self)
        _check_deleting(self.window, self.readers_grace)


class PurgeRequest(_Any, frozen=True, kw_only=True, tag="purge"):
    """Delete what was deferred, where the window is over."""

    def check(self) -> None:
        """
        Raises:
            InvalidRequest: an option is invalid.
        """
        _check_any(self)


class PlanErasureRequest(_Any, frozen=True, kw_only=True, tag="plan-erasure"):
    """Decide what an erasure takes, write it down, and delete nothing. See `ErasureOrder`."""

    selection: Selection
    why: str
    takes_shared: bool = False
    finds_copies: bool = False

    @property
    def order(self) -> ErasureOrder:
        return ErasureOrder(
            selection=self.selection, why=self.why, takes_shared=self.takes_shared, finds_copies=self.finds_copies
        )

    def check(self) -> None:
        """
        Raises:
            InvalidRequest, InvalidSelection: it selects nothing, too much for a job, or gives no reason.
        """
        _check_any(self)
        check_selection(self.selection)
        if not self.why.strip():
            raise InvalidRequest("an erasure needs a reason (why): the plan and the certificate name it")
        size = len(msgspec.json.encode(self))
        if size > SELECTION_BYTES_MAX:
            raise InvalidRequest(
                f"the request has {size:,} bytes, and a job takes {SELECTION_BYTES_MAX:,}: use `lakebed erase plan`"
            )


class EraseRequest(_Any, frozen=True, kw_only=True, tag="erase"):
    """Carry out the plan of an erasure, and certify it. After a crash: again. `everywhere`: then delete all that no
    entry names, too, for of some bytes no record has the path."""

    run_id: str
    everywhere: bool = False
    readers_grace: str | None = None

    def check(self) -> None:
        """
        Raises:
            InvalidRequest, InvalidRunId: an option is invalid.
        """
        _check_any(self)
        check_run_id(self.run_id)
        _check_deleting(None, self.readers_grace)


Request: TypeAlias = PlanRequest | ApplyRequest | RunRequest | PurgeRequest | PlanErasureRequest | EraseRequest
REQUESTS: Final[dict[str, type[Request]]] = {
    "plan": PlanRequest,
    "apply": ApplyRequest,
    "run": RunRequest,
    "purge": PurgeRequest,
}
"""The requests that words describe. Those of erasures come as JSON, and `lakebed erase` has words of its own."""


def action_of(request: Request) -> str:
    """Return the request's action, which names it in JSON."""
    return str(request.__struct_config__.tag)


def request_of(action: str, **options: object) -> Request:
    """Make the request that these words describe, and check it. None and empty values count as not given.

    Raises:
        InvalidRequest, InvalidRunId, InvalidDuration, InvalidRules, BadWindow: it is not a valid one.
    """
    type_ = REQUESTS[known(action, tuple(REQUESTS))]
    given = {name: value for name, value in options.items() if value is not None and value not in ("", (), [])}
    rules = given.pop("rules", None)
    if unknown := sorted({*given, *(["rules"] if rules else [])} - {*type_.__struct_fields__}):
        raise InvalidRequest(f"{_dashed(unknown[0])!r} is no option of {action}", option=unknown[0])
    for name, choices in (("mode", Mode), ("engine", EngineName)):
        if name in given:
            known(str(given[name]), choices)
    for kind in _each(given.get("kinds", ())):
        known(str(kind), RunKind)
    if type_ is ApplyRequest and "run_id" not in given:
        raise InvalidRequest("apply needs the id of a run")
    try:
        # Words of a command line: numbers arrive as text.
        request = msgspec.convert(given, type_, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"{action}: {error}") from error
    if rules is not None:
        request = msgspec.structs.replace(request, rules=rules)
    request.check()
    return request


def engine_from(environ: Mapping[str, str]) -> EngineName:
    """Return the engine of requests that name none: the setting, else Spark.

    Raises:
        UnknownChoice: the setting is no engine.
    """
    return EngineName(known(environ.get(ENGINE_SETTING) or EngineName.SPARK.value, EngineName))


def known(word: str, choices: Sequence[str] | type[E]) -> str:
    """
    Raises:
        UnknownChoice: it is none of them.
    """
    if word not in list(choices):
        raise UnknownChoice(f"{word!r} is not known: use {', '.join(choices)}", word=word)
    return word


def grace_seconds(text: str) -> int:
    """Return `900`, `900s`, `15m`, `15min` or `1h` in seconds.

    Raises:
        BadGrace: it is none of these.
    """
    found = _GRACE_FORM.fullmatch(text)
    if found is None:
        raise BadGrace(f"{text!r} is no time that readers can be given: use 900 (seconds), 15m or 1h")
    return int(found[1]) * _GRACE_UNITS_S[found[2]]


def _check_any(request: _Any) -> None:
    if request.tasks is not None and request.tasks < 1:
        raise InvalidRequest(f"tasks must be a whole number above 0, not {request.tasks}")


def _check_planning(request: _Planning) -> None:
    """
    Raises:
        InvalidRequest, InvalidDuration: see `PlanRequest.check`.
    """
    by_policy = any(kind.spec.basis is Basis.POLICY for kind in request.kinds)
    is_only_garbage = len(request.kinds) == 1 and not request.kinds[0].publishes
    if request.mode is Mode.OLD_LAYOUT and not is_only_garbage:
        raise InvalidRequest("old-layout is for uncommitted data alone: name the kind uncommitted, and no other")
    if request.older_than is not None and request.mode is not Mode.OLD_LAYOUT:
        raise InvalidRequest("older-than is for old-layout; rules say how long other data stays")
    if request.active_only and not by_policy:
        raise InvalidRequest("active-only is for lifecycle runs: name that kind")
    if request.active_only and request.mode is Mode.OPTIMISED:
        raise InvalidRequest("active-only and optimised do not go together: such a run reads everything")
    # A lifecycle run goes on from the one before, too.
    is_of_others = request.mode is not Mode.AUTOMATIC and not by_policy
    ways = {
        request.mode.value: is_of_others,
        "clean-every": request.clean_every is not None,
        "clean-after": request.clean_after is not None,
        "token-expiry": request.token_expiry is not None,
    }
    given = [name for name, is_given in ways.items() if is_given]
    if given and request.kinds and all(kind.publishes for kind in request.kinds):
        raise InvalidRequest(f"{given[0]} is for uncommitted data: name that kind too, or no kind")
    if request.clean_every is not None and request.clean_every < 1:
        raise InvalidRequest(f"clean-every must be a whole number above 0, not {request.clean_every}")
    request.uncommitted()


def _check_deleting(window: str | None, readers_grace: str | None) -> None:
    if window is not None:
        window_end_ms(window, 0)
    if readers_grace is not None:
        grace_seconds(readers_grace)


def _milliseconds(duration: str | None, default_ms: int) -> int:
    """A month is 31 days."""
    return default_ms if duration is None else -parse_duration(duration).before_ms(0)


def _each(value: object) -> Iterable[object]:
    return value if isinstance(value, tuple | list) else (value,)


def _dashed(name: str) -> str:
    return name.replace("_", "-")


def grace_s_of(uri: str, asked_s: int | None) -> int:
    """Return how long readers of this namespace are given, in seconds.

    Raises:
        BadGrace: less than none was asked for.
    """
    if asked_s is None:
        return SERVED_S if uri.startswith("local://") else SIGNED_S
    if asked_s < 0:
        raise BadGrace(f"readers cannot be given {asked_s} seconds", seconds=asked_s)
    return asked_s
