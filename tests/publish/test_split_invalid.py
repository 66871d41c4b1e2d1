"""`split_invalid`: each refused row is reported once, with the first rule that it breaks."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.protocol.quarantining import rows_of
from tests.support.cql_driver import plan_of
from wal_sink.errors import InvalidRow
from wal_sink.publish.append import split_invalid
from wal_sink.targets.cassandra.rows import check
from wal_sink.wal.segment import ROW, TEXTS, with_reasons

PLAN = plan_of(
    ("k", "partition", "text", pa.string()),
    ("at", "regular", "timestamp", pa.timestamp("us", tz="UTC")),
    ("tags", "regular", "list<text>", pa.list_(pa.string())),
    keyspace="shop",
)
SCHEMA = pa.schema(
    [
        ("k", pa.string()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("tags", pa.list_(pa.string())),
    ]
)


def batch(*rows: tuple[str | None, int, list[str | None] | None]) -> pa.RecordBatch:
    """Return a batch with these rows."""
    columns = zip(*rows, strict=True)
    arrays = [pa.array(values, field.type) for values, field in zip(columns, SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def test_each_broken_rule_costs_one_more_check() -> None:
    """A check reports which rows break its rule, also inside lists, so rows are not checked one by one."""
    good = [(f"g{i}", i * 1_000, ["a", "b"]) for i in range(500)]
    nulls = [(None, 0, None)] * 300
    inner = [("i", 0, ["a", None]), ("i", 0, [None, "b"])]
    empty = [("", 0, None)] * 9
    rows: list[Any] = [*good, *nulls, *inner, *empty, ("last", 0, None)]
    checks = 0

    def counted(options: pa.RecordBatch) -> pa.RecordBatch:
        nonlocal checks
        checks += 1
        return check(options, PLAN)

    split = split_invalid(batch(*rows), counted)
    assert checks == 4
    (taken,) = split.taken
    assert taken.column("k").to_pylist() == [*(k for k, *_ in good), "last"]
    assert [(item.rows.num_rows, item.error.column) for item in split.refused] == [
        (300, "k"),
        (2, "tags.element"),
        (9, "k"),
    ]
    assert split.refused[0].error.problem == (
        'Column k of "shop"."t" is part of the primary key and null.'
    )


def test_batch_is_halved_when_a_check_names_no_rows() -> None:
    """So a target of one's own supports quarantine without more code."""
    checked_rows = []

    def one_by_one(options: pa.RecordBatch) -> pa.RecordBatch:
        checked_rows.append(options.num_rows)
        if pc.any(options.column("k").is_null()).as_py():
            raise InvalidRow("no key")
        return options

    rows = [(None if i in (3, 77) else str(i), 0, None) for i in range(100)]
    split = split_invalid(batch(*rows), one_by_one)
    assert [item.rows.column("k").to_pylist() for item in split.refused] == [[None], [None]]
    taken = [key for part in split.taken for key in part.column("k").to_pylist()]
    assert taken == [str(i) for i in range(100) if i not in (3, 77)]
    assert len(checked_rows) < 30


def test_error_that_flags_no_row_refuses_each_row() -> None:
    """A check with a bug neither loses a row nor causes an endless loop."""

    def odd(options: pa.RecordBatch) -> pa.RecordBatch:
        raise InvalidRow("odd", rows=options.column("k").is_null())

    split = split_invalid(batch(("a", 0, None), ("b", 0, None)), odd)
    assert [item.rows.num_rows for item in split.refused] == [1, 1]
    assert split.taken == ()


def test_error_other_than_invalid_row_is_raised_unchanged() -> None:
    """An error of another class is a bug, and no refused row."""
    with pytest.raises(Exception, match="was made"):
        split_invalid(pa.RecordBatch.from_pydict({"x": [1]}), lambda options: check(options, PLAN))


def test_refused_rows_keep_their_types_and_their_bytes() -> None:
    """Given a text that is not UTF-8, and a column with the name of a column of `with_reasons`."""
    bad = pa.array([b"\xff"], pa.binary()).view(pa.string())
    rows = pa.RecordBatch.from_arrays([bad, pa.array([1])], names=[ROW, "reason"])
    stored = with_reasons(rows, ("InvalidRow", "", "row", "is not UTF-8", "Mend it."))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, stored.schema) as writer:
        writer.write(stored)
    (read,) = pa.ipc.open_file(sink.getvalue()).read_all().to_batches()
    assert rows_of(read).equals(rows)
    assert [read.column(name)[0].as_py() for name in TEXTS] == [
        *("InvalidRow", "", "row", "is not UTF-8", "Mend it."),
    ]
