"""XML: what is written can be read, and what no S3 request has is refused."""

from __future__ import annotations

import threading
from typing import Any
from xml.parsers import expat

import pytest

from lakebed.server.s3.documents import (
    DELETE_ELEMENTS_MAX,
    DEPTH_MAX,
    ELEMENTS_MAX,
    LINES_OF_ELEMENT_MAX,
    LOOP_BYTES_MAX,
    PIECE_BYTES,
    Element,
    MalformedXml,
    document,
    parse,
    read_document,
)

ENTITIES = b'<!DOCTYPE Delete [<!ENTITY a "x">]><Delete>&a;</Delete>'


def test_texts_survive_the_way_through_a_document() -> None:
    text = "a<b>&\"c'\r\n\tü 𝄞"

    found = parse(document(Element("Delete").text("Key", text).add(Element("Object").text("Key", "x"))), "Delete")

    assert found.value("Key") == text
    assert [node.value("Key") for node in found.all("Object")] == ["x"]
    assert found.value("Quiet") is None


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<Delete>",
        b"<Other/>",
        b"<Delete/><Delete/>",
        b"\xff\xfe",
        b"{}",
        ENTITIES,
        b"<Delete>" + b"<a>" * DEPTH_MAX + b"</a>" * DEPTH_MAX + b"</Delete>",
        b"<Delete>" + b"<a/>" * DELETE_ELEMENTS_MAX + b"</Delete>",
        b"<Delete>" + b"\n" * (DELETE_ELEMENTS_MAX * LINES_OF_ELEMENT_MAX + 1) + b"</Delete>",
    ],
    ids=["empty", "open", "other", "two", "binary", "json", "entities", "deep", "long", "lines"],
)
def test_a_body_that_no_request_has_is_refused(body: bytes) -> None:
    with pytest.raises(MalformedXml):
        parse(body, "Delete")


def test_an_element_that_may_stand_once_is_not_read_twice() -> None:
    with pytest.raises(MalformedXml):
        parse(b"<Delete><Quiet>a</Quiet><Quiet>b</Quiet></Delete>", "Delete").value("Quiet")


# Bodies that are made to be slow


SIZE = 8 << 20


def filled(unit: bytes, size_bytes: int = SIZE) -> bytes:
    return b"<Delete>" + unit * ((size_bytes - 17) // len(unit)) + b"</Delete>"


@pytest.mark.parametrize(
    "body",
    [
        filled(b"aaa<b/>"),
        filled(b"a"),
        filled(b" " * 180 + b"\n<a/>"),
        filled(b"<a/>"),
        filled(b"<a b=''/>"),
        filled(b"<a xmlns:b='b'/>"),
        filled(b"<a>" + b"a" * PIECE_BYTES * 2 + b"</a>"),
        b"<Delete " + b" ".join([b"a%d=''" % number for number in range(5_000)]) + b"/>",
        b"<Delete><!--" + b"<" * SIZE,
        b"<Delete><a b='" + b"a" * SIZE,
        b"<Delete><?" + b"<" * SIZE,
    ],
    ids=[
        "beside",
        "text",
        "lines",
        "elements",
        "attributes",
        "namespaces",
        "texts",
        "tag",
        "comment",
        "open",
        "instruction",
    ],
)
def test_a_body_that_costs_more_than_its_size_is_refused_before_its_end(
    body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    fed = 0

    class Parser:
        """Counts how much the real parser gets: the cost of a piece is linear in it."""

        def __init__(self, *args: Any, **options: Any) -> None:
            self.__dict__["parser"] = expat_parser(*args, **options)

        def __getattr__(self, name: str) -> object:
            return getattr(self.__dict__["parser"], name)

        def __setattr__(self, name: str, value: object) -> None:
            setattr(self.__dict__["parser"], name, value)

        def Parse(self, piece: bytes, is_last: bool) -> None:  # noqa: N802  # expat's own signature
            nonlocal fed
            fed += len(piece)
            self.__dict__["parser"].Parse(piece, is_last)

    expat_parser = expat.ParserCreate
    monkeypatch.setattr(expat, "ParserCreate", Parser)

    with pytest.raises(MalformedXml):
        parse(body, "Delete")

    assert fed < SIZE // 2


def test_white_space_comments_and_many_pieces_of_text_are_read_in_full() -> None:
    key = b"<Key>" + b"a<!-- b -->" * 1_000 + b"<![CDATA[<]]>&amp;</Key>"

    found = parse(b"<Delete>\r\n" + (b"  <Object>\n" + key + b"\n</Object>\n") * 100 + b"</Delete>\n", "Delete")

    assert [node.value("Key") for node in found.all("Object")] == ["a" * 1_000 + "<&"] * 100


def test_the_largest_completion_and_the_largest_deletion_are_read() -> None:
    part = "<Part>\n<PartNumber>1</PartNumber>\n<ETag>e</ETag>\n<ChecksumCRC32>c</ChecksumCRC32>\n</Part>\n"
    completion = f"<CompleteMultipartUpload>\n{part * 10_000}</CompleteMultipartUpload>".encode()
    names = ("Key", "VersionId", "ETag", "LastModifiedTime", "Size")
    item = "<Object>\r\n" + "".join([f"<{name}>x</{name}>\r\n" for name in names]) + "</Object>\r\n"

    assert len(parse(completion, "CompleteMultipartUpload").children) == 10_000 <= ELEMENTS_MAX
    assert len(parse(f"<Delete>{item * 1_000}</Delete>".encode(), "Delete").children) == 1_000


def test_a_body_in_another_encoding_is_refused() -> None:
    with pytest.raises(MalformedXml):
        parse("<Delete/>".encode("utf-16"), "Delete")


async def test_a_large_body_is_read_in_a_thread_and_a_small_one_is_not() -> None:
    body, loop = b"<Delete>" + b"<abcdefghi/>" * 7_000 + b"</Delete>", threading.get_ident()

    large = await read_document(body, "Delete", lambda _: threading.get_ident())
    small = await read_document(b"<Delete/>", "Delete", lambda _: threading.get_ident())

    assert len(body) > LOOP_BYTES_MAX
    assert large != loop
    assert small == loop
