"""The ways in which collectors were seen to lose data, each by name: what ours does, and that a planted bug shows.

A story tells what people do and asserts that nothing of theirs is lost. It must hold with the code as it is, and must
not hold with the guard taken out: else the story would prove nothing. Where the way leads through an interleaving, the
story is a small world of the simulator, of which every schedule is walked.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from lakebed.base import Entry, LakebedError, RunKind, RunState, to_row
from lakebed.gc.kinds.committed.plan import NoRules
from lakebed.gc.live import ServiceOptions
from lakebed.gc.live.publish.expiring import Expiring
from lakebed.gc.live.reading.commits import Snapshot
from lakebed.gc.live.reading.inputs import Inputs
from lakebed.gc.live.reading.reading import Reading
from lakebed.gc.live.records.rules import RuleBook, RulesRecord
from lakebed.gc.live.records.runs import RunBook
from lakebed.gc.machine import sweep
from lakebed.gc.mark.inputs import listing, ranges
from lakebed.gc.mark.sets.places import Namespace
from lakebed.gc.messages import UNCOMMITTED, manifest_of
from lakebed.gc.rules import days_rules
from lakebed.gc.runs import recording
from lakebed.gc.runs.recording import Swept
from lakebed.kv import Page
from lakebed.objectstore import DeleteFailure
from lakebed.ranges import SliceSummary
from lakebed.versions import BranchRecord, RunRecord, SliceRecord, decode_cell, encode_record, keys
from sim import explore
from sim.planted.hunting import MUTANTS
from sim.planted.planting import Mutant
from sim.worlds.small import small_worlds
from tests.gc.shipped import Collector

from .conftest import Lake
from .surgery import Surgery, mutant, patches

Story = Callable[[Lake], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Loss:
    name: str
    story: Story
    bug: Mutant | Surgery


async def past(lake: Lake) -> tuple[str, str]:
    """`a` was committed and replaced, 20 and 10 days ago: the addresses of the old object and of the new."""
    old = await lake.put("main", "a", "1")
    await lake.commit("main", "A")
    lake.days(10)
    new = await lake.put("main", "a", "2")
    await lake.commit("main", "B")
    lake.days(10)
    return old, new


def in_the_world(name: str) -> Story:
    """Every schedule of this ports of the simulator, without faults."""

    async def story(_: Lake) -> None:
        ports = next(ports for ports in small_worlds() if ports.scene.name == name)
        explored = explore(ports.scene, states_max=1_000_000)
        assert explored.violation is None, explored.violation

    return story


async def two_runs_at_once(lake: Lake) -> None:
    """The record of a finished copy stays for both."""
    repo = lake.versions
    await lake.put("main", "a")
    run = encode_record(
        RunRecord(kind=RunKind.UNCOMMITTED, state=RunState.MARKING, started_ms=repo.ports.clock.now_ms())
    )
    for name in (b"run/1", b"run/2"):
        await repo.store.set(repo.partition, name, run)
    await repo.copies.copy("main", b"a", "main", b"b")
    await repo.cleanup.clean()

    await repo.store.delete(repo.partition, b"run/1")
    await repo.cleanup.clean()

    page = await repo.store.scan(repo.partition, keys.COPY, 1)
    assert page.keys
    assert page.keys[0].startswith(keys.COPY)


def known(name: str) -> Mutant | Surgery:
    return next(one for one in MUTANTS if one.name == name)


# The last page of uncommitted entries is empty


async def the_last_page_is_empty(lake: Lake) -> None:
    addresses = {await lake.put("main", "a"), await lake.put("main", "b")}
    service = lake.service_with(ServiceOptions(scan_page=1, page_rows=1))

    await lake.collector(service).collect_uncommitted()

    assert await lake.objects() == addresses


async def _join_last_page(self: Inputs, *of: Any) -> Any:
    whole = await _real_join_pages(self, *of)
    return manifest_of(UNCOMMITTED, whole.folder, whole.parts[-1:])


_real_join_pages: Any = Inputs.join_pages


# An object identical to the committed one is uploaded again


async def the_same_again(lake: Lake) -> None:
    await lake.put("main", "a", "same")
    await lake.commit("main")
    again = await lake.put("main", "a", "same")

    await lake.collector().collect_uncommitted()

    assert (await lake.versions.staging.get("main", b"a")).address == again
    assert again in await lake.objects()


async def _first_changes_only(self: Any, branch: tuple[str, BranchRecord]) -> list[Page]:
    commit = await self._versions.context.commits.read(branch[1].commit_id)  # surgery
    entries = await self._versions.trees.scan(commit.metarange_id, b"", 1000)
    committed = {row[5] for _, row in entries}
    pages = []
    for page in await _real_first_cells(self, branch):
        changed = [at for at, value in enumerate(page.values) if decode_cell(value)[1][5] not in committed]
        pages.append(Page([page.keys[at] for at in changed], [page.values[at] for at in changed], page.next_start))
    return pages


_real_first_cells: Any = Reading._first_cells  # the real one, to call from the changed one


# No rules are set


async def no_rules(lake: Lake) -> None:
    objects = set(await past(lake))

    with pytest.raises(NoRules):
        await lake.collector().collect_committed()
    assert await lake.objects() == objects


async def _rules_of_nobody(_: RuleBook) -> RulesRecord:
    return RulesRecord(version=1, rules=days_rules(1), changed_ms=0)


# The mark is older than a branch made on an expired commit


async def a_branch_on_an_expired_commit(lake: Lake) -> None:
    old, new = await past(lake)
    await lake.service.rules.write(days_rules(1))
    slow = lake.collector()
    slow.meanwhile = lambda: lake.versions.refs.create_branch("saved", "main~1")

    await slow.collect_committed()

    assert await lake.objects() == {old, new}
    assert (await lake.versions.staging.get("saved", b"a")).address == old


async def _keep_nothing_anew(*_: Any) -> set[str]:
    return set()


# A tag only holds a commit


async def only_a_tag(lake: Lake) -> None:
    old, new = await past(lake)
    await lake.service.rules.write(days_rules(1))
    await lake.versions.refs.create_tag("v1", "main~1")

    await lake.collector().collect_committed()

    assert await lake.objects() == {old, new}
    assert (await lake.versions.staging.get("v1", b"a")).address == old


def _refs_without_tags(self: Snapshot) -> Any:
    refs = [ref for ref in self.refs if ref[0] != "tag"]
    return _real_refs_table(Snapshot(refs=refs, commits=self.commits, swept=self.swept))


def _kept_without_tags(self: Snapshot, *of: Any, **named: Any) -> Any:
    refs = [ref for ref in self.refs if ref[0] != "tag"]
    return _real_kept(Snapshot(refs=refs, commits=self.commits, swept=self.swept), *of, **named)


_real_refs_table: Any = Snapshot.refs_table
_real_kept: Any = Snapshot.kept


# Part of a bulk delete fails


async def part_of_a_delete_fails(lake: Lake) -> None:
    garbage = [await lake.put("main", "a", str(number)) for number in range(4)][:3]

    async def delete(names: Sequence[str]) -> list[DeleteFailure]:
        await lake.deleter.delete([name for name in names if name != garbage[1]])
        return [DeleteFailure(key=garbage[1], reason="refused")]

    run = await Collector(lake.versions, lake.service, delete).collect_uncommitted()
    assert run.failed == {garbage[1]}
    assert garbage[1] in await lake.objects()

    assert (await lake.collector().again(run.run_id)).failed == set()
    assert garbage[1] not in await lake.objects()


def _count_and_trust(rows: pa.Table, **of: Any) -> Swept:
    return msgspec.structs.replace(recording.count(rows, **of), objects_failed=0)


# Absolute and relative addresses of one object


async def two_spellings(lake: Lake) -> None:
    address = await lake.put("main", "a")
    absolute = Entry(address=f"{lake.objectstore.uri}/{address}", size_bytes=4, checksum="c", modified_ms=lake.clock.ms)
    await lake.versions.staging.write("main", b"b", 0, to_row(b"b", absolute))  # as an importer may have done
    await lake.versions.staging.delete("main", b"a")
    await lake.commit("main")

    await lake.collector().collect_uncommitted()

    assert await lake.objects() == {address}


def _no_other_spelling(_: Namespace, addresses: pa.Array) -> list[tuple[int, int]]:
    return []


# A commit that cannot be read


async def an_unreadable_commit(lake: Lake) -> None:
    objects = set(await past(lake))
    await lake.service.rules.write(days_rules(1))
    ranges = [stat.key async for page in lake.objectstore.list("_lakefs/ranges/") for stat in page]
    for range_ in ranges:
        data = await lake.objectstore.get(range_)
        await lake.objectstore.put(range_, data[:-1])
        for collect in (lake.collector().collect_committed, lake.collector().collect_uncommitted):
            with pytest.raises(Exception, match="range"):
                await collect()
        await lake.objectstore.put(range_, data)
    assert await lake.objects() == objects


async def _summary_if_it_can_be_read(*of: Any) -> SliceSummary:
    found = SliceSummary(bitmaps=(), foreign=0)
    with suppress(Exception):  # this is the bug
        found = await _real_summary(*of)
    return found


_real_summary: Any = ranges._summary  # the real one, to call from the changed one


# A file nobody expects under the special folders


async def a_file_nobody_expects(lake: Lake) -> None:
    garbage = await lake.put("main", "a", "1")
    await lake.put("main", "a", "2")
    in_slice = f"{garbage.rpartition('/')[0]}/mine.txt"
    unknown_files = {"data/notes.txt", "data/1/x", in_slice, "_lakefs/notes.txt", "_lakefs/retention/gc/notes.txt"}
    for stray in unknown_files:
        await lake.objectstore.put(stray, b"mine")

    run = await lake.collector().collect_uncommitted()

    assert run.garbage == {garbage}
    assert run.unknown_files == unknown_files - {"data/1/x"} | {"data/1/"}
    assert unknown_files <= {stat.key async for page in lake.objectstore.list("") for stat in page}


def _as_long_as_sequences(names: Sequence[str]) -> bool:
    return set(map(len, names)) == {8}


# The listing is older than an upload that started before it


async def an_upload_older_than_the_listing(lake: Lake) -> None:
    other = lake.server()
    body = lake.body()

    async def slow(address: str) -> Entry:
        entry = await body(address)
        await lake.collector().collect_uncommitted()
        return entry

    entry = await other.staging.upload("main", b"a", slow)

    assert await lake.objects() == {entry.address}


async def _all_slices(self: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    versions = self._versions
    found = [item async for item in versions.context.records(SliceRecord, keys.SLICE)]  # surgery
    return tuple(key[len(keys.SLICE) :].decode() for key, _ in found), ()


LOSSES = (
    Loss(
        "the last page of uncommitted entries is empty",
        the_last_page_is_empty,
        mutant("last-page-only", "all pages are one input", (), patches(Inputs, join_pages=_join_last_page)),
    ),
    Loss(
        "an object identical to the committed one is uploaded again",
        the_same_again,
        mutant(
            "changes-only", "cells equal to the commit count", (), patches(Reading, _first_cells=_first_changes_only)
        ),
    ),
    Loss(
        "no rules are set",
        no_rules,
        mutant("rules-of-nobody", "without rules nothing goes", (), patches(RuleBook, read=_rules_of_nobody)),
    ),
    Loss(
        "the mark is older than a branch made on an expired commit",
        a_branch_on_an_expired_commit,
        mutant("refs-once", "refs are read again", (), patches(Expiring, _kept=_keep_nothing_anew)),
    ),
    Loss(
        "a tag is the only thing that holds a commit",
        only_a_tag,
        mutant(
            "tags-unread", "tags pin", (), patches(Snapshot, refs_table=_refs_without_tags, kept=_kept_without_tags)
        ),
    ),
    Loss(
        "part of a bulk delete fails",
        part_of_a_delete_fails,
        Surgery("failures-unread", "each failed key is counted", ((sweep, "count", _count_and_trust),)),  # type: ignore[arg-type]  # a module has attributes too,
    ),
    Loss("two runs at once", two_runs_at_once, known("watch-one")),
    Loss(
        "a rename between two pages of the uncommitted listing",
        in_the_world("renamer, run in pages"),
        known("copies-first"),
    ),
    Loss(
        "a loosened rule between plan and apply", in_the_world("setter of rules, run by rules"), known("rules-unread")
    ),
    Loss(
        "absolute and relative addresses of one object",
        two_spellings,
        mutant("spelling", "one object, one key", (), patches(Namespace, numbers_of=_no_other_spelling)),
    ),
    Loss(
        "a commit that cannot be read",
        an_unreadable_commit,
        Surgery("unreadable", "an unreadable input stops", ((ranges, "_summary", _summary_if_it_can_be_read),)),  # type: ignore[arg-type]  # a module has attributes too
    ),
    Loss(
        "a file nobody expects under the special folders",
        a_file_nobody_expects,
        Surgery("unknown-files", "only addresses of ours", ((listing, "_are_sequences", _as_long_as_sequences),)),  # type: ignore[arg-type]  # a module has attributes too
    ),
    Loss(
        "the listing is older than an upload that started before it",
        an_upload_older_than_the_listing,
        mutant("all-slices", "only closed slices", (), patches(RunBook, closed_slices=_all_slices)),
    ),
)


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
async def test_nothing_is_lost_where(lake: Lake, loss: Loss) -> None:
    await loss.story(lake)


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
async def test_a_planted_bug_shows_where(lake: Lake, loss: Loss) -> None:
    with loss.bug.planted(), pytest.raises((AssertionError, pytest.fail.Exception, LakebedError)):
        await loss.story(lake)


def test_each_of_the_thirteen_is_there_once() -> None:
    assert len({loss.name for loss in LOSSES}) == len({loss.bug.name for loss in LOSSES}) == 13
