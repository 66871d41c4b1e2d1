"""Samples of the long run: the resources of the process, and the latencies since the last sample."""

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
from wal_sink.wal.store import newest

_LOOK_S = 0.1


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """A sample; numbers count from the start of the run."""

    seconds: float
    epochs: int
    """The number of flushed epochs."""
    client_cpu_s: float
    """The CPU time of the driver's Python, its JVM and their workers."""
    python_mb: float
    """The resident memory of the driver's Python."""
    jvm_mb: float
    workers_mb: float
    """The resident memory of all Python workers of Spark."""
    threads: int
    """The threads of the driver's Python."""
    handles: int
    """The open files, sockets and pipes of the driver's Python."""
    names: int
    """The files in the log: the newest 100 states, and the epochs that `wal.retention` keeps."""
    visible_ms: tuple[float, ...]
    """The times from `commits/N` to the mark of epoch N, for epochs since the last sample."""


class Latencies:
    """Polls the mark, and records the latency of the newest marked epoch.

    A window of several epochs counts by its newest one, and so do several windows between two polls.
    """

    def __init__(self, checkpoint: Path, log: Path) -> None:
        self._checkpoint, self._log = checkpoint.as_uri(), open_backend(str(log))
        self._lock = threading.Lock()
        self._last = -1
        self._found: list[float] = []

    def look(self) -> None:
        """Poll once."""
        state = newest(self._log)
        if state is None or state.targets[0].mark.epoch <= self._last:
            return
        mark = state.targets[0].mark
        committed = committed_us(self._checkpoint, mark.epoch, mark.at_us)
        with self._lock:
            self._last = mark.epoch
            self._found.append((mark.at_us - committed) / 1_000)

    def taken(self) -> tuple[float, ...]:
        """Return the latencies since the last call."""
        with self._lock:
            latencies, self._found = self._found, []
        return tuple(latencies)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Poll in a thread while the block runs."""
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
    :param server: the process id of the Cassandra node, which is a child of this process but not a client.
    """

    def __init__(self, jvm: int, server: int, log: Path, latencies: Latencies) -> None:
        self._jvm, self._server, self._log, self._latencies = jvm, server, log, latencies
        self._began_s = time.monotonic()
        self._cpu_s = self._used()

    def sample(self, epochs: int) -> Sample:
        """Return a sample.

        :param epochs: the number of flushed epochs.
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
    """Return the number of files in a log, while others create and delete files."""
    return sum(len(names) for _, _, names in os.walk(log))


def _of_living(worker: int) -> float:
    try:
        return _memory_mb(worker)
    except (AssertionError, FileNotFoundError, ProcessLookupError):
        return 0.0  # the process has ended, or is ending and has no memory


def _memory_mb(pid: int) -> float:
    return _number(pid, "VmRSS") / 1_024


def _number(pid: int, name: str) -> int:
    """Read a line of `/proc/<pid>/status`, see proc(5); memory is in KiB."""
    text = Path(f"/proc/{pid}/status").read_text()
    match = re.search(rf"^{name}:\s+(\d+)", text, re.MULTILINE)
    assert match is not None
    return int(match[1])
