"""Run the S3 tests of versitygw, each alone, against a server of its own, and write what came of each as lists.

    go install github.com/versity/versitygw/cmd/versitygw@v1.8.0
    python -m tests.compat.s3_suite ~/go/bin/versitygw docs/design/s3-suite.md

A test makes buckets, so the gateway serves one repository whose branches they are. A test that fails may leave its
bucket behind, and the next process would want the same name: such branches are deleted in between.

Each test deletes its bucket at the end, which the gateway refuses. So the server here deletes an empty branch in its
place, as `lakebed branch delete` does.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import httpx

VERSION: Final = "1.8.0"
TEST_S: Final = 120
_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")
_SERVE: Final = """
import sys
from pathlib import Path
from starlette.responses import Response
from lakebed.server import options_of, serve
from lakebed.server.s3.buckets import Buckets
from lakebed.server.s3.errors import NotImplementedByName

refusing = Buckets.delete

async def delete(self, request):
    try:
        return await refusing(self, request)
    except NotImplementedByName:
        place = request.place()
        await (await self._catalog.get(place.repository)).changes.delete_branch(place.ref)
        return Response(status_code=204)

Buckets.delete = delete
serve(
    options_of(Path(sys.argv[1]), {"LAKEBED_GATEWAY_REPOSITORY": "lake"}), port=0, s3_listen=("127.0.0.1", 0),
    on_ready=lambda url: print(url, flush=True), on_s3_ready=lambda url: print(url, flush=True),
)
"""

OTHER_PRODUCTS: Final = re.compile(r"(IAM|S3IAM|GatewayIAM|Website|PosixOnly|ScoutFS).*")
"""Tests of versitygw's own services, which are no part of S3."""

NOT_IMPLEMENTED: Final[Sequence[tuple[str, str]]] = (
    (r".*[Ll]egal_?[Hh]old.*", "PutObjectLegalHold, GetObjectLegalHold"),
    (
        r".*([Rr]etention|WORM|[Oo]bject_?[Ll]ock|LockConfiguration|missing_bucket_lock).*",
        "PutObjectLockConfiguration and what belongs to it",
    ),
    (r".*([Ww]ebsite).*", "PutBucketWebsite"),
    (
        r"(Versioning_|ListObjectVersions|PutBucketVersioning|.*[Vv]ersioning).*",
        "PutBucketVersioning, ListObjectVersions",
    ),
    (r".*([Tt]agging|_tags?\b|_tags?_).*", "PutObjectTagging, PutBucketTagging"),
    (r"(Put|Get|Delete)BucketPolicy.*|PublicBucket.*|AccessControl_.*|.*bucket_policy.*", "PutBucketPolicy"),
    (r".*(Acl|ACL|_acl|acl_|grants).*", "PutBucketAcl, PutObjectAcl"),
    (r"(Put|Get|Delete)BucketCors.*|CORS.*|Preflight.*|OPTIONS.*", "PutBucketCors"),
    (r".*(OwnershipControls|[Oo]wnership).*", "PutBucketOwnershipControls"),
    (r"PostObject.*", "PostObject"),
    (r"Authentication_incorrect_payload_hash", "PutObjectTagging, PutBucketTagging"),
    (r"DeleteObject_(conditional_writes|directory_.*conditional.*)", "x-amz-if-match-* of DeleteObject"),
    (
        r".*(checksum_on_copy|replace_the_existing_checksum|replacing_the_checksum)",
        "x-amz-checksum-algorithm of CopyObject",
    ),
    (r".*_if_match_initiated_time", "x-amz-if-match-initiated-time of AbortMultipartUpload"),
)
"""Tests that need an operation or a header which the gateway refuses by name."""

ON_PURPOSE: Final[Sequence[tuple[str, str]]] = (
    (r"(Authentication_credentials|PresignedAuth_creds)_incorrect_region", "Any region is taken."),
    (r"CreateBucket_invalid_location_constraint", "Any region is taken."),
    (
        r"ListBuckets_.*",
        "The repository has a branch before the test, and the owner is the installation, not the key.",
    ),
    (r"CreateBucket_invalid_bucket_name", "A bucket has the name of a branch: capitals and underscores may be in it."),
    (r"CreateBucket_success", "A bucket has no ARN: there are no accounts."),
    (
        r".*(name_too_long|invalid_object_names|with_slashes|_dir_|_dir\b|directory|parent|_dir_obj|file_obj).*",
        "A key is a key: there are no folders, a part of it has no limit of its own, and slashes stay.",
    ),
    (
        r".*(default_checksum|data_integrity_etag|ignore_the_final_checksum|calculate_the_final_checksum).*",
        "No checksum is made that the client did not ask for, and the ETag is the MD5.",
    ),
    (
        r".*(_iam_|_as_user|access_denied|_no_access|not_owned|date_mismatch|invalid_user|_user_).*",
        "The test makes users through versitygw's own commands.",
    ),
    (r".*_expected_bucket_owner", "The owner of a bucket is the installation, not the access key."),
    (r".*_conditional_reads", "A condition of a copy that fails is 412, as S3's documentation has it."),
    (
        r".*(missing_part_checksum|no_checksum_with_composite.*|no_trailer_composite_checksum)",
        "The server computes the checksum that the upload was begun with, where the client leaves it out.",
    ),
    (
        r".*(invalid_copy_source|invalid_part_number|GetObjectAttributes_(non_existing|empty).*|UploadPartCopy_non_existing.*)",
        "Of two mistakes in a request another one is named.",
    ),
    (
        r".*(invalid_final_checksums|invalid_final_composite_checksum|SignedStreaming.*|UnsignedStream.*)",
        "The same request is refused with another code.",
    ),
    (
        r".*should_calculate_crc64nvme|PutObject_success",
        "No checksum and no size are answered that were not asked for.",
    ),
    (
        r"ListMultipartUploads_.*|ListObjectsV2_both_start_after.*",
        "Markers are the server's own: another page begins elsewhere.",
    ),
    (r"Server_large_http_header", "Larger headers are taken."),
    (r"DeleteObjects_empty_input", "A batch without a key is malformed, as in S3's schema."),
    (r".*sigv2_not_supported", "Signatures of version 2 in URLs are taken."),
    (r"List.*_list_all_objs|ListParts_null_checksums", "An empty element stands where the test wants none."),
    (
        r"Get(Bucket(Accel|Encrypt|Lifecycle|Logging|Notif|Replic|RequestPay)|PublicAccess).*_not_implemented",
        "The gateway answers as S3 does for a bucket without this setting.",
    ),
    (r".*default_content_type.*", "An object without a type has application/octet-stream by every door."),
    (r".*zero_len_with_range", "No range of an object without bytes can be satisfied (RFC 9110)."),
)
BY_WORDS: Final[Sequence[tuple[str, str]]] = (
    (r".*expected error message to be .*", "The code is the same, the words are not."),
    (
        r".*expected error (X-Amz-Expires|AWSAccessKeyId|ArgumentValue|Content-MD5) .*",
        "The code is the same, its details are not.",
    ),
    (
        r".*(context canceled|closed network).*",
        "The test gives up its request before it reads the answer's body; another run may read it in time.",
    ),
    (r".*fork/exec.*", "The test makes users through versitygw's own commands."),
    (r".*instead got NotImplemented", "An operation is refused by name before its arguments are looked at."),
)
"""The same, told by what the test says."""
"""Tests that expect what this gateway does otherwise, and why."""


class Outcome(NamedTuple):
    name: str
    passed: bool
    words: str


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=Path, help="the versitygw program")
    parser.add_argument("output", type=Path, help="the page to write")
    parser.add_argument("--only", default="", help="run only tests whose name matches this regular expression")
    chosen = parser.parse_args()
    every = names_of(chosen.program)
    names = [name for name in every if not OTHER_PRODUCTS.fullmatch(name)]
    wanted = [name for name in names if re.search(chosen.only, name)]
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder)) as (s3_url, admin):
        outcomes = []
        for name in wanted:
            outcome = run(chosen.program, s3_url, admin, name)
            print("PASS" if outcome.passed else "FAIL", name, outcome.words, flush=True)
            outcomes.append(outcome)
            clean(admin)
    chosen.output.write_text(page(outcomes, len(every) - len(names)))
    return 0


def names_of(program: Path) -> list[str]:
    """Return the single tests that the program knows. Groups of tests have no underscore in their names."""
    shown = subprocess.run([program, "test", "--help"], capture_output=True, text=True, check=True).stdout
    commands = shown.partition("COMMANDS:")[2].partition("OPTIONS:")[0]
    return sorted(line.split()[0] for line in commands.splitlines() if line.strip() and "_" in line.split()[0])


@contextmanager
def serving(folder: Path) -> Iterator[tuple[str, httpx.Client]]:
    command = [sys.executable, "-c", _SERVE, str(folder / "data")]
    log = (folder / "log").open("w")
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    assert process.stdout is not None
    try:
        s3_url, url = process.stdout.readline().strip(), process.stdout.readline().strip()
        pair = httpx.post(url + "/api/v1/setup_lakefs", json={"username": "esti"}).json()
        keys = pair["access_key_id"], pair["secret_access_key"]
        with httpx.Client(base_url=url + "/api/v1", auth=keys) as admin:
            made = {"name": "lake", "storage_namespace": "local://lake"}
            admin.post("/repositories", json=made).raise_for_status()
            admin.headers["x-keys"] = " ".join(keys)
            yield s3_url, admin
    finally:
        process.terminate()
        process.wait(600)
        log.close()


def run(program: Path, s3_url: str, admin: httpx.Client, name: str) -> Outcome:
    access_key, secret_key = admin.headers["x-keys"].split()
    # The program refuses to start where this is set.
    environment = {key: value for key, value in os.environ.items() if key != "AWS_CA_BUNDLE"}
    command = [str(program), "test", "--allow-insecure", "-a", access_key, "-s", secret_key, "-e", s3_url, name]
    try:
        ran = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=TEST_S,
            env=environment,
            cwd=tempfile.gettempdir(),
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Outcome(name, passed=False, words="took too long")
    text = _COLOUR.sub("", ran.stdout + ran.stderr)
    if re.search(r"^PASS ", text, re.MULTILINE) and not re.search(r"^FAIL |^panic:", text, re.MULTILINE):
        return Outcome(name, passed=True, words="")
    failed = re.search(r"^FAIL [^:]*: (.*)$|^panic: (.*)$", text, re.MULTILINE)
    words = (failed[1] or failed[2] or "") if failed else "no verdict: " + " ".join(text.split())[-200:]
    return Outcome(name, passed=False, words=re.sub(r"RequestID: \w+, HostID: , ", "", words)[:300])


def clean(admin: httpx.Client) -> None:
    found = admin.get("/repositories/lake/branches", params={"amount": 1000}).json()["results"]
    for branch in found:
        if branch["id"] != "main":
            admin.delete(f"/repositories/lake/branches/{branch['id']}")


def reason_of(name: str, reasons: Sequence[tuple[str, str]]) -> str:
    return next((reason for pattern, reason in reasons if re.fullmatch(pattern, name)), "")


def page(outcomes: Sequence[Outcome], left_out: int) -> str:
    passed = [each.name for each in outcomes if each.passed]
    failed = [each for each in outcomes if not each.passed]
    missing: dict[str, list[str]] = {}
    different: dict[str, list[str]] = {}
    unsorted_ = []
    for each in failed:
        named = re.search(r"NotImplemented: (.*?) is not implemented", each.words)
        if reason := reason_of(each.name, NOT_IMPLEMENTED) or (named[1] if named else ""):
            missing.setdefault(reason, []).append(each.name)
        elif reason := reason_of(each.name, ON_PURPOSE) or reason_of(each.words, BY_WORDS):
            different.setdefault(reason, []).append(each.name)
        else:
            unsorted_.append(each)
    counts = Counter(
        {
            "pass": len(passed),
            "not implemented": sum(map(len, missing.values())),
            "different on purpose": sum(map(len, different.values())),
            "not looked at yet": len(unsorted_),
            "of versitygw's own services, left out": left_out,
        }
    )
    lines = [
        "# The S3 tests of versitygw",
        "",
        f"Written by `python -m tests.compat.s3_suite` (its head says how) with versitygw {VERSION}. DeleteBucket,",
        "which the gateway refuses, is stood in for by the API's deleteBranch: each test deletes its bucket.",
        "",
        "| | tests |",
        "| --- | --- |",
        *(f"| {name} | {count} |" for name, count in counts.items()),
        "",
        "The command prints the verdict of each test. Here are the reasons, with an example each.",
        "",
        "## Not implemented",
        "",
        *_grouped(missing),
        "## Different on purpose",
        "",
        *_grouped(different),
        "## Not looked at yet",
        "",
        *(f"- `{each.name}`: {_shown(each.words)}" for each in unsorted_),
        "",
    ]
    return "\n".join(lines)


def _grouped(groups: dict[str, list[str]]) -> Iterator[str]:
    yield "| reason | tests | for example |"
    yield "| --- | ---: | --- |"
    yield from (f"| {reason} | {len(names)} | `{names[0]}` |" for reason, names in groups.items())
    yield ""


def _shown(words: str) -> str:
    return re.sub(r"[<>|`\[\]()]", " ", words)


if __name__ == "__main__":
    sys.exit(main())
