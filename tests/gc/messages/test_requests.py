"""What a collection may be asked for, and that every front end refuses the same."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from lakebed.base import BadGrace, Invalid, grace_seconds
from lakebed.cli.gc.options import Deleting, Looking, Working, asked
from lakebed.cli.kit.failures import Misuse
from lakebed.gc.__main__ import main
from lakebed.gc.messages import (
    REQUESTS,
    ApplyRequest,
    EngineName,
    InvalidRequest,
    Mode,
    PlanRequest,
    Request,
    RunKind,
    RunRequest,
    UncommittedOptions,
    UnknownChoice,
    action_of,
    engine_from,
    request_of,
)
from lakebed.gc.rules import DAY_MS, InvalidDuration, Rules


def test_the_mode_is_automatic_and_all_kinds_are_meant_unless_some_are_named() -> None:
    request = asked("plan", Looking())

    assert isinstance(request, PlanRequest)
    assert (request.kinds, request.mode, request.uncommitted()) == ((), Mode.AUTOMATIC, UncommittedOptions())


@pytest.mark.parametrize(
    ("flags", "kinds"),
    [
        ({"committed": True}, {RunKind.COMMITTED}),
        ({"committed": True, "uncommitted": True}, {RunKind.COMMITTED, RunKind.UNCOMMITTED}),
        ({"metadata": True}, {RunKind.METADATA}),
    ],
)
def test_only_kinds_that_were_named_are_asked_for(flags: dict[str, Any], kinds: set[RunKind]) -> None:
    request = asked("run", Looking(**flags))

    assert isinstance(request, RunRequest)
    assert set(request.kinds) == kinds


def test_flags_and_words_and_json_make_the_same_request() -> None:
    flags = asked("plan", Looking(uncommitted=True, clean=True, clean_every=3), Working(engine="local"))
    words = request_of("plan", kinds=["uncommitted"], mode="clean", clean_every="3", engine="local")
    sent = msgspec.json.decode(msgspec.json.encode(flags), type=Request)

    assert flags == words == sent
    assert action_of(sent) == "plan"


def test_periods_are_written_as_in_rules() -> None:
    request = PlanRequest(clean_every=3, clean_after="2w", token_expiry="36h", older_than="1mo")
    options = request.uncommitted()

    assert (options.clean_every, options.clean_after_ms) == (3, 14 * DAY_MS)
    assert (options.token_expiry_ms, options.old_layout_age_ms) == (DAY_MS * 3 // 2, 31 * DAY_MS)


@pytest.mark.parametrize(
    ("action", "options", "words"),
    [
        ("plan", {"mode": "old-layout"}, "old-layout is for uncommitted data alone"),
        ("plan", {"mode": "old-layout", "kinds": ["uncommitted", "committed"]}, "old-layout is for"),
        ("plan", {"older_than": "7d"}, "older-than is for old-layout"),
        ("run", {"mode": "clean", "kinds": ["committed"]}, "clean is for uncommitted data"),
        ("run", {"clean_every": 3, "kinds": ["metadata"]}, "clean-every is for uncommitted data"),
        ("plan", {"clean_after": "7d", "kinds": ["committed"]}, "clean-after is for uncommitted data"),
        ("plan", {"token_expiry": "1h", "kinds": ["committed"]}, "token-expiry is for uncommitted data"),
        ("plan", {"kinds": ["metadata"], "rules": Rules(default="7d")}, "rules do not apply to metadata"),
        ("run", {"rules": Rules(default="7d")}, "'rules' is not an option of run"),
        ("plan", {"window": "7d"}, "'window' is not an option of plan"),
        ("apply", {"run_id": "r1", "kinds": ["committed"]}, "'kinds' is not an option of apply"),
        ("apply", {}, "apply needs the id of a run"),
        ("plan", {"tasks": "0"}, "tasks must be a whole number above 0"),
        ("plan", {"tasks": "many"}, "tasks"),
        ("plan", {"clean_every": 0}, "clean-every must be"),
        ("plan", {"engine": "flink"}, "'flink' is not known: use auto, spark, local"),
        ("plan", {"kinds": ["lost"]}, "'lost' is not known: use uncommitted, committed, metadata"),
        ("sweep", {}, "'sweep' is not known: use plan, apply, run, purge"),
    ],
)
def test_what_excludes_each_other_or_is_unknown_is_refused(action: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        request_of(action, **options)


@pytest.mark.parametrize(
    ("action", "options"),
    [
        ("plan", {"clean_after": "7"}),
        ("apply", {"run_id": "../r1"}),
        ("apply", {"run_id": "r1", "window": "forever"}),
        ("run", {"window": "soon"}),
        ("plan", {"rules": Rules(default="no time")}),
    ],
)
def test_a_value_that_is_none_is_refused(action: str, options: dict[str, Any]) -> None:
    with pytest.raises(Invalid):
        request_of(action, **options)


@pytest.mark.parametrize("arguments", [["--clean", "--optimised"], ["--old-layout"], ["--clean-every", "0"]])
def test_the_entry_for_spark_submit_refuses_the_same(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["plan", "lakefs://lake", *arguments], {})

    assert ended.value.code == 2
    assert "usage" in capsys.readouterr().err


def test_the_command_line_refuses_two_modes() -> None:
    with pytest.raises(Misuse, match="--clean and --optimised do not go together"):
        asked("plan", Looking(clean=True, optimised=True))


def test_how_to_delete_is_no_option_of_a_plan() -> None:
    with pytest.raises(InvalidRequest, match="not an option of plan"):
        asked("plan", Looking(), Deleting(window="7d"))


@pytest.mark.parametrize("action", sorted(REQUESTS))
def test_every_request_comes_back_from_json_as_it_was(action: str) -> None:
    request = request_of(action, **({"run_id": "r1"} if action == "apply" else {}), engine="auto", tasks=3)

    assert msgspec.json.decode(msgspec.json.encode(request), type=Request) == request


def test_a_field_that_is_not_known_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(b'{"action": "plan", "remote": "sc://elsewhere"}', type=Request)


def test_the_engine_of_requests_that_name_none_is_a_setting() -> None:
    assert engine_from({}) is EngineName.SPARK
    assert engine_from({"LAKEBED_GC_ENGINE": "auto"}) is EngineName.AUTO
    with pytest.raises(UnknownChoice):
        engine_from({"LAKEBED_GC_ENGINE": "flink"})


def test_without_pyspark_the_engine_is_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lakebed.gc.messages.requests.find_spec", lambda _: None)

    assert engine_from({}) is EngineName.LOCAL
    assert engine_from({"LAKEBED_GC_ENGINE": "spark"}) is EngineName.SPARK


def test_a_period_without_a_unit_is_refused() -> None:
    with pytest.raises(InvalidDuration):
        PlanRequest(clean_after="7").check()


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0", 0), ("900", 900), ("90s", 90), ("15m", 900), ("15min", 900), ("1h", 3600), ("1d", 86_400)],
)
def test_a_grace_is_written_in_seconds_minutes_hours_or_days(text: str, seconds: int) -> None:
    assert grace_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "-1", "1w", "1.5h", "m", "1 h", "1mo", "9" * 12])
def test_what_is_no_grace_is_refused(text: str) -> None:
    with pytest.raises(BadGrace, match="not a time that readers can be given"):
        ApplyRequest(run_id="r1", readers_grace=text).check()
