"""Declares each target of this package, once: registry, errors, status, demo, docs and tests read it here."""

from __future__ import annotations

from typing import NamedTuple


class TargetInfo(NamedTuple):
    """What is known of a target without importing it.

    By its name also go its extra in `pyproject.toml`, its page `docs/<name>.md`, and its store
    `wal_sink/demo/<name>.py`, if it has one.
    """

    name: str
    """As option `target` has it."""
    title: str
    """As documentation calls it."""
    place: str
    """Its class, `module:Class`."""
    client: tuple[str, ...] = ()
    """The modules that its extra brings."""
    location: tuple[str, ...] = ("table",)
    """The options that say where rows go, for people."""

    @property
    def package(self) -> str:
        """The package that has the target, below `wal_sink`."""
        return self.place.partition(":")[0].removeprefix("wal_sink.")


OWN = {
    info.name: info
    for info in (
        TargetInfo(
            "cassandra",
            "Cassandra",
            "wal_sink.targets.cassandra:CassandraTarget",
            location=("keyspace", "table"),
        ),
        TargetInfo(
            "postgresql",
            "PostgreSQL",
            "wal_sink.targets.postgresql:PostgresqlTarget",
            client=("psycopg", "pgpq"),
        ),
        TargetInfo(
            "kafka",
            "Kafka",
            "wal_sink.targets.kafka:KafkaTarget",
            client=("confluent_kafka",),
            location=("topic",),
        ),
        TargetInfo(
            "delta",
            "Delta Lake",
            "wal_sink.targets.delta:DeltaTarget",
            client=("deltalake",),
            location=("delta.path",),
        ),
        TargetInfo(
            "iceberg",
            "Apache Iceberg",
            "wal_sink.targets.iceberg:IcebergTarget",
            client=("pyiceberg", "pyiceberg_core"),
        ),
        TargetInfo(
            "sql",
            "SQL databases by SQLAlchemy",
            "wal_sink.targets.sqlalchemy:SqlAlchemyTarget",
            client=("sqlalchemy",),
        ),
    )
}
"""By name. They are known without metadata, which a checkout on the path has not, and which takes time to
read. No other distribution can take one of these names."""
