"""Finds the first value of a column, however deep, that Cassandra would refuse or could not hold."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from wal_sink.targets.cassandra.types.constraints import Constraint
from wal_sink.targets.cassandra.types.cql_type import CqlType
from wal_sink.targets.cassandra.types.mapping import NESTED, TYPES
from wal_sink.targets.cassandra.types.unnest import lists_with, unnest
from wal_sink.targets.values.literals import TRUE, long


class InvalidValue(NamedTuple):
    """A value that breaks a constraint of its type."""

    row: int
    path: str
    value: pa.Scalar
    problem: str
    remedy: str
    rows: pa.Array
    """All rows that break it at this path, as flags; nulls count as False."""


def first_invalid_value(
    path: str, column: pa.Array, tree: CqlType, *, key: bool
) -> InvalidValue | None:
    """Return the first invalid value of a DataFrame's column; None when there is none.

    :param key: whether it is part of the primary key.
    """
    return next(_invalid_values(path, column, tree, key), None)


def _invalid_values(
    path: str, column: pa.Array, tree: CqlType, key: bool
) -> Iterator[InvalidValue]:
    if tree.kind in TYPES:
        known = TYPES[tree.kind]
        yield from _broken(path, column, known.constraints + (known.key_constraints if key else ()))
    elif tree.kind in ("tuple", "udt"):
        for i, field in enumerate(column.flatten()):
            name = column.type.field(i).name
            part = tree.parts[tree.fields.index(name) if tree.kind == "udt" else i]
            yield from _invalid_values(f"{path}.{name}", field, part, key)
    else:
        offsets, values = unnest(column)
        if tree.kind == "vector":
            yield from _wrong_lengths(path, column, offsets, tree.length)
        for invalid in _of_elements(path, values, tree, key):
            # The row is the last list that begins at or before the element; others that begin there
            # are empty.
            begins = pc.less_equal(offsets[:-1], long(invalid.row))
            yield invalid._replace(
                row=pc.sum(begins).as_py() - 1, rows=lists_with(offsets, invalid.rows)
            )


def _of_elements(path: str, values: pa.Array, tree: CqlType, key: bool) -> Iterator[InvalidValue]:
    columns, names = [values], ["element"]
    if tree.kind == "map":
        columns, names = values.flatten(), ["key", "value"]
    for name, elements, part in zip(names, columns, tree.parts, strict=True):
        inner = f"{path}.{name}"
        yield from _broken(inner, elements, NESTED[tree.kind].constraints)
        # Two keys of a map, or two elements of a set, must not become one.
        yield from _invalid_values(
            inner, elements, part, key or name == "key" or tree.kind == "set"
        )


def _broken(
    path: str, column: pa.Array, constraints: tuple[Constraint, ...]
) -> Iterator[InvalidValue]:
    for rule in constraints:
        bad = rule.bad(column)
        row = pc.index(bad, TRUE).as_py()
        if row >= 0:
            remedy = rule.remedy.replace("{name}", path)
            yield InvalidValue(row, path, column[row], rule.problem, remedy, bad)


def _wrong_lengths(
    path: str, column: pa.Array, offsets: pa.Array, length: int
) -> Iterator[InvalidValue]:
    lengths = pc.subtract(offsets[1:], offsets[:-1])
    bad = pc.and_(column.is_valid(), pc.not_equal(lengths, long(length)))
    row = pc.index(bad, TRUE).as_py()
    if row >= 0:
        yield InvalidValue(
            row,
            path,
            column[row],
            f"has {lengths[row].as_py()} elements, and the table's vector takes exactly {length}",
            "Drop such rows, or pad or cut the arrays: slice(c, 1, n).",
            bad,
        )
