"""The benchmark works, and notices when rows are missing; what it measures here says nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.benchmarks.contenders import raw
from tests.benchmarks.contenders.raw import Setting
from tests.benchmarks.figure import at_least, at_most, figure
from tests.benchmarks.figures.flush_job import compared as job_compared
from tests.benchmarks.figures.long import compared
from tests.benchmarks.long import stream
from tests.benchmarks.long.sample import Sample, files_below
from tests.benchmarks.rows import Name, Source, Totals
from tests.benchmarks.table import RowsWrong, Table
from tests.benchmarks.window_app import Flushed
from wal_sink.demo.servers.cassandra import Node

ROOT = Path(__file__).parents[2]
SHAPES: tuple[Name, ...] = ("grouped", "interleaved", "scattered", "narrow")


@pytest.mark.cassandra
@pytest.mark.parametrize("per_batch", [pytest.param(1, marks=pytest.mark.test_all), 7])
@pytest.mark.parametrize("shape", SHAPES)
def test_raw_client_writes_the_rows_that_the_check_expects(
    cassandra: Node, shape: Name, per_batch: int
) -> None:
    """Hand-made frames, read back through the driver: every shape, single rows and batches."""
    source = Source(shape=shape, rows=200, partitions=200 if shape == "scattered" else 10)
    table = Table(cassandra, source.columns)
    raw.run(source, table, Setting(processes=1, per_batch=per_batch, in_flight=4))
    table.check(source)
    table.drop()


@pytest.mark.cassandra
@pytest.mark.parametrize(
    "change",
    [
        "DELETE FROM {} WHERE device = 'device-0' AND id = 5",
        "INSERT INTO {} (device, id, amount) VALUES ('device-99', 999, 0)",
        "UPDATE {} SET amount = 1 WHERE device = 'device-0' AND id = 5",
        "DELETE note FROM {} WHERE device = 'device-0' AND id = 5",
        "UPDATE {} SET note = 'another' WHERE device = 'device-0' AND id = 0",
    ],
    ids=["missing row", "extra row", "another amount", "missing value", "another text"],
)
def test_a_table_that_is_not_complete_is_noticed(cassandra: Node, change: str) -> None:
    """A sink that loses rows is not measured."""
    source = Source(shape="grouped", rows=50, partitions=5)
    table = Table(cassandra, source.columns)
    raw.run(source, table, Setting(processes=1, per_batch=10, in_flight=4))
    cassandra.execute(change.format(table.where))
    with pytest.raises(RowsWrong):
        table.check(source)
    table.drop()


def test_a_figure_is_judged_by_its_median() -> None:
    """One bad round does not decide, in either direction."""
    assert figure("", [1, 3, 4], "x", at_least(3)).met is True
    assert figure("", [1, 2, 4], "x", at_least(3)).met is False
    assert figure("", [1, 3, 9], "x", at_most(3)).met is True
    assert figure("", [], "x", at_most(3)).met is None
    assert figure("", [1], "x").met is None


@pytest.mark.test_all
@pytest.mark.slow_first
@pytest.mark.cassandra
@pytest.mark.timeout(600)
def test_the_smallest_benchmark_ends_with_its_figures(tmp_path: Path) -> None:
    """Missed targets are no failure; every figure has a value, and rows were complete."""
    file = tmp_path / "report.json"
    parts = [f"--only={part}" for part in ("flush", "features", "partitions")]
    places = [f"--json={file}", f"--plots={tmp_path}"]
    command = [sys.executable, "-m", "tests.benchmarks", "--tiny", *places, *parts]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(file.read_text())
    assert result["wrong"] == []
    assert [item["name"] for item in result["figures"] if not item["values"]] == []
    assert {run["contender"] for run in result["runs"]} >= {
        "server's limit",
        "wal_sink, flush alone",
    }
    assert [Path(item).stat().st_size > 0 for item in result["plots"]] == [True]
    assert "targets met" in done.stdout


def test_long_run_leaves_the_newest_row_of_each_key() -> None:
    """Of each key the newest row, before and after all keys are there; by hand on few keys."""
    for streamed in (0, 3, stream.KEYS, stream.KEYS + 5):
        values = np.arange(max(0, streamed - stream.KEYS), streamed)
        wanted = Totals(len(values), int((values % stream.KEYS).sum()), int((values * 7).sum()))
        assert stream.totals(streamed) == wanted


def _samples(growth: float) -> list[Sample]:
    """Make a hundred samples, of which some grow."""
    return [
        Sample(
            seconds=float(n),
            epochs=10 * n,
            client_cpu_s=n + growth * n * n / 200,
            python_mb=100 + growth * n,
            jvm_mb=1_000,
            workers_mb=500 + 5 * growth * n,
            threads=20,
            handles=30,
            names=40,
            visible_ms=(80 + growth * n, 90 + growth * n),
        )
        for n in range(1, 101)
    ]


def test_a_long_run_that_grows_is_noticed() -> None:
    """Ten tenths of samples: a cost that doubles misses its target, one that stays meets it."""
    assert {item.met for item in compared(_samples(0))} == {True}
    missed = {item.name.partition(",")[0] for item in compared(_samples(1)) if not item.met}
    assert missed == {
        "long: client CPU of an epoch",
        "long: commits/N to flushed",
        "long: memory of the driver's Python",
        "long: memory of Spark's Python workers",
    }


def test_files_are_counted_while_their_folders_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log of a query that runs: a folder is deleted between the look at its parent and at itself."""
    for name in ("manifests/7", "state/6.json", "state/5.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    scandir, gone = os.scandir, tmp_path / "manifests"

    def scan(path: Any) -> Any:
        if path == str(gone):
            (gone / "7").unlink()
            gone.rmdir()
        return scandir(path)

    monkeypatch.setattr(os, "scandir", scan)
    assert files_below(tmp_path) == 2


def test_the_size_from_which_on_a_job_wins() -> None:
    """It loses with the small window, wins with the large one; by sums from what it costs beyond a thread."""
    small, large = 1.0, 100.0
    result = {
        "thread": [Flushed(small, 0.1, 0.05, 0.05, 0.1), Flushed(large, 10.0, 5.0, 5.0, 9.0)],
        "job of 1 task": [
            Flushed(small, 0.4, 0.05, 0.2, 0.1),
            Flushed(large, 10.4, 0.05, 5.3, 9.0),
        ],
        "job of 2 tasks": [
            Flushed(small, 0.5, 0.05, 0.3, 0.1),
            Flushed(large, 8.0, 0.05, 5.6, 9.0),
        ],
    }
    *ratios, wins = job_compared(result, 2)
    assert [round(ratio.values[0], 2) for ratio in ratios] == [4.0, 5.0, 1.04, 0.8]
    assert wins.values == pytest.approx([10.0])  # 0.25 s of CPU over half of 0.05 s a MiB
    assert "it wins from 100.0 MiB on; the default is 32 MiB" in wins.note
