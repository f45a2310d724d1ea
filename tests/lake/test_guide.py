"""The examples of the guide's pages, run as they stand."""

from __future__ import annotations

import re
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

import lakebed

GUIDE = Path(__file__).parents[2] / "docs" / "guide"


def run_page(name: str) -> dict[str, Any]:
    """Run every Python example of a page, one after the other; returns the names that they define."""
    names: dict[str, Any] = {}
    for example in re.findall(r"```python\n(.*?)```", (GUIDE / name).read_text(), re.DOTALL):
        exec(example, names)
    return names


def test_five_minutes_end_with_a_merged_branch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    run_page("start.md")

    shown, old, log = capsys.readouterr().out.splitlines()
    assert shown == "['2024/01/a.csv']"
    assert "AA,4" in old
    assert "'January'" in log
    assert "correct AA" in log


def test_each_recipe_of_the_cookbook_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    run_page("cookbook.md")  # it asserts what it promises

    with lakebed.open_local("lake", environment={}) as lake:
        assert lake.repository("flights").ref("report-2024-01").read("tables/a.csv") == b"1\n"


@pytest.fixture
def steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The functions of the page about pipelines, over a lake in a folder."""
    monkeypatch.setenv("FLIGHTS_LAKE", str(tmp_path / "lake"))
    with lakebed.open_local(tmp_path / "lake") as lake:
        lake.create_repository("flights").branch("main").transact(lambda tx: tx.write("README", b"flights\n"), "first")
    return run_page("pipelines.md")


def _seen(tmp_path: Path) -> tuple[set[str], list[str]]:
    """The branches, and what `main` has."""
    with lakebed.open_local(tmp_path / "lake") as lake:
        flights = lake.repository("flights")
        return {branch.name for branch in flights.branches()}, [one.path for one in flights.ref("main").list()]


def test_a_run_of_a_pipeline_shows_all_or_nothing(steps: dict[str, Any], tmp_path: Path) -> None:
    begin, load, check, publish = (steps[name] for name in ("begin", "load", "check", "publish"))
    run = "scheduled__2027-01-31T00:00:00+00:00"
    branch = begin(run)
    load(run, ["AA,4", "UA,-9"])
    with pytest.raises(ValueError, match="negative delays"):
        check(run)
    failed = _seen(tmp_path)
    begin(run)  # from the start once more
    for _ in range(2):
        load(run, ["AA,4", "UA,9"])
    check(run)
    for _ in range(2):
        publish(run)

    assert failed == ({"main", branch}, ["README"])
    assert _seen(tmp_path) == ({"main"}, ["README", "flights.csv"])


def test_dagster_runs_the_job_of_the_page(steps: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("dagster")
    [job] = re.findall(r"## Dagster\n```py\n(.*?)```", (GUIDE / "pipelines.md").read_text(), re.DOTALL)
    module = types.ModuleType("steps")
    vars(module).update(steps)
    names: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(sys.modules, "steps", module)
        exec(compile(job, "pipelines.md", "exec", dont_inherit=True), names)
        assert names["flights"].execute_in_process().success

    assert _seen(tmp_path) == ({"main"}, ["README", "flights.csv"])


AFTERWARDS = """
assert flights.ref("main").exists("2024/delays.parquet")
lake.close()
files.lake.close()
"""


def test_the_page_about_python_runs_as_it_stands(tmp_path: Path) -> None:
    """In a process of its own, as readers run it: file systems and pools of other tests are no part of it."""
    examples = re.findall(r"```python\n(.*?)```", (GUIDE / "python.md").read_text(), re.DOTALL)
    (program := tmp_path / "page.py").write_text("\n".join([*examples, AFTERWARDS]))

    done = subprocess.run([sys.executable, program], cwd=tmp_path, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    printed = done.stdout
    assert "['changed 2024/01/a.csv']" in printed
    assert "AA,4\nUA,9\n\n3 lines\n13\n" in printed
    assert "2 rows in Polars\n2 rows in pyarrow\n" in printed
    assert "['flights/main/2024/01/a.csv']" in printed
    assert "2 rows in Dask\n" in printed
    assert printed.endswith("10 objects\nb'AA,4'\n")
