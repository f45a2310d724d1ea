"""`lakebed export`: write a branch with its history as plain files, to leave Lakebed or to keep a copy outside of it.

    TARGET/refs.json               branches and tags of the repository, and the exported branch
    TARGET/log.jsonl               a commit a line, newest first, as the API shows it, with its `folder`
    TARGET/commits/NNNNNN-ID/…     the files of each commit, below their paths; in the order of their numbers
    TARGET/commits/NNNNNN-ID.jsonl an entry a line: path, checksum, size, type, metadata, and its file in objects
    TARGET/objects/ab/cdef…        the bytes of each object once: files of commits are hard links to these

A commit's folder gets its name when it is whole. So the same command, run again, goes on where it stopped. An entry
whose bytes are lost, such as an imported one that its source overwrote, is left out alone: its line has no file.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path
from typing import Annotated

import msgspec

from lakebed.base import Conflict, LakebedError, NotFound, count_of, human_size
from lakebed.cli.kit.arguments import BranchArgument
from lakebed.cli.kit.failures import Failed, Misuse, describe
from lakebed.cli.kit.output import json_record, printable
from lakebed.cli.kit.parameters import Argument, Option
from lakebed.cli.kit.session import Session
from lakebed.cli.kit.tree import noun
from lakebed.cli.kit.uris import RefUri, parse_ref
from lakebed.client import Damaged, Missing
from lakebed.wire import Commit, ObjectStats

from .transfers import NotAFile, file_below, gone_text, is_marker

app = noun("Write a branch with its history as plain files.")


class Exported(msgspec.Struct, kw_only=True):
    """Sum up the files of an export. `skipped` counts entries without a file in it: each is named on stderr.

    `alone` counts those of this run whose file is in objects and not in the folder of their commit: no folder can hold
    it there. Each is named on stderr, but for folder markers: objects without bytes, with `/` at the end of their path.
    """

    folder: str
    commits: int = 0
    commits_before: int = 0
    objects: int = 0
    size_bytes: int = 0
    skipped: int = 0
    alone: int = 0


@app.command("export")
def export(
    session: Session,
    uri: BranchArgument,
    target: Annotated[Path, Argument(metavar="TARGET", help="A new folder, or one of an export that was stopped.")],
    limit: Annotated[
        int | None, Option("--limit", "-n", min=1, help="Only the newest commits, this many. Default: all.")
    ] = None,
) -> None:
    """Write every commit of a branch as a folder of files, with its log and all refs. The branch stays as it is.

    An object that several commits have is written once: its other files are hard links.
    """
    branch = parse_ref(uri)
    if target.exists() and any(target.iterdir()) and not (target / "refs.json").is_file():
        raise Misuse(f"{target} has files and is not an export: name a new folder")
    log = list(session.client.history.log(branch.repository, branch.ref, first_parent=True, limit=limit))
    done = Exported(folder=str(target))
    session.when_stopped = lambda: (
        f"stopped: {done.commits + done.commits_before:,} of {len(log):,} commits are in {target}; "
        "run the same command again for the rest"
    )
    _describe(session, branch, target, log)
    for commit in reversed(log):
        _write_commit(session, branch, commit, target, done)
    if done.skipped:
        have = "has" if done.skipped == 1 else "have"
        raise Failed(f"{count_of(done.skipped, 'entry', 'entries')} {have} no file in {target}; all others are there")
    new = f"{count_of(done.objects, 'object')}, {human_size(done.size_bytes)}"
    before = f", {done.commits_before:,} were there before" if done.commits_before else ""
    entries = count_of(done.alone, "entry", "entries")
    alone = f"; in objects alone: {entries} whose path can be no file" if done.alone else ""
    session.done(
        f"exported {branch} to {target}: {count_of(done.commits, 'commit')}{before}; {new} downloaded{alone}", done
    )


def _describe(session: Session, branch: RefUri, target: Path, log: list[Commit]) -> None:
    """Write the refs and the log. Both are small, so a second run writes them anew."""
    client, repository = session.client, branch.repository
    (target / "commits").mkdir(parents=True, exist_ok=True)
    refs = {
        "repository": repository,
        "branch": branch.ref,
        "head": log[0].id,
        "branches": {one.id: one.commit_id for one in client.branches.list(repository)},
        "tags": {one.id: one.commit_id for one in client.tags.list(repository)},
    }
    lines = [msgspec.json.encode({**msgspec.to_builtins(one), "folder": _folder_of(one)}).decode() for one in log]
    (target / "log.jsonl").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    (target / "refs.json").write_text(json_record(refs) + "\n", encoding="utf-8")


def _folder_of(commit: Commit) -> str:
    return f"commits/{commit.generation:06}-{commit.id[:16]}"


def _write_commit(session: Session, branch: RefUri, commit: Commit, target: Path, done: Exported) -> None:
    folder = target / _folder_of(commit)
    if folder.is_dir():
        done.commits_before += 1
        done.skipped += _without_file(folder.with_suffix(".jsonl"))
        return
    draft = folder.with_name(f".{folder.name}")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir()
    with folder.with_suffix(".jsonl").open("w", encoding="utf-8") as lines:
        try:
            for stats in session.client.objects.list(branch.repository, commit.id):
                file = _write_entry(session, branch, commit, stats, target, draft, done)
                row = {**msgspec.to_builtins(stats), "file": None if file is None else str(file.relative_to(target))}
                lines.write(msgspec.json.encode(row).decode() + "\n")
        except NotFound as error:
            # A collection took the whole commit. Its line in the log stays.
            session.warn(f"skipped commit {commit.id[:12]}: {describe(error)}")
            shutil.rmtree(draft)
            lines.truncate(0)
            done.skipped += 1
            return
    draft.rename(folder)
    done.commits += 1


def _without_file(lines: Path) -> int:
    with lines.open("rb") as rows:
        return sum(msgspec.json.decode(row)["file"] is None for row in rows)


def _write_entry(
    session: Session, branch: RefUri, commit: Commit, stats: ObjectStats, target: Path, draft: Path, done: Exported
) -> Path | None:
    """Link an entry's file into the folder of its commit, and return the file in objects; None if it has none."""
    if stats.expired is not None:
        session.warn(f"{gone_text(stats)}, in commit {commit.id[:12]}")
        done.skipped += 1
        return None
    try:
        found = _object(session, branch, commit, stats, target, done)
    except (Missing, Conflict, Damaged) as error:
        # The commit has other entries: only this one is left out.
        session.warn(f"skipped {printable(stats.path)} of commit {commit.id[:12]}: {describe(error)}")
        done.skipped += 1
        return None
    try:
        file = file_below(draft, stats.path)
        file.parent.mkdir(parents=True, exist_ok=True)
    except (NotAFile, FileExistsError, NotADirectoryError) as error:
        # Its bytes are in objects all the same, and its line names the file.
        done.alone += 1
        if not is_marker(stats, stats.path):
            session.warn(
                f"{printable(stats.path)} of commit {commit.id[:12]} is in objects alone: {describe_path(error)}"
            )
        return found
    _link(found, file)
    return found


def describe_path(error: LakebedError | OSError) -> str:
    """Say why a path can be no file."""
    return "a file and a folder have one name" if isinstance(error, OSError) else describe(error)


def _object(session: Session, branch: RefUri, commit: Commit, stats: ObjectStats, target: Path, done: Exported) -> Path:
    """Return the file with the bytes of this entry. Its name is a digest of the address, and of what lies there: the
    source of an import may overwrite its objects.
    """
    facts = (stats.physical_address, stats.checksum, stats.size_bytes)
    name = hashlib.sha256(msgspec.json.encode(facts)).hexdigest()[:32]
    file = target / "objects" / name[:2] / name[2:]
    if not file.is_file():
        file.parent.mkdir(parents=True, exist_ok=True)
        # It has its name when it is whole: the client writes beside it, and renames.
        done.size_bytes += session.client.files.download(branch.repository, commit.id, stats.path, file)
        done.objects += 1
    return file


def _link(source: Path, file: Path) -> None:
    try:
        os.link(source, file)
    except OSError:
        # The file system has no hard links, or no more of this file.
        shutil.copy2(source, file)
