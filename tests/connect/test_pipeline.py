"""The example of a declarative pipeline, and a kill of the server under it."""

from __future__ import annotations

import os
import shutil
import sqlite3
import sys
from pathlib import Path

import pytest

from tests.cli.shell import WAL_SINK
from tests.connect.app import ROOT, environment
from tests.support.programs import ran
from wal_sink.admin.under import LogsUnder
from wal_sink.demo.local_spark import ConnectServer, Driver
from wal_sink.demo.pauses import Pause

pytestmark = [pytest.mark.spark, pytest.mark.connect, pytest.mark.timeout(600)]

PLACE = "/tmp/wal_sink-pipeline"
PAUSING = "from wal_sink.demo.pauses import PausingConnectDataSource as Pausing\n"


class Pipeline:
    """The example in a folder of its own, with three files of orders."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        shutil.copytree(ROOT / "examples" / "pipeline", folder, dirs_exist_ok=True)
        self.spec = folder / "spark-pipeline.yml"
        self.spec.write_text(self.spec.read_text().replace(PLACE, str(folder)))
        (folder / "incoming").mkdir()
        for file in range(3):
            orders = [f'{{"number": {3 * file + row}, "product": "tea"}}' for row in range(3)]
            (folder / "incoming" / f"{file}.json").write_text("\n".join(orders))

    def command(self, verb: str, server: ConnectServer, *more: str) -> list[str]:
        """Return the command line of `spark-pipelines`."""
        program = Path(sys.executable).with_name("spark-pipelines")
        return [str(program), "--remote", server.url, verb, "--spec", str(self.spec), *more]

    def run(self, verb: str, server: ConnectServer, *more: str) -> str:
        """Run the command to its end, check that it succeeds, and return its output."""
        variables = {**os.environ, **environment(), "PYSPARK_PYTHON": sys.executable}
        done = ran(self.command(verb, server, *more), env=variables)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    def checkpoints(self) -> list[str]:
        """Return the names of the checkpoints of the flow."""
        flow = self.folder / "storage" / "_checkpoints" / "orders" / "keyed_orders"
        return sorted(path.name for path in flow.iterdir()) if flow.is_dir() else []

    def flush(self) -> None:
        """Flush every query below the storage of the pipeline."""
        for candidate in LogsUnder([str(self.folder / "storage")], {})():
            place = candidate.open().checkpoint.url
            done = ran([WAL_SINK, "flush", place], env={**os.environ, **environment()})
            assert done.returncode == 0, done.stderr

    def numbers(self) -> list[int]:
        """Return the numbers of the orders in the table."""
        if not (self.folder / "shop.db").exists():
            return []
        with sqlite3.connect(self.folder / "shop.db") as connection:
            rows = connection.execute("SELECT number FROM orders ORDER BY number").fetchall()
        connection.close()
        return [row[0] for row in rows]


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    """Return a pipeline that has not run."""
    return Pipeline(tmp_path / "pipeline")


def test_pipeline_writes_each_row_once_despite_a_kill(
    pipeline: Pipeline, server: ConnectServer
) -> None:
    """The first server is killed between manifest and `commits/1`. The next run completes."""
    definitions = pipeline.folder / "transformations" / "orders.py"
    original = definitions.read_text()
    definitions.write_text(
        original.replace("wal_sink.register(spark)", f"{PAUSING}spark.dataSource.register(Pausing)")
    )
    marker = pipeline.folder / "marker"
    pause = Pause(point="commit returned", table="orders", epoch=1, marker=str(marker))
    with ConnectServer(pipeline.folder, pause, environment=environment()) as killed:
        arguments = ["-m", "pyspark.pipelines.cli", "run", "--spec", str(pipeline.spec)]
        variables = {**environment(), "SPARK_REMOTE": killed.url}
        with Driver(arguments, pipeline.folder / "client.log", variables):
            killed.reach(marker.exists)
            killed.kill()
    pipeline.flush()
    assert len(pipeline.numbers()) == 3
    definitions.write_text(original)
    assert "Run is COMPLETED" in pipeline.run("run", server)
    pipeline.flush()
    assert pipeline.numbers() == list(range(9))
    assert pipeline.checkpoints() == ["0"]


@pytest.mark.test_all
def test_full_refresh_of_a_pipeline_writes_all_rows_again(
    pipeline: Pipeline, server: ConnectServer
) -> None:
    """A full refresh is a new query. A dry run before it starts no query."""
    pipeline.run("dry-run", server)
    assert pipeline.checkpoints() == []
    pipeline.run("run", server)
    pipeline.run("run", server, "--full-refresh-all")
    assert pipeline.checkpoints() == ["0", "1"]
    pipeline.flush()
    assert pipeline.numbers() == sorted([*range(9), *range(9)])
