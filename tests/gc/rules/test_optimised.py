"""The optimised run of docs/design/0001-uncommitted-gc.md as a plain function, beside the clean run, over histories."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hypothesis import event, example, given, settings
from hypothesis import strategies as st

from lakebed.base import CommitId, MetarangeId, RangeId, format_address, slice_name
from lakebed.gc.rules import (
    NOTHING_SAVED,
    CommitFacts,
    History,
    Namespace,
    Saved,
    Trees,
    clean_run,
    new_addresses,
    optimised_run,
)

PATHS = "ab"


@dataclass
class Lake:
    """One repository while nobody races. `objects` is what lies in the store; `bare` is the same lake's store as it
    would be if no run of uncommitted data had ever deleted anything.
    """

    objects: set[str] = field(default_factory=set)
    bare: set[str] = field(default_factory=set)
    staged: dict[str, str] = field(default_factory=dict)
    head: dict[str, str] = field(default_factory=dict)
    commits: list[set[str]] = field(default_factory=list)
    swept: set[int] = field(default_factory=set)
    issued: list[str] = field(default_factory=list)
    expired: list[str] = field(default_factory=list)
    closed: set[str] = field(default_factory=set)
    open_slice: int = 1
    count: int = 0
    base: Saved = NOTHING_SAVED
    is_exact: bool = True
    """Whether an optimised run has to find all garbage: nothing was swept, nothing was put too late."""

    def address(self) -> str:
        self.count += 1
        return format_address(self.open_slice, self.count)

    def store(self, address: str) -> None:
        self.objects.add(address)
        self.bare.add(address)

    def act(self, what: str, path: str, number: int) -> None:
        match what:
            case "put":
                self.staged[path] = self.address()
                self.store(self.staged[path])
            case "delete" | "reset":
                self.staged = {} if what == "reset" else {p: a for p, a in self.staged.items() if p != path}
            case "commit":
                self.head |= self.staged
                self.staged = {}
                self.commits.append(set(self.head.values()))
            case "close":
                # A later slice may have the smaller or the greater name.
                self.closed.add(slice_name(self.open_slice))
                self.open_slice += 1 if number % 2 else 1000
            case "issue":
                self.issued.append(self.address())
            case "fill" if self.issued:
                self.store(self.issued[number % len(self.issued)])
            case "fill late" if self.expired:
                self.store(self.expired[number % len(self.expired)])
                self.is_exact = False
            case "link" if self.objects.intersection(self.issued):
                self.staged[path] = self.issued.pop(self.issued.index(min(self.objects.intersection(self.issued))))
            case "expire" if self.issued:
                self.expired.append(self.issued.pop(number % len(self.issued)))
            case "sweep" if self.commits:
                self.sweep(number % len(self.commits), lets_off=bool(number % 3))

    def sweep(self, commit: int, *, lets_off: bool) -> None:
        """A collection of committed data gives one commit up, unless it is the head, and may leave objects behind."""
        if commit == len(self.commits) - 1:
            return
        self.swept.add(commit)
        self.is_exact = False
        if not lets_off:
            gone = self.commits[commit] - self.committed() - set(self.staged.values())
            self.objects -= gone
            self.bare -= gone

    def committed(self) -> set[str]:
        return set().union(*(names for number, names in enumerate(self.commits) if number not in self.swept))

    def uncommitted(self) -> set[str]:
        return {*self.staged.values(), *self.issued}

    def namespace(self) -> Namespace:
        return Namespace(uri="mem://ns", closed=frozenset(self.closed))

    def clean(self, objects: set[str]) -> frozenset[str]:
        """What a clean run takes of these objects."""
        return clean_run(
            objects, committed=self.committed(), uncommitted=self.uncommitted(), namespace=self.namespace()
        ).garbage

    def optimised(self) -> tuple[frozenset[str], Saved]:
        ids = [CommitId(str(number)) for number in range(len(self.commits))]
        new = [names for number, names in enumerate(self.commits) if ids[number] not in self.base.commits]
        swept = {id_ for number, id_ in enumerate(ids) if number in self.swept}
        history = History(
            commits={
                id_: CommitFacts(id=id_, created_ms=0, metarange_id=MetarangeId(id_), swept=id_ in swept) for id_ in ids
            },
            heads={},
        )
        trees = Trees(
            ranges={MetarangeId(id_): [RangeId(id_)] for id_ in ids},
            addresses={RangeId(id_): names for id_, names in zip(ids, self.commits, strict=True)},
        )
        committed = new_addresses(history, trees, self.base)
        assert committed <= set().union(*new)
        found, saved = optimised_run(
            self.base,
            self.objects,
            uploads=self.issued,
            commits=ids,
            committed=committed,
            uncommitted=self.uncommitted(),
            namespace=self.namespace(),
        )
        return found.garbage, saved

    def collect(self, *, failing: int) -> None:
        """An optimised run, of whose deletes one in `failing` fails (0: none)."""
        allowed = self.clean(self.objects)
        garbage, saved = self.optimised()
        assert garbage & self.objects <= allowed, "an optimised run deletes what a clean run keeps"
        failed = {key for place, key in enumerate(sorted(garbage)) if failing and place % failing == 0}
        self.objects -= garbage - failed
        self.base = replace(saved, kept=saved.kept | failed)


WHAT = ["put"] * 5 + ["delete", "reset"] + ["commit"] * 2 + ["close"] * 4 + ["issue", "fill", "link", "expire"] * 2
steps = st.lists(
    st.tuples(
        st.sampled_from([*WHAT, *["collect"] * 4, "sweep", "fill late", "collect badly"]),
        st.sampled_from(PATHS),
        st.integers(0, 5),
    ),
    max_size=40,
)


@settings(deadline=None, max_examples=400)
@given(history=steps)
def test_what_optimised_runs_leave_the_next_clean_run_finds(history: list[tuple[str, str, int]]) -> None:
    lake = Lake()

    for what, path, number in history:
        if what.startswith("collect"):
            lake.collect(failing=2 if what == "collect badly" else 0)
        else:
            lake.act(what, path, number)

    assert lake.objects - lake.clean(lake.objects) == lake.bare - lake.clean(lake.bare)


LATE_BYTES = [(what, "a", 0) for what in ("issue", "close", "collect", "fill", "collect", "link", "collect", "delete")]
"""Bytes come to an address after its slice was listed."""


@settings(deadline=None, max_examples=400)
@given(history=steps)
@example(history=LATE_BYTES)
def test_where_nothing_was_swept_or_put_too_late_an_optimised_run_finds_all(
    history: list[tuple[str, str, int]],
) -> None:
    lake = Lake()
    for what, path, number in history:
        if what.startswith("collect"):
            lake.collect(failing=0)
        elif what not in {"sweep", "fill late"}:
            lake.act(what, path, number)

    lake.collect(failing=0)

    event(f"{len(lake.bare - lake.objects)} collected")
    assert lake.is_exact
    assert lake.clean(lake.objects) == frozenset()


def own(number: int, slice_: int = 7) -> str:
    return format_address(slice_, number)


NAMESPACE = Namespace(uri="mem://ns", closed=frozenset({slice_name(7)}))


def test_without_a_base_it_is_the_clean_run() -> None:
    listing = [own(1), own(2), own(3), own(4, slice_=8), "data/stray"]

    found, _ = optimised_run(
        NOTHING_SAVED,
        listing,
        uploads=(),
        commits=(),
        committed=[own(1)],
        uncommitted=[own(2)],
        namespace=NAMESPACE,
        young_since_ms=5,
        uploaded_ms=dict.fromkeys(listing, 0),
    )

    assert found == clean_run(
        listing,
        committed=[own(1)],
        uncommitted=[own(2)],
        namespace=NAMESPACE,
        young_since_ms=5,
        uploaded_ms=dict.fromkeys(listing, 0),
    )


def test_what_was_too_young_is_looked_at_again() -> None:
    def run(base: Saved, since_ms: int, listing: list[str]) -> tuple[frozenset[str], Saved]:
        found, saved = optimised_run(
            base,
            listing,
            uploads=(),
            commits=(),
            committed=(),
            uncommitted=(),
            namespace=NAMESPACE,
            young_since_ms=since_ms,
            uploaded_ms={own(1): 10},
        )
        return found.garbage, saved

    first, saved = run(NOTHING_SAVED, 10, [own(1)])
    again, _ = run(saved, 11, [])

    assert not first
    assert again == {own(1)}


def test_a_slice_that_is_not_closed_any_more_is_left_alone() -> None:
    base = Saved(kept=frozenset({own(1)}), slices=frozenset({slice_name(7)}))

    found, saved = optimised_run(
        base,
        [],
        uploads=(),
        commits=(),
        committed=(),
        uncommitted=(),
        namespace=Namespace(uri="mem://ns", closed=frozenset()),
    )

    assert not found.garbage
    assert saved.kept == {own(1)}


def test_commits_of_the_base_keep_what_they_named_though_they_were_swept() -> None:
    base = Saved(
        slices=frozenset({slice_name(7)}), commits=frozenset({CommitId("c")}), committed=frozenset({own(1, slice_=8)})
    )
    namespace = Namespace(uri="mem://ns", closed=frozenset({slice_name(7), slice_name(8)}))

    found, _ = optimised_run(
        base, [own(1, slice_=8)], uploads=(), commits=[CommitId("c")], committed=(), uncommitted=(), namespace=namespace
    )

    assert not found.garbage
