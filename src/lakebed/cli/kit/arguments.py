"""Declare arguments and options of several commands once, with their help and their completion."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated, Final

from .completion import complete_object, complete_ref, complete_repository
from .failures import Misuse
from .parameters import Argument, Option
from .uris import SCHEME, ObjectUri, RefUri, is_uri, other_readings, parse_prefix, parse_ref

_SPAN: Final = re.compile(r"[0-9]+[a-z]+")


RepositoryArgument = Annotated[
    str, Argument(metavar="REPOSITORY", help="lakefs://repository", complete=complete_repository)
]
RefArgument = Annotated[str, Argument(metavar="REF", help="lakefs://repository/ref", complete=complete_ref)]
BranchArgument = Annotated[str, Argument(metavar="BRANCH", help="lakefs://repository/branch", complete=complete_ref)]
TagArgument = Annotated[str, Argument(metavar="TAG", help="lakefs://repository/tag", complete=complete_ref)]
ObjectArgument = Annotated[
    str, Argument(metavar="OBJECT", help="lakefs://repository/ref/path", complete=complete_object)
]
UidOption = Annotated[str, Option("--uid", help="Its uid, where several had the name (`repo list --deleted`).")]
YesOption = Annotated[bool, Option("--yes", "-y", help="Do not ask for confirmation.")]
LimitOption = Annotated[int | None, Option("--limit", "-n", min=1, help="Show at most this many.")]
PrefixOption = Annotated[str, Option("--prefix", help="Only names that begin with this.")]
PathsOption = Annotated[str, Option("--prefix", help="Only paths that begin with this.")]
RefuseExpiredOption = Annotated[
    bool,
    Option("--refuse-expired", help="Fail if it would bring objects that a lifecycle policy deleted."),
]
EmptyOption = Annotated[bool, Option("--allow-empty", help="Commit even if nothing changed.")]
MessageOption = Annotated[str, Option("--message", "-m", help="The commit's message.")]
MetaOption = Annotated[list[str] | None, Option("--meta", metavar="NAME=VALUE", help="Metadata; may be repeated.")]
ExportOption = Annotated[
    bool, Option("--export", help='Only lines for a shell, which set the key pair: eval "$(... --export)".')
]


def no_such(what: str, prefix: str = "") -> str:
    """Say that a list is empty, of all or of those whose names begin so."""
    return f"no {what} begins with {prefix}" if prefix else f"no {what}"


def ref_in(repository: str, text: str) -> str:
    """Return a ref that was given bare or as a URI of the same repository."""
    if not is_uri(text):
        return text
    uri = parse_ref(text)
    if uri.repository != repository:
        raise Misuse(f"{uri} is not in {SCHEME}{repository}")
    return uri.ref


def other_ref(first: RefUri, text: str) -> RefUri:
    """Return the second ref of a command: a URI of the same repository, or bare, as `main~1`."""
    right = parse_ref(text if "://" in text or not text else f"{SCHEME}{first.repository}/{text}")
    if first.repository != right.repository:
        raise Misuse(f"{first} and {right} are not in one repository: name two refs of the same one")
    return right


def other_object(first: ObjectUri, text: str, is_branch: Callable[[str], bool]) -> ObjectUri:
    """Return the second object or folder of a command: a URI, or the path alone, at the ref of the first.

    Raises:
        Misuse: a name without a folder could be beside the first object, or at the root; or the text may be meant as a
            URI, a branch or a local file. See `other_readings`.
    """
    if "://" in text or not text or text.startswith("/"):
        return parse_prefix(text)
    here = ObjectUri(first.repository, first.ref, text)
    if others := other_readings(first, text, is_branch):
        raise Misuse(f"{text} can mean {' or '.join([*others, str(here)])}: write the whole URI")
    folder = first.path.rpartition("/")[0]
    if folder and "/" not in text:
        root = f"{SCHEME}{first.repository}/{first.ref}/"
        raise Misuse(f"{text} can mean {root}{text} or {root}{folder}/{text}: write one of them")
    return here


def parse_meta(pairs: list[str] | None) -> dict[str, str]:
    """Return `name=value` pairs as a mapping; a value may hold further `=`.

    Raises:
        Misuse: a pair without `=` or name, or a name given twice.
    """
    metadata: dict[str, str] = {}
    for pair in pairs or []:
        name, equals, value = pair.partition("=")
        if not (name and equals):
            raise Misuse(f"--meta {pair!r} is not of the form NAME=VALUE")
        if name in metadata:
            raise Misuse(f"--meta names {name!r} twice")
        metadata[name] = value
    return metadata


# Dates and spans of time, as users write them


def parse_date(text: str) -> int:
    """Return Unix seconds of `1767225600`, `2026-01-01` or `2026-01-01T12:00:00+02:00`; UTC without an offset."""
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        date = datetime.fromisoformat(text)
    except ValueError as error:
        raise Misuse(f"{text!r} is neither Unix seconds nor an ISO 8601 date, such as 2026-11-21") from error
    return int((date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp())


def parse_since(text: str) -> int:
    """Return Unix seconds of a date, or of a span before now: `2d` means two days ago."""
    if _SPAN.fullmatch(text):
        from lakebed.gc.rules import parse_lifetime  # here, since loading it takes time that most commands save

        return parse_lifetime(text).before_ms(int(time.time() * 1000)) // 1000
    try:
        return parse_date(text)
    except Misuse as error:
        raise Misuse(f"{error}, nor a span before now, such as 2d") from error


def iso_since(text: str) -> str:
    """Return the date of `parse_since` in ISO 8601; of an empty text, an empty one."""
    return datetime.fromtimestamp(parse_since(text), UTC).isoformat() if text else ""
