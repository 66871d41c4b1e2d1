"""A progress bar for what takes longer than two seconds, on standard error; none beside JSON."""

from __future__ import annotations

import time

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn

_QUIET_S = 2.0
"""Time before a bar appears."""


class LateBar(Progress):
    """One bar.

    :param doing: what takes so long.
    :param columns: what is shown behind the bar.
    :param as_json: show nothing.
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
        """Note how far it is."""
        super().update(self._task, completed=done, total=total)
        if not self.live.is_started and time.monotonic() - self._since > _QUIET_S:
            super().start()
