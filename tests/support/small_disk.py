"""A file system of 4 MB, which a test can fill; only root can mount it."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


class SmallDisk:
    """A file system mounted at `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def fill(self, leave: int) -> None:
        """Fill the file system, so that `leave` bytes are free."""
        with contextlib.suppress(FileNotFoundError):
            (self.folder / "ballast").unlink()
        free = os.statvfs(self.folder)
        with suppress_full(), (self.folder / "ballast").open("wb") as file:
            file.write(b"x" * (free.f_bavail * free.f_frsize - leave))

    def free(self) -> None:
        """Delete the file that `fill` has written."""
        (self.folder / "ballast").unlink()

    def files(self) -> list[str]:
        """Return the paths of all files, also hidden ones, without the file of `fill`."""
        paths = (str(p.relative_to(self.folder)) for p in self.folder.rglob("*") if p.is_file())
        return sorted(path for path in paths if path != "ballast")


@contextlib.contextmanager
def suppress_full() -> Iterator[None]:
    """Ignore `No space left on device`."""
    try:
        yield
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise


@contextlib.contextmanager
def mounted(folder: Path, size: str) -> Iterator[SmallDisk]:
    """Mount a file system in memory.

    :param folder: the mount point, which is made.
    :param size: the size, in the notation of `mount`.
    """
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "wal_sink", str(folder)]
    subprocess.run(mount, check=True)  # if root may not mount, the test fails
    try:
        yield SmallDisk(folder)
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[SmallDisk]:
    """Mount 4 MB of memory."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount a small file system to fill; CI runs as root")
    with mounted(tmp_path / "small_disk", "4m") as disk:
        yield disk
