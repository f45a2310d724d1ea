"""A YARN of one node on this machine, all of it on 127.0.0.1, and the packed Python that its containers run."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from lakebed.gc import find_java
from lakebed.gc.engines.java import shim_home
from tests.kv.servers import jars_of, keep, program

from .standalone import LOG4J, SMALL, SPARK, wait_until

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, kw_only=True)
class Yarn:
    """`logs` holds a folder for each application, and below it one for each container."""

    environ: dict[str, str]
    logs: Path
    folder: Path

    def settings(self) -> dict[str, str]:
        """What an application says to run here, as settings of Spark."""
        here = {"SPARK_LOCAL_IP": "127.0.0.1"}
        return {
            "spark.master": "yarn",
            "spark.driver.extraJavaOptions": " ".join(SMALL[:-1]),
            "spark.driver.memory": "512m",
            "spark.executor.cores": "1",
            "spark.executor.extraJavaOptions": " ".join(SMALL[:-1]),
            "spark.executor.instances": "1",
            "spark.executor.memory": "512m",
            "spark.sql.shuffle.partitions": "2",
            "spark.ui.enabled": "false",
            "spark.yarn.am.extraJavaOptions": " ".join(SMALL[:-1]),
            "spark.yarn.jars": f"local:{SPARK}/jars/*",  # else each application copies them
            "spark.yarn.stagingDir": str(self.folder / "staging"),
            **{f"spark.executorEnv.{name}": value for name, value in here.items()},
            **{f"spark.yarn.appMasterEnv.{name}": value for name, value in here.items()},
        }


@contextlib.contextmanager
def yarn(folder: Path) -> Iterator[Yarn]:
    """Start a resource manager and a node manager, and end both with the block, and every container."""
    system_java, libraries = program("java", "openjdk-17-jdk-headless"), jars_of("yarn", beside=__file__)
    java = shim_home(find_java({}, bundled_only=True), folder / "java")
    (log4j := folder / "log4j2.properties").write_text(LOG4J)
    environ = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "LAKEBED_"))},
        "HADOOP_CONF_DIR": str(folder / "conf"),
        "JAVA_HOME": str(java),
        "SPARK_HOME": str(SPARK),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    command = [system_java, *SMALL[:-1], "-Xmx512m", f"-Dlog4j2.configurationFile=file:{log4j}"]
    command += ["-cp", f"{libraries}/*:{SPARK}/jars/*", str(Path(__file__).with_name("Yarn.java")), str(folder)]
    log = folder / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, env=environ, cwd=folder, stdin=subprocess.PIPE, stdout=output, stderr=output
        )  # that our end of its standard input goes ends it, however we end
    assert process.stdin is not None
    try:
        site = folder / "conf" / "yarn-site.xml"
        wait_until(lambda: process.poll() is not None or site.exists(), log)
        assert site.exists(), log.read_text(errors="replace")
        yield Yarn(environ=environ, logs=folder / "logs", folder=folder)
    finally:
        process.stdin.close()
        process.wait()


def packed_environment() -> Path:
    """Pack an environment for workers and drivers as docs/guide/clusters.md has it, once, or skip."""
    recipe = (ROOT / "docs" / "guide" / "clusters.md").read_text()
    found = re.search(r"(env/bin/pip install .*)\n(env/bin/venv-pack .*)", recipe)
    assert found is not None, "the recipe"
    install, pack = found.groups()
    pinned = ROOT / "constraints.txt"
    seed = f"{sys.version} {install} {pack}".encode() + pinned.read_bytes()
    kept = Path.home() / ".cache" / "lakebed-tests" / f"packed-{zlib.crc32(seed):08x}"
    if not (kept / "env.tar.gz").exists():
        draft = kept.with_name(f"{kept.name}.{os.getpid()}")
        draft.mkdir(parents=True)
        commands = (f"{sys.executable} -m venv env", f"{install} -q -c {pinned}", pack)
        for command in commands:
            done = subprocess.run(shlex.split(command), cwd=draft, check=False, capture_output=True, text=True)
            if done.returncode:
                shutil.rmtree(draft)
                pytest.skip(f"`{command}` failed: {done.stderr[-300:]}")
        keep(draft, kept)
    return kept / "env.tar.gz"
