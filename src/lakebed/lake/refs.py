"""Read a ref, write a branch, and write all or nothing (a transaction)."""

from __future__ import annotations

import io
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final, Literal, TextIO, TypeVar, cast, overload

from lakebed import wire
from lakebed.base import (
    CONTENT_TYPE_DEFAULT,
    OUTCOME_UNKNOWN,
    Conflict,
    Invalid,
    LakebedError,
    NotFound,
    OutcomeUnknown,
)
from lakebed.client import Client, Strategy

from .files import ObjectReader, ObjectWriter, TextWriter

R = TypeVar("R")

BUFFER_BYTES: Final = 1 << 20
_LOOK_S: Final = 0.2


class Ref:
    """A branch, tag, commit id or expression such as `main~2`. Each call resolves it anew."""

    def __init__(self, client: Client, repository: str, name: str) -> None:
        self._client = client
        self.repository = repository
        self.name = name

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.repository!r}, {self.name!r})"

    def commit_record(self) -> wire.Commit:
        """Return the commit that the ref names now.

        Raises:
            NotFound: the ref does not exist.
        """
        return self._client.history.get(self.repository, self.name)

    def log(self, *, limit: int | None = None, prefixes: Sequence[str] = ()) -> Iterator[wire.Commit]:
        """Yield commits, newest first. With prefixes, yield only commits that changed an object below one of them."""
        return self._client.history.log(self.repository, self.name, limit=limit, prefixes=[*prefixes])

    def diff(self, other: str | Ref, *, prefix: str = "", two_dot: bool = False) -> Iterator[wire.Diff]:
        """Yield the changes on `other` since its common ancestor with this ref, by path; with `two_dot`, every
        difference.
        """
        return self._client.history.diff(self.repository, self.name, str(other), prefix=prefix, two_dot=two_dot)

    def list(
        self, prefix: str = "", *, delimiter: str = "", after: str = "", limit: int | None = None
    ) -> Iterator[wire.ObjectStats]:
        """Yield objects by path, in byte order.

        With a delimiter, paths that are equal up to it become one common prefix.
        """
        return self._client.objects.list(
            self.repository, self.name, prefix=prefix, delimiter=delimiter, after=after, limit=limit
        )

    def stat(self, path: str) -> wire.ObjectStats:
        """Return the facts of an object.

        Raises:
            NotFound: the object or the ref does not exist.
        """
        return self._client.objects.stat(self.repository, self.name, path)

    def exists(self, path: str) -> bool:
        """Return whether the object exists. A missing ref or repository returns False."""
        try:
            self.stat(path)
        except NotFound:
            return False
        return True

    def read(self, path: str, *, start: int = 0, end: int | None = None) -> bytes:
        """Return the bytes of an object, in memory: all, or from `start` up to, not including, `end`."""
        return self._client.objects.read(self.repository, self.name, path, start=start, end=end)

    def download(self, path: str, target: str | Path, *, presigned: bool = False) -> int:
        """Fetch an object into a file, all or nothing, checked. Return its size in bytes. The file's folder must exist.

        `presigned`: the bytes come straight from the object store, by a URL that the server signs.

        Raises:
            NotFound: the object does not exist.
            Corrupt: the received bytes differ from the announced size or checksum.
            Unavailable: `presigned`, and the server signs no URLs.
        """
        return self._client.files.download(self.repository, self.name, path, Path(target), presigned=presigned)

    @overload
    def open(self, path: str, mode: Literal["rb"] = "rb", *, encoding: str = "utf-8") -> BinaryIO: ...

    @overload
    def open(self, path: str, mode: Literal["r"], *, encoding: str = "utf-8") -> TextIO: ...

    def open(self, path: str, mode: str = "rb", *, encoding: str = "utf-8") -> BinaryIO | TextIO:
        """Open an object for reading. Seeking costs nothing. A read of a replaced object raises Unavailable."""
        if mode not in {"r", "rb"}:
            raise Invalid(f"{mode!r}: {self.name} can be read ('r', 'rb'); only a branch can be written")
        reader = io.BufferedReader(ObjectReader(self._client, self.repository, self.name, path), BUFFER_BYTES)
        return reader if mode == "rb" else io.TextIOWrapper(reader, encoding=encoding)


class Branch(Ref):
    """A ref that can be written."""

    @overload
    def open(
        self,
        path: str,
        mode: Literal["rb", "wb", "xb"] = "rb",
        *,
        encoding: str = "utf-8",
        content_type: str = CONTENT_TYPE_DEFAULT,
        metadata: Mapping[str, str] | None = None,
    ) -> BinaryIO: ...

    @overload
    def open(
        self,
        path: str,
        mode: Literal["r", "w", "x"],
        *,
        encoding: str = "utf-8",
        content_type: str = CONTENT_TYPE_DEFAULT,
        metadata: Mapping[str, str] | None = None,
    ) -> TextIO: ...

    def open(
        self,
        path: str,
        mode: str = "rb",
        *,
        encoding: str = "utf-8",
        content_type: str = CONTENT_TYPE_DEFAULT,
        metadata: Mapping[str, str] | None = None,
    ) -> BinaryIO | TextIO:
        """Open an object, also for writing: w replaces it, x requires that it does not exist.

        Closing the file writes the object. If its `with` block raises, no object is written.
        """
        if mode == "rb":
            return super().open(path, "rb")
        if mode == "r":
            return super().open(path, "r", encoding=encoding)
        if mode not in {"w", "wb", "x", "xb"}:
            raise Invalid(f"{mode!r} is not a mode of an object: r, rb, w, wb, x or xb (objects are not appended to)")
        writer = ObjectWriter(
            self._client,
            self.repository,
            self.name,
            path,
            content_type=content_type,
            metadata=metadata,
            if_absent=mode[0] == "x",
        )
        if mode.endswith("b"):
            return cast("BinaryIO", writer)  # it has all methods of that type, which is no protocol
        return TextWriter(writer, encoding=encoding)

    def write(
        self,
        path: str,
        data: bytes,
        *,
        content_type: str = CONTENT_TYPE_DEFAULT,
        metadata: Mapping[str, str] | None = None,
        if_absent: bool = False,
    ) -> wire.ObjectStats:
        """Write an object from memory.

        Raises:
            AlreadyExists: `if_absent`, and the object exists.
        """
        return self._client.objects.write(
            self.repository, self.name, path, data, content_type=content_type, metadata=metadata, if_absent=if_absent
        )

    def upload(
        self,
        source: str | Path,
        path: str,
        *,
        content_type: str = CONTENT_TYPE_DEFAULT,
        metadata: Mapping[str, str] | None = None,
        if_absent: bool = False,
        presigned: bool = False,
    ) -> wire.ObjectStats:
        """Send a file of any size.

        `presigned`: the bytes go straight into the object store, by a URL that the server signs; up to 5 GiB.

        Raises:
            AlreadyExists: `if_absent`, and the object exists.
            Unavailable: `presigned`, and the server signs no URLs.
        """
        return self._client.files.upload(
            self.repository,
            self.name,
            path,
            Path(source),
            content_type=content_type,
            metadata=metadata,
            if_absent=if_absent,
            presigned=presigned,
        )

    def copy(self, source: str, path: str, *, source_ref: str | Ref = "") -> wire.ObjectStats:
        """Copy an object within the repository, from this branch or from `source_ref`, on the server."""
        return self._client.objects.copy(
            self.repository, source_ref=str(source_ref) or self.name, source=source, branch=self.name, destination=path
        )

    def move(self, source: str, path: str, *, source_branch: str = "") -> wire.ObjectStats:
        """Move an object within the repository, from this branch or another one; no bytes move.

        Raises:
            Conflict: another writer replaced the source during the move: the source is kept, and the target is a copy.
        """
        return self._client.objects.move(
            self.repository, source_branch=source_branch or self.name, source=source, branch=self.name, destination=path
        )

    def delete(self, *paths: str) -> None:
        """Delete objects from the branch; commits keep them. A missing object is no error.

        Raises:
            Conflict: some could not be deleted; the error names the first.
        """
        if failed := self._client.objects.delete_many(self.repository, self.name, paths):
            raise Conflict(
                f"{len(failed)} of {len(paths)} not deleted: {failed[0].path}: {failed[0].message}",
                paths=[each.path for each in failed],
            )

    def uncommitted(self, *, prefix: str = "") -> Iterator[wire.Diff]:
        """Yield the uncommitted changes, by path."""
        return self._client.history.uncommitted(self.repository, self.name, prefix=prefix)

    def commit(
        self, message: str, *, metadata: Mapping[str, str] | None = None, allow_empty: bool = False
    ) -> wire.Commit:
        """Commit the uncommitted changes.

        Raises:
            Invalid: there are no changes, and `allow_empty` is False.
        """
        return self._client.history.commit(
            self.repository, self.name, message, metadata=metadata, allow_empty=allow_empty
        )

    def reset(self, *, path: str = "", prefix: str = "") -> None:
        """Forget uncommitted changes: of one path, below a prefix, or all of them."""
        self._client.branches.reset(self.repository, self.name, path=path, prefix=prefix)

    def merge(
        self,
        source: str | Ref,
        *,
        message: str = "",
        metadata: Mapping[str, str] | None = None,
        strategy: Strategy | None = None,
        choices: Mapping[str, Strategy] | None = None,
        squash: bool = False,
    ) -> str:
        """Merge `source` into this branch. Return the id of the resulting commit.

        Raises:
            Conflict: both changed the same paths, and neither `choices` (by path) nor `strategy` names the winner
                (`source-wins`, `dest-wins`).
            Invalid: there is nothing to merge, or this branch has uncommitted changes.
        """
        return self._client.history.merge(
            self.repository,
            str(source),
            self.name,
            message=message,
            metadata=metadata,
            strategy=strategy,
            choices=choices,
            squash=squash,
        )

    def import_folder(self, source: str, path: str, message: str) -> wire.Commit:
        """Commit all objects of a folder elsewhere in the object store, without copying them. Waits for the end.

        `source`: such as `s3://bucket/folder`. Objects with the same paths are replaced. Objects of an earlier import
        that the folder no longer has are removed. All other objects are kept. Objects whose names are no valid paths
        are skipped.

        Raises:
            Invalid: the source cannot be imported, or this branch has uncommitted changes.
            Conflict: the import failed or was cancelled; this branch is unchanged.
            OutcomeUnknown: the answer to the last step was lost; `log` shows whether the import was committed.
        """
        history = self._client.history
        folder = source if source.endswith("/") else f"{source}/"
        location = wire.ImportLocation(type="common_prefix", path=folder, destination=path)
        begun = history.start_import(self.repository, self.name, [location], message)
        while True:
            status = history.import_status(self.repository, self.name, begun)
            if status.commit is not None:
                return status.commit
            if status.error is not None:
                if status.error.message.startswith(OUTCOME_UNKNOWN):
                    raise OutcomeUnknown(f"{source}: {status.error.message}", id=begun)
                raise Conflict(f"{source}: {status.error.message}", id=begun)
            time.sleep(_LOOK_S)

    def revert(self, ref: str | Ref, *, parent_number: int = 0) -> None:
        """Commit the reverse of the changes of `ref`."""
        self._client.branches.revert(self.repository, self.name, ref=str(ref), parent_number=parent_number)

    def cherry_pick(self, ref: str | Ref, *, parent_number: int = 0) -> wire.Commit:
        """Commit the changes of `ref` to this branch."""
        return self._client.branches.cherry_pick(self.repository, self.name, ref=str(ref), parent_number=parent_number)

    def drop(self) -> None:
        """Delete the branch and its uncommitted changes. Its commits are kept until retention expires them."""
        self._client.branches.delete(self.repository, self.name)

    @contextmanager
    def transaction(
        self, message: str, *, metadata: Mapping[str, str] | None = None, strategy: Strategy | None = None
    ) -> Iterator[Transaction]:
        """Write to a hidden branch, and merge it here as one commit when the block ends: all, or nothing.

        The hidden branch begins at the last commit, and only the block sees its writes until it ends. A block that
        raises, or writes nothing, changes nothing. The end is a merge: two blocks that write the same bytes to a path
        do not conflict, and paths that a block only reads are not checked.

        Raises:
            Conflict: another writer changed the same paths, and no strategy names the winner.
            Invalid: this branch has uncommitted changes when the block ends.
            OutcomeUnknown: the answer to the merge was lost; `log` shows whether it was committed.
        """
        name = f"tx-{secrets.token_hex(12)}"
        began_at = self._client.branches.create(self.repository, name, source=self.name, hidden=True)
        try:
            own = Transaction(self._client, self.repository, name)
            yield own
            if next(own.uncommitted(), None) is not None:
                own.commit(message, metadata=metadata)
            # The block may have committed, merged or imported by itself, so check whether the branch moved.
            if self._client.branches.get(self.repository, name).commit_id != began_at:
                own.result = self.merge(own, message=message, metadata=metadata, strategy=strategy, squash=True)
        finally:
            # A branch that is not deleted is hidden and harmless. It must not hide the error that ends the block.
            with suppress(LakebedError):
                self._client.branches.delete(self.repository, name)

    def transact(
        self,
        work: Callable[[Transaction], R],
        message: str,
        *,
        attempts: int = 3,
        metadata: Mapping[str, str] | None = None,
        strategy: Strategy | None = None,
    ) -> R:
        """Do `work` in a transaction. After a conflict repeat it from the new head, at most `attempts` times in all.

        Raises:
            Conflict: the last attempt conflicted too.
        """
        if attempts < 1:
            raise Invalid(f"attempts={attempts}: at least one is needed")
        for left in reversed(range(attempts)):
            try:
                with self.transaction(message, metadata=metadata, strategy=strategy) as own:
                    result = work(own)
            except Conflict:
                if not left:
                    raise
            else:
                return result
        raise AssertionError("the last attempt returns or raises")


class Transaction(Branch):
    """The hidden branch of a transaction. `result`, afterwards: the id of the commit; empty if nothing changed."""

    result: str = ""
