"""Draw docs/home.svg, a terminal in which a lake is looked at: `python docs/picture.py > docs/home.svg`.

The text is what the commands printed in a new folder, so run it again when their words change.
"""

from __future__ import annotations

import sys
import tempfile
from datetime import UTC, datetime, timedelta
from html import escape
from pathlib import Path
from typing import Final

LINE: Final = 19
COLUMN: Final = 8.05


def main() -> None:
    """Make the lake, type the commands, print the picture."""
    from click.testing import CliRunner

    from lakebed.cli import app
    from lakebed.examples.quickstart import LocalServer

    folder = Path(tempfile.mkdtemp(prefix="lakebed-picture-"))
    server = LocalServer(data=folder / "lake", log=folder / "log", port=0)
    server.start()
    settings = {"LAKEBED_CONFIG": str(folder / "config.toml")}

    def typed(words: str, stdin: str = "") -> str:
        found = CliRunner().invoke(app, words.split(), input=stdin, obj=settings)
        if found.exit_code:
            sys.exit(found.output)
        return found.stdout

    try:
        typed(f"setup --user ann --endpoint {server.endpoint}")
        typed("repo create lakefs://flights local://flights")
        tell(typed)
        shown = [(words, typed(words.removeprefix("lakebed "))) for words in SHOWN]
    finally:
        server.stop()
    sys.stdout.write(drawn(shown))


SHOWN: Final = (
    "lakebed log lakefs://flights/main --graph --limit 5",
    "lakebed diff lakefs://flights/main lakefs://flights/fix-march",
    "lakebed gc why lakefs://flights/main/2013/march.csv",
)


def tell(typed: object) -> None:
    """Give the lake its history: three months, a branch that is merged, and one that is not."""
    assert callable(typed)
    days = iter(range(90, 0, -15))

    def commit(branch: str, message: str) -> None:
        date = (datetime.now(UTC) - timedelta(days=next(days))).strftime("%Y-%m-%dT%H:%M:%SZ")
        typed(f"commit lakefs://flights/{branch} -m {message} --date {date}")

    typed("gc rules set-default lakefs://flights 30d")
    for month in ("january", "february", "march"):
        typed(f"object upload - lakefs://flights/main/2013/{month}.csv", f"{month}\n" * 1000)
        commit("main", month)
    typed("tag create lakefs://flights/v1 main")
    typed("branch create lakefs://flights/fix-march")
    typed("object upload - lakefs://flights/fix-march/2013/march.csv", "march, mended\n" * 1000)
    commit("fix-march", "mend-march")


def drawn(shown: list[tuple[str, str]]) -> str:
    """Return the SVG of these commands and their output."""
    lines = [line for words, text in shown for line in (f"$ {words}", *text.splitlines(), "")]
    width = max(map(len, lines)) * COLUMN + 40
    height = len(lines) * LINE + 50
    rows = "\n".join(
        f'<text x="20" y="{50 + number * LINE}" fill="{"#80cbc4" if line.startswith("$") else "#d5dbe0"}">'
        f"{escape(line)}</text>"
        for number, line in enumerate(lines)
    )
    dots = "".join(f'<circle cx="{22 + 18 * dot}" cy="20" r="5" fill="#546e7a"/>' for dot in range(3))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" role="img" '
        'aria-label="A terminal: log, diff and gc why">\n'
        f'<rect width="100%" height="100%" rx="8" fill="#1e272c"/>{dots}\n'
        '<g font-family="ui-monospace, Menlo, Consolas, monospace" font-size="13.4" xml:space="preserve">\n'
        f"{rows}\n</g></svg>\n"
    )


if __name__ == "__main__":
    main()
