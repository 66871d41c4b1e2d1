"""Upserts and deletes: their options, the rows that tasks refuse, and the statements of the rows."""

from __future__ import annotations

import functools
import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from cassandra.metadata import Metadata

from tests.support.cql_driver import Field, plan_of, prepared
from tests.test_options import GIVEN
from wal_sink.configuration import configure
from wal_sink.errors import InvalidRow, OptionError
from wal_sink.targets.cassandra.check import check
from wal_sink.targets.cassandra.driver.frames import EncodedBatch
from wal_sink.targets.cassandra.write.batches import (
    Limits,
    PreparedPlan,
    SliceBuffer,
    requests,
)
from wal_sink.targets.cassandra.write.replicas import Replicas
from wal_sink.targets.cassandra.write.statements import (
    Statements,
    TimestampedRows,
    positions_in_parts,
)
from wal_sink.targets.operations import read_words

KAFKA = {
    "checkpointLocation": "/data/checkpoint",
    "target": "kafka",
    "kafka.bootstrap.servers": "127.0.0.1:9092",
    "topic": "orders",
}
ICEBERG = {
    "checkpointLocation": "/data/checkpoint",
    "target": "iceberg",
    "iceberg.table": "lake.orders",
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
            GIVEN | {"operationColumn": "op", "operations": '{"U": "upsert"}'},
            "no word that means delete",
            "leave out operationColumn",
        ),
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
        (POSTGRESQL | {"operationColumn": "op"}, "postgresql.mode is append", "to upsert"),
        (KAFKA | {"operationColumn": "op"}, "kafka cannot delete rows", "filter deletes"),
        (KAFKA | {"unavailableValue": "?"}, "kafka only adds rows", "the text is written as it is"),
        (ICEBERG | {"unavailableValue": "?"}, "iceberg only adds rows", "replaces rows"),
        (POSTGRESQL | {"unavailableValue": "?"}, "postgresql.mode is append", "to upsert"),
        (DELTA | {"unavailableValue": "?"}, "delta.mode is append", "to upsert"),
        (
            DELTA
            | {"delta.mode": "upsert", "keyColumns": "k"}
            | {"unavailableValue": "?", "delta.timestampColumn": "at"},
            "both given",
            "Leave one",
        ),
    ],
)
def test_options_that_contradict_each_other_are_refused(
    options: dict[str, str], words: str, remedy: str
) -> None:
    with pytest.raises(OptionError, match=words) as caught:
        configure(options)
    assert remedy in caught.value.remedy


def test_words_are_exact_and_replace_the_others() -> None:
    assert read_words("op", "") == {"upsert": "upsert", "delete": "delete"}
    options = '{"c": "upsert", "r": "upsert", "é": "delete"}'
    assert read_words("op", options) == json.loads(options)
    target = (
        configure(GIVEN | {"operationColumn": "op", "operations": options}).destinations[0].target
    )
    assert "whose op is é" in target.description["deletes"]


# --- what tasks refuse ----------------------------------------------------------------------------


COLUMNS: list[Field] = [
    ("b", "clustering", "text", pa.string()),
    ("op", "operation", "operation", pa.string()),
    ("k", "partition", "text", pa.string()),
    ("v", "regular", "double", pa.float64()),
    ("a", "clustering", "timestamp", pa.timestamp("us", "UTC")),
    ("m", "regular", "map<int, text>", pa.map_(pa.int32(), pa.string())),
]
PLAN = plan_of(*COLUMNS, operations={"U": "upsert", "D": "delete"}, clustering=("a", "b"))
"""The plan of a key (k, a, b), whose columns have another order in the DataFrame."""

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


def test_dictionary_and_large_strings_are_words_too() -> None:
    for kind in (pa.large_string(), pa.dictionary(pa.int32(), pa.string())):
        words = CHANGES.column("op").cast(kind)
        position = SCHEMA.names.index("op")
        other = CHANGES.set_column(position, "op", words)
        assert check(other, PLAN) == check(CHANGES, PLAN)


def test_slice_of_a_batch_is_checked_like_the_batch() -> None:
    whole = check(CHANGES, PLAN)
    for begin in range(1, 6):
        assert check(CHANGES[begin:], PLAN) == whole[begin:]
    assert check(CHANGES[:0], PLAN).num_rows == 0


@pytest.mark.parametrize(
    ("row", "words", "remedy"),
    [
        (("x", 1_000, "p", "u", 1.0, None), r"Column op \('u'\) is not an operation", "operations"),
        (
            ("x", 1_000, "p", None, 1.0, None),
            r"Column op \(None\) is not an operation",
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
def test_invalid_row_is_named_by_its_key(row: tuple[Any, ...], words: str, remedy: str) -> None:
    with pytest.raises(InvalidRow, match=words) as caught:
        check(
            pa.Table.from_batches([CHANGES, batch_of(row)]).combine_chunks().to_batches()[0], PLAN
        )
    assert f"k={row[0]!r}" in str(caught.value)
    assert remedy in caught.value.remedy


# --- the statements -------------------------------------------------------------------------------


US = 1_700_000_000_000_000
INSERT = 'INSERT INTO "ks"."t" ("b", "k", "v", "a", "m") VALUES (?, ?, ?, ?, ?) USING TIMESTAMP ?'
DELETE = 'DELETE FROM "ks"."t" USING TIMESTAMP ? WHERE "k" = ?'


def test_slice_of_one_statement_is_not_divided() -> None:
    statements = Statements(PLAN, prepared)
    stored = check(CHANGES, PLAN)
    for rows, start in ((stored.take([0, 2, 5]), "INSERT"), (stored.take([1]), "DELETE")):
        parts = statements.divide(TimestampedRows(rows, np.arange(rows.num_rows)))
        assert len(parts) == 1
        assert positions_in_parts(parts) is None
        assert parts[0].statement.prepared.query_id.decode().startswith(start)
    assert len(list(statements.by_id)) == 2


def test_request_keeps_the_order_of_a_partitions_rows() -> None:
    """Upserts and deletes of a partition stay together."""
    rows = TimestampedRows(check(CHANGES, PLAN), np.arange(US, US + CHANGES.num_rows))
    replicas = Replicas(Metadata(), "ks", "dc1")
    by_second = functools.partial(prepared, key=[1])
    limits = Limits(shared_bytes=0)
    plan = PreparedPlan(Statements(PLAN, by_second), limits, replicas, SliceBuffer())
    by_partition = {}
    for request in requests(plan, rows):
        ((key,), own_rows) = rows_of(request)
        by_partition[key] = own_rows
    assert by_partition == {
        b"x": [
            (INSERT, US),
            (DELETE + ' AND "a" = ? AND "b" = ?', US + 1),
            (DELETE + ' AND "a" = ?', US + 3),
        ],
        b"y": [(INSERT, US + 2), (DELETE, US + 4), (INSERT, US + 5)],
    }


def rows_of(request: EncodedBatch) -> tuple[set[bytes], list[tuple[str, int]]]:
    """Return the partitions of a request, and statement and timestamp of each row."""
    keys, rows = set[bytes](), list[tuple[str, int]]()
    for query_id, values in request.rows():
        query = query_id.decode()
        keys.add(values[1])  # in either statement
        timestamp = values[0 if query.startswith("DELETE") else -1]
        rows.append((query, int.from_bytes(timestamp, "big")))
    return keys, rows
