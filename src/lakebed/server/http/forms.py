"""Read multipart/form-data as a stream: pass the bytes of one file field on as they arrive, and never store them.
Small fields before the file are kept.

The form does not state the length of a field. A body that stops before the closing boundary raises an error, so an
interrupted upload stores nothing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from lakebed.base import Invalid
from lakebed.objectstore import ShortBody

_FORM_FIELD_BYTES_MAX: Final = 1 << 20
_PARTS_MAX: Final = 100
_HEADERS_MAX: Final = 16
_HEADER_BYTES_MAX: Final = 16 << 10
"""The limit of a part's headers, which are kept in memory. Each part costs as much as a small request."""


class FormFile:
    """The file in a form, with its headers read. `fields` are the texts of the parts before it."""

    def __init__(self, reader: _FormReader) -> None:
        self.content_type = reader.content_type
        self.filename = reader.filename
        self.fields = reader.fields
        self._reader = reader

    def body(self) -> AsyncIterator[bytes]:
        """Return the bytes of the file as a stream, or raise ShortBody."""
        return self._reader.rest_of_field()


async def open_form(content_type: str, stream: AsyncIterator[bytes], field: str) -> FormFile:
    """Read up to the start of the field, and return its file.

    Raises:
        Invalid: the body is no multipart form, or has no such field.
    """
    _, options = parse_options_header(content_type)
    boundary = options.get(b"boundary")
    if not boundary:
        raise Invalid("a multipart form needs a boundary")
    reader = _FormReader(boundary, stream, field.encode())
    if not await reader.reach_field():
        raise Invalid(f"the form has no field {field!r}")
    return FormFile(reader)


class _FormReader:
    def __init__(self, boundary: bytes, stream: AsyncIterator[bytes], field: bytes) -> None:
        self._stream = stream
        self._field = field
        self._name = bytearray()
        self._value = bytearray()
        self._headers: dict[bytes, bytes] = {}
        self._chunks: list[bytes] = []
        self._is_inside = False
        self._is_found = False
        self._is_over = False
        self._skipped_bytes = 0
        self._parts = 0
        self._header_bytes = 0
        self._field_name: str | None = None
        self._field_value = bytearray()
        self.content_type: str | None = None
        self.filename = ""
        self.fields: dict[str, str] = {}
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._begin_part,
                "on_header_field": lambda data, start, end: self._extend(self._name, data[start:end]),
                "on_header_value": lambda data, start, end: self._extend(self._value, data[start:end]),
                "on_header_end": self._end_header,
                "on_headers_finished": self._end_headers,
                "on_part_data": self._take,
                "on_part_end": self._end_part,
                "on_end": self._end,
            },
        )

    async def reach_field(self) -> bool:
        while not self._is_found and not self._is_over:
            if not await self._feed():
                return False
        return self._is_found

    async def rest_of_field(self) -> AsyncIterator[bytes]:
        while True:
            chunks, self._chunks = self._chunks, []
            for chunk in chunks:
                yield chunk
            if self._is_over:
                return
            if not await self._feed():
                raise ShortBody("the form breaks off before its end")

    async def _feed(self) -> bool:
        """Parse one more chunk. Return False at the end of the stream."""
        async for data in self._stream:
            if not data:
                continue
            try:
                self._parser.write(data)
            except FormParserError as error:
                raise Invalid(f"malformed multipart form: {error}") from error
            if self._skipped_bytes > _FORM_FIELD_BYTES_MAX:
                raise Invalid("the form's other fields are too large")
            return True
        return False

    def _begin_part(self) -> None:
        self._parts += 1
        if self._parts > _PARTS_MAX:
            raise Invalid(f"the form has more than {_PARTS_MAX} parts")
        self._headers.clear()
        self._header_bytes = 0

    def _extend(self, text: bytearray, data: bytes) -> None:
        self._header_bytes += len(data)
        if self._header_bytes > _HEADER_BYTES_MAX:
            raise Invalid(f"a part of the form has more than {_HEADER_BYTES_MAX} bytes of headers")
        text.extend(data)

    def _end_header(self) -> None:
        if len(self._headers) >= _HEADERS_MAX:
            raise Invalid(f"a part of the form has more than {_HEADERS_MAX} headers")
        self._headers[bytes(self._name).lower()] = bytes(self._value)
        self._name.clear()
        self._value.clear()

    def _end_headers(self) -> None:
        _, options = parse_options_header(self._headers.get(b"content-disposition"))
        self._is_inside = not self._is_found and options.get(b"name") == self._field
        if self._is_inside:
            self._is_found = True
            content_type = self._headers.get(b"content-type")
            self.content_type = content_type.decode("latin-1") if content_type else None
            self.filename = options.get(b"filename", b"").decode(errors="replace")
        elif not self._is_found:
            self._field_name = options.get(b"name", b"").decode(errors="replace")

    def _take(self, data: bytes, start: int, end: int) -> None:
        if self._is_inside:
            self._chunks.append(data[start:end])
        else:
            self._skipped_bytes += end - start
            if self._field_name is not None:
                self._field_value += data[start:end]

    def _end_part(self) -> None:
        self._is_inside = False
        if self._field_name is not None:
            self.fields[self._field_name] = self._field_value.decode(errors="replace")
            self._field_name = None
            self._field_value.clear()

    def _end(self) -> None:
        self._is_over = True
