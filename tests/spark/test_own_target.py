"""SIGKILL with real Spark and a target of one's own, as `docs/targets.md` says: no row is lost or doubled."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest

from tests.spark.driver import Mortal
from wal_sink.testing import oracle
from wal_sink.testing.pauses import Point

pytestmark = [pytest.mark.test_all, pytest.mark.spark, pytest.mark.timeout(600)]

FILES, ROWS = 3, 100
POINTS: tuple[Point, ...] = ("flushing", "finished")


def test_a_target_of_ones_own_under_kills(tmp_path: Path) -> None:
    """In the middle of a window's rows, and behind its COMMIT, of which the log has not heard."""
    (tmp_path / "source").mkdir()
    for number in range(FILES):
        ids = range(number * ROWS, (number + 1) * ROWS)
        table = pa.table({"id": pa.array(ids, pa.int64())})
        pyarrow.parquet.write_table(table, tmp_path / "source" / f"{number}.parquet")
    database = sqlite3.connect(tmp_path / "shop.db")
    database.execute("CREATE TABLE t (id INTEGER, attempt TEXT)")
    app = Mortal(tmp_path, "tests.spark.own_target_app", {"folder": str(tmp_path)})
    for point in POINTS:
        app.die([app.pause("t", point, 1)])
    app.finish()
    found = (number for (number,) in database.execute("SELECT id FROM t"))
    verdict = oracle.judge(range(FILES * ROWS), found)
    assert verdict.exact, verdict
