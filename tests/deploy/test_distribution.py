"""The sdist and the wheel that a release publishes, installed into empty environments with pip."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.kv.servers import load

ROOT = Path(__file__).parents[2]
INSTALL_S = 600
STORY = """
import lakebed
with lakebed.open_local("lake", environment={}) as lake:
    main = lake.create_repository("flights").branch("main")
    with main.transaction("say hello") as tx:
        tx.write("hello.txt", b"hello")
    print(main.read("hello.txt").decode())
"""
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build both from what git tracks, as they are published."""
    folder = tmp_path_factory.mktemp("built")
    hatch = environment(folder / "hatch")
    load("hatchling", [str(hatch), "-m", "pip", "install", "-q", "hatchling"])
    copy = folder / "source"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(copy)], check=True, timeout=INSTALL_S)
    run(hatch, "-m", "hatchling", "build", "-d", str(folder / "out"), folder=copy)
    return folder / "out"


def environment(folder: Path) -> Path:
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True, timeout=INSTALL_S)
    return folder / "bin" / "python"


def run(python: Path, *arguments: str, folder: Path) -> str:
    done = subprocess.run(
        [str(python), *arguments], cwd=folder, capture_output=True, text=True, check=False, timeout=INSTALL_S
    )
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-3000:]
    return done.stdout


def installed(built: Path, folder: Path, extra: str, pattern: str = "*.whl") -> Path:
    """Install into an empty environment what was built, with the versions that were tested."""
    [file] = built.glob(pattern)
    python = environment(folder / "environment")
    constraints = str(ROOT / "constraints.txt")
    run(python, "-m", "pip", "install", "-q", "--constraint", constraints, f"{file}{extra}", folder=folder)
    return python


def test_both_have_the_package_and_nothing_of_the_tests(built: Path) -> None:
    [wheel], [sdist] = built.glob("*.whl"), built.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as kept, tarfile.open(sdist) as archive:
        in_wheel, in_sdist = kept.namelist(), archive.getnames()

    assert {name.split("/")[0].partition("-")[0] for name in in_wheel} == {"lakebed"}
    assert {"lakebed/py.typed"} <= set(in_wheel)
    assert [name for name in in_sdist if name.endswith("src/lakebed/__init__.py")]
    assert not [name for name in in_sdist if "/tests/" in name or "/changes/" in name]


@pytest.mark.parametrize("pattern", ["*.whl", "*.tar.gz"])
def test_a_plain_install_has_the_command_and_names_the_extra_for_more(
    built: Path, tmp_path: Path, pattern: str
) -> None:
    python = installed(built, tmp_path, "", pattern)

    assert "lakebed" in run(python, "-m", "lakebed", "--help", folder=tmp_path)
    assert "lakebed[server]" in run(python, "-c", missing("lakebed.open_local('x')"), folder=tmp_path)


def missing(call: str) -> str:
    return f"import lakebed\ntry:\n    {call}\nexcept ImportError as error:\n    print(error)"


@pytest.mark.parametrize(
    ("extra", "arguments", "answer"),
    [("[server]", ("-c", STORY), "hello"), ("[spark]", ("-m", "lakebed", "spark", "java"), "java")],
    ids=["server", "spark"],
)
def test_an_extra_brings_what_it_is_for(
    built: Path, tmp_path: Path, extra: str, arguments: Sequence[str], answer: str
) -> None:
    python = installed(built, tmp_path, extra)

    assert answer in run(python, *arguments, folder=tmp_path)
