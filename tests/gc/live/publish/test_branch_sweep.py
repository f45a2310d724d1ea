"""Sweeps of branches: what a plan says of each, what goes, what keeps one, and that all of it comes back."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest

from lakebed.base import Corrupt, Entry, LakebedError, OutcomeUnknown, Ports, RepositoryUid, Unavailable
from lakebed.catalog import Catalog, Repository
from lakebed.catalog.refs.hooks import Event, HookRefused, NoHooks
from lakebed.gc.api.simulate import simulate_branches
from lakebed.gc.live import BranchSweep, HoldBook, PolicyBook, RulesMoved, TooManyBranches
from lakebed.gc.messages import SWEEP_MAX, BranchToGo, NewHold, PlannedBranch
from lakebed.gc.rules import matches
from lakebed.gc.rules.lifecycle import BranchFacts, Pin, check_policy, judge_branch
from lakebed.kv import StoreUnavailable
from lakebed.kv.drivers.memory import MemoryStore
from lakebed.objectstore import MemoryObjectStore, ObjectStore
from lakebed.runtime import LiveIds, LiveTasks
from lakebed.versions import BranchNotFound, Note, Options, RefKind, TreeCache, Trees, Versions
from tests.clocks import TurnableClock

DAY_MS = 86_400_000
HOUR_MS = 3_600_000
JSON = dict[str, Any]


class Installation:
    """A server's catalog with one repository, and a clock that the test turns."""

    def __init__(self) -> None:
        self.clock = TurnableClock(1_800_000_000_000)
        self.ports = Ports(self.clock, LiveIds(), LiveTasks())
        self.store = MemoryStore()
        self.objectstore = MemoryObjectStore("mem://lake")
        self.hooks = Watching()
        self.catalog = Catalog(
            store=self.store,
            ports=self.ports,
            open_namespace=lambda _: self.objectstore,
            make_versions=self.make_versions,
            make_hooks=lambda *_: self.hooks,
        )

    def make_versions(self, uid: RepositoryUid, objectstore: ObjectStore, salt: str) -> Versions:
        trees = Trees(objectstore, TreeCache(1 << 20), self.ports, salt=salt)
        options = Options(owner="server")
        return Versions(
            uid=uid, store=self.store, objectstore=objectstore, trees=trees, ports=self.ports, options=options
        )

    async def lake(self) -> Repository:
        return await self.catalog.get("lake")

    def days(self, count: float) -> None:
        self.clock.ms += int(count * DAY_MS)

    async def policy(self, **branches: object) -> None:
        await PolicyBook((await self.lake()).versions).write(json.dumps({"branches": branches}).encode())

    async def branch(self, name: str, source: str = "main", **options: Any) -> None:
        await (await self.lake()).changes.create_branch(name, source, **options)

    async def put(self, branch: str, path: str) -> None:
        await (await self.lake()).objects.upload(branch, path, path.encode())

    async def commit(self, branch: str, path: str) -> str:
        await self.put(branch, path)
        return (await (await self.lake()).changes.commit(branch, Note(message=path, committer="ann"))).id

    async def plan(self) -> dict[str, PlannedBranch]:
        return {one.branch: one for one in (await BranchSweep(await self.lake()).plan()).branches}

    async def sweep(self, planned: Iterable[PlannedBranch], version: int = 1) -> dict[str, str]:
        """Return what became of each: `deleted`, or why it stays."""
        wanted = [BranchToGo(branch=one.branch, state=one.state) for one in planned]
        swept = await BranchSweep(await self.lake()).sweep(version, wanted, by="ann")
        return {one.branch: "deleted" if one.is_deleted else one.why for one in swept}

    async def why(self, branch: str) -> str:
        return (await self.plan())[branch].why


class Watching(NoHooks):
    """Hooks that do something before a branch is deleted."""

    def __init__(self) -> None:
        self.act: Any = None
        self.asked = 0

    async def before(self, event: Event) -> str:
        if self.act is not None and event.type == "pre-delete-branch":
            self.asked += 1
            await self.act()
        return ""

    def fail_at(self, number: int, error: LakebedError) -> None:
        """Raise `error` at the branch of this number, counted from 1."""

        async def fail() -> None:
            if self.asked == number:
                raise error

        self.act = fail


@pytest.fixture
async def lakes() -> Installation:
    lakes = Installation()
    await lakes.catalog.create("lake", storage_namespace="mem://lake")
    await lakes.commit("main", "a")
    return lakes


async def test_an_idle_branch_goes_and_comes_back_where_it_was(lakes: Installation) -> None:
    await lakes.branch("old")
    head = await lakes.commit("old", "b")
    await lakes.policy(**{"*": {"idle": "10d"}})
    lakes.days(11)
    await lakes.branch("young")

    plan = await lakes.plan()
    swept = await lakes.sweep([plan["old"]])

    assert {name: (one.goes, one.why) for name, one in plan.items()} == {
        "main": (False, "default branch"),
        "old": (True, "idle"),
        "young": (False, "not idle for long enough"),
    }
    assert swept == {"old": "deleted"}
    versions = (await lakes.lake()).versions
    [note] = await versions.refs.list_deleted(RefKind.BRANCH)
    assert (note.name, note.commit_id, note.deleted_by) == ("old", head, "ann")
    lakes.clock.ms += 1
    assert await (await lakes.lake()).changes.undelete_branch("old") == head
    assert (await versions.refs.moves(RefKind.BRANCH, "old"))[0][1].operation == "delete"
    # It was used just now.
    assert await lakes.why("old") == "not idle for long enough"


@pytest.mark.parametrize(
    ("deed", "why"),
    [
        ("nothing", "idle"),
        ("protect", "protected"),
        ("protect deletion", "protected"),
        ("hold", "legal hold"),
        ("pull", "open pull request"),
        ("write", "uncommitted changes"),
        ("remove", "uncommitted changes"),
        ("commit", "not idle for long enough"),
        ("reset", "not idle for long enough"),
    ],
)
async def test_a_branch_stays_where_something_keeps_it(lakes: Installation, deed: str, why: str) -> None:
    await lakes.branch("old")
    head = await lakes.commit("old", "b")
    await lakes.policy(old={"idle": "10d"})
    lakes.days(11)
    lake = await lakes.lake()

    match deed:
        case "protect":
            await lake.set_protection(["ol*"])
        case "protect deletion":
            await lakes.catalog.protect_deletion("lake", repository=False, branches=["ol*"])
        case "hold":
            await HoldBook(lake.versions).add(NewHold(name="h", commits=(head,), why="law"))
        case "pull":
            await lake.pulls.create(source="old", destination="main", title="t", description="", author="ann")
        case "write":
            await lakes.put("old", "c")
        case "remove":
            await lake.versions.staging.delete("old", b"b")
        case "commit":
            await lakes.commit("old", "c")
        case "reset":
            await lake.changes.hard_reset("old", "main")
    lakes.clock.ms += 2_000  # Handles know for a second what they read.

    assert await lakes.why("old") == why


async def test_a_plan_says_from_which_instant_on_each_branch_goes(lakes: Installation) -> None:
    await lakes.policy(
        **{"idle-*": {"idle": "3d"}, "merged-*": {"idle": "2d", "merged": True}, "kept-*": {"idle": "forever"}}
    )
    await lakes.branch("idle-a")
    await lakes.branch("merged-a")
    await lakes.branch("merged-open", lasts_ms=5 * DAY_MS)
    await lakes.commit("merged-open", "b")
    await lakes.branch("merged-for-ever")
    await lakes.commit("merged-for-ever", "c")
    await lakes.branch("kept-a", lasts_ms=DAY_MS)
    await lakes.branch("no-rule", lasts_ms=4 * DAY_MS)
    began_ms = lakes.clock.ms

    plan = await lakes.plan()

    days = {name: one.goes_ms and round((one.goes_ms - began_ms) / DAY_MS, 3) for name, one in plan.items()}
    assert days == {
        "main": None,
        "idle-a": 3,
        "merged-a": 2,
        "merged-open": 5,
        "merged-for-ever": None,
        "kept-a": None,
        "no-rule": 4,
    }
    for name, one in plan.items():
        if one.goes_ms is not None:
            lakes.clock.ms = one.goes_ms - 1
            assert not (await lakes.plan())[name].goes
            lakes.clock.ms = one.goes_ms
            assert (await lakes.plan())[name].goes
            assert (await lakes.plan())[name].goes_ms == one.goes_ms


async def test_a_change_without_a_date_keeps_a_branch_for_ever_unless_it_was_made_to_last_for_a_while(
    lakes: Installation,
) -> None:
    await lakes.policy(**{"old-*": {"idle": "3d", "uncommitted": "drop"}})
    await lakes.branch("old-a")
    await lakes.branch("old-b", lasts_ms=DAY_MS)
    lasts_until_ms = lakes.clock.ms + DAY_MS
    lake = await lakes.lake()
    for name in ("old-a", "old-b"):
        await lake.objects.delete(name, "a")

    plan = await lakes.plan()
    lakes.days(100)
    later = await lakes.plan()

    assert (plan["old-a"].goes_ms, plan["old-b"].goes_ms) == (None, lasts_until_ms)
    assert (later["old-a"].goes, later["old-a"].goes_ms) == (False, None)
    assert (later["old-b"].goes, later["old-b"].goes_ms) == (True, lakes.clock.ms)


async def test_a_simulation_names_no_rule_for_a_branch_that_goes_because_it_lasted_long_enough(
    lakes: Installation,
) -> None:
    await lakes.policy(**{"old-*": {"idle": "3d"}})
    await lakes.branch("old-a", lasts_ms=DAY_MS)
    await lakes.branch("old-b")

    async def rules() -> dict[str, str]:
        plan = await BranchSweep(await lakes.lake()).plan()
        return {one.branch: one.rule for one in simulate_branches(plan, days=10)}

    assert await rules() == {"old-a": "", "old-b": "old-*"}
    lakes.days(2)
    assert await rules() == {"old-a": "", "old-b": "old-*"}


async def test_only_merged_branches_go_where_the_rule_says_so(lakes: Installation) -> None:
    for name in ("merged", "open", "squashed", "empty"):
        await lakes.branch(name)
    for name in ("merged", "open", "squashed"):
        await lakes.commit(name, name)
    lake = await lakes.lake()
    await lake.changes.merge("merged", "main", Note(message="", committer="ann"))
    await lake.changes.merge("squashed", "main", Note(message="", committer="ann"), squash=True)
    lakes.days(11)

    await lakes.policy(**{"*": {"idle": "10d", "merged": True}})
    merged = {name: one.why for name, one in (await lakes.plan()).items()}
    await lakes.policy(**{"*": {"idle": "10d", "merged": False}})
    others = {name: one.why for name, one in (await lakes.plan()).items()}

    assert merged == {
        "main": "default branch",
        "merged": "idle",
        "open": "not merged",
        "squashed": "not merged",
        "empty": "idle",
    }
    assert others == {
        "main": "default branch",
        "merged": "merged",
        "open": "idle",
        "squashed": "idle",
        "empty": "merged",
    }


async def test_a_branch_that_others_are_merged_into_stays(lakes: Installation) -> None:
    await lakes.branch("develop")
    await lakes.branch("topic", "develop")
    await lakes.commit("topic", "b")
    await (await lakes.lake()).changes.merge("topic", "develop", Note(message="", committer="ann"))
    await lakes.policy(**{"*": {"idle": "10d", "merged": True, "into": ["develop"]}})
    lakes.days(11)

    plan = await lakes.plan()

    assert {name: one.why for name, one in plan.items()} == {
        "main": "default branch",
        "develop": "others are merged into it",
        "topic": "idle",
    }


async def test_the_most_specific_rule_counts_for_a_branch(lakes: Installation) -> None:
    for name in ("tmp-1", "tmp-keep", "other"):
        await lakes.branch(name)
    await lakes.policy(
        **{"tmp-*": {"idle": "36h"}, "tmp-keep": {"idle": "forever"}, "z": {"idle": "1h", "enabled": False}}
    )
    lakes.days(2)

    plan = await lakes.plan()

    assert {name: (one.rule, one.why) for name, one in plan.items() if name != "main"} == {
        "tmp-1": ("tmp-*", "idle"),
        "tmp-keep": ("tmp-keep", "kept for ever"),
        "other": ("", "no rule"),
    }


async def test_a_branch_goes_when_it_is_older_than_it_was_made_to_last_though_it_is_used(lakes: Installation) -> None:
    await lakes.branch("short", lasts_ms=3 * DAY_MS)
    await lakes.branch("kept", lasts_ms=3 * DAY_MS)
    made_ms = lakes.clock.ms
    await lakes.policy(kept={"idle": "forever"})
    lakes.days(2)
    await lakes.commit("short", "b")
    before = await lakes.why("short")
    lakes.days(1)

    plan = await lakes.plan()

    assert before == "lasts until its date"
    assert (plan["short"].why, plan["short"].expires_ms) == ("older than it was made to last", made_ms + 3 * DAY_MS)
    assert plan["kept"].why == "kept for ever"
    assert await lakes.sweep([plan["short"], plan["kept"]]) == {"short": "deleted", "kept": "kept for ever"}


async def test_without_a_policy_only_what_was_made_to_last_for_a_while_goes(lakes: Installation) -> None:
    await lakes.branch("short", lasts_ms=HOUR_MS)
    await lakes.branch("other")
    lakes.days(1_000)

    plan = await lakes.plan()

    assert [name for name, one in plan.items() if one.goes] == ["short"]
    assert await lakes.sweep([plan["short"], plan["other"]], version=0) == {"short": "deleted", "other": "no rule"}


async def test_a_branch_that_comes_back_is_no_longer_made_to_last_for_a_while(lakes: Installation) -> None:
    await lakes.branch("short", lasts_ms=HOUR_MS)
    lakes.days(1)
    await lakes.sweep((await lakes.plan()).values(), version=0)

    await (await lakes.lake()).changes.undelete_branch("short")
    lakes.days(1)

    assert await lakes.why("short") == "no rule"


# What changes between plan and sweep


async def planned(lakes: Installation, **rule: Any) -> PlannedBranch:
    await lakes.branch("old")
    await lakes.policy(old={"idle": "10d", **rule})
    lakes.days(11)
    [old] = [one for one in (await lakes.plan()).values() if one.goes]
    return old


async def idle(lakes: Installation, *names: str) -> list[PlannedBranch]:
    """The plan of branches that all go."""
    for name in names:
        await lakes.branch(name)
    await lakes.policy(**{"*": {"idle": "10d"}})
    lakes.days(11)
    plan = await lakes.plan()
    return [plan[name] for name in names]


async def test_a_branch_that_was_used_since_the_plan_stays_though_it_is_idle_again(lakes: Installation) -> None:
    old = await planned(lakes)
    await lakes.commit("old", "b")
    lakes.days(11)

    assert await lakes.sweep([old]) == {"old": "used since it was planned"}
    assert (await lakes.plan())["old"].goes


async def test_a_branch_that_was_made_again_since_the_plan_stays(lakes: Installation) -> None:
    old = await planned(lakes)
    await (await lakes.lake()).changes.delete_branch("old")
    gone = await lakes.sweep([old])
    await lakes.branch("old")
    lakes.days(11)

    assert gone == {"old": "there is no such branch"}
    assert await lakes.sweep([old]) == {"old": "used since it was planned"}


async def test_a_branch_that_is_pinned_since_the_plan_stays(lakes: Installation) -> None:
    old = await planned(lakes)
    lake = await lakes.lake()
    await lake.pulls.create(source="old", destination="main", title="t", description="", author="ann")

    assert await lakes.sweep([old]) == {"old": "open pull request"}


async def test_what_is_staged_since_the_plan_keeps_a_branch(lakes: Installation) -> None:
    old = await planned(lakes)
    await lakes.put("old", "b")

    assert await lakes.sweep([old]) == {"old": "uncommitted changes"}


async def test_a_collection_that_looks_at_a_branch_is_no_use_of_it(lakes: Installation) -> None:
    old = await planned(lakes)
    await (await lakes.lake()).versions.fencing.bump("old")

    assert await lakes.sweep([old]) == {"old": "deleted"}


async def test_staged_changes_go_where_the_rule_drops_them_and_nobody_staged_lately(lakes: Installation) -> None:
    await lakes.branch("old")
    await lakes.policy(old={"idle": "10d", "uncommitted": "drop"})
    lakes.days(11)
    await lakes.put("old", "b")
    lately = await lakes.why("old")
    lakes.days(11)
    plan = await lakes.plan()

    assert lately == "not idle for long enough"
    assert plan["old"].has_uncommitted
    assert await lakes.sweep([plan["old"]]) == {"old": "deleted"}


async def test_a_change_that_was_staged_since_the_plan_keeps_a_branch_whose_rule_drops_changes(
    lakes: Installation,
) -> None:
    old = await planned(lakes, uncommitted="drop")
    lake = await lakes.lake()
    await lake.versions.staging.delete("old", b"a")  # It has no date.

    assert await lakes.sweep([old]) == {"old": "used since it was planned"}


async def test_a_staged_change_at_a_held_path_keeps_a_branch_whose_rule_drops_changes(lakes: Installation) -> None:
    await lakes.branch("old")
    await lakes.put("old", "b/c")
    await lakes.policy(old={"idle": "10d", "uncommitted": "drop"})
    lakes.days(11)
    await HoldBook((await lakes.lake()).versions).add(NewHold(name="h", globs=("b/**",), why="law"))

    assert await lakes.why("old") == "legal hold"


async def test_another_policy_than_that_of_the_plan_deletes_nothing(lakes: Installation) -> None:
    old = await planned(lakes)
    await lakes.policy(old={"idle": "10d"})

    with pytest.raises(RulesMoved):
        await lakes.sweep([old])
    assert "old" in await lakes.plan()


async def test_a_policy_that_changes_while_a_hook_is_asked_keeps_the_branch(lakes: Installation) -> None:
    old = await planned(lakes)

    async def change() -> None:
        await lakes.policy(old={"idle": "9d"})

    lakes.hooks.act = change

    assert await lakes.sweep([old]) == {"old": "used since it was planned"}


async def test_a_hook_that_refuses_keeps_the_branch_and_no_other(lakes: Installation) -> None:
    plan = await idle(lakes, "one", "two")
    lakes.hooks.fail_at(1, HookRefused("not this one"))

    assert await lakes.sweep(plan) == {"one": "not this one", "two": "deleted"}


async def test_a_branch_that_stays_bears_no_mark(lakes: Installation) -> None:
    old = await planned(lakes)
    context = (await lakes.lake()).versions.context
    before = (await context.branches.fresh("old")).record
    await (await lakes.lake()).set_protection(["old"])

    await lakes.sweep([old])

    assert (await context.branches.fresh("old")).record == before
    assert [one async for one, _ in context.records(type(before), b"deleted/")] == []


async def test_too_many_branches_in_one_request_are_refused(lakes: Installation) -> None:
    with pytest.raises(TooManyBranches):
        await BranchSweep(await lakes.lake()).sweep(0, [BranchToGo(branch="b", state="")] * (SWEEP_MAX + 1))


async def test_pages_of_a_plan_have_every_branch_once(lakes: Installation) -> None:
    for number in range(7):
        await lakes.branch(f"b{number}")
    sweep, found, after = BranchSweep(await lakes.lake()), [], ""

    while True:
        page = await sweep.plan(prefix="b", after=after, limit=3)
        found += [one.branch for one in page.branches]
        if not (after := page.next_after):
            break

    assert found == [f"b{number}" for number in range(7)]


@pytest.mark.parametrize("how", ["deletes", "moves", "links"])
async def test_a_change_without_a_date_of_its_own_keeps_an_idle_branch_whose_rule_drops_changes(
    lakes: Installation, how: str
) -> None:
    """A deletion has no date, and what was moved or linked has that of its object."""
    await lakes.branch("old")
    await lakes.commit("old", "b")
    await lakes.policy(old={"idle": "10d", "uncommitted": "drop"})
    lakes.days(11)
    lake = await lakes.lake()

    match how:
        case "deletes":
            await lake.objects.delete("old", "b")
        case "moves":
            await lake.objects.move("old", "b", "old", "c")
        case _:
            linked = Entry(address="mem://elsewhere/x", size_bytes=1, checksum="x", modified_ms=1)
            await lake.versions.staging.put("old", b"c", linked)

    assert await lakes.why("old") == "not idle for long enough"


async def test_a_branch_that_was_merged_into_one_that_is_gone_stays(lakes: Installation) -> None:
    await lakes.branch("release")
    await lakes.branch("done", "release")
    await lakes.commit("done", "b")
    await (await lakes.lake()).changes.merge("done", "release", Note(message="m", committer="ann"))
    await lakes.policy(done={"idle": "10d", "merged": False, "into": ["release"]})
    lakes.days(11)
    assert await lakes.why("done") == "merged"

    await (await lakes.lake()).changes.delete_branch("release")

    assert await lakes.why("done") == "a branch that it may be merged into is not there"


async def test_a_branch_that_is_merged_while_a_sweep_runs_stays(lakes: Installation) -> None:
    for name in ("one", "two"):
        await lakes.branch(name)
        await lakes.commit(name, name)
    await lakes.policy(**{"*": {"idle": "10d", "merged": False}})
    lakes.days(11)
    plan = await lakes.plan()

    async def merge_two() -> None:
        lakes.hooks.act = None
        await (await lakes.lake()).changes.merge("two", "main", Note(message="m", committer="ann"))

    lakes.hooks.act = merge_two

    assert await lakes.sweep([plan["one"], plan["two"]]) == {"one": "deleted", "two": "merged"}


@pytest.mark.parametrize("error", [Unavailable, OutcomeUnknown, Corrupt])
async def test_an_error_at_one_branch_is_its_row_and_the_others_go(
    lakes: Installation, error: type[LakebedError]
) -> None:
    plan = await idle(lakes, "one", "two", "three")
    lakes.hooks.fail_at(2, error("the store is away"))

    swept = await lakes.sweep(plan)

    assert swept == {"one": "deleted", "two": "not known whether it went: the store is away", "three": "deleted"}


async def test_a_sweep_ends_where_the_store_is_away_and_says_which_branches_it_did_not_try(
    lakes: Installation,
) -> None:
    plan = await idle(lakes, "one", "two", "three")
    lakes.hooks.fail_at(2, StoreUnavailable("connection refused"))

    swept = await lakes.sweep(plan)

    assert swept == {
        "one": "deleted",
        "two": "not known whether it went: connection refused",
        "three": "not tried: the key-value store was away at a branch before it",
    }
    assert lakes.hooks.asked == 2
    lakes.hooks.act = None
    assert await lakes.sweep(plan[1:]) == {"two": "deleted", "three": "deleted"}


@pytest.mark.parametrize("opened", ["made", "reopened"])
async def test_a_pull_request_opened_during_a_sweep_keeps_its_branch(lakes: Installation, opened: str) -> None:
    for name in ("one", "two"):
        await lakes.branch(name)
    await lakes.commit("two", "work")
    await lakes.policy(**{"*": {"idle": "10d"}})
    lakes.days(11)
    plan = await lakes.plan()
    pulls = (await lakes.lake()).pulls
    texts = {"source": "two", "destination": "main", "title": "t", "description": "", "author": "ann"}
    if opened == "reopened":
        pull = await pulls.create(**texts)
        await pulls.change(pull, state="closed")

    async def open_one() -> None:
        lakes.hooks.act = None
        await (pulls.create(**texts) if opened == "made" else pulls.change(pull, state="open"))

    lakes.hooks.act = open_one  # While the hook of the first branch runs.

    assert await lakes.sweep([plan["one"], plan["two"]]) == {"one": "deleted", "two": "open pull request"}


async def test_a_sweep_that_is_repeated_says_that_its_branches_are_gone(lakes: Installation) -> None:
    await lakes.branch("old")
    await lakes.policy(old={"idle": "10d"})
    lakes.days(11)
    plan = await lakes.plan()

    assert await lakes.sweep([plan["old"]]) == {"old": "deleted"}
    assert await lakes.sweep([plan["old"]]) == {"old": "there is no such branch"}


# All of it, against the specification


@dataclass
class Known:
    """A branch as a story tells it."""

    moved_ms: int
    reaches: set[str]
    head: str
    staged: dict[str, int] = field(default_factory=dict)
    expires_ms: int = 0


POLICIES: list[dict[str, JSON]] = [
    {},
    {"*": {"idle": "3d"}},
    {"*": {"idle": "2d", "merged": True}, "b?": {"idle": "60h", "uncommitted": "drop"}},
    {"b*": {"idle": "1d", "merged": False, "into": ["main", "b1"]}, "b2": {"idle": "forever"}},
    {"b1": {"idle": "1d", "merged": True, "into": ["b2"]}, "*": {"idle": "4d", "uncommitted": "drop"}},
]


@pytest.mark.parametrize("seed", range(40))
async def test_what_goes_after_any_story_is_what_the_specification_says(lakes: Installation, seed: int) -> None:
    chance = random.Random(seed)
    lake = await lakes.lake()
    head = (await lake.versions.refs.get_branch("main")).commit_id
    known = {"main": Known(moved_ms=lakes.clock.ms, reaches={head}, head=head)}
    pulls: set[str] = set()
    for step in range(40):
        lakes.clock.ms += chance.randrange(8 * HOUR_MS)
        name = chance.choice(sorted(known))
        one, now_ms = known[name], lakes.clock.ms
        match chance.randrange(7):
            case 0 | 1:
                new, lasts_ms = f"b{step % 9}", chance.choice([0, 0, 2 * DAY_MS])
                if new not in known:
                    await lakes.branch(new, name, lasts_ms=lasts_ms)
                    expires_ms = now_ms + lasts_ms if lasts_ms else 0
                    known[new] = Known(now_ms, set(one.reaches), one.head, expires_ms=expires_ms)
            case 2:
                await lakes.put(name, f"p{step}")
                one.staged[f"p{step}"] = now_ms
            case 3:
                one.head = await lakes.commit(name, f"c{step}")
                one.reaches, one.moved_ms, one.staged = one.reaches | {one.head}, now_ms, {}
            case 4 | 5:
                source = known[chance.choice(sorted(known))]
                if not one.staged and source.head not in one.reaches and one.head not in source.reaches:
                    made = await lake.changes.merge(source.head, name, Note(message="", committer="ann"))
                    one.head, one.moved_ms = made.id, now_ms
                    one.reaches |= source.reaches | {made.id}
            case _:
                other = chance.choice(sorted(known))
                if other != name and chance.random() < 0.2:
                    await lake.pulls.create(source=other, destination=name, title="t", description="", author="ann")
                    pulls |= {name, other}
    rules = chance.choice(POLICIES)
    policy = check_policy(json.dumps({"branches": rules}).encode())
    if all(target in known for rule in policy.branches for target in rule.into):
        await lakes.policy(**rules)
        version = 1
    else:
        policy, version = check_policy(b'{"branches": {}}'), 0
    now_ms = lakes.clock.ms

    plan = await lakes.plan()
    goes = [one for one in plan.values() if one.goes]
    swept = await lakes.sweep(goes, version)

    def expected(name: str) -> tuple[bool, str]:
        one, rule = known[name], next((rule for rule in policy.branches if matches(rule.pattern, name)), None)
        targets = () if rule is None else rule.into or ("main",)
        pins = {
            Pin.DEFAULT: name == "main",
            Pin.TARGET: any(name in rule.into for rule in policy.branches),
            Pin.PULL: name in pulls,
        }
        drops = rule is not None and rule.drops_uncommitted
        facts = BranchFacts(
            name=name,
            active_ms=max(one.moved_ms, *one.staged.values(), 0) if drops and one.staged else one.moved_ms,
            expires_ms=one.expires_ms,
            is_merged=any(one.head in known[target].reaches for target in targets),
            has_uncommitted=bool(one.staged),
            pins=tuple(pin for pin, is_kept in pins.items() if is_kept),
        )
        verdict = judge_branch(rule, facts, now_ms)
        return verdict.goes, verdict.why

    assert {name: (one.goes, one.why) for name, one in plan.items()} == {name: expected(name) for name in known}
    assert swept == {one.branch: "deleted" for one in goes}
    for gone in swept:
        with pytest.raises(BranchNotFound):
            await lake.versions.refs.get_branch(gone)
        assert await lake.changes.undelete_branch(gone) == known[gone].head
