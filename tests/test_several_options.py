"""Options of several targets: which target has each, and which are refused."""

from __future__ import annotations

import json
import pickle

import pytest

from wal_sink.configuration import Configuration, configure
from wal_sink.errors import OptionError

GIVEN = {
    "checkpointLocation": "/data/checkpoint",
    "targets": "orders, Books",
    "orders.target": "cassandra",
    "orders.keyspace": "shop",
    "orders.table": "orders",
    "orders.cassandra.contactPoints": "10.0.0.1",
    "Books.target": "postgresql",
    "books.postgresql.uri": "postgresql://ann:Geheim@db/shop",
    "books.TABLE": "orders",
}


def without(*names: str) -> dict[str, str]:
    return {name: value for name, value in GIVEN.items() if name not in names}


def names_of(configuration: Configuration) -> list[str]:
    return [destination.name for destination in configuration.destinations]


def test_targets_have_options_of_their_own() -> None:
    """Names are case-insensitive. The options in the state have no secret."""
    configuration = configure(GIVEN)
    assert configuration.several
    assert names_of(configuration) == ["orders", "books"]
    assert [destination.target.name for destination in configuration.destinations] == [
        "cassandra",
        "postgresql",
    ]
    assert [destination.target.writes_to for destination in configuration.destinations] == [
        "shop.orders",
        "orders",
    ]
    assert configuration.public["orders.keyspace"] == "shop"
    assert configuration.public["books.target"] == "postgresql"
    assert "target" not in configuration.public
    assert "Geheim" not in json.dumps(configuration.public)
    again = configure(
        configuration.public | {"books.postgresql.uri": GIVEN["books.postgresql.uri"]}
    )
    assert again.public == configuration.public
    copy = pickle.loads(pickle.dumps(configuration))
    assert isinstance(copy, Configuration)
    assert names_of(copy) == names_of(configuration)


@pytest.mark.parametrize(
    ("options", "what", "remedy"),
    [
        (without("orders.target"), "orders.target is missing", '.option("orders.target", …)'),
        (without("orders.keyspace"), "Target orders: Option keyspace is missing", "orders"),
        (GIVEN | {"orders.tabel": "x"}, "Target orders: Unknown option tabel", "mean table"),
        (GIVEN | {"oders.table": "x"}, "Unknown option oders.table", "Did you mean"),
        (
            GIVEN | {"keyspace": "x"},
            "Unknown option keyspace",
            "Did you mean orders.keyspace?",
        ),
        (
            GIVEN | {"target": "kafka"},
            "Unknown option target",
            "Did you mean books.target or orders.target?",
        ),
        (
            GIVEN | {"createtable": "true"},
            "Unknown option createtable",
            "Did you mean books.createTable or orders.createTable?",
        ),
        (
            GIVEN | {"delta.path": "/lake"},
            "Option delta.path is for target delta",
            "Add a target of kind delta to option targets",
        ),
        (
            {"checkpointLocation": "/c", "targets": "a", "target": "kafka", "table": "t"},
            "Option a.target is missing",
            '.option("a.target", …)',
        ),
        (
            {
                "checkpointLocation": "/c",
                "targets": "a",
                "a.target": "kafka",
                "a.topic": "t",
                "table": "t",
            },
            "Unknown option table",
            "begin with its name. If a target has such an option, write a.table",
        ),
        (GIVEN | {"targets": "orders,cassandra"}, "names cassandra, and other", "to_cassandra"),
        (GIVEN | {"targets": "orders,wal"}, "names wal, and other", "to_wal"),
        (GIVEN | {"targets": "orders,orders"}, "has 'orders' twice", "one of the two"),
        (GIVEN | {"targets": "or-ders"}, "'or-ders', which cannot be a name", "a letter"),
        (GIVEN | {"targets": "a" * 25}, "which cannot be a name", "at most 23"),
        (GIVEN | {"wal.maxBytez": "1"}, "Unknown option wal.maxBytez", "wal.maxBytes"),
        (
            GIVEN | {"cassandra.contactPoints": "h"},
            "Unknown option cassandra.contactPoints",
            "Did you mean orders.cassandra.contactPoints?",
        ),
        (GIVEN | {"orders.target": "lake"}, "Target orders: Option target is lake", "cassandra"),
    ],
)
def test_option_that_does_not_fit_several_targets_is_refused(
    options: dict[str, str], what: str, remedy: str
) -> None:
    """The remedy has the whole name of the option, or the nearest option."""
    with pytest.raises(OptionError) as caught:
        configure(options)
    assert what in caught.value.what
    assert remedy in caught.value.remedy
    assert "Geheim" not in str(caught.value)


def test_targets_with_one_table_are_refused() -> None:
    """The same name in another database is another table."""
    twice = without("Books.target", "books.postgresql.uri") | {
        "books.target": "cassandra",
        "books.keyspace": "shop",
        "books.cassandra.contactPoints": "10.0.0.1",
    }
    with pytest.raises(OptionError, match="Targets orders and books are the same table"):
        configure(twice)
    assert configure(twice | {"books.cassandra.contactPoints": "10.9.9.9"}).several
