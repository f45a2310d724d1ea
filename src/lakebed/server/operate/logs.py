"""Log lines for people or for machines, each with the id of its request.

`text` is one line for each record. `json` is one object a line: time, level, process, logger, message, request. An
answered request (logger `lakebed.access`, level info) also has method, path, operation, user, status and seconds.
No line contains a header, a query or a body, so no line contains a secret.
"""

from __future__ import annotations

import logging
import sys
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Final, Literal, TypeAlias

import msgspec

Level: TypeAlias = Literal["debug", "info", "warning", "error"]
Format: TypeAlias = Literal["text", "json"]

REQUEST_ID: Final[ContextVar[str]] = ContextVar("request_id", default="")
access: Final = logging.getLogger("lakebed.access")


class LogOptions(msgspec.Struct, frozen=True, kw_only=True):
    level: Level = "warning"
    format: Format = "text"


def configure_logs(options: LogOptions) -> None:
    """Send every log record of this process to standard error in this format."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json() if options.format == "json" else _Text())
    logging.basicConfig(level=options.level.upper(), handlers=[handler], force=True)
    # uvicorn's lines about connections repeat ours.
    logging.getLogger("uvicorn").setLevel(max(logging.WARNING, logging.getLogger().level))


def log_access(fields: dict[str, Any]) -> None:
    """Log an answered request. The caller first checks `access.isEnabledFor(logging.INFO)`."""
    shown = [fields[name] for name in ("method", "path", "status", "seconds")]
    access.info("%s %s: %d in %.4f s", *shown, extra={"fields": fields})


class _Text(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("%(asctime)s %(process)d %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # the name is the base class's
        line = super().formatMessage(record)
        request_id = REQUEST_ID.get()
        return f"{line} [request {request_id}]" if request_id and request_id not in line else line


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "process": record.process,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if request_id := REQUEST_ID.get():
            fields["request"] = request_id
        fields |= getattr(record, "fields", {})
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        return msgspec.json.encode(fields, enc_hook=str).decode()
