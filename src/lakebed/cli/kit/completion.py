"""Complete URIs and runs in a shell: repositories, then branches and tags, then paths, as the server knows them.

A shell that completes must not wait or complain: half a second for the server, and silence on any error.

Bash splits words at colons and equals signs: `lakefs`, `:`, `//repository/main/month`, `=`, `01` arrive as five.
`with_whole_uris` puts them together again, except the last one: bash replaces only that.

Shells put a space behind the only candidate, so a repository or folder that is the only one comes with its content.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import click

from lakebed.base import LakebedError
from lakebed.settings import effective_settings

from .session import connect
from .uris import SCHEME, parse_repository

if TYPE_CHECKING:
    from lakebed.client import Client

_TIMEOUT_S: Final = 0.5
_SHOWN_MAX: Final = 100
_DEPTH_MAX: Final = 4
_BREAKS: Final = (":", "=")
_HEAD: Final = "_LAKEBED_COMPLETE_HEAD"
"""The environment variable with what stands before the word that bash replaces."""


def with_whole_uris(environment: Mapping[str, str]) -> dict[str, str]:
    """Return changes of bash's environment for completions, after which a URI is one word."""
    words, current = environment.get("COMP_WORDS", "").split("\n"), environment.get("COMP_CWORD", "")
    if not current.isdigit():
        return {}
    whole: list[str] = []
    is_open = False
    for word in words[: int(current) + 1]:
        is_break = word in _BREAKS
        is_uri = bool(whole) and (whole[-1] == "lakefs" or whole[-1].startswith("lakefs:"))
        if is_uri and (is_open or is_break):
            whole[-1] += word
        else:
            whole.append(word)
        is_open = is_break
    typed = whole[-1]
    is_glued = typed != words[int(current)] or typed in _BREAKS
    head = typed[: max(map(typed.rfind, _BREAKS)) + 1] if is_glued else ""
    whole[-1] = typed.removeprefix(head)
    return {"COMP_WORDS": "\n".join(whole), "COMP_CWORD": str(len(whole) - 1), _HEAD: head}


def complete_repository(context: click.Context, incomplete: str) -> list[str] | None:
    return _complete(context, incomplete, _repositories)


def complete_ref(context: click.Context, incomplete: str) -> list[str] | None:
    return _complete(context, incomplete, _refs)


def complete_object(context: click.Context, incomplete: str) -> list[str] | None:
    return _complete(context, incomplete, _objects)


def complete_run(context: click.Context, incomplete: str) -> list[str]:
    """Complete the id of a run that the server knows, in the repository that the command names."""

    def runs(client: Client) -> list[str]:
        repository = parse_repository(str(context.params.get("uri")))
        found: Any = client.call("GET", f"/api/v1/repositories/{repository}/gc/runs")
        return [run["run_id"] for run in found["runs"] if run["run_id"].startswith(incomplete)]

    return _quietly(context, runs)


def _complete(
    context: click.Context, incomplete: str, candidates: Callable[[Client, str], Iterator[str]]
) -> list[str] | None:
    """Return candidates, cut to the word that the shell replaces; None where it is no URI."""
    head = (context.find_root().obj or {}).get(_HEAD, "")
    typed = head + incomplete
    if not typed.startswith(SCHEME):
        return [SCHEME.removeprefix(head)] if SCHEME.startswith(typed) else None

    def uris(client: Client) -> list[str]:
        found = list(itertools.islice(candidates(client, typed.removeprefix(SCHEME)), _SHOWN_MAX))
        for _ in range(_DEPTH_MAX):
            if len(found) != 1 or not found[0].endswith("/"):
                break
            found = list(itertools.islice(candidates(client, found[0]), _SHOWN_MAX)) or found
        return [(SCHEME + candidate).removeprefix(head) for candidate in found]

    return _quietly(context, uris)


def _quietly(context: click.Context, ask: Callable[[Client], list[str]]) -> list[str]:
    """Ask a client that gives up soon; answer nothing on any error."""
    try:
        settings = effective_settings(
            context.find_root().obj or {},
            endpoint=context.params.get("endpoint"),
            profile=context.params.get("profile"),
        )
        with connect(settings, attempts=1, timeout_s=_TIMEOUT_S) as client:
            return ask(client)
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
