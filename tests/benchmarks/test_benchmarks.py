"""The benchmark runs, and detects missing rows; its figures here mean nothing."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cassandra.concurrent import execute_concurrent_with_args

from tests.benchmarks.figure import at_least, at_most, figure
from tests.benchmarks.figures.long import compared
from tests.benchmarks.long import stream
from tests.benchmarks.long.sample import Sample, files_below
from tests.benchmarks.rows import Source, Totals
from tests.benchmarks.table import RowsWrong, Table
from tests.support.programs import ran
from wal_sink.demo.cassandra import Node

ROOT = Path(__file__).parents[2]


CHANGES = (
    "DELETE FROM {} WHERE device = 'device-0' AND id = 5",
    "UPDATE {} SET amount = 1 WHERE device = 'device-0' AND id = 5",
    "DELETE note FROM {} WHERE device = 'device-0' AND id = 5",
    "UPDATE {} SET note = 'another' WHERE device = 'device-0' AND id = 0",
    "INSERT INTO {} (device, id, amount) VALUES ('device-99', 999, 0)",
)


@pytest.mark.cassandra
def test_benchmark_check_refuses_a_changed_table(cassandra: Node) -> None:
    source = Source(shape="grouped", rows=50, partitions=5)
    table = Table(cassandra, source.columns)
    session = cassandra.session()
    insert = session.prepare(table.insert)
    rows = [tuple(row.values()) for row in source.table(np.arange(source.rows)).to_pylist()]
    for change in CHANGES:
        execute_concurrent_with_args(session, insert, rows)
        table.check(source)
        cassandra.execute(change.format(table.where))
        with pytest.raises(RowsWrong):
            table.check(source)
    table.drop()


def test_median_decides_whether_a_figure_meets_its_target() -> None:
    assert figure("", [1, 3, 4], "x", at_least(3)).met is True
    assert figure("", [1, 2, 4], "x", at_least(3)).met is False
    assert figure("", [1, 3, 9], "x", at_most(3)).met is True
    assert figure("", [], "x", at_most(3)).met is None
    assert figure("", [1], "x").met is None


@pytest.mark.test_all
@pytest.mark.slow_first
@pytest.mark.cassandra
@pytest.mark.timeout(600)
def test_smallest_benchmark_prints_every_figure(tmp_path: Path) -> None:
    """Each figure has a value, and the rows are complete; missed targets are no failure."""
    file = tmp_path / "report.json"
    parts = [f"--only={part}" for part in ("flush", "pending", "overhead")]
    command = [sys.executable, "-m", "tests.benchmarks", "--tiny", f"--json={file}", *parts]
    ended = ran(command, cwd=ROOT)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    report = json.loads(file.read_text())
    assert report["wrong"] == []
    assert [figure["name"] for figure in report["figures"] if not figure["values"]] == []
    assert {run["contender"] for run in report["runs"]} >= {"wal_sink, flush alone"}
    assert "targets met" in ended.stdout


def test_long_run_leaves_the_newest_row_of_each_key() -> None:
    """The totals are those of the newest rows, before and after all keys exist."""
    for streamed in (0, 3, stream.KEYS, stream.KEYS + 5):
        values = np.arange(max(0, streamed - stream.KEYS), streamed)
        wanted = Totals(len(values), int((values % stream.KEYS).sum()), int((values * 7).sum()))
        assert stream.totals(streamed) == wanted


def _samples(growth: float) -> list[Sample]:
    """Return a hundred samples; some of their values grow."""
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


def test_long_run_with_growing_costs_misses_its_targets() -> None:
    """A cost that doubles misses its target, and a constant cost meets it."""
    assert {figure.met for figure in compared(_samples(0))} == {True}
    missed = {figure.name.partition(",")[0] for figure in compared(_samples(1)) if not figure.met}
    assert missed == {
        "long: client CPU of an epoch",
        "long: commits/N to flushed",
        "long: memory of the driver's Python",
        "long: memory of Spark's Python workers",
    }


def test_file_count_survives_a_folder_deleted_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder is deleted while its parent is walked."""
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
