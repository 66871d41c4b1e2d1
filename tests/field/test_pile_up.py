"""The target was down or nobody flushed, and one window has several epochs."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from tests.sql.stores import DuckDb, Sqlite, Store
from wal_sink.targets.sqlalchemy import SqlAlchemyOptions, SqlAlchemyTarget
from wal_sink.testing.micro_batches import PlayedQuery

SCHEMA = pa.schema([("id", pa.int32()), ("v", pa.int32())])


@pytest.mark.parametrize("kind", [Sqlite, DuckDb])
def test_upserts_of_two_epochs_flush_in_one_window(kind: type[Store], tmp_path: Path) -> None:
    """DuckDB refuses a statement while an earlier result is not read to its end."""
    store: Store = kind(tmp_path)  # type: ignore[call-arg]
    store.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, v INTEGER)")
    target = SqlAlchemyTarget(SqlAlchemyOptions(url=store.url, table="t", mode="upsert"))
    query = PlayedQuery(target, SCHEMA)
    query.run().batches([(1, 0), (2, 0)], [(1, 1)]).query.flush()
    assert sorted(store.execute("SELECT id, v FROM t")) == [(1, 1), (2, 0)]
