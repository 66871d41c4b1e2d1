"""The jars of Spark's own Kafka source and sink, from Maven."""

from __future__ import annotations

from pathlib import Path

from wal_sink.demo import maven

PACKAGE = maven.Artifact("org.apache.spark", "spark-sql-kafka-0-10_2.13", "4.2.0")
"""The newest version in Maven Central. Spark 4.3 runs with it."""
_NEEDED = ("spark-sql-kafka", "spark-token-provider-kafka", "kafka-clients", "commons-pool2")
"""The artifacts that Spark does not contain."""


def kafka_jars() -> list[Path]:
    """Return the jars; they are downloaded once.

    :raises JavaNotFound, JarsNotResolved: see `java_command` and `maven.jars`.
    """
    folder = maven.jars(PACKAGE, f"spark-kafka-{PACKAGE.version}")
    return [jar for jar in sorted(folder.glob("*.jar")) if jar.name.startswith(_NEEDED)]
