"""The options of the Cassandra target: what is accepted, and what a refusal says."""

from __future__ import annotations

import pickle

import pytest

from wal_sink.errors import OptionError
from wal_sink.options import names, parse, public
from wal_sink.targets.cassandra import CassandraOptions

MINIMUM = {"keyspace": "shop", "table": "orders", "cassandra.contactPoints": "10.0.0.1"}


def options(**given: str) -> CassandraOptions:
    return parse(
        MINIMUM | {key.replace("__", "."): value for key, value in given.items()}, CassandraOptions
    )


def test_defaults() -> None:
    """What is not given is what most want."""
    got = options()
    assert got.hosts == ("10.0.0.1",)
    assert (got.port, got.request_timeout, got.nulls) == (9042, 10.0, "unset")
    assert (got.consistency_level, got.serial_consistency_level) == ("LOCAL_QUORUM", "SERIAL")
    assert got.ledger == ("shop", "wal_sink_ledger")
    assert got.local_datacenter == ""
    assert (got.batch_bytes, got.concurrency) == ("auto", "auto")


def test_values_are_converted_and_levels_are_case_insensitive() -> None:
    """Spark passes strings."""
    got = options(
        cassandra__contactPoints="a, b ,::1,",
        cassandra__port="9043",
        cassandra__requestTimeout="2.5",
        cassandra__consistencyLevel="quorum",
        cassandra__serialConsistencyLevel="Local_Serial",
        cassandra__nulls="write",
        cassandra__batchBytes="2048",
        cassandra__concurrency="7",
    )
    assert got.hosts == ("a", "b", "::1")
    assert (got.port, got.request_timeout) == (9043, 2.5)
    assert (got.consistency_level, got.serial_consistency_level) == ("QUORUM", "LOCAL_SERIAL")
    assert got.nulls == "write"
    assert (got.batch_bytes, got.concurrency) == (2048, 7)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("led", ("shop", "led")),
        ("ops.Ledger", ("ops", "Ledger")),
        ("", ("shop", "wal_sink_ledger")),
    ],
)
def test_the_ledger_may_be_elsewhere(given: str, expected: tuple[str, str]) -> None:
    """A table of the data's keyspace, or keyspace.table."""
    assert options(cassandra__ledgerTable=given).ledger == expected


@pytest.mark.parametrize("missing", sorted(MINIMUM))
def test_required(missing: str) -> None:
    """What has no default is asked for by name."""
    raw = {key: value for key, value in MINIMUM.items() if key != missing}
    with pytest.raises(OptionError, match=missing):
        parse(raw, CassandraOptions)


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("cassandra.port", "0", "cassandra.port"),
        ("cassandra.port", "65536", "cassandra.port"),
        ("cassandra.port", "cql", "cassandra.port"),
        ("cassandra.requestTimeout", "0", "cassandra.requestTimeout"),
        ("cassandra.requestTimeout", "soon", "cassandra.requestTimeout"),
        ("cassandra.nulls", "tombstone", "unset.*write"),
        ("cassandra.batchBytes", "1023", "auto, or 1024 to 1048576"),
        ("cassandra.batchBytes", "1048577", "auto, or 1024 to 1048576"),
        ("cassandra.batchBytes", "48 KiB", "auto, or 1024 to 1048576"),
        ("cassandra.concurrency", "0", "auto, or 1 to 1024"),
        ("cassandra.concurrency", "1025", "auto, or 1 to 1024"),
        ("cassandra.concurrency", "many", "auto, or 1 to 1024"),
        ("cassandra.consistencyLevel", "ANY", "a hint"),
        ("cassandra.consistencyLevel", "any", "a hint"),
        ("cassandra.consistencyLevel", "LOCAL_QUORAM", "LOCAL_QUORAM.*\n.*LOCAL_QUORUM"),
        ("cassandra.consistencyLevel", "SERIAL", "unknown level"),
        ("cassandra.serialConsistencyLevel", "QUORUM", "SERIAL, LOCAL_SERIAL"),
        ("cassandra.ledgerTable", "a.b.c", "cassandra.ledgerTable"),
        ("cassandra.ledgerTable", "led ger", "cassandra.ledgerTable"),
        ("cassandra.contactPoints", " , ", "names no host"),
        ("cassandra.contactPoints", "a:9042", "cassandra.port"),
        ("cassandra.contactPoints", "[::1]:9042", "cassandra.port"),
        ("cassandra.contactPoints", "a b", "comma-separated"),
        ("table", "orders,refunds", "not supported yet"),
        ("table", "shop.orders", r'"keyspace", "shop"\)\.option\("table", "orders"'),
        ("table", '"Orders"', "without quotes"),
        ("keyspace", "my-shop", "letters, digits and underscores"),
        ("cassandra.username", "spark", "without cassandra.password"),
        ("cassandra.password", "secret", "without cassandra.username"),
    ],
)
def test_refused(option: str, value: str, says: str) -> None:
    """A refusal names the option and the remedy."""
    with pytest.raises(OptionError, match=rf"(?s){says}") as refused:
        parse(MINIMUM | {option: value}, CassandraOptions)
    assert option in str(refused.value)
    assert refused.value.remedy


def test_the_password_is_shown_nowhere() -> None:
    """Neither printed nor among what is written to the log."""
    got = options(cassandra__username="spark", cassandra__password="hunter2")
    assert "hunter2" not in repr(got)
    assert "hunter2" not in str(public(got))
    assert public(got)["cassandra.username"] == "spark"


def test_the_names_are_those_of_the_interface() -> None:
    """Renaming one is a change of the public interface."""
    assert names(CassandraOptions) == [
        "keyspace",
        "table",
        "cassandra.contactPoints",
        "cassandra.port",
        "cassandra.username",
        "cassandra.password",
        "cassandra.requestTimeout",
        "cassandra.localDatacenter",
        "cassandra.consistencyLevel",
        "cassandra.serialConsistencyLevel",
        "cassandra.ledgerTable",
        "cassandra.nulls",
        "cassandra.batchBytes",
        "cassandra.concurrency",
    ]


def test_pickles() -> None:
    """Options travel to the tasks."""
    got = options(cassandra__consistencyLevel="one")
    assert pickle.loads(pickle.dumps(got)) == got
