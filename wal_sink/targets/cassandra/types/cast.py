"""Casts a column of the DataFrame, with all its parts, to what the log holds; done in the tasks."""

from __future__ import annotations

import pyarrow as pa

from wal_sink.targets.cassandra.types.cql_type import CqlType
from wal_sink.targets.cassandra.types.mapping import TYPES
from wal_sink.targets.cassandra.types.unnest import unnest


def cast_column(column: pa.Array, tree: CqlType) -> pa.Array:
    """Cast a column for which `mismatches` found none.

    A user-defined type gets all its fields in their order; those that the struct lacks are null.
    """
    if tree.kind in TYPES:
        return TYPES[tree.kind].cast(column)
    if tree.kind in ("tuple", "udt"):
        fields, names = column.flatten(), [str(i) for i in range(len(tree.parts))]
        if tree.kind == "udt":
            given = {column.type.field(i).name: field for i, field in enumerate(fields)}
            missing = pa.nulls(len(column))
            fields, names = [given.get(name, missing) for name in tree.fields], list(tree.fields)
        stored = [
            field if field.type == pa.null() else cast_column(field, part)
            for field, part in zip(fields, tree.parts, strict=True)
        ]
        return pa.StructArray.from_arrays(stored, names=names, mask=column.is_null())
    offsets, values = unnest(column)
    if tree.kind == "map":
        keys, items = map(cast_column, values.flatten(), tree.parts)
        return pa.MapArray.from_arrays(offsets, keys, items, mask=column.is_null())
    elements = cast_column(values, tree.parts[0])
    return pa.ListArray.from_arrays(offsets, elements, mask=column.is_null())
