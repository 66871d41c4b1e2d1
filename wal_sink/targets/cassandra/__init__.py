"""Apache Cassandra as a target. Importing this package does not import the driver; see README.md."""

from wal_sink.targets.cassandra.options import CassandraOptions
from wal_sink.targets.cassandra.target import CassandraTarget

__all__ = ["CassandraOptions", "CassandraTarget"]
