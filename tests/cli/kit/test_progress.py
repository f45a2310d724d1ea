"""A bar tells how much is done, how fast, and how long it takes, on one line of the terminal."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lakebed.cli.kit.progress import Bar, Line, bar, bar_text

MIB = 1 << 20


def test_a_bar_tells_amounts_rate_and_time_left() -> None:
    shown = bar_text("uploading f", 2 * MIB, 4 * MIB, MIB, 100)

    assert shown == f"uploading f  [{'#' * 15}{'.' * 15}]  2.0 MiB / 4.0 MiB  1.0 MiB/s  2.0 s left"


def test_before_anything_moved_no_rate_is_guessed() -> None:
    assert bar_text("up", 0, 4 * MIB, 0.0, 60).endswith("]  0 B / 4.0 MiB")
    assert bar_text("up", 0, 0, 0.0, 60).endswith("]  0 B / 0 B")


@pytest.mark.parametrize(("done", "total"), [(0, 0), (1, MIB), (MIB, MIB), (9 * MIB, MIB), (-5, MIB)])
def test_a_bar_never_wraps(done: int, total: int) -> None:
    shown = {
        columns: bar_text("downloading a rather long name", done, total, 12345.0, columns) for columns in range(1, 120)
    }

    assert [columns for columns, line in shown.items() if len(line) > columns] == []


def test_a_bar_that_is_not_visible_writes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with bar("moving", 100, visible=False) as shown:
        shown.expect(50)
        shown.advance(120)

    assert capsys.readouterr() == ("", "")


def test_a_bar_of_several_files_counts_them(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[str] = []
    monkeypatch.setattr("lakebed.cli.kit.progress._DRAWN_EVERY_S", 0.0)
    monkeypatch.setattr("lakebed.cli.kit.progress._columns", lambda: 79)

    class Kept(Line):
        def update(self, look: Callable[[], str]) -> None:
            drawn.append(look())

    shown = Bar("uploading", 0, Kept(visible=False))
    shown.expect(2 * MIB, files=1_200)
    shown.advance(MIB)
    shown.end_file()

    assert drawn[0].startswith("uploading  [")
    assert drawn[-1].startswith("uploading  1 / 1,200 files  [")
    assert "1.0 MiB / 2.0 MiB" in drawn[-1]
    assert max(map(len, drawn)) <= 79
