"""A server of our own for the quickstart: a subprocess of this interpreter, in a process group of its own.

The group is the point. Ctrl-C in a terminal goes to every process of the foreground group; the server is not in it, so
it ends when we say so, after whatever we still ask of it, and with it everything it started: nothing is left behind.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType, MappingProxyType
from typing import Final

import msgspec

from lakebed.base import Unavailable

STOP_S: Final = 20
"""Seconds that the server may take to finish its work."""
_LOG_SHOWN: Final = 10


class _Ready(msgspec.Struct, frozen=True, kw_only=True):
    endpoint: str


class LocalServer:
    """`python -m lakebed serve` over a folder. Its log is `log`; its data folder is `data`.

    `settings`: variables of its environment beside our own.
    """

    def __init__(self, *, data: Path, log: Path, port: int, settings: Mapping[str, str] = MappingProxyType({})) -> None:
        self._environment = {**os.environ, **settings}
        self._data = data
        self._log = log
        self._port = port
        self._process: subprocess.Popen[str] | None = None
        self.endpoint = ""

    @property
    def pid(self) -> int | None:
        """Return the id of the server's process, which leads its group; None while none runs."""
        return self._process.pid if self._process else None

    def start(self) -> None:
        """Start it and wait until it answers. Started again, it has the same port.

        Raises:
            Unavailable: it ended instead.
        """
        command = [sys.executable, "-m", "lakebed", "serve", "--data", str(self._data), "--port", str(self._port)]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603  # our own interpreter and our own arguments
                [*command, "--output", "json"],
                stdin=subprocess.DEVNULL,
                env=self._environment,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        assert self._process.stdout is not None, "it was asked for"
        # It says where it listens when it listens, as one JSON object over several lines; an early end ends the pipe.
        output = ""
        for line in self._process.stdout:
            output += line
            if line == "}\n":
                break
        try:
            self.endpoint = msgspec.json.decode(output, type=_Ready).endpoint
        except msgspec.DecodeError as error:
            self.stop()
            raise Unavailable(f"the server did not start: {self._last_words()}") from error
        self._port = int(self.endpoint.rpartition(":")[2])

    def stop(self) -> None:
        """End it and everything it started; returns when they are gone. Does nothing where nothing runs."""
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_S)
        # Whatever of the group is still there had its time. The group can be signalled until its last member is gone.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if process.stdout is not None:
            process.stdout.close()

    def wait(self) -> None:
        """Wait until it ends.

        Raises:
            Unavailable: it ended with an error.
        """
        assert self._process is not None, "start it first"
        if code := self._process.wait():
            raise Unavailable(f"the server ended with code {code}: {self._last_words()}", code=code)

    def _last_words(self) -> str:
        return " / ".join(self._log.read_text(errors="replace").splitlines()[-_LOG_SHOWN:]) or "its log is empty"


@contextlib.contextmanager
def stopped_by_signals() -> Iterator[None]:
    """Inside, SIGTERM and a closed terminal interrupt as Ctrl-C does: once, so that cleaning up is not interrupted."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        for number in numbers:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
