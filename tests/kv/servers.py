"""Start real database servers for tests: on loopback, with a folder of their own, ended with the test run.

A test skips with the name of what is missing. `.ci/run` installs the servers that are packages of Debian. Maven and Go
load and build the others only where LAKEBED_TEST_LOADS=all asks for it. Every wait has an end.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import ClassVar, Final

import pytest

from bench.http import family
from lakebed.kv import PredicateFailed, Store, open_store, store_partitions
from lakebed.testing.contracts import RemoteStoreContract
from lakebed.testing.contracts.network import faulty_network, held_port

DATABASES = (
    "bigtable",
    "cassandra",
    "consul",
    "cosmos",
    "dynamodb",
    "etcd",
    "foundationdb",
    "hbase",
    "mongodb",
    "mysql",
    "postgres",
    "redis",
    "spanner",
)
DOUBLES = ("consul", "cosmos", "foundationdb")
"""Of these a double stands in, which we wrote: its speed says nothing."""
START_S = 300
"""Much longer than any takes, also on a busy machine."""
LOAD_S = 600 if os.environ.get("LAKEBED_TEST_LOADS") == "all" else 180
"""Until then a program is loaded or built."""
USER = 65534
"""The user `nobody`: some servers refuse to run as root."""


RUN = f"{os.getpid()}_{os.urandom(2).hex()}_"
"""Begins the names of a run's stores where a server of others keeps what earlier runs left."""
_numbers = itertools.count()


class OnServer(RemoteStoreContract):
    """Keep the contract on the server of a module's fixture `server`, by the URIs of its `uri_of(port, name=…)`."""

    not_killed: ClassVar[str] = ""
    """Why the server must not be killed; empty where it may."""

    @pytest.fixture
    def server_port(self, server: Server) -> int:
        return server.port

    @pytest.fixture
    def uri_at(self, request: pytest.FixtureRequest) -> Callable[..., str]:
        return partial(request.module.uri_of, name=f"test{next(_numbers)}")

    @pytest.fixture
    def restart(self, server: Server) -> Callable[[], None]:
        if self.not_killed:
            pytest.skip(self.not_killed)
        return server.restart


async def a_value_put_back_is_noticed(uri: str, *, beside: bytes = b"\xff" * 1024) -> None:
    """Write A, B and A again: the predicate of the first A fails. The store lists both partitions."""
    store = open_store(uri)
    predicate = await store.set_if(b"p", b"key", b"A", None)
    await store.set(b"p", b"key", b"B")
    await store.set(b"p", b"key", b"A")
    await store.set(beside, b"key", b"A")

    with pytest.raises(PredicateFailed):
        await store.set_if(b"p", b"key", b"ours", predicate)

    assert store_partitions(uri) == sorted([b"p", beside])
    await store.close()


async def a_slow_link_is_borne(port: int, uri_of: Callable[[int], str]) -> None:
    """Connect anew while the answers of the server at this port come late."""
    with faulty_network(port) as network:
        store = open_store(uri_of(network.port))  # it closes the connections of its opening
        network.delay_s = 1.5

        await store.set(b"p", b"key", b"value")

        network.delay_s = 0
        assert (await store.scan(b"p", b"", 10)).values == [b"value"]
        await store.close()


WRITES: Final = 150


async def writes_by_16(store: Store, partition: bytes) -> None:
    """Write WRITES new keys. Each caller begins its next write at once."""
    ahead = iter(range(WRITES))

    async def caller() -> None:
        for number in ahead:
            await store.set_if(partition, b"%03d" % number, b"value", None)

    await asyncio.gather(*(caller() for _ in range(16)))


@dataclass
class Server:
    """A server that can be stopped, killed and started again over the same folder."""

    command: Sequence[str]
    folder: Path
    port: int
    environment: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None
    as_root: bool = False

    def start(self) -> None:
        environment = {**os.environ, **self.environment}
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                as_user(self.command, as_root=self.as_root),
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env=environment,
            )
        deadline = time.monotonic() + START_S
        while not is_listening(self.port):
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"{self.command[0]} did not start: {(self.folder / 'log').read_text()[-2000:]}")
            time.sleep(0.02)

    def restart(self) -> None:
        """Kill it as a power cut would, and start it again."""
        self.kill()
        self.start()

    def kill(self) -> None:
        """Kill all its processes, and return once they are gone: PostgreSQL refuses to start beside one of its own."""
        assert self.process is not None
        pids = []
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGSTOP)  # it starts no other meanwhile
            pids = family(self.process.pid)
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self.process.wait(START_S)
        deadline = time.monotonic() + START_S
        while any(is_alive(pid) for pid in pids):
            assert time.monotonic() < deadline, f"{self.command[0]} outlives kill -9"
            time.sleep(0.02)


def is_alive(pid: int) -> bool:
    """Tell whether there is this process. One that only its parent has to wait for is not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def as_user(command: Sequence[str], *, as_root: bool = False) -> list[str]:
    """Run as an ordinary user, and end with us however we end."""
    identity = [f"--reuid={USER}", f"--regid={USER}", "--clear-groups"] if os.geteuid() == 0 and not as_root else []
    return ["setpriv", *identity, "--pdeathsig=KILL", *command]


def is_listening(port: int) -> bool:
    with closing(socket.socket()) as connection:
        return connection.connect_ex(("127.0.0.1", port)) == 0


def program(name: str, package: str, *folders: str) -> str:
    """Find a program of the distribution, or skip."""
    found = shutil.which(name, path=os.pathsep.join([*folders, os.environ["PATH"], "/usr/sbin"]))
    if found is None:
        pytest.skip(f"{name} is not installed: apt-get install {package}")
    return found


@contextmanager
def folder_for(name: str, *, place: str | None = None) -> Iterator[Path]:
    """Make a folder that the user of the servers may use. pytest's own are closed to it."""
    with tempfile.TemporaryDirectory(prefix=f"lakebed-{name}-", dir=place, ignore_cleanup_errors=True) as text:
        folder = Path(text)
        if os.geteuid() == 0:
            os.chown(folder, USER, USER)
        yield folder


@contextmanager
def running(server: Server) -> Iterator[Server]:
    try:
        server.start()
        yield server
    finally:
        if server.process is not None:
            server.kill()


@contextmanager
def postgres(*settings: str) -> Iterator[Server]:
    """Start PostgreSQL, with settings such as `fsync=off`. Its user and database are `lakebed`."""
    binaries = [str(folder) for folder in sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)]
    initdb, postgres = (program(name, "postgresql", *binaries) for name in ("initdb", "postgres"))
    with folder_for("postgres") as folder, held_port() as port:
        data = folder / "data"
        make = [initdb, "-D", str(data), "-U", "lakebed", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"]
        subprocess.run(as_user(make), check=True, capture_output=True, cwd=folder)
        options = [f"--{setting}" for setting in (f"port={port}", "listen_addresses=127.0.0.1", *settings)]
        with running(Server([postgres, "-D", str(data), "-k", str(folder), *options], folder, port)) as server:
            wait_until_it_answers(folder, port)
            yield server


@contextmanager
def replica_of(primary: Server) -> Iterator[Server]:
    """Start a replica of a PostgreSQL. The primary answers no write before the replica has it, from now on."""
    program_file = primary.command[0]
    with folder_for("replica") as folder, held_port() as port:
        data = folder / "data"
        source = ["-h", "127.0.0.1", "-p", str(primary.port), "-U", "lakebed"]
        copy = [str(Path(program_file).parent / "pg_basebackup"), *source, "-D", str(data), "-R", "-c", "fast", "-N"]
        subprocess.run(as_user(copy), check=True, capture_output=True, cwd=folder)
        options = ["-D", str(data), "-k", str(folder), f"--port={port}", "--listen_addresses=127.0.0.1"]
        with running(Server([program_file, *options], folder, port)) as replica:
            wait_until_it_answers(folder, port)
            ask_as_administrator(primary, "ALTER SYSTEM SET synchronous_standby_names = '*'")
            ask_as_administrator(primary, "SELECT pg_reload_conf()")
            deadline = time.monotonic() + START_S
            while ask_as_administrator(primary, "SELECT sync_state FROM pg_stat_replication") != "sync":
                assert time.monotonic() < deadline, (folder / "log").read_text()[-2000:]
                time.sleep(0.02)
            yield replica


def ask_as_administrator(server: Server, statement: str) -> str:
    """Ask a PostgreSQL by its own command; returns the first column of all rows."""
    place = ["-h", "127.0.0.1", "-p", str(server.port), "-U", "lakebed", "-d", "postgres"]
    asked = ["psql", *place, "-q", "-A", "-t", "-c", statement]
    return subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip()


def promote(replica: Server) -> None:
    """Make the replica of a PostgreSQL the primary."""
    ask_as_administrator(replica, "SELECT pg_promote()")


def wait_until_it_answers(folder: Path, port: int) -> None:
    """PostgreSQL listens before it takes connections."""
    deadline = time.monotonic() + START_S
    while subprocess.run(["pg_isready", "-q", "-h", "127.0.0.1", "-p", str(port)], check=False).returncode:
        assert time.monotonic() < deadline, (folder / "log").read_text()[-2000:]
        time.sleep(0.02)


@contextmanager
def redis(*settings: str) -> Iterator[Server]:
    """Start Redis with an append-only file, and further settings such as `--appendfsync everysec`.

    LAKEBED_TEST_REDIS_SERVER names another program that takes the same options, such as Valkey's.
    """
    program_file = program(os.environ.get("LAKEBED_TEST_REDIS_SERVER", "redis-server"), "redis-server")
    with folder_for("redis") as folder, held_port() as port:
        safe = "--bind 127.0.0.1 --appendonly yes --appendfsync always --repl-diskless-sync-delay 0"
        chosen = [*safe.split(), "--save", "", *" ".join(settings).split()]
        command = [program_file, "--port", str(port), "--dir", str(folder), *chosen]
        with running(Server(command, folder, port)) as server:
            yield server


@contextmanager
def dynamodb() -> Iterator[Server]:
    """Start DynamoDB Local, which listens on every interface: in a network namespace of its own."""
    if os.geteuid() != 0:
        pytest.skip("DynamoDB Local needs a network namespace, which only root makes")
    java, libraries = program("java", "default-jre-headless"), jars_of("dynamodb")
    # In memory: it syncs each write for some 50 ms, and the real one is not this program.
    with folder_for("dynamodb", place="/dev/shm") as folder, held_port() as port:
        main = "com.amazonaws.services.dynamodbv2.local.main.ServerRunner"
        inner = [java, "-Xmx512m", f"-Djava.library.path={libraries}", "-cp", f"{libraries}/*", main]
        inner += ["-port", "8000", "-sharedDb", "-dbPath", str(folder), "-disableTelemetry"]
        script = str(Path(__file__).with_name("enclosed.py"))
        command = [sys.executable, script, str(port), "8000", *inner]
        with running(Server(command, folder, port, as_root=True)) as server:
            yield server


def jars_of(name: str, *, beside: str = __file__) -> Path:
    """Load what `NAME.xml` beside this file names with Maven, once, or skip."""
    pom = Path(beside).with_name(f"{name}.xml")
    kept = Path.home() / ".cache" / "lakebed-tests" / f"{name}-{zlib.crc32(pom.read_bytes()):08x}"
    if not kept.exists():
        asked_for(name)
        mvn = [program("mvn", "maven"), "-q", "-B", "-f", str(pom), "dependency:copy-dependencies"]
        draft = kept.with_name(f"{kept.name}.{os.getpid()}")
        load(name, [*mvn, f"-DoutputDirectory={draft}"])
        keep(draft, kept)
    return kept


def asked_for(name: str) -> None:
    """Skip what takes minutes and hundreds of megabytes, unless LAKEBED_TEST_LOADS=all asks for it."""
    if os.environ.get("LAKEBED_TEST_LOADS") != "all":
        pytest.skip(f"{name} is not here yet: LAKEBED_TEST_LOADS=all loads it, once")


def load(
    name: str, command: Sequence[str], *, folder: Path | None = None, environment: dict[str, str] | None = None
) -> None:
    """Run what loads or builds a program, or skip. A registry that does not answer costs LOAD_S once, not each test."""
    failed = Path(tempfile.gettempdir()) / f"lakebed-{os.environ.get('PYTEST_XDIST_TESTRUNUID', os.getpid())}-no-{name}"
    if failed.exists():
        pytest.skip(f"{name} could not be loaded earlier in this run")
    try:
        done = subprocess.run(
            command,
            check=False,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            cwd=folder,
            env=environment,
            timeout=LOAD_S,
        )
    except subprocess.TimeoutExpired:
        why = f"not in {LOAD_S} s"
    else:
        if not done.returncode:
            return
        why = (done.stderr or done.stdout)[-300:]
    failed.touch()
    pytest.skip(f"{name} could not be loaded: {why}")


def keep(draft: Path, kept: Path) -> None:
    """Put a finished draft into its place, unless another worker was first. Then drop the draft."""
    try:
        draft.rename(kept)
    except OSError:
        if not kept.is_dir():
            raise
        shutil.rmtree(draft)


def npm_package(package: str) -> Path:
    """Load `NAME@VERSION` with npm, once, or skip; return its folder."""
    name = package.partition("@")[0]
    kept = Path.home() / ".cache" / "lakebed-tests" / package.replace("@", "-")
    if not kept.exists():
        npm = program("npm", "npm")
        draft = kept.with_name(f"{kept.name}.{os.getpid()}")
        draft.mkdir(parents=True)
        try:
            load(name, [npm, "install", "--no-audit", "--no-fund", "--prefix", str(draft), package])
        except pytest.skip.Exception:
            shutil.rmtree(draft)
            raise
        keep(draft, kept)
    return kept / "node_modules" / name


def go_program(package: str, version: str, *, is_asked: bool = False) -> Path:
    """Build a program of the Go module proxy, once, or skip. `is_asked`: a variable of its own asks for it."""
    kept = Path.home() / ".cache" / "lakebed-tests" / f"go-{zlib.crc32(f'{package}@{version}'.encode()):08x}"
    built = kept / package.rpartition("/")[2]
    if not built.exists():
        if not is_asked:
            asked_for(package)
        go, environment = program("go", "golang-go", "/usr/local/go/bin"), {**os.environ, "GOBIN": str(kept)}
        load(built.name, [go, "install", f"{package}@{version}"], environment=environment)
    return built


def go_main(module: str, version: str, *, may_build: bool = True) -> Path:
    """Build the main program of a Go module that `go install` refuses, because it replaces modules. Once, or skip.

    Without `may_build`: skip where it was not built before.
    """
    kept = Path.home() / ".cache" / "lakebed-tests" / f"go-{zlib.crc32(f'{module}@{version}'.encode()):08x}"
    built = kept / module.rpartition("/")[2]
    if not built.exists():
        if not may_build:
            pytest.skip(f"{module} takes minutes to build")
        go = program("go", "golang-go", "/usr/local/go/bin")
        kept.mkdir(parents=True, exist_ok=True)
        (kept / "go.mod").write_text(f"module tests\ngo 1.17\nrequire {module} {version}\n")
        load(built.name, [go, "build", "-mod=mod", "-o", str(built), module], folder=kept)
    return built


def python_packages(*pinned: str) -> Path:
    """Load packages that would not go with ours into a folder of their own, once, or skip. It is for a PYTHONPATH."""
    # Scripts in it begin with the path of the Python that made it.
    names = " ".join([f"{sys.version_info.major}.{sys.version_info.minor}", sys.executable, *pinned])
    kept = Path.home() / ".cache" / "lakebed-tests" / f"python-{zlib.crc32(names.encode()):08x}"
    if not kept.exists():
        draft = kept.with_name(f"{kept.name}.{os.getpid()}")
        pip = [sys.executable, "-m", "pip", "install", "-q", "--only-binary=:all:", "--target", str(draft), *pinned]
        try:
            load(kept.name, pip)
        except pytest.skip.Exception:
            shutil.rmtree(draft, ignore_errors=True)
            raise
        keep(draft, kept)
    return kept


def crate(name: str, version: str) -> Path:
    """Load the source of a crate with cargo, once, or skip."""
    home = Path(os.environ.get("CARGO_HOME") or Path.home() / ".cargo")
    pattern = f"registry/src/*/{name}-{version}"
    if not [*home.glob(pattern)]:
        cargo = program("cargo", "cargo", str(home / "bin"))
        with tempfile.TemporaryDirectory(prefix="lakebed-crate-") as text:
            manifest = Path(text) / "Cargo.toml"
            manifest.write_text(
                '[package]\nname = "tests"\nversion = "0.0.0"\nedition = "2021"\n'
                f'[dependencies]\n{name} = {{ version = "={version}", default-features = false }}\n'
            )
            (Path(text) / "src").mkdir()
            (Path(text) / "src" / "lib.rs").touch()
            load(name, [cargo, "fetch", "--quiet", "--manifest-path", str(manifest)])
    return next(home.glob(pattern))


@contextmanager
def bigtable() -> Iterator[Server]:
    """Start Google's own emulator of Bigtable, which keeps all in memory."""
    built = go_program("cloud.google.com/go/bigtable/cmd/emulator", "v1.58.0")
    with folder_for("bigtable") as folder, held_port() as port:
        # As root, for the folder of the program may be closed to others.
        command = [str(built), "-host", "127.0.0.1", "-port", str(port)]
        with running(Server(command, folder, port, as_root=True)) as server:
            yield server


SPANNER = "spanner://tests/tests/tests"


@contextmanager
def spanner(*options: str) -> Iterator[Server]:
    """Start Google's own emulator of Spanner, which keeps all in memory, with the database of SPANNER."""
    pytest.importorskip("google.cloud.spanner_v1")
    folder_of_program = "/usr/lib/google-cloud-sdk/bin/cloud_spanner_emulator"
    built = program("emulator_main", "google-cloud-cli-spanner-emulator", folder_of_program)
    with folder_for("spanner") as folder, held_port() as port:
        command = [built, "--host_port", f"127.0.0.1:{port}", *options]
        with running(Server(command, folder, port)) as server:
            make_spanner_database(port)
            yield server


def make_spanner_database(port: int) -> None:
    import grpc
    from google.cloud.spanner_admin_database_v1 import DatabaseAdminClient
    from google.cloud.spanner_admin_instance_v1 import Instance, InstanceAdminClient

    instance = Instance(config="projects/tests/instanceConfigs/emulator-config", node_count=1)
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        instances, databases = (
            client(transport=client.get_transport_class("grpc")(channel=channel))
            for client in (InstanceAdminClient, DatabaseAdminClient)
        )
        instances.create_instance(parent="projects/tests", instance_id="tests", instance=instance)
        databases.create_database(parent="projects/tests/instances/tests", create_statement="CREATE DATABASE tests")


CASSANDRA_OPENS = """
java.base/java.io java.base/java.lang java.base/java.lang.module java.base/java.math java.base/java.net
java.base/java.nio java.base/java.util java.base/java.util.concurrent java.base/java.util.concurrent.atomic
java.base/jdk.internal.math java.base/jdk.internal.module java.base/jdk.internal.ref java.base/jdk.internal.reflect
java.base/jdk.internal.util.jar java.base/sun.nio.ch java.management.rmi/javax.management.remote.rmi
java.management/com.sun.jmx.remote.security java.rmi/sun.rmi.registry java.rmi/sun.rmi.server
java.rmi/sun.rmi.transport java.rmi/sun.rmi.transport.tcp java.sql/java.sql
jdk.management/com.sun.management.internal
"""
CASSANDRA_SETTINGS = """
cluster_name: tests
partitioner: org.apache.cassandra.dht.Murmur3Partitioner
commitlog_sync: batch
commitlog_directory: {folder}/commitlog
cas_contention_timeout: 30s
read_request_timeout: 30s
write_request_timeout: 30s
request_timeout: 30s
commitlog_segment_size: 16MiB
commitlog_total_space: 128MiB
data_file_directories: [{folder}/data]
saved_caches_directory: {folder}/caches
hints_directory: {folder}/hints
cdc_raw_directory: {folder}/cdc
listen_address: 127.0.0.1
rpc_address: 127.0.0.1
native_transport_port: {port}
storage_port: {storage}
endpoint_snitch: SimpleSnitch
num_tokens: 1
seed_provider:
  - class_name: org.apache.cassandra.locator.SimpleSeedProvider
    parameters: [{{seeds: "127.0.0.1:{storage}"}}]
"""


@contextmanager
def cassandra() -> Iterator[Server]:
    """Start one node of Cassandra, on Java 17."""
    java, libraries = program("java", "openjdk-17-jre-headless"), jars_of("cassandra")
    # In memory: it syncs each step of each write, and a killed process loses nothing that it wrote there.
    with folder_for("cassandra", place="/dev/shm") as folder, held_port() as port, held_port() as storage:
        settings = folder / "cassandra.yaml"
        settings.write_text(CASSANDRA_SETTINGS.format(folder=folder, port=port, storage=storage))
        opened = [option for each in CASSANDRA_OPENS.split() for option in ("--add-opens", f"{each}=ALL-UNNAMED")]
        exported = [option.replace("--add-opens", "--add-exports") for option in opened]
        command = [java, "-Xms512m", "-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", *opened, *exported]
        command += [f"-Dcassandra.config=file://{settings}", f"-Dcassandra.storagedir={folder}"]
        command += ["-Dcassandra.skip_wait_for_gossip_to_settle=0", "-Dcassandra.ring_delay_ms=1"]
        command += ["-cp", f"{libraries}/*", "org.apache.cassandra.service.CassandraDaemon"]
        # As root, for the folder of its libraries may be closed to others.
        with running(Server(command, folder, port, as_root=True)) as server:
            yield server


HBASE_OPENS = "java.base/java.lang java.base/java.nio java.base/sun.nio.ch java.base/jdk.internal.misc"


@contextmanager
def hbase() -> Iterator[Server]:
    """Use the REST server whose port LAKEBED_TEST_HBASE names, or start HBase in one process, on Java 17."""
    if named := os.environ.get("LAKEBED_TEST_HBASE"):
        yield Server([], Path(), int(named))
        return
    java, libraries = program("java", "openjdk-17-jdk-headless"), jars_of("hbase")
    # In memory: a killed process loses nothing that it wrote there.
    with folder_for("hbase", place="/dev/shm") as folder, held_port() as port:
        source = Path(__file__).with_name("HBase.java")
        opened = [option for each in HBASE_OPENS.split() for option in ("--add-opens", f"{each}=ALL-UNNAMED")]
        command = [java, "-Xmx768m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", *opened]
        command += ["-cp", f"{libraries}/*", str(source), str(folder), str(port)]
        # As root, for the folder of its libraries may be closed to others.
        with running(Server(command, folder, port, as_root=True)) as server:
            yield server


@contextmanager
def mongodb() -> Iterator[Server]:
    """Use the MongoDB whose port LAKEBED_TEST_MONGODB names, or start mongo-java-server, which keeps all in memory."""
    if named := os.environ.get("LAKEBED_TEST_MONGODB"):
        yield Server([], Path(), int(named))
        return
    java, libraries = program("java", "default-jdk-headless"), jars_of("mongodb")
    with folder_for("mongodb") as folder, held_port() as port:
        source = Path(__file__).with_name("Mongo.java")
        command = [java, "-Xmx512m", "-XX:TieredStopAtLevel=1", "-cp", f"{libraries}/*", str(source), str(port)]
        # As root, for the folder of its libraries may be closed to others.
        with running(Server(command, folder, port, as_root=True)) as server:
            yield server


@contextmanager
def double(name: str) -> Iterator[Server]:
    """Start the double `tests/kv/NAME_double.py`, or use the server whose port LAKEBED_TEST_NAME names."""
    if named := os.environ.get(f"LAKEBED_TEST_{name.upper()}"):
        yield Server([], Path(), int(named))
        return
    with folder_for(name) as folder, held_port() as port:
        command = [sys.executable, "-m", f"tests.kv.{name}_double", str(port), str(folder / "kept.db")]
        places = [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {"PYTHONPATH": os.pathsep.join(places)}
        # As root, for the folder of the tests may be closed to others.
        with running(Server(command, folder, port, environment, as_root=True)) as server:
            yield server


@contextmanager
def consul() -> Iterator[Server]:
    """Start the double of Consul. Where LAKEBED_TEST_CONSUL is `build`, build and start one server of Consul itself."""
    if os.environ.get("LAKEBED_TEST_CONSUL") != "build":
        with double("consul") as server:
            yield server
        return
    built = go_main("github.com/hashicorp/consul", "v1.12.9")
    with folder_for("consul") as folder, held_port() as port, held_port() as raft, held_port() as gossip:
        command = [str(built), "agent", "-server", "-bootstrap-expect=1", "-data-dir", str(folder / "data")]
        command += ["-bind=127.0.0.1", "-client=127.0.0.1", f"-http-port={port}", f"-server-port={raft}"]
        command += [f"-serf-lan-port={gossip}", "-serf-wan-port=-1", "-dns-port=-1", "-log-level=warn"]
        command += ["-hcl=disable_update_check = true", "-hcl=performance { raft_multiplier = 1 }"]
        # As root, for the folder of the program may be closed to others.
        with running(Server(command, folder, port, as_root=True)) as server:
            yield server


@contextmanager
def foundationdb() -> Iterator[Path]:
    """Put a double of the client in its place, here and in processes that a test starts. Yields a cluster file.

    With LAKEBED_TEST_FOUNDATIONDB the cluster file is that one, and the client the real one.
    """
    if named := os.environ.get("LAKEBED_TEST_FOUNDATIONDB"):
        yield Path(named)
        return
    with folder_for("foundationdb") as folder, pytest.MonkeyPatch.context() as patch:
        place = str(Path(__file__).with_name("foundationdb"))
        patch.syspath_prepend(place)
        patch.setenv("PYTHONPATH", os.pathsep.join([place, *filter(None, [os.environ.get("PYTHONPATH")])]))
        cluster = folder / "fdb.cluster"
        cluster.write_text("tests:tests@127.0.0.1:4500")
        yield cluster


@contextmanager
def etcd(*options: str) -> Iterator[Server]:
    """Start one member of etcd, with options such as `--quota-backend-bytes=…`."""
    program_file = program("etcd", "etcd-server")
    with folder_for("etcd") as folder, held_port() as port, held_port() as peer_port:
        here, peers = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{peer_port}"
        command = [program_file, "--data-dir", str(folder / "data"), "--log-level", "warn"]
        command += ["--listen-client-urls", here, "--advertise-client-urls", here, "--listen-peer-urls", peers]
        command += ["--initial-advertise-peer-urls", peers, "--initial-cluster", f"default={peers}", *options]
        with running(Server(command, folder, port)) as server:
            yield server


@contextmanager
def mariadb(*settings: str) -> Iterator[Server]:
    """Start MariaDB, with settings such as `--sync-binlog=0`. Its user is `root`, without a password.

    LAKEBED_TEST_MYSQL_SERVER names the server program of MySQL, which is started in its place.
    """
    if named := os.environ.get("LAKEBED_TEST_MYSQL_SERVER"):
        server_file = program(named, "mysql-server")
        install, of_install, of_server = (
            server_file,
            ["--initialize-insecure"],
            ["--mysqlx=OFF", "--secure-file-priv=NULL"],
        )
    else:
        install, server_file = (program(name, "mariadb-server") for name in ("mariadb-install-db", "mariadbd"))
        of_install, of_server = ["--auth-root-authentication-method=normal", "--skip-test-db"], list[str]()
    with folder_for("mariadb") as folder, held_port() as port:
        data = f"--datadir={folder / 'data'}"
        make = [install, "--no-defaults", data, *of_install]
        subprocess.run(as_user(make), check=True, capture_output=True, cwd=folder)
        options = [data, f"--socket={folder / 'socket'}", f"--port={port}", "--bind-address=127.0.0.1"]
        options += [*of_server, *settings]
        with running(Server([server_file, "--no-defaults", *options], folder, port)) as server:
            yield server


@contextmanager
def hanging_port() -> Iterator[int]:
    """Yield a port of loopback that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


@asynccontextmanager
async def answering_http(*answers: tuple[int, str]) -> AsyncIterator[int]:
    """Answer requests with these, one after the other. Yields the port."""
    ahead = iter(answers)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer):  # also where no answer is left
            head = await reader.readuntil(b"\r\n\r\n")
            length = head.lower().partition(b"content-length:")[2].split()
            await reader.readexactly(int(length[0]) if length else 0)
            status, body = next(ahead)
            head_of_answer = f"HTTP/1.1 {status} x\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n"
            writer.write((head_of_answer + body).encode())

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as listener:
        yield listener.sockets[0].getsockname()[1]


@contextmanager
def database(name: str) -> Iterator[Callable[[str], str]]:
    """Start this database. Yields how the URI of a store in it is made, from the store's name."""
    match name:
        case "bigtable":
            with bigtable() as server:
                yield lambda store: f"bigtable://tests/tests/{store}?endpoint=http://127.0.0.1:{server.port}"
        case "cassandra":
            with cassandra() as server:
                yield lambda store: f"cassandra://127.0.0.1:{server.port}/tests?table={store}&replicas=1"
        case "consul":
            with consul() as server:
                yield lambda store: f"consul://127.0.0.1:{server.port}?name={store}"
        case "cosmos":
            pytest.importorskip("azure.cosmos")
            with double("cosmos") as server:
                yield lambda store: f"cosmos://:a2V5@127.0.0.1:{server.port}/lakebed/{store}?tls=no"
        case "dynamodb":
            with dynamodb() as server, pytest.MonkeyPatch.context() as patch:
                # The emulator takes any. The processes that a test starts inherit them.
                patch.setenv("AWS_ACCESS_KEY_ID", "any")
                patch.setenv("AWS_SECRET_ACCESS_KEY", "any")
                endpoint = f"http://127.0.0.1:{server.port}"
                yield lambda store: f"dynamodb://eu-central-1/{store}?endpoint={endpoint}&wait_s=30"
        case "etcd":
            with etcd() as server:
                yield lambda store: f"etcd://127.0.0.1:{server.port}?name={store}"
        case "foundationdb":
            with foundationdb() as cluster:
                yield lambda store: f"foundationdb://{cluster}?name={store}"
        case "hbase":
            with hbase() as server:
                yield lambda store: f"hbase://127.0.0.1:{server.port}/{store}?wait_s=60"
        case "mongodb":
            with mongodb() as server:
                yield lambda store: f"mongodb://127.0.0.1:{server.port}/tests?name={store}"
        case "mysql":
            with mariadb() as server:
                yield lambda store: f"mysql://root@127.0.0.1:{server.port}/mysql?prefix={store}"
        case "postgres":
            # A benchmark's 64 callers have a connection each, and so have those of the client beside them.
            with postgres("max_connections=200") as server:
                yield lambda store: f"postgres://lakebed@127.0.0.1:{server.port}/postgres?schema={store}"
        case "redis":
            with redis() as server:
                yield lambda store: f"redis://127.0.0.1:{server.port}/0?name={store}"
        case "spanner":
            with spanner() as server:
                yield lambda store: f"{SPANNER}?table={store}&endpoint=http://127.0.0.1:{server.port}&wait_s=30"
        case _:
            raise AssertionError(name)
