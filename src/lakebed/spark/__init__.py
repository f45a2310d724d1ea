"""Give a Spark session of the user's own a Java, the jars of S3A, and the settings that reach the branches of a lake.

    import lakebed.spark

    spark = lakebed.spark.builder().getOrCreate()
    spark.read.parquet("s3a://lake/main/flights").show()

Spark reads and writes through the server's S3 door, so any session on any cluster can do it. `s3a_settings` returns the
settings alone. Sessions that run collections are made elsewhere (`lakebed.gc.engines`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from lakebed.base import Invalid
from lakebed.gc.engines import java
from lakebed.settings import Settings, effective_settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["NoKeys", "builder", "java_home", "s3a_package", "s3a_settings"]


class NoKeys(Invalid):
    """No credentials are configured, so Spark could not sign its requests."""


def builder(
    environ: Mapping[str, str] = os.environ, *, packages: tuple[str, ...] = (), repository: str = ""
) -> SparkSession.Builder:
    """Return a builder of a session that reads and writes `s3a://REPOSITORY/BRANCH/PATH` on the configured server.

    Sets JAVA_HOME of this process where Spark's launcher would not start otherwise. At the first start Spark loads S3A
    from Maven Central, and `packages`. With a `repository` the settings hold for its bucket alone.

    Raises:
        NotFound, NoKeys: the message says what to install or to set.
        BadSettings: the configuration file has errors.
    """
    from pyspark.sql import SparkSession

    os.environ["JAVA_HOME"] = str(java_home(environ))
    made = SparkSession.Builder()
    for name, value in s3a_settings(effective_settings(environ), packages=packages, repository=repository).items():
        made = made.config(name, value)
    return made


def java_home(environ: Mapping[str, str] = os.environ) -> Path:
    """Return a JAVA_HOME that Spark starts with: the machine's, else one over the Java that pip brought.

    The second one is a small folder in the user's cache. It lasts, and calls the real Java.

    Raises:
        NotFound: there is none; the message says what to install.
        Invalid: another user could write into the folder.
    """
    cache = Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return java.lasting_home(java.find_java(environ), cache / "lakebed")


def s3a_package() -> str:
    """Return the Maven name of S3A, in the version of Hadoop that the installed pyspark brings; empty where unknown."""
    version = java.hadoop_version()
    return f"org.apache.hadoop:hadoop-aws:{version}" if version else ""


def s3a_settings(settings: Settings, *, packages: tuple[str, ...] = (), repository: str = "") -> dict[str, str]:
    """Return Spark's settings for the server and the key pair in `settings`. S3A itself is the first of the packages.

    Raises:
        NoKeys: a half of the key pair is missing.
    """
    if not (settings.access_key_id and settings.secret_access_key):
        raise NoKeys(
            "Spark needs a key pair: `lakebed setup` makes that of a new server, `lakebed config set` stores another"
        )
    bucket = f"spark.hadoop.fs.s3a.bucket.{repository}" if repository else "spark.hadoop.fs.s3a"
    jars = ",".join(filter(None, (s3a_package(), *packages)))
    return {
        **({"spark.jars.packages": jars} if jars else {}),
        f"{bucket}.endpoint": settings.endpoint,
        # The server takes any region. Without one the SDK looks for it in the environment, and then fails.
        f"{bucket}.endpoint.region": "us-east-1",
        f"{bucket}.path.style.access": "true",
        f"{bucket}.aws.credentials.provider": "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider",
        f"{bucket}.access.key": settings.access_key_id,
        f"{bucket}.secret.key": settings.secret_access_key,
    }
