"""The Python library, over a folder and over a server."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest

import lakebed


def test_what_is_written_is_read_back_and_committed(repository: lakebed.Repository) -> None:
    main = repository.branch()
    main.write("logs/a.txt", b"hello", content_type="text/plain", metadata={"who": "me"})

    assert [change.path for change in main.uncommitted()] == ["logs/a.txt"]
    commit = main.commit("first", metadata={"job": "7"})
    assert repository.ref(commit.id).read("logs/a.txt") == b"hello"
    assert main.read("logs/a.txt", start=1, end=3) == b"el"
    assert main.stat("logs/a.txt").metadata == {"who": "me"}
    assert [each.message for each in main.log(limit=1)] == ["first"]
    assert [row.path for row in main.list("logs/")] == ["logs/a.txt"]
    assert not main.exists("logs/b.txt")


def test_branches_and_tags_come_by_name(repository: lakebed.Repository) -> None:
    main = repository.branch()
    main.write("a", b"1")
    main.commit("one")
    repository.create_branch("dev")
    repository.create_tag("v1", main)
    with pytest.raises(lakebed.AlreadyExists):
        repository.create_branch("dev")

    assert repository.create_branch("dev", exist_ok=True).read("a") == b"1"
    assert [each.name for each in repository.branches()] == ["dev", "main"]
    assert [each.name for each in repository.tags()] == ["v1"]
    repository.branch("dev").drop()
    repository.delete_tag("v1")
    assert [each.name for each in (*repository.branches(), *repository.tags())] == ["main"]


def test_a_repository_that_is_there_is_returned_when_that_is_fine(lake: lakebed.Lake) -> None:
    first = lake.create_repository("twice")

    assert lake.create_repository("twice", exist_ok=True).storage == first.storage
    with pytest.raises(lakebed.AlreadyExists, match=r"^repository twice exists already: exist_ok=True takes it$"):
        lake.create_repository("twice")
    with pytest.raises(lakebed.NotFound):
        lake.repository("never")


def test_a_transaction_is_one_commit_and_leaves_no_branch(repository: lakebed.Repository) -> None:
    main = repository.branch()
    with main.transaction("load", metadata={"run": "1"}) as tx:
        tx.write("a", b"1")
        tx.write("b", b"2")
        assert not main.exists("a")

    assert main.read("a") + main.read("b") == b"12"
    assert next(main.log()).id == tx.result
    assert next(main.log()).message == "load"
    assert [each.name for each in repository.branches()] == ["main"]


def test_a_transaction_that_fails_changes_nothing(repository: lakebed.Repository) -> None:
    main = repository.branch()
    before = main.commit_record().id

    def fail() -> None:
        with main.transaction("load") as tx:
            tx.write("a", b"1")
            raise RuntimeError("the job failed")

    with pytest.raises(RuntimeError, match="the job failed"):
        fail()
    assert not main.exists("a")
    assert main.commit_record().id == before


def test_a_transaction_that_writes_nothing_makes_no_commit(repository: lakebed.Repository) -> None:
    main = repository.branch()
    before = main.commit_record().id
    with main.transaction("nothing") as tx:
        pass

    assert (main.commit_record().id, tx.result) == (before, "")


def test_a_transaction_brings_what_its_block_committed_merged_or_imported_by_itself(
    repository: lakebed.Repository,
) -> None:
    main = repository.branch()
    dev = repository.create_branch("dev")
    dev.write("of dev", b"1")
    dev.commit("on dev")
    with main.transaction("all of it") as tx:
        tx.write("own", b"1")
        tx.commit("by itself")
        tx.merge("dev")

    assert [row.path for row in main.list()] == ["of dev", "own"]
    assert next(main.log()).message == "all of it"


def test_transactions_that_meet_are_done_again_as_often_as_the_caller_says(repository: lakebed.Repository) -> None:
    main = repository.branch()
    main.write("count", b"0")
    main.commit("zero")
    seen: list[int] = []

    def add_one(tx: lakebed.Transaction) -> int:
        number = int(tx.read("count")) + 1
        seen.append(number)
        if len(seen) == 1:
            main.write("count", b"10")
            main.commit("somebody else")
        tx.write("count", str(number).encode())
        return number

    assert main.transact(add_one, "add one") == 11
    assert main.read("count") == b"11"
    seen.clear()
    with pytest.raises(lakebed.Conflict):
        main.transact(add_one, "add one", attempts=1)


def test_many_threads_add_a_line_and_none_is_lost(repository: lakebed.Repository) -> None:
    main = repository.branch()
    main.write("lines", b"")
    main.commit("none")

    def add_line(number: int, tx: lakebed.Transaction) -> None:
        tx.write("lines", tx.read("lines") + f"{number}\n".encode())

    with ThreadPoolExecutor(4) as pool:
        done = [pool.submit(main.transact, partial(add_line, number), "add", attempts=50) for number in range(8)]
        for each in done:
            each.result()

    assert sorted(main.read("lines").split()) == [b"%d" % number for number in range(8)]


def test_files_are_read_and_written_like_those_of_python(repository: lakebed.Repository) -> None:
    main = repository.branch()
    with main.open("t.txt", "w") as text:
        text.write("zwölf\nlines\n")
    with main.open("t.txt", "r") as text:
        assert list(text) == ["zwölf\n", "lines\n"]
    with main.open("t.txt") as file:
        file.seek(-6, os.SEEK_END)
        assert file.read() == b"lines\n"
    with pytest.raises(lakebed.AlreadyExists), main.open("t.txt", "xb") as file:
        file.write(b"again")
    with pytest.raises(lakebed.Invalid, match="not appended"):
        main.open("t.txt", "ab")  # type: ignore[call-overload]  # what it refuses
    with pytest.raises(lakebed.Invalid, match="only a branch can be written"):
        repository.ref("main~0").open("t.txt", "wb")  # type: ignore[call-overload]  # what it refuses


def test_a_file_whose_block_fails_is_not_written(repository: lakebed.Repository) -> None:
    main = repository.branch()

    def fail_text() -> None:
        with main.open("half", "w") as file:
            file.write("half")
            raise RuntimeError("the job failed")

    def fail_bytes() -> None:
        with main.open("half", "wb") as file:
            file.write(b"half")
            raise RuntimeError("the job failed")

    for fail in (fail_text, fail_bytes):
        with pytest.raises(RuntimeError):
            fail()
    main.open("never closed", "wb").write(b"half")
    gc.collect()

    assert list(main.list()) == []


def test_a_large_object_passes_in_pieces_and_comes_back_whole(repository: lakebed.Repository, tmp_path: Path) -> None:
    main = repository.branch()
    data = os.urandom(1 << 20) * 20
    with main.open("large", "wb") as file:
        for start in range(0, len(data), 3_000_000):
            file.write(data[start : start + 3_000_000])
    main.download("large", tmp_path / "large")

    assert (tmp_path / "large").read_bytes() == data
    with main.open("large") as file:
        file.seek(7_000_000)
        assert file.read(10) == data[7_000_000:7_000_010]


def test_a_file_that_is_replaced_while_it_is_read_is_no_mixture(repository: lakebed.Repository) -> None:
    main = repository.branch()
    main.write("a", b"x" * 3_000_000)
    with main.open("a") as file:
        assert file.read(10) == b"x" * 10
        main.write("a", b"y" * 3_000_000)
        file.seek(2_500_000)
        with pytest.raises(lakebed.Unavailable, match="changed"):
            file.read(10)


def test_text_in_place_of_bytes_is_an_error_that_says_so(repository: lakebed.Repository) -> None:
    with pytest.raises(TypeError, match="data must be bytes, not str"):
        repository.branch().write("a", "text")  # type: ignore[arg-type]  # what it refuses


def test_deleting_merging_and_reverting(repository: lakebed.Repository) -> None:
    main = repository.branch()
    main.write("a", b"1")
    main.write("b", b"1")
    main.commit("one")
    dev = repository.create_branch("dev")
    dev.delete("a", "b")
    dev.copy("a", "c", source_ref="main")
    dev.commit("two")
    assert {change.path for change in main.diff(dev)} == {"a", "b", "c"}
    merged = main.merge(dev, message="merged")

    assert main.commit_record().id == merged
    assert [row.path for row in main.list()] == ["c"]
    main.revert(merged, parent_number=1)
    assert [row.path for row in main.list()] == ["a", "b"]


def test_a_lake_in_a_folder_is_the_same_for_two_at_once_and_after_it_was_closed(tmp_path: Path) -> None:
    with (
        lakebed.open_local(tmp_path / "lake", committer="ann", environment={}) as one,
        lakebed.open_local(tmp_path / "lake", environment={}) as two,
    ):
        main = one.create_repository("shared").branch()
        main.write("a", b"1")
        assert two.repository("shared").branch().read("a") == b"1"
        main.commit("by ann")
    with lakebed.open_local(tmp_path / "lake", environment={}) as again:
        assert next(again.repository("shared").branch().log()).committer == "ann"
    with pytest.raises(lakebed.Invalid, match="closed"):
        again.repository("shared")


def test_a_folder_that_holds_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")

    with pytest.raises(lakebed.Invalid):
        lakebed.open_local(tmp_path, environment={})


def test_an_upload_whose_file_shrinks_is_an_error_of_the_caller(repository: lakebed.Repository, tmp_path: Path) -> None:
    """The error of a body comes back as itself, and nothing is written."""
    source = tmp_path / "growing"
    source.write_bytes(b"1234")
    main = repository.branch()

    def grow(_: int) -> None:
        with source.open("ab") as file:
            file.write(b"more")

    with pytest.raises(lakebed.Conflict, match="changed while it was being sent"):
        main._client.files.upload(repository.name, "main", "a", source, progress=grow)
    assert not main.exists("a")


def test_many_uploads_whose_bodies_come_from_the_same_lake_end(repository: lakebed.Repository) -> None:
    main = repository.branch()
    bodies = {f"a{number}": bytes([number]) * (3 << 20) for number in range(16)}
    for name, body in bodies.items():
        main.write(name, body)

    def copy(name: str) -> None:
        with main.open(name) as source:
            main._client.files.upload_stream(repository.name, "main", f"copy/{name}", source)

    with ThreadPoolExecutor(len(bodies)) as pool:
        list(pool.map(copy, bodies))

    assert [main.read(f"copy/{name}") == body for name, body in bodies.items()] == [True] * len(bodies)


def test_a_lake_that_is_closed_answers_every_thread_that_uses_it(tmp_path: Path) -> None:
    """With what was asked for, or with an error of ours."""
    lake = lakebed.open_local(tmp_path / "lake", environment={})
    main = lake.create_repository("shared").branch()
    working = [threading.Event() for _ in range(8)]
    errors: list[BaseException] = []

    def use(number: int) -> None:
        try:
            while True:
                main.write(str(number), b"body" * 50_000)
                main.read(str(number))
                working[number].set()
        except BaseException as error:  # noqa: BLE001  # it is what is asked for
            errors.append(error)
        finally:
            working[number].set()

    threads = [threading.Thread(target=use, args=(number,)) for number in range(len(working))]
    for thread in threads:
        thread.start()
    for event in working:
        event.wait()
    lake.close()
    for thread in threads:
        thread.join()

    assert len(errors) == len(threads)
    assert [error for error in errors if not isinstance(error, lakebed.LakebedError)] == []


_FORK = """
import os, sys, lakebed
lake = lakebed.open_local(sys.argv[1], environment={})
lake.create_repository("shared")
if child := os.fork():
    sys.exit(os.waitpid(child, 0)[1] or lake.close())
try:
    lake.repository("shared")
except lakebed.Invalid as error:
    lake.close()
    with lakebed.open_local(sys.argv[1], environment={}) as own:
        print(error, own.repository("shared").name, flush=True)
os._exit(0)
"""


def test_a_lake_in_a_folder_says_that_it_stays_behind_when_its_process_is_forked(tmp_path: Path) -> None:
    """A child has no thread but the one that forked: an answer would never come."""
    done = subprocess.run(
        [sys.executable, "-c", _FORK, str(tmp_path / "lake")], check=True, capture_output=True, text=True
    )

    assert "open it anew in this process" in done.stdout
    assert done.stdout.endswith("shared\n")


def test_a_folder_of_the_object_store_is_imported_without_a_copy(tmp_path: Path) -> None:
    with lakebed.open_local(tmp_path / "lake", environment={}) as lake:
        raw = tmp_path / "lake" / "objects" / "raw" / "logs"
        raw.mkdir(parents=True)
        (raw / "a.csv").write_text("1,2")
        main = lake.create_repository("importer").branch()
        commit = main.import_folder("local://raw/logs", "logs", "import logs")

        assert main.commit_record().id == commit.id
        assert main.read("logs/a.csv") == b"1,2"
        with pytest.raises(lakebed.Conflict, match="no object lies below it"):
            main.import_folder("local://none/x", "y", "nothing is there")


def test_half_a_key_pair_is_refused_before_anything_is_sent() -> None:
    with pytest.raises(lakebed.Invalid, match="secret_access_key is missing"):
        lakebed.connect("http://127.0.0.1:1", access_key_id="key", secret_access_key="")


def test_a_branch_is_made_to_last_for_a_while(repository: lakebed.Repository) -> None:
    repository.create_branch("short", ttl="7d")

    repository.create_branch("timed", ttl=timedelta(days=1))

    with pytest.raises(lakebed.LakebedError, match="is not a duration"):
        repository.create_branch("other", ttl="soon")
    with pytest.raises(TypeError, match="ttl is 7"):
        repository.create_branch("other", ttl=7)  # type: ignore[arg-type]  # what is tested
    for wrong in (timedelta(minutes=90), timedelta(0), timedelta(hours=-1)):
        with pytest.raises(ValueError, match="of whole hours"):
            repository.create_branch("other", ttl=wrong)
    assert [branch.name for branch in repository.branches()] == ["main", "short", "timed"]
