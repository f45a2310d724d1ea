"""Spark SQL on tables of branches: lent keys, requests that the catalog signs, and no warehouse.

Iceberg comes late to each Spark. So `LAKEBED_TEST_ICEBERG_SPARK` names a folder with PySpark 4.1. It
loads Iceberg's jars, 150 MB, from Maven Central, once.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import lakefs
import pytest

from .serving import Server

ICEBERG = "1.12.0"
_STORY = """
import sys
from pyspark.sql import SparkSession

url, credential, repository, packages, home = sys.argv[1:]
builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
builder = builder.config("spark.jars.packages", packages).config("spark.sql.warehouse.dir", home)
builder = builder.config("spark.sql.shuffle.partitions", "2")
builder = builder.config(
    "spark.sql.extensions", "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
)
for name, more in {
    "main": {"warehouse": f"{repository}/main"},
    "dev": {"warehouse": f"{repository}/dev"},
    "signed": {"warehouse": f"{repository}/main", "header.X-Iceberg-Access-Delegation": "remote-signing"},
    "all": {},
}.items():
    builder = builder.config(f"spark.sql.catalog.{name}", "org.apache.iceberg.spark.SparkCatalog")
    for key, value in {"type": "rest", "uri": url, "credential": credential, "cache-enabled": "false", **more}.items():
        builder = builder.config(f"spark.sql.catalog.{name}.{key}", value)
spark = builder.getOrCreate()

def values(sql):
    return sorted(row[0] for row in spark.sql(sql).collect())

spark.sql("CREATE NAMESPACE main.sales")
spark.sql("CREATE TABLE main.sales.orders (a BIGINT, day DATE) USING iceberg PARTITIONED BY (days(day))"
          " TBLPROPERTIES ('format-version'='2', 'write.delete.mode'='merge-on-read')")
for value in (1, 2, 3):
    spark.sql(f"INSERT INTO main.sales.orders VALUES ({value}, DATE '2026-11-0{value}')")
import httpx

branches = url.replace("/iceberg", f"/api/v1/repositories/{repository}/branches")
made = httpx.post(branches, json={"name": "dev", "source": "main"}, auth=tuple(credential.split(":")))
made.raise_for_status()
spark.sql("CREATE TABLE signed.sales.signed AS SELECT a FROM main.sales.orders")
spark.sql("DELETE FROM signed.sales.signed WHERE a = 1")
spark.sql("MERGE INTO dev.sales.orders t USING (SELECT 3L a UNION SELECT 4L) s ON t.a = s.a"
          " WHEN MATCHED THEN UPDATE SET a = 30 WHEN NOT MATCHED THEN INSERT (a, day) VALUES (s.a, DATE '2026-11-04')")
spark.sql("DELETE FROM dev.sales.orders WHERE a = 1")
spark.sql("CALL dev.system.compute_table_stats(table => 'sales.orders')")
spark.sql("CALL dev.system.rewrite_data_files(table => 'sales.orders', options => map('rewrite-all', 'true'))")
spark.sql("CALL dev.system.expire_snapshots(table => 'sales.orders', older_than => now(), retain_last => 1)")
print(values("SELECT a FROM main.sales.orders"), values("SELECT a FROM dev.sales.orders"))
print(values("SELECT a FROM signed.sales.signed"), values(f"SELECT a FROM all.`{repository}`.main.sales.signed"))
print(len(values("SELECT snapshot_id FROM dev.sales.orders.snapshots")))
"""


@pytest.mark.spark
@pytest.mark.skipif(not os.environ.get("LAKEBED_TEST_ICEBERG_SPARK"), reason="LAKEBED_TEST_ICEBERG_SPARK is not set")
def test_spark_merges_rewrites_and_expires_on_a_branch_and_writes_without_a_key_for_files(
    server: Server, repository: lakefs.Repository, tmp_path: Path
) -> None:
    names = ("iceberg-spark-runtime-4.1_2.13", "iceberg-aws-bundle")
    packages = ",".join(f"org.apache.iceberg:{name}:{ICEBERG}" for name in names)
    told = subprocess.run(
        [
            *(sys.executable, "-c", _STORY, server.url + "/iceberg"),
            *(f"{server.access_key_id}:{server.secret_access_key}", str(repository.id), packages, str(tmp_path)),
        ],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.environ["LAKEBED_TEST_ICEBERG_SPARK"], "SPARK_LOCAL_IP": "127.0.0.1"},
    )

    assert told.returncode == 0, told.stderr[-3000:]
    assert told.stdout.split("\n")[:3] == ["[1, 2, 3] [2, 4, 30]", "[2, 3] [2, 3]", "1"]
