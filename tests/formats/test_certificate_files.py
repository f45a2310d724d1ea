"""The golden certificate of an erasure. Every later release reads and checks it without a server. Never rewritten."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from lakebed.gc.messages import (
    BadInput,
    Certificate,
    Collected,
    ErasedObject,
    Standing,
    Total,
    decode_certificate,
    decode_head,
    encode_certificate,
    head_of,
    is_signed,
)
from lakebed.gc.rules import Selection
from tests.cli.conftest import Shell

HERE = Path(__file__).parent
CERTIFICATE, KEY = HERE / "certificate-3.json", HERE / "certificate-3.pem"
MADE = Certificate(
    repository="lake",
    namespace="s3://bucket/lake",
    run_id="1kcc5ok00t10o3elb0pp",
    selection=Selection(paths=("événements/ann.json",), globs=("mail/ann/",)),
    why="request 12",
    takes_shared=False,
    planned_ms=1_790_000_000_000,
    made_ms=1_790_000_060_000,
    made_by="ann",
    plan="9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    ledger={"_lakefs/retention/ledger/1kcc5ok00t10o3elb0pp.000000.parquet": "ab" * 32},
    commits_read=3,
    objects=(
        ErasedObject(
            address="data/0123456789abc/00000001",
            paths=("événements/ann.json",),
            size_bytes=6,
            checksum="5ebe2294ecd0e0f08eab7690d2a6ee69",
            is_absent=True,
        ),
    ),
    remains=("names in commits",),
)


def test_the_golden_certificate_is_read_and_its_signature_holds() -> None:
    data, pem = CERTIFICATE.read_bytes(), KEY.read_text()
    found = decode_certificate(data)

    assert found == replace(MADE, contents=found.contents, signature=found.signature)
    assert decode_head(data) == head_of(found)
    assert is_signed(found, pem)
    assert encode_certificate(found) == data


def test_a_change_of_any_field_breaks_the_signature() -> None:
    found, pem = decode_certificate(CERTIFICATE.read_bytes()), KEY.read_text()
    others: dict[str, object] = {"takes_shared": True, "planned_ms": 1, "made_ms": 1, "commits_read": 4}
    others |= {
        "selection": Selection(),
        "ledger": {},
        "objects": (),
        "remains": (),
        "collected": Collected(run_id="0a", began_ms=1, plan="", total=Total()),
    }
    others |= {"stands": (Standing(what="copy", where="b", why="c"),)}

    for name in Certificate.__struct_fields__:
        if name not in {"contents", "signature"}:
            assert not is_signed(replace(found, **{name: others.get(name, "other")}), pem), name


def test_a_key_of_another_kind_is_refused() -> None:
    found = decode_certificate(CERTIFICATE.read_bytes())

    for text in ("", "no key", KEY.read_text().replace("M", "N", 1)):
        with pytest.raises(BadInput, match="the key is no"):
            is_signed(found, text)


def test_the_command_line_checks_a_certificate_without_a_server(tmp_path: Path) -> None:
    shell = Shell(environment={"LAKECTL_SERVER_ENDPOINT_URL": "http://127.0.0.1:1"})
    changed, other = tmp_path / "changed.json", tmp_path / "other.json"
    found = decode_certificate(CERTIFICATE.read_bytes())
    changed.write_bytes(encode_certificate(replace(found, objects=())))
    other.write_bytes(CERTIFICATE.read_bytes().replace(b"request 12", b"request 13"))

    good = shell("erase", "check", str(CERTIFICATE), "--key", str(KEY))
    assert (good.code, "1 of 1 object absent" in good.out) == (0, True)
    assert "signed by the owner of this key: lake, run 1kcc5ok00t10o3elb0pp, ann" in good.out
    forged = shell("erase", "check", str(changed), "--key", str(KEY))
    assert (forged.code, "did not sign the certificate as it is" in forged.err) == (1, True)
    assert "contradicts its digest" in shell("erase", "check", str(other), "--key", str(KEY)).err
    assert "is not a public key" in shell("erase", "check", str(CERTIFICATE), "--key", str(CERTIFICATE)).err
    assert shell("erase", "check", str(CERTIFICATE), "--key", str(tmp_path / "none")).code == 2
