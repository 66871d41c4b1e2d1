"""Wrong clocks for the hostile soak: of Java by libfaketime (a Debian package), of Python by `sitecustomize`.

libfaketime cannot serve Python: with the time that only goes forward left alone, as a real clock leaves it,
its `clock_nanosleep` refuses what `time.sleep` asks for (0.9.10). So each Java process gets the library from
a wrapper, and each Python process reads the same file (`on_this_host/sitecustomize.py`).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

_LIBRARY = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1")
_PYTHON = Path(__file__).with_name("on_this_host")
_ROOT = Path(__file__).parents[2]
_SHARED_MEMORY = Path("/dev/shm")
_PATIENCE_S = 30.0


class WrongClock:
    """The clock of a host: every process that is started with `environment` has it.

    :param folder: what it needs is made there.
    :raises FileNotFoundError: the library, or Java, is not installed.
    """

    def __init__(self, folder: Path) -> None:
        java = shutil.which("java")
        if not _LIBRARY.exists() or java is None:
            raise FileNotFoundError(f"{_LIBRARY} or java is not there: apt-get install libfaketime")
        folder.mkdir()
        self._file = folder / "ahead"
        self._java_home = folder / "java-home"
        self._python = folder / "python"
        self.ahead_s = 0
        self.most_ahead_s = 0
        """The furthest that it has been ahead."""
        self.set(0)
        _script(self._java_home / "bin" / "java", f'LD_PRELOAD={_LIBRARY} exec {java} "$@"')
        _script(self._python, f'LD_PRELOAD= exec {sys.executable} "$@"')

    def set(self, ahead_s: int) -> None:
        """Set the clock; a negative number sets it back."""
        self.ahead_s = ahead_s
        self.most_ahead_s = max(self.most_ahead_s, ahead_s)
        whole = self._file.with_suffix(".new")
        whole.write_text(f"{ahead_s:+d}\n")
        whole.rename(self._file)

    def old_listings(self) -> int:
        """Return how many listings of the log were old, and lacked something or had too much."""
        count = self._file.with_name("old-listings")
        return count.stat().st_size if count.exists() else 0

    @property
    def environment(self) -> dict[str, str]:
        """What a Python process and its children need, and Spark, which starts Python workers."""
        return {
            **self._options,
            "JAVA_HOME": str(self._java_home),
            "PYSPARK_PYTHON": str(self._python),
            "PYTHONPATH": f"{_PYTHON}{os.pathsep}{_ROOT}",
        }

    def end_processes(self) -> None:
        """SIGKILL every process that was started with `environment`, as a power cut does; see them gone."""
        deadline = time.monotonic() + _PATIENCE_S
        while found := _with_in_environment(f"FAKETIME_TIMESTAMP_FILE={self._file}"):
            assert time.monotonic() < deadline, f"processes that do not end: {found}"
            for process in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            time.sleep(0.05)

    @property
    def _options(self) -> dict[str, str]:
        """Without the last two, each wait of Java with a time-out would return at once, and spin."""
        return {
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_CACHE_DURATION": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "FAKETIME_FORCE_MONOTONIC_FIX": "0",
            "NO_FAKE_STAT": "1",
        }

    @contextlib.contextmanager
    def inherited(self) -> Iterator[None]:
        """Give this process's Java children that clock, for as long as the block lasts."""
        given = {**self._options, "LD_PRELOAD": str(_LIBRARY)}
        before = {name: os.environ.get(name) for name in given}
        os.environ.update(given)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value


@contextlib.contextmanager
def tidy() -> Iterator[None]:
    """Remove what libfaketime has made for processes that were killed, and that no process has in use."""
    before = set(_of_libfaketime())
    try:
        yield
    finally:
        for name in set(_of_libfaketime()) - before - _mapped():
            (_SHARED_MEMORY / name).unlink(missing_ok=True)


def _of_libfaketime() -> Iterator[str]:
    """Return the names of its shared memory, and of the semaphores beside that."""
    return (found.name for found in _SHARED_MEMORY.glob("*faketime_s*"))


def _mapped() -> set[str]:
    """Return the names of shared memory that some process has mapped."""
    lines = [line for text in _of_processes("maps") for line in text[1].decode().splitlines()]
    return {Path(line.split()[-1]).name for line in lines if str(_SHARED_MEMORY) in line}


def _with_in_environment(entry: str) -> list[int]:
    """Return the ids of processes that were started with this in the environment."""
    wanted = entry.encode()
    return [process for process, text in _of_processes("environ") if wanted in text.split(b"\0")]


def _of_processes(file: str) -> Iterator[tuple[int, bytes]]:
    """Return a file of each process below /proc; a process that has ended, but is not reaped, has none."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it ends as we look
            yield int(folder.name), (folder / file).read_bytes()


def _script(path: Path, command: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{command}\n")
    path.chmod(0o755)
