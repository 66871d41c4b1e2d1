"""Declares each target of this package once, for registry, errors, status, demo, docs and tests."""

from __future__ import annotations

from typing import NamedTuple


class TargetInfo(NamedTuple):
    """Facts about a target that are needed before its module is imported.

    Four more places use the name of the target: the extra in `pyproject.toml`, the page `docs/<name>.md`, the
    folder of its tests, and, if the demo has the target, the module `wal_sink/demo/<name>.py`.
    """

    name: str
    """The value of option `target`."""
    title: str
    """The target's name in the documentation."""
    place: str
    """The target's class, as `module:Class`."""
    client: tuple[str, ...] = ()
    """The modules that the target's extra installs."""
    location: tuple[str, ...] = ("table",)
    """The options whose values name the table, the topic or the folder of the rows, for texts."""

    @property
    def package(self) -> str:
        """The package of the target, below `wal_sink`."""
        return self.place.partition(":")[0].removeprefix("wal_sink.")


BUILTIN = {
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
"""The targets of this package, by name. Entry points are not used, because a source checkout has none, and
reading them is slow. No other distribution can take one of these names."""
