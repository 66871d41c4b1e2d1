"""Spark sessions of the benchmark."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from tests.benchmarks.process import ROOT
from tests.benchmarks.server import Server
from tests.spark.kafka_jars import kafka_jars
from wal_sink.demo import maven
from wal_sink.demo.local_spark import local_session

CONNECTOR = maven.Artifact("com.datastax.spark", "spark-cassandra-connector_2.13", "3.5.1")
JDBC = {
    "postgresql": maven.Artifact("org.postgresql", "postgresql", "42.7.7"),
    "mariadb": maven.Artifact("org.mariadb.jdbc", "mariadb-java-client", "3.5.3"),
}
_SPARKS_OWN = ("scala-library", "scala-reflect", "slf4j-api")


def connector_jars() -> list[Path]:
    """Return the connector's jars, downloaded once."""
    return _without_sparks_own(CONNECTOR, f"spark-cassandra-connector-{CONNECTOR.version}")


def sink_jars() -> list[Path]:
    """Return the jars of Spark's sinks for JDBC and Kafka, downloaded once."""
    jars = kafka_jars()
    for name, artifact in JDBC.items():
        jars += _without_sparks_own(artifact, f"{name}-jdbc-{artifact.version}")
    return jars


def _without_sparks_own(artifact: maven.Artifact, name: str) -> list[Path]:
    jars = sorted(maven.jars(artifact, name).glob("*.jar"))
    return [jar for jar in jars if not jar.name.startswith(_SPARKS_OWN)]


def open_shared(server: Server, jars: list[Path]) -> SparkSession:
    """Return the session that all contenders share."""
    return open_session(
        **{
            "spark.jars": ",".join(map(str, jars)),
            "spark.sql.streaming.numRecentProgressUpdates": 10_000,
            "spark.cassandra.connection.host": server.host,
            "spark.cassandra.connection.port": server.port,
        }
    )


def open_session(**settings: object) -> SparkSession:
    """Return a session whose workers run this Python with this package."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    common = {"spark.driver.memory": "3g", "spark.sql.session.timeZone": "UTC"}
    return local_session(**common, **settings)
