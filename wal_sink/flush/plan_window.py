"""Plans the window that is begun next: epochs of one kind, with timestamps above all before (rule 14)."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from itertools import takewhile
from typing import NamedTuple

from wal_sink.flush.clocks import Clocks
from wal_sink.flush.read_window import plan_of
from wal_sink.model.ledger import Mark, Window
from wal_sink.model.manifest import Published
from wal_sink.protocol.ledger_updates import (
    after_dated,
    plan_window,
    plan_without_rows,
    refuse_dated_early,
)
from wal_sink.protocol.steps import Begin, PassOver
from wal_sink.wal.log import Log


class Planned(NamedTuple):
    """A window, and what it is made of."""

    window: Window
    chosen: Sequence[Published] = ()
    """The manifests of its epochs; none for an epoch that is passed over."""


class _Kind(NamedTuple):
    """How the rows of an epoch are written: a window has those of one kind."""

    sent_once: bool
    target_dated: bool


class WindowPlanner:
    """Plans for one flusher."""

    def __init__(self, log: Log, clocks: Clocks) -> None:
        self._log = log
        self._clocks = clocks

    def plan(self, step: Begin | PassOver, mark: Mark) -> Planned:
        """Fix attempts and write timestamps of the window that is about to be begun.

        :param step: what was chosen. The window has the first of these epochs, and those after it that are
            written in the same way.
        :param mark: the ledger row as it was seen.
        :raises CorruptLog: a plan is gone.
        :raises TargetUnavailable: rows that the target dates itself might be hidden by those that are there.
        """
        begun_us, nonce = self._clocks.now_us(), uuid.uuid4().hex
        if isinstance(step, PassOver):
            dated = are_dated(self._log, mark)
            window = plan_without_rows(step, mark, begun_us, nonce, target_dated=dated)
            planned = Planned(window)
        else:
            planned = self._with_rows(step, mark, begun_us, nonce)
        self._clocks.look_ahead(planned.window, begun_us)
        return planned

    def _with_rows(self, step: Begin, mark: Mark, begun_us: int, nonce: str) -> Planned:
        kind = self._kind(step.manifests[0])
        chosen = [*takewhile(lambda each: self._kind(each) == kind, step.manifests)]
        if kind.target_dated:
            refuse_dated_early(mark, self._clocks.target_us())
        elif are_dated(self._log, mark):
            mark = after_dated(mark, self._clocks.target_us())
        window = plan_window(chosen, mark, begun_us, nonce, **kind._asdict())
        return Planned(window, chosen)

    def _kind(self, published: Published) -> _Kind:
        """Tell how the rows of an epoch are written, by its plan."""
        plan = plan_of(self._log, published.manifest)
        return _Kind(plan.sent_once, plan.target_dated)


def are_dated(log: Log, mark: Mark) -> bool:
    """Whether the target may have dated rows itself, which are then newer than the ledger row says.

    A row that is new, or was made anew, does not say what was written before.
    """
    return mark.target_dated or (
        mark.last is None and any(plan.target_dated for plan in log.plans())
    )
