"""Which datacenter is the local one; and what it means that there is no connection."""

from __future__ import annotations

import pytest
from cassandra.cluster import NoHostAvailable

from wal_sink.errors import OptionError, TargetUnavailable
from wal_sink.options import parse
from wal_sink.targets.cassandra import CassandraOptions
from wal_sink.targets.cassandra.driver.connection import _no_connection, choose_datacenter


def test_only_one_needs_no_name() -> None:
    """Most clusters have one."""
    assert choose_datacenter("", {"dc1"}) == "dc1"
    assert choose_datacenter("dc2", {"dc1", "dc2"}) == "dc2"


@pytest.mark.parametrize(
    ("wanted", "known", "says"),
    [
        ("", {"east", "west"}, "2 datacenters: east, west"),
        ("East", {"east", "west"}, "Use one of east, west"),
        ("dc1", set(), "does not have"),
        ("", set(), "0 datacenters"),
    ],
)
def test_otherwise_it_is_asked_for(wanted: str, known: set[str], says: str) -> None:
    """The error lists what there is."""
    with pytest.raises(OptionError, match=says) as refused:
        choose_datacenter(wanted, known)
    assert "cassandra.localDatacenter" in str(refused.value)


def test_node_whose_connections_time_out_is_an_outage() -> None:
    """The driver reaches it, and opens no session: it then names addresses in place of their errors."""
    raw = {"keyspace": "k", "table": "t", "cassandra.contactPoints": "10.0.0.1"}
    error = NoHostAvailable("Unable to connect to any servers", ["10.0.0.1"])
    result = _no_connection(error, parse(raw, CassandraOptions))
    assert isinstance(result, TargetUnavailable)
    assert "Unable to connect to any servers" in result.what
