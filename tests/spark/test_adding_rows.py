"""Bookings into a table without a key, under SIGKILL: the balance is exact, which no upsert could hide."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES, ROWS = 8, 40

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


@contextlib.contextmanager
def application(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start the application in a process group of its own; kill what is left of it."""
    path = os.pathsep.join((str(ROOT), str(ROOT / "examples")))
    with (folder / "output").open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.adding_app", str(folder)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": path, "PYSPARK_PYTHON": sys.executable},
            stdout=subprocess.PIPE,
            stderr=output,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, 9)
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def bookings(path: Path) -> list[tuple[str, int]]:
    """Read the table as another client does."""
    connection = sqlite3.connect(path)
    try:
        return sorted(connection.execute("SELECT account, amount FROM bookings"))
    finally:
        connection.close()


def test_each_booking_comes_once_after_two_kills(tmp_path: Path) -> None:
    """Equal bookings too, and no driver of another database is loaded."""
    rows = [{"account": f"a{n % 3}", "amount": n % 5} for n in range(ROWS)]
    (tmp_path / "source").mkdir()
    for number in range(FILES):
        text = "\n".join(map(json.dumps, rows))
        (tmp_path / "source" / f"{number}.json").write_text(text)
    database = tmp_path / "bank.db"
    connection = sqlite3.connect(database)
    connection.execute("CREATE TABLE bookings (account TEXT NOT NULL, amount INTEGER NOT NULL)")
    connection.close()
    for least in (1, 3 * ROWS):
        with application(tmp_path) as process:
            while len(bookings(database)) < least:
                assert process.poll() is None, (tmp_path / "output").read_text()
                time.sleep(0.005)
        assert len(bookings(database)) % ROWS == 0, "a part of an epoch is visible"
    with application(tmp_path) as process:
        said, _ = process.communicate(timeout=300)
        assert process.returncode == 0, (tmp_path / "output").read_text()
    assert json.loads(said.splitlines()[-1]) == ["sqlite3"]
    expected = sorted((str(row["account"]), int(str(row["amount"]))) for row in rows * FILES)
    assert bookings(database) == expected
