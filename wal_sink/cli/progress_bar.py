"""A progress bar for what takes longer than two seconds, on standard error; none beside JSON."""

from __future__ import annotations

import time

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn

_QUIET_S = 2.0
"""Time before a bar appears."""


class LateBar(Progress):
    """Shows one bar, once the work has taken two seconds.

    :param doing: names the work, in front of the bar.
    :param columns: stand behind the bar.
    :param as_json: whether nothing is shown.
    """

    def __init__(self, doing: str, *columns: ProgressColumn, as_json: bool) -> None:
        super().__init__(
            TextColumn("{task.description}"),
            BarColumn(),
            *columns,
            console=Console(stderr=True, highlight=False),
            transient=True,
            disable=as_json,
        )
        self._task = self.add_task(doing, total=None)
        self._since = time.monotonic()

    def start(self) -> None:
        """Show nothing yet."""

    def stop(self) -> None:
        """End it, if it was shown."""
        if self.live.is_started:
            super().stop()

    def update(self, done: int, total: int) -> None:  # type: ignore[override]
        """Take how much of the work is done, in any unit, and draw the bar if it is time."""
        super().update(self._task, completed=done, total=total)
        if not self.live.is_started and time.monotonic() - self._since > _QUIET_S:
            super().start()
