"""Numbers the keys of rows, by their encoded bytes. Pure."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa

from wal_sink.model.plan import Plan
from wal_sink.targets.cassandra.encode import views
from wal_sink.targets.cassandra.encode.nested import prefixed
from wal_sink.targets.cassandra.encode.segments import Segment, binaries, joined, varying
from wal_sink.targets.cassandra.encode.views import Array
from wal_sink.targets.cassandra.types.cql_type import column_types

_LENGTH = struct.Struct(">i")


class Keys(NamedTuple):
    """The keys of a batch's rows, each once."""

    numbers: Array
    """Of each row the number of its key, int64; counted from 0 in the order in which keys come."""
    distinct: pa.Array
    """The bytes of each key: its values, each with its length in four bytes before it."""

    def values(self) -> Iterator[list[bytes]]:
        """Yield the values of each key, in the order of the plan's columns."""
        for key in self.distinct.to_pylist():
            at, values = 0, []
            while at < len(key):
                (length,) = _LENGTH.unpack_from(key, at)
                at += _LENGTH.size + length
                values.append(key[at - length : at])
            yield values


def distinct_keys(batch: pa.RecordBatch, table: Plan, *before: Segment) -> Keys:
    """Return the keys of rows that `check` returned.

    :param table: the plan's columns that the table has.
    :param before: further parts of each key, without a length; `values` cannot be asked then.
    """
    pieces = [*before]
    for column, tree in zip(table.columns, column_types(table), strict=True):
        if column.role in ("partition", "clustering"):
            pieces += prefixed(batch.column(column.name), tree)
    rows = batch.num_rows
    found = binaries(varying(joined(pieces, rows), rows)).dictionary_encode()
    numbers = views.elements(found.indices.cast(pa.int64()), "i8")
    return Keys(numbers, found.dictionary)
