"""Spark and DuckDB, by which users read and change tables beside a stream.

Spark runs in another Java without Python, since the jars of Delta and Iceberg need another version than the
installed one. DuckDB runs in another process, since its extensions need another version, too.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

from tests.support.maven_jars import maven_jars
from tests.support.programs import ran
from wal_sink.demo.maven import cache_folder, java_command, made_once

SPARK, DELTA, ICEBERG, DUCKDB = "4.1.2", "4.4.0", "1.12.0", "1.5.5"
_SETTINGS = {
    "spark.master": "local[2]",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension"
    ",org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
    "spark.databricks.delta.retentionDurationCheck.enabled": "false",
}
_OPENED = (
    *("java.lang", "java.lang.invoke", "java.lang.reflect", "java.io", "java.net", "java.nio"),
    *("java.util", "java.util.concurrent", "java.util.concurrent.atomic", "jdk.internal.ref"),
    *("sun.nio.ch", "sun.nio.cs", "sun.security.action", "sun.util.calendar"),
)
"""Packages of Java that Spark reflects on."""


class SparkSql:
    """A Spark session in another Java, which ends with this process.

    :param folder: the folder for its files.

    :param settings: more settings of the session.
    """

    def __init__(self, folder: Path, settings: dict[str, str]) -> None:
        jars = maven_jars(
            f"spark-{SPARK}-delta-{DELTA}-iceberg-{ICEBERG}",
            [
                f"org.apache.spark:spark-sql_2.13:{SPARK}",
                f"io.delta:delta-spark_{SPARK[:3]}_2.13:{DELTA}",
                f"org.apache.iceberg:iceberg-spark-runtime-{SPARK[:3]}_2.13:{ICEBERG}",
            ],
        )
        (py4j,) = jars.glob("py4j-*.jar")
        (folder / "log4j2.properties").write_text("rootLogger.level = error\n")
        port = launch_gateway(
            jarpath=str(py4j),
            classpath=f"{folder}:{jars}/*",
            java_path=java_command()[-1],
            javaopts=[
                "-Xmx1g",
                "-Djdk.reflect.useDirectMethodHandle=false",
                *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED),
            ],
            die_on_exit=True,
        )
        self._gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port))
        jvm: Any = self._gateway.jvm
        builder = jvm.org.apache.spark.sql.SparkSession.builder()
        places = {
            "spark.local.dir": str(folder / "local"),
            "spark.sql.warehouse.dir": f"file://{folder}/warehouse",
        }
        for name, value in (_SETTINGS | places | settings).items():
            builder = builder.config(name, value)
        self._session = builder.getOrCreate()

    def rows(self, statement: str) -> list[dict[str, Any]]:
        """Run a statement; return its rows from Spark's JSON."""
        return [json.loads(row) for row in self._session.sql(statement).toJSON().collectAsList()]

    def number(self, statement: str) -> int:
        """Run a statement with one row and one column; return its number."""
        ((count,),) = [row.values() for row in self.rows(statement)]
        return int(count)

    def close(self) -> None:
        """End the session and its Java."""
        self._session.stop()
        self._gateway.shutdown()


_DUCKDB = """
import json, sys, duckdb, pathlib
connection = duckdb.connect()
connection.execute("SET enable_progress_bar = false")
for extension in ("parquet", "icu", "avro", "iceberg", "delta"):
    for path in pathlib.Path(sys.argv[1]).glob(f"*/extensions/*/{extension}.duckdb_extension"):
        connection.execute(f"LOAD '{path}'")
print(json.dumps([connection.execute(each).fetchall() for each in json.load(sys.stdin)], default=str))
"""


def duckdb_rows(*queries: str) -> list[list[list[Any]]]:
    """Run queries in DuckDB with its extensions for Delta and Iceberg; return the rows of each query."""

    def install(work: Path) -> Path:
        wanted = [f"duckdb-extension-{name}=={DUCKDB}" for name in ("avro", "iceberg", "delta")]
        command = [sys.executable, "-m", "pip", "install", "-q", "--target", f"{work}/made"]
        subprocess.run([*command, f"duckdb=={DUCKDB}", *wanted], check=True)
        return work / "made"

    folder = made_once(cache_folder() / f"duckdb-{DUCKDB}", install)
    done = ran(
        [sys.executable, "-c", _DUCKDB, str(folder)],
        input=json.dumps(queries),
        env=os.environ | {"PYTHONPATH": str(folder)},
    )
    assert done.returncode == 0, done.stderr
    rows: list[list[list[Any]]] = json.loads(done.stdout)
    return rows
