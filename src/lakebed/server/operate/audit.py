"""The audit log: a line of JSON for each change and each refusal, in a file a day below the data folder.

A line is written before the answer is sent, so each acknowledged change has one. It is one `write` to a file opened
for appending: any number of processes share a file, and a killed process leaves no half line. A line has names, and no
body, header or secret. The table of operations defines the names. An unwritable log stops no request: it is counted.

To protect the disk, each second has at most REFUSALS_MAX refusals, and reads that name a tool, of each user. Callers
without a login get at most SOURCE_MAX for each address and REFUSALS_MAX in all. No flood hides refusals of other
callers. The next line has the number of dropped lines.
"""

from __future__ import annotations

import base64
import binascii
import functools
import logging
import os
import re
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from ipaddress import ip_network
from pathlib import Path
from typing import Final, Literal, TypeAlias

import msgspec

from lakebed.base import Invalid
from lakebed.operations import AnyOperation
from lakebed.server.http.errors import InvalidParameter
from lakebed.server.http.requests import RestRequest
from lakebed.wire import TOOL_HEADER, AuditRecord

logger = logging.getLogger(__name__)

AuditMode: TypeAlias = Literal["changes", "all", "off"]

AUDIT_FOLDER: Final = "audit"
REFUSALS_MAX: Final = 50
SOURCE_MAX: Final = 10
VALUE_MAX: Final = 2048
VALUES_MAX: Final = 100
BLOCK_BYTES: Final = 1 << 20
_STDOUT: Final = 1
_READS: Final = frozenset({"GET", "HEAD"})
_NOISE: Final = frozenset({"postStatsEvents"})
"""Clients send these without a user's action, and they change nothing."""
_CHANGING_READS: Final = frozenset({"oauthCallback"})
"""GET requests that change state. A provider's login is a GET because browsers follow a redirect. It begins a
session.
"""
_READING_POSTS: Final = frozenset(
    {"checkGcCertificate", "checkGcPlanning", "checkGcPurging", "findGcStaged", "tryGcRules", "validateLifecyclePolicy"}
)
"""POST requests that have a body and change nothing."""
_LOGIN_NAMES: Final = ("access_key_id", "username")
_encode: Final = msgspec.json.Encoder().encode
_TOOL_HEADER: Final = TOOL_HEADER.encode()
_TOOL: Final = re.compile(r"[a-z_]{1,40}")
_TOKEN: Final = re.compile(r"(\d{4}-\d\d-\d\d):(\d{1,15})")


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditQuery:
    """Select records; an empty field selects all. `since` and `until` have the time format of records."""

    since: str = ""
    until: str = ""
    user: str = ""
    operation: str = ""
    repository: str = ""
    is_denied: bool = False

    def matches(self, record: AuditRecord) -> bool:
        return (
            (not self.since or record.time >= self.since)
            and (not self.until or record.time < self.until)
            and (not self.user or record.user == self.user)
            and (not self.operation or record.operation == self.operation)
            and (not self.repository or record.what.get("repository") == self.repository)
            and not (self.is_denied and record.allowed)
        )


class AuditLog:
    """The log of one data folder. `keep_days` 0 keeps files without limit. `is_printed` also writes each line to
    standard output, for containers whose folder is deleted with them.
    """

    def __init__(
        self, data_dir: Path, mode: AuditMode = "changes", *, keep_days: int = 0, is_printed: bool = False
    ) -> None:
        self._folder = data_dir / AUDIT_FOLDER
        self._mode = mode
        self._is_reads_left_out = mode != "all"
        self._keep_days = keep_days
        self._is_printed = is_printed
        self._day = ""
        self._descriptor = -1
        self._second, self._skipped = 0, 0
        self._refusals: Counter[tuple[str, str]] = Counter()
        self.failures = 0
        """The number of lines that could not be written."""

    # Writing

    def note(self, request: RestRequest, request_id: str, status: int) -> None:
        """Record the request if the log's mode selects it."""
        if self._is_reads_left_out and not request.refusal and _is_read(request) and not _tool(request):
            return  # Most requests end here, so check this first.
        if self._mode == "off" or not self._is_wanted(request):
            return
        operation, identity = request.operation, getattr(request, "identity", None)
        user, address = "" if identity is None else identity.user_id, (request.scope.get("client") or ("",))[0]
        # Any login can send the header, and a read costs little: lines of reads have a limit, as refusals have.
        is_limited = bool(request.refusal) or (self._is_reads_left_out and _is_read(request))
        if is_limited and self._is_flood(user, address):
            self._skipped += 1
            return
        self._write(
            AuditRecord(
                time=_now(),
                user=user,
                through=_through(request),
                address=address,
                forwarded=_cut(request.header(b"x-forwarded-for") or ""),
                agent=_cut(request.header(b"user-agent") or "")[:200],
                tool=_tool(request),
                operation=request.shown_operation,
                what=_what(request, operation),
                status=status,
                allowed=not request.refusal,
                reason=_cut(request.refusal),
                request=request_id,
                skipped=self._skipped,
            )
        )

    def note_local(self, operation: str, **what: str) -> None:
        """Record an action at the data folder itself, without a server."""
        self._write(
            AuditRecord(
                time=_now(), user="", through="data folder", operation=operation, what={**what}, status=0, allowed=True,
                request="",
            )
        )  # fmt: skip

    def _is_wanted(self, request: RestRequest) -> bool:
        if request.refusal:
            return True
        if request.operation is None or request.operation.id in _NOISE:
            return False
        return self._mode == "all" or not _is_read(request) or bool(_tool(request))

    def _is_flood(self, user: str, address: str) -> bool:
        """Count a refusal or a read, and return whether this second has too many of its kind."""
        second = int(time.monotonic())
        if second != self._second:
            self._second = second
            self._refusals.clear()
        if user:
            return self._is_over("user", user, REFUSALS_MAX)
        # Check the address first: excess requests of one address must use no share of the others.
        return self._is_over("address", _source(address), SOURCE_MAX) or self._is_over("strangers", "", REFUSALS_MAX)

    def _is_over(self, kind: str, name: str, most: int) -> bool:
        self._refusals[kind, name] += 1
        return self._refusals[kind, name] > most

    def _write(self, record: AuditRecord) -> None:
        line = _encode(record) + b"\n"
        try:
            self._open(record.time[:10])
            written = os.write(self._descriptor, line)
            if written < len(line):  # The disk is full. The next line must not continue this one.
                os.write(self._descriptor, b"\n")
        except OSError as error:
            self.failures += 1
            logger.error("the audit log cannot be written: %s", error.strerror)  # noqa: TRY400  # one line says it
        else:
            self._skipped = 0
        if self._is_printed:
            self._print(line)

    def _print(self, line: bytes) -> None:
        try:
            # Bypass Python's buffers: one write, which lines of other processes do not interrupt.
            os.write(_STDOUT, line)
        except OSError as error:
            self.failures += 1
            logger.error("the audit log cannot be printed: %s", error.strerror)  # noqa: TRY400  # one line says it

    def _open(self, day: str) -> None:
        if day == self._day:
            return
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        descriptor = os.open(self._folder / f"{day}.jsonl", flags, 0o600)
        self.close()
        self._day, self._descriptor = day, descriptor
        if self._keep_days:
            oldest = (date.fromisoformat(day) - timedelta(days=self._keep_days)).isoformat()
            for file in self._files():
                if file.stem < oldest:
                    file.unlink(missing_ok=True)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._day, self._descriptor = "", -1

    # Reading

    def read(self, query: AuditQuery, *, after: str = "", limit: int = 100) -> tuple[list[AuditRecord], str]:
        """Return matching records, newest first, and the token of the next page (empty at the end).

        Blocks while it reads: call it in a thread. Damaged lines are skipped.

        Raises:
            Invalid: `after` is no valid token.
        """
        found: list[AuditRecord] = []
        for day, end, line in self._lines(query, after):
            try:
                record = msgspec.json.decode(line, type=AuditRecord)
            except msgspec.MsgspecError:
                continue
            if query.matches(record):
                if len(found) == limit:
                    return found, f"{day}:{end}"
                found.append(record)
        return found, ""

    def _lines(self, query: AuditQuery, after: str) -> Iterator[tuple[str, int, bytes]]:
        """Yield each line that may match, newest first, with its day and the offset of its end."""
        match = _TOKEN.fullmatch(after)
        if after and match is None:
            raise Invalid(f"{after!r} is not a place in the audit log")
        wanted = b'"user":' + msgspec.json.encode(query.user) if query.user else b""
        for file in reversed(self._files()):
            day = file.stem
            if (match is not None and day > match[1]) or (query.until and day > query.until[:10]):
                continue
            if query.since and day < query.since[:10]:
                return
            end = int(match[2]) if match is not None and day == match[1] else None
            for offset, line in lines_backwards(file, end):
                if wanted in line:
                    yield day, offset, line

    def _files(self) -> list[Path]:
        return sorted(self._folder.glob("????-??-??.jsonl"))


def _source(address: str) -> str:
    """Return the network of one caller: an IPv4 address, or the IPv6 /64 that a provider assigns."""
    if ":" not in address:
        return address
    try:
        return str(ip_network((address.partition("%")[0], 64), strict=False))
    except ValueError:
        return address


def lines_backwards(file: Path, end: int | None = None) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of a file from its end (or from offset `end`) to its start, each with the offset of its end."""
    with file.open("rb") as opened:
        size = opened.seek(0, os.SEEK_END)
        position = size if end is None else min(end, size)
        rest = b""
        while position > 0:
            start = max(0, position - BLOCK_BYTES)
            opened.seek(start)
            lines = (opened.read(position - start) + rest).split(b"\n")
            offset = start + sum(map(len, lines)) + len(lines) - 1
            # The first line may begin in the previous block.
            for line in reversed(lines[1:]):
                if line:
                    yield offset, line
                offset -= len(line) + 1
            rest, position = lines[0], start
        if rest:
            yield len(rest), rest


def query_time(text: str) -> str:
    """Return a query's time in the format of records: ISO 8601, UTC without a zone. Empty stays empty.

    Raises:
        Invalid: it is no date or time.
    """
    if not text:
        return ""
    try:
        parsed = datetime.fromisoformat(text)
        return _text(parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC))
    except (ValueError, OverflowError) as error:  # a zone moves the first and last day out of all years
        raise Invalid(f"{text!r} is not a date or time of ISO 8601") from error


def _now() -> str:
    second, part = divmod(time.time(), 1)
    return f"{_second(int(second))}.{int(part * 1000):03d}Z"


@functools.lru_cache(maxsize=2)
def _second(unix_s: int) -> str:
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def _text(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"


def _through(request: RestRequest) -> str:
    """Return the key, login or job with which the caller authenticated. A key's id is no secret; its other half is."""
    if request.through:
        return request.through
    identity = getattr(request, "identity", None)
    if identity is not None and identity.delegation is not None:
        return f"job {identity.delegation.job}"
    if identity is not None and identity.session:
        return f"login {identity.session}"
    if identity is not None and identity.access_key_id:
        return f"key {identity.access_key_id}"
    scheme, _, proof = (request.header(b"authorization") or "").partition(" ")
    if scheme.lower() != "basic":
        return ""
    try:
        key_id = base64.b64decode(proof).partition(b":")[0].decode()
    except (binascii.Error, UnicodeDecodeError):
        return ""
    return f"key {_cut(key_id)[:200]}"


def _tool(request: RestRequest) -> str:
    """Return the name of the agent's tool. Reads of tools are recorded too, but only of known users."""
    name = request.header(_TOOL_HEADER)
    return name if name and _TOOL.fullmatch(name) and hasattr(request, "identity") else ""


def _what(request: RestRequest, operation: AnyOperation | None) -> dict[str, str | list[str]]:
    """Return the names in the operation's path and permissions, with their values in this request."""
    if request.what is not None:
        return {name: _shortened(value) for name, value in request.what.items()}
    if operation is None:
        return {"path": _cut(request.scope["raw_path"].decode("latin-1"))}
    from_path, from_query, from_body = _names(operation)
    what: dict[str, str | list[str]] = {name: _cut(value) for name, value in zip(from_path, request.args, strict=True)}
    try:
        for name in from_query:
            if value := request.query(name):
                what[name] = _cut(value)
    except InvalidParameter:  # The query is malformed, and the answer gives the reason.
        pass
    if request.known_record is not None:
        for name in from_body:
            found = getattr(request.known_record, name, None)
            if isinstance(found, str) and found:
                what[name] = _cut(found)
            elif isinstance(found, (list, tuple)):
                what[name] = [_cut(each) for each in found[:VALUES_MAX]]
                what[f"{name}_count"] = str(len(found))
    return what


@functools.cache
def _names(operation: AnyOperation) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Return the names that identify the target of an operation, by their place: path, query, body."""
    permissions = (*(operation.permissions or ()), *operation.asked_later)
    asked = dict.fromkeys([name for each in permissions for name in each.names] + list(_LOGIN_NAMES))
    in_path = tuple(operation.arguments)
    in_query = {parameter.name for parameter in operation.parameters if parameter.place == "query"} - {*in_path}
    others = [name for name in asked if name not in in_path]
    return in_path, tuple(filter(in_query.__contains__, others)), tuple(n for n in others if n not in in_query)


def _is_read(request: RestRequest) -> bool:
    if request.scope["method"] in _READS:
        return request.shown_operation not in _CHANGING_READS
    return request.shown_operation in _READING_POSTS


def _shortened(value: str | list[str]) -> str | list[str]:
    return _cut(value) if isinstance(value, str) else [_cut(each) for each in value[:VALUES_MAX]]


def _cut(text: str) -> str:
    return text if len(text) <= VALUE_MAX else text[:VALUE_MAX] + "…"
