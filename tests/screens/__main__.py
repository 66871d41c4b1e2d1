"""`python -m tests.screens`: makes the pictures in docs/monitor.md, from a query with a real outage.

It needs Java 17, and half a minute. The pictures have the screens of `status --watch` and `show`, with other
names for the places of this machine.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

from rich.console import RenderableType

import wal_sink
from tests.screens.picture import elsewhere, picture
from tests.spark.live_query import live_query
from tests.spark.tables import Table
from tests.support.waiting import until
from wal_sink.admin.query import find_query
from wal_sink.admin.show import show_epochs
from wal_sink.cli.inspect import log_screen
from wal_sink.cli.terminal import fact_table
from wal_sink.demo.cassandra import EmbeddedCassandra
from wal_sink.demo.local_spark import local_session
from wal_sink.progress.status import Status, status_lines
from wal_sink.units import now_us

FOLDER = Path(__file__).parents[2] / "docs" / "images"
MOST = 5
PATIENCE_S = 300.0
LONG_S = 12.0
"""Seconds between the start of the outage and its pictures."""


def main() -> None:
    """Run the query, pause its node, and resume it."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    with tempfile.TemporaryDirectory() as folder, EmbeddedCassandra() as node:
        node.create_keyspace("shop")
        checkpoint = str(Path(folder) / "checkpoint")
        names = {folder: "/data", str(node.port): "9042"}
        spark = local_session()
        table = Table(node, "shop")
        with wal_sink.register(spark) as sink, live_query(spark, table, checkpoint) as query:
            until(lambda: sink.status(query).flushed >= MOST, PATIENCE_S)
            node.pause()
            until(lambda: sink.status(query).last_error is not None, PATIENCE_S)
            time.sleep(LONG_S)
            watch = "wal-sink status /data/checkpoint --watch"
            save("outage", watch, status(elsewhere(sink.status(query), names)))
            opened = find_query(checkpoint)
            listed = elsewhere(show_epochs(opened, "", most=MOST), names)
            save(
                "show",
                f"wal-sink show /data/checkpoint --most {MOST}",
                log_screen(listed, now_us()),
            )
            epoch = listed.flushed + 1
            one = elsewhere(show_epochs(opened, "", epoch, most=MOST, rows=3), names)
            command = f"wal-sink show /data/checkpoint {epoch} --rows 3"
            save("epoch", command, log_screen(one, now_us()))
            node.resume()
            until(lambda: sink.status(query).pending_epochs == 0, PATIENCE_S)
            save("recovered", watch, status(elsewhere(sink.status(query), names)))
        spark.stop()


def status(shown: Status) -> RenderableType:
    """Return the screen of a status."""
    return fact_table(*status_lines(shown))


def save(name: str, command: str, shown: RenderableType) -> None:
    """Write a picture."""
    (FOLDER / f"{name}.svg").write_text(picture(command, shown), encoding="utf-8")


if __name__ == "__main__":
    main()
