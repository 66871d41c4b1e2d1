"""A standalone cluster whose processes are killed while rows are computed and flushed."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyspark
import pytest
from deltalake import DeltaTable

from tests.deploy.cluster import Cluster, executor_of
from tests.deploy.keyed_app import FLUSH, MARKERS, STREAM
from tests.spark.application import Application
from tests.spark.conftest import ROWS_PER_FILE, write_source
from tests.support.class_archive import SPARK
from tests.support.deploy_table import Counted, Row

pytestmark = [pytest.mark.test_all, pytest.mark.spark, pytest.mark.timeout(1_500)]

ROOT = Path(__file__).parents[2]
FILES = 20
SCHEMA = pa.schema([("id", pa.int64()), ("key", pa.string())])
FAULTS = [
    (who, when) for who in ("executor", "worker", "master", "driver") for when in (STREAM, FLUSH)
]


def test_rows_arrive_once_when_cluster_processes_are_killed(
    tmp_path: Path, counted: Counted
) -> None:
    """The flushes are Spark jobs.

    Tasks are retried and speculated, and dynamic allocation ends idle executors.
    """
    markers = tmp_path / "markers"
    markers.mkdir()
    ours = {
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT),
        MARKERS: str(markers),
    }
    DeltaTable.create(str(tmp_path / "table"), schema=SCHEMA)
    with Cluster(tmp_path / "cluster", workers=2, cores=2, environment=ours) as cluster:
        run = Run(tmp_path, cluster.url, markers)
        for who, when in FAULTS:
            worker = run.reach(when)
            executor, its_worker = executor_of(worker)
            match who:
                case "executor":
                    os.kill(executor, signal.SIGKILL)
                case "worker":
                    cluster.kill_worker(its_worker)
                case "master":
                    cluster.kill_master()
                case "driver":
                    run.restart()
        run.driver.finish()
        assert cluster.dismissed(), "no executor was dismissed"
    rows = DeltaTable(str(tmp_path / "table")).to_pyarrow_table()
    expected = FILES * ROWS_PER_FILE
    assert set(rows["id"].to_pylist()) == set(range(expected)), "rows are missing"
    assert len(set(rows["key"].to_pylist())) == rows.num_rows
    faults = f"SIGKILL of {', '.join(dict(FAULTS))}, twice each; retries, speculation, dynamic allocation"
    counted(
        Row("standalone cluster, two workers", pyspark.__version__, faults, expected, len(rows))
    )


class Run:
    """The application, which is started again after each kill of its driver."""

    def __init__(self, folder: Path, master: str, markers: Path) -> None:
        self._markers = markers
        config = {
            "source": write_source(folder / "source", FILES),
            "markers": str(markers),
            "settings": {
                "spark.master": master,
                "spark.executor.cores": 1,
                "spark.executor.memory": "512m",
                "spark.executor.extraJavaOptions": SPARK.executor_options,
                "spark.speculation": True,
                "spark.speculation.quantile": 0.5,
                "spark.speculation.interval": "200ms",
                "spark.speculation.minTaskRuntime": "2s",
                "spark.dynamicAllocation.enabled": True,
                "spark.dynamicAllocation.minExecutors": 3,  # a flush job needs two idle executors
                "spark.dynamicAllocation.executorIdleTimeout": "1s",
                "spark.dynamicAllocation.shuffleTracking.timeout": "1s",
                "spark.dynamicAllocation.schedulerBacklogTimeout": "1s",
                "spark.task.maxFailures": 10,
                "spark.stage.maxConsecutiveAttempts": 20,
                "spark.deploy.maxExecutorRetries": -1,
            },
            "options": {
                "checkpointLocation": str(folder / "checkpoint"),
                "target": "tests.deploy.keyed_app:SlowDelta",
                "delta.path": str(folder / "table"),
                "flush.distributedAboveBytes": 0,
            },
        }
        self._application = Application(folder, "tests.deploy.keyed_app", config, patience_s=600)
        self.driver = self._application.start()

    def restart(self) -> None:
        """End driver, JVM and Python workers by SIGKILL, and start the application again."""
        self.driver.kill()
        self.driver = self._application.start()

    def reach(self, kind: str) -> int:
        """Wait until a Python worker computes or flushes; return its process id."""
        for old in self._markers.iterdir():  # files of killed processes
            old.unlink(missing_ok=True)
        pids: list[int] = []

        def reached() -> bool:
            for file in self._markers.glob(f"{kind}-*"):
                pid = int(file.name.rpartition("-")[2])
                try:
                    executor_of(pid)
                except ProcessLookupError:
                    continue
                pids.append(pid)
            return bool(pids)

        self.driver.reach(reached)
        time.sleep(0.05)
        return pids[-1]
