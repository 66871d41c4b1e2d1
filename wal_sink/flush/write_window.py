"""Writes the rows of a begun window: in this process, or wherever else somebody knows how to (rule 15)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from wal_sink.flush.rate_limit import RateLimit
from wal_sink.flush.read_window import slices
from wal_sink.flush.target_connection import target_errors
from wal_sink.model.ledger import BegunEpoch, Owner, Window
from wal_sink.targets.base import Session, Target
from wal_sink.wal.log import Log


@dataclass(frozen=True)
class WindowWrite:
    """What is to be written, and what its writer gets from the flusher."""

    log: Log
    target: Target
    owner: Owner
    window: Window
    epochs: Sequence[BegunEpoch]
    """Those of the window that are not given up."""
    session: Callable[[], Session]
    """Connects when it has to."""
    over: Callable[[], bool]
    """Whether to stop: interrupted, or another flusher has finished the window. To be asked again and again;
    it reads the ledger at most once a second. It does not raise `TargetUnavailable`: the rows will."""
    say: Callable[[str, int | None], None]


WriteRows = Callable[[WindowWrite], bool]
"""Write all of it; False: it was `over` before.

When it returns True, every row is acknowledged, or will be when the flusher has drained its session.

:raises FileGoneError: a file of the window is missing.
:raises WalSinkError: the line stops here. Some of the rows may be written.
"""


class WriteInThread:
    """Writes rows in this thread, epoch by epoch; a `WriteRows`.

    :param rows_per_second: None: as fast as the target takes them.
    """

    def __init__(self, rows_per_second: int | None = None) -> None:
        self._rate_limit = RateLimit(rows_per_second)

    def __call__(self, rows: WindowWrite) -> bool:
        """Write all of it; the flusher drains."""
        for begun in rows.epochs:
            rows.say("writing", begun.epoch)
            for plan, part in self._rate_limit.paced(slices(rows.log, begun)):
                if rows.over():
                    return False
                with target_errors(rows.target):
                    rows.session().write(plan, part)
                rows.say("writing", begun.epoch)
        return True
