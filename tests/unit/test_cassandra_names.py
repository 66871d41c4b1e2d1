"""Quoting, and which name was probably meant."""

from __future__ import annotations

import pytest

from wal_sink.targets.cassandra.names import TableName, did_you_mean, is_table_name, quote


@pytest.mark.parametrize(
    ("name", "quoted"),
    [
        ("id", '"id"'),
        ("Order", '"Order"'),
        ("select", '"select"'),
        ('say "hi"', '"say ""hi"""'),
        ("größe 😀", '"größe 😀"'),
    ],
)
def test_quote(name: str, quoted: str) -> None:
    """Every name is quoted, and quotes in it are doubled."""
    assert quote(name) == quoted


def test_qualified() -> None:
    """Keyspace and table are quoted each."""
    assert str(TableName("shop", "Orders")) == '"shop"."Orders"'


@pytest.mark.parametrize(
    ("name", "allowed"),
    [("orders", True), ("Orders_2", True), ("", False), ("a.b", False), ("größe", False)],
)
def test_table_names(name: str, allowed: bool) -> None:
    """Cassandra allows word characters of ASCII."""
    assert is_table_name(name) is allowed


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("orders", "There is Orders, which differs in upper and lower case only: names are exact."),
        ("Order", "Did you mean Orders?"),
        ("zebra", ""),
    ],
)
def test_near(name: str, says: str) -> None:
    """Another case comes before another spelling."""
    assert did_you_mean(name, ["Orders", "customers"]) == says
