"""Write the texts of `lakebed table`. Names of tables are typed and shown with dots, where no part has one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

import click

from lakebed import wire
from lakebed.base import count_of, human_size
from lakebed.cli.kit.output import columns_of, fields, human_minute, human_time, printable, table

MARKS: Final = {"added": "+", "removed": "-", "changed": "~"}
_COLOURS: Final = {"+": "green", "-": "red", "~": "yellow"}


def path_of(name: str) -> str:
    """Return the path of a table or a namespace, which is typed with dots, or with slashes."""
    return name if "/" in name else name.replace(".", "/")


def shown_name(path: str) -> str:
    """Return a name as `path_of` reads it."""
    return printable(path if "." in path else path.replace("/", "."))


def marked(mark: str, text: str) -> str:
    return click.style(f"{mark} {text}", fg=_COLOURS[mark])


def details(one: wire.TableDetails) -> Iterator[str]:
    commit, snapshot = one.commit, one.snapshot
    facts = [
        ("Table", shown_name(one.table)),
        ("Location", one.location),
        ("Metadata", one.metadata_location),
        ("Format", f"version {one.format_version}"),
        ("Changed", human_time(one.modified)),
    ]
    if commit is not None:
        facts.append(("Commit", f"{commit.id[:12]} by {commit.committer}: {commit.message}"))
    facts += [
        ("Snapshot", "none" if snapshot is None else f"{snapshot.id}, {what_of(snapshot)}, {_when(snapshot)}"),
        ("Snapshots", f"{one.snapshots:,}"),
        ("Data", "not counted by its writer" if one.data is None else _count(one.data)),
        ("Stored", f"{count_of(one.stored_files, 'file')}, {human_size(one.stored_bytes)}, with older snapshots"),
        ("Partitions", ", ".join(one.partitions) or "none"),
        ("Sort order", ", ".join(one.sort_order) or "none"),
    ]
    facts += [(f"{ref.type.capitalize()} {ref.name}", ref.snapshot_id) for ref in one.refs if ref.name != "main"]
    facts += [("Property", f"{name}={text}") for name, text in sorted(one.properties.items())]
    yield from fields(facts)
    yield ""
    columns: dict[str, Callable[[wire.TableField], object]] = {
        "field": lambda field: field.name,
        "type": lambda field: field.type,
        "nulls": lambda field: "no" if field.required else "yes",
        "id": lambda field: field.id,
    }
    if any(field.doc for field in one.fields):
        columns["about"] = lambda field: field.doc
    yield from columns_of(one.fields, columns)


def history(versions: Iterable[wire.TableVersion]) -> Iterator[str]:
    rows: list[list[str]] = []
    for one in versions:
        commit = [one.commit.id[:12], human_minute(one.commit.creation_date), one.commit.committer]
        rows += [[*commit, each.id, what_of(each), rows_of(each)] for each in reversed(one.added)]
        if not one.added:
            rows.append([*commit, one.snapshot_id, _no_snapshot(one), ""])
    return table(["commit", "date", "by", "snapshot", "change", "rows"], rows)


def _no_snapshot(one: wire.TableVersion) -> str:
    """Say what a commit did that brought no snapshot."""
    if one.is_dropped:
        return "dropped"
    if one.is_gone:
        return "unknown: its metadata were deleted"
    parts = [f"removed {count_of(len(one.removed), 'snapshot')}"] if one.removed else []
    parts += ["schema"] if one.fields_changed else []
    return ", ".join(parts) or "settings"


def what_of(snapshot: wire.TableSnapshot) -> str:
    return snapshot.operation or "snapshot"


def _when(snapshot: wire.TableSnapshot) -> str:
    return human_time(snapshot.created // 1000)


def rows_of(snapshot: wire.TableSnapshot) -> str:
    """Return the rows that a snapshot added and deleted, as its writer counted them."""
    counts = [("+", snapshot.summary.get("added-records")), ("-", snapshot.summary.get("deleted-records"))]
    return " ".join(f"{sign}{count}" for sign, count in counts if count and count != "0")


def _count(one: wire.TableCount) -> str:
    return f"{count_of(one.files, 'file')}, {count_of(one.rows, 'row')}, {human_size(one.size_bytes)}"


def difference(one: wire.TableDifference) -> Iterator[str]:
    sides = [side for side, has in (("left", one.left_metadata), ("right", one.right_metadata)) if has]
    lines = [f"only the {sides[0]} ref has {shown_name(one.table)}"] if len(sides) == 1 else []
    lines += [_field_change(each) for each in one.fields]
    for title, before, after in (
        ("partitions", one.partitions_before, one.partitions_after),
        ("sort order", one.sort_order_before, one.sort_order_after),
    ):
        if before != after:
            lines.append(marked("~", f"{title} {', '.join(before) or 'none'} -> {', '.join(after) or 'none'}"))
    lines += [marked("~", f"property {printable(name)}={printable(to)}") for name, to in one.properties_set.items()]
    lines += [marked("-", f"property {printable(name)}") for name in one.properties_removed]
    for mark, snapshots in (("+", one.snapshots_added), ("-", one.snapshots_removed)):
        lines += [
            marked(mark, f"snapshot {each.id}, {what_of(each)}, {_when(each)} {rows_of(each)}".rstrip())
            for each in snapshots
        ]
    if one.added is None:
        lines.append("files and rows were not counted: too many differ")
    for mark, count, what in (
        ("+", one.added, "data"),
        ("-", one.removed, "data"),
        ("+", one.deletes_added, "deletes"),
        ("-", one.deletes_removed, "deletes"),
    ):
        if count is not None and count.files:
            lines.append(marked(mark, f"{what}: {_count(count)}"))
    yield from lines or ["no difference"]


def _field_change(one: wire.TableFieldChange) -> str:
    before, after = one.before, one.after
    if before is None or after is None:
        field = before or after
        assert field is not None
        return marked("+" if before is None else "-", f"field {_field(field)}")
    return marked("~", f"field {_field(before)} -> {_field(after)}")


def _field(field: wire.TableField) -> str:
    return printable(f"{field.name} {field.type}{' required' if field.required else ''}")
