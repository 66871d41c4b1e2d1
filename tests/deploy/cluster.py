"""A standalone Spark cluster on this machine, whose processes can be killed.

A worker has its own folder. Its Python has no module of this project, unless the environment adds the path.
"""

from __future__ import annotations

import contextlib
import subprocess
import time
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from tests.support.class_archive import SPARK
from tests.support.wheel import fresh_environment
from wal_sink.demo.local_spark import HOME
from wal_sink.demo.server import choose_port

_PATIENCE_S = 180.0


class Cluster:
    """A master with its state in files, and workers. All processes end with the `with` block.

    :param environment: variables of the workers, and so of executors and Python workers. The workers also get
        the variables of this process, without those of Python and Spark.
    """

    def __init__(
        self, folder: Path, *, workers: int, cores: int, environment: Mapping[str, str]
    ) -> None:
        folder.mkdir(parents=True)
        self._folder = folder
        self._port = choose_port("127.0.0.1", 2)
        self._cores = cores
        daemons = {
            "SPARK_HOME": str(HOME),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_JAVA_OPTS": SPARK.options,
            "SPARK_MASTER_OPTS": "-Dspark.deploy.recoveryMode=FILESYSTEM"
            f" -Dspark.deploy.recoveryDirectory={folder / 'recovery'}",
        }
        self._environment = {**fresh_environment(), **daemons, **environment}
        self.url = f"spark://127.0.0.1:{self._port}"
        self._started = 0
        self._processes: list[subprocess.Popen[bytes]] = []
        self._workers: list[subprocess.Popen[bytes]] = []
        self.master: subprocess.Popen[bytes]
        self.workers = workers

    def __enter__(self) -> Self:
        self.start_master()
        for _ in range(self.workers):
            self.start_worker()
        self.await_workers()
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            process.wait(_PATIENCE_S)

    def start_master(self) -> None:
        """Start the master."""
        address = ["--host", "127.0.0.1", "--port", str(self._port)]
        self.master = self._daemon("master.Master", *address, "--webui-port", str(self._port + 1))

    def start_worker(self) -> None:
        """Start another worker."""
        size = ["--cores", str(self._cores), "--memory", "2g", "--webui-port", "0"]
        self._workers.append(self._daemon("worker.Worker", "--host", "127.0.0.1", *size, self.url))

    def await_workers(self) -> None:
        """Wait until all workers are registered."""
        url = f"http://127.0.0.1:{self._port + 1}/json/"
        deadline = time.monotonic() + _PATIENCE_S
        alive = 0
        while alive < self.workers:
            assert time.monotonic() < deadline, f"{alive} of {self.workers} workers came"
            time.sleep(0.2)
            with contextlib.suppress(OSError), urllib.request.urlopen(url) as page:
                alive = page.read().decode().count('"state" : "ALIVE"')

    def _daemon(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        folder = self._folder / f"{name.partition('.')[0]}-{self._started}"
        self._started += 1
        folder.mkdir()
        command = [str(HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", *arguments]
        if name.startswith("worker"):
            command += ["--work-dir", str(folder / "work")]
        with (folder / "output").open("wb") as output:
            process = subprocess.Popen(
                command, stdout=output, stderr=output, cwd=folder, env=self._environment
            )
        self._processes.append(process)
        return process

    def kill_master(self) -> None:
        """End the master by SIGKILL, and start it again."""
        self.master.kill()
        self.master.wait()
        self.start_master()

    @property
    def worker_pids(self) -> list[int]:
        """The process ids of the running workers."""
        return [worker.pid for worker in self._workers if worker.poll() is None]

    def dismissed(self) -> int:
        """Count how often a driver has ended idle executors."""
        logs = self._folder.glob("master-*/output")
        return sum(log.read_text().count(" requests to kill executors: ") for log in logs)

    def kill_worker(self, pid: int) -> None:
        """End a worker by SIGKILL, and start another one."""
        (process,) = (process for process in self._processes if process.pid == pid)
        process.kill()
        process.wait()
        self.start_worker()


def executor_of(pid: int) -> tuple[int, int]:
    """Return the process ids of a Python worker's executor and of the executor's worker.

    :raises ProcessLookupError: the Python worker has ended, or belongs to the driver.
    """
    try:
        while "CoarseGrainedExecutorBackend" not in _command(pid):
            pid = _parent(pid)
            if pid <= 1:
                raise ProcessLookupError(pid)
        return pid, _parent(pid)
    except FileNotFoundError as error:
        raise ProcessLookupError(pid) from error


def executors_of(workers: Sequence[int]) -> list[int]:
    """Return the process ids of the executors of these workers."""
    pids = []
    for folder in Path("/proc").glob("[0-9]*"):
        pid = int(folder.name)
        with contextlib.suppress(
            FileNotFoundError, ProcessLookupError
        ):  # the process may end meanwhile
            if "CoarseGrainedExecutorBackend" in _command(pid) and _parent(pid) in workers:
                pids.append(pid)
    return pids


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _command(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
