"""Encodes texts that no kernel parses: each distinct one once, as a Python object."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from wal_sink.targets.cassandra.encode import views
from wal_sink.targets.cassandra.encode.segments import Segment, Varying, ends


def distinct(column: pa.Array, encode: Callable[[str], bytes]) -> tuple[Segment, ...]:
    """Encode a column of strings by a function of one; anything beneath nulls."""
    encoded = column.dictionary_encode()
    values = [encode(text) for text in encoded.dictionary.to_pylist()]
    widths = np.fromiter(map(len, values), np.int32, len(values))
    of_each = views.binaries(pa.py_buffer(b"".join(values)), ends(widths))
    return (Varying(*views.texts(of_each.take(encoded.indices))),)
