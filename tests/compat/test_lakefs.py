"""The `lakefs` package from PyPI, unchanged, goes through a whole story."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path

import lakefs
import pytest
from lakefs.client import Client
from lakefs.exceptions import (
    BadRequestException,
    ConflictException,
    ForbiddenException,
    NotFoundException,
    ObjectExistsException,
    ObjectNotFoundException,
    ServerException,
    TransactionException,
)

from .serving import Server

pytestmark = pytest.mark.filterwarnings("ignore")  # of the clients' own dependencies, which are not ours to mend


def test_the_server_says_what_it_is(client: Client) -> None:
    assert client.version
    assert client.storage_config.blockstore_type == "local"
    assert client.storage_config.pre_sign_support is False


def test_a_repository_is_made_found_and_deleted(client: Client, repository: lakefs.Repository) -> None:
    assert repository.properties.default_branch == "main"
    assert repository.id in [found.id for found in lakefs.repositories(client=client)]
    again = lakefs.Repository(repository.id, client=client)
    with pytest.raises(ConflictException, match="error creating repository: not unique"):
        again.create(storage_namespace="local://compat/elsewhere")
    again.create(storage_namespace="local://compat/elsewhere", exist_ok=True)

    repository.delete()

    assert repository.id not in [found.id for found in lakefs.repositories(client=client)]
    with pytest.raises(NotFoundException):
        repository.delete()


@pytest.mark.parametrize("data", ["héllo", b"\x00\xff", "", "x" * 100_000])
def test_text_and_bytes_come_back(repository: lakefs.Repository, data: str | bytes) -> None:
    written = (
        repository.branch("main")
        .object("a/b c+%2B//ü")
        .upload(data, mode="w" if isinstance(data, str) else "wb", content_type="text/x", metadata={"k": "v"})
    )

    stats = written.stat()

    expected = data.encode() if isinstance(data, str) else data
    assert (stats.content_type, stats.metadata, stats.size_bytes) == ("text/x", {"k": "v"}, len(expected))
    assert stats.checksum == hashlib.md5(expected).hexdigest()
    with written.reader("rb") as reader:
        assert reader.read() == expected


def test_what_an_erasure_took_answers_410_and_says_so_and_listings_still_have_it(
    repository: lakefs.Repository, gone: str
) -> None:
    branch = repository.branch("main")

    with pytest.raises(ServerException) as read, branch.object(gone).reader("rb") as reader:
        reader.read()
    assert read.value.status_code == 410
    assert read.value.body["message"].startswith("erased by run")

    assert branch.object(gone).stat().size_bytes == 6
    assert [found.path for found in branch.objects(prefix="a/")] == ["a/gone", "a/here"]
    with pytest.raises(ServerException) as copied:
        branch.object(gone).copy("main", "copy")
    assert copied.value.status_code == 410
    branch.object(gone).upload("new")
    assert branch.object(gone).reader("r").read() == "new"


def test_a_file_of_50_megabytes_streams_through(repository: lakefs.Repository, tmp_path: Path) -> None:
    source = tmp_path / "big"
    with source.open("wb") as out:
        for number in range(50):
            out.write(bytes([number]) * (1 << 20))
    target = repository.branch("main").object("big")

    with source.open("rb") as data, target.writer("wb") as writer:
        while chunk := data.read(1 << 20):
            writer.write(chunk)

    assert target.stat().size_bytes == 50 << 20
    with target.reader("rb") as reader:
        digest = hashlib.md5()
        while chunk := reader.read(8 << 20):
            digest.update(chunk)
    assert digest.hexdigest() == target.stat().checksum == hashlib.md5(source.read_bytes()).hexdigest()


def test_a_reader_seeks_and_stops_at_the_end(repository: lakefs.Repository) -> None:
    written = repository.branch("main").object("a").upload("line 1\nline 2\n")

    with written.reader("rb") as reader:
        assert reader.read(4) == b"line"
        reader.seek(7)
        assert reader.read() == b"line 2\n"
        assert reader.read(10) == b""
        reader.seek(-2, io.SEEK_END)
        assert reader.read(100) == b"2\n"
    with written.reader("r") as lines:
        assert list(lines) == ["line 1\n", "line 2\n"]


def test_exclusive_creation_finds_what_is_there(repository: lakefs.Repository) -> None:
    target = repository.branch("main").object("a")
    target.upload("1", mode="x")

    with pytest.raises(ObjectExistsException):
        target.upload("2", mode="x")

    assert target.reader("r").read() == "1"


def test_what_is_not_there_is_not_found(repository: lakefs.Repository) -> None:
    main = repository.branch("main")

    assert not main.object("a").exists()
    with pytest.raises(ObjectNotFoundException):
        main.object("a").stat()
    with pytest.raises(ObjectNotFoundException):
        main.object("a").reader("r").read()
    with pytest.raises(NotFoundException):
        repository.branch("nope").object("a").upload("1")
    with pytest.raises(NotFoundException):
        repository.branch("nope").get_commit()


def test_listings_fold_and_page(repository: lakefs.Repository) -> None:
    main = repository.branch("main")
    for number in range(25):
        main.object(f"d{number % 2}/{number:02d}").upload("x")

    assert [found.path for found in main.objects(delimiter="/")] == ["d0/", "d1/"]
    assert len(list(main.objects(prefix="d1/"))) == 12
    assert len(list(main.objects(max_amount=7))) == 7


def test_history_is_made_and_read(repository: lakefs.Repository) -> None:
    main = repository.branch("main")
    main.object("a").upload("1")
    assert [(change.type, change.path) for change in main.uncommitted()] == [("added", "a")]
    first = main.commit("first", metadata={"who": "esti"})
    assert list(main.uncommitted()) == []
    with pytest.raises(BadRequestException, match="commit: no changes"):
        main.commit("nothing")

    tag = repository.tag("v1").create(first)
    main.object("a").upload("2")
    main.object("b").upload("2")
    main.commit("second")

    assert [commit.message for commit in main.log()] == ["second", "first", "Repository created"]
    assert first.get_commit().metadata == {"who": "esti"}
    assert [(change.type, change.path) for change in tag.diff(main)] == [("changed", "a"), ("added", "b")]
    assert repository.ref("main~1").get_commit().id == first.id == tag.get_commit().id
    assert repository.ref(first.id[:10]).object("a").reader("r").read() == "1"
    assert repository.ref("v1").object("a").reader("r").read() == "1"
    assert [found.id for found in repository.tags()] == ["v1"]
    with pytest.raises(ConflictException):
        repository.tag("v1").create(first)
    tag.delete()
    with pytest.raises(NotFoundException):
        tag.get_commit()


def test_a_merge_of_commits_that_change_nothing_together_is_made(repository: lakefs.Repository) -> None:
    main = repository.branch("main")
    dev = repository.branch("dev").create(main)
    dev.object("new").upload("dev")
    dev.commit("new")
    dev.object("new").delete()
    dev.commit("not new")

    dev.merge_into(main, message="nothing")

    assert main.get_commit().message == "nothing"
    assert main.get_commit().parents[1] == dev.get_commit().id
    with pytest.raises(BadRequestException, match="update branch main: no changes"):
        dev.merge_into(main)


def test_branches_merge_conflict_and_settle(repository: lakefs.Repository) -> None:
    main = repository.branch("main")
    main.object("shared").upload("base")
    main.commit("base")
    dev = repository.branch("dev").create("main")
    with pytest.raises(ConflictException):
        repository.branch("dev").create("main")
    dev.object("new").upload("dev")
    dev.commit("on dev")

    merged = dev.merge_into(main)
    assert main.get_commit().id == merged
    with pytest.raises(BadRequestException, match="update branch main: no changes"):
        dev.merge_into(main)

    main.object("shared").upload("ours")
    main.commit("ours")
    dev.object("shared").upload("theirs")
    dev.commit("theirs")
    with pytest.raises(ConflictException, match="update branch: conflict found"):
        dev.merge_into(main)
    dev.merge_into(main, strategy="dest-wins")
    assert main.object("shared").reader("r").read() == "ours"

    dev.delete()
    assert [branch.id for branch in repository.branches()] == ["main"]
    with pytest.raises(ForbiddenException, match="cannot delete repository default branch"):
        main.delete()


def test_commits_are_reverted_picked_and_staging_is_reset(repository: lakefs.Repository) -> None:
    main = repository.branch("main")
    main.object("a").upload("1")
    added = main.commit("add a")

    assert main.revert(added).message.startswith("Revert")
    assert not main.object("a").exists()
    assert main.cherry_pick(added).message == "add a"
    assert main.object("a").exists()

    main.object("b").upload("1")
    main.object("c/1").upload("1")
    main.reset_changes("common_prefix", "c/")
    assert [change.path for change in main.uncommitted()] == ["b"]
    main.reset_changes("object", "b")
    main.object("a").delete()
    main.delete_objects(["never", "a"])
    assert [(change.type, change.path) for change in main.uncommitted()] == [("removed", "a")]
    main.reset_changes()
    assert list(main.uncommitted()) == []


def test_an_import_by_the_client_is_one_commit(repository: lakefs.Repository, server: Server) -> None:
    raw = server.folder / "objects" / "raw" / repository.id
    raw.mkdir(parents=True)
    (raw / "a.csv").write_text("1,2")
    importer = repository.branch("main").import_data("import raw", metadata={"job": "7"})
    status = importer.prefix(f"local://raw/{repository.id}/", destination="raw/").run()

    assert status.completed
    assert status.ingested_objects == 1
    assert status.commit.message == "import raw"
    assert repository.branch("main").object("raw/a.csv").reader(mode="r").read() == "1,2"


def test_objects_are_copied_between_branches(repository: lakefs.Repository) -> None:
    main = repository.branch("main")
    source = main.object("a").upload("1", metadata={"k": "v"})
    repository.branch("dev").create("main")

    copied = source.copy("dev", "b")

    assert copied.reader("r").read() == "1"
    assert copied.stat().metadata == {"k": "v"}


class TestTransactions:
    def test_one_that_ends_well_is_one_merge(self, repository: lakefs.Repository) -> None:
        main = repository.branch("main")

        with main.transact(commit_message="all at once", tag="done") as transaction:
            transaction.object("a").upload("1")
            transaction.object("b").upload("2")
            assert not main.object("a").exists()

        assert main.object("a").exists()
        assert repository.tag("done").get_commit().id == main.get_commit().id
        assert [branch.id for branch in repository.branches()] == ["main"]

    def test_one_that_fails_leaves_nothing(self, repository: lakefs.Repository) -> None:
        main = repository.branch("main")

        def fail() -> None:
            with main.transact() as transaction:
                transaction.object("a").upload("1")
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            fail()

        assert not main.object("a").exists()
        assert [branch.id for branch in repository.branches()] == ["main"]

    def test_one_without_changes_says_so(self, repository: lakefs.Repository) -> None:
        with pytest.raises(TransactionException, match="no changes"), repository.branch("main").transact():
            pass
