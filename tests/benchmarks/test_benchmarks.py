"""The benchmark runs, and detects missing rows; its figures here mean nothing."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from cassandra.concurrent import execute_concurrent_with_args

from tests.benchmarks.figure import at_least, at_most, figure
from tests.benchmarks.figures import long
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
def test_benchmark_check_fails_if_rows_of_table_differ(cassandra: Node) -> None:
    source = Source(shape="grouped", rows=50, partitions=5)
    table = Table(cassandra)
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
    command = [sys.executable, "-m", "tests.benchmarks", "--quick", f"--json={file}", *parts]
    ended = ran(command, cwd=ROOT)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    report = json.loads(file.read_text())
    assert report["wrong"] == []
    assert [figure["name"] for figure in report["figures"] if not figure["values"]] == []
    assert {run["contender"] for run in report["runs"]} >= {"wal_sink, flush alone"}
    assert "targets met" in ended.stdout


def test_long_run_leaves_the_newest_row_of_each_key() -> None:
    for streamed in (0, 3, long.KEYS, long.KEYS + 5):
        values = np.arange(max(0, streamed - long.KEYS), streamed)
        wanted = Totals(len(values), int((values % long.KEYS).sum()), int((values * 7).sum()))
        assert long.totals(streamed) == wanted


@pytest.mark.parametrize("growth", [0, 1])
def test_only_growing_costs_of_a_long_run_miss_targets(growth: int, tmp_path: Path) -> None:
    samples = [
        long.Sample(
            seconds=float(n),
            epochs=10 * n,
            cpu_s=n + growth * n * n / 200,
            python_mb=100 + growth * n,
            workers_mb=500,
            threads=20,
            handles=30,
            files=40,
            visible_ms=80 + growth * n,
        )
        for n in range(1, 101)
    ]
    long.draw(tmp_path / "long.svg", samples)
    missed = {figure.name.partition(",")[0] for figure in long.compared(samples) if not figure.met}
    growing = {
        "client CPU of an epoch",
        "commits/N until N is flushed",
        "memory of the driver's Python",
    }
    assert missed == ({f"long: {name}" for name in growing} if growth else set())
