"""What a session may offer beside `base.Session`: it goes on behind a row that its server refuses (rule 24).

Only where rows are cells. A transaction in which a row was refused is rolled back with all other rows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Protocol, runtime_checkable

from wal_sink.errors import TargetRefused
from wal_sink.targets.base import Slice

OnRefused = Callable[[int, TargetRefused], None]
"""Gets the write timestamp of a row, and why the server refuses it. When it returns, that is durable, and the
session passes over the row; when it raises, that is the error of `write` or `drain`."""


@runtime_checkable
class PassesOver(Protocol):
    """A session that can take a refused row out of a request, and send the others."""

    def pass_over(self, refused: OnRefused | None) -> None:
        """Tell `refused` of each row that the server refuses, from now on; None: raise `TargetRefused`."""


def without(rows: Slice, passed: Collection[int]) -> Iterator[Slice]:
    """Yield a slice without the rows of some write timestamps; each part keeps its own timestamps."""
    begin = 0
    for us in sorted(passed):
        row = us - rows.first_us
        if not 0 <= row < rows.batch.num_rows:
            continue
        if row > begin:
            yield _part(rows, begin, row)
        begin = row + 1
    if begin == 0:
        yield rows
    elif begin < rows.batch.num_rows:
        yield _part(rows, begin, rows.batch.num_rows)


def _part(rows: Slice, begin: int, end: int) -> Slice:
    return rows._replace(batch=rows.batch.slice(begin, end - begin), first_us=rows.first_us + begin)
