"""`lakebed sandbox`, and the page of the guide: a contractor with a sandbox."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path

from tests.cli.conftest import Shell

PAGE = Path(__file__).parents[3] / "docs" / "guide" / "sandboxes.md"


def test_a_contractor_with_a_sandbox(shell: Shell, lake: str, put: Callable[[str, str], None], tmp_path: Path) -> None:
    """The commands of the guide, one after the other: the contractor's with the key of the sandbox."""
    put(f"{lake}/main/a", "a")
    shell.ok("commit", f"{lake}/main", "-m", "a")
    made, asked, after = re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "report.parquet").write_text("report")

    def words(line: str, box: str = "") -> list[str]:
        told = line.replace("lakefs://lake", lake).replace("$BOX", box).replace("report.parquet l", "REPORT l")
        return [
            str(tmp_path / "report.parquet") if one == "REPORT" else one for one in shlex.split(told, comments=True)[1:]
        ]

    box = shell.ok(*words(made.strip()), "-o", "json").json
    assert re.fullmatch("sandbox-kim-[0-9a-v]{10}", box["id"])
    keys = {
        "LAKEBED_ACCESS_KEY_ID": box["access_key_id"],
        "LAKEBED_SECRET_ACCESS_KEY": box["secret_access_key"],
    }
    for line in asked.strip().splitlines():
        outcome = shell(*words(line, box["id"]), **keys)
        assert outcome.code == 0, (line, outcome)
    assert shell("merge", f"{lake}/{box['id']}", f"{lake}/main", **keys).code != 0
    assert shell("object", "cat", f"{lake}/main/a", **keys).out == "a"
    for command in ("log", "show", "branch show"):  # it may list no branches, and so sees none beside a commit
        for ref in (box["id"], "main"):
            outcome = shell(*command.split(), f"{lake}/{ref}", **keys)
            assert outcome.code == 0, (command, ref, outcome)
    listed, given, extended, ended, promoted = after.strip().splitlines()
    assert given.startswith("BOX=sandbox-kim-")
    assert box["id"] in shell.ok(*words(listed)).out
    assert "lasts until" in shell.ok(*words(extended, box["id"])).out
    end = shell.ok(*words(ended, box["id"]))
    assert "its branch is deleted" in end.out
    assert re.search(r"pull request (\S+) \(.+\) into main stays open, .* lakebed pulls close \S+ \1\n", end.err)
    assert shell("object", "cat", f"{lake}/main/a", **keys).code != 0

    again = shell.ok(*words(made.strip()), "-o", "json").json["id"]
    assert "active" in shell.ok("sandbox", "show", lake, again).out
    assert "its branch stays" in shell.ok(*words(promoted, again)).out
    assert shell.ok("sandbox", "list", lake, "-o", "json").json == []
    assert shell("sandbox", "create", lake, "--from", "main", "--ttl", "soon").code == 2
    # Taken for no quota, it would lend a branch without a limit.
    nothing = shell("sandbox", "create", lake, "--from", "main", "--ttl", "2d", "--quota", "0")
    assert (nothing.code, "a quota has at least one byte" in nothing.err) == (2, True)
    assert shell.ok("sandbox", "list", lake, "-o", "json").json == []
