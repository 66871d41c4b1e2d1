"""Values of MariaDB, and JSON of each database: a value arrives unchanged, or its row is refused."""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.sql.mariadb import MySql
from tests.sql.stores import SCHEMA, STORES, DuckDb, Maria, Store, agreed, bring
from wal_sink.errors import InvalidRow, SchemaMismatch
from wal_sink.targets.base import RowSlice, RowsRefused, without
from wal_sink.testing.contracts.ledger import create
from wal_sink.testing.contracts.rows import deliver
from wal_sink.testing.micro_batches import PlayedQuery


@pytest.mark.parametrize(
    ("type_", "source", "good", "bad"),
    [
        ("TINYINT UNSIGNED", pa.int64(), 255, 256),
        ("BIGINT UNSIGNED", pa.decimal128(20, 0), Decimal(2**64 - 1), Decimal(-1)),
        ("MEDIUMINT", pa.int32(), -8_388_608, 8_388_608),
        ("DOUBLE", pa.float64(), 1e308, float("nan")),
        ("FLOAT", pa.float32(), 0.5, float("inf")),
        ("DECIMAL(5,2)", pa.decimal128(9, 2), Decimal("999.99"), Decimal("1000.00")),
        ("DECIMAL(5,2)", pa.int64(), 999, 1000),
        ("VARCHAR(3)", pa.string(), "äöü", "äöüx"),
        ("CHAR(3)", pa.string(), "ab", "ab "),
        ("TINYTEXT", pa.string(), "x" * 255, "ä" * 128),
        ("BINARY(2)", pa.binary(), b"ab", b"a"),
        ("VARBINARY(2)", pa.binary(), b"a", b"abc"),
        ("BOOLEAN", pa.bool_(), True, None),
        ("DATETIME(3)", pa.timestamp("us", "UTC"), 1_000, 1_001),
        ("TIMESTAMP(6)", pa.timestamp("us", "UTC"), 2_147_483_647_000_000, 2_147_483_648_000_000),
        ("DATE", pa.date32(), 0, 2_932_897),
    ],
)
def test_value_arrives_unchanged_or_is_refused_in_the_task(
    maria: Maria, type_: str, source: pa.DataType, good: object, bad: object
) -> None:
    """MariaDB would cut, round, pad or refuse the bad value."""
    maria.execute(f"CREATE TABLE t (v {type_})")
    target, schema = maria.target(), pa.schema([("v", source)])

    def rows(value: object) -> pa.RecordBatch:
        number = {"timestamp": pa.int64(), "date32": pa.int32()}.get(str(source).partition("[")[0])
        return pa.record_batch([pa.array([value], number or source).cast(source)], schema=schema)

    if bad is not None:
        with pytest.raises(InvalidRow, match=r"Column v of .* does not fit"):
            target.check(rows(bad), agreed(target, schema))
    bring(target, rows(good))
    expected = rows(good).column(0)
    if pa.types.is_timestamp(source):
        expected = expected.cast(pa.timestamp("us"))
    assert maria.execute("SELECT v FROM t") == [(expected[0].as_py(),)]


UTC = datetime.UTC
TEXTS = [
    "",
    "'",
    "\\",
    "\\'",
    "''",
    '"',
    "a\nb\r\t\0\x1a",
    "%s %",
    "`",
    "äöü €\U0001f600",
    "_binary X'00'",
    "NULL",
]
NUMBERS = [
    0.1,
    5e-324,
    1.7976931348623157e308,
    -1.5e-5,
    1e22,
    123456789012345680.0,
    2.0**53 + 2,
    1 / 3,
]
TINY = Decimal("0.000000012345678901234567890123")
VALUES: dict[str, tuple[str, pa.DataType, list[Any]]] = {
    "text": ("LONGTEXT", pa.string(), TEXTS),
    "bytes": (
        "LONGBLOB",
        pa.binary(),
        [bytes(range(256)), b"", *(text.encode() for text in TEXTS)],
    ),
    "json": ("JSON", pa.string(), ['{"a": "\\\\ \'"}']),
    "double": ("DOUBLE", pa.float64(), NUMBERS),
    "float": ("FLOAT", pa.float32(), [0.5, 2.0**-149, 3.4028234663852886e38, 2.0**24]),
    "decimal": (
        "DECIMAL(38,30)",
        pa.decimal128(38, 30),
        [TINY, -TINY, Decimal("99999999.5"), Decimal(0)],
    ),
    "whole": ("DECIMAL(38,0)", pa.decimal128(38, 0), [Decimal("9" * 38), Decimal("-" + "9" * 38)]),
    "big": ("BIGINT", pa.int64(), [-(2**63), 2**63 - 1, 0]),
    "unsigned": ("BIGINT UNSIGNED", pa.uint64(), [2**64 - 1]),
    "tiny": ("TINYINT", pa.int8(), [-128, 127]),
    "yes": ("BOOLEAN", pa.bool_(), [True, False]),
    "day": ("DATE", pa.date32(), [datetime.date(1, 1, 1), datetime.date(9999, 12, 31)]),
    "seconds": ("DATETIME", pa.timestamp("s"), [datetime.datetime(1, 1, 1, 2, 3, 4)]),  # noqa: DTZ001 -- it has none
    "at": (
        "DATETIME(6)",
        pa.timestamp("us", "UTC"),
        [
            datetime.datetime(9999, 12, 31, 23, 59, 59, 999_999, UTC),
            datetime.datetime(1969, 1, 1, tzinfo=UTC),
        ],
    ),
    "stamp": (
        "TIMESTAMP(3) NULL",
        pa.timestamp("ms", "UTC"),
        [datetime.datetime(2038, 1, 19, tzinfo=UTC)],
    ),
}
"""For each column its type, the type of the DataFrame, and values that a statement could change."""


def test_values_of_every_type_arrive_unchanged(maria: Maria) -> None:
    """As literals in a statement, some of these values could change."""
    listed = ", ".join(f"`{name}` {type_}" for name, (type_, _, _) in VALUES.items())
    maria.execute(f"CREATE TABLE t (id BIGINT, {listed})")
    number = max(len(values) for _, _, values in VALUES.values()) + 1
    columns = [
        pa.array([*values, *[None] * (number - len(values))], type_)
        for _, type_, values in VALUES.values()
    ]
    rows = pa.record_batch([pa.array(range(number), pa.int64()), *columns], names=["id", *VALUES])
    bring(maria.target(), rows)
    exact = ", ".join("`float` + 0e0" if name == "float" else f"`{name}`" for name in VALUES)
    stored_rows = maria.execute(f"SELECT id, {exact} FROM t ORDER BY id")
    for name, column, stored in zip(
        VALUES, columns, list(zip(*stored_rows, strict=True))[1:], strict=True
    ):
        plain = column.cast(pa.timestamp("us")) if pa.types.is_timestamp(column.type) else column
        assert list(stored) == plain.to_pylist(), name


@pytest.mark.parametrize("keyed", [False, True])
def test_row_above_max_allowed_packet_is_refused_alone(maria: Maria, *, keyed: bool) -> None:
    """Some rows need several statements, and some rows are longer than a statement may be."""
    maria.execute(
        f"CREATE TABLE t (id BIGINT, name LONGTEXT{', PRIMARY KEY (id)' if keyed else ''})"
    )
    maria.server.execute("SET GLOBAL max_allowed_packet = 65536")
    try:
        target = maria.target(mode="upsert" if keyed else "append")
        plan = agreed(target)
        texts = ["'" * 30_000, "x" * 60_000, "'" * 40_000, "x" * 70_000, "y"]
        rows = RowSlice(0, target.check(pa.record_batch([range(5), texts], SCHEMA), plan), 7)
        with target.connect("query") as session:
            create(session, "query")
            with pytest.raises(RowsRefused) as raised:
                deliver(session, plan, rows)
        refused = [row.us for row in raised.value.rows]
        assert refused == [9, 10]
        assert re.search(r"id=2\b.* max_allowed_packet is 6", raised.value.rows[0].error.what)
        with target.connect("query") as session:
            deliver(session, plan, *without(rows, refused))
    finally:
        maria.server.execute("SET GLOBAL max_allowed_packet = 16777216")
    assert maria.execute("SELECT id FROM t ORDER BY id") == [(0,), (1,), (4,)]


@pytest.mark.parametrize("store", STORES[1:], indirect=True)
def test_text_that_is_not_json_is_quarantined(store: Store) -> None:
    """DuckDB has no savepoints: a row that it refused would stop the flush."""
    store.execute("CREATE TABLE t (id BIGINT, name JSON)")
    query = PlayedQuery(store.target(), SCHEMA)
    query.on_invalid_row = "quarantine"
    texts = ['{"a": 1}', "{bad", "", None, '"\\ud800', "[1, 2]"]
    query.run().flushed_batches([*enumerate(texts)])
    assert [row for (row,) in store.execute("SELECT id FROM t ORDER BY id")] == [0, 3, 5]


def test_error_proposes_to_json_for_a_nested_column(tmp_path: Path) -> None:
    """The table has a JSON column. A cast to string would make a text that is not JSON."""
    store = DuckDb(tmp_path)
    store.execute("CREATE TABLE t (id BIGINT, name JSON)")
    schema = SCHEMA.set(1, pa.field("name", pa.struct([("a", pa.int32())])))
    with pytest.raises(SchemaMismatch) as caught:
        agreed(store.target(), schema)
    assert '.withColumn("name", F.to_json("name"))' in caught.value.what


def test_uuid_of_mariadb_is_a_key(maria: Maria) -> None:
    """MySQL has no such type."""
    if isinstance(maria.server, MySql):
        return
    maria.execute("CREATE TABLE t (name UUID PRIMARY KEY, id BIGINT)")
    target, name = maria.target(mode="upsert"), "abcdefab-0000-0000-0000-000000000000"
    bring(target, pa.record_batch([[1, 2], [name, name.upper()]], SCHEMA))
    assert maria.execute("SELECT * FROM t") == [(name, 2)]
    with pytest.raises(InvalidRow, match="does not fit into uuid"):
        target.check(pa.record_batch([[1], ["x"]], SCHEMA), agreed(target))


def latin(store: Maria) -> list[str]:
    """Make a table whose character set lacks most characters."""
    store.paste("CREATE TABLE t (id BIGINT, c0 VARCHAR(60)) CHARACTER SET latin1")
    return WIDE[:1]


WIDE = [f"c{number}" for number in range(240)]


def too_wide(store: Maria) -> list[str]:
    """Make a table whose rows may be longer than a page."""
    # The server refuses the table in strict mode.
    store.server.execute("SET GLOBAL innodb_strict_mode = OFF")
    store.execute(f"CREATE TABLE t (id BIGINT, {', '.join(f'{n} VARCHAR(60)' for n in WIDE)})")
    store.server.execute("SET GLOBAL innodb_strict_mode = ON")
    return WIDE


def any_number(store: Maria) -> list[str]:
    """Make a table with a trigger whose refusal has the error number of a lock."""
    store.execute("CREATE TABLE t (id BIGINT, c0 VARCHAR(60))")
    store.execute(
        "CREATE TRIGGER short BEFORE INSERT ON t FOR EACH ROW IF length(NEW.c0) > 9 THEN"
        " SIGNAL SQLSTATE '45000' SET MYSQL_ERRNO = 1205; END IF"
    )
    return WIDE[:1]


@pytest.mark.parametrize("made", [too_wide, any_number, latin])
def test_row_that_only_mariadb_refuses_is_quarantined(
    maria: Maria, made: Callable[[Maria], list[str]]
) -> None:
    """No task can foresee the refusal."""
    names = made(maria)
    schema = pa.schema([("id", pa.int64()), *((name, pa.string()) for name in names)])
    query = PlayedQuery(maria.target(), schema)
    query.on_invalid_row = "quarantine"
    texts = ["x", "\N{ROCKET}" if made is latin else "x" * 39, "x"]
    query.run().batch([(row, *[text] * len(names)) for row, text in enumerate(texts)])
    query.flush()
    assert [row for (row,) in maria.execute("SELECT id FROM t ORDER BY id")] == [0, 2]
