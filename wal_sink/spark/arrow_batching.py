"""Bounds the rows of an Arrow batch where the bytes of a micro-batch need no bound of their own.

Spark 4.3 counts the bytes of an Arrow batch after every row, unless the limit is exactly 2147483647. A
micro-batch that fits into one batch is bounded by a number of rows alone.
"""

from __future__ import annotations

from wal_sink.spark.internals import spark_session

MAX_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
MAX_RECORDS = "spark.sql.execution.arrow.maxRecordsPerBatch"
UNMEASURED = 2147483647
"""The one limit of bytes that Spark does not check after each row."""

BATCH_BYTES = 64 * 1024 * 1024
"""What a batch may have: Spark's own default."""
MARGIN = 16
"""Between the bytes that Spark expects and those of a batch."""
FEW_ROWS = 1_000
"""Of a batch whose rows may be of any width: 64 MiB, were they of 64 KiB."""


def most_rows(session: spark_session.OwnSession, expected_bytes: int) -> int | None:
    """Return the rows that bound a batch of a micro-batch alone; None: its bytes have to be bounded, too.

    Rows are enough where the session says so, and where Spark expects so few bytes that all of them fit into
    one batch. Then they are `FEW_ROWS` at most: a function in the query may have made them wider.

    :param session: by which the micro-batch is planned.
    :param expected_bytes: of the micro-batch, see `dataframe.expected_bytes`.
    """
    if session.contains(MAX_BYTES):
        unmeasured = session.get(MAX_BYTES) == str(UNMEASURED)
        return int(session.get(MAX_RECORDS)) if unmeasured else None
    if expected_bytes * MARGIN > BATCH_BYTES:
        return None
    return _at_most(FEW_ROWS, int(session.get(MAX_RECORDS)))


def _at_most(rows: int, most: int) -> int:
    """Bound rows as Spark is set, where 0 or less bounds nothing."""
    return min(rows, most) if most > 0 else rows
