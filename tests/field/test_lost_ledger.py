"""Somebody has dropped the ledger's table, and there is no backup of it."""

from __future__ import annotations

import re

import pyarrow as pa
import pytest

from tests.sql.stores import Store
from tests.support.operators import set_mark
from wal_sink.errors import LedgerBehindLog, TargetRefused
from wal_sink.protocol.retention import Retention
from wal_sink.testing.micro_batches import PlayedQuery

SCHEMA = pa.schema([("id", pa.int64())])


def test_remedies_of_errors_restore_a_dropped_ledger(store: Store) -> None:
    """Each error has a command. No row is doubled, although the log still has all rows."""
    store.execute("CREATE TABLE t (id BIGINT)")
    query = PlayedQuery(store.target(), SCHEMA)
    query.retention = Retention(us=3_600_000_000, bytes=1 << 30)
    run = query.run().flushed_batches([(1,)], [(2,)])
    query.end_sessions()
    store.execute("DROP TABLE wal_sink_ledger")
    run.batch([(3,)])
    with pytest.raises(TargetRefused, match=r"wal_sink_ledger.? cannot be read") as dropped:
        query.flush()
    store.paste(dropped.value.remedy.partition("Run:\n")[2])
    with pytest.raises(LedgerBehindLog, match="has no ledger row any more") as behind:
        query.flush()
    (epoch,) = re.findall(r"set-mark CHECKPOINT --to (\d+)", behind.value.remedy)
    set_mark(query.flusher().pipeline, int(epoch))
    query.flush()
    assert sorted(store.execute("SELECT id FROM t")) == [(1,), (2,), (3,)]
