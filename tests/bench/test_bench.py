"""Every benchmark runs at its small size, so that none rots. Times are not looked at here."""

from __future__ import annotations

import json

import pytest

from bench.__main__ import NAMES, main


@pytest.mark.parametrize("name", NAMES)
def test_a_benchmark_reports_its_figures_against_a_floor(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--size", "small", "--repeat", "1", "--json"]) == 0

    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (result["name"], result["size"]) == (name, "small")
    for figure in result["figures"]:
        assert figure["what"].startswith(name)
        assert figure["peak_mib"] > 0
        if figure["floor"] is None:
            # A count that must be zero, a value with a limit of its own, or a wait for orientation.
            assert figure["value"] >= 0
            assert figure["ratio"] is None
        else:
            assert figure["value"] > 0
            assert figure["floor"] > 0
            assert figure["ratio"] == pytest.approx(figure["ratio_min"])
            assert figure["limit"] > 0


def test_an_unknown_benchmark_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        main(["nope"])

    assert refused.value.code == 2
    assert "commit" in capsys.readouterr().err
