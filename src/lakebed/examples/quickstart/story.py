"""Change the data in the quickstart, and keep the book of it.

Every object that is written goes into the book under its physical address, with its checksum and the fate that the
story has in store for it. The book is the independent witness: the collectors never see it, and at the end what they
took and what they left is compared with it, object by object.

Dates are given to the commits, so that the repository looks three months old; a merge has no date but now.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from lakebed.base import Corrupt, count_of, human_size
from lakebed.cli import bar
from lakebed.client import Client
from lakebed.wire import Commit

from .data import Day, only_late, parquet, read_flights, read_small_tables, with_cancelled
from .teller import Teller

DAY_S: Final = 86_400
PARALLEL: Final = 8

MAIN: Final = "main"
LATE: Final = "late-flights"
EXPERIMENT: Final = "experiment"
DRAFT: Final = "draft"
TAG: Final = "year-2013"
PARQUET_TYPE: Final = "application/vnd.apache.parquet"


class Fate(StrEnum):
    """The end that the story has in store for an object."""

    KEPT = "kept"
    EXPIRED = "expired"
    """Only commits name it that retention lets go."""
    NEVER_COMMITTED = "never committed"
    """The object was replaced or forgotten before any commit saw it."""


@dataclass(slots=True)
class Object:
    """Record one object that was written: its path, its bytes and its expected fate."""

    path: str
    checksum: str
    size_bytes: int
    fate: Fate = Fate.KEPT


@dataclass(slots=True)
class Book:
    """Every object ever written, by physical address."""

    objects: dict[str, Object] = field(default_factory=dict)

    def doom(self, addresses: Iterable[str], fate: Fate) -> None:
        for address in addresses:
            self.objects[address].fate = fate

    def of(self, fate: Fate) -> dict[str, Object]:
        return {address: one for address, one in self.objects.items() if one.fate is fate}


class Story:
    """The steps, in their order. Each describes itself and writes into the book."""

    def __init__(self, client: Client, repository: str, teller: Teller) -> None:
        self._client = client
        self._repository = repository
        self._teller = teller
        self._now_s = int(time.time())
        self._days: list[Day] = []
        self._loaded: dict[str, str] = {}
        self.book = Book()
        self.first_commit = ""

    def load(self) -> None:
        """The year as it was reported, a file a day."""
        self._days = read_flights()
        files = {day.path: parquet(day.flights) for day in self._days}
        files |= {path: parquet(table) for path, table in read_small_tables().items()}
        self._loaded = self._write(MAIN, files, "loading flights")
        self.first_commit = self._commit(MAIN, "Load the flights of 2013 as they were reported", days_ago=90).id
        rows = sum(day.flights.num_rows for day in self._days)
        size = human_size(sum(map(len, files.values())))
        self._teller.say(f"{rows:,} flights in {count_of(len(files), 'Parquet file')}, {size}.")

    def correct_january(self) -> None:
        """Overwrites a month: the files it had are named by the first commit alone."""
        corrected = {day.path: parquet(with_cancelled(day).flights) for day in self._month(1)}
        self._write(MAIN, corrected, "correcting January")
        self._commit(MAIN, "Say which flights of January were cancelled", days_ago=60)
        self.book.doom((self._loaded[path] for path in corrected), Fate.EXPIRED)
        self._teller.say(f"January is corrected: {count_of(len(corrected), 'file')} overwritten.")

    def drop_last_week(self) -> None:
        """Deletes a week and replaces the weather."""
        week = [day.path for day in self._month(12) if day.day > 24]
        if errors := self._client.objects.delete_many(self._repository, MAIN, week):
            raise Corrupt(f"{errors[0].path}: {errors[0].message}")
        weather = "weather.parquet"
        self._write(MAIN, {weather: parquet(read_small_tables()[weather].slice(0, 8000))}, "replacing the weather")
        self._commit(MAIN, "Drop the last week, which was reported twice", days_ago=30)
        self.book.doom((self._loaded[path] for path in [*week, weather]), Fate.EXPIRED)
        self._teller.say(f"The last week goes: {count_of(len(week), 'file')} deleted; the weather is replaced.")

    def experiment(self) -> None:
        """A branch from the first commit that is committed to, and deleted: its commit hangs on nothing."""
        branches = self._client.branches
        branches.create(self._repository, EXPERIMENT, source=self.first_commit)
        tried = self._late_files([*self._month(2), *self._month(3)], over_minutes=60)
        addresses = self._write(EXPERIMENT, tried, "an experiment")
        self._commit(EXPERIMENT, "Try something", days_ago=80)
        branches.delete(self._repository, EXPERIMENT)
        self.book.doom(addresses.values(), Fate.EXPIRED)
        self._teller.say(f"An experiment of {count_of(len(tried), 'file')} is committed on a branch that is deleted.")

    def find_late_flights(self) -> None:
        """A branch with two versions of its files; the second is written twice before it is committed."""
        self._client.branches.create(self._repository, LATE, source=MAIN)
        june = self._month(6)
        first = self._write(LATE, self._late_files(june, over_minutes=15), "late flights")
        self._commit(LATE, "Flights of June over 15 minutes late", days_ago=20)
        slip = self._write(LATE, self._late_files(june, over_minutes=45), "late flights, with a slip")
        self._write(LATE, self._late_files(june, over_minutes=30), "late flights again")
        self._commit(LATE, "Flights of June over 30 minutes late", days_ago=10)
        self.book.doom(first.values(), Fate.EXPIRED)
        self.book.doom(slip.values(), Fate.NEVER_COMMITTED)
        self._teller.say(f"The branch {LATE} has June's late flights, {count_of(len(june), 'file')} in two versions.")

    def merge(self) -> None:
        """Shows the difference, merges, and tags what came of it."""
        history = self._client.history
        found = list(history.diff(self._repository, MAIN, LATE))
        kinds = Counter(one.type for one in found)
        shown = ", ".join(f"{number} {kind}" for kind, number in sorted(kinds.items()))
        merged = history.merge(self._repository, LATE, MAIN, message="Bring in the late flights of June")
        self._client.tags.create(self._repository, TAG, ref=MAIN)
        self._teller.say(f"{LATE} differs from {MAIN} in {shown}; merged as {merged[:12]}, tagged {TAG}.")

    def forget(self) -> None:
        """Uploads that a reset forgets, and a draft that stays uncommitted."""
        unwanted = {f"import/{day.path}": parquet(day.flights) for day in self._month(5)[:25]}
        addresses = self._write(MAIN, unwanted, "an import")
        self._client.branches.reset(self._repository, MAIN)
        self.book.doom(addresses.values(), Fate.NEVER_COMMITTED)
        self._client.branches.create(self._repository, DRAFT, source=MAIN)
        draft = {f"draft/{day.path}": parquet(day.flights) for day in self._month(7)[:5]}
        self._write(DRAFT, draft, "a draft")
        self._teller.say(
            f"An import of {count_of(len(unwanted), 'file')} is reset before it is committed; "
            f"a draft of {len(draft)} stays uncommitted on the branch {DRAFT}."
        )

    def _month(self, month: int) -> list[Day]:
        return [day for day in self._days if day.month == month]

    def _late_files(self, days: Iterable[Day], *, over_minutes: int) -> dict[str, bytes]:
        return {
            f"late/month={day.month:02}/day={day.day:02}.parquet": parquet(
                only_late(day, over_minutes=over_minutes).flights
            )
            for day in days
        }

    def _write(self, branch: str, files: Mapping[str, bytes], what: str) -> dict[str, str]:
        """Upload several at a time, and enter them into the book; their addresses by path."""

        def write(path: str, data: bytes) -> str:
            stats = self._client.objects.write(self._repository, branch, path, data, content_type=PARQUET_TYPE)
            checksum = hashlib.md5(data, usedforsecurity=False).hexdigest()
            self.book.objects[stats.physical_address] = Object(path=path, checksum=checksum, size_bytes=len(data))
            shown.advance(len(data))
            return stats.physical_address

        total = sum(map(len, files.values()))
        with (
            bar(f"  {what}", total, visible=self._teller.shows_progress) as shown,
            ThreadPoolExecutor(PARALLEL) as pool,
        ):
            return dict(zip(files, pool.map(write, files, files.values()), strict=True))

    def _commit(self, branch: str, message: str, *, days_ago: int) -> Commit:
        date_s = self._now_s - days_ago * DAY_S
        return self._client.history.commit(self._repository, branch, message, date_s=date_s)
