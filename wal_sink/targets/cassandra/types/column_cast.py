"""From a DataFrame's column to what the log holds, with all its parts; done in the tasks."""

from __future__ import annotations

import pyarrow as pa

from wal_sink.targets.cassandra.types import arrays
from wal_sink.targets.cassandra.types.cql_type import Cql
from wal_sink.targets.cassandra.types.mapping import TYPES


def store(column: pa.Array, tree: Cql) -> pa.Array:
    """Cast a column that `fit.misfits` has nothing to say about.

    A user-defined type has all its fields in their order; those that the struct lacks are null.
    """
    if tree.kind in TYPES:
        return TYPES[tree.kind].store(column)
    if tree.kind == "map":
        offsets, entries = arrays.apart(column)
        keys, values = map(store, entries.flatten(), tree.parts)
        return arrays.maps(offsets, keys, values, like=column)
    if tree.kind in ("tuple", "udt"):
        fields, names = column.flatten(), [str(i) for i in range(len(tree.parts))]
        if tree.kind == "udt":
            given = {column.type.field(i).name: field for i, field in enumerate(fields)}
            missing = pa.nulls(len(column))
            fields, names = [given.get(name, missing) for name in tree.fields], list(tree.fields)
        stored = [
            field if field.type == pa.null() else store(field, part)
            for field, part in zip(fields, tree.parts, strict=True)
        ]
        return arrays.structs(stored, names, like=column)
    offsets, values = arrays.apart(column)
    return arrays.lists(offsets, store(values, tree.parts[0]), like=column)
