"""Casts a batch to what the log holds, and refuses rows that Cassandra would refuse; done in the tasks.

The server takes every row that passes, so no row stops the flush. The check neither connects nor imports
the driver.

Checks the rows of a task for each table that they go to: one, several, or that which a row names.

The log has a value once, whichever tables take it. A row that one of its tables cannot take is refused for
all of them.

Settles rows of one key and one event time: the later position wins, cell by cell. Pure.

Cassandra would keep the larger value of each cell. The tasks settle the rows of a batch before they go into
the log, so every flusher finds the same rows there.

No cell moves to another row, since a row has a life of its own. A row loses the cells that a later one of its
time has, and is left out where nothing remains of it. So no two rows write one cell at one time.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Collection, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wal_sink.clock import now_us
from wal_sink.errors import InvalidRow
from wal_sink.model.plan import Column, Plan, canonical
from wal_sink.targets import arrow_values
from wal_sink.targets.arrow_values import (
    TRUE,
    are_deletes,
    keys_of_deletes,
    long,
    not_deleted,
    null,
    other_columns,
    plain,
    planned_operations,
    shorten,
)
from wal_sink.targets.cassandra.casts import sizes
from wal_sink.targets.cassandra.encode import buffers
from wal_sink.targets.cassandra.encode.buffers import Array, fixed
from wal_sink.targets.cassandra.encode.rows import distinct_keys
from wal_sink.targets.cassandra.row_plan import NO_TIMES, clustering_of, planned_times
from wal_sink.targets.cassandra.rules import (
    EVENT_US,
    IndexRule,
    InvalidValue,
    first_invalid_value,
    first_refused,
    planned_rules,
    read_times,
    row_text,
)
from wal_sink.targets.cassandra.table_plans import columns_of, table_names, table_plans
from wal_sink.targets.cassandra.types import cast_column, column_types

Numbers = Callable[[Collection[str]], Array]
"""Returns a number for each row, the same for rows of one time that are alike in the columns of these roles;
counted from 0 without a gap."""

_PARTITION = ("partition",)
_KEY = ("partition", "clustering")


def settled(batch: pa.RecordBatch, plan: Plan, times: str, numbers: Numbers) -> pa.RecordBatch:
    """Return the batch with each cell once, and at most one delete, of each key and time.

    A null that leaves a cell as it is, is no cell. A delete that an upsert of its key follows moves a
    microsecond back: of two equal times a tombstone wins. A delete of a range is left as it is.

    A static column is a cell of the partition. Where nulls are written, each row of the partition brings it
    along, so all of one time get the last one's value.

    :param batch: as the log has it.
    :param plan: with its operation column, if it has one.
    :param times: the column of event times, int64 microseconds.
    """
    stamps = buffers.elements(batch.column(times), "i8")
    in_order = np.sort(stamps)
    if not (in_order[1:] == in_order[:-1]).any():
        return batch
    rows, groups = np.arange(batch.num_rows), {"regular": numbers(_KEY)}
    values = [column for column in plan.of_table().columns if column.role not in _KEY]
    if any(column.role == "static" for column in values):
        groups["static"] = numbers(_PARTITION)
    if all(group.max() + 1 == len(rows) for group in groups.values()):
        return batch
    upserts = _upserts(batch, plan)
    last_delete, last_upsert = (_last(groups["regular"], which) for which in (~upserts, upserts))
    hidden = upserts & (rows < last_delete)
    moved = ~upserts & (rows < last_upsert)
    stays = (rows == last_delete) | ((rows == last_upsert) & ~hidden)
    unset = plan.details["nulls"] == "unset"
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    columns[times] = buffers.indices(stamps - moved)
    for column in values:
        given, static = columns[column.name], column.role == "static"
        written = upserts if static else upserts & ~hidden
        if unset:
            written = written & buffers.booleans(given.is_valid())
        last = _last(groups[column.role], written)
        stays |= rows == last
        if unset:
            columns[column.name] = given.take(_positions(np.where(rows == last, rows, -1)))
        elif static:
            columns[column.name] = given.take(_positions(np.where(upserts, last, rows)))
    found = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
    return found.filter(buffers.flags(stays))


def _upserts(batch: pa.RecordBatch, plan: Plan) -> Array:
    if plan.operation is None:
        return np.ones(batch.num_rows, np.bool_)
    upserts: Array = ~buffers.booleans(are_deletes(batch.column(plan.operation)))
    return upserts


def _last(group: Array, which: Array) -> Array:
    """Return for each row the position of the last row of its group among some; -1 for none.

    :param which: booleans, which rows these are.
    """
    found = np.full(group.max() + 1, -1)
    positions = np.flatnonzero(which)
    found[group[positions]] = positions  # of several, numpy keeps the last
    last: Array = found[group]
    return last


def _positions(of: Array) -> pa.Array:
    """Return positions as `take` has them, null for -1."""
    positions = buffers.indices(of)
    if (of >= 0).all():
        return positions
    return pc.if_else(buffers.flags(of >= 0), positions, null(pa.int64()))


def by_key(batch: pa.RecordBatch, table: Plan, times: str) -> Numbers:
    """Return what numbers rows by the bytes of their keys.

    :param table: the plan's columns that the table has.
    """
    time = fixed(buffers.elements(batch.column(times), "i8"), ">i8")
    return lambda roles: distinct_keys(batch, table, time, roles=roles).numbers


MAX_KEY_BYTES = 65_535
"""Most bytes of a partition key, and of the clustering columns of a row together; the server's limit."""
MAX_ROW_BYTES = 8 * 1024 * 1024
"""Most bytes of a row: half of what a server with default settings takes as one mutation."""


def check(batch: pa.RecordBatch, plan: Plan) -> pa.RecordBatch:
    """Cast `batch` to the types that the log holds.

    :raises SchemaMismatch: the columns are not those of the plan.
    :raises InvalidRow: a row cannot be written; names the column and the first such row.
    """
    refuse_other_schema(batch.schema, plan)
    table = plan.of_table()
    if table is plan and planned_times(plan) == NO_TIMES:
        return _checked(batch, plan)
    operations = planned_operations(batch, plan, functools.partial(row_text, batch, plan))
    deletes = None if operations is None else are_deletes(operations)
    times = read_times(batch, plan, deletes, now_us())
    _refuse_invalid(batch, plan, times.invalid)
    rows = batch.select([column.name for column in table.columns])
    if deletes is not None:
        keys = {column.name for column in table.columns if column.role in _KEY}
        rows = keys_of_deletes(rows, deletes, keys)
        _refuse_gaps(rows, table)
    stored = _checked(rows, table, deletes)
    columns = {
        column.name: operations if column.role == "operation" else stored.column(column.name)
        for column in plan.columns
        if column.role != "time"
    } | times.columns
    batch = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
    if EVENT_US not in columns:
        return batch
    return settled(batch, plan, EVENT_US, by_key(batch, table, EVENT_US))


def _checked(batch: pa.RecordBatch, plan: Plan, deletes: pa.Array | None = None) -> pa.RecordBatch:
    """Cast the columns of the table.

    :param deletes: which rows are deletes; None: no row is one.
    """
    stored = []
    for column, tree, values in zip(plan.columns, column_types(plan), batch.columns, strict=True):
        name, key = column.name, column.role in _KEY
        _refuse_null(batch, plan, column, values, deletes)
        _refuse_invalid(batch, plan, first_invalid_value(name, values, tree, key=key))
        stored.append(cast_column(values, tree))
    names = [column.name for column in plan.columns]
    result = pa.RecordBatch.from_arrays(stored, names=names)
    _refuse_sizes(batch, plan, result)
    refuse_indexed(batch, result, plan, planned_rules(plan))
    return result


def refuse_indexed(
    batch: pa.RecordBatch, stored: pa.RecordBatch, plan: Plan, rules: Sequence[IndexRule]
) -> None:
    """Refuse a row with a value that an index of the table does not take.

    :param batch: as errors show it.
    :param stored: as `check` returns it.
    :raises InvalidRow: there is such a row.
    """
    for rule in rules:
        if found := first_refused(rule, stored.column(rule.column)):
            value = batch.column(rule.column)[found.row]
            invalid = InvalidValue(
                found.row, rule.column, value, found.problem, found.remedy, found.rows
            )
            _refuse_invalid(batch, plan, invalid)


def refuse_other_schema(schema: pa.Schema, plan: Plan) -> None:
    """Refuse a batch that the plan was not made for.

    :raises SchemaMismatch: a column has another name or type, or another place.
    """
    got = [(field.name, str(canonical(field.type))) for field in schema]
    planned = [(column.name, column.source) for column in plan.columns]
    if got != planned:
        raise other_columns(plan, got)


def _refuse_gaps(batch: pa.RecordBatch, plan: Plan) -> None:
    """Refuse a delete with a null before a clustering column that has a value: that is no range of rows."""
    names = clustering_of(plan)
    for name, following in itertools.pairwise(names):
        gaps = pc.and_(batch.column(name).is_null(), batch.column(following).is_valid())
        row = pc.index(gaps, TRUE).as_py()
        if row >= 0:
            raise InvalidRow(
                f"Column {name} is null and {following} after it is not, in {row_text(batch, plan, row)}:"
                f" of {plan.table} a delete takes the rows under the first values of ({', '.join(names)}).",
                f"Fill {name} in; or make {following} null, too, to delete all rows under what is before"
                f" {name}.",
                column=name,
                problem=f"Column {name} is null and {following} after it is not.",
                rows=gaps,
            )


def _refuse_null(
    batch: pa.RecordBatch,
    plan: Plan,
    column: Column,
    values: pa.Array,
    deletes: pa.Array | None,
) -> None:
    if column.role not in _KEY or not values.null_count:
        return
    # A delete without clustering columns takes all rows under those that it has.
    missing = values.is_null()
    if column.role == "clustering":
        missing = not_deleted(missing, deletes)
    row = pc.index(missing, TRUE).as_py()
    if row >= 0:
        raise InvalidRow(
            f"Column {column.name} is part of the primary key of {plan.table} and null in "
            f"{row_text(batch, plan, row)}.",
            f'Drop such rows, .na.drop(subset=["{column.name}"]), or fill them in.',
            column=column.name,
            problem=f"Column {column.name} is part of the primary key of {plan.table} and null.",
            rows=missing,
        )


def _refuse_invalid(batch: pa.RecordBatch, plan: Plan, invalid: InvalidValue | None) -> None:
    if invalid:
        raise InvalidRow(
            f"Column {invalid.path} of {plan.table} ({shorten(plain(invalid.value))}) {invalid.problem}, in "
            f"{row_text(batch, plan, invalid.row)}.",
            invalid.remedy,
            column=invalid.path,
            problem=f"Column {invalid.path} of {plan.table} {invalid.problem}.",
            rows=invalid.rows,
        )


def _refuse_sizes(batch: pa.RecordBatch, plan: Plan, stored: pa.RecordBatch) -> None:
    bytes_of = {
        column.name: sizes(values)
        for column, values in zip(plan.columns, stored.columns, strict=True)
    }
    partition = [column.name for column in plan.columns if column.role == "partition"]
    clustering = [column.name for column in plan.columns if column.role == "clustering"]
    refuse = functools.partial(_refuse, batch, plan)
    if len(partition) == 1:
        refuse(
            pc.equal(bytes_of[partition[0]], long(0)),
            partition[0],
            "is empty, and it is the whole partition key",
            "Drop such rows, or fill them in.",
        )
    # A composite key stores two bytes of length and one of separator with each component.
    overhead = 3 * len(partition) if len(partition) > 1 else 0
    for names, extra, what in (
        (partition, overhead, "partition key"),
        (clustering, 0, "clustering key"),
    ):
        if names:
            total = functools.reduce(pc.add, [bytes_of[name] for name in names])
            refuse(
                pc.greater(total, long(MAX_KEY_BYTES - extra)),
                ", ".join(names),
                f"is longer than the {MAX_KEY_BYTES:,} bytes that a {what} may have",
                "Use a digest of the value as the key: sha2(col, 256).",
            )
    refuse(
        pc.greater(functools.reduce(pc.add, bytes_of.values()), long(MAX_ROW_BYTES)),
        max(bytes_of, key=lambda name: pc.max(bytes_of[name]).as_py() or 0),
        f"makes a row of more than {MAX_ROW_BYTES:,} bytes, too near to what a server takes as one "
        "write",
        "Split the value, or keep it elsewhere and write a reference.",
    )


def _refuse(
    batch: pa.RecordBatch, plan: Plan, bad: pa.Array, column: str, problem: str, remedy: str
) -> None:
    row = pc.index(bad, TRUE).as_py()
    if row >= 0:
        # `column` names several where a key of several columns is too long.
        one = column in batch.schema.names
        value = f" ({shorten(plain(batch.column(column)[row]))})" if one else ""
        raise InvalidRow(
            f"Column {column} of {plan.table}{value} {problem}, in {row_text(batch, plan, row)}.",
            remedy,
            column=column,
            problem=f"Column {column} of {plan.table} {problem}.",
            rows=bad,
        )


def check_for_tables(batch: pa.RecordBatch, plan: Plan) -> pa.RecordBatch:
    """Cast `batch` to the types that the log holds.

    :raises SchemaMismatch: the columns are not those of the plan.
    :raises InvalidRow: a row cannot be written to one of its tables, or names no table.
    """
    tables = table_plans(plan)
    if tables == (plan,):
        return check(batch, plan)
    refuse_other_schema(batch.schema, plan)
    if plan.table_column is None:
        return _for_every_table(batch, plan, tables)
    return _for_named_tables(batch, plan, tables)


def _for_every_table(batch: pa.RecordBatch, plan: Plan, tables: Sequence[Plan]) -> pa.RecordBatch:
    found: dict[str, pa.Array] = {}
    for table in tables:
        stored = check(columns_of(batch, plan, table), table)
        # A delete has the keys of all tables, and nothing else: see `keys_of_deletes`.
        keys = {column.name for column in table.columns if column.role in _KEY}
        for name, values in zip(stored.schema.names, stored.columns, strict=True):
            if name not in found or name in keys:
                found[name] = values
    return _in_order(found, plan)


def _for_named_tables(batch: pa.RecordBatch, plan: Plan, tables: Sequence[Plan]) -> pa.RecordBatch:
    """Check the rows of each table apart; where a row's table lacks a column, the log has null."""
    column = str(plan.table_column)
    words = batch.column(column).cast(pa.string())
    names = table_names(plan)
    rows_of = [
        pc.equal(words, arrow_values.text(name)).fill_null(arrow_values.FALSE) for name in names
    ]
    _refuse_unknown(batch, plan, rows_of)
    parts = [
        _of_table(batch, rows, plan, table) for rows, table in zip(rows_of, tables, strict=True)
    ]
    positions = pa.concat_arrays([pc.indices_nonzero(rows) for rows in rows_of])
    places = pc.sort_indices(positions)  # of a permutation: its inverse
    kinds = {field.name: field.type for part in parts for field in part.schema}
    found = {column: words}
    for name, kind in kinds.items():
        pieces = [
            part.column(name) if name in part.schema.names else pa.nulls(part.num_rows, kind)
            for part in parts
        ]
        found[name] = pa.concat_arrays(pieces).take(places)
    return _in_order(found, plan)


def _of_table(batch: pa.RecordBatch, rows: pa.Array, plan: Plan, table: Plan) -> pa.RecordBatch:
    """Check the rows of a batch that go to a table.

    :param rows: which these are, booleans.
    """
    try:
        return check(columns_of(batch.filter(rows), plan, table), table)
    except InvalidRow as error:
        if error.rows is not None:
            none = pa.nulls(batch.num_rows).is_valid()
            error.rows = pc.replace_with_mask(none, rows, error.rows)
        raise


def _in_order(found: dict[str, pa.Array], plan: Plan) -> pa.RecordBatch:
    names = [column.name for column in plan.columns if column.name in found]
    names += [name for name in found if name not in names]
    return pa.RecordBatch.from_arrays([found[name] for name in names], names=names)


def _refuse_unknown(batch: pa.RecordBatch, plan: Plan, rows_of: Sequence[pa.Array]) -> None:
    known = rows_of[0]
    for rows in rows_of[1:]:
        known = pc.or_(known, rows)
    row = pc.index(pc.invert(known), TRUE).as_py()
    if row >= 0:
        value = shorten(plain(batch.column(plan.table_column)[row]))
        raise InvalidRow(
            f"Column {plan.table_column} ({value}) names no table: option tables has"
            f" {', '.join(table_names(plan))}; in {row_text(batch, plan, row)}.",
            "Correct or drop such rows, or add the table to tables.",
            column=str(plan.table_column),
            problem=f"Column {plan.table_column} names no table.",
            rows=pc.invert(known),
        )
