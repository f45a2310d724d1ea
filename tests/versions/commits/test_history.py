"""Writing, committing, merging and undoing, one actor at a time. What several do at once: tests/sim."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from lakebed.base import EMPTY_METARANGE, CommitId, Conflict, Entry, Etags, InvalidName, MetarangeId, StagingToken
from lakebed.kv import Store
from lakebed.objectstore import ObjectStore
from lakebed.versions import (
    AddressNotAllowed,
    BadRef,
    BranchExists,
    BranchNotFound,
    Commit,
    CommitNotFound,
    Condition,
    Difference,
    MergeConflict,
    NameTaken,
    NoChanges,
    PathExists,
    PathNotFound,
    PreconditionFailed,
    RefNotFound,
    TagExists,
    TagNotFound,
    UncommittedChanges,
    Versions,
    decode_record,
    encode_record,
)
from lakebed.versions.commits import committer
from lakebed.versions.commits.committer import Note
from lakebed.versions.staging.layers import Layers
from tests.clocks import TurnableClock
from tests.versions.conftest import body


async def write(repo: Versions, branch: str, *paths: str, data: bytes = b"data") -> None:
    for path in paths:
        await repo.staging.upload(branch, path.encode(), body(repo.objectstore, data))


async def commit(repo: Versions, branch: str = "main", message: str = "m") -> CommitId:
    return (await repo.commits.commit(branch, Note(message=message, committer="me"))).id


async def paths(repo: Versions, ref: str, prefix: str = "", delimiter: str = "") -> list[str]:
    listing = await repo.staging.list(ref, prefix=prefix.encode(), delimiter=delimiter.encode())
    return [key.decode() for key, _ in listing.items]


async def test_a_repository_starts_with_one_commit_and_a_default_branch(repo: Versions) -> None:
    commits, more = await repo.history.log("main")

    assert [(c.message, c.generation, c.parents, c.metarange_id, c.committer) for c in commits] == [
        ("Repository created", 1, (), "", "")
    ]
    assert not more


async def test_a_write_is_read_back_staged_and_then_committed(repo: Versions) -> None:
    await write(repo, "main", "a/1")
    staged = await repo.staging.get("main", b"a/1")

    commit_id = await commit(repo)

    assert await repo.staging.get("main", b"a/1") == staged
    assert await repo.staging.get(commit_id, b"a/1") == staged
    with pytest.raises(PathNotFound):
        await repo.staging.get("main~1", b"a/1")


async def test_what_is_staged_is_not_in_the_committed_view(repo: Versions) -> None:
    await write(repo, "main", "a")

    assert await paths(repo, "main@") == []
    assert await paths(repo, "main") == ["a"]
    assert await paths(repo, "main$") == ["a"]


async def test_a_delete_hides_a_committed_path_and_goes_into_the_next_commit(repo: Versions) -> None:
    await write(repo, "main", "a", "b")
    first = await commit(repo)

    await repo.staging.delete("main", b"a")
    assert await paths(repo, "main") == ["b"]
    second = await commit(repo)

    assert await paths(repo, first) == ["a", "b"]
    assert await paths(repo, second) == ["b"]


async def test_a_commit_without_changes_is_refused_and_leaves_nothing_sealed(repo: Versions) -> None:
    await write(repo, "main", "a")
    await commit(repo)

    for _ in range(3):
        with pytest.raises(NoChanges, match="commit: no changes"):
            await commit(repo)

    [(_, record)] = await repo.context.branches.every()
    assert record.sealed == ()


async def test_an_empty_commit_can_be_asked_for(repo: Versions) -> None:
    made = await repo.commits.commit("main", Note(message="marker", committer="me"), allow_empty=True)

    assert (await repo.refs.get_branch("main")).commit_id == made.id


async def test_deleting_what_is_not_there_stages_nothing(repo: Versions) -> None:
    await repo.staging.delete("main", b"nope")

    assert (await repo.history.diff_branch("main")) == ([], False)


async def test_a_listing_folds_by_delimiter_and_resumes_after_a_prefix(repo: Versions) -> None:
    await write(repo, "main", "a/1", "a/2", "b", "c/d/1", "c/e")
    await commit(repo)
    await write(repo, "main", "a/3", "d/1")

    assert await paths(repo, "main", delimiter="/") == ["a/", "b", "c/", "d/"]
    assert await paths(repo, "main", prefix="c/", delimiter="/") == ["c/d/", "c/e"]
    found, after = [], b""
    while True:
        page = await repo.staging.list("main", delimiter=b"/", after=after, limit=1)
        found += [key for key, _ in page.items]
        if not page.has_more:
            break
        after = found[-1]
    assert found == [b"a/", b"b", b"c/", b"d/"]


async def test_a_key_that_begins_with_the_delimiter_lies_in_a_folder_without_a_name(repo: Versions) -> None:
    await write(repo, "main", "/a", "/b", "c")

    assert await paths(repo, "main", delimiter="/") == ["/", "c"]


@pytest.mark.parametrize("what", ["listing", "changes"])
async def test_a_delimiter_that_begins_inside_the_prefix_folds_and_skips_nothing(repo: Versions, what: str) -> None:
    await write(repo, "main", "a/", "a/x", "b")
    found: list[bytes] = []
    more = True

    while more:
        after = found[-1] if found else b""
        if what == "listing":
            listing = await repo.staging.list("main", prefix=b"a", delimiter=b"a/", after=after, limit=1)
            found, more = found + [key for key, _ in listing.items], listing.has_more
        else:
            page, more = await repo.history.diff_branch("main", prefix=b"a", delimiter=b"a/", after=after, limit=1)
            found += [one.key for one in page]

    assert found == [b"a/", b"a/x"]


async def test_every_page_size_gives_the_same_listing(repo: Versions) -> None:
    names = [f"p{n % 7}/{n:03d}" for n in range(60)]
    await write(repo, "main", *names[:40])
    await commit(repo)
    await write(repo, "main", *names[40:])
    await repo.staging.delete_many("main", [name.encode() for name in names[::3]])
    expected = sorted(set(names) - set(names[::3]))

    for limit in (1, 2, 7, 1000):
        found: list[str] = []
        more = True
        while more:
            page = await repo.staging.list("main", after=found[-1].encode() if found else b"", limit=limit)
            found += [key.decode() for key, _ in page.items]
            more = page.has_more
        assert found == expected, limit


async def test_ref_expressions_walk_parents(repo: Versions) -> None:
    await write(repo, "main", "a")
    one = await commit(repo)
    await repo.refs.create_branch("dev", "main")
    await write(repo, "dev", "b")
    two = await commit(repo, "dev")
    await write(repo, "main", "c")
    three = await commit(repo)
    merged = (await repo.merges.merge("dev", "main", Note(committer="me"))).id
    await repo.refs.create_tag("v1", "main")

    async def at(ref: str) -> str:
        return (await repo.refs.resolve(ref)).commit_id

    assert await at("main") == await at("main@") == await at("v1") == await at(merged[:10]) == merged
    assert await at("main^1") == await at("main~") == await at("v1~1") == three
    assert await at("v1^2") == two
    assert await at("main~2") == await at("main^2~1") == one
    assert await at("v1^0") == merged


@pytest.mark.parametrize("ref", ["nope", "main~9", "v^", "0" * 64, "nope@"])
async def test_a_ref_that_names_nothing_is_not_found(repo: Versions, ref: str) -> None:
    with pytest.raises(RefNotFound):
        await repo.refs.resolve(ref)


@pytest.mark.parametrize("ref", ["", "~1", "main@@", "main@~1", "main^2", "main$~", f"main~{10**9}"])
async def test_a_malformed_ref_is_refused(repo: Versions, ref: str) -> None:
    with pytest.raises(BadRef):
        await repo.refs.resolve(ref)


@pytest.mark.parametrize("name", ["", "-a", "a/b", "a b", "ä", "x" * 257])
async def test_a_bad_branch_name_is_refused(repo: Versions, name: str) -> None:
    with pytest.raises(InvalidName):
        await repo.refs.create_branch(name, "main")


async def test_a_name_is_taken_once(repo: Versions) -> None:
    await repo.refs.create_tag("t", "main")

    with pytest.raises(BranchExists):
        await repo.refs.create_branch("main", "main")
    with pytest.raises(TagExists):
        await repo.refs.create_tag("t", "main")


async def test_branches_and_tags_are_listed_in_pages(repo: Versions) -> None:
    for name in ("b1", "b2", "c"):
        await repo.refs.create_branch(name, "main")
        await repo.refs.create_tag(f"t{name}", "main")

    first, more = await repo.refs.list_branches(limit=2)
    rest, end = await repo.refs.list_branches(after="b2", limit=2)
    tags, more_tags = await repo.refs.list_tags(prefix="tb", limit=2)
    page, cut = await repo.refs.list_tags(limit=1)

    assert [b.name for b in first] == ["b1", "b2"]
    assert [b.name for b in rest] == ["c", "main"]
    assert (more, end) == (True, False)
    assert [t.name for t in tags] == ["tb1", "tb2"]
    assert [t.name for t in page] == ["tb1"]
    assert (more_tags, cut) == (False, True)


async def test_a_deleted_branch_is_gone_with_what_was_staged(repo: Versions, store: Store) -> None:
    await repo.refs.create_branch("dev", "main")
    await write(repo, "dev", "a")
    [token] = [r.staging_token for name, r in await repo.context.branches.every() if name == "dev"]

    await repo.refs.delete_branch("dev")
    with pytest.raises(BranchNotFound):
        await repo.refs.get_branch("dev")
    with pytest.raises(BranchNotFound):
        await write(repo, "dev", "b")
    await repo.refs.create_branch("dev", "main")
    assert await paths(repo, "dev") == []

    assert (await repo.cleanup.clean()).cells == 1
    assert (await store.scan(f"r1/{token}".encode(), b"", 10)).keys == []


async def test_a_deleted_tag_is_gone(repo: Versions) -> None:
    await repo.refs.create_tag("t", "main")
    await repo.refs.delete_tag("t")

    with pytest.raises(TagNotFound):
        await repo.refs.delete_tag("t")
    with pytest.raises(TagNotFound):
        await repo.refs.get_tag("t")


async def test_a_merge_brings_the_changes_and_keeps_what_is_staged(repo: Versions) -> None:
    await write(repo, "main", "base")
    await commit(repo)
    await repo.refs.create_branch("dev", "main")
    await write(repo, "dev", "new")
    await repo.staging.delete("dev", b"base")
    source = await commit(repo, "dev")
    await write(repo, "main", "staged")

    merged = await repo.merges.merge("dev", "main", Note(committer="me"))

    assert merged.parents[1] == source
    assert merged.metadata == {".lakefs.merge.strategy": "default"}
    assert await paths(repo, "main") == ["new", "staged"]
    assert await paths(repo, "main@") == ["new"]
    with pytest.raises(NoChanges, match="update branch main: no changes"):
        await repo.merges.merge("dev", "main", Note(committer="me"))


async def test_a_merge_of_commits_that_change_nothing_together_gives_the_branch_these_commits(repo: Versions) -> None:
    await repo.refs.create_branch("dev", "main")
    await write(repo, "dev", "new")
    await commit(repo, "dev")
    await repo.staging.delete("dev", b"new")
    source = await commit(repo, "dev")

    with pytest.raises(NoChanges, match="update branch main: no changes"):
        await repo.merges.merge("dev", "main", Note(committer="me"), squash=True)
    merged = await repo.merges.merge("dev", "main", Note(committer="me"))

    assert merged.parents[1] == source
    assert await paths(repo, "main") == []
    with pytest.raises(NoChanges, match="update branch main: no changes"):
        await repo.merges.merge("dev", "main", Note(committer="me"))


@pytest.mark.parametrize(("strategy", "winner"), [("source-wins", b"theirs"), ("dest-wins", b"ours")])
async def test_a_conflict_needs_a_strategy(repo: Versions, strategy: str, winner: bytes) -> None:
    await repo.refs.create_branch("dev", "main")
    await write(repo, "dev", "a", data=b"theirs")
    await commit(repo, "dev")
    await write(repo, "main", "a", data=b"ours")
    await commit(repo)

    with pytest.raises(MergeConflict) as refused:
        await repo.merges.merge("dev", "main", Note(committer="me"))
    assert refused.value.facts["conflicts"] == [b"a"]
    await repo.merges.merge("dev", "main", Note(committer="me"), strategy=strategy)  # type: ignore[arg-type]  # parametrised

    entry = await repo.staging.get("main", b"a")
    assert await repo.objectstore.get(entry.address) == winner


async def test_a_revert_undoes_one_commit_and_a_cherry_pick_redoes_it(repo: Versions) -> None:
    await write(repo, "main", "a")
    await commit(repo)
    await write(repo, "main", "b")
    bad = await commit(repo, message="adds b")
    await write(repo, "main", "c")
    await commit(repo)

    undone = await repo.merges.revert("main", bad, Note(committer="me"))
    assert await paths(repo, "main") == ["a", "c"]
    picked = await repo.merges.cherry_pick("main", bad, Note(committer="me"))

    assert await paths(repo, "main") == ["a", "b", "c"]
    assert (undone.message, picked.message) == (f"Revert {bad}", "adds b")


async def test_a_merge_commit_is_reverted_against_a_named_parent(repo: Versions) -> None:
    await repo.refs.create_branch("dev", "main")
    await write(repo, "dev", "a")
    await commit(repo, "dev")
    merged = await repo.merges.merge("dev", "main", Note(committer="me"))

    with pytest.raises(Conflict, match="must specify 1-based parent number for"):
        await repo.merges.revert("main", merged.id, Note(committer="me"))
    with pytest.raises(BadRef):
        await repo.merges.revert("main", merged.id, Note(committer="me"), parent_number=3)
    await repo.merges.revert("main", merged.id, Note(committer="me"), parent_number=1)

    assert await paths(repo, "main") == []


async def test_a_reset_gives_up_all_a_prefix_or_one_object(repo: Versions) -> None:
    await write(repo, "main", "a/1", data=b"old")
    await commit(repo)
    old = await repo.staging.get("main", b"a/1")
    await write(repo, "main", "a/1", "a/2", "b")

    await repo.resets.reset_object("main", b"a/1")
    assert await repo.staging.get("main", b"a/1") == old
    assert await repo.resets.reset_prefix("main", b"a/") == 1
    assert await paths(repo, "main") == ["a/1", "b"]
    await repo.resets.reset("main")

    assert await paths(repo, "main") == ["a/1"]


async def test_a_hard_reset_moves_the_head_and_minds_what_is_staged(repo: Versions) -> None:
    await write(repo, "main", "a")
    first = await commit(repo)
    await write(repo, "main", "b")
    await commit(repo)
    await write(repo, "main", "c")

    with pytest.raises(UncommittedChanges):
        await repo.resets.hard_reset("main", first)
    await repo.resets.hard_reset("main", first, force=True)

    assert (await repo.refs.get_branch("main")).commit_id == first
    assert await paths(repo, "main") == ["a"]


async def test_a_hard_reset_without_force_moves_the_head_and_leaves_nothing_sealed(repo: Versions) -> None:
    await write(repo, "main", "a")
    first = await commit(repo)
    await write(repo, "main", "b")
    await commit(repo)

    await repo.resets.hard_reset("main", first)

    [(_, branch)] = await repo.context.branches.every()
    assert (branch.commit_id, branch.sealed) == (first, ())
    assert await paths(repo, "main") == ["a"]


@pytest.mark.parametrize("is_in_head", [False, True])
async def test_what_an_object_reset_put_back_as_the_head_has_it_is_no_change(repo: Versions, is_in_head: bool) -> None:
    await write(repo, "main", "b")
    first = await commit(repo)
    await write(repo, "main", *(["a", "c"] if is_in_head else ["c"]))
    await commit(repo)
    await write(repo, "main", "a", "c")
    await repo.commits.seal("main")  # A committer that died: what it has is not removed but covered.
    for key in (b"a", b"c"):
        await repo.resets.reset_object("main", key)

    await repo.resets.hard_reset("main", first)

    assert (await repo.refs.get_branch("main")).commit_id == first
    assert await paths(repo, "main") == ["b"]


@pytest.mark.parametrize("change", ["written", "deleted", "written to what is put back"])
async def test_a_change_behind_what_an_object_reset_put_back_is_minded(repo: Versions, change: str) -> None:
    await write(repo, "main", "z")
    first = await commit(repo)
    await write(repo, "main", "a", "b")
    head = await commit(repo)
    await write(repo, "main", "a", "b")
    await repo.commits.seal("main")
    for key in (b"a", b"b"):
        await repo.resets.reset_object("main", key)
    if change == "deleted":
        await repo.staging.delete("main", b"z")
    else:
        await write(repo, "main", "y" if change == "written" else "b", data=b"otherwise")
    shown = [await repo.staging.get("main", path.encode()) for path in await paths(repo, "main")]

    with pytest.raises(UncommittedChanges):
        await repo.resets.hard_reset("main", first)

    assert (await repo.refs.get_branch("main")).commit_id == head
    assert [await repo.staging.get("main", path.encode()) for path in await paths(repo, "main")] == shown


async def test_differences_are_told_apart(repo: Versions) -> None:
    await write(repo, "main", "changed", "gone", "same/1")
    await commit(repo)
    await repo.refs.create_branch("dev", "main")
    await write(repo, "dev", "changed", data=b"otherwise")
    await write(repo, "dev", "new/1", "new/2")
    await repo.staging.delete("dev", b"gone")

    staged, _ = await repo.history.diff_branch("dev")
    await commit(repo, "dev")
    between, _ = await repo.history.diff_refs("main", "dev")
    folded, _ = await repo.history.diff_refs("main", "dev", delimiter=b"/")
    page, more = await repo.history.diff_refs("main", "dev", after=b"changed", limit=1)

    expected = [("changed", b"changed"), ("removed", b"gone"), ("added", b"new/1"), ("added", b"new/2")]
    assert [(d.kind, d.key) for d in staged] == expected
    assert [(d.kind, d.key) for d in between] == expected
    assert [(d.kind, d.key) for d in folded][-1] == ("prefix_changed", b"new/")
    assert ([d.key for d in page], more) == ([b"gone"], True)


@pytest.mark.parametrize("delimiter", [b"", b"/"])
async def test_every_page_size_gives_the_same_uncommitted_changes(repo: Versions, delimiter: bytes) -> None:
    names = [f"p{n % 5}/{n:03d}" for n in range(40)]
    await write(repo, "main", *names[:30])
    await commit(repo)
    await repo.staging.delete_many("main", [name.encode() for name in names[::2]])
    await write(repo, "main", *names[30:], "q", "p2", data=b"otherwise")

    whole, _ = await repo.history.diff_branch("main", delimiter=delimiter)
    for limit in (1, 2, 7, 1000):
        found: list[Difference] = []
        more = True
        while more:
            after = found[-1].key if found else b""
            page, more = await repo.history.diff_branch("main", after=after, delimiter=delimiter, limit=limit)
            found += page
        assert found == whole, limit
    assert len(whole) == (7 if delimiter else 15 + 10 + 2)
    assert [one.key for one in whole if one.kind == "removed"] == (
        [] if delimiter else sorted(n.encode() for n in names[:30:2])
    )


async def test_a_folded_list_of_changes_does_not_read_all_of_a_folder(
    repo: Versions, monkeypatch: pytest.MonkeyPatch
) -> None:
    await write(repo, "main", *[f"a/{n:03d}" for n in range(200)], "b/1", "c")
    spans: list[int] = []
    read = Layers.staged_span

    async def note(layers: Layers, tokens: Any, start: bytes, limit: int) -> Any:
        spans.append(limit)
        return await read(layers, tokens, start, limit)

    monkeypatch.setattr(Layers, "staged_span", note)
    page, _ = await repo.history.diff_branch("main", delimiter=b"/", limit=4)

    assert [(one.kind, one.key) for one in page] == [
        ("prefix_changed", b"a/"),
        ("prefix_changed", b"b/"),
        ("added", b"c"),
    ]
    assert spans == [5, 5]


async def test_a_diff_of_a_folder_ends_before_the_first_path_behind_it(repo: Versions) -> None:
    await write(repo, "main", "a/1", "a0", "b")
    await commit(repo)
    await repo.refs.create_branch("dev", "main")
    await write(repo, "dev", "a/1", "a0", "b", data=b"otherwise")
    await commit(repo, "dev")

    found, _ = await repo.history.diff_refs("main", "dev", prefix=b"a/")

    assert [d.key for d in found] == [b"a/1"]


async def test_a_three_dot_diff_shows_what_a_merge_would_bring(repo: Versions) -> None:
    await repo.refs.create_branch("dev", "main")
    await write(repo, "dev", "both", "theirs")
    await commit(repo, "dev")
    await write(repo, "main", "both", data=b"otherwise")
    await write(repo, "main", "ours")
    await commit(repo)

    three, _ = await repo.history.diff_refs("main", "dev")
    two, _ = await repo.history.diff_refs("main", "dev", three_dot=False)

    assert [(d.kind, d.key) for d in three] == [("conflict", b"both"), ("added", b"theirs")]
    assert [(d.kind, d.key) for d in two] == [("changed", b"both"), ("removed", b"ours"), ("added", b"theirs")]


async def test_the_log_pages_and_filters_by_path(repo: Versions) -> None:
    ids = []
    for name in ("a/1", "b", "a/2"):
        await write(repo, "main", name)
        ids.append(await commit(repo, message=name))

    page, more = await repo.history.log("main", limit=2)
    rest, end = await repo.history.log("main", after=page[-1].id, limit=5)
    by_object, _ = await repo.history.log("main", objects=[b"b"])
    by_prefix, _ = await repo.history.log("main", prefixes=[b"a/"])
    until, _ = await repo.history.log("main", stop_at=ids[1])
    theirs, _ = await repo.history.log("main", prefixes=[b"a/"], committer=by_object[0].committer)
    others, _ = await repo.history.log("main", committer="another")

    assert [c.id for c in page] == ids[:0:-1]
    assert ([c.message for c in rest], more, end) == (["a/1", "Repository created"], page[-1].id, "")
    assert [c.message for c in by_object] == ["b"]
    assert [c.message for c in by_prefix] == ["a/2", "a/1"]
    assert ([c.message for c in theirs], others) == (["a/2", "a/1"], [])
    assert [c.message for c in until] == ["a/2", "b"]


async def test_the_merge_base_is_the_youngest_common_ancestor(repo: Versions) -> None:
    await write(repo, "main", "a")
    fork = await commit(repo)
    await repo.refs.create_branch("dev", "main")
    await write(repo, "dev", "b")
    await commit(repo, "dev")
    await write(repo, "main", "c")
    await commit(repo)

    assert (await repo.history.merge_base("main", "dev")).id == fork


async def test_an_upload_can_be_conditional(repo: Versions) -> None:
    await write(repo, "main", "a")
    etag = (await repo.staging.get("main", b"a")).checksum

    with pytest.raises(PathExists):
        await repo.staging.upload("main", b"a", body(repo.objectstore), condition=Condition(if_none_match=True))
    with pytest.raises(PreconditionFailed):
        await repo.staging.upload("main", b"a", body(repo.objectstore), condition=Condition(if_match=Etags.of("other")))
    await repo.staging.upload(
        "main", b"a", body(repo.objectstore, b"two"), condition=Condition(if_match=Etags.of(etag))
    )
    await repo.staging.upload("main", b"fresh", body(repo.objectstore), condition=Condition(if_none_match=True))

    assert (await repo.staging.get("main", b"a")).size_bytes == 3


async def test_only_addresses_outside_the_namespace_can_be_staged(repo: Versions) -> None:
    outside = Entry(address="s3://elsewhere/x", size_bytes=1, checksum="c", modified_ms=1)
    await repo.staging.put("main", b"x", outside)

    assert await repo.staging.get("main", b"x") == outside
    for address in ("data/1q306knvs002d/00000042", "mem://tests/data/x", "x"):
        with pytest.raises(AddressNotAllowed):
            await repo.staging.put("main", b"y", Entry(address=address, size_bytes=1, checksum="c", modified_ms=1))


async def test_a_copy_of_a_staged_object_shares_its_bytes_and_any_other_does_not(repo: Versions) -> None:
    await write(repo, "main", "staged")
    shallow = await repo.copies.copy("main", b"staged", "main", b"copied")
    await commit(repo)
    deep = await repo.copies.copy("main", b"staged", "main", b"again")

    assert shallow.address == (await repo.staging.get("main", b"staged")).address
    assert deep.address != shallow.address
    assert await repo.objectstore.get(deep.address) == b"data"
    with pytest.raises(PathNotFound):
        await repo.copies.copy("main", b"nope", "main", b"x")


async def test_a_failed_body_stages_nothing(repo: Versions) -> None:
    async def fails(address: str) -> Entry:
        raise OSError("connection lost")

    with pytest.raises(OSError, match="connection lost"):
        await repo.staging.upload("main", b"a", fails)

    assert await paths(repo, "main") == []


async def test_an_unpublished_commit_cannot_be_named(repo: Versions, objectstore: ObjectStore) -> None:
    seen = await repo.context.branches.fresh("main")
    note = Note(message="m", committer="me", metadata={})
    orphan = await repo.commits.new_commit("main", EMPTY_METARANGE, (seen.record.commit_id,), note)
    orphan_id = await repo.context.commits.write(orphan)

    with pytest.raises(CommitNotFound):
        await repo.history.get_commit(orphan_id)
    with pytest.raises(RefNotFound):
        await repo.refs.create_branch("b", orphan_id)
    with pytest.raises(RefNotFound):
        await repo.refs.create_tag("t", orphan_id[:12])


async def test_a_published_commit_whose_note_was_lost_is_still_found(
    repo: Versions, another: Callable[[], Versions], store: Store
) -> None:
    await write(repo, "main", "a")
    commit_id = await commit(repo)
    key = f"commit/{commit_id}".encode()
    held = await store.get(b"r1", key)
    assert held is not None
    unnoted = replace(decode_record(Commit, held.value), published=False)
    await store.set(b"r1", key, encode_record(unnoted))

    other = another()
    assert (await other.history.get_commit(commit_id)).id == commit_id


async def test_cleaning_removes_committed_cells_and_old_claims(repo: Versions, clock: TurnableClock) -> None:
    await write(repo, "main", "a", "b")
    await commit(repo)

    first = await repo.cleanup.clean()
    clock.ms += repo.context.options.claim_age_ms_max
    second = await repo.cleanup.clean()

    assert (first.cells, first.claims) == (2, 0)
    assert (second.cells, second.claims) == (0, 1)
    assert await paths(repo, "main") == ["a", "b"]


async def test_a_hard_reset_takes_the_same_content_uploaded_again_for_no_change(repo: Versions) -> None:
    await write(repo, "main", "a")
    first = await commit(repo)
    await write(repo, "main", "b")
    await commit(repo)
    await write(repo, "main", "a")

    await repo.resets.hard_reset("main", first)

    assert await paths(repo, "main") == ["a"]


async def test_a_branch_and_a_tag_cannot_have_one_name(repo: Versions) -> None:
    await repo.refs.create_tag("v1", "main")

    with pytest.raises(NameTaken, match="tag ID v1: conflict found"):
        await repo.refs.create_branch("v1", "main")
    with pytest.raises(NameTaken, match="branch name main: conflict found"):
        await repo.refs.create_tag("main", "main")

    await repo.refs.delete_tag("v1")
    await repo.refs.create_branch("v1", "main")


@pytest.mark.parametrize("rows", [1, 3, 7])
async def test_a_commit_in_parts_makes_the_same_tree(
    repo: Versions, another: Callable[[], Versions], monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    """Cells lie in two tokens: a commit that died left the first one sealed. Another process may lay the last parts."""
    asked: list[bytes] = []

    async def lay_aside(
        base: MetarangeId, tokens: Sequence[StagingToken], done: MetarangeId, start: bytes, is_bulk: bool
    ) -> MetarangeId | None:
        asked.append(start)
        return await another().commits.lay(base, tokens, done, start) if is_bulk and len(asked) > 1 else None

    for branch in ("whole", "parts", "aside"):
        await repo.refs.create_branch(branch, "main")
        for number in range(0, 40, 2):
            await repo.staging.put(branch, b"%03d" % number, entry_of(f"a{number}"))
        await repo.commits.commit(branch, Note(message="first", committer="c"))
        for number in range(0, 40, 3):
            await repo.staging.put(branch, b"%03d" % number, entry_of(f"b{number}"))
        await repo.commits.seal(branch)
        for number in range(0, 40, 5):
            await repo.staging.put(branch, b"%03d" % number, entry_of(f"c{number}"))
        await repo.staging.delete_many(branch, [b"%03d" % number for number in range(0, 40, 7)])

    whole = await repo.commits.commit("whole", Note(message="second", committer="c"))
    monkeypatch.setattr(committer, "PART_ROWS", rows)
    monkeypatch.setattr(repo.context, "options", dataclasses.replace(repo.context.options, scan_page=rows))
    parts = await repo.commits.commit("parts", Note(message="second", committer="c"))

    monkeypatch.setattr(repo.context, "lay_aside", lay_aside)
    aside = await repo.commits.commit("aside", Note(message="second", committer="c"))

    assert parts.metarange_id == whole.metarange_id == aside.metarange_id
    assert [start > b"" for start in asked] == ([False, True] if rows < 7 else [False])


def entry_of(name: str) -> Entry:
    return Entry(address=f"s3://elsewhere/{name}", size_bytes=1, checksum=name, modified_ms=0)
