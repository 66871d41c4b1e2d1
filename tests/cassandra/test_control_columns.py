"""Control columns of rows: operations, TTLs and event times. Their options, and the check of the tasks."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from tests.support.cql_driver import Field, plan_of
from tests.test_options import GIVEN
from wal_sink.configuration import configure
from wal_sink.errors import InvalidRow, OptionError, SchemaMismatch
from wal_sink.options import parse
from wal_sink.targets.arrow_values import shorten
from wal_sink.targets.cassandra import CassandraOptions
from wal_sink.targets.cassandra.plan import written_columns
from wal_sink.targets.cassandra.row_plan import MAX_TTL_S
from wal_sink.targets.cassandra.rows import check
from wal_sink.targets.operation_options import read_words
from wal_sink.units import now_us

INSTANT = pa.timestamp("us", "UTC")
S_US = 1_000_000
KAFKA = {
    "checkpointLocation": "/data/checkpoint",
    "target": "kafka",
    "kafka.bootstrap.servers": "127.0.0.1:9092",
    "topic": "orders",
}
DELTA = {"checkpointLocation": "/data/checkpoint", "target": "delta", "delta.path": "/data/orders"}
POSTGRESQL = {
    "checkpointLocation": "/data/checkpoint",
    "target": "postgresql",
    "postgresql.uri": "postgresql://u@h/d",
    "table": "orders",
}


@pytest.mark.parametrize(
    ("options", "words", "remedy"),
    [
        (GIVEN | {"operations": '{"D": "delete"}'}, "without operationColumn", "operationColumn"),
        (GIVEN | {"operationColumn": "op", "operations": "U=upsert"}, "not a JSON object", '{"U"'),
        (
            GIVEN | {"operationColumn": "op", "operations": '{"D": "delete"}'},
            "no word that means upsert",
            '{"U"',
        ),
        (
            GIVEN | {"operationColumn": "op", "operations": '{"U": "upsert", "D": "remove"}'},
            "'D' means 'remove'",
            "filter others",
        ),
        (
            GIVEN | {"operationColumn": "op", "operations": '{"U": "upsert", "U": "delete"}'},
            "'U' twice",
            "Leave out one",
        ),
        (KAFKA | {"operationColumn": "op"}, "other clients or targets have it", "filter deletes"),
        (KAFKA | {"unavailableValue": "?"}, "other clients or targets have it", "written as it is"),
        (POSTGRESQL | {"unavailableValue": "?"}, "postgresql.mode is append", "to upsert"),
        (
            DELTA
            | {"delta.mode": "upsert", "keyColumns": "k"}
            | {"unavailableValue": "?", "delta.timestampColumn": "at"},
            "both given",
            "Leave one",
        ),
        *[
            (GIVEN | {"cassandra.ttl": ttl}, "cassandra.ttl", "")
            for ttl in ("0", "-1", "1.5", str(MAX_TTL_S + 1))
        ],
        (
            GIVEN | {"cassandra.ttlColumn": "a", "cassandra.timestampColumn": "a"},
            "both name column a",
            "",
        ),
    ],
)
def test_options_that_contradict_each_other_are_refused(
    options: dict[str, str], words: str, remedy: str
) -> None:
    with pytest.raises(OptionError, match=words) as caught:
        configure(options)
    assert remedy in caught.value.remedy


def test_option_operations_replaces_the_default_words() -> None:
    assert read_words("op", "") == {"upsert": "upsert", "delete": "delete"}
    options = '{"c": "upsert", "r": "upsert", "é": "delete"}'
    assert read_words("op", options) == json.loads(options)
    target = (
        configure(GIVEN | {"operationColumn": "op", "operations": options}).destinations[0].target
    )
    assert "whose op is é" in target.description["deletes"]


@pytest.mark.parametrize(
    ("options", "field", "table", "words"),
    [
        ({"cassandra.ttlColumn": "t"}, ("t", pa.int32()), {"id", "t"}, "which is a column of"),
        ({"cassandra.ttlColumn": "id"}, ("t", pa.int32()), {"id"}, "which is a column of"),
        ({"operationColumn": "t"}, ("t", pa.string()), {"id", "t"}, "which is a column of"),
        ({"cassandra.ttlColumn": "t"}, ("t", pa.float64()), {"id"}, "is double"),
        ({"cassandra.ttlColumn": "t"}, ("u", pa.int32()), {"id"}, "no such column"),
        ({"cassandra.expiresAtColumn": "t"}, ("t", pa.int64()), {"id"}, "is bigint"),
        ({"cassandra.expiresAtColumn": "t"}, ("t", pa.timestamp("us")), {"id"}, "is timestamp"),
        ({"cassandra.timestampColumn": "t"}, ("t", pa.int32()), {"id"}, "is int in"),
        ({"cassandra.timestampColumn": "t"}, ("t", pa.date32()), {"id"}, "is date in"),
    ],
)
def test_unfit_control_column_is_refused(
    options: dict[str, str], field: tuple[str, pa.DataType], table: set[str], words: str
) -> None:
    schema = pa.schema([("id", pa.int32()), field])
    with pytest.raises(SchemaMismatch, match=words) as caught:
        written(schema, options, table)
    assert caught.value.remedy


def written(schema: pa.Schema, options: dict[str, str], table: set[str]) -> pa.Schema:
    """Return the columns that are written to a table."""
    return written_columns(schema, parse(GIVEN | options, CassandraOptions), table, "ks.t")


def test_time_is_written_if_the_table_has_its_column() -> None:
    schema = pa.schema([("id", pa.int32()), ("at", INSTANT), ("v", pa.int32()), ("until", INSTANT)])
    options = {"cassandra.expiresAtColumn": "until", "cassandra.timestampColumn": "at"}
    assert written(schema, options, {"id", "v", "at"}).names == ["id", "at", "v"]
    assert written(schema, options, {"id", "v"}).names == ["id", "v"]


COLUMNS: list[Field] = [
    ("b", "clustering", "text", pa.string()),
    ("op", "operation", "operation", pa.string()),
    ("k", "partition", "text", pa.string()),
    ("v", "regular", "double", pa.float64()),
    ("a", "clustering", "timestamp", pa.timestamp("us", "UTC")),
    ("m", "regular", "map<int, text>", pa.map_(pa.int32(), pa.string())),
]
PLAN = plan_of(*COLUMNS, operations={"U": "upsert", "D": "delete"}, clustering=("a", "b"))
"""A plan with the key (k, a, b). The DataFrame has these columns in another order."""

SCHEMA = pa.schema([(name, kind) for name, _, _, kind in COLUMNS])


def batch_of(*rows: tuple[Any, ...], schema: pa.Schema = SCHEMA) -> pa.RecordBatch:
    """Return rows of (k, a, b, op, v, m)."""
    columns = dict(zip(["k", "a", "b", "op", "v", "m"], zip(*rows, strict=True), strict=True))
    return pa.record_batch(
        [pa.array(columns[field.name], field.type) for field in schema], schema=schema
    )


CHANGES = batch_of(
    ("x", 1_000, "p", "U", 1.5, [(1, "one")]),
    ("x", 1_000, "p", "D", None, None),
    ("y", 2_000, "q", "U", None, None),
    ("x", 1_000, None, "D", 7.0, [(2, None)]),
    ("y", None, None, "D", None, None),
    ("y", 2_000, "q", "U", -0.0, []),
)


def test_values_of_a_delete_outside_its_key_are_dropped() -> None:
    """So no row is refused for such a value, for example for a null in a map."""
    stored = check(CHANGES, PLAN)
    assert stored.schema.names == SCHEMA.names
    assert stored.column("op").to_pylist() == [
        "upsert",
        "delete",
        "upsert",
        *["delete"] * 2,
        "upsert",
    ]
    assert stored.column("v").to_pylist() == [1.5, None, None, None, None, -0.0]
    assert stored.column("m").to_pylist() == [[(1, "one")], None, None, None, None, []]
    assert stored.column("a").to_pylist() == [1, 1, 2, 1, None, 2]


@pytest.mark.parametrize(
    ("row", "words", "remedy"),
    [
        (("x", 1_000, "p", "u", 1.0, None), r"Column op \('u'\) is not an operation", "operations"),
        (
            ("x", 1_000, "p", None, 1.0, None),
            r"Column op \(NULL\) is not an operation",
            "operations",
        ),
        (("x", None, "p", "D", 1.0, None), "a of .* is null and b after it is not", "Fill a in"),
        (("x", None, None, "U", 1.0, None), "Column .* part of the primary key", "Drop such rows"),
        (
            ("x", 1_000, None, "U", 1.0, None),
            r"Column b of .* is part of the primary key",
            "Drop such rows",
        ),
        (
            (None, 1_000, "p", "D", 1.0, None),
            r"Column k of .* is part of the primary key",
            "Drop such rows",
        ),
        (
            (None, None, None, "D", 1.0, None),
            r"Column k of .* is part of the primary key",
            "Drop such rows",
        ),
        (("x", 1_001, "p", "D", None, None), "below the millisecond", "MILLISECOND"),
    ],
)
def test_error_names_an_invalid_row_by_its_key(
    row: tuple[Any, ...], words: str, remedy: str
) -> None:
    with pytest.raises(InvalidRow, match=words) as caught:
        check(
            pa.Table.from_batches([CHANGES, batch_of(row)]).combine_chunks().to_batches()[0], PLAN
        )
    assert f"k={shorten(row[0])}" in str(caught.value)
    assert remedy in caught.value.remedy


KEY: Field = ("k", "partition", "text", pa.string())
TTL_COLUMN = {"ttl_column": "ttl"}
EXPIRES_AT_COLUMN = {"expires_at_column": "until"}
EVENT_TIME, EVENT_NUMBER = {"timestamp_column": "at"}, {"timestamp_column": "us"}


@pytest.mark.parametrize(
    ("details", "good", "value", "words"),
    [
        (TTL_COLUMN, 1, None, "is null"),
        (TTL_COLUMN, 1, 0, "is not a TTL of one second"),
        (TTL_COLUMN, 1, -1, "is not a TTL of one second"),
        (TTL_COLUMN, 1, MAX_TTL_S + 1, "is more than"),
        (TTL_COLUMN, 1, 2**62, "is more than"),
        (EXPIRES_AT_COLUMN, 0, None, "is null"),
        (EXPIRES_AT_COLUMN, 0, 5_680_281_600 * S_US, "is more than"),
        (EVENT_TIME, 1, None, "is null"),
        (EVENT_TIME, 1, -S_US, "is not after 1970"),
        (EVENT_TIME, 1, "ahead", "ahead of the clock"),
        (EVENT_NUMBER, 10**15, 1_700_000_000_000, "before 2001"),
        (EVENT_NUMBER, 10**15, None, "is null"),
    ],
)
def test_implausible_ttl_or_event_time_is_refused(
    details: dict[str, Any], good: int, value: Any, words: str
) -> None:
    (name,) = details.values()
    kind = INSTANT if name in ("until", "at") else pa.int64()
    if value == "ahead":
        value = now_us() + 3_700 * S_US
    plan = plan_of(KEY, (name, "control", "control", kind), **details)
    frame = pa.record_batch({"k": ["a", "b"], name: pa.array([good, value], kind)})
    with pytest.raises(InvalidRow, match=words) as caught:
        check(frame, plan)
    assert name in str(caught.value)
    assert caught.value.remedy
    assert check(frame[:1], plan).num_rows == 1
