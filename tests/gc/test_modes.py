"""In which mode a run of uncommitted data is asked for, on both command lines."""

from __future__ import annotations

from typing import Any

import pytest

from lakebed.cli.failures import Misuse
from lakebed.cli.gc.modes import Looking
from lakebed.gc import Mode, UncommittedOptions, options_of
from lakebed.gc.__main__ import main
from lakebed.gc.rules import DAY_MS, InvalidDuration


def asked(**flags: Any) -> UncommittedOptions:
    return Looking(**flags).options()


def test_the_mode_is_automatic_unless_one_is_asked_for() -> None:
    assert asked() == UncommittedOptions()
    assert asked(clean=True).mode is Mode.CLEAN
    assert asked(optimised=True).mode is Mode.OPTIMISED
    assert asked(uncommitted=True, old_layout=True).mode is Mode.OLD_LAYOUT


def test_periods_are_said_as_in_rules() -> None:
    options = options_of(Mode.OLD_LAYOUT, clean_every=3, clean_after="2w", token_expiry="36h", older_than="1mo")

    assert (options.clean_every, options.clean_after_ms) == (3, 14 * DAY_MS)
    assert (options.token_expiry_ms, options.old_layout_age_ms) == (DAY_MS * 3 // 2, 31 * DAY_MS)


@pytest.mark.parametrize(
    "flags",
    [
        {"clean": True, "optimised": True},
        {"old_layout": True},
        {"uncommitted": True, "old_layout": True, "clean": True},
        {"older_than": "7d"},
    ],
)
def test_what_does_not_go_together_is_refused(flags: dict[str, object]) -> None:
    with pytest.raises(Misuse):
        asked(**flags)


def test_a_period_without_a_unit_is_refused() -> None:
    with pytest.raises(InvalidDuration):
        asked(clean_after="7")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--clean", "--optimised"],
        ["--old-layout"],
        ["--old-layout", "--uncommitted", "--committed"],
        ["--clean-every", "0"],
    ],
)
def test_the_entry_for_spark_submit_refuses_the_same(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["plan", "lakefs://lake", *arguments], {})

    assert ended.value.code == 2
    told = capsys.readouterr().err
    assert "--" in told
    assert "tasks" not in told.rpartition("error:")[2]


@pytest.mark.parametrize("way", [{"clean": True}, {"clean_every": 3}, {"clean_after": "7d"}, {"token_expiry": "1h"}])
def test_how_uncommitted_data_is_looked_for_is_not_said_of_other_data(way: dict[str, object]) -> None:
    with pytest.raises(Misuse, match=f"--{next(iter(way)).replace('_', '-')} is for uncommitted data"):
        asked(committed=True, **way)
    with pytest.raises(SystemExit):
        main(["plan", "lakefs://lake", "--metadata", f"--{next(iter(way)).replace('_', '-')}", *_value(way)], {})

    assert asked(**way) == asked(committed=True, uncommitted=True, **way)


def _value(way: dict[str, object]) -> list[str]:
    return [str(value) for value in way.values() if value is not True]
