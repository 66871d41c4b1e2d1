"""Iceberg tables of a catalog in a folder, and queries that write to them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.table import Table
from pyiceberg.transforms import Transform

from wal_sink.model.ledger import LedgerRow, Outcome
from wal_sink.model.plan import plan_key
from wal_sink.options import parse
from wal_sink.targets.base import RowSlice
from wal_sink.targets.iceberg import IcebergTarget
from wal_sink.targets.iceberg.catalog import catalog_of
from wal_sink.targets.iceberg.options import IcebergOptions
from wal_sink.targets.iceberg.plan import iceberg_schema
from wal_sink.targets.iceberg.session import IcebergSession
from wal_sink.testing.contracts.ledger import create, following, new_query, row_of

PartitionBy = Sequence[tuple[str, Transform[Any, Any]]]


def catalog_options(folder: Path) -> dict[str, str]:
    """Return the options of a table whose SQL catalog and files are in a folder."""
    (folder / "catalog").mkdir(exist_ok=True)
    return {
        "table": "shop.orders",
        "iceberg.catalog.type": "sql",
        "iceberg.catalog.uri": f"sqlite:///{folder}/catalog/catalog.db",
        "iceberg.catalog.warehouse": f"file://{folder}/warehouse",
    }


def make_table(options: dict[str, str], schema: pa.Schema, by: PartitionBy = ()) -> Table:
    """Create the table that options name."""
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


class Query:
    """A query with a target, and a session of its flusher."""

    def __init__(self, options: dict[str, str], schema: pa.Schema) -> None:
        self.target = IcebergTarget(parse(options, IcebergOptions))
        self.schema = schema
        self.plan = self.target.plan(schema, plan_key(schema, "iceberg", self.target.shape))
        self.query_id = new_query()
        self.session = self.connect()
        create(self.session, self.query_id)

    def connect(self) -> IcebergSession:
        session = self.target.connect(self.query_id)
        assert isinstance(session, IcebergSession)
        return session

    @property
    def row(self) -> LedgerRow:
        return row_of(self.session)

    def write(self, rows: list[dict[str, Any]]) -> None:
        """Write rows of the next window."""
        batch = pa.RecordBatch.from_pylist(rows, self.schema)
        self.session.write(self.plan, RowSlice(0, self.target.check(batch, self.plan), 1))

    def stage(self, rows: list[dict[str, Any]]) -> tuple[bytes, ...]:
        """Stage rows of the next window."""
        self.write(rows)
        return self.session.drain()

    def commit(self, receipts: tuple[bytes, ...]) -> Outcome:
        """Finish the next window."""
        return self.session.finish(self.row, following(self.row), receipts)

    def add(self, rows: list[dict[str, Any]]) -> None:
        """Add rows to the table, as the next epoch."""
        assert self.commit(self.stage(rows)) is Outcome.APPLIED


@contextlib.contextmanager
def query(options: dict[str, str], schema: pa.Schema) -> Iterator[Query]:
    """Start a query that writes to the table that options name."""
    made = Query(options, schema)
    with made.session:
        yield made


def load(options: dict[str, str]) -> Table:
    """Load the table as another client does."""
    parsed = parse(options, IcebergOptions)
    return catalog_of(parsed).load_table(parsed.identifier)


def read(options: dict[str, str]) -> list[dict[str, Any]]:
    """Read the table by pyiceberg."""
    to_pylist: list[dict[str, Any]] = load(options).scan().to_arrow().to_pylist()
    return to_pylist
