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
