"""Names and format versions of Iceberg tables as Spark's users write them."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from tests.iceberg.conftest import catalog_options, make_table, query, read
from wal_sink.errors import SchemaMismatch
from wal_sink.options import parse
from wal_sink.targets.iceberg import IcebergTarget
from wal_sink.targets.iceberg.catalog import catalog_of
from wal_sink.targets.iceberg.options import IcebergOptions

SCHEMA = pa.schema([("v", pa.int64())])


@pytest.mark.parametrize("more", [{}, {"createTable": "true"}], ids=["check", "create"])
@pytest.mark.parametrize("catalog", ["lake", "default"])
def test_catalog_name_before_the_table_name_is_refused(
    tmp_path: Path, more: dict[str, str], catalog: str
) -> None:
    """Spark's `lake.shop.orders` would be another table, in a namespace `lake.shop`."""
    options = catalog_options(tmp_path) | {"iceberg.catalog.name": catalog}
    make_table(options, SCHEMA)
    named = options | {"table": "lake.shop.orders"} | more
    with pytest.raises(SchemaMismatch, match="reads lake as a namespace") as caught:
        IcebergTarget(parse(named, IcebergOptions)).plan(SCHEMA, "key")
    assert caught.value.remedy.endswith("set option table to shop.orders.")
    with query(options, SCHEMA) as running:  # the remedy
        running.add([{"v": 1}])
    assert read(options) == [{"v": 1}]


def test_nested_namespace_is_accepted(tmp_path: Path) -> None:
    options = catalog_options(tmp_path) | {"table": "shop.eu.orders", "createTable": "true"}
    catalog_of(parse(options, IcebergOptions)).create_namespace(("shop",))
    with query(options, SCHEMA) as running:
        running.add([{"v": 1}])
    assert read(options) == [{"v": 1}]


def test_format_version_3_is_not_written_by_pyiceberg(tmp_path: Path) -> None:
    """Once pyiceberg writes it, `FORMAT` may be 3. tests/deploy runs the remedy by Spark."""
    options = parse(catalog_options(tmp_path), IcebergOptions)
    catalog = catalog_of(options)
    catalog.create_namespace(options.identifier[:-1])
    with pytest.raises(NotImplementedError, match="Writing V3 is not yet supported"):
        catalog.create_table(options.identifier, SCHEMA, properties={"format-version": "3"})
