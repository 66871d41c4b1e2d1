"""Quoted names in SQL."""

from __future__ import annotations

from wal_sink.targets.ddl import quote, spark_name, spark_table


def test_quoted_name_doubles_its_quotes() -> None:
    assert quote('say "hi"') == '"say ""hi"""'
    assert spark_name("a`b") == "`a``b`"


def test_table_name_is_quoted_where_necessary() -> None:
    assert spark_table(["lake", "shop", "my orders"]) == "lake.shop.`my orders`"
