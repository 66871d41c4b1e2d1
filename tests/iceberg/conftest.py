"""Iceberg tables of a catalog in a folder, and what tests do with them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.table import Table
from pyiceberg.transforms import Transform

from wal_sink.options import parse
from wal_sink.targets.iceberg.creation import iceberg_schema
from wal_sink.targets.iceberg.options import IcebergOptions
from wal_sink.targets.iceberg.table import catalog_of

PartitionBy = Sequence[tuple[str, Transform[Any, Any]]]


def catalog_options(folder: Path) -> dict[str, str]:
    """Return the options of a table whose SQL catalog and files lie in a folder."""
    return {
        "table": "shop.orders",
        "iceberg.catalog.type": "sql",
        "iceberg.catalog.uri": f"sqlite:///{folder}/catalog.db",
        "iceberg.catalog.warehouse": f"file://{folder}/warehouse",
    }


def make_table(options: dict[str, str], schema: pa.Schema, by: PartitionBy = ()) -> Table:
    """Make the table of the options."""
    parsed = parse(options, IcebergOptions)
    catalog = catalog_of(parsed)
    catalog.create_namespace(parsed.identifier[:-1])
    made = iceberg_schema(schema)
    spec = PartitionSpec(
        *(
            PartitionField(
                source_id=made.find_field(name).field_id,
                field_id=1000 + i,
                transform=transform,
                name=f"{name}_{i}",
            )
            for i, (name, transform) in enumerate(by)
        )
    )
    return catalog.create_table(parsed.identifier, made, partition_spec=spec)
