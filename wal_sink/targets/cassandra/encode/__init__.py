"""From the log's columns to the bytes of CQL's native protocol, without a Python object for each row.

A column becomes a few **segments**, arrays with a piece of each row's bytes. Joining the segments of
all columns, row by row, gives the rows one after the other in one buffer, of which a request takes
slices. The same join makes tuples, user-defined types and the entries of maps, so nesting costs no
loop over rows either.

==========  ===================================================================
`rows`      a batch to rows and to routing keys
`scalars`   the types without parts: a column to the bytes of its values
`nested`    collections, structs and vectors
`numbers`   `varint`, `decimal` and `duration`, which have as many bytes as they need
`segments`  what is joined, and joining
`views`     Arrow's buffers as arrays of numpy
==========  ===================================================================

The formats are those of section 6 of the native protocol's specification, version 4 and 5:
https://github.com/apache/cassandra/blob/trunk/doc/native_protocol_v5.spec. `bind` and the driver's
own serializers make the same bytes, which the tests compare.
"""

from wal_sink.targets.cassandra.encode.rows import Encoded, encode, routing_keys, taken

__all__ = ["Encoded", "encode", "routing_keys", "taken"]
