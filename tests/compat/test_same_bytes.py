"""The same bytes, written by any two clients, are one object: no change, no diff, no conflict.

Each client sends them as it does unless told otherwise: newer SDKs add a checksum, rclone and s3cmd add metadata.
"""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

import boto3
import httpx
import lakefs
import pytest
from botocore.config import Config

import lakebed
from lakebed.lake.filesystem import LakebedFileSystem
from tests.kv.servers import jars_of, program, python_packages

from .serving import Server
from .test_s3_tables import told
from .test_s3_tools import aws, aws_2, rclone, s3cmd, tool

__all__ = ["aws", "aws_2", "rclone", "s3cmd"]  # pytest finds them here

pytestmark = pytest.mark.filterwarnings("ignore")  # of the clients' own dependencies, which are not ours to mend

DATA: Final = random.Random(7).randbytes(1000)

_BOTO3: Final = """
import sys
import boto3
from botocore.config import Config

url, key, secret, bucket, name, file = sys.argv[1:]
config = Config(s3={"addressing_style": "path"})
pair = {"aws_access_key_id": key, "aws_secret_access_key": secret}
s3 = boto3.client("s3", endpoint_url=url, region_name="us-east-1", config=config, **pair)
s3.put_object(Bucket=bucket, Key=name, Body=open(file, "rb").read())
assert tuple(map(int, boto3.__version__.split(".")[:2])) < (1, 36)
"""

_S3FS: Final = """
import sys
import s3fs

url, key, secret, bucket, name, file = sys.argv[1:]
files = s3fs.S3FileSystem(key=key, secret=secret, endpoint_url=url, client_kwargs={"region_name": "us-east-1"})
files.pipe_file(f"{bucket}/{name}", open(file, "rb").read())
"""

_JAVA: Final = """
import java.net.URI;
import java.nio.file.*;
import software.amazon.awssdk.auth.credentials.*;
import software.amazon.awssdk.core.sync.RequestBody;
import software.amazon.awssdk.regions.Region;
import software.amazon.awssdk.services.s3.S3Client;

public class Put {
    public static void main(String[] at) throws Exception {
        var pair = AwsBasicCredentials.create(at[1], at[2]);
        try (var s3 = S3Client.builder().endpointOverride(URI.create(at[0])).region(Region.US_EAST_1)
                .forcePathStyle(true).credentialsProvider(StaticCredentialsProvider.create(pair)).build()) {
            var body = RequestBody.fromBytes(Files.readAllBytes(Path.of(at[5])));
            s3.putObject(put -> put.bucket(at[3]).key(at[4]), body);
        }
    }
}
"""


@dataclass(frozen=True)
class Target:
    server: Server
    repository: lakefs.Repository
    branch: str
    file: Path
    """Holds DATA."""

    @property
    def arguments(self) -> tuple[str, ...]:
        pair = (self.server.access_key_id, self.server.secret_access_key)
        return (self.server.url, *pair, str(self.repository.id), self.key, str(self.file))

    @property
    def key(self) -> str:
        return f"{self.branch}/f"

    @property
    def uri(self) -> str:
        return f"s3://{self.repository.id}/{self.key}"


Writer: TypeAlias = Callable[[Target, pytest.FixtureRequest], object]


def by_api(at: Target, _: pytest.FixtureRequest) -> None:
    url = f"{at.server.url}/api/v1/repositories/{at.repository.id}/branches/{at.branch}/objects?path=f"
    pair = (at.server.access_key_id, at.server.secret_access_key)
    httpx.post(url, content=at.file.read_bytes(), auth=pair).raise_for_status()


def by_lakebed(at: Target, _: pytest.FixtureRequest) -> None:
    lake = lakebed.connect(
        at.server.url, access_key_id=at.server.access_key_id, secret_access_key=at.server.secret_access_key
    )
    lake.repository(str(at.repository.id)).branch(at.branch).write("f", DATA)


def by_fsspec(at: Target, _: pytest.FixtureRequest) -> None:
    server = at.server
    files = LakebedFileSystem(
        server.url, access_key_id=server.access_key_id, secret_access_key=server.secret_access_key
    )
    files.pipe_file(f"lakebed://{at.repository.id}/{at.key}", DATA)


def by_boto3(at: Target, _: pytest.FixtureRequest) -> None:
    s3 = boto3.client(
        "s3",
        endpoint_url=at.server.url,
        aws_access_key_id=at.server.access_key_id,
        aws_secret_access_key=at.server.secret_access_key,
        region_name="us-east-1",
        config=Config(s3={"addressing_style": "path"}),
    )
    put = s3.put_object(Bucket=str(at.repository.id), Key=at.key, Body=DATA)
    assert "ChecksumCRC32" in put
    # It lies beside the metadata, and is answered still.
    assert s3.head_object(Bucket=str(at.repository.id), Key=at.key, ChecksumMode="ENABLED")["ChecksumCRC32"]


def by_aws_cli_1(at: Target, request: pytest.FixtureRequest) -> None:
    packages = python_packages("awscli==1.36.40")
    run = tool(
        sys.executable,  # the program's first line names the Python that loaded it, which may be gone
        str(packages / "bin" / "aws"),
        "--endpoint-url",
        at.server.url,
        tmp_path=at.file.parent,
        PYTHONPATH=str(packages),
        AWS_ACCESS_KEY_ID=at.server.access_key_id,
        AWS_SECRET_ACCESS_KEY=at.server.secret_access_key,
        AWS_DEFAULT_REGION="us-east-1",
        AWS_EC2_METADATA_DISABLED="true",
    )
    run("s3", "cp", at.file, at.uri)


def by_java(at: Target, _: pytest.FixtureRequest) -> None:
    jars = jars_of("sdk-pom", beside=__file__)
    program("javac", "openjdk-17-jdk-headless")
    source = at.file.with_name("Put.java")
    source.write_text(_JAVA)
    command = [program("java", "openjdk-17-jdk-headless"), "-cp", f"{jars}/*", str(source), *at.arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


WRITERS: Final[Mapping[str, Writer]] = {
    "api": by_api,
    "lakefs": lambda at, _: at.repository.branch(at.branch).object("f").upload(DATA),
    "lakebed": by_lakebed,
    "fsspec": by_fsspec,
    "boto3": by_boto3,
    "boto3 < 1.36": lambda at, _: told(_BOTO3, python_packages("boto3==1.35.99"), *at.arguments),
    "s3fs": lambda at, _: told(_S3FS, python_packages("s3fs==2026.9.0"), *at.arguments),
    "rclone": lambda at, test: test.getfixturevalue("rclone")("copyto", at.file, f"lake:{at.repository.id}/{at.key}"),
    "s3cmd": lambda at, test: test.getfixturevalue("s3cmd")("put", at.file, at.uri),
    "aws": lambda at, test: test.getfixturevalue("aws")("s3", "cp", at.file, at.uri),
    "aws_2": lambda at, test: test.getfixturevalue("aws_2")("s3", "cp", at.file, at.uri),
    "aws 1.36": by_aws_cli_1,
    "java": by_java,
}


@pytest.mark.parametrize("name", WRITERS)
def test_any_other_client_wrote_the_same_bytes(
    name: str,
    server: Server,
    repository: lakefs.Repository,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    """One client of each kind stands for all others: equality is transitive. It sends neither metadata nor checksum."""
    file = tmp_path / "f"
    file.write_bytes(DATA)
    main, other = (Target(server, repository, branch, file) for branch in ("main", "other"))
    repository.branch("other").create("main")
    by_api(main, request)
    repository.branch("main").commit("by the API")

    WRITERS[name](other, request)

    repository.branch("other").commit(f"by {name}")
    assert repository.branch("other").object("f").reader(mode="rb").read() == DATA
    assert [*repository.ref("main").diff("other")] == []
    repository.branch("other").merge_into("main")  # no conflict: both added the same
    WRITERS[name](main, request)
    assert [*repository.branch("main").uncommitted()] == []
    by_api(other, request)
    assert [*repository.branch("other").uncommitted()] == []
    with pytest.raises(lakefs.exceptions.LakeFSException, match="no changes"):
        repository.branch("main").commit("nothing")


@pytest.mark.parametrize("name", ["aws", "aws_2", "rclone", "s3cmd"])
def test_another_client_sent_the_same_bytes_in_parts(
    name: str,
    server: Server,
    repository: lakefs.Repository,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    """The ETag of an upload in parts depends on the parts. The MD5 of its bytes is what counts."""
    file = tmp_path / "f"
    file.write_bytes(random.Random(8).randbytes(12 << 20))
    main, other = (Target(server, repository, branch, file) for branch in ("main", "other"))
    repository.branch("other").create("main")
    by_api(main, request)
    repository.branch("main").commit("in one piece")

    WRITERS[name](other, request)

    assert "-" in repository.branch("other").object("f").stat().checksum
    repository.branch("other").commit("in parts")
    assert [*repository.ref("main").diff("other")] == []
    repository.branch("other").merge_into("main")
