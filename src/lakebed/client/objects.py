"""Objects: small ones as bytes, any as files (transfers.py), and listings of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from lakebed.base import CONTENT_TYPE_DEFAULT, Unavailable
from lakebed.operations import objects
from lakebed.wire import PATHS_MAX, ObjectCopyCreation, ObjectError, ObjectMove, ObjectStats, PathCommit, PathList

from .connection import Noun, Query
from .errors import AS_COPY, Clash, Damaged, MovedAsCopy, Taken
from .paging import listing
from .transfers import byte_range, upload_headers


class Objects(Noun):
    """The operations on objects. Got from `Client.objects`."""

    def stat(self, repository: str, ref: str, path: str, *, presign: bool = False) -> ObjectStats:
        """Describe an object. `presign`: with a signed URL as its address, where the server signs any."""
        query: Query = {"path": path, "presign": presign or None}
        return self._connection.do(objects.STAT_OBJECT, repository, ref, query=query)

    def list(
        self,
        repository: str,
        ref: str,
        *,
        prefix: str = "",
        delimiter: str = "",
        after: str = "",
        limit: int | None = None,
    ) -> Iterator[ObjectStats]:
        """List objects by path, in byte order.

        With a delimiter, paths that go on after it are one result of type common_prefix.
        """
        query: Query = {"prefix": prefix or None, "delimiter": delimiter or None, "after": after}
        return listing(self._connection, objects.LIST_OBJECTS, repository, ref, query=query, limit=limit)

    def last_commits(
        self, repository: str, ref: str, *, prefix: str = "", delimiter: str = "", limit: int | None = None
    ) -> Iterator[PathCommit]:
        """List paths as `list` does, each with the commit that wrote it.

        That is None where the path is not committed, or where the server's search ended before it.
        """
        query: Query = {"prefix": prefix or None, "delimiter": delimiter or None}
        return listing(self._connection, objects.LAST_COMMITS, repository, ref, query=query, limit=limit)

    def measure(self, repository: str, ref: str, *, prefix: str = "") -> tuple[int, int]:
        """Return how many objects lie below a prefix, and their bytes, without listing them."""
        count = size_bytes = 0
        after, has_more = "", True
        while has_more:
            query: Query = {"prefix": prefix or None, "after": after or None}
            page = self._connection.do(objects.MEASURE_OBJECTS, repository, ref, query=query)
            count, size_bytes = count + page.objects, size_bytes + page.size_bytes
            after, has_more = page.next_offset, page.has_more
        return count, size_bytes

    def read(
        self, repository: str, ref: str, path: str, *, start: int = 0, end: int | None = None, checksum: str = ""
    ) -> bytes:
        """Return the object or, half open, its bytes from `start` to `end`, in memory.

        `checksum`: of the object that the range is wanted of. `Files.download` is for big ones.

        Raises:
            Unavailable: the path has another object than that of `checksum`.
        """
        headers = {} if start == 0 and end is None else {"Range": byte_range(start, end)}
        with self._connection.open(
            objects.GET_OBJECT, repository, ref, query={"path": path}, headers=headers
        ) as response:
            if checksum and response.headers.get("ETag", "").strip('"') != checksum:
                raise Unavailable(f"{path} changed while it was being read: open it again", path=path)
            if headers and response.status_code != 206:
                raise Damaged(f"{path}: asked for a part, the server sent all of it", path=path)
            return response.read()

    def write(
        self,
        repository: str,
        branch: str,
        path: str,
        data: bytes,
        *,
        content_type: str = CONTENT_TYPE_DEFAULT,
        metadata: Mapping[str, str] | None = None,
        if_absent: bool = False,
    ) -> ObjectStats:
        """Write bytes from memory. Repeatable unless `if_absent`, since writing the same bytes twice ends the same.

        Raises:
            Taken: `if_absent`, and the path exists.
            Invalid: no header can carry the content type or metadata.
        """
        if not isinstance(data, bytes | bytearray | memoryview):
            raise TypeError(f"data must be bytes, not {type(data).__name__}: encode text first")
        return self._connection.do(
            objects.UPLOAD_OBJECT,
            repository,
            branch,
            query={"path": path},
            content=lambda: [data],
            headers=upload_headers(content_type, metadata, size_bytes=len(data), if_absent=if_absent),
        )

    def delete(self, repository: str, branch: str, path: str) -> None:
        """Delete an object. Deleting one that is not there succeeds."""
        self._connection.do(objects.DELETE_OBJECT, repository, branch, query={"path": path})

    def delete_many(self, repository: str, branch: str, paths: Sequence[str]) -> Sequence[ObjectError]:
        """Delete all, a thousand a request; return the failures with their reasons."""
        errors: Sequence[ObjectError] = []
        for first in range(0, len(paths), PATHS_MAX):
            body = PathList(paths=[*paths[first : first + PATHS_MAX]])
            errors = [*errors, *self._connection.do(objects.DELETE_OBJECTS, repository, branch, body=body).errors]
        return errors

    def copy(self, repository: str, *, source_ref: str, source: str, branch: str, destination: str) -> ObjectStats:
        """Copy an object within one repository; the server copies, no bytes travel."""
        body = ObjectCopyCreation(src_path=source, src_ref=source_ref)
        return self._connection.do(objects.COPY_OBJECT, repository, branch, query={"dest_path": destination}, body=body)

    def move(
        self,
        repository: str,
        *,
        source_branch: str,
        source: str,
        branch: str,
        destination: str,
        if_absent: bool = False,
    ) -> ObjectStats:
        """Move an object within one repository; no bytes move.

        Raises:
            Taken: `if_absent`, and the destination exists. Nothing was moved.
            MovedAsCopy: the source was replaced meanwhile: it stays, and the destination is a copy.
        """
        body = ObjectMove(src_path=source, src_branch=source_branch, if_absent=if_absent)
        query = {"dest_path": destination}
        try:
            return self._connection.do(objects.MOVE_OBJECT, repository, branch, query=query, body=body)
        except Clash as error:
            facts = {"request": error.facts.get("request")}
            # Of all conflicts only a condition that does not hold is 412.
            if if_absent and error.status == 412:
                raise Taken(str(error), status=error.status, **facts) from error
            if str(error).endswith(AS_COPY):
                raise MovedAsCopy(str(error), status=error.status, **facts) from error
            raise
