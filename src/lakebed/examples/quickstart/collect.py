"""The end of the quickstart: set rules, look at the plans, carry them out, and prove that just that happened.

A composition root: it puts Spark's collector together with the server that this quickstart runs.

The proof is the book of the story (story.py), held against the server and the disk as they are. Every object that was
to be kept is read through the server and compared with the checksum that it was written with. Of those that were to go,
not one file may be left. The plan itself proves nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Final

from lakebed.base import Corrupt, LakebedError, count_of, human_size
from lakebed.cli import bar
from lakebed.cli.gc import plan_text
from lakebed.client import Client
from lakebed.gc.messages import ApplyRequest, PlanRequest, RunKind, RunReport
from lakebed.objectstore import ObjectStoreOptions
from lakebed.wire import GarbageCollectionRule, GarbageCollectionRules, ObjectStats

from .story import DRAFT, LATE, MAIN, PARALLEL, TAG, Book, Fate
from .teller import Teller

if TYPE_CHECKING:
    from lakebed.gc import Plan

RULES: Final = GarbageCollectionRules(
    default_retention_days=7,
    branches=[
        GarbageCollectionRule(branch_id=MAIN, retention_days=14),
        GarbageCollectionRule(branch_id=LATE, retention_days=5),
    ],
)
KINDS: Final = {RunKind.UNCOMMITTED: Fate.NEVER_COMMITTED, RunKind.COMMITTED: Fate.EXPIRED}
"""The two collections, and what each of them shall find."""


class Collection:
    """Both collections of one repository, as `lakebed gc` does them."""

    def __init__(self, client: Client, repository: str, objects: Path, teller: Teller, book: Book) -> None:
        self._client = client
        self._repository = repository
        self._objects = objects
        self._teller = teller
        self._book = book

    def set_rules(self) -> None:
        """Set how long history stays, for each branch."""
        self._client.repositories.set_retention_rules(self._repository, RULES)
        days = ", ".join(f"{rule.branch_id} {rule.retention_days} days" for rule in RULES.branches)
        self._teller.say(f"History stays {RULES.default_retention_days} days; {days}. Heads and tags always stay.")
        self._teller.say("A deleted branch holds nothing here (LAKEBED_DELETED_DAYS=0): it cannot come back.")

    def collect(self, environment: Mapping[str, str]) -> list[RunReport]:
        """Plan and apply both collections, with a Spark of our own.

        Raises:
            Corrupt: a plan holds anything but what the book says. Nothing of it was deleted.
        """
        # Imported here: Spark takes a second, which only a collection should wait for.
        from lakebed.gc import Collector, local_session, session_options, unforeseen

        options = session_options(environment)
        with (
            unforeseen(),
            self._teller.waiting("starting Spark") as now,
            local_session(options, environment) as running,
        ):
            collector = Collector(
                client=self._client,
                repository=self._repository,
                objectstore=ObjectStoreOptions(local_root=self._objects),
                session=lambda: running.spark,
                tasks=options.tasks,
                progress=now,
            )
            reports = []
            for kind, fate in KINDS.items():
                now(f"planning: {fate.value}")
                (plan,) = collector.plan(PlanRequest(kinds=(kind,)))
                self._show(plan, fate)
                garbage = collector.garbage(plan.run_id).select("address").toArrow()["address"].to_pylist()
                self._compare(set(garbage), fate)
                now(f"deleting: {fate.value}")
                report = collector.apply(ApplyRequest(run_id=plan.run_id))
                self._teller.say(f"Applied: {_amount(report.objects_deleted, report.bytes_deleted)} deleted.")
                reports.append(report)
            return reports

    def prove(self) -> None:
        """Read all that was to stay, and look for all that was to go.

        Raises:
            Corrupt: an object that should be there is not, or one that should not is.
        """
        kept = self._book.of(Fate.KEPT)
        read = self._read_all()
        if missing := sorted(set(kept) - read):
            raise Corrupt(f"{kept[missing[0]].path} should have been kept, and is in no ref", addresses=missing)
        self._teller.say(f"{count_of(len(read), 'object')} that should be kept: all read, all as they were written.")
        gone = self._book.of(Fate.EXPIRED) | self._book.of(Fate.NEVER_COMMITTED)
        if left := [address for address in gone if self._file_of(address).exists()]:
            raise Corrupt(f"{gone[left[0]].path} should be gone: {left[0]} is still there", addresses=left)
        size = sum(one.size_bytes for one in gone.values())
        self._teller.say(f"{_amount(len(gone), size)} that should be gone: not one file of them is left.")

    def prove_unreadable(self, commit_id: str) -> None:
        """Prove that an object of an expired commit is refused, and no other is returned in its place."""
        path = next(one.path for one in self._book.of(Fate.EXPIRED).values() if one.path.startswith("flights/"))
        try:
            self._client.objects.read(self._repository, commit_id, path)
        except LakebedError as error:
            self._teller.say(f"January as it was first reported ({commit_id[:12]}): {error}.")
        else:
            raise Corrupt(f"{path} of {commit_id} can still be read")

    def _show(self, plan: Plan, fate: Fate) -> None:
        self._teller.say(f"What is {fate.value} (lakebed gc plan --{plan.kind}):")
        self._teller.lines(plan_text(plan))

    def _compare(self, planned: set[str], fate: Fate) -> None:
        expected = {self._key_of(address): one for address, one in self._book.of(fate).items()}
        if planned != set(expected):
            raise Corrupt(
                f"the plan holds {len(planned)} objects, the book {len(expected)}, and they are not the same; "
                "nothing was deleted",
                too_many=sorted(planned - set(expected)),
                too_few=sorted(set(expected) - planned),
            )
        self._teller.say("The book says the same, object by object.")

    def _read_all(self) -> set[str]:
        """Read every object that a ref names, once; their addresses."""
        found: dict[str, tuple[str, ObjectStats]] = {}
        for ref in (MAIN, LATE, DRAFT, TAG):
            found |= {one.physical_address: (ref, one) for one in self._client.objects.list(self._repository, ref)}
        total = sum(one.size_bytes or 0 for _, one in found.values())
        with (
            bar("  reading everything", total, visible=self._teller.shows_progress) as shown,
            ThreadPoolExecutor(PARALLEL) as pool,
        ):
            for size_bytes in pool.map(self._read, found, *zip(*found.values(), strict=True)):
                shown.advance(size_bytes)
        return set(found)

    def _read(self, address: str, ref: str, one: ObjectStats) -> int:
        data = self._client.objects.read(self._repository, ref, one.path)
        if hashlib.md5(data, usedforsecurity=False).hexdigest() != self._book.objects[address].checksum:
            raise Corrupt(f"{one.path} on {ref} is not what was written", address=address)
        return len(data)

    def _key_of(self, address: str) -> str:
        """The address within the storage namespace."""
        return address.removeprefix(namespace_of(self._repository) + "/")

    def _file_of(self, address: str) -> Path:
        return self._objects / address.removeprefix("local://")


def namespace_of(repository: str) -> str:
    """Return where the repository's data lies."""
    return f"local://{repository}"


def _amount(objects: int, size_bytes: int) -> str:
    return f"{count_of(objects, 'object')} ({human_size(size_bytes)})"
