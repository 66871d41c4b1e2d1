"""Sets how many rows Spark puts into an Arrow batch for Python, without a measurement after each row.

Spark 4.3 closes an Arrow batch at `maxRecordsPerBatch` rows or `maxBytesPerBatch` bytes, and counts the
bytes after every row, for which it goes through all columns: a quarter of what a task takes. It does not
count them where the limit is exactly 2147483647. Then only the number of rows bounds a batch, so that
number follows from how wide the rows in the log are: nothing is set before the log has some.

It is set in the query's own copy of the session, so it affects no other query and no UDF of the
application.
"""

from __future__ import annotations

import logging
import threading

from wal_sink.errors import WalSinkError
from wal_sink.spark.internals import spark_session
from wal_sink.wal.states import newest
from wal_sink.wal.store import LogStore

logger = logging.getLogger(__name__)

MAX_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
MAX_RECORDS = "spark.sql.execution.arrow.maxRecordsPerBatch"
UNMEASURED = 2147483647
"""The one limit of bytes that Spark does not check after each row."""

BATCH_BYTES = 64 * 1024 * 1024
"""What a batch may have: Spark's own default."""
MARGIN = 16
"""Between a row in the log and one in a batch: it is compressed there, and others may be wider."""
FEW_ROWS = 1_000
"""Of a batch while the log has not shown how wide rows are: 64 MiB, were they of 64 KiB."""
READ_EVERY = 100
"""Epochs from one reading of the rows' width to the next."""


def rows_a_batch(rows: int, log_bytes: int, most: int) -> int:
    """Return how many rows fit into a batch, at most `most`.

    :param rows: that the log has seen, at least one.
    :param log_bytes: that these have there.
    :param most: what Spark is set to; 0 or less: it sets no bound.
    """
    fitting = max(1, BATCH_BYTES * rows // (MARGIN * max(log_bytes, 1)))
    return _at_most(fitting, most)


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


class ArrowBatching:
    """How Spark hands the rows of one query over.

    :param session: the query's own, see `streaming_query.own_session`; None: there is none to be set.
    :param wanted: False leaves it as it is.
    """

    def __init__(
        self, session: spark_session.OwnSession | None, store: LogStore, *, wanted: bool
    ) -> None:
        self._session = session
        self._store = store
        self._lock = threading.Lock()
        self._calls = 0
        self._rows: int | None = None
        """Of a batch, once it is set."""
        self._why = "Spark's own settings"
        if session is None or not wanted:
            self._session = None
        elif session.contains(MAX_BYTES):
            self._session = None
            self._why = f"as {MAX_BYTES} is set"
        else:
            self._most = int(session.get(MAX_RECORDS))
            self._why = (
                "Spark's own settings until the first epoch; then a number of rows that fits their"
                " width"
            )

    def update(self) -> None:
        """Set how many rows a batch has, by the newest epoch in the log; smaller than before if need be."""
        if self._session is None:
            return
        try:
            width = _newest(self._store)
        except (OSError, WalSinkError) as error:
            logger.debug("the width of the rows is unknown: %s", error)
            return
        if width is None:
            return
        rows = rows_a_batch(*width, self._most)
        with self._lock:
            if self._rows is not None and rows >= self._rows:
                return
            # The number first: between the two, both bounds hold.
            if not (
                self._session.set(MAX_RECORDS, rows) and self._session.set(MAX_BYTES, UNMEASURED)
            ):
                self._session = None
                return
            logger.debug("Arrow batches have %d rows", rows)
            self._rows = rows

    def epoch_done(self) -> None:
        """Read the width now and then, since rows may become wider; called for each epoch."""
        self._calls += 1
        if self._rows is None or self._calls % READ_EVERY == 0:
            self.update()

    def __str__(self) -> str:
        if self._rows is None:
            return self._why
        return (
            f"Arrow batches of {self._rows:,} rows, not measured after each row ({MAX_BYTES};"
            " register(tune_arrow_batches=False) leaves it)"
        )


def _newest(store: LogStore) -> tuple[int, int] | None:
    """Return rows and bytes of the newest epoch, or of all epochs if that has no rows; None without any."""
    state = newest(store)
    if state is None:
        return None
    last, before = state.last.sums, state.last.predecessor.sums
    if last.rows > before.rows:
        return last.rows - before.rows, last.bytes - before.bytes
    return (last.rows, last.bytes) if last.rows else None
