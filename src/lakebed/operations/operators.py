"""Operations for operators of a server: ours, beside the contract's."""

from __future__ import annotations

from typing import Final

from lakebed import wire

from .operation import PAGE, Parameter, Permission, flag, get

LIST_AUDIT_RECORDS: Final = get(
    "listAuditRecords",
    "/audit",
    wire.AuditRecordList,
    (Permission("ops:ReadAudit", "*"),),
    "List the records of the audit log, newest first.",
    Parameter("since"),
    Parameter("until"),
    Parameter("user"),
    Parameter("operation"),
    Parameter("repository"),
    flag("denied"),
    *PAGE,
)
GET_SERVER_STATUS: Final = get(
    "getServerStatus",
    "/status",
    wire.ServerStatus,
    (Permission("ops:ReadMetrics", "*"),),
    "Return whether the server is ready, its versions and processes, and when their upkeep last ended well.",
)
