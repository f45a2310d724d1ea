"""Metadata beyond ASCII travels as S3 has it: by RFC 2047, both ways."""

from __future__ import annotations

from email.header import Header, decode_header, make_header

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakebed.server.s3.requests.requests import decode_words, encode_words

TEXTS = st.text(st.characters(exclude_categories=("Cc", "Cs")), max_size=60)


@given(TEXTS.filter(lambda text: not text.isascii()))
def test_a_text_comes_back_as_it_was_sent_and_others_read_it(text: str) -> None:
    spelled = encode_words(text)

    assert spelled.isascii()
    assert decode_words(spelled) == str(make_header(decode_header(spelled))) == text


@given(TEXTS)
def test_a_text_that_python_encodes_is_read(text: str) -> None:
    spelled = Header(text.strip(), "utf-8", maxlinelen=10_000).encode(linesep="")

    assert decode_words(spelled) == text.strip()


@pytest.mark.parametrize(
    ("spelled", "text"),
    [
        ("plain", "plain"),
        ("=?UTF-8?Q?a=C3=BC_b?=", "aü b"),
        ("=?iso-8859-1?q?=FC?= and =?utf-8?B?w7w=?=", "ü and ü"),
        ("=?UTF-8?B?w7w=?= =?UTF-8?B?w7w=?=", "üü"),
        ("=?UTF-8?B?w7?=", "=?UTF-8?B?w7?="),
        ("=?UTF-8?B?w7w=?= =?UTF-8?B?/w==?=", "=?UTF-8?B?w7w=?= =?UTF-8?B?/w==?="),
        ("=?UTF-8?Q?a=0D=0Ab?=", "=?UTF-8?Q?a=0D=0Ab?="),
        ("=?utf-7?Q?a?=", "=?utf-7?Q?a?="),
        ("a =? b", "a =? b"),
    ],
)
def test_what_is_no_encoded_word_stays_as_it_is(spelled: str, text: str) -> None:
    assert decode_words(spelled) == text


async def test_metadata_is_text_in_the_api_and_ascii_in_the_headers_of_s3(
    lake: httpx.AsyncClient, s3: httpx.AsyncClient
) -> None:
    for key, sent in (("b", "=?UTF-8?Q?gr=C3=BCn?="), ("c", "grün")):
        headers = [(b"x-amz-meta-colour", sent.encode()), (b"x-amz-meta-plain", b"a b")]
        (await s3.put(f"/lake.main/{key}", headers=headers, content=b"x")).raise_for_status()

        stat = (await lake.get(f"/repositories/lake/refs/main/objects/stat?path={key}")).json()
        assert stat["metadata"] == {"colour": "grün", "plain": "a b"}
        got = await s3.head(f"/lake.main/{key}")
        assert got.headers["x-amz-meta-colour"] == "=?UTF-8?B?Z3LDvG4=?="
        assert got.headers["x-amz-meta-plain"] == "a b"
