"""Files up and down: whole, checked, or not at all."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path
from typing import Any

import httpx
import pytest

from lakebed.base import Conflict, Corrupt, Invalid, NotFound, Unavailable
from tests.client.support import Breaking, Script, client_of, failed

DATA = bytes(range(256)) * 40
ETAG = f'"{hashlib.md5(DATA).hexdigest()}"'


def whole(data: bytes = DATA, etag: str = ETAG) -> httpx.Response:
    return httpx.Response(200, stream=httpx.ByteStream(data), headers={"ETag": etag})


def broken_after(count: int) -> httpx.Response:
    headers = {"ETag": ETAG, "Content-Length": str(len(DATA))}
    return httpx.Response(200, stream=Breaking(DATA[:count]), headers=headers)


def rest(request: httpx.Request) -> httpx.Response:
    start = int(request.headers["Range"].removeprefix("bytes=").rstrip("-"))
    return httpx.Response(206, stream=httpx.ByteStream(DATA[start:]), headers={"ETag": ETAG})


def stored(data: bytes, *, checksum: str | None = None) -> httpx.Response:
    stats = {"path": "a", "path_type": "object", "physical_address": "x", "mtime": 0, "size_bytes": len(data)}
    return httpx.Response(201, json={**stats, "checksum": checksum or hashlib.md5(data).hexdigest()})


def test_a_download_arrives_whole(tmp_path: Path) -> None:
    moved: list[int] = []

    size = client_of(Script(whole())).files.download("lake", "main", "a", tmp_path / "a", progress=moved.append)

    assert (tmp_path / "a").read_bytes() == DATA
    assert size == sum(moved) == len(DATA)
    assert [file.name for file in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize("name", ["漢" * 80 + ".txt", "x" * 255])
def test_a_download_takes_any_name_that_a_disk_takes(tmp_path: Path, name: str) -> None:
    client_of(Script(whole())).files.download("lake", "main", name, tmp_path / name)

    assert (tmp_path / name).read_bytes() == DATA


def test_a_broken_download_is_taken_up_where_it_broke(tmp_path: Path) -> None:
    script = Script(broken_after(1000), rest)

    client_of(script).files.download("lake", "main", "a", tmp_path / "a")

    assert (tmp_path / "a").read_bytes() == DATA
    assert script.requests[1].headers["Range"] == "bytes=1000-"
    assert script.requests[1].headers["If-Range"] == ETAG


def test_a_download_starts_again_when_the_object_changed_meanwhile(tmp_path: Path) -> None:
    other = b"other"
    script = Script(broken_after(1000), whole(other, f'"{hashlib.md5(other).hexdigest()}"'))
    moved: list[int] = []

    client_of(script).files.download("lake", "main", "a", tmp_path / "a", progress=moved.append)

    assert (tmp_path / "a").read_bytes() == other
    assert sum(moved) == len(other)


def test_a_stream_that_cannot_start_again_fails_instead() -> None:
    script = Script(broken_after(1000), whole(b"other", '"x"'))

    with pytest.raises(Unavailable, match="could not be taken up"):
        client_of(script).files.download_to("lake", "main", "a", io.BytesIO())


@pytest.mark.parametrize(
    "answer",
    [
        whole(DATA[:-1] + b"\x00"),
        whole(DATA[:-1]),
        httpx.Response(200, stream=httpx.ByteStream(DATA), headers={"ETag": ETAG, "Content-Length": "3"}),
    ],
)
def test_damaged_bytes_never_become_the_file(tmp_path: Path, answer: httpx.Response) -> None:
    (tmp_path / "a").write_text("old")

    with pytest.raises(Corrupt):
        client_of(Script(answer)).files.download("lake", "main", "a", tmp_path / "a")

    assert (tmp_path / "a").read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize(("answer", "error"), [(failed(404, "not found"), NotFound), (broken_after(7), Unavailable)])
def test_a_failed_download_leaves_nothing_behind(
    tmp_path: Path, answer: httpx.Response, error: type[Exception]
) -> None:
    def again(request: httpx.Request) -> httpx.Response:
        return httpx.Response(206, stream=Breaking(), headers={"ETag": ETAG})

    with pytest.raises(error):
        client_of(Script(answer, again)).files.download("lake", "main", "a", tmp_path / "a")

    assert list(tmp_path.iterdir()) == []


def test_a_checksum_that_is_no_md5_is_not_compared(tmp_path: Path) -> None:
    client_of(Script(whole(etag='"5f2a-3"'))).files.download("lake", "main", "a", tmp_path / "a")

    assert (tmp_path / "a").read_bytes() == DATA


def test_an_upload_is_compared_with_what_the_server_stored(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(DATA)

    with pytest.raises(Corrupt, match="checksum"):
        client_of(Script(stored(DATA, checksum="0" * 32))).files.upload("lake", "main", "a", tmp_path / "a")


def test_an_upload_announces_its_length_and_carries_its_metadata(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(DATA)
    script = Script(stored(DATA))

    client_of(script).files.upload("lake", "main", "a", tmp_path / "a", content_type="text/csv", metadata={"k": "v"})

    headers = script.requests[0].headers
    assert headers["Content-Length"] == str(len(DATA))
    assert "Transfer-Encoding" not in headers
    assert (headers["Content-Type"], headers["x-lakefs-meta-k"]) == ("text/csv", "v")


@pytest.mark.parametrize("name", ["data owner", "a\nb", "ü"])
def test_metadata_whose_name_no_header_can_have_is_refused_before_anything_is_sent(tmp_path: Path, name: str) -> None:
    (tmp_path / "a").write_bytes(DATA)
    script = Script(stored(DATA))

    with pytest.raises(Invalid, match="no HTTP header"):
        client_of(script).files.upload("lake", "main", "a", tmp_path / "a", metadata={name: "v"})

    assert script.requests == []


@pytest.mark.parametrize("value", ["x\ny", "x\0", " x", "x ", "\udcff", 1])
@pytest.mark.parametrize("presigned", [False, True])
def test_metadata_whose_value_no_header_can_have_is_refused_before_anything_is_sent(
    tmp_path: Path, value: Any, presigned: bool
) -> None:
    (tmp_path / "a").write_bytes(DATA)
    script = Script()

    with pytest.raises(Invalid, match="metadata k: "):
        client_of(script).files.upload("lake", "main", "a", tmp_path / "a", metadata={"k": value}, presigned=presigned)
    with pytest.raises(Invalid, match="metadata k: "):
        client_of(script).objects.write("lake", "main", "a", DATA, metadata={"k": value})
    with pytest.raises(Invalid, match="content type"):
        client_of(script).files.upload("lake", "main", "a", tmp_path / "a", content_type="ü")

    assert script.requests == []


def test_an_empty_file_can_be_uploaded(tmp_path: Path) -> None:
    (tmp_path / "a").touch()

    assert client_of(Script(stored(b""))).files.upload("lake", "main", "a", tmp_path / "a").size_bytes == 0


def test_a_file_that_grows_while_it_is_sent_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"x" * 10)

    def grow(_: int) -> None:
        with file.open("ab") as more:
            more.write(b"y")

    with pytest.raises(Conflict, match="changed while"):
        client_of(Script(stored(b""))).files.upload("lake", "main", "a", file, progress=grow)


def test_a_pipe_is_sent_in_chunks_of_unknown_number() -> None:
    script = Script(stored(DATA))

    client_of(script).files.upload_stream("lake", "main", "a", io.BytesIO(DATA))

    assert script.requests[0].headers["Transfer-Encoding"] == "chunked"
    assert script.requests[0].content == DATA


def test_a_part_of_an_object_is_asked_for_by_range() -> None:
    script = Script(httpx.Response(206, content=DATA[2:5]))

    assert client_of(script).objects.read("lake", "main", "a", start=2, end=5) == DATA[2:5]
    assert script.requests[0].headers["Range"] == "bytes=2-4"


def test_a_part_that_comes_as_the_whole_is_refused() -> None:
    with pytest.raises(Corrupt, match="asked for a part"):
        client_of(Script(whole())).objects.read("lake", "main", "a", start=2, end=5)
