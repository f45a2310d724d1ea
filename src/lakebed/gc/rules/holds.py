"""Legal holds: objects that no collection may delete, whatever the rules, a policy or an erasure select. Pure.

An object is held if a commit that was not swept has it at a path that a hold names, or if a held commit has it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from lakebed.base import CommitId, MetarangeId

from .committed import Namespace
from .history import History
from .lifecycle.due import Entry
from .selection import Selection

__all__ = ["Hold", "Holds", "held_commits", "held_keys"]


class Hold(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Describe one hold. `globs` are those of `Selection`. `tags` maps a tag to the held commit that it named."""

    name: str
    globs: tuple[str, ...] = ()
    commits: tuple[str, ...] = ()
    tags: dict[str, str] = {}
    why: str
    by: str = ""
    at_ms: int = 0
    keeps_uncommitted: bool = True

    def commit_ids(self) -> frozenset[str]:
        # The commits of tags are fixed when the hold is made, so moving a tag changes nothing.
        return frozenset((*self.commits, *self.tags.values()))

    def keeps_path(self, path: str) -> bool:
        return bool(self.globs) and Selection(globs=self.globs).matches(path)

    def text(self) -> str:
        """Describe the held objects, in one line for people."""
        tags = [f"tag {tag}" for tag in self.tags]
        return ", ".join((*self.globs, *tags, *(f"commit {commit[:12]}" for commit in self.commits)))


class Holds(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """List all holds in force. Every change of the holds raises `version`."""

    version: int = 0
    holds: tuple[Hold, ...] = ()

    def paths(self) -> Selection | None:
        """Return the paths that any hold names, or None without such a hold."""
        globs = sorted({glob for hold in self.holds for glob in hold.globs})
        return Selection(globs=tuple(globs)) if globs else None

    def commit_ids(self) -> frozenset[str]:
        return frozenset(commit for hold in self.holds for commit in hold.commit_ids())

    def keeping_uncommitted(self) -> tuple[str, ...]:
        """Return the names of the holds that keep objects without a recorded path."""
        # No record gives the path of an object that no commit ever had. So a hold on paths keeps all such objects by
        # default.
        return tuple(hold.name for hold in self.holds if hold.globs and hold.keeps_uncommitted)

    def of(self, *, path: str = "", commit: str = "") -> tuple[str, ...]:
        """Return the names of the holds that keep an entry, by its path or by a commit that has it."""
        return tuple(
            hold.name
            for hold in self.holds
            if (path and hold.keeps_path(path)) or (commit and commit in hold.commit_ids())
        )

    def at_any(self, paths: Iterable[str]) -> tuple[str, ...]:
        """Return the names of the holds that keep an object by any of these paths."""
        return tuple(sorted({name for path in paths for name in self.of(path=path)}))


def held_commits(history: History, contents: Mapping[MetarangeId, Sequence[Entry]], holds: Holds) -> set[CommitId]:
    """Return the commits that no run may expire: held by id, or with an entry at a held path."""
    return {
        commit.id
        for commit in history.commits.values()
        # A swept commit has lost its objects, so there is nothing to hold.
        if not commit.swept
        and (
            commit.id in holds.commit_ids()
            or any(holds.of(path=entry.path) for entry in _entries(contents, commit.metarange_id))
        )
    }


def held_keys(
    history: History, contents: Mapping[MetarangeId, Sequence[Entry]], holds: Holds, *, namespace: Namespace
) -> set[str]:
    """Return the keys of all objects that are held."""
    found: set[str] = set()
    for commit in history.commits.values():
        if commit.swept:
            continue
        is_whole = commit.id in holds.commit_ids()
        entries = _entries(contents, commit.metarange_id)
        kept = [entry.address for entry in entries if is_whole or holds.of(path=entry.path)]
        found |= namespace.keys_of(kept)
    return found


def _entries(contents: Mapping[MetarangeId, Sequence[Entry]], metarange: MetarangeId) -> Iterable[Entry]:
    return contents[metarange] if metarange else ()
