"""Spark writes, overwrites and reads Parquet tables on branches through S3A, with both committers that S3 needs.

It takes jars that pyspark does not bring. `s3a-pom.xml` fetches them; LAKEBED_S3A_JARS names their folder. Without it
the story is left out. The session runs in a process of its own, because its jars are chosen when a JVM starts.
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

url, key, secret, repository, jars, committer = sys.argv[1:]
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
    "spark.hadoop.fs.s3a.committer.name": committer,
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


main, dev = f"s3a://{repository}/main/table", f"s3a://{repository}.dev/table"
for root in (main, dev):
    spark.range(1000).repartition(2).write.parquet(root)
    assert count(root) == 1000
spark.range(10).write.mode("overwrite").parquet(dev)
spark.range(5).write.mode("append").parquet(dev)
print(count(main), count(dev))
spark.stop()
"""


@pytest.mark.parametrize("committer", ["magic", "directory"])
def test_spark_writes_overwrites_appends_and_reads_tables_on_two_branches(
    server: Server, repository: lakefs.Repository, committer: str
) -> None:
    repository.branch("dev").create("main")
    arguments = [server.url, server.access_key_id, server.secret_access_key, str(repository.id), JARS, committer]

    ran = subprocess.run(
        [sys.executable, "-c", _STORY, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
    )

    assert ran.returncode == 0, ran.stderr[-3000:]
    assert ran.stdout.split() == ["1000", "15"]
