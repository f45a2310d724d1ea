"""Signatures against the examples that AWS publishes with its documents, and against what changes on the way."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from urllib.parse import urlencode

import pytest

from lakebed.server.http.fields import query_pairs
from lakebed.server.s3.errors import S3Error
from lakebed.server.s3.requests.signatures import AnySigned, Asked, Signed, read_signature

KEY_ID = "AKIAIOSFODNN7EXAMPLE"
SECRET = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
MADE_S = int(datetime(2013, 5, 24, tzinfo=UTC).timestamp())
EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
HOST = (b"host", b"examplebucket.s3.amazonaws.com")
SCOPE = f"{KEY_ID}/20130524/us-east-1/s3/aws4_request"


def asked(
    path: bytes = b"/test.txt",
    *,
    query: str = "",
    headers: Sequence[tuple[bytes, bytes]] = (),
    method: str = "GET",
) -> Asked:
    return Asked(method=method, raw_path=path, query=query_pairs(query.encode(), most=1_000), headers=[HOST, *headers])


def authorization(signed_headers: str, signature: str) -> tuple[bytes, bytes]:
    text = f"AWS4-HMAC-SHA256 Credential={SCOPE},SignedHeaders={signed_headers},Signature={signature}"
    return b"authorization", text.encode()


def is_made_by(secret: str, signed: AnySigned, request: Asked) -> bool:
    return signed.is_of(signed.key(secret), request)


GET = asked(
    headers=[
        (b"range", b"bytes=0-9"),
        (b"x-amz-content-sha256", EMPTY.encode()),
        (b"x-amz-date", b"20130524T000000Z"),
        authorization(
            "host;range;x-amz-content-sha256;x-amz-date",
            "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41",
        ),
    ]
)
PRESIGNED = (
    f"X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential={SCOPE.replace('/', '%2F')}&X-Amz-Date=20130524T000000Z"
    "&X-Amz-Expires=86400&X-Amz-SignedHeaders=host"
    "&X-Amz-Signature=aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404"
)


def test_the_documented_request_is_its_makers_and_of_no_other_secret() -> None:
    signed = read_signature(GET, "")

    assert is_made_by(SECRET, signed, GET)
    assert not is_made_by(SECRET + "x", signed, GET)


def test_the_documented_url_is_its_makers() -> None:
    request = asked(query=PRESIGNED)

    assert is_made_by(SECRET, read_signature(request, ""), request)


@pytest.mark.parametrize(
    "changed",
    [
        asked(b"/other.txt", query=PRESIGNED),
        asked(query=PRESIGNED + "&acl="),
        asked(query=PRESIGNED, method="PUT"),
        asked(query=PRESIGNED.replace("86400", "86401")),
    ],
    ids=["path", "query", "method", "expiry"],
)
def test_a_request_that_was_changed_is_not_its_makers(changed: Asked) -> None:
    assert not is_made_by(SECRET, read_signature(changed, ""), changed)


def test_a_header_of_amazons_that_was_added_is_refused() -> None:
    for request in (
        Asked(method="GET", raw_path=GET.raw_path, query=[], headers=[*GET.headers, (b"x-amz-copy-source", b"b/k")]),
        asked(query=PRESIGNED, headers=[(b"x-amz-acl", b"public-read")]),
    ):
        with pytest.raises(S3Error) as caught:
            read_signature(request, "")
        assert caught.value.code == "AccessDenied"
        assert "HeadersNotSigned" in caught.value.facts


def code_at(request: Asked, now_s: int) -> str:
    try:
        read_signature(request, "").check_time(now_s)
    except S3Error as error:
        return error.code
    return "fine"


def test_a_request_counts_for_a_quarter_of_an_hour_and_a_url_until_it_expires() -> None:
    assert [code_at(GET, MADE_S + seconds) for seconds in (-901, -900, 0, 900, 901)] == [
        "RequestTimeTooSkewed",
        "fine",
        "fine",
        "fine",
        "RequestTimeTooSkewed",
    ]
    url = asked(query=PRESIGNED)
    assert [code_at(url, MADE_S + seconds) for seconds in (-901, 0, 86_400, 86_401)] == [
        "AccessDenied",
        "fine",
        "fine",
        "AccessDenied",
    ]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"X-Amz-Expires": "604801"}, "AuthorizationQueryParametersError"),
        ({"X-Amz-Expires": "-1"}, "AuthorizationQueryParametersError"),
        ({"X-Amz-Algorithm": "AWS4-HMAC-SHA1"}, "AuthorizationQueryParametersError"),
        ({"X-Amz-Date": "20130524"}, "AuthorizationQueryParametersError"),
        ({"X-Amz-Date": "20130525T000000Z"}, "AuthorizationQueryParametersError"),
        ({"X-Amz-Credential": f"{KEY_ID}/20130524/us-east-1/ec2/aws4_request"}, "AuthorizationQueryParametersError"),
        ({"X-Amz-Credential": KEY_ID}, "AuthorizationQueryParametersError"),
        ({"X-Amz-SignedHeaders": "date"}, "AccessDenied"),
        ({"X-Amz-SignedHeaders": ""}, "AuthorizationQueryParametersError"),
        ({"X-Amz-Signature": "ü"}, "SignatureDoesNotMatch"),
    ],
)
def test_a_malformed_url_is_refused_with_its_reason(change: dict[str, str], code: str) -> None:
    query = dict(query_pairs(PRESIGNED.encode(), most=1_000)) | change

    with pytest.raises(S3Error) as caught:
        read_signature(asked(query=urlencode(query)), "")

    assert caught.value.code == code


@pytest.mark.parametrize(
    "header",
    [
        b"AWS4-HMAC-SHA256",
        b"AWS4-HMAC-SHA256 Credential=,SignedHeaders=host,Signature=0",
        b"AWS4-HMAC-SHA256 Credential=a,Credential=b,SignedHeaders=host,Signature=0",
        b"AWS4-HMAC-SHA512 Credential=a",
        b"AWS AKIA",
    ],
)
def test_a_malformed_header_is_refused(header: bytes) -> None:
    with pytest.raises(S3Error) as caught:
        read_signature(asked(headers=[(b"authorization", header)]), "")

    assert caught.value.status == 400


def test_the_path_is_signed_as_it_is_sent_and_never_normalised() -> None:
    signed = read_signature(GET, "")

    for path in (b"/./test.txt", b"//test.txt", b"/a/../test.txt"):
        moved = Asked(method="GET", raw_path=path, query=[], headers=GET.headers)
        assert not is_made_by(SECRET, signed, moved)
    encoded = Asked(method="GET", raw_path=b"/%74est.txt", query=[], headers=GET.headers)
    assert is_made_by(SECRET, signed, encoded)


def test_a_signature_says_when_it_was_made_in_the_date_header_too() -> None:
    headers = [(name, value) for name, value in GET.headers if name != b"x-amz-date"]
    signed = read_signature(
        Asked(method="GET", raw_path=b"/", query=[], headers=[*_without_date(headers), (b"date", DATE)]), ""
    )

    assert isinstance(signed, Signed)
    assert signed.time == "20130524T000000Z"


@pytest.mark.parametrize("date", [b"Fri, 31 Dec 9999 23:59:59 -2300", b"x"])
@pytest.mark.parametrize("version", [2, 4])
def test_a_date_outside_the_calendar_is_refused(date: bytes, version: int) -> None:
    headers = [*_without_date([one for one in GET.headers if one[0] != b"x-amz-date"]), (b"date", date)]
    if version == 2:
        headers = [(b"date", date), (b"authorization", f"AWS {KEY_ID}:x".encode())]

    with pytest.raises(S3Error) as refused:
        read_signature(Asked(method="GET", raw_path=b"/", query=[], headers=headers), "")

    assert refused.value.code == "AccessDenied"


DATE = b"Fri, 24 May 2013 00:00:00 GMT"


def _without_date(headers: Sequence[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    return [(name, value.replace(b";x-amz-date", b"").replace(b"SignedHeaders=host", b"SignedHeaders=date;host"))
            for name, value in headers]  # fmt: skip
