"""Suggest a name that exists in place of one that was not found: a mistyped repository, ref or path.

Only after an error, so the few requests cost no command that works. Where one of them fails, no hint is given.
"""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Iterable, Sized
from difflib import get_close_matches
from functools import cached_property
from typing import TYPE_CHECKING, Final, Protocol

from lakebed.base import Denied, LakebedError, NotFound, Unavailable

from .output import human_time
from .uris import SCHEME, is_uri

if TYPE_CHECKING:
    from lakebed.client import Client

LOOKED_AT_MAX: Final = 1000
_TAKEN: Final = ("were taken by collection run", "expired by policy version", "expired by a lifecycle policy")
_NO_DELETED: Final = "no deleted repository"
_LISTS: Final = {
    "there is no job": "lakebed gc job list {}",
    "there is no hold": "lakebed hold list {}",
    "there is no sandbox": "lakebed sandbox list {}",
    "subscription": "lakebed events subscriptions {}",
    "run not found": "lakebed actions list {}",
    "pull request": "lakebed pulls list {} --status all",
    "user not found": "lakebed auth users list",
    "group not found": "lakebed auth groups list",
    "policy not found": "lakebed auth policies list",
    "no deleted branch": "lakebed branch list {} --deleted",
    "no deleted tag": "lakebed tag list {} --deleted",
    "source reference": "lakebed branch list {}",
    "nothing lies": "lakebed object ls {}/BRANCH/",
    "no commit and no ledger names it": "lakebed object ls {}/BRANCH/",
}
"""Error words for a missing thing other than a repository, ref or path, and the command that lists such things."""
_TABLE: Final = re.compile(r"there is no (table|namespace) (\S+?)(?=[:,.]?(?:\s|$))")
_SNAPSHOT: Final = re.compile(r"table (\S+) has no snapshot")
_TAKER: Final = re.compile(r"taken by collection run (\w+)")
_TWO: Final = re.compile(r"(lakefs://\S+) or (lakefs://\S+): not found")
_URI: Final = re.compile(r"lakefs://\S+?(?=[:,.]?(?:\s|$))")


class Connected(Protocol):
    """Reach the server. The client is made when it is first asked for, so that may fail."""

    @property
    def client(self) -> Client: ...


def naming_one(session: Connected, message: str) -> str:
    """Return the message about the one that is missing, where it leaves open which of two is."""
    two = _TWO.fullmatch(message)
    with contextlib.suppress(Unavailable, Denied):
        for uri in two.groups() if two else ():
            repository, ref, path = _parts(uri)
            try:
                if path:
                    session.client.objects.stat(repository, ref, path)
                else:
                    session.client.history.get(repository, ref)
            except NotFound:
                return f"{uri}: not found"
    return message


def _parts(uri: str) -> tuple[str, str, str]:
    repository, _, rest = uri.removeprefix(SCHEME).partition("/")
    ref, _, path = rest.partition("/")
    return repository, ref, path


def way_back(message: str, values: Iterable[object]) -> str:
    """Return how a commit is got back whose data the run took that the message names; empty for other messages."""
    run = _TAKER.search(message)
    uri = next((one for one in values if isinstance(one, str) and is_uri(one)), "")
    if run is None or not uri:
        return ""
    undo = f"lakebed gc restore {SCHEME}{_parts(uri)[0]} {run[1]} --undo"
    return f"While the run is deferred, `{undo}` gives it back; then it is gone"


def what_is_near(session: Connected, message: str, values: Iterable[object]) -> str:
    """Return a sentence about the first URI, in the message or the arguments, whose missing part the message names.

    Empty where there is none.
    """
    if any(taken in message for taken in _TAKEN):
        named = next((one for one in values if isinstance(one, str) and is_uri(one) and _parts(one)[2]), "")
        return f"`lakebed gc why {shlex.quote(named)}` says whether it can be restored, and how" if named else ""
    repository, ref, _ = next((_parts(one) for one in values if isinstance(one, str) and is_uri(one)), ("", "", ""))
    if of := _SNAPSHOT.search(message):
        return f"`lakebed table history {SCHEME}{repository}/{ref} {of[1]}` shows those that it has"
    if typed := _TABLE.search(message):
        return _table_near(session, f"{SCHEME}{repository}/{ref}", typed[2], is_namespace=typed[1] == "namespace")
    for words, command in _LISTS.items():
        if words in message:
            shows = command.format(SCHEME + repository, ref=f"{SCHEME}{repository}/{ref}")
            return f"`{shows}` shows those that there are"
    if "not found" not in message and _NO_DELETED not in message:
        return ""
    try:
        for value in (*_URI.findall(message), *values):
            if isinstance(value, str) and is_uri(value) and (hint := _hint(session, message, value)):
                return hint
    except (LakebedError, OSError):
        pass
    return ""


def _table_near(session: Connected, uri: str, typed: str, *, is_namespace: bool) -> str:
    """Name the table or namespace that was probably meant: one that is spelt alike, or lies in a namespace."""
    repository, ref, _ = _parts(uri)
    try:
        paths = [one.table for one in session.client.tables.list(repository, ref, limit=LOOKED_AT_MAX)]
    except (LakebedError, OSError):
        paths = []
    names = [path if "." in path else path.replace("/", ".") for path in paths]
    lists = f"lakebed table list {uri}"
    if not names or _is_cut(names):
        return f"`{lists}` shows those that there are"
    if is_namespace:
        return _meant(typed, "", sorted({name.rpartition(".")[0] for name in names}), lists)
    inside = [name for name in names if name.rpartition(".")[2] == typed]
    return _meant(inside[0] if inside else typed, "", names, lists)


class _Missing:
    """Hold a URI that has a missing part. Request the names beside that part when a rule first needs them."""

    def __init__(self, client: Client, message: str, uri: str) -> None:
        self.client, self.message, self.uri = client, message, uri
        self.repository, self.ref, self.path = _parts(uri)
        self.root = f"{SCHEME}{self.repository}"
        self.rest = uri.removeprefix(SCHEME).partition("/")[2]

    @cached_property
    def repositories(self) -> list[str]:
        return [one.id for one in self.client.repositories.list(limit=LOOKED_AT_MAX)]

    @cached_property
    def branches(self) -> list[str]:
        return [one.id for one in self.client.branches.list(self.repository, limit=LOOKED_AT_MAX)]

    @cached_property
    def tags(self) -> list[str]:
        return [one.id for one in self.client.tags.list(self.repository, limit=LOOKED_AT_MAX)]

    def is_named(self, part: str) -> bool:
        """Return whether the message names this part of the URI."""
        return re.search(rf"(?<![\w.-]){re.escape(part)}(?![\w-])", self.message) is not None


def _hint(session: Connected, message: str, uri: str) -> str:
    missing = _Missing(session.client, message, uri)
    return next((hint for rule in _RULES if (hint := rule(missing)) is not None), "")


def _of_deleted(missing: _Missing) -> str | None:
    if _NO_DELETED not in missing.message:
        return None
    if missing.repository in missing.repositories:
        return f"{missing.root} is not deleted"
    deleted = [one.id for one in missing.client.repositories.list_deleted(limit=LOOKED_AT_MAX)]
    if _is_cut(missing.repositories) or _is_cut(deleted) or missing.repository in deleted:
        return ""
    return _meant(missing.root, SCHEME, deleted, "lakebed repo list --deleted")


def _of_repository(missing: _Missing) -> str | None:
    """Say that the repository was deleted, if so, or which name is near."""
    if missing.repository in missing.repositories:
        return None
    if _is_cut(missing.repositories) or not missing.is_named(missing.repository):
        return ""
    deleted = missing.client.repositories.list_deleted(prefix=missing.repository, limit=LOOKED_AT_MAX)
    found = next((one for one in deleted if one.id == missing.repository), None)
    if found is None:
        return _meant(missing.root, SCHEME, missing.repositories, "lakebed repo list")
    was = f"It was deleted at {human_time(found.deletion_date)}"
    if found.state != "kept":
        return f"{was} and cannot come back"
    return f"{was}: `lakebed repo undelete {missing.root}` brings it back until {human_time(found.kept_until)}"


def _of_tag(missing: _Missing) -> str | None:
    if "tag not found" not in missing.message:
        return None
    if missing.rest in missing.branches:
        return f"{missing.rest} is a branch: `lakebed branch show {missing.uri}`"
    if _is_cut(missing.tags) or _is_cut(missing.branches):
        return ""
    above = f"{missing.root}/"
    return _meant(above + missing.rest, above, missing.tags, f"lakebed tag list {missing.root}")


def _of_log(missing: _Missing) -> str | None:
    """Say where the log of a branch or tag begins. A deleted one has a log, too."""
    if "@{" not in missing.ref or missing.path:
        return None
    client, name = missing.client, missing.ref.partition("@{")[0]
    for noun, refs in (("branch", client.branches), ("tag", client.tags)):
        with contextlib.suppress(NotFound):
            moves = list(refs.moves(missing.repository, name, limit=LOOKED_AT_MAX))
            if not moves:
                return ""
            begins = "" if len(moves) == LOOKED_AT_MAX else f", which begins at {human_time(moves[-1].date_ms // 1000)}"
            shows = f"`lakebed {noun} reflog {missing.root}/{name}` shows it"
            return f"{name} did not exist then by its log{begins}: {shows}"
    return ""


def _of_branch(missing: _Missing) -> str | None:
    is_tag = missing.ref in missing.tags and missing.ref not in missing.branches
    if not is_tag or _is_cut(missing.branches) or "branch not found" not in missing.message:
        return None
    makes = f"lakebed branch create {missing.root}/NAME --source {missing.ref}"
    return f"{missing.ref} is a tag: only branches can be written, and `{makes}` makes one of it"


def _of_ref(missing: _Missing) -> str | None:
    refs, ref, above = [*missing.branches, *missing.tags], missing.ref, f"{missing.root}/"
    if ref in refs:
        return None
    if _is_cut(missing.branches) or _is_cut(missing.tags):
        return ""
    if (base := re.split("[~^@$]", ref)[0]) in refs:
        return f"{base} is there, and has no such ancestor: `lakebed log {above}{base}` shows those that it has"
    if not ref or not missing.is_named(ref):
        return ""
    below = missing.rest.removeprefix(ref)
    return _meant(above + ref, above, refs, f"lakebed branch list {missing.root}", below=below)


def _of_path(missing: _Missing) -> str | None:
    path = missing.path
    if not path or not missing.is_named(path):
        return None
    above, folder = f"{missing.root}/{missing.ref}/", path[: path.rfind("/") + 1]
    found = missing.client.objects.list(
        missing.repository, missing.ref, prefix=folder, delimiter="/", limit=LOOKED_AT_MAX
    )
    return _meant(above + path, above, [one.path for one in found], f"lakebed object ls {above}{folder}")


_RULES: Final = (_of_deleted, _of_repository, _of_tag, _of_log, _of_branch, _of_ref, _of_path)
"""Hints for a missing part, from the outermost to the innermost. The first that is not None decides: each relies on
those before it, and an empty one says that no name can be proposed."""


def _is_cut(names: Sized) -> bool:
    """Return whether the list was cut: then a name that is not in it may exist all the same."""
    return len(names) >= LOOKED_AT_MAX


def _meant(typed: str, above: str, names: Iterable[str], command: str, *, below: str = "") -> str:
    near = near_names(typed.removeprefix(above), names)
    return f"Did you mean {above}{near[0]}{below}?" if near else f"`{command}` shows what is there"


def near_names(typed: str, names: Iterable[str]) -> list[str]:
    """Return the name that was probably meant, if any. Two names that only end alike are two names."""
    near = get_close_matches(typed, list(names), n=3)
    return [name for name in near if name[:1] == typed[:1] or len(name) == len(typed) == _differ(name, typed) + 1][:1]


def _differ(one: str, other: str) -> int:
    return sum(a == b for a, b in zip(one, other, strict=True))
