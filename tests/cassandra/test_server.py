"""Servers that a start refuses, the choice of the datacenter, and the id of the ledger's table."""

from __future__ import annotations

from functools import partial

import pytest
from cassandra import AuthenticationFailed
from cassandra.cluster import NoHostAvailable

from wal_sink.errors import OptionError, SchemaMismatch, TargetUnavailable
from wal_sink.options import parse
from wal_sink.targets.cassandra import CassandraOptions
from wal_sink.targets.cassandra.driver.connection import _no_connection, choose_datacenter
from wal_sink.targets.cassandra.ledger import create_ledger, ledger_id
from wal_sink.targets.cassandra.row_plan import TableName
from wal_sink.targets.cassandra.server import refuse_too_few_nodes


def options(**options: str) -> CassandraOptions:
    raw = {"keyspace": "shop", "table": "t", "cassandra.contactPoints": "10.0.0.1"}
    return parse(
        raw | {f"cassandra.{name}": value for name, value in options.items()}, CassandraOptions
    )


SIMPLE = {"class": "org.apache.cassandra.locator.SimpleStrategy", "replication_factor": "3"}
NETWORK = {"class": "org.apache.cassandra.locator.NetworkTopologyStrategy", "a": "3", "b": "3/1"}


@pytest.mark.parametrize(
    ("replication", "nodes", "level", "serial", "problem"),
    [
        (SIMPLE, {"a": 3}, "ALL", "SERIAL", ""),
        (SIMPLE, {"a": 2}, "QUORUM", "SERIAL", ""),
        (SIMPLE, {"a": 1}, "QUORUM", "SERIAL", "QUORUM needs 2 replicas, and there can be 1"),
        (SIMPLE, {"a": 1}, "LOCAL_QUORUM", "SERIAL", "LOCAL_QUORUM needs 2 replicas"),
        (SIMPLE, {"a": 1}, "ONE", "LOCAL_SERIAL", "LOCAL_SERIAL needs 2 replicas"),
        (SIMPLE, {"a": 2}, "THREE", "SERIAL", "THREE needs 3 replicas"),
        (NETWORK, {"a": 2, "b": 1}, "LOCAL_QUORUM", "LOCAL_SERIAL", ""),
        (NETWORK, {"a": 2, "b": 1}, "EACH_QUORUM", "LOCAL_SERIAL", "EACH_QUORUM needs 2"),
        (NETWORK, {"a": 2, "b": 1}, "QUORUM", "LOCAL_SERIAL", "QUORUM needs 4 replicas"),
        (NETWORK, {"c": 3}, "LOCAL_ONE", "LOCAL_SERIAL", "LOCAL_ONE needs 1 replica"),
        ({"class": "EverywhereStrategy"}, {"a": 1}, "ALL", "SERIAL", ""),
    ],
)
def test_consistency_level_beyond_the_nodes_is_refused(
    replication: dict[str, str], nodes: dict[str, int], level: str, serial: str, problem: str
) -> None:
    arguments = options(consistencyLevel=level, serialConsistencyLevel=serial)
    local = next(iter(nodes))
    check = partial(refuse_too_few_nodes, {"shop": replication}, nodes, arguments, local)
    if not problem:
        check()
        return
    with pytest.raises(SchemaMismatch, match=problem) as refused:
        check()
    assert 'ALTER KEYSPACE "shop" WITH replication = {' in refused.value.remedy


def test_keyspace_of_another_datacenter_only_gets_the_local_one() -> None:
    with pytest.raises(SchemaMismatch) as refused:
        refuse_too_few_nodes(
            {"shop": {"class": NETWORK["class"], "b": "3"}}, {"a": 2, "b": 3}, options(), "a"
        )
    assert "{'class': 'NetworkTopologyStrategy', 'b': 3, 'a': 2};" in refused.value.remedy


def test_ledger_id_follows_from_its_name() -> None:
    """Every start must choose the same id, on every host and in every version."""
    name = TableName("shop", "wal_sink_ledger")
    assert str(ledger_id(name)) == "3c4dcbdb-85df-5744-ae0c-32c1870a34bb"
    assert create_ledger(name).endswith(f" WITH id = {ledger_id(name)}")
    assert "id =" not in create_ledger(name, with_id=False)
    others = TableName("Shop", "wal_sink_ledger"), TableName("shop", "led"), TableName("a", "b")
    assert len({ledger_id(item) for item in (name, *others)}) == 4


def test_only_datacenter_needs_no_name() -> None:
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
def test_unknown_or_ambiguous_datacenter_is_refused(
    wanted: str, known: set[str], says: str
) -> None:
    """The error lists the datacenters."""
    with pytest.raises(OptionError, match=says) as refused:
        choose_datacenter(wanted, known)
    assert "cassandra.localDatacenter" in str(refused.value)


def test_login_that_a_node_cannot_check_is_an_outage() -> None:
    """A node that cannot read its roles has not found the login wrong."""
    for text, kind in (
        ("Provided username app and/or password are incorrect", OptionError),
        ("Unable to perform authentication: Cannot achieve QUORUM", TargetUnavailable),
    ):
        error = NoHostAvailable("", {"10.0.0.1": AuthenticationFailed(text)})
        assert type(_no_connection(error, options())) is kind


def test_connection_without_a_session_is_an_outage() -> None:
    """The driver reaches the node and opens no session. The driver's error lists addresses without errors."""
    error = NoHostAvailable("Unable to connect to any servers", ["10.0.0.1"])
    result = _no_connection(error, options())
    assert isinstance(result, TargetUnavailable)
    assert "Unable to connect to any servers" in result.what
