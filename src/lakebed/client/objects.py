"""Objects: small ones as bytes, any as files (transfers.py), and listings of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from lakebed.wire import ObjectCopyCreation, ObjectError, ObjectErrorList, ObjectStats, ObjectStatsList, PathList

from .connection import Connection, Query, api_path, decode
from .errors import Damaged
from .paging import listing
from .transfers import byte_range, upload_headers

DELETE_MAX: Final = 1000
"""Paths in one bulk deletion, as the contract allows."""


class Objects:
    """What can be done with objects. Got from `Client.objects`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def stat(self, repository: str, ref: str, path: str) -> ObjectStats:
        address = api_path("repositories", repository, "refs", ref, "objects", "stat")
        return decode(self._connection.request("GET", address, query={"path": path}), ObjectStats)

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
        """By path, in byte order. With a delimiter, paths that go on after it are one result of type common_prefix."""
        query: Query = {"prefix": prefix or None, "delimiter": delimiter or None, "after": after}
        address = api_path("repositories", repository, "refs", ref, "objects", "ls")
        return listing(self._connection, address, ObjectStatsList, query, limit=limit)

    def read(self, repository: str, ref: str, path: str, *, start: int = 0, end: int | None = None) -> bytes:
        """The object or, half open, its bytes from `start` to `end`, in memory. `Files.download` is for big ones."""
        headers = {} if start == 0 and end is None else {"Range": byte_range(start, end)}
        address = api_path("repositories", repository, "refs", ref, "objects")
        answer = self._connection.request("GET", address, query={"path": path}, headers=headers)
        if headers and answer.status_code != 206:
            raise Damaged(f"{path}: asked for a part, the server sent all of it", path=path)
        return answer.content

    def write(
        self,
        repository: str,
        branch: str,
        path: str,
        data: bytes,
        *,
        content_type: str = "application/octet-stream",
        metadata: Mapping[str, str] | None = None,
        if_absent: bool = False,
    ) -> ObjectStats:
        """Write bytes from memory. Repeatable unless `if_absent`, since writing the same bytes twice ends the same.

        Raises:
            Taken: `if_absent`, and the path exists.
        """
        answer = self._connection.request(
            "POST",
            api_path("repositories", repository, "branches", branch, "objects"),
            query={"path": path},
            content=lambda: [data],
            headers=upload_headers(content_type, metadata, size_bytes=len(data), if_absent=if_absent),
            repeatable=not if_absent,
            creates=if_absent,
        )
        return decode(answer, ObjectStats)

    def delete(self, repository: str, branch: str, path: str) -> None:
        """Deleting what is not there succeeds."""
        address = api_path("repositories", repository, "branches", branch, "objects")
        self._connection.request("DELETE", address, query={"path": path})

    def delete_many(self, repository: str, branch: str, paths: Sequence[str]) -> Sequence[ObjectError]:
        """Delete all, a thousand a request; what could not be deleted comes back with its reason."""
        address = api_path("repositories", repository, "branches", branch, "objects", "delete")
        errors: Sequence[ObjectError] = []
        for first in range(0, len(paths), DELETE_MAX):
            body = PathList(paths=[*paths[first : first + DELETE_MAX]])
            answer = self._connection.request("POST", address, json=body, repeatable=True)
            errors = [*errors, *decode(answer, ObjectErrorList).errors]
        return errors

    def copy(self, repository: str, *, source_ref: str, source: str, branch: str, destination: str) -> ObjectStats:
        """Within one repository; the server copies, no bytes travel."""
        address = api_path("repositories", repository, "branches", branch, "objects", "copy")
        body = ObjectCopyCreation(src_path=source, src_ref=source_ref)
        answer = self._connection.request("POST", address, query={"dest_path": destination}, json=body, repeatable=True)
        return decode(answer, ObjectStats)
