"""Take URIs apart: `lakefs://repository/ref/path`. No other module does.

The first two segments end at the first slashes after them; all that follows is the path, byte for byte: `//` in it,
a slash at its end, percent signs and spaces mean themselves. A ref is anything a server resolves (`main`, `v1~2`, part
of a commit id); only a tag's name may hold slashes, so only `parse_tag` takes the rest of a URI as a name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lakebed.base import InvalidName, check_branch, check_repository, check_tag

from .failures import Misuse
from .output import printable

SCHEME: Final = "lakefs://"
OBJECT_FORM: Final = "lakefs://repository/ref/path"
_MISTYPED: Final = re.compile(r"(?:lakefs:?/*|/+)", re.IGNORECASE)
"""Stands at the beginning of a text in place of the scheme."""


class BadUri(Misuse):
    """The URI has not the form that the command needs. The message gives the form."""


@dataclass(frozen=True, slots=True)
class RefUri:
    """A branch, a tag or any other ref of a repository."""

    repository: str
    ref: str

    def __str__(self) -> str:
        return f"{SCHEME}{self.repository}/{self.ref}"


@dataclass(frozen=True, slots=True)
class ObjectUri:
    """A path at a ref. The path may be empty where a prefix is meant."""

    repository: str
    ref: str
    path: str

    def __str__(self) -> str:
        return f"{SCHEME}{self.repository}/{self.ref}/{self.path}"


def is_uri(text: str) -> bool:
    """Return whether this is an object and not a local file."""
    return text.startswith(SCHEME)


def uri_meant(error: BadUri, values: Iterable[object]) -> str:
    """Return a sentence about the URI that was probably meant, from the words of the command; empty if none is near."""
    text, form = str(error.facts.get("uri", "")), str(error.facts.get("form", ""))
    if not form or not text:
        return ""
    others = [value for value in values if isinstance(value, str) and is_uri(value)]
    if form == OBJECT_FORM and Path(text).exists():
        kind = "folder" if Path(text).is_dir() else "file"
        return f"It is a {kind} here: " + ("swap the two arguments" if others else "name a URI")
    rest = _MISTYPED.sub("", text, count=1) if _MISTYPED.match(text) else text
    first, _, below = rest.partition("/")
    meant = ""
    if form.endswith("repository"):
        meant = first
    elif others and rest == text and first != (repository := repository_of(others[0])) and "://" not in text:
        # The command is about two things of one repository.
        ref = ref_of(others[0])
        meant = f"{repository}/{ref}/{text}" if form == OBJECT_FORM and first != ref else f"{repository}/{text}"
    elif below:
        meant = rest
    try:
        check_repository(meant.partition("/")[0])
    except InvalidName:
        # A command about one repository has no other URI.
        return "Swap the two arguments" if others and form.endswith("repository") else ""
    return f"Did you mean {SCHEME}{printable(meant)}?"


def other_readings(first: ObjectUri, text: str, is_branch: Callable[[str], bool]) -> list[str]:
    """Return what else than a path at the ref of the first object a bare text can mean; empty if it is a plain path.

    `is_branch` tells whether the repository has a branch of this name, by a request that is sent where it matters only.
    """
    scheme = _MISTYPED.match(text)
    # `lakefs.csv` is a plain name.
    rest = text[scheme.end() :] if scheme and scheme.group()[-1] in ":/" else text
    *folders, last = rest.split("/")
    segment = folders[0] if folders else last
    if segment == first.repository:
        return [f"{SCHEME}{rest}"]
    if not {".", ".."}.isdisjoint([*folders, last]):
        return ["a local file, which `lakebed object download` writes"]
    if segment == first.ref or is_branch(segment):
        return [f"{SCHEME}{first.repository}/{rest}"]
    if rest != text:
        return [f"{SCHEME}{rest}"]
    if segment.endswith(":"):
        return ["a URI of another kind"]
    if "" in folders:
        return [str(ObjectUri(first.repository, first.ref, "/".join([*filter(None, folders), last])))]
    return []


def parse_repository(text: str) -> str:
    """`lakefs://repository`"""
    repository, _, rest = _split(text, "lakefs://repository")
    if rest:
        raise BadUri(f"expected a repository URI (lakefs://{repository}), got {text}: leave out /{rest}", uri=text)
    return repository


def repository_of(text: str) -> str:
    """Return the repository of a URI of any form."""
    return _split(text, "lakefs://repository")[0]


def ref_of(text: str) -> str:
    """Return the ref of a URI of any form, empty where it has none."""
    return _split(text, "lakefs://repository")[2].partition("/")[0]


def parse_ref(text: str) -> RefUri:
    """`lakefs://repository/ref`"""
    form = "lakefs://repository/ref"
    repository, ref, rest = _take_ref(text, form)
    if rest:
        raise BadUri(f"expected a ref ({form}), got {text}: leave out /{rest}", uri=text)
    return RefUri(repository, ref)


def parse_new_branch(text: str) -> RefUri:
    """`lakefs://repository/branch`, of a branch to be made: a slash in its name is refused with another name."""
    repository, ref, rest = _take_ref(text, form := "lakefs://repository/branch")
    if rest:
        name = "-".join(filter(None, [ref, *rest.split("/")]))
        raise BadUri(f"expected a branch ({form}), got {text}: names of branches have no slash, try {name}", uri=text)
    check_new_branch(ref)
    return RefUri(repository, ref)


def check_new_branch(name: str) -> None:
    try:
        check_branch(name)
    except InvalidName as error:
        raise BadUri(f"{name!r}: {error}", name=name) from error


def parse_tag(text: str) -> RefUri:
    """`lakefs://repository/tag`, where the tag's name may hold slashes."""
    form = "lakefs://repository/tag"
    repository, _, name = _split(text, form)
    if not name:
        raise BadUri(f"{text}: the tag is missing ({form})", uri=text)
    return RefUri(repository, name)


def parse_new_tag(text: str) -> RefUri:
    """`lakefs://repository/tag`, of a tag to be made."""
    tag = parse_tag(text)
    try:
        check_tag(tag.ref)
    except InvalidName as error:
        raise BadUri(f"{text}: {error}", uri=text) from error
    return tag


def parse_object(text: str) -> ObjectUri:
    """`lakefs://repository/ref/path`, with a path."""
    uri = parse_prefix(text)
    if not uri.path:
        raise BadUri(f"{text}: the path is missing ({OBJECT_FORM})", uri=text)
    return uri


def parse_prefix(text: str) -> ObjectUri:
    """`lakefs://repository/ref/path`, where the path may be missing: then all paths of the ref are meant."""
    return ObjectUri(*_take_ref(text, OBJECT_FORM))


def _take_ref(text: str, form: str) -> tuple[str, str, str]:
    repository, _, rest = _split(text, form)
    ref, _, path = rest.partition("/")
    if not ref:
        raise BadUri(f"{text}: the ref is missing ({form})", uri=text)
    return repository, ref, path


def _split(text: str, form: str) -> tuple[str, str, str]:
    if not is_uri(text):
        raise BadUri(f"{text!r} is not a URI of the form {form}", uri=text, form=form)
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise BadUri(f"{text!a} is not valid Unicode", uri=ascii(text)) from error
    repository, slash, rest = text.removeprefix(SCHEME).partition("/")
    try:
        check_repository(repository)
    except InvalidName as error:
        raise BadUri(f"{text}: {error}", uri=text) from error
    return repository, slash, rest
