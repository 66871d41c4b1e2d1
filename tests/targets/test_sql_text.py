"""Names in SQL, and columns of new tables."""

from __future__ import annotations

import pyarrow as pa
import pytest

from wal_sink.errors import SchemaMismatch
from wal_sink.targets.arrow_tables import new_columns
from wal_sink.targets.sql_text import quote, spark_name, spark_table


@pytest.mark.parametrize("name", ["id", "Order", "select", "größe 😀"])
def test_every_name_is_quoted(name: str) -> None:
    assert quote(name) == f'"{name}"'
    assert spark_name(name) == f"`{name}`"


def test_quoted_name_doubles_its_quotes() -> None:
    assert quote('say "hi"') == '"say ""hi"""'
    assert spark_name("a`b") == "`a``b`"


def test_table_name_is_quoted_where_necessary() -> None:
    assert spark_table(["lake", "shop", "my orders"]) == "lake.shop.`my orders`"


def test_new_columns_that_differ_by_case_are_refused() -> None:
    schema = pa.schema([("k", pa.string()), ("v", pa.int64()), ("K", pa.string())])
    with pytest.raises(
        SchemaMismatch, match="columns k, K differ by case only, and Delta"
    ) as caught:
        new_columns(schema, (), lambda _: None, "Delta")
    assert caught.value.remedy == "Rename all but one, .withColumnRenamed('K', …)."
