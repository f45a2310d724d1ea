"""`lakebed health`: show if the server is ready, its processes, and if their upkeep ends well."""

from __future__ import annotations

from collections.abc import Iterator

from lakebed.base import human_size
from lakebed.cli.kit.output import fields, human_time, table
from lakebed.cli.kit.session import Session
from lakebed.cli.kit.tree import noun
from lakebed.wire import ServerStatus, UpkeepStep

app = noun("Show the health of the server.")


@app.command()
def health(session: Session) -> None:
    """Show whether the server is ready, its versions and processes, and when their upkeep last ended well."""
    session.show(session.client.status(), text=_text)


def _text(status: ServerStatus) -> Iterator[str]:
    yield from fields(
        [
            ("Ready", "yes" if status.ready else "no"),
            ("Version", f"{status.version}, Python {status.python}"),
            ("Database", f"{status.database}: {status.checks.get('kv', '')}"),
            ("Object store", f"{status.object_store}: {status.checks.get('objects', '')}"),
            ("Disk", f"{human_size(status.disk_free_bytes)} free: {status.checks.get('disk', '')}"),
        ]
    )
    yield ""
    yield from table(
        ["process", "since", "memory", "requests", "upkeep"],
        [
            [
                f"{process.process}",
                human_time(process.started),
                human_size(process.memory_bytes),
                f"{process.requests:,}",
                _upkeep(process.upkeep),
            ]
            for process in status.processes
        ],
    )


def _upkeep(steps: list[UpkeepStep]) -> str:
    """Return which steps failed, or when the oldest one ended well."""
    failed = [f"{step.name} failed {step.failures} times" for step in steps if step.failures]
    if failed:
        return ", ".join(failed)
    return f"since {human_time(min(step.done for step in steps))}" if steps else "not yet"
