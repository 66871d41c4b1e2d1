"""Spark's checkpoint in a bucket: kills, lost answers, and two drivers."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tests.spark.application import Application
from tests.spark.conftest import ROWS_PER_FILE, write_source
from tests.support.deploy_table import Counted, Row
from tests.support.maven_jars import maven_jars
from tests.support.s3 import S3
from wal_sink.demo.local_spark import Driver

pytestmark = [
    pytest.mark.test_all,
    pytest.mark.spark,
    pytest.mark.s3,
    pytest.mark.timeout(1_500),
]

HADOOP, SDK = "3.5.0", "2.35.4"
FILES = 5
EXPECTED = FILES * ROWS_PER_FILE
SCHEMA = pa.schema([("id", pa.int64()), ("key", pa.string())])


def s3a_jars() -> list[str]:
    """Return the jars of Hadoop's S3 client, with a part of the AWS SDK instead of its bundle of 600 MB."""
    folder = maven_jars(
        f"hadoop-aws-{HADOOP}",
        [
            f"org.apache.hadoop:hadoop-aws:{HADOOP}",
            "software.amazon.s3.analyticsaccelerator:analyticsaccelerator-s3:1.3.1",
            *(
                f"software.amazon.awssdk:{name}:{SDK}"
                for name in ("s3", "s3-transfer-manager", "sts")
            ),
        ],
        without=["software.amazon.awssdk:bundle"],
    )
    of_spark = ("slf4j", "netty", "commons-")  # Spark's own jars
    return [str(jar) for jar in folder.glob("*.jar") if not jar.name.startswith(of_spark)]


class Query:
    """A query with checkpoint and log in a bucket, and a Delta table.

    :param options: more options of the sink.
    """

    def __init__(self, s3: S3, behaviour: str, folder: Path, **options: str) -> None:
        self.s3 = s3
        self.table = str(folder / "table")
        DeltaTable.create(self.table, SCHEMA)
        hadoop = {
            "endpoint": s3.endpoint,
            "endpoint.region": "us-east-1",
            "access.key": s3.options["key"],
            "secret.key": s3.options["secret"],
            "path.style.access": "true",
        }
        self.checkpoint = f"{s3.bucket(behaviour)}/checkpoint"
        config: dict[str, Any] = {
            "source": write_source(folder / "source", FILES),
            "settings": {
                "spark.jars": ",".join(s3a_jars()),
                **{f"spark.hadoop.fs.s3a.{name}": value for name, value in hadoop.items()},
            },
            "options": {
                "checkpointLocation": self.checkpoint.replace("s3:", "s3a:"),
                "target": "delta",
                "delta.path": self.table,
                "wal.storageOptions": json.dumps(s3.options),
                **options,
            },
        }
        self.options = config["options"]
        self._application = Application(folder, "tests.deploy.keyed_app", config, patience_s=400)

    def start(self) -> Driver:
        """Start the application."""
        return self._application.start()

    def start_until_held(self, name: str) -> Driver:
        """Start the application, and wait until the store holds a rename of a file of the checkpoint."""
        self.s3.ask(f"hold/{name}")
        driver = self.start()
        driver.reach(lambda: self.s3.ask(f"held/{name}"))
        return driver

    def found(self) -> int:
        """Return the number of rows in the table, in which each row must be once."""
        rows = DeltaTable(self.table).to_pyarrow_table()
        assert sorted(rows["id"].to_pylist()) == list(range(EXPECTED))
        return int(rows.num_rows)


def test_query_with_a_checkpoint_in_a_bucket_survives_kills(
    s3: S3, tmp_path: Path, counted: Counted
) -> None:
    """The first answer to each write is lost. The driver dies before and after Spark's renames."""
    query = Query(s3, "lossy-1", tmp_path, **{"checkpoint.oneDriver": "true"})
    for name, arrives in (("offsets/1", False), ("commits/1", False), ("commits/2", True)):
        query.start_until_held(name).kill()
        if arrives:
            s3.ask(f"release/{name}")
    query.start().finish()
    faults = "3 SIGKILLs at Spark's renames, a lost answer to each write"
    counted(
        Row("Spark's checkpoint in S3", f"hadoop-aws {HADOOP}", faults, EXPECTED, query.found())
    )


def test_older_driver_overwrites_a_plan_in_a_bucket(s3: S3, tmp_path: Path) -> None:
    """The older driver overwrites the plan of the newer driver. A restart would read its files again."""
    query = Query(s3, "plain", tmp_path)
    with query.start() as driver:
        driver.finish(1)
    assert "checkpoint.oneDriver" in driver.log()
    query.options["checkpoint.oneDriver"] = "true"
    backend = s3.open(query.checkpoint)
    with query.start_until_held("offsets/1") as older:
        os.killpg(older.process.pid, signal.SIGSTOP)
        query.start().finish()
        planned = backend.read("offsets/1")
        s3.ask("release/offsets/1")
        os.killpg(older.process.pid, signal.SIGCONT)
        older.finish(1)
    assert "another driver has overtaken this one" in older.log()
    assert backend.read("offsets/1") != planned
    query.found()  # no row is doubled, since the newer driver ran to its end
