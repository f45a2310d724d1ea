"""Templates, and the display of names, sizes and times. Autoescape is on for every template.

Any user can choose names. `shown` makes characters visible that would change the order or the end of the surrounding
text, and cuts long names. The whole name is in the address and in the API.
"""

from __future__ import annotations

import unicodedata
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from lakebed.base import Later, human_size

if TYPE_CHECKING:
    import jinja2
else:  # The import is slow, and a server needs it only for its first page.
    jinja2 = Later("jinja2")

FOLDER: Final = Path(__file__).parent
SHOWN_MAX: Final = 300
_HIDDEN: Final = frozenset({"Cc", "Cf", "Zl", "Zp", "Cs"})
"""Unicode categories of control and format characters (including bidi marks) and line ends."""


def shown(text: object, longest: int = SHOWN_MAX) -> str:
    """Return a name in a readable form."""
    words = str(text)
    if len(words) > longest:
        words = f"{words[: longest - 40]}…{words[-39:]}"
    return "".join(f"⟨{ord(each):X}⟩" if unicodedata.category(each) in _HIDDEN else each for each in words)


def paragraphs(text: object) -> str:
    """Return a message of several lines, each treated by `shown`."""
    return "\n".join(shown(line, 2000) for line in str(text)[:20_000].split("\n"))


def moment(seconds: int | float | None) -> str:
    """Return a time in UTC, to the minute."""
    return "" if seconds is None else _dated(seconds, "%Y-%m-%d %H:%M", otherwise=f"{seconds} s")


def machine_moment(seconds: int | float) -> str:
    return _dated(seconds, "%Y-%m-%dT%H:%M:%SZ", otherwise="")


def _dated(seconds: float, form: str, *, otherwise: str) -> str:
    """Return a time in UTC. The writer of a table or a commit chose it: it may be in no calendar."""
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime(form)
    except (OverflowError, ValueError, OSError):
        return otherwise


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(FOLDER / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.loopcontrols"],
    )
    environment.filters |= {
        "shown": shown,
        "paragraphs": paragraphs,
        "moment": moment,
        "machine_moment": machine_moment,
        "size": lambda size_bytes: "" if size_bytes is None else human_size(size_bytes),
        "number": lambda number: f"{number:,}",
    }
    return environment


def render(template: str, /, **values: object) -> str:
    return _environment().get_template(f"{template}.html").render(values)
