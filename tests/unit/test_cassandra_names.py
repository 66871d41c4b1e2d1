"""Quoting, and which name was probably meant."""

from __future__ import annotations

import pytest

from wal_sink.errors import OptionError
from wal_sink.targets.cassandra.names import (
    TableName,
    did_you_mean,
    is_table_name,
    quote,
    read_key,
)


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


@pytest.mark.parametrize(
    ("text", "partition", "clustering"),
    [
        ("id", ["id"], []),
        ("customer, at", ["customer"], ["at"]),
        ("(customer), at", ["customer"], ["at"]),
        (" ( shop,Day ) , at, n ", ["shop", "Day"], ["at", "n"]),
        ("(shop, day)", ["shop", "day"], []),
    ],
)
def test_a_key_is_read_as_cql_writes_it(
    text: str, partition: list[str], clustering: list[str]
) -> None:
    """The first column alone, or those in the parentheses, are the partition key."""
    assert [list(part) for part in read_key(text)] == [partition, clustering]


@pytest.mark.parametrize("text", ["", "()", ", at", "(a, b", "a, (b)", "(a) b", "a, b, a"])
def test_no_key(text: str) -> None:
    """A partition key is missing, a parenthesis is wrong, or a column comes twice."""
    with pytest.raises(OptionError, match="keyColumns"):
        read_key(text)
