"""A PostgreSQL and its replica, which takes over now and then. What was the primary becomes the next replica.

Each has a port of its own for good, behind a network that can be cut.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from lakebed.testing.contracts.network import FaultyNetwork, faulty_network, held_port
from tests.kv.servers import Server, as_user, ask_as_administrator, folder_for, postgres, promote, wait_until_it_answers


class Replicated:
    """`take_over` loses no answered write: the primary waited with each answer for the replica."""

    def __init__(self, primary: Server, replica: Server, networks: list[FaultyNetwork]) -> None:
        self.primary = primary
        self.replica = replica
        self.networks = networks

    def uri(self) -> str:
        hosts = ",".join(f"127.0.0.1:{network.port}" for network in self.networks)
        return f"postgres://lakebed@{hosts}/postgres?schema=storm&wait_s=30"

    def crash(self) -> None:
        """Kill the primary and start it again."""
        self.primary.restart()
        wait_until_it_answers(self.primary.folder, self.primary.port)

    def take_over(self) -> None:
        """Kill the primary, let the replica take its place, and make the primary a replica of it."""
        self.primary.kill()
        promote(self.replica)
        while ask_as_administrator(self.replica, "SELECT pg_is_in_recovery()") != "f":
            time.sleep(0.02)
        self.primary, self.replica = self.replica, self.primary
        shutil.rmtree(self.replica.folder / "data")
        self.follow()

    def follow(self) -> None:
        """Start the replica with a copy of the primary. From then on the primary waits for it."""
        # Until then the primary answers alone: there is no other that could take over.
        _set_standbys(self.primary, "")
        bin_folder, data = Path(self.primary.command[0]).parent, self.replica.folder / "data"
        source = ["-h", "127.0.0.1", "-p", str(self.primary.port), "-U", "lakebed"]
        copy = [str(bin_folder / "pg_basebackup"), *source, "-D", str(data), "-R", "-c", "fast", "-N"]
        subprocess.run(as_user(copy), check=True, capture_output=True, cwd=self.replica.folder)
        self.replica.start()
        wait_until_it_answers(self.replica.folder, self.replica.port)
        _set_standbys(self.primary, "*")
        while ask_as_administrator(self.primary, "SELECT sync_state FROM pg_stat_replication") != "sync":
            time.sleep(0.05)
        time.sleep(1)  # until each connection of the primary knows


def _set_standbys(primary: Server, names: str) -> None:
    ask_as_administrator(primary, f"ALTER SYSTEM SET synchronous_standby_names = '{names}'")
    ask_as_administrator(primary, "SELECT pg_reload_conf()")


@contextmanager
def replicated() -> Iterator[Replicated]:
    """Start both, until the block ends."""
    with ExitStack() as stack:
        primary = stack.enter_context(postgres("max_connections=200"))
        folder, port = stack.enter_context(folder_for("replica")), stack.enter_context(held_port())
        data = folder / "data"
        options = [f"--port={port}", "--listen_addresses=127.0.0.1", "--max_connections=200"]
        replica = Server([primary.command[0], "-D", str(data), "-k", str(folder), *options], folder, port)
        networks = [stack.enter_context(faulty_network(each.port)) for each in (primary, replica)]
        pair = Replicated(primary, replica, networks)
        stack.callback(_kill, replica)
        pair.follow()
        yield pair


def _kill(server: Server) -> None:
    if server.process is not None:
        server.kill()
