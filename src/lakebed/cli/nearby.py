"""Name what is there in place of what was not found: a mistyped repository, ref or path.

Only after an error, so the few requests cost no command that works. Where one of them fails, no hint is given.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sized
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final

from lakebed.base import LakebedError

from .uris import SCHEME, is_uri

if TYPE_CHECKING:
    from .session import Session

LOOKED_AT_MAX: Final = 1000
_URI: Final = re.compile(r"lakefs://\S+?(?=[:,.]?(?:\s|$))")


def what_is_near(session: Session, message: str, values: Iterable[object]) -> str:
    """Return a sentence about the first URI, in the message or the arguments, whose missing part the message names.

    Empty where there is none.
    """
    if "not found" not in message:
        return ""
    try:
        for value in (*_URI.findall(message), *values):
            if isinstance(value, str) and is_uri(value) and (hint := _hint(session, message, value)):
                return hint
    except (LakebedError, OSError):
        pass
    return ""


def _hint(session: Session, message: str, uri: str) -> str:
    client = session.client
    repository, _, rest = uri.removeprefix(SCHEME).partition("/")
    ref, slash, path = rest.partition("/")
    names = [one.id for one in client.repositories.list(limit=LOOKED_AT_MAX)]
    if repository not in names and _is_cut(names):
        return ""
    if repository not in names:
        return (
            _meant(f"{SCHEME}{repository}", SCHEME, names, "lakebed repo list") if _names(message, repository) else ""
        )
    inside = f"{SCHEME}{repository}/"
    branches, tags = (
        [one.id for one in of.list(repository, limit=LOOKED_AT_MAX)] for of in (client.branches, client.tags)
    )
    refs = [*branches, *tags]
    if ref not in refs and (_is_cut(branches) or _is_cut(tags)):
        return ""
    if ref in tags and ref not in branches and not _is_cut(branches) and "branch not found" in message:
        return f"{ref} is a tag: only branches can be written"
    if re.split("[~^@$]", ref)[0] in refs and ref not in refs:
        return ""  # The name is there; it has no such ancestor or former state.
    if ref and ref not in refs and _names(message, ref):
        return _meant(inside + ref, inside, refs, f"lakebed branch list {SCHEME}{repository}")
    if ref in refs and path and _names(message, path):
        above, folder = f"{inside}{ref}{slash}", path[: path.rfind("/") + 1]
        found = client.objects.list(repository, ref, prefix=folder, delimiter="/", limit=LOOKED_AT_MAX)
        return _meant(above + path, above, [one.path for one in found], f"lakebed object ls {above}{folder}")
    return ""


def _is_cut(names: Sized) -> bool:
    """There may be more than was looked at. What is not among these may be there all the same."""
    return len(names) >= LOOKED_AT_MAX


def _names(message: str, name: str) -> bool:
    return re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", message) is not None


def _meant(typed: str, above: str, names: Iterable[str], command: str) -> str:
    near = get_close_matches(typed.removeprefix(above), list(names), n=1)
    return f"Did you mean {above}{near[0]}?" if near else f"`{command}` shows what is there"
