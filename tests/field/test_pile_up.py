"""The target was down or nobody flushed, and one window has several epochs."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tests.sql.stores import DuckDb, Sqlite, Store
from wal_sink.testing.micro_batches import PlayedQuery

SCHEMA = pa.schema([("id", pa.int32()), ("v", pa.int32())])


@pytest.mark.parametrize("store", [Sqlite, DuckDb], indirect=True)
def test_upserts_of_two_epochs_flush_in_one_window(store: Store) -> None:
    """DuckDB refuses a statement while an earlier result is not read to its end."""
    store.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, v INTEGER)")
    query = PlayedQuery(store.target(mode="upsert"), SCHEMA)
    query.run().batches([(1, 0), (2, 0)], [(1, 1)]).query.flush()
    assert sorted(store.execute("SELECT id, v FROM t")) == [(1, 1), (2, 0)]
