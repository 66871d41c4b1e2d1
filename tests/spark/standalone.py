"""Spark's own cluster manager on this machine: a master and workers, each a process of its own."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pyspark

from wal_sink.testing.servers import process as free_port

ROOT = Path(__file__).parents[2]
_PATIENCE_S = 90.0


@contextlib.contextmanager
def standalone_cluster(folder: Path, *, workers: int, cores: int) -> Iterator[str]:
    """Start a cluster; yield the URL of its master."""
    folder.mkdir(parents=True)
    port = free_port.choose("127.0.0.1", 2)
    page = port + 1
    address = ["--host", "127.0.0.1"]
    master = f"spark://127.0.0.1:{port}"
    with contextlib.ExitStack() as stack:
        own = [*address, "--port", str(port), "--webui-port", str(page)]
        stack.enter_context(_daemon(folder / "master", "master.Master", *own))
        for number in range(workers):
            work = folder / f"worker-{number}"
            size = ["--cores", str(cores), "--memory", "1g", "--webui-port", "0"]
            own = [*address, *size, "--work-dir", str(work / "work"), master]
            stack.enter_context(_daemon(work, "worker.Worker", *own))
        _wait_for_workers(f"http://127.0.0.1:{page}/json/", workers)
        yield master


@contextlib.contextmanager
def _daemon(folder: Path, name: str, *arguments: str) -> Iterator[None]:
    folder.mkdir()
    home = Path(pyspark.__file__).parent
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen(
            [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", *arguments],
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env={
                **os.environ,
                "SPARK_HOME": str(home),
                "SPARK_LOCAL_IP": "127.0.0.1",
                "PYSPARK_PYTHON": sys.executable,
                "PYTHONPATH": str(ROOT),  # of the executors' Python workers
            },
        )
    try:
        yield
    finally:
        process.terminate()
        process.wait(_PATIENCE_S)


def _wait_for_workers(url: str, workers: int) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    alive = 0
    while alive < workers:
        assert time.monotonic() < deadline, f"{alive} of {workers} workers came"
        time.sleep(0.2)
        with contextlib.suppress(OSError), urllib.request.urlopen(url) as page:
            alive = page.read().decode().count('"state" : "ALIVE"')
