"""The first value of a column, however deep, that Cassandra would refuse or could not hold."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from wal_sink.targets.cassandra.types import arrays
from wal_sink.targets.cassandra.types.constants import TRUE, long
from wal_sink.targets.cassandra.types.cql_type import Cql
from wal_sink.targets.cassandra.types.mapping import NESTED, TYPES
from wal_sink.targets.cassandra.types.value_limits import Rule


class Fault(NamedTuple):
    """A value that is refused."""

    row: int
    path: str
    value: pa.Scalar
    problem: str
    remedy: str


def first_fault(path: str, column: pa.Array, tree: Cql, *, key: bool) -> Fault | None:
    """Return what is wrong with a column of the DataFrame; None when nothing is.

    :param key: whether it is part of the primary key.
    """
    return next(_faults(path, column, tree, key), None)


def _faults(path: str, column: pa.Array, tree: Cql, key: bool) -> Iterator[Fault]:
    if tree.kind in TYPES:
        known = TYPES[tree.kind]
        yield from _broken(path, column, known.rules + (known.key_rules if key else ()))
    elif tree.kind in ("tuple", "udt"):
        for i, field in enumerate(column.flatten()):
            name = column.type.field(i).name
            part = tree.parts[tree.fields.index(name) if tree.kind == "udt" else i]
            yield from _faults(f"{path}.{name}", field, part, key)
    else:
        offsets, values = arrays.apart(column)
        if tree.kind == "vector":
            yield from _wrong_lengths(path, column, offsets, tree.length)
        for fault in _of_elements(path, values, tree, key):
            # The last list that begins at or before the element: those that begin there and are not
            # the last are empty.
            begins = pc.less_equal(offsets[:-1], long(fault.row))
            yield fault._replace(row=pc.sum(begins).as_py() - 1)


def _of_elements(path: str, values: pa.Array, tree: Cql, key: bool) -> Iterator[Fault]:
    columns, names = [values], ["element"]
    if tree.kind == "map":
        columns, names = values.flatten(), ["key", "value"]
    for name, elements, part in zip(names, columns, tree.parts, strict=True):
        inner = f"{path}.{name}"
        yield from _broken(inner, elements, NESTED[tree.kind].rules)
        # Of a map's keys, too, and of a set's elements, two must not become one.
        yield from _faults(inner, elements, part, key or name == "key" or tree.kind == "set")


def _broken(path: str, column: pa.Array, rules: tuple[Rule, ...]) -> Iterator[Fault]:
    for rule in rules:
        row = pc.index(rule.bad(column), TRUE).as_py()
        if row >= 0:
            remedy = rule.remedy.replace("{name}", path)
            yield Fault(row, path, column[row], rule.problem, remedy)


def _wrong_lengths(path: str, column: pa.Array, offsets: pa.Array, length: int) -> Iterator[Fault]:
    lengths = pc.subtract(offsets[1:], offsets[:-1])
    bad = pc.and_(column.is_valid(), pc.not_equal(lengths, long(length)))
    row = pc.index(bad, TRUE).as_py()
    if row >= 0:
        yield Fault(
            row,
            path,
            column[row],
            f"has {lengths[row].as_py()} elements, and the table's vector takes exactly {length}",
            "Drop such rows, or pad or cut the arrays: slice(c, 1, n).",
        )
