"""A small disk of its own for the data of a storm: it can be filled, and can turn read-only under its servers."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

FSCK_MENDED = 3
"""Exit codes up to this say that the file system is sound again."""


class Disk:
    """An ext4 file system in a file, mounted at `path`."""

    def __init__(self, image: Path, path: Path) -> None:
        self._image = image
        self.path = path

    def make(self, size_mib: int) -> None:
        """
        Raises:
            OSError: this process may not mount.
        """
        with self._image.open("wb") as file:
            file.truncate(size_mib << 20)
        self.path.mkdir(parents=True)
        _run("mkfs.ext4", "-q", "-F", str(self._image))
        self.mount()

    def mount(self) -> None:
        _run("mount", "-o", "loop", str(self._image), str(self.path))

    def fill(self) -> None:
        """Leave no byte free."""
        descriptor = os.open(self._ballast, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        try:
            for size_bytes in (1 << 26, 1 << 20, 1 << 12):
                with suppress(OSError):
                    while True:
                        end = os.fstat(descriptor).st_size
                        os.posix_fallocate(descriptor, end, size_bytes)
        finally:
            os.close(descriptor)

    def free(self) -> None:
        self._ballast.unlink(missing_ok=True)

    @property
    def _ballast(self) -> Path:
        return self.path / "ballast"

    def turn_read_only(self) -> None:
        """Let the file system stop as after an error of its device: what was not synced is lost."""
        _run("mount", "-o", "remount,abort", str(self.path), may_fail=True)
        # The first write notices.
        with suppress(OSError):
            (self.path / "probe").touch()

    def mend(self) -> None:
        """Mount it anew. No process may have a file of it open."""
        _run("umount", str(self.path))
        done = subprocess.run(["e2fsck", "-y", str(self._image)], check=False, capture_output=True, text=True)
        if done.returncode > FSCK_MENDED:
            raise OSError(errno.EIO, done.stdout[-1000:])
        self.mount()


def _run(*command: str, may_fail: bool = False) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode and not may_fail:
        raise OSError(errno.EPERM, f"{' '.join(command)}: {done.stderr.strip()}")


@contextmanager
def disk(folder: Path, *, size_mib: int) -> Iterator[Disk | None]:
    """Mount a disk below this folder. None: this process may not."""
    made = Disk(folder / "disk.img", folder / "disk")
    try:
        made.make(size_mib)
    except OSError as error:
        print(f"no disk of its own: {error}")
        yield None
        return
    try:
        yield made
    finally:
        subprocess.run(["umount", "-l", str(made.path)], check=False, capture_output=True)
