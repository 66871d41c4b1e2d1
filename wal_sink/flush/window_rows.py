"""Finds the rows of a window: of one that is about to be begun, or of one that was found begun."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from wal_sink.flush.quarantine import passed_over
from wal_sink.flush.read_window import begun_manifests
from wal_sink.flush.reporter import Reporter
from wal_sink.flush.target_connection import TargetConnection
from wal_sink.flush.write_window import WindowWrite
from wal_sink.model.ledger import BegunEpoch, Window
from wal_sink.model.manifest import Manifest, Published
from wal_sink.wal.log import Log
from wal_sink.wal.segment import CheckedSegments


class WindowRows:
    """The rows of one query's windows.

    :param quarantine: whether rows that the target refuses go into quarantine, where they can.
    :param checked: segments that were read when a window was chosen.
    """

    def __init__(
        self,
        log: Log,
        target: TargetConnection,
        reporter: Reporter,
        *,
        quarantine: bool,
        checked: CheckedSegments,
    ) -> None:
        self._log, self._target, self._reporter = log, target, reporter
        self._quarantine = quarantine
        self._checked = checked

    def chosen(self, window: Window, chosen: Sequence[Published]) -> WindowWrite:
        """Return those of a window that was chosen just now; reads nothing yet.

        :param chosen: its manifests; none of an epoch that is passed over.
        """
        manifests = {each.manifest.epoch: each.manifest for each in chosen}
        return self._of(window, window.epochs, manifests)

    def begun(self, window: Window, given_up: frozenset[int]) -> WindowWrite:
        """Return those of a window that was found begun.

        :param given_up: epochs that an operator has given up since (rule 22).
        :raises FileGoneError, CorruptLog: see `begun_manifest`.
        """
        epochs = [epoch for epoch in window.epochs if epoch.epoch not in given_up]
        manifests = begun_manifests(self._log, epochs)
        return self._of(window, epochs, manifests, passed=passed_over(self._log, epochs))

    def _of(
        self,
        window: Window,
        epochs: Sequence[BegunEpoch],
        manifests: Mapping[int, Manifest],
        passed: Collection[int] = (),
    ) -> WindowWrite:
        return WindowWrite(
            self._log,
            self._target,
            self._reporter,
            window,
            epochs=epochs,
            manifests=manifests,
            passed=passed,
            quarantine=self._quarantine and not window.sent_once,
            checked=self._checked,
        )
