"""What one process looks like at an instant of the long run, and what the epochs since the last one took."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from state_backends import open_backend
from tests.benchmarks import cpu
from wal_sink.checkpoint.checkpoint import committed_us
from wal_sink.wal.states import newest
from wal_sink.wal.store import LogStore

_LOOK_S = 0.1


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """One sample of the run; what is counted is since its start."""

    seconds: float
    epochs: int
    """Flushed so far."""
    client_cpu_s: float
    """Of the driver's Python, its JVM and their workers."""
    python_mb: float
    """Resident memory of the driver's Python."""
    jvm_mb: float
    workers_mb: float
    """Of Spark's Python workers, all together."""
    threads: int
    """Of the driver's Python."""
    handles: int
    """Files, sockets and pipes that it has open."""
    names: int
    """Files in the log: the newest 100 states, and the epochs that `wal.retention` keeps."""
    visible_ms: tuple[float, ...]
    """From `commits/N` to the mark of epoch N, of epochs since the sample before."""


class Latencies:
    """Looks again and again which epoch is the last that is flushed, and how long that took.

    A window of several epochs counts by its newest one. Of several between two looks the last is seen.
    """

    def __init__(self, checkpoint: Path, log: Path) -> None:
        self._checkpoint, self._log = checkpoint.as_uri(), LogStore(open_backend(str(log)))
        self._lock = threading.Lock()
        self._last = -1
        self._found: list[float] = []

    def look(self) -> None:
        """Look once."""
        state = newest(self._log)
        if state is None or state.targets[0].mark.epoch <= self._last:
            return
        mark = state.targets[0].mark
        committed = committed_us(self._checkpoint, mark.epoch, mark.at_us)
        with self._lock:
            self._last = mark.epoch
            self._found.append((mark.at_us - committed) / 1_000)

    def taken(self) -> tuple[float, ...]:
        """Return what was found since the last call."""
        with self._lock:
            result, self._found = self._found, []
        return tuple(result)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Look in a thread for as long as the block runs."""
        stop = threading.Event()

        def watch() -> None:
            while not stop.wait(_LOOK_S):
                self.look()

        thread = threading.Thread(target=watch, name="latencies")
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()


class Sampler:
    """Takes samples of this process, which is the driver.

    :param jvm: the process id of its JVM.
    :param server: that of the Cassandra node, which is started from here and is not a client.
    """

    def __init__(self, jvm: int, server: int, log: Path, latencies: Latencies) -> None:
        self._jvm, self._server, self._log, self._latencies = jvm, server, log, latencies
        self._began_s = time.monotonic()
        self._cpu_s = self._used()

    def sample(self, epochs: int) -> Sample:
        """Take one.

        :param epochs: that are flushed.
        """
        return Sample(
            seconds=time.monotonic() - self._began_s,
            epochs=epochs,
            client_cpu_s=self._used() - self._cpu_s,
            python_mb=_memory_mb(os.getpid()),
            jvm_mb=_memory_mb(self._jvm),
            workers_mb=sum(_of_living(pid) for pid in cpu.below(self._jvm)),
            threads=_number(os.getpid(), "Threads"),
            handles=len(list(Path("/proc/self/fd").iterdir())),
            names=files_below(self._log),
            visible_ms=self._latencies.taken(),
        )

    def _used(self) -> float:
        return cpu.of_tree(os.getpid(), without=self._server)


def files_below(log: Path) -> int:
    """Count a log's files while others make and remove some."""
    return sum(len(names) for _, _, names in os.walk(log))


def _of_living(worker: int) -> float:
    try:
        return _memory_mb(worker)
    except (AssertionError, FileNotFoundError, ProcessLookupError):
        return 0.0  # it has ended since it was listed; one that is about to has no memory


def _memory_mb(pid: int) -> float:
    return _number(pid, "VmRSS") / 1_024


def _number(pid: int, name: str) -> int:
    """Read a line of `/proc/<pid>/status`, see proc(5); memory is in KiB."""
    text = Path(f"/proc/{pid}/status").read_text()
    match = re.search(rf"^{name}:\s+(\d+)", text, re.MULTILINE)
    assert match is not None
    return int(match[1])
