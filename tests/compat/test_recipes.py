"""The guide's recipes for tools, each run as it stands in a process of its own."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import lakefs
import pytest

from tests.kv.servers import asked_for, python_packages

from .serving import Server

PAGE = Path(__file__).parents[2] / "docs" / "guide" / "recipes.md"
PRINTED = {
    "pandas": "13",
    "Dask": "190",
    "DuckDB": "45",
    "Polars": "10",
    "Delta Lake, without Spark": "1 2",
    "Iceberg, without Spark": "3",
}

ENDED_UNDER_THREADS = "terminate called without an active exception\n"
"""What the C++ of pyarrow and deltalake now and then says on a busy machine when Python ends before its threads do.
The program has done and printed all by then."""


def recipe(title: str, language: str) -> str:
    """Return the examples in this language below a heading of the page."""
    section = PAGE.read_text().split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]
    return "\n".join(re.findall(rf"```{language}\n(.*?)```", section, re.DOTALL))


@pytest.fixture
def environment(server: Server, tmp_path: Path) -> dict[str, str]:
    """The variables of the page's head, and none of the machine's settings."""
    keys = {"ACCESS_KEY_ID": server.access_key_id, "SECRET_ACCESS_KEY": server.secret_access_key}
    return {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
        "HOME": str(tmp_path),
        "AWS_ENDPOINT_URL": server.url,
        "AWS_REGION": "us-east-1",
        "LAKEBED_ENDPOINT": server.url,
        **{f"{family}_{name}": value for family in ("AWS", "LAKEBED") for name, value in keys.items()},
    }


def at_home(text: str, repository: lakefs.Repository) -> str:
    """Return a recipe that has this repository in place of `lake`."""
    name = str(repository.id)
    return re.sub(r"(//)lake(?=[/.])", rf"\1{name}", text).replace('repository("lake")', f'repository("{name}")')


def run(command: list[str], folder: Path, environment: Mapping[str, str]) -> str:
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    is_done = done.returncode == 0 or (done.returncode, done.stderr) == (-signal.SIGABRT, ENDED_UNDER_THREADS)
    assert is_done, done.stderr[-3000:] or done.stdout[-3000:]
    return done.stdout


@pytest.mark.parametrize("title", PRINTED)
def test_a_recipe_of_python_runs_as_it_stands(
    title: str, repository: lakefs.Repository, environment: dict[str, str], tmp_path: Path
) -> None:
    text = at_home(recipe(title, "python"), repository)

    printed = run([sys.executable, "-c", text], tmp_path, environment)

    assert " ".join(printed.split()) == PRINTED[title]


@pytest.mark.skipif(shutil.which("rclone") is None, reason="rclone is not installed")
def test_the_recipe_of_rclone_runs_as_it_stands(
    repository: lakefs.Repository, environment: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "a.csv").write_text("a,1\n")
    text = recipe("rclone", "sh").replace("lake:lake/", f"lake:{repository.id}/")

    printed = run(["sh", "-ec", text], tmp_path, environment)

    assert printed.split() == ["4", "a.csv"]


def test_the_recipe_of_mlflow_runs_as_it_stands(
    server: Server, repository: lakefs.Repository, environment: dict[str, str], tmp_path: Path
) -> None:
    asked_for("MLflow")
    packages = python_packages("mlflow-skinny==3.17.2", "sqlalchemy==2.1.9", "alembic==1.20.1")
    path = {"PYTHONPATH": f"{environment['PYTHONPATH']}:{packages}", "MLFLOW_S3_ENDPOINT_URL": server.url}

    printed = run([sys.executable, "-c", at_home(recipe("MLflow", "python"), repository)], tmp_path, environment | path)

    assert printed.split() == ["0.9"]
    assert [str(each.path).rpartition("/")[2] for each in repository.branch("main").objects()] == ["accuracy.txt"]


def test_the_recipe_of_dvc_runs_as_it_stands(
    repository: lakefs.Repository, environment: dict[str, str], tmp_path: Path
) -> None:
    asked_for("DVC")
    # Some of its packages have no wheels.
    packages = python_packages("dvc==3.67.1", "dvc-s3==3.3.0", "--only-binary=:none:")
    path = {"PYTHONPATH": str(packages), "PATH": f"{packages}/bin:{environment['PATH']}"}
    (tmp_path / "model.bin").write_bytes(b"weights")

    run(["sh", "-ec", at_home(recipe("DVC", "sh"), repository)], tmp_path, environment | path)

    assert (tmp_path / "model.bin").read_bytes() == b"weights"
    assert len(list(repository.branch("main").objects(prefix="dvc/files/md5/"))) == 1


def test_the_recipe_of_hugging_face_runs_as_it_stands(
    repository: lakefs.Repository, environment: dict[str, str], tmp_path: Path
) -> None:
    asked_for("Hugging Face datasets")
    path = {"PYTHONPATH": f"{environment['PYTHONPATH']}:{python_packages('datasets==5.2.0')}"}
    text = at_home(recipe("Hugging Face datasets", "python"), repository)

    printed = run([sys.executable, "-c", text], tmp_path, environment | path)

    assert printed.split() == ["[4,", "9]"]


def test_the_recipe_of_dlt_runs_as_it_stands(
    server: Server, repository: lakefs.Repository, environment: dict[str, str], tmp_path: Path
) -> None:
    asked_for("dlt")
    packages = python_packages("dlt==1.31.0", "s3fs==2026.9.0", "botocore")
    secrets = "\n".join(
        [
            "[destination.filesystem.credentials]",
            f'endpoint_url = "{server.url}"',
            f'aws_access_key_id = "{server.access_key_id}"',
            f'aws_secret_access_key = "{server.secret_access_key}"',
        ]
    )
    (tmp_path / ".dlt").mkdir()
    (tmp_path / ".dlt" / "secrets.toml").write_text(secrets)
    path = {"PYTHONPATH": f"{packages}:{environment['PYTHONPATH']}", "RUNTIME__DLTHUB_TELEMETRY": "false"}

    run([sys.executable, "-c", at_home(recipe("dlt", "python"), repository)], tmp_path, environment | path)

    main = repository.branch("main")
    assert len(list(main.objects(prefix="dlt/air/flights/"))) == 1
    assert next(iter(main.log())).message == "delays by dlt"


def test_the_recipe_of_dbt_writes_a_model_to_the_branch(
    repository: lakefs.Repository, environment: dict[str, str], tmp_path: Path
) -> None:
    asked_for("dbt")
    packages = python_packages("dbt-duckdb==1.9.6", "dbt-core==1.10.13", "duckdb==1.4.1")
    (tmp_path / "models").mkdir()
    (tmp_path / "profiles.yml").write_text(at_home(recipe("dbt", "yaml"), repository))
    (tmp_path / "dbt_project.yml").write_text("name: lake\nprofile: lake\nversion: 1.0.0\n")
    (tmp_path / "models" / "delays.sql").write_text("{{ config(materialized='external') }} select 4 as delay")
    more = {"PYTHONPATH": f"{environment['PYTHONPATH']}:{packages}", "DBT_SEND_ANONYMOUS_USAGE_STATS": "false"}
    command = [sys.executable, "-c", "from dbt.cli.main import cli; cli()", "run", "--profiles-dir", "."]

    run(command, tmp_path, environment | more)

    assert [each.path for each in repository.branch("main").objects()] == ["models/delays.parquet"]


def test_the_recipe_of_dagster_runs_as_it_stands(
    repository: lakefs.Repository, environment: dict[str, str], tmp_path: Path
) -> None:
    asked_for("Dagster")
    path = {"PYTHONPATH": f"{environment['PYTHONPATH']}:{python_packages('dagster==1.13.0')}"}
    (tmp_path / "flights.py").write_text(at_home(recipe("Dagster", "python"), repository))

    run([sys.executable, "flights.py"], tmp_path, environment | path | {"DAGSTER_HOME": ""})

    assert next(iter(repository.branch("main").log())).message == "flights"


@pytest.fixture
def airflow(environment: dict[str, str], tmp_path: Path) -> Callable[..., str]:
    """Return a function that runs the command, where Airflow is installed beside the package, or asked for."""
    variables = {"AIRFLOW_HOME": str(tmp_path), "AIRFLOW__CORE__LOAD_EXAMPLES": "false"}
    command = shutil.which("airflow")
    if command is not None:
        python = Path(command).resolve().with_name("python")
        variables["PYTHONPATH"] = ""
        if subprocess.run([python, "-c", "import lakebed"], capture_output=True, check=False).returncode:
            pytest.skip("the package lakebed is not installed where Airflow is")
        begins = [command]
    else:
        asked_for("Airflow")
        variables["PYTHONPATH"] = f"{python_packages('apache-airflow==3.3.2')}:{environment['PYTHONPATH']}"
        begins = [sys.executable, "-m", "airflow"]
    (tmp_path / "dags").mkdir()
    variables["PYTHONPATH"] = f"{tmp_path / 'dags'}:{variables['PYTHONPATH']}".rstrip(":")

    def airflow(*arguments: str) -> str:
        return run([*begins, *arguments], tmp_path, environment | variables)

    airflow("db", "migrate")
    return airflow


def test_the_recipe_of_airflow_runs_as_it_stands(
    airflow: Callable[..., str], repository: lakefs.Repository, tmp_path: Path
) -> None:
    (tmp_path / "dags" / "load_flights.py").write_text(at_home(recipe("Airflow", "python"), repository))

    airflow("dags", "test", "load_flights", "2026-11-01")

    assert next(iter(repository.branch("main").log())).message == "flights of 2026-11-01"


def test_the_dag_of_the_page_on_pipelines_merges_one_run_as_it_stands(
    airflow: Callable[..., str], repository: lakefs.Repository, tmp_path: Path
) -> None:
    page = PAGE.with_name("pipelines.md").read_text()
    [steps] = re.findall(r"## The steps\n.*?```python\n(.*?)```", page, re.DOTALL)
    [dag] = re.findall(r"## Airflow\n```py\n(.*?)```", page, re.DOTALL)
    (tmp_path / "dags" / "steps.py").write_text(
        steps.replace('repository("flights")', f'repository("{repository.id}")')
    )
    (tmp_path / "dags" / "flights.py").write_text(dag)

    airflow("dags", "test", "flights")  # For the date of today: a DAG that starts later runs no task.

    merged, loaded, *_ = repository.branch("main").log()
    assert merged.message.startswith("run manual__")
    assert loaded.message == "load flights"
    assert repository.branch("main").object("flights.csv").reader(mode="r").read() == "carrier,delay\nAA,4\nUA,9\n"
    assert [branch.id for branch in repository.branches()] == ["main"]
