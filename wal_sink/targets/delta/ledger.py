"""The ledger row of a query: a small file beside the table's, to which the table's own log points.

Each change of the row writes a new file under a random number, and then commits that number as the version of
the transaction `wal_sink/<query id>` (an action `txn` of Delta's log). Every version of the table keeps the
newest number, also over checkpoints and clean-ups of the log. So the commit is what changes the row: in one
step with the rows that it adds, and only from the row that its table was read with.
"""

from __future__ import annotations

import contextlib
import random
from typing import NamedTuple

import msgspec

from wal_sink.errors import CorruptLog
from wal_sink.model.ledger import Mark
from wal_sink.targets.delta.files import Files
from wal_sink.targets.delta.table import Table

_NUMBERS = random.SystemRandom()


class Row(NamedTuple):
    """The row, and the number of its file; None and None: there is no row."""

    number: int | None
    mark: Mark | None


class LedgerFiles:
    """Those of one query."""

    def __init__(self, files: Files, query_id: str) -> None:
        self._files = files
        self._query_id = query_id
        self._read = Row(None, None)

    @property
    def app_id(self) -> str:
        """The transaction whose version is the number of the row's file."""
        return f"wal_sink/{self._query_id}"

    def row(self, table: Table) -> Row:
        """Return the row as of the table's version that was looked at.

        :raises FileNotFoundError: its file is gone, as it is when another flusher has changed the row since.
        :raises CorruptLog: it is not what this version writes.
        """
        number = table.transaction_version(self.app_id)
        if number is None:
            return Row(None, None)
        if number != self._read.number:
            self._read = Row(number, self._mark(self._files.read(self._path(number))))
        return self._read

    def write(self, mark: Mark) -> int:
        """Write a file; return its number. Nothing points to it yet."""
        number = _NUMBERS.getrandbits(62)
        self._files.write(self._path(number), msgspec.json.encode(mark))
        return number

    def delete(self, number: int | None) -> None:
        """Delete a file to which nothing points; one that stays is some kilobytes."""
        if number is not None:
            with contextlib.suppress(OSError):
                self._files.delete(self._path(number))

    def lost(self) -> CorruptLog:
        """Return the error for a row whose file is gone for good."""
        return CorruptLog(
            f"The Delta table's log points to a ledger row of query {self._query_id} whose file in"
            " _wal_sink/ is gone",
            f"Restore the folder _wal_sink/{self._query_id} from a copy of the table: it says what is in the"
            " table already.",
        )

    def _path(self, number: int) -> str:
        return f"_wal_sink/{self._query_id}/{number:016x}.json"

    def _mark(self, data: bytes) -> Mark:
        try:
            return msgspec.json.decode(data, type=Mark)
        except msgspec.DecodeError as error:
            raise CorruptLog(
                f"The ledger row of query {self._query_id} in _wal_sink/ is not what this version of wal_sink"
                f" writes: {error}",
                "Flush with the newer version that wrote it. Do not delete it: it says what is in the table"
                " already.",
            ) from error
