"""The tests' applications as processes, to be watched and killed by a test."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from wal_sink.testing import crash
from wal_sink.testing.crash import PAUSES, Pause, pauses


class Driver(crash.Driver):
    """One run of an application.

    :param folder: for its configuration, marker and output.
    :param module: what is run, with the path of its configuration.
    :param pause: the point at which it stands still, in `epoch`.
    """

    def __init__(
        self,
        folder: Path,
        *,
        module: str = "tests.spark.app",
        pause: Any = None,
        epoch: int = -1,
        **config: Any,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.marker = folder / "marker"
        config = {**config, "epoch": epoch, "marker": str(self.marker)}
        (folder / "config.json").write_text(json.dumps(config))
        where = Pause(point=pause, table=config["table"], epoch=epoch, marker=str(self.marker))
        super().__init__(
            ["-m", module, str(folder / "config.json")],
            folder / "output",
            {PAUSES: pauses(where) if pause else "[]"},
            folder=Path(__file__).parents[2],
        )

    def reach_marker(self) -> None:
        """Wait until it reaches its point."""
        self.reach(self.marker.exists)

    def kill_at_marker(self) -> None:
        """Wait until it reaches its point, then SIGKILL all of it."""
        self.reach_marker()
        self.kill()
