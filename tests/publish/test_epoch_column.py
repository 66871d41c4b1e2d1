"""`epochColumn`, which has the epoch of each row."""

from __future__ import annotations

import pyarrow as pa
import pytest

from wal_sink.errors import OptionError, SchemaMismatch
from wal_sink.publish.micro_batch import with_epoch
from wal_sink.publish.plans import RESERVED, with_epoch_field
from wal_sink.targets.cassandra.row_plan import EXPIRES_US, TIMESTAMP_US, TTL_S
from wal_sink.targets.sql.upsert import DELETED, ORDINAL

SCHEMA = pa.schema([("id", pa.int64())])


def test_epoch_column_is_added_to_schema_and_batch() -> None:
    batch = pa.record_batch([pa.array([7, 8, 9])], schema=SCHEMA)
    for part in (batch, batch.slice(1), batch.slice(3)):
        added = with_epoch(part, "epoch", 2**40)
        assert added.schema == with_epoch_field(SCHEMA, "epoch")
        assert added.column("epoch").to_pylist() == [2**40] * part.num_rows
        assert added.column("id").equals(part.column("id"))


def test_epoch_column_is_not_added_by_default() -> None:
    batch = pa.record_batch([pa.array([7])], schema=SCHEMA)
    assert with_epoch_field(SCHEMA, "") == SCHEMA
    assert with_epoch(batch, "", 3) is batch


def test_epoch_column_in_the_dataframe_is_refused() -> None:
    with pytest.raises(OptionError, match="epochColumn is id"):
        with_epoch_field(SCHEMA, "id")


@pytest.mark.parametrize("name", ["wal_sink:ttl_s", "wal_sink:ordinal"])
def test_column_with_the_reserved_prefix_is_refused(name: str) -> None:
    """Otherwise the log or a temporary table would have two columns of this name."""
    for schema, option in ((SCHEMA.append(pa.field(name, pa.int64())), ""), (SCHEMA, name)):
        with pytest.raises(SchemaMismatch, match=name) as caught:
            with_epoch_field(schema, option)
        assert "Rename the column" in caught.value.remedy


def test_sinks_own_columns_have_the_reserved_prefix() -> None:
    for name in (TTL_S, EXPIRES_US, TIMESTAMP_US, ORDINAL, DELETED):
        assert name.startswith(RESERVED)
