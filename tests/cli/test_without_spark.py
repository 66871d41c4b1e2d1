"""The host of a flusher needs no Spark: commands run if pyspark cannot be imported."""

from __future__ import annotations

import os
import sqlite3
import sys
from pathlib import Path

from sqlite_target import SqliteOptions, SqliteTarget
from state_backends import open_backend
from tests.protocol.engine import World
from tests.support.programs import ran

WITHOUT = """
import sys
class Nowhere:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"pyspark", "py4j"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Nowhere())
from wal_sink.cli.main import app
app()
"""


def test_flush_and_status_run_without_pyspark(tmp_path: Path) -> None:
    database = tmp_path / "shop.db"
    with sqlite3.connect(database) as connection:
        connection.execute("CREATE TABLE orders (k TEXT, v INTEGER)")
    target = SqliteTarget(SqliteOptions(path=str(database), table="orders"))
    checkpoint = open_backend(str(tmp_path / "checkpoint"))
    world = World(checkpoint, checkpoint, target)
    world.log_backend = open_backend(str(tmp_path / "checkpoint" / "wal_sink" / world.query_id))
    world.run().batch([("a", 1), ("b", 2)])
    options = ["target=sqlite_target:SqliteTarget", f"sqlite.path={database}", "table=orders"]
    pairs = [part for option in options for part in ("--option", option)]
    for command in (["flush", *pairs], ["status"]):
        done = ran(
            [sys.executable, "-c", WITHOUT, *command, "checkpoint"],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        assert done.returncode == 0, done.stderr
    assert "none: everything checkpointed is flushed" in done.stdout
    with sqlite3.connect(database) as connection:
        rows = connection.execute("SELECT k, v FROM orders ORDER BY k").fetchall()
    assert rows == [("a", 1), ("b", 2)]
