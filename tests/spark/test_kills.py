"""SIGKILL in every window of a micro-batch's life, with real Spark and real Cassandra."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.spark.conftest import ROWS_PER_FILE, write_source
from tests.spark.driver import Driver
from tests.spark.tables import Table
from wal_sink import status
from wal_sink.location import locate
from wal_sink.testing.node import Node

pytestmark = [pytest.mark.spark, pytest.mark.cassandra, pytest.mark.timeout(900)]

FILES = 7

WINDOWS = {  # the point: what is durable when it dies there, as (published, checkpointed, flushing)
    "write": (False, False, False),
    "commit called": (False, False, False),
    "commit returned": (True, False, False),
    "committed": (True, True, False),
    "flushing": (True, True, True),
}


@pytest.mark.slow_first
def test_every_window(cassandra: Node, keyspace: str, tmp_path: Path) -> None:
    """One query dies in each window in turn; in the end each row of the source is there once.

    The key is `uuid()`: whatever an attempt that Spark did not keep had written would be an extra row.
    """
    table = Table(cassandra, keyspace)
    source = write_source(tmp_path / "source", FILES)
    checkpoint = str(tmp_path / "checkpoint")
    config = {"sink": "wal_sink", "source": source, "checkpoint": checkpoint, **table.config}
    for epoch, (point, durable) in enumerate(WINDOWS.items(), start=1):
        driver = Driver(tmp_path / point, **config, pause=point, epoch=epoch)
        driver.kill_at_marker()
        assert where_it_died(checkpoint, epoch, table) == durable, point
        extra = [i for i in table.ids() if i >= (epoch + durable[2]) * ROWS_PER_FILE]
        assert extra == [], f"{point}: rows are visible that are not checkpointed"
    Driver(tmp_path / "last", **config).finish()
    assert table.ids() == list(range(FILES * ROWS_PER_FILE))


def where_it_died(checkpoint: str, epoch: int, table: Table) -> tuple[bool, bool, bool]:
    """Read from the files and the ledger which window was hit."""
    location = locate(checkpoint)
    spark = location.open_checkpoint()
    log = location.open_log(spark.query_id())
    ledger = table.cassandra.execute(
        f"SELECT begun FROM {table.keyspace}.wal_sink_ledger WHERE query_id = %s",
        [spark.query_id()],
    )
    return (
        any(attempt.epoch == epoch for attempt in log.attempts()),
        spark.last_commit() >= epoch,
        bool(ledger) and f'"epoch":{epoch},' in ledger[0].begun,
    )


def test_a_replay_without_rows_brings_no_row_of_the_dead_attempt(
    cassandra: Node, keyspace: str, tmp_path: Path
) -> None:
    """The attempt that died had published rows; the one that Spark kept has none."""
    table = Table(cassandra, keyspace)
    source = write_source(tmp_path / "source", 2)
    config = {
        "sink": "wal_sink",
        "source": source,
        "checkpoint": str(tmp_path / "checkpoint"),
        **table.config,
    }
    dead = Driver(tmp_path / "dead", **config, pause="commit returned", epoch=1)
    dead.kill_at_marker()
    assert where_it_died(config["checkpoint"], 1, table)[:2] == (True, False)
    Driver(tmp_path / "alive", **config, where=f"id < {ROWS_PER_FILE}").finish()
    assert table.ids() == list(range(ROWS_PER_FILE))


def test_a_reader_leaves_an_unfinished_epoch_out(
    cassandra: Node, keyspace: str, tmp_path: Path
) -> None:
    """Killed in the middle of epoch 1's rows: by `epochColumn` and the ledger a reader sees epoch 0 alone."""
    table = Table(cassandra, keyspace)
    cassandra.execute(f"ALTER TABLE {keyspace}.events ADD epoch bigint")
    config = {
        "sink": "wal_sink",
        "source": write_source(tmp_path / "source", 3),
        "checkpoint": str(tmp_path / "checkpoint"),
        "epoch_column": "epoch",
        **table.config,
    }
    Driver(tmp_path / "dead", **config, pause="flushing", epoch=1).kill_at_marker()
    assert len(table.ids()) > ROWS_PER_FILE
    assert whole_epochs(table) == list(range(ROWS_PER_FILE))
    Driver(tmp_path / "alive", **config).finish()
    assert whole_epochs(table) == table.ids() == list(range(3 * ROWS_PER_FILE))


def whole_epochs(table: Table) -> list[int]:
    """Read as the target's README says: the ledger first, then the rows up to its mark."""
    ledger = table.cassandra.execute(f"SELECT flushed FROM {table.keyspace}.wal_sink_ledger")
    rows = table.cassandra.execute(f"SELECT id, epoch FROM {table.keyspace}.events")
    return sorted(row.id for row in rows if row.epoch <= ledger[0].flushed)


def test_a_script_that_just_ends_says_what_waits(
    cassandra: Node, keyspace: str, tmp_path: Path
) -> None:
    """Without `with` and `close()`: no work is started at exit, one line says what waits."""
    table = Table(cassandra, keyspace)
    config = {
        "sink": "wal_sink",
        "source": write_source(tmp_path / "source", 4),
        "checkpoint": str(tmp_path / "checkpoint"),
        **table.config,
    }
    script = Driver(tmp_path / "script", **config, leave=True, pause="committed", epoch=0)
    script.finish()  # its flusher hangs before the first epoch
    assert status(config["checkpoint"]).pending_epochs == 4
    assert "4 epochs of query" in script.log()
    # An event that Spark delivers at that very moment makes the JVM print; Python's side is quiet.
    for noise in ("Traceback", "requests failed"):
        assert noise not in script.log()
    Driver(tmp_path / "again", **config).finish()
    assert table.ids() == list(range(4 * ROWS_PER_FILE))


def test_the_same_with_foreach_batch_leaves_ghosts(
    cassandra: Node, keyspace: str, tmp_path: Path
) -> None:
    """The control: killed between the writes and `commits/N`, it has more rows than the source."""
    table = Table(cassandra, keyspace)
    config = {
        "sink": "foreachBatch",
        "source": write_source(tmp_path / "source", 3),
        "checkpoint": str(tmp_path / "checkpoint"),
        **table.config,
    }
    Driver(tmp_path / "dead", **config, pause="commit returned", epoch=1).kill_at_marker()
    Driver(tmp_path / "alive", **config).finish()
    ids = table.ids()
    assert set(ids) == set(range(3 * ROWS_PER_FILE))
    assert len(ids) == 4 * ROWS_PER_FILE
