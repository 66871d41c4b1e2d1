"""Secrets of the options are in no output, log or checkpoint."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import wal_sink
from state_backends import S3Backend
from tests.spark.app import rows
from tests.spark.conftest import write_source
from tests.spark.tables import Table
from tests.support.s3 import S3
from wal_sink.configuration import configure
from wal_sink.demo.cassandra import Node
from wal_sink.demo.local_spark import Driver, local_session

logger = logging.getLogger(__name__)

PASSWORD, KEY = "Geheimnis-1", "Geheimnis-2"


@pytest.mark.spark
@pytest.mark.cassandra
@pytest.mark.timeout(600)
def test_queries_leave_no_secret_in_outputs_and_files(
    cassandra: Node, keyspace: str, s3: S3, tmp_path: Path
) -> None:
    """One query succeeds, and one fails. Output, Spark's events, log and checkpoint are searched."""
    table = Table(cassandra, keyspace)
    events, kept = tmp_path / "events", tmp_path / "kept"
    events.mkdir()
    config = {
        "source": write_source(tmp_path / "source", 2),
        "events": str(events),
        "checkpoint": str(kept / "checkpoint"),
        "bucket": s3.bucket(),
        "storage": {**s3.options, "secret": KEY},
        **table.config,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    with Driver(
        ["-m", "tests.spark.test_secrets", str(tmp_path / "config.json")],
        tmp_path / "output",
        {"AWS_EC2_METADATA_DISABLED": "true"},
        folder=Path(__file__).parents[2],
    ) as driver:
        driver.finish()
    assert len(table.ids()) > 0
    printed = driver.log()
    assert "both queries have ended" in printed
    assert "a Spark job of 2 tasks" in printed, "their rows were written by Spark jobs"
    assert "no_such_table" in printed, "the error of the failing query is searched"
    assert printed.count("exactly-once: only checkpointed rows") == 2, "so are the starts"
    shown = "".join(text for _, text in texts(events))
    assert "wal_sink flushes epoch" in shown, "so are the events of flush jobs"
    log = S3Backend(config["bucket"], s3.options)
    places = [("output", printed), *texts(events), *texts(kept)]
    places += [(path, log.read(path).decode(errors="replace")) for path in log.list()]
    assert any(name.endswith(".json") and "state/" in name for name, _ in places)
    leaks = [name for name, text in places if PASSWORD in text or KEY in text]
    assert leaks == []


def texts(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield name and content of every file."""
    for file in folder.rglob("*"):
        if file.is_file():
            yield str(file), file.read_text(errors="replace")


def main(config: dict[str, Any]) -> None:
    """Run both queries, and log as much as possible."""
    logging.basicConfig(level=logging.DEBUG, stream=sys.stdout)
    logging.getLogger("py4j").setLevel(
        logging.INFO
    )  # at DEBUG it logs each call of the application
    spark = local_session(
        **{
            "spark.master": "local[3]",
            "spark.eventLog.enabled": True,
            "spark.eventLog.compress": False,
            "spark.sql.ui.explainMode": "extended",  # logical plans have the options, too
            "spark.eventLog.dir": config["events"],
        }
    )
    spark.sparkContext.setLogLevel("INFO")
    options = {
        "checkpointLocation": config["checkpoint"],
        "wal.location": config["bucket"],
        "wal.storageOptions": json.dumps(config["storage"]),
        "cassandra.contactPoints": "127.0.0.1",
        "cassandra.port": str(config["port"]),
        "cassandra.username": "ann",
        "cassandra.password": PASSWORD,
        "keyspace": config["keyspace"],
        "table": config["table"],
        "flush.distributedAboveBytes": "0",
    }
    logger.info("%r, %s", configure(options), configure(options))
    with wal_sink.register(spark):
        for changed in (
            {},
            {"table": "no_such_table", "checkpointLocation": config["checkpoint"] + "-2"},
        ):
            stream = rows(spark, config)
            writer = stream.writeStream.format("wal_sink").options(**{**options, **changed})
            query = writer.trigger(availableNow=True).start()
            try:
                query.awaitTermination()
            except Exception:
                logger.exception("this is meant to fail: %s", changed)
            query.explain(True)
            logger.info("%s %s %s", query.lastProgress, query.status, query.exception())
    spark.stop()
    logger.info("both queries have ended")


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
