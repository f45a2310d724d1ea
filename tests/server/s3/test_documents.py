"""XML: what is written can be read, and what no S3 request has is refused."""

from __future__ import annotations

import pytest

from lakebed.server.s3.documents import DEPTH_MAX, ELEMENTS_MAX, Element, MalformedXml, document, parse

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
        b"<Delete>" + b"<a/>" * ELEMENTS_MAX + b"</Delete>",
    ],
    ids=["empty", "open", "other", "two", "binary", "json", "entities", "deep", "long"],
)
def test_a_body_that_no_request_has_is_refused(body: bytes) -> None:
    with pytest.raises(MalformedXml):
        parse(body, "Delete")


def test_an_element_that_may_stand_once_is_not_read_twice() -> None:
    with pytest.raises(MalformedXml):
        parse(b"<Delete><Quiet>a</Quiet><Quiet>b</Quiet></Delete>", "Delete").value("Quiet")
