"""Completion of URIs in a shell: repositories, then branches and tags, then paths, as the server knows them.

A shell that completes must not wait or complain: half a second for the server, and silence on any error.

Bash splits words at colons: `lakefs`, `:`, `//repository/…` arrive as three, which `with_whole_uris` puts together
again. Not so the word being completed, of which bash replaces only what is behind the colon.

Shells put a space behind the only candidate, so a repository or folder that is the only one comes with what is in it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

import typer

from lakebed.base import LakebedError

from .session import connect
from .settings import effective_settings
from .uris import SCHEME

if TYPE_CHECKING:
    from lakebed.client import Client

_TIMEOUT_S: Final = 0.5
_SHOWN_MAX: Final = 100
_DEPTH_MAX: Final = 4
_BEHIND_COLON: Final = "//"


def with_whole_uris(environment: Mapping[str, str]) -> dict[str, str]:
    """What to change in the environment in which bash asks for completions, so that a URI is one word."""
    words, current = environment.get("COMP_WORDS", "").split("\n"), environment.get("COMP_CWORD", "")
    if not current.isdigit():
        return {}
    whole: list[str] = []
    position, place = 0, int(current)
    while position < len(words):
        is_uri = words[position : position + 2] == ["lakefs", ":"] and position + 2 < len(words)
        position += 2 if is_uri else 0
        if position == int(current):
            place = len(whole)
        whole.append(("lakefs:" if is_uri and position != int(current) else "") + words[position])
        position += 1
    return {"COMP_WORDS": "\n".join(whole), "COMP_CWORD": str(place)}


def complete_repository(context: typer.Context, incomplete: str) -> list[str]:
    return _complete(context, incomplete, _repositories)


def complete_ref(context: typer.Context, incomplete: str) -> list[str]:
    return _complete(context, incomplete, _refs)


def complete_object(context: typer.Context, incomplete: str) -> list[str]:
    return _complete(context, incomplete, _objects)


def _complete(context: typer.Context, incomplete: str, candidates: Callable[[Client, str], Iterator[str]]) -> list[str]:
    """Candidates without scheme in the form that the shell showed us what was typed."""
    if incomplete.startswith(_BEHIND_COLON):
        shown, typed = _BEHIND_COLON, incomplete.removeprefix(_BEHIND_COLON)
    elif incomplete.startswith(SCHEME):
        shown, typed = SCHEME, incomplete.removeprefix(SCHEME)
    else:
        return [SCHEME] if SCHEME.startswith(incomplete) else []
    try:
        settings = effective_settings(context.find_root().obj or {}, endpoint=context.params.get("endpoint"))
        with connect(settings, attempts=1, timeout_s=_TIMEOUT_S) as client:
            found = list(itertools.islice(candidates(client, typed), _SHOWN_MAX))
            for _ in range(_DEPTH_MAX):
                if len(found) != 1 or not found[0].endswith("/"):
                    break
                found = list(itertools.islice(candidates(client, found[0]), _SHOWN_MAX)) or found
            return [shown + candidate for candidate in found]
    except (LakebedError, OSError):
        return []


def _repositories(client: Client, typed: str) -> Iterator[str]:
    return (repository.id for repository in client.repositories.list(prefix=typed))


def _refs(client: Client, typed: str) -> Iterator[str]:
    repository, slash, name = typed.partition("/")
    if not slash:
        yield from (found + "/" for found in _repositories(client, typed))
        return
    for refs in (client.branches.list(repository, prefix=name), client.tags.list(repository, prefix=name)):
        yield from (f"{repository}/{ref.id}" for ref in refs)


def _objects(client: Client, typed: str) -> Iterator[str]:
    repository, _, rest = typed.partition("/")
    ref, slash, path = rest.partition("/")
    if not slash:
        yield from (found if found.endswith("/") else found + "/" for found in _refs(client, typed))
        return
    for found in client.objects.list(repository, ref, prefix=path, delimiter="/", limit=_SHOWN_MAX):
        yield f"{repository}/{ref}/{found.path}"
