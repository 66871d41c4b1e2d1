"""Stateful queries whose driver is killed twice."""

from __future__ import annotations

import os
import sqlite3
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pyspark
import pytest

from tests.deploy.stateful_app import GROUPS, KINDS, database, make_tables
from tests.spark.application import Application
from tests.support.deploy_table import Counted, Row

pytestmark = [pytest.mark.test_all, pytest.mark.spark, pytest.mark.timeout(1_200)]

FILES, ROWS = 8, 60
START = datetime(2026, 1, 1, tzinfo=UTC)


def write_source(folder: Path) -> list[list[tuple[int, datetime]]]:
    """Write the files. The second half of a file comes again in the next one.

    The last two files only let windows end: the watermark of an epoch applies to the next epoch.
    """
    folder.mkdir()
    files: list[list[tuple[int, datetime]]] = []
    for number in range(FILES):
        at = START + timedelta(seconds=20 * number) + timedelta(hours=max(0, number - FILES + 3))
        ids = range(number * ROWS, (number + 1) * ROWS)
        rows = [(i, at + timedelta(milliseconds=i % ROWS)) for i in ids]
        again = files[-1][-ROWS // 2 :] if 0 < number < FILES - 2 else []
        files.append([*again, *rows])
        stamps = pa.array([at for _, at in files[-1]], pa.timestamp("us", tz="UTC"))
        table = pa.table({"id": pa.array([i for i, _ in files[-1]], pa.int64()), "at": stamps})
        path = folder / f"{number:04}.parquet"
        pyarrow.parquet.write_table(table, path)
        os.utime(path, (number, number))
    return files


def expected(files: list[list[tuple[int, datetime]]]) -> dict[str, Counter[tuple[int, int]]]:
    """Compute the rows of each query from the files. Windows that may not have ended are left out."""
    rows = Counter(row for file in files for row in file)
    ended = [at for file in files[:-2] for _, at in file]
    windows = Counter(int(at.timestamp()) // 60 * 60 for at in ended)
    totals: Counter[int] = Counter()
    states: Counter[tuple[int, int]] = Counter()
    for file in files:
        new = Counter(i % GROUPS for i, _ in file)
        totals.update(new)
        states.update((group, totals[group]) for group in new)
    joined = Counter({(i, i): number**2 for (i, _), number in rows.items()})
    return {
        "window": Counter(windows.items()),
        "join": joined,
        "duplicates": Counter((i, i) for i, _ in rows),
        "state": states,
        "transform": states,
    }


def commits(folder: Path) -> int:
    """Return the number of epochs that all queries have completed."""
    return min(
        sum(path.name.isdecimal() for path in folder.glob(f"checkpoint-{kind}/commits/*"))
        for kind in KINDS
    )


def test_stateful_rows_arrive_once_under_two_kills(tmp_path: Path, counted: Counted) -> None:
    files = write_source(tmp_path / "source")
    make_tables(tmp_path)
    application = Application(
        tmp_path, "tests.deploy.stateful_app", {"folder": str(tmp_path)}, patience_s=500
    )
    for reached in (2, 5):
        with application.start() as driver:
            driver.reach(lambda reached=reached: commits(tmp_path) >= reached)  # type: ignore[misc]
            driver.kill()
    application.finish()
    last = int(files[-2][0][1].timestamp()) // 60 * 60  # this window may have ended, too
    for kind, rows in expected(files).items():
        with sqlite3.connect(database(tmp_path, kind)) as connection:
            stored = connection.execute("SELECT a, b, key FROM t").fetchall()
        assert len({key for _, _, key in stored}) == len(stored), kind
        current = Counter((a, b) for a, b, _ in stored if kind != "window" or a < last)
        assert current == rows, kind
        faults = "driver killed twice"
        counted(
            Row(f"stateful: {kind}", pyspark.__version__, faults, rows.total(), current.total())
        )
