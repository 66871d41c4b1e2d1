"""A table of a SQL database is altered while its query is stopped, has pending epochs, or runs.

A change that makes room never stops a flush, and the next start uses it. If pending rows do not fit the
table, a start is refused before anything is published.
"""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.sql.stores import DuckDb, Maria, Postgresql, Sqlite, Store, new_store
from tests.support.agreeing_start import start
from wal_sink.errors import InvalidRow, SchemaMismatch, TargetRefused
from wal_sink.targets.base import Target
from wal_sink.testing.micro_batches import PlayedQuery, Row, flush_with_retries

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("name", pa.string()),
        ("n", pa.int64()),
        ("price", pa.decimal128(14, 2)),
        ("note", pa.string()),
        ("moment", pa.timestamp("us", "UTC")),
    ]
)
AT = dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC)
NARROW: Row = (1, "abcde", 7, Decimal("12345678.90"), "x", AT)
WIDE: Row = (2, "abcdefgh", 2**40, Decimal("123456789012.34"), "y", AT)


class Place:
    """A table `t`, and the query that writes to it."""

    mode = "upsert"
    columns = (
        "id bigint NOT NULL PRIMARY KEY, name varchar(5), n integer, price numeric(10,2),"
        " note varchar(50), moment timestamp with time zone"
    )
    wider: tuple[str, ...] = (
        "ALTER TABLE t ALTER COLUMN name TYPE varchar(50)",
        "ALTER TABLE t ALTER COLUMN n TYPE bigint",
        "ALTER TABLE t ALTER COLUMN price TYPE numeric(14,2)",
        "ALTER TABLE t ALTER COLUMN note SET NOT NULL",
    )
    other_key: tuple[str, ...] = (
        "ALTER TABLE t DROP CONSTRAINT t_pkey",
        "ALTER TABLE t ADD PRIMARY KEY (id, n)",
    )
    own_key: tuple[str, ...] = (
        "ALTER TABLE t DROP CONSTRAINT t_pkey",
        "ALTER TABLE t ADD PRIMARY KEY (id)",
    )

    def __init__(self, store: Store) -> None:
        self.store = store
        store.execute(f"CREATE TABLE t ({self.columns})")
        self.query = PlayedQuery(self.target(), SCHEMA)

    def target(self) -> Target:
        return self.store.target(mode=self.mode, lock_timeout=2)

    def alter(self, statements: Sequence[str]) -> None:
        for statement in statements:
            self.store.paste(statement)

    @property
    def rows(self) -> list[Any]:
        rows = self.store.execute("SELECT id, name, n, price, note FROM t ORDER BY id")
        return [tuple(row) for row in rows]


class AppendingPlace(Place):
    """A table without a key: COPY adds the rows."""

    mode = "append"
    columns = Place.columns.replace(" PRIMARY KEY", "")


class MariaPlace(Place):
    """A table of MariaDB."""

    columns = Place.columns.replace("timestamp with time zone", "datetime(6)")
    wider = (
        "ALTER TABLE t MODIFY name varchar(50), MODIFY n bigint, MODIFY price decimal(14,2)",
        "ALTER TABLE t MODIFY note varchar(50) NOT NULL",
    )
    other_key = ("ALTER TABLE t DROP PRIMARY KEY, ADD PRIMARY KEY (id, n)",)
    own_key = ("ALTER TABLE t DROP PRIMARY KEY, ADD PRIMARY KEY (id)",)


class DuckPlace(Place):
    """A table of DuckDB, which has no texts of limited length."""

    mode = "append"
    columns = AppendingPlace.columns
    wider = Place.wider[1:]


KEYED = [
    pytest.param((Postgresql, Place), marks=pytest.mark.postgresql, id="postgresql"),
    pytest.param((Maria, MariaPlace), marks=pytest.mark.mariadb, id="mariadb"),
]
ADDED = [
    pytest.param((Postgresql, AppendingPlace), marks=pytest.mark.postgresql, id="copy"),
    pytest.param((DuckDb, DuckPlace), id="duckdb"),
]


@pytest.fixture(params=KEYED + ADDED)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """Create the table in each store."""
    kind, place_type = request.param
    altered: Place = place_type(new_store(kind, request, tmp_path))
    return altered


def test_wider_table_at_start_takes_wider_rows(place: Place) -> None:
    start(place.query).flushed_batches([NARROW])
    with pytest.raises(InvalidRow):
        start(place.query).batch([WIDE])
    place.alter(place.wider)
    start(place.query).flushed_batches([WIDE])
    start(place.query).flushed_batches([(3, *WIDE[1:])])
    assert place.rows == [NARROW[:5], WIDE[:5], (3, *WIDE[1:5])]


def test_pending_rows_go_into_wider_table(place: Place) -> None:
    start(place.query).batch([NARROW])
    place.alter(place.wider)
    start(place.query).batch([WIDE])
    place.query.flush()
    assert place.rows == [NARROW[:5], WIDE[:5]]


def test_table_made_wider_while_flushing_takes_rows(place: Place) -> None:
    run, flusher = start(place.query), place.query.flusher()
    run.batch([NARROW])
    flush_with_retries(flusher)
    place.alter(place.wider)
    run.batch([(2, *NARROW[1:])])
    try:
        flush_with_retries(flusher)
    except Exception:  # noqa: BLE001 -- of the driver; the flush loop connects again
        flusher.close()
        flush_with_retries(flusher)
    finally:
        flusher.close()
    assert place.rows == [NARROW[:5], (2, *NARROW[1:5])]


@pytest.mark.parametrize("place", ADDED[:1], indirect=True)
def test_copy_uses_the_present_column_types(place: Place) -> None:
    """COPY's binary format has no types: eight bytes are a bigint or a double precision."""
    run, flusher = start(place.query), place.query.flusher()
    with contextlib.closing(flusher):
        run.batch([NARROW])
        flush_with_retries(flusher)
        place.alter(["ALTER TABLE t ALTER COLUMN id TYPE double precision"])
        run.batch([(2, *NARROW[1:])])
        flush_with_retries(flusher)
    assert place.rows == [(1.0, *NARROW[1:5]), (2.0, *NARROW[1:5])]


def test_error_names_null_in_column_altered_to_not_null(place: Place) -> None:
    start(place.query).batch([NARROW, (2, "b", 1, None, None, AT)])
    place.alter(place.wider)
    with pytest.raises(TargetRefused, match=r"Column note .*takes no null"):
        place.query.flush()


@pytest.mark.parametrize("place", KEYED, indirect=True)
def test_start_is_refused_while_pending_rows_do_not_fit(place: Place) -> None:
    """The start publishes nothing. After the table is changed back, the flush continues."""
    start(place.query).batch([NARROW])
    place.alter(place.other_key)
    with pytest.raises(
        SchemaMismatch, match=r"Epoch 0 is not flushed yet.*its key was id"
    ) as caught:
        start(place.query)
    assert "Change the table back, and run: wal-sink flush " in caught.value.remedy
    assert place.query.state.last.epoch == 0
    place.alter(place.own_key)
    place.query.flush()
    place.alter(place.other_key)
    start(place.query).flushed_batches([NARROW, (1, "b", 8, *NARROW[3:])])
    assert place.rows == [NARROW[:5], (1, "b", 8, *NARROW[3:5])]


@pytest.mark.parametrize("place", KEYED[:1], indirect=True)
def test_start_uses_last_plan_while_target_is_down(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    reachable = place.query.target
    start(place.query).flushed_batches([NARROW])
    place.query.target = place.store.target(uri="postgresql://127.0.0.1:1/x", mode="upsert")
    start(place.query).batch([(2, *NARROW[1:])])
    assert "does not answer. The query starts nevertheless" in caplog.text
    place.query.target = reachable
    place.query.flush()
    assert len(place.rows) == 2


def test_dropped_table_is_not_created_again_by_start(tmp_path: Path) -> None:
    """Otherwise the earlier rows would be missing silently. Other options of the start change nothing."""
    store = Sqlite(tmp_path)
    query = PlayedQuery(store.target(create_table=True), SCHEMA.remove(3))
    row = (*NARROW[:3], *NARROW[4:])
    start(query).flushed_batches([row])
    store.execute("DROP TABLE t")
    for changes in (dict[str, Any](mode="upsert", key_columns="id"), {}):
        query.target = store.target(create_table=True, **changes)
        with pytest.raises(SchemaMismatch, match="is gone, and this query has written") as caught:
            start(query)
    store.execute(caught.value.remedy.partition("\n")[2])
    start(query).flushed_batches([row])
    assert len(store.execute("SELECT id FROM t")) == 1


def test_error_names_the_target_whose_table_is_gone(tmp_path: Path) -> None:
    """Both targets have a table of that name. A start creates a table of another name."""
    store = Sqlite(tmp_path)
    other = Sqlite(tmp_path / "other")
    (tmp_path / "other").mkdir()

    tables = {"lite": (store, "t"), "mart": (other, "t")}

    class TwoStores(PlayedQuery):
        @property
        def targets(self) -> dict[str, Target]:
            return {
                name: place.target(table=table, create_table=True)
                for name, (place, table) in tables.items()
            }

    schema = pa.schema([("id", pa.int64())])
    query = TwoStores(store.target(), schema)
    start(query).flushed_batches([(1,)])
    other.execute("DROP TABLE t")
    with pytest.raises(SchemaMismatch, match=r"^Target mart: .* is gone"):
        start(query)
    tables["mart"] = (other, "t2")
    start(query).flushed_batches([(2,)])
    assert store.execute("SELECT id FROM t ORDER BY id") == [(1,), (2,)]
    assert other.execute("SELECT id FROM t2") == [(2,)]


def test_start_with_another_schema_checks_pending_rows_too(tmp_path: Path) -> None:
    """The table has lost a column of the former schema, by which epoch 0 was published."""
    store = Sqlite(tmp_path)
    store.execute("CREATE TABLE t (id integer, n integer, note text)")
    schema = pa.schema([("id", pa.int64()), ("n", pa.int64()), ("note", pa.string())])
    query = PlayedQuery(store.target(), schema)
    start(query).batch([(1, 2, "x")])
    store.execute("ALTER TABLE t DROP COLUMN note")
    query.schema = schema.remove(2)
    with pytest.raises(SchemaMismatch, match="Epoch 0 is not flushed yet"):
        start(query)
    assert query.state.last.epoch == 0
    store.execute("ALTER TABLE t ADD COLUMN note text")
    start(query).flushed_batches([(3, 4)])
    assert store.execute("SELECT id, n, note FROM t ORDER BY id") == [(1, 2, "x"), (3, 4, None)]
