"""A plain install, without extras, has what speaks to a server, and says which extra brings the rest."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, files, requires
from pathlib import Path

import pytest

from lakebed.cli.kit.tree import COMMANDS

ROOT = Path(__file__).parents[2]

# A new one makes every installation larger. Is it worth that, and who looks after it?
BASE_INSTALL = {
    "anyio",
    "certifi",
    "click",
    "colorama",  # only on Windows
    "exceptiongroup",  # only with a Python older than ours
    "fsspec",
    "h11",
    "httpcore",
    "httpx",
    "idna",
    "lakebed",
    "msgspec",
    "pyyaml",
    "typing-extensions",
}
BASE_INSTALL_BYTES_MAX = 15_000_000

# Runs in a process where no package can be imported but the base install's.
PLAIN = """
import importlib.metadata, re, sys

BASE = set({base!r})
NAMES = importlib.metadata.packages_distributions()

class Absent:
    def find_spec(self, name, path=None, target=None):
        owners = {{re.sub("[-_.]+", "-", one).lower() for one in NAMES.get(name.partition(".")[0], ())}}
        if owners and not owners & BASE:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
{code}
"""

# Commands that do nothing but ask the server; the others need what reads the object store, or Spark.
ASKING = """
    whoami
    repo list
    branch list lakefs://lake
    log lakefs://lake/main
    object ls lakefs://lake/main/
    gc rules show lakefs://lake
    gc rules history lakefs://lake
    gc rules set-default lakefs://lake 7d
    gc rules explain lakefs://lake/main
    gc why lakefs://lake/main/a.csv
    gc missing lakefs://lake
    gc adopt lakefs://lake --yes
    gc deleted why lakefs://lake/main/a.csv
    gc job list lakefs://lake
    gc job start lakefs://lake plan
    lifecycle policy show lakefs://lake
    lifecycle policy history lakefs://lake
    lifecycle status lakefs://lake
    lifecycle why lakefs://lake/main/a.csv
    lifecycle branches plan lakefs://lake
    hold list lakefs://lake
    hold add lakefs://lake case-7 --path a/** --why audit
    hold history lakefs://lake
    hard-delete status lakefs://lake
    audit
    actions list lakefs://lake
    auth users list
""".strip().splitlines()


def base_install() -> set[str]:
    """Every distribution that a plain install brings."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    waiting, found = list(project["dependencies"]), {"lakebed", "typing-extensions"}
    while waiting:
        wanted = waiting.pop()
        name = re.sub("[-_.]+", "-", re.match(r"[\w.-]+", wanted)[0]).lower()  # type: ignore[index]  # all have names
        if name in found or "extra ==" in wanted:
            continue
        with suppress(PackageNotFoundError):  # what another system needs
            found.add(name)
            waiting += requires(name) or []
    return found


def size_on_disk(distribution: str) -> int:
    """Bytes that an installed distribution has, without compiled Python."""
    if distribution == "lakebed":  # In a checkout the files of the distribution are elsewhere.
        found = [file for file in (ROOT / "src" / "lakebed").rglob("*") if file.is_file()]
    else:
        found = [Path(str(file.locate())) for file in files(distribution) or ()]
    return sum(file.stat().st_size for file in found if file.suffix != ".pyc" and file.exists())


def run_plain(code: str, *more: str) -> subprocess.CompletedProcess[str]:
    """Run where only the base install can be imported, and these distributions."""
    script = PLAIN.format(base=sorted({*base_install(), *more}), code=code)
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)


def run_command(*words: str) -> subprocess.CompletedProcess[str]:
    return run_plain(f"sys.argv = {['lakebed', *words]!r}\nfrom lakebed.cli.__main__ import main\nmain()")


def test_the_base_install_is_these_packages() -> None:
    assert base_install() <= BASE_INSTALL


def test_the_base_install_is_small_and_the_guide_states_its_size() -> None:
    stated = re.search(r"(\d+) MB on disk", (ROOT / "docs" / "guide" / "python.md").read_text())
    sizes: dict[str, int] = {}
    for name in base_install():
        with suppress(PackageNotFoundError):  # what another system needs
            sizes[name] = size_on_disk(name)

    assert stated is not None
    assert {"lakebed", "fsspec", "httpx", "msgspec", "click"} <= set(sizes)
    assert [name for name, size in sizes.items() if size < 1000] == []
    assert sum(sizes.values()) < BASE_INSTALL_BYTES_MAX, sizes
    # Wheels of other systems differ by some percent.
    assert sum(sizes.values()) / 1e6 == pytest.approx(int(stated[1]), rel=0.1), sizes


def test_every_command_can_show_its_help_in_a_plain_install() -> None:
    code = "\n".join(
        [
            "import importlib",
            f"for place in {sorted(set(COMMANDS.values()))!r}:",
            "    importlib.import_module(place.partition(':')[0])",
        ]
    )
    done = run_plain(code)

    assert (done.returncode, done.stderr) == (0, "")


def test_a_client_needs_nothing_more() -> None:
    done = run_plain(
        "import lakebed, fsspec\n"
        "assert fsspec.get_filesystem_class('lakebed')\n"
        "try:\n"
        "    lakebed.connect('http://127.0.0.1:1', access_key_id='a', secret_access_key='b').repository('r')\n"
        "except lakebed.Unavailable:\n"
        "    print('reached for it')"
    )

    assert (done.stdout, done.returncode) == ("reached for it\n", 0), done.stderr


def test_what_only_asks_the_server_needs_nothing_more() -> None:
    commands = [line.split() for line in ASKING]
    done = run_plain(
        f"from lakebed.cli.__main__ import main\n"
        f"for words in {commands!r}:\n"
        f"    sys.argv = ['lakebed', *words, '--endpoint', 'http://127.0.0.1:1']\n"
        f"    try:\n"
        f"        main()\n"
        f"    except SystemExit as end:\n"
        f"        print(end.code, *words)\n"
    )

    assert done.stdout.splitlines() == [f"5 {' '.join(words)}" for words in commands], done.stderr


@pytest.mark.parametrize(
    "words",
    [("serve", "--data", "x"), ("backup", "verify", "x"), ("gc", "plan", "lakefs://r"), ("quickstart", "--once")],
)
def test_a_command_that_needs_more_says_which_extra_brings_it(words: tuple[str, ...]) -> None:
    done = run_command(*words)

    assert done.returncode == 1, done
    assert re.search(r"^error: .*pip install ['\"]lakebed\[\w+\]", done.stderr), done.stderr
    assert "Traceback" not in done.stderr


def test_a_collector_without_spark_needs_what_its_extra_brings_and_nothing_more() -> None:
    brought = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["collector"]
    done = run_plain(
        "sys.argv = 'lakebed gc list lakefs://lake --endpoint http://127.0.0.1:1'.split()\n"
        "from lakebed.cli.__main__ import main\nmain()",
        *(re.match(r"\w+", one)[0] for one in brought),  # type: ignore[index]  # all have names
    )

    assert done.returncode == 5, done.stderr
    assert "cannot reach" in done.stderr


def test_a_folder_without_the_server_says_which_extra_brings_it() -> None:
    done = run_plain(
        "import lakebed\ntry:\n    lakebed.open_local('x')\nexcept ImportError as error:\n    print(error)"
    )

    assert "pip install 'lakebed[server]'" in done.stdout, done.stderr
