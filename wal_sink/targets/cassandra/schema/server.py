"""What a server says of itself: its product, its settings, where its keyspaces are."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from wal_sink.targets.cassandra.options import CassandraOptions

SETTINGS = (
    "minimum_timestamp_fail_threshold",
    "maximum_timestamp_fail_threshold",
    "user_timestamps_enabled",
    "write_consistency_levels_disallowed",
    "read_consistency_levels_disallowed",
    "column_value_size_fail_threshold",
    "collection_size_fail_threshold",
    "items_per_collection_fail_threshold",
    "data_disk_usage_percentage_fail_threshold",
    "sai_string_term_size_fail_threshold",
    "sai_frozen_term_size_fail_threshold",
    "sai_vector_term_size_fail_threshold",
    "storage_compatibility_mode",
)
"""The settings that decide whether rows are taken."""

_TABLETS_WITH_CONDITIONS = (2025, 4)
"""The first Scylla that takes conditional updates where a keyspace has tablets."""


class Server(NamedTuple):
    """A cluster, as the node that was asked describes it."""

    release_version: str
    """Of Cassandra; products that speak its protocol name a version that they are like."""
    cluster_name: str
    replication: Mapping[str, Mapping[str, str]]
    """By keyspace, as `system_schema.keyspaces` has it."""
    settings: Mapping[str, str | None] | None = None
    """Those of `SETTINGS` that the server has; None: it has no such table, or this role may not read it."""
    scylla_version: str = ""
    """Empty where it is not Scylla."""
    tablets: Mapping[str, int] = MappingProxyType({})
    """Scylla's keyspaces with tablets, and how many a table begins with."""

    def replicas(self, keyspace: str) -> dict[str, int]:
        """Return how many replicas each datacenter has of a keyspace; see `replicas_by_datacenter`."""
        return replicas_by_datacenter(self.replication.get(keyspace, {}))

    def why_no_conditions(self, keyspace: str) -> str:
        """Say why a keyspace takes no conditional updates; empty: it does."""
        version = tuple(map(int, re.findall(r"\d+", self.scylla_version)[:2]))
        if keyspace not in self.tablets or (version and version >= _TABLETS_WITH_CONDITIONS):
            return ""
        first = ".".join(map(str, _TABLETS_WITH_CONDITIONS))
        return (
            f"has tablets, and Scylla {self.scylla_version} refuses conditional updates there;"
            f" Scylla {first} is the first that takes them."
        )

    def serial_notices(
        self, options: CassandraOptions, keyspace: str, whose: str, what: str
    ) -> Iterator[str]:
        """Yield what conditional updates need of a keyspace in several datacenters.

        :param whose: the keyspace is, and what needs them, as the sentence has it.
        """
        replicas = self.replicas(keyspace)
        if options.serial_consistency_level != "SERIAL" or len(replicas) < 2:
            return
        total = sum(replicas.values())
        counts = ", ".join(f"{name} {count}" for name, count in sorted(replicas.items()))
        yield (
            f"Keyspace {keyspace} {whose}has {total} replicas in {len(replicas)} datacenters ({counts})."
            f" At cassandra.serialConsistencyLevel = SERIAL {what} needs {total // 2 + 1} of them, across"
            " datacenters: it is as slow as the way between them, and stops when too many are away, though"
            f" rows need {options.consistency_level} only. If the flushers of a query only ever run beside"
            " one datacenter, stop all of them and set LOCAL_SERIAL, everywhere the same."
        )


OLD_ROWS = (
    "Rows have the time at which their epoch was published: those that wait in the log for longer than that"
    " cannot be written any more. Take the threshold out, or set it to more than the longest outage that the"
    " log has to bridge, on every node, in cassandra.yaml or by JMX."
)
"""What minimum_timestamp_fail_threshold does to rows that wait, and the remedy."""


def is_too_old(error: Exception) -> bool:
    """Whether the server refuses a row for its timestamp, by minimum_timestamp_fail_threshold."""
    return "minimum" in str(error) and "timestamp" in str(error)


def replicas_by_datacenter(replication: Mapping[str, str]) -> dict[str, int]:
    """Return how many replicas each datacenter has; empty where a keyspace does not say it by datacenter."""
    counts = {
        name: factor.partition("/")[0]  # 3/1: one of the three is transient
        for name, factor in replication.items()
        if name not in ("class", "replication_factor")
    }
    return {name: int(count) for name, count in counts.items() if count.isdecimal() and int(count)}
