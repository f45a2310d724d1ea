"""Declare the requests for collections: one record for each action, with one check for all front ends.

The Python functions, the command line, `python -m lakebed.gc` and the jobs of a server all make these records. A front
end that reads words (`request_of`) spells the fields below with dashes. In JSON, `action` names the record:

    {"action": "plan", "kinds": ["uncommitted"], "mode": "clean"}
    {"action": "apply", "run_id": "06gvsk16dis1i19se31f", "window": "7d"}

`check` uses only the record. `Collector.check` also asks the server and reads the namespace.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Final, TypeAlias, TypeVar

import msgspec

from lakebed.base import Basis, Invalid, RunKind, grace_seconds
from lakebed.gc.rules import DAY_MS, Rules, Selection, check_rules, check_selection, parse_duration
from lakebed.gc.rules.lifecycle import check_policy

from .erasures import ErasureOrder
from .run.paths import check_run_id
from .run.plans import window_end_ms

__all__ = [
    "ENGINE_SETTING",
    "REQUESTS",
    "ApplyRequest",
    "EngineName",
    "EraseRequest",
    "InvalidRequest",
    "Mode",
    "PlanErasureRequest",
    "PlanRequest",
    "PurgeRequest",
    "Request",
    "RunRequest",
    "SimulateRequest",
    "UncommittedOptions",
    "UnknownChoice",
    "action_of",
    "engine_from",
    "is_spark_installed",
    "known",
    "request_of",
]

REQUEST_BYTES_MAX: Final = 64 << 10
"""A job writes its request again every few seconds. Use the command for a larger selection or policy."""
DAYS_MAX: Final = 366
"""The most days of a simulation as a job, whose record has a sum for each day."""
CLEAN_EVERY: Final = 10
CLEAN_AFTER_MS: Final = 7 * DAY_MS
OLD_LAYOUT_AGE_MS: Final = 7 * DAY_MS
ENGINE_SETTING: Final = "LAKEBED_GC_ENGINE"
"""The environment variable with the engine of requests that name no engine."""


E = TypeVar("E", bound=enum.StrEnum)


class InvalidRequest(Invalid):
    """The request has an unknown option, or options that exclude each other. The message names them."""


class UnknownChoice(InvalidRequest):
    """The request has an unknown kind, mode or engine. The message lists the known values."""


class Mode(enum.StrEnum):
    """Choose how a run searches for uncommitted data.

    `automatic`: optimised if a saved state allows it and no clean run is due, else clean.
    """

    AUTOMATIC = "automatic"
    CLEAN = "clean"
    OPTIMISED = "optimised"
    OLD_LAYOUT = "old-layout"


class EngineName(enum.StrEnum):
    """Choose the engine. `auto`: Spark, unless there is so little work that a session costs more."""

    AUTO = "auto"
    SPARK = "spark"
    LOCAL = "local"


@dataclass(frozen=True, slots=True, kw_only=True)
class UncommittedOptions:
    """Options of uncommitted runs. `mode` and `active_only` (see `PlanRequest`) apply to lifecycle runs, too."""

    mode: Mode = Mode.AUTOMATIC
    active_only: bool = False
    # One of this many automatic runs is clean.
    clean_every: int = CLEAN_EVERY
    # No automatic run is optimised when the last clean run began longer ago.
    clean_after_ms: int = CLEAN_AFTER_MS
    # Leave slices opened within this time to a later run (the cut-off of docs/design/0001-uncommitted-gc.md). Runs read
    # only closed slices in any case.
    token_expiry_ms: int = 0
    # The age at which an object outside slices may be deleted.
    old_layout_age_ms: int = OLD_LAYOUT_AGE_MS


class _Any(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="action"
):
    """The options of every request. `engine` None: the collector's engine (`Collector.engine`). `tasks`: the number of
    tasks to deal the work out to; None: as many as fit the session.
    """

    engine: EngineName | None = None
    tasks: int | None = None


class _Planning(_Any, frozen=True, kw_only=True):
    """Options of a plan, besides `UncommittedOptions`. Durations are written as in rules (`36h`, `7d`).

    No `kinds`: every kind but `lifecycle`, and committed data only if the repository has rules.
    """

    kinds: tuple[RunKind, ...] = ()
    mode: Mode = Mode.AUTOMATIC
    clean_every: int | None = None
    clean_after: str | None = None
    token_expiry: str | None = None
    older_than: str | None = None
    # In a lifecycle run, commits that the retention rules let expire keep no objects, as if swept.
    active_only: bool = False

    def uncommitted(self) -> UncommittedOptions:
        """Return the options with their defaults, or raise InvalidDuration."""
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
    """Decide which objects to delete, write the plan, and delete nothing. `rules`: plan by these rules instead."""

    rules: Rules | None = None

    def check(self) -> None:
        """Check the options, or raise an `Invalid`."""
        _check_any(self)
        _check_planning(self)
        if self.rules is not None:
            check_rules(self.rules)
            if not all(kind.takes_objects for kind in self.kinds):
                raise InvalidRequest("rules do not apply to metadata: name other kinds, or none")


class ApplyRequest(_Any, frozen=True, kw_only=True, tag="apply"):
    """Carry out one plan. `window`: keep the objects for this time first. `readers_grace`: wait this long for readers
    before the first delete.
    """

    run_id: str
    window: str | None = None
    readers_grace: str | None = None

    def check(self) -> None:
        """Check the options, or raise an `Invalid`."""
        _check_any(self)
        check_run_id(self.run_id)
        _check_deleting(self.window, self.readers_grace)


class RunRequest(_Planning, frozen=True, kw_only=True, tag="run"):
    """Finish unfinished runs, plan and apply one kind after the other, then purge. `branches`: first delete the
    branches that the lifecycle policy lets expire.
    """

    window: str | None = None
    readers_grace: str | None = None
    branches: bool = False

    def check(self) -> None:
        """Check the options, or raise an `Invalid`."""
        _check_any(self)
        _check_planning(self)
        _check_deleting(self.window, self.readers_grace)


class PurgeRequest(_Any, frozen=True, kw_only=True, tag="purge"):
    """Delete the objects of deferred runs whose window is over."""

    def check(self) -> None:
        """Check the options, or raise an `Invalid`."""
        _check_any(self)


class SimulateRequest(_Any, frozen=True, kw_only=True, tag="simulate"):
    """Sum up what the lifecycle policy would delete on each of the coming days. Deletes nothing.

    `policy` (JSON) takes the place of the policy in force, and is not saved.
    """

    days: int = 60
    policy: str = ""

    def check(self) -> None:
        """Check the options, or raise an `Invalid`."""
        _check_any(self)
        if not 0 <= self.days <= DAYS_MAX:
            raise InvalidRequest(f"days must be 0 to {DAYS_MAX}, not {self.days}")
        if self.policy:
            check_policy(self.policy.encode())
        _check_size(self, "lakebed lifecycle simulate")


class PlanErasureRequest(_Any, frozen=True, kw_only=True, tag="plan-erasure"):
    """Decide which objects an erasure takes, write the plan, and delete nothing. See `ErasureOrder`."""

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
        """Check the selection and the reason, or raise an `Invalid`."""
        _check_any(self)
        check_selection(self.selection)
        if not self.why.strip():
            raise InvalidRequest("an erasure needs a reason (why): the plan and the certificate name it")
        _check_size(self, "lakebed erase plan")


class EraseRequest(_Any, frozen=True, kw_only=True, tag="erase"):
    """Carry out the plan of an erasure, and certify it. Repeat after a crash."""

    run_id: str
    # Then delete every object that no entry names, too, because some bytes have no recorded path.
    everywhere: bool = False
    readers_grace: str | None = None

    def check(self) -> None:
        """Check the options, or raise an `Invalid`."""
        _check_any(self)
        check_run_id(self.run_id)
        _check_deleting(None, self.readers_grace)


Request: TypeAlias = (
    PlanRequest | ApplyRequest | RunRequest | PurgeRequest | SimulateRequest | PlanErasureRequest | EraseRequest
)
REQUESTS: Final[dict[str, type[Request]]] = {
    "plan": PlanRequest,
    "apply": ApplyRequest,
    "run": RunRequest,
    "purge": PurgeRequest,
    "simulate": SimulateRequest,
}
"""The requests that words describe. Erasure requests come as JSON; `lakebed erase` has its own words."""


def action_of(request: Request) -> str:
    """Return the request's action, which names it in JSON."""
    return str(request.__struct_config__.tag)


def request_of(action: str, **options: object) -> Request:
    """Make the request that these words describe, and check it. Ignore options that are None or empty.

    Raises:
        InvalidRequest, InvalidRunId, InvalidDuration, InvalidRules, BadWindow: the request is invalid.
    """
    type_ = REQUESTS[known(action, tuple(REQUESTS))]
    given = {name: value for name, value in options.items() if value is not None and value not in ("", (), [])}
    rules = given.pop("rules", None)
    if unknown := sorted({*given, *(["rules"] if rules else [])} - {*type_.__struct_fields__}):
        raise InvalidRequest(f"{unknown[0].replace('_', '-')!r} is not an option of {action}", option=unknown[0])
    for name, choices in (("mode", Mode), ("engine", EngineName)):
        if name in given:
            known(str(given[name]), choices)
    for kind in _each(given.get("kinds", ())):
        known(str(kind), RunKind)
    if type_ is ApplyRequest and "run_id" not in given:
        raise InvalidRequest("apply needs the id of a run")
    try:
        # Options of a command line are text, so convert numbers, too.
        request = msgspec.convert(given, type_, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"{action}: {error}") from error
    if rules is not None:
        request = msgspec.structs.replace(request, rules=rules)
    request.check()
    return request


def is_spark_installed() -> bool:
    """Return whether PySpark is installed here. Does not load it."""
    try:
        return find_spec("pyspark") is not None
    except ModuleNotFoundError:
        return False


def engine_from(environ: Mapping[str, str]) -> EngineName:
    """Return the engine for requests that name no engine: the setting, else Spark if it is installed, else `local`.

    Raises:
        UnknownChoice: the setting names no engine.
    """
    default = EngineName.SPARK if is_spark_installed() else EngineName.LOCAL
    return EngineName(known(environ.get(ENGINE_SETTING) or default.value, EngineName))


def known(word: str, choices: Sequence[str] | type[E]) -> str:
    """Return the word if it is one of the choices, or raise UnknownChoice."""
    if word not in list(choices):
        raise UnknownChoice(f"{word!r} is not known: use {', '.join(choices)}", word=word)
    return word


def _check_any(request: _Any) -> None:
    if request.tasks is not None and request.tasks < 1:
        raise InvalidRequest(f"tasks must be a whole number above 0, not {request.tasks}")


def _check_size(request: _Any, command: str) -> None:
    size = len(msgspec.json.encode(request))
    if size > REQUEST_BYTES_MAX:
        raise InvalidRequest(f"the request has {size:,} bytes, and a job takes {REQUEST_BYTES_MAX:,}: use `{command}`")


def _check_planning(request: _Planning) -> None:
    """Check the options of a plan."""
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
    # A lifecycle run has modes, too: it can continue from the state of an earlier run.
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
    """Return the duration in milliseconds. A month has 31 days."""
    return default_ms if duration is None else -parse_duration(duration).before_ms(0)


def _each(value: object) -> Iterable[object]:
    return value if isinstance(value, tuple | list) else (value,)
