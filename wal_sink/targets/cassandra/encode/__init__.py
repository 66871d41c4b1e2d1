"""Encodes the log's columns as bytes of CQL's native protocol, without a Python object for each row.

A column becomes a few **segments**: arrays with a piece of each row's bytes. Joining the segments of all
columns, row by row, gives the rows one after the other in one buffer, and a request takes a part of it. The
same join makes tuples, user-defined types and the entries of maps, so nested types take no loop over rows
either.

`rows` has the columns, by their types, and the rows that they make; `buffers` has the segments, and Arrow's
buffers as numpy arrays.

The formats are those of section 6 of the native protocol's specification, version 4 and 5:
https://github.com/apache/cassandra/blob/trunk/doc/native_protocol_v5.spec. The tests decode
them by the driver's own deserializers.
"""

from wal_sink.targets.cassandra.encode.rows import (
    Encoded,
    encode,
    one_after_the_other,
    routing_keys,
    taken,
)

__all__ = ["Encoded", "encode", "one_after_the_other", "routing_keys", "taken"]
