"""A Delta or Iceberg table is altered while its query is stopped, has pending epochs, or runs.

A change that makes room never stops a flush: a wider number, and a field of a struct that takes nulls.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyiceberg.types import DecimalType, IntegerType, LongType

from tests.delta.conftest import delta_target, table_of
from tests.iceberg.conftest import catalog_options, load, make_table, read
from tests.support.agreeing_start import start
from wal_sink.errors import InvalidRow, SchemaMismatch
from wal_sink.options import parse
from wal_sink.targets.base import Target
from wal_sink.targets.delta import DeltaTarget
from wal_sink.targets.iceberg import IcebergTarget
from wal_sink.targets.iceberg.options import IcebergOptions
from wal_sink.testing.micro_batches import PlayedQuery, Row, flush_with_retries

PART = pa.struct([("a", pa.int32())])
FRAME = pa.schema(
    [
        ("id", pa.int64()),
        ("n", pa.int64()),
        ("price", pa.decimal128(14, 2)),
        ("s", PART),
        ("l", pa.list_(PART)),
    ]
)
NARROW_TABLE = FRAME.set(1, pa.field("n", pa.int32())).set(
    2, pa.field("price", pa.decimal128(10, 2))
)
WIDER_PART = pa.struct([("a", pa.int32()), ("b", pa.int32())])
WIDER_TABLE = pa.schema(
    [
        ("id", pa.int64()),
        ("n", pa.int64()),
        ("price", pa.decimal128(14, 2)),
        ("s", WIDER_PART),
        ("l", pa.list_(WIDER_PART)),
    ]
)


def row(id_: int, n: int, price: str) -> Row:
    part = {"a": id_}
    return (id_, n, Decimal(price), part, [part, None])


def in_wider_table(*rows: Row) -> list[dict[str, Any]]:
    """Return rows as a reader of the wider table has them."""
    frame = [dict(zip(FRAME.names, values, strict=True)) for values in rows]
    for values in frame:
        part = values["s"] | {"b": None}
        values |= {"s": part, "l": [part, None]}
    return frame


NARROW, WIDE = row(1, 7, "12345678.90"), row(2, 2**40, "123456789012.34")


class Lake(ABC):
    """A table, and the query that writes to it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.make()
        self.query = PlayedQuery(self.target(), FRAME)

    @abstractmethod
    def make(self) -> None:
        """Make the table with narrow columns."""

    @abstractmethod
    def target(self) -> Target:
        """Return the target of the query."""

    @abstractmethod
    def widen(self) -> None:
        """Alter the table into one that takes wider rows."""

    @abstractmethod
    def drop_field(self) -> None:
        """Replace the only field of the struct by another one."""

    @abstractmethod
    def read(self) -> list[dict[str, Any]]:
        """Read the table as another client does."""

    @property
    def rows(self) -> list[dict[str, Any]]:
        return sorted(self.read(), key=lambda values: values["id"])


class AppendingDelta(Lake):
    """Rows are added."""

    mode: tuple[tuple[str, str], ...] = ()

    @property
    def path(self) -> str:
        return str(self.folder / "t")

    def make(self) -> None:
        DeltaTable.create(self.path, NARROW_TABLE)

    def target(self) -> DeltaTarget:
        return delta_target(self.path, **dict(self.mode))

    def _replace(self, rows: pa.Table) -> None:
        write_deltalake(self.path, rows, mode="overwrite", schema_mode="overwrite")

    def widen(self) -> None:
        self._replace(DeltaTable(self.path).to_pyarrow_table().cast(WIDER_TABLE))

    def drop_field(self) -> None:
        other = FRAME.set(3, pa.field("s", pa.struct([("c", pa.int32())])))
        self._replace(other.empty_table())

    def read(self) -> list[dict[str, Any]]:
        return table_of(self.path)


class UpsertingDelta(AppendingDelta):
    """Rows are replaced by `id`."""

    mode = (("delta.mode", "upsert"), ("keyColumns", "id"))


class Iceberg(Lake):
    """In a catalog that is a file."""

    def make(self) -> None:
        self.options = catalog_options(self.folder)
        make_table(self.options, NARROW_TABLE)

    def target(self) -> IcebergTarget:
        return IcebergTarget(parse(self.options, IcebergOptions))

    def widen(self) -> None:
        with load(self.options).update_schema() as update:
            update.update_column("n", field_type=LongType())
            update.update_column("price", field_type=DecimalType(14, 2))
            for part in ("s", "l"):
                update.add_column((part, "b"), IntegerType())

    def drop_field(self) -> None:
        with load(self.options).update_schema() as update:
            update.add_column(("s", "c"), IntegerType())
            update.delete_column(("s", "a"))

    def read(self) -> list[dict[str, Any]]:
        return read(self.options)


@pytest.fixture(
    params=[AppendingDelta, UpsertingDelta, Iceberg], ids=["delta", "upsert", "iceberg"]
)
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    made: Lake = request.param(tmp_path)
    return made


def test_wider_lake_table_at_start_takes_wider_rows(lake: Lake) -> None:
    start(lake.query).flushed_batches([NARROW])
    with pytest.raises(InvalidRow, match="widen the column, and start the query"):
        start(lake.query).batch([WIDE])
    lake.widen()
    start(lake.query).flushed_batches([WIDE])
    assert lake.rows == in_wider_table(NARROW, WIDE)


def test_pending_rows_go_into_wider_lake_table(lake: Lake) -> None:
    """Rows of both plans are in one window."""
    start(lake.query).batch([NARROW])
    lake.widen()
    start(lake.query).batch([WIDE])
    lake.query.flush()
    assert lake.rows == in_wider_table(NARROW, WIDE)


def test_lake_table_made_wider_while_flushing_takes_rows(lake: Lake) -> None:
    """The rows of this run are checked by the narrow table until the next start."""
    run, flusher = start(lake.query), lake.query.flusher()
    later = row(2, 8, "0.10")
    with contextlib.closing(flusher):
        run.batch([NARROW])
        flush_with_retries(flusher)
        lake.widen()
        run.batch([later])
        flush_with_retries(flusher)
    assert lake.rows == in_wider_table(NARROW, later)


def test_lake_table_without_planned_field_stops_flush(lake: Lake) -> None:
    """The pending rows have values of that field."""
    start(lake.query).batch([NARROW])
    lake.drop_field()
    with pytest.raises(SchemaMismatch, match=r"column s was .*, and is .* now"):
        lake.query.flush()
    with pytest.raises(SchemaMismatch, match="s: the table's type is"):
        start(lake.query)
    assert lake.query.state.last.epoch == 0


def test_struct_without_a_required_field_is_refused_at_start(tmp_path: Path) -> None:
    """Otherwise tasks would refuse each row."""
    part = pa.struct([("a", pa.int32()), pa.field("b", pa.int32(), nullable=False)])
    DeltaTable.create(str(tmp_path / "t"), FRAME.set(3, pa.field("s", part)))
    with pytest.raises(SchemaMismatch, match="s: the table's type is"):
        start(PlayedQuery(delta_target(tmp_path / "t"), FRAME))
