"""Spark writes, overwrites and reads Parquet tables on branches through S3A, with three committers; files are renamed.

It takes jars that pyspark does not bring. `s3a-pom.xml` fetches them; LAKEBED_S3A_JARS names their folder. Without it
the story is left out. The session runs in a process of its own, because its jars are chosen when a JVM starts.
One session for all: a JVM costs more than the story.
"""

from __future__ import annotations

import os
import subprocess
import sys

import lakefs
import pytest

from .serving import Server

JARS = os.environ.get("LAKEBED_S3A_JARS", "")
pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(not JARS, reason="LAKEBED_S3A_JARS does not name the folder of S3A's jars"),
]

_STORY = """
import sys
from pathlib import Path
from pyspark.sql import SparkSession

url, key, secret, repository, jars = sys.argv[1:]
settings = {
    "spark.master": "local[2]",
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.jars": ",".join(map(str, Path(jars).glob("*.jar"))),
    "spark.hadoop.fs.s3a.endpoint": url,
    "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
    "spark.hadoop.fs.s3a.path.style.access": "true",
    "spark.hadoop.fs.s3a.connection.ssl.enabled": "false",
    "spark.hadoop.fs.s3a.access.key": key,
    "spark.hadoop.fs.s3a.secret.key": secret,
    "spark.hadoop.fs.s3a.aws.credentials.provider": "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider",
    "spark.hadoop.fs.s3a.input.stream.type": "classic",
    "spark.hadoop.fs.s3a.committer.staging.conflict-mode": "append",
    "spark.sql.sources.commitProtocolClass": "org.apache.spark.internal.io.cloud.PathOutputCommitProtocol",
    "spark.sql.parquet.output.committer.class": "org.apache.spark.internal.io.cloud.BindingParquetOutputCommitter",
}
builder = SparkSession.builder
for name, value in settings.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()


def count(root):
    spark.catalog.clearCache()
    return spark.read.parquet(root).count()


hadoop = spark._jvm.org.apache.hadoop
configuration = spark.sparkContext._jsc.hadoopConfiguration()
for committer in ("magic", "directory", "partitioned"):
    configuration.set("fs.s3a.committer.name", committer)
    main, dev = f"s3a://{repository}/main/{committer}", f"s3a://{repository}.dev/{committer}"
    for root in (main, dev):
        table = spark.range(100).selectExpr("id", "id % 2 AS half")
        table.repartition(2).write.partitionBy("half").parquet(root)
        assert count(root) == 100
    spark.range(10).selectExpr("id", "id % 2 AS half").write.partitionBy("half").mode("append").parquet(dev)
    assert (count(main), count(dev)) == (100, 110)
    if committer != "partitioned":  # It replaces partitions alone, by a rule of its own.
        spark.range(5).write.mode("overwrite").parquet(dev)
        assert count(dev) == 5

paths = lambda name: hadoop.fs.Path(f"s3a://{repository}/main/{name}")
files = paths("").getFileSystem(configuration)


def listed(name, recursive=True):
    rows_of, rows = [], files.listFiles(paths(name), recursive)
    while rows.hasNext():
        row = rows.next()
        rows_of.append((row.getPath().toUri().getPath().removeprefix(f"/main/{name}"), row.getLen()))
    return sorted(rows_of)


before = listed("magic")
assert len(before) >= 4
files.mkdirs(paths("renamed"))
assert files.rename(paths("magic"), paths("renamed/deep"))
assert (listed("renamed/deep"), files.exists(paths("magic"))) == (before, False)
assert count(f"s3a://{repository}/main/renamed/deep") == 100
assert {each.getPath().getName() for each in files.listStatus(paths("renamed"))} == {"deep"}
assert files.getContentSummary(paths("renamed")).getFileCount() == len(before)

assert files.mkdirs(paths("empty"))
assert files.getFileStatus(paths("empty")).isDirectory()
assert list(files.listStatus(paths("empty"))) == []
stream = files.create(paths("empty/large.bin"))
stream.write(bytes(9 << 20))
stream.close()
assert listed("empty") == [("/large.bin", 9 << 20)]
assert files.rename(paths("empty/large.bin"), paths("empty/moved.bin"))
assert listed("empty") == [("/moved.bin", 9 << 20)]
assert files.delete(paths("renamed"), True) and not files.exists(paths("renamed"))
assert len(files.globStatus(paths("*/half=0"))) == 2
spark.stop()
"""


def test_spark_writes_tables_on_two_branches_and_hadoop_renames_and_lists_files(
    server: Server, repository: lakefs.Repository
) -> None:
    repository.branch("dev").create("main")
    arguments = [server.url, server.access_key_id, server.secret_access_key, str(repository.id), JARS]

    ran = subprocess.run(
        [sys.executable, "-c", _STORY, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
    )

    assert ran.returncode == 0, ran.stderr[-3000:]
