"""Bookings into what has no key, under SIGKILL: the balance is exact, which no upsert could hide."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from wal_sink.testing.kafka.broker import Broker

ROOT = Path(__file__).parents[2]
FILES, ROWS = 8, 40
BOOKINGS = [(f"a{n % 3}", n % 5) for n in range(ROWS)]

Bookings = list[tuple[str, int]]

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


@contextlib.contextmanager
def application(folder: Path, options: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """Start the application in a process group of its own; kill what is left of it."""
    path = os.pathsep.join((str(ROOT), str(ROOT / "examples")))
    with (folder / "output").open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.adding_app", str(folder), json.dumps(options)],
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


def under_kills(folder: Path, options: dict[str, str], booked: Callable[[], Bookings]) -> list[str]:
    """Stream the source under a kill, to its end; return the drivers that were loaded.

    :param booked: reads what is there as another client does.
    """
    (folder / "source").mkdir()
    for number in range(FILES):
        text = "\n".join(json.dumps({"account": a, "amount": b}) for a, b in BOOKINGS)
        (folder / "source" / f"{number}.json").write_text(text)
    with application(folder, options) as process:
        while len(booked()) < 2 * ROWS:
            assert process.poll() is None, (folder / "output").read_text()
            time.sleep(0.005)
    assert len(booked()) % ROWS == 0, "a part of an epoch is visible"
    with application(folder, options) as process:
        said, _ = process.communicate(timeout=300)
        assert process.returncode == 0, (folder / "output").read_text()
    drivers: list[str] = json.loads(said.splitlines()[-1])
    return drivers


def test_each_booking_is_in_the_table_once(tmp_path: Path) -> None:
    """Equal bookings too, and no driver of another database is loaded."""
    database = tmp_path / "bank.db"
    connection = sqlite3.connect(database)
    connection.execute("CREATE TABLE bookings (account TEXT NOT NULL, amount INTEGER NOT NULL)")
    connection.close()

    def booked() -> Bookings:
        connection = sqlite3.connect(database)
        try:
            return connection.execute("SELECT account, amount FROM bookings").fetchall()
        finally:
            connection.close()

    target = {"target": "sqlite_target:SqliteTarget", "sqlite.path": str(database)}
    assert under_kills(tmp_path, {**target, "table": "bookings"}, booked) == ["sqlite3"]
    assert sorted(booked()) == sorted(BOOKINGS * FILES)


def test_each_booking_is_in_the_topic_once(tmp_path: Path, kafka: Broker) -> None:
    """For consumers that read committed records."""
    topic = f"bookings-{uuid.uuid4().hex}"
    kafka.create_topic(topic, partitions=2)

    def booked() -> Bookings:
        return [((key or b"").decode(), int(value or b"")) for key, value in kafka.records(topic)]

    options = {"target": "kafka", "kafka.bootstrap.servers": kafka.address, "topic": topic}
    assert under_kills(tmp_path, options, booked) == ["confluent_kafka"]
    assert sorted(booked()) == sorted(BOOKINGS * FILES)


def test_each_booking_is_in_the_delta_table_once(tmp_path: Path) -> None:
    """Staged by the tasks of flush jobs, with a kill in the middle; readers see whole epochs only."""
    path = tmp_path / "bank"
    DeltaTable.create(str(path), pa.schema([("account", pa.string()), ("amount", pa.int64())]))

    def booked() -> Bookings:
        time.sleep(0.1)  # reading the table costs both cores
        rows = DeltaTable(str(path)).to_pyarrow_table().to_pylist()
        assert len(rows) % ROWS == 0, "half an epoch is visible"
        return [(row["account"], row["amount"]) for row in rows]

    options = {"target": "delta", "delta.path": str(path), "flush.distributedAboveBytes": "0"}
    assert under_kills(tmp_path, options, booked) == ["deltalake"]
    assert sorted(booked()) == sorted(BOOKINGS * FILES)
    said = [commit.get("wal_sink", "") for commit in DeltaTable(str(path)).history()]
    commits = sum(words.startswith("epochs ") and not words.endswith("begin") for words in said)
    assert len(DeltaTable(str(path)).file_uris()) > commits > 0, "no job has staged anything"
