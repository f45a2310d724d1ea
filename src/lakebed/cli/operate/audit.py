"""`lakebed audit`: list requests by user, operation and resource: when, from where, and if they were allowed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated

from lakebed.cli.kit.arguments import iso_since
from lakebed.cli.kit.output import human_date, printable, table
from lakebed.cli.kit.parameters import Option
from lakebed.cli.kit.session import Session
from lakebed.cli.kit.tree import noun
from lakebed.wire import AuditRecord

app = noun("Show the audit log.")


@app.command()
def audit(
    session: Session,
    since: Annotated[str, Option("--since", metavar="DATE", help="A date (ISO 8601, UTC), or 2d: two days ago.")] = "",
    until: Annotated[str, Option("--until", metavar="DATE", help="The same: only earlier requests.")] = "",
    user: Annotated[str, Option("--user", help="Only requests of this user.")] = "",
    operation: Annotated[str, Option("--operation", metavar="ID", help="Only this operation.")] = "",
    repository: Annotated[str, Option("--repository", metavar="NAME", help="Only this repository.")] = "",
    denied: Annotated[
        bool,
        Option("--denied", help="Only refusals: no login, no permission, or a protected branch."),
    ] = False,
    limit: Annotated[int, Option("--limit", "-n", min=1, help="At most this many.")] = 100,
) -> None:
    """Show the audit log of the server, newest first: changes and refusals."""
    found = session.client.audit.list(
        since=iso_since(since),
        until=iso_since(until),
        user=user,
        operation=operation,
        repository=repository,
        is_denied=denied,
        limit=limit,
    )
    session.show_all(found, _text, otherwise="nothing in the audit log")


def _text(records: Iterable[AuditRecord]) -> Iterator[str]:
    return table(
        ["time", "user", "from", "operation", "what", "result"],
        [
            [
                human_date(record.time),
                printable(record.user) or "-",
                record.address or record.through,
                record.operation or "-",
                printable(_subject(record)),
                f"{record.status}" if record.allowed else f"{record.status} denied",
            ]
            for record in records
        ],
    )


def _subject(record: AuditRecord) -> str:
    what = {"tool": record.tool, **record.what} if record.tool else record.what
    return " ".join(f"{name}={value if isinstance(value, str) else ','.join(value)}" for name, value in what.items())
