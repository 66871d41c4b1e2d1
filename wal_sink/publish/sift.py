"""Sifts a batch: the rows that the target takes, and those that its check refuses, with their reasons.

A check raises at the first rule that a row breaks, and says which rows of the batch break the same one.
They go, and the check looks at the rest: once more for each rule that is broken, not for each row. Kernels of
Arrow do that; no row becomes a Python object. Where a check does not say which rows they are, the batch is
halved until it is one row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from wal_sink.errors import InvalidRow

Check = Callable[[pa.RecordBatch], pa.RecordBatch]


class Refused(NamedTuple):
    """Rows that break one rule."""

    rows: pa.RecordBatch
    """As the DataFrame has them."""
    error: InvalidRow
    """Of the first of them."""


class Sifted(NamedTuple):
    """A batch in two parts, each in the batch's order."""

    taken: tuple[pa.RecordBatch, ...]
    """As the check returns them."""
    refused: tuple[Refused, ...]


def sift(batch: pa.RecordBatch, check: Check) -> Sifted:
    """Let `check` refuse rows, each for the first rule that it breaks.

    :param check: returns a batch as the log holds it, or raises `InvalidRow`.
    """
    refused: list[Refused] = []
    while batch.num_rows:
        try:
            return Sifted((check(batch),), tuple(refused))
        except InvalidRow as error:
            bad = _flags(error, batch.num_rows)
            if bad is None and batch.num_rows > 1:
                halves = _halves(batch, check)
                return Sifted(halves.taken, (*refused, *halves.refused))
            if bad is None:
                refused.append(Refused(batch, error))
                break
            refused.append(Refused(batch.filter(bad), error))
            batch = batch.filter(pc.invert(bad))
    return Sifted((), tuple(refused))


def _flags(error: InvalidRow, rows: int) -> pa.Array | None:
    """Return which rows an error is about; None where it does not say."""
    if error.rows is None or len(error.rows) != rows:
        return None
    bad = error.rows.fill_null(fill_value=False)
    return bad if pc.any(bad).as_py() else None


def _halves(batch: pa.RecordBatch, check: Check) -> Sifted:
    middle = batch.num_rows // 2
    first, second = sift(batch.slice(0, middle), check), sift(batch.slice(middle), check)
    return Sifted(first.taken + second.taken, first.refused + second.refused)
