"""A server closes an idle connection. The flush opens another one, and logs nothing."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from tests.sql.stores import STORES, Maria, Store
from wal_sink.testing.micro_batches import PlayedQuery, until_idle

ROWS = pa.schema([("id", pa.int64())])


def flush_after_quiet_time(
    query: PlayedQuery,
    store: Store,
    end_connections: Callable[[], list[Any]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Flush an epoch, let the server close its connections, and flush another epoch by the same flusher."""
    run = query.run()
    run.batch([(1,)])
    with contextlib.closing(query.flusher()) as flusher:
        until_idle(flusher)
        assert end_connections()
        run.batch([(2,)])
        with caplog.at_level(logging.INFO):
            caplog.clear()
            until_idle(flusher)
    texts = [record.getMessage() for record in caplog.records if record.name.startswith("wal_sink")]
    assert len(texts) == 1, texts
    assert "flushed 1 row of" in texts[0]
    assert sorted(store.execute("SELECT id FROM t")) == [(1,), (2,)]


@pytest.mark.parametrize("store", STORES[3:], indirect=True)
def test_postgresql_connection_closed_while_idle_is_opened_silently(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    store.execute("CREATE TABLE t (id bigint)")
    query = PlayedQuery(store.target(), ROWS)
    others = "FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    end = f"SELECT pg_terminate_backend(pid, 5000) {others}"
    flush_after_quiet_time(query, store, lambda: store.execute(end), caplog)


@pytest.mark.mariadb
def test_mariadb_connection_closed_while_idle_is_opened_silently(
    maria: Maria, caplog: pytest.LogCaptureFixture
) -> None:
    maria.execute("CREATE TABLE t (id bigint)")
    query = PlayedQuery(maria.target(), ROWS)
    others = "FROM information_schema.processlist WHERE id <> connection_id()"

    def end_connections() -> list[Any]:
        ids = maria.execute(f"SELECT id {others} AND db = '{maria.database}'")
        for (session_id,) in ids:
            maria.execute(f"KILL {session_id}")
        return ids

    flush_after_quiet_time(query, maria, end_connections, caplog)
