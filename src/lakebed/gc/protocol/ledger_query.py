"""What can be asked of the ledger: which of its files can hold an answer, and which of their rows are one. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from .ledger import LedgerState


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerQuery:
    """What is asked for; what is left out does not count. `path` with a slash at its end is all that is below it;
    `since_ms` is when the row's deed was done.
    """

    run_id: str = ""
    path: str = ""
    address: str = ""
    state: LedgerState | None = None
    since_ms: int | None = None

    def matches(self, name: str) -> bool:
        """Whether a ledger file of this name can hold such rows."""
        return name.endswith(".parquet") and (not self.run_id or f"/{self.run_id}-" in name)

    def select(self, rows: pa.Table) -> pa.Table:
        """Those of these LEDGER rows that are asked for."""
        kept = pc.is_valid(rows["address"])
        if self.run_id:
            kept = pc.and_(kept, pc.equal(rows["run_id"], self.run_id))
        if self.path.endswith("/"):
            kept = pc.and_(kept, pc.starts_with(rows["path"], self.path))
        elif self.path:
            kept = pc.and_(kept, pc.equal(rows["path"], self.path))
        if self.address:
            kept = pc.and_(kept, pc.equal(rows["address"], self.address))
        if self.state is not None:
            kept = pc.and_(kept, pc.equal(rows["state"], self.state.value))
        if self.since_ms is not None:
            since = pa.scalar(self.since_ms, rows.schema.field("deleted_at").type)
            kept = pc.and_(kept, pc.greater_equal(rows["deleted_at"], since))
        return rows.filter(kept)


class LedgerRow(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the table `ledger`, with times in milliseconds."""

    run_id: str
    address: str
    size_bytes: int
    reason: str
    deleted_ms: int
    error: str
    path: str
    rule: str
    state: LedgerState


class LedgerPage(msgspec.Struct, frozen=True, kw_only=True):
    """Some of the rows that were asked for, oldest runs first. More, or a look into more files, with the token."""

    rows: tuple[LedgerRow, ...]
    continuation_token: str | None = None


def plain_rows(rows: pa.Table) -> list[LedgerRow]:
    names = [name for name in LedgerRow.__struct_fields__ if name != "deleted_ms"]
    columns = [rows["deleted_at"].cast(pa.int64()).to_pylist(), *(rows[name].to_pylist() for name in names)]
    return [
        LedgerRow(deleted_ms=deleted_ms, **dict(zip(names, row, strict=True)))
        for deleted_ms, *row in zip(*columns, strict=True)
    ]
