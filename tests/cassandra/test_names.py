"""Names of tables, and the primary key of a new one."""

from __future__ import annotations

import pytest

from wal_sink.errors import OptionError
from wal_sink.targets.cassandra.options import primary_key, refuse_bad_name
from wal_sink.targets.ddl import Layout, TableOptions


@pytest.mark.parametrize(
    ("name", "allowed"),
    [("orders", True), ("Orders_2", True), ("", False), ("a.b", False), ("größe", False)],
)
def test_table_name_has_word_characters_alone(name: str, allowed: bool) -> None:
    if allowed:
        refuse_bad_name("table", name)
        return
    with pytest.raises(OptionError, match="cannot be a name"):
        refuse_bad_name("table", name)


def layout(key: str, partition: str) -> Layout:
    options = TableOptions(create_table=True, key_columns=key, partition_columns=partition)
    return options.layout


@pytest.mark.parametrize(
    ("key", "partition", "result"),
    [
        ("id", "", (["id"], [])),
        ("customer, at", "", (["customer"], ["at"])),
        ("shop, at, day, n", "day,shop", (["day", "shop"], ["at", "n"])),
        ("shop, day", "shop, day", (["shop", "day"], [])),
    ],
)
def test_partition_key_is_the_first_column_by_default(
    key: str, partition: str, result: tuple[list[str], list[str]]
) -> None:
    options = primary_key(layout(key, partition))
    assert ([*options.partition], [*options.key]) == (result[0], result[0] + result[1])


@pytest.mark.parametrize(
    ("key", "partition", "text"),
    [("", "", "names no column"), ("", "a", "names no column"), ("a", "b", "names b")],
)
def test_empty_key_or_partition_outside_key_is_refused(key: str, partition: str, text: str) -> None:
    with pytest.raises(OptionError, match=text):
        primary_key(layout(key, partition))
