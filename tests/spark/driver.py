"""The tests' applications as processes, to be watched and killed by a test."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from wal_sink.demo import crash
from wal_sink.demo.pauses import PAUSES, Pause, Point, pauses

ROOT = Path(__file__).parents[2]


class Driver(crash.Driver):
    """One run of an application.

    :param folder: for its configuration, marker and output.
    :param module: what is run, with the path of its configuration.
    :param pause: the point at which it pauses, in `epoch`.
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
            folder=ROOT,
        )

    def reach_marker(self) -> None:
        """Wait until it reaches its point."""
        self.reach(self.marker.exists)


class Mortal:
    """An application that is killed, and started again; its output is in `output-0` and so on.

    :param folder: for its configuration, markers and output.
    :param module: what is run, with the path of its configuration.
    """

    def __init__(self, folder: Path, module: str, config: Mapping[str, Any]) -> None:
        self._folder, self._module = folder, module
        self._config = folder / "config.json"
        self._config.write_text(json.dumps(config))
        self._starts = itertools.count()

    def pause(self, table: str, point: Point, epoch: int) -> Pause:
        """Return where a query is to pause at the next start."""
        marker = self._folder / f"{table} at {point}".replace("/", " ")
        marker.unlink(missing_ok=True)
        return Pause(point=point, table=table, epoch=epoch, marker=str(marker))

    def start(self, *where: Pause) -> crash.Driver:
        """Start it; each of its queries goes on to its place."""
        path = os.pathsep.join([str(ROOT / "examples"), os.environ.get("PYTHONPATH", "")])
        return crash.Driver(
            ["-m", self._module, str(self._config)],
            self._folder / f"output-{next(self._starts)}",
            {PAUSES: pauses(*where), "PYTHONPATH": path},
            folder=ROOT,
        )

    def die(
        self,
        where: Sequence[Pause],
        also: Callable[[], bool] = lambda: True,
        look: Callable[[], None] = lambda: None,
    ) -> None:
        """Start it, and SIGKILL all of it where its queries pause.

        :param also: has to be so, too.
        :param look: what is done right before the kill.
        """
        with self.start(*where) as driver:
            driver.reach(lambda: all(Path(pause.marker).exists() for pause in where) and also())
            look()
            driver.kill()

    def finish(self) -> None:
        """Start it, and let it end."""
        with self.start() as driver:
            driver.finish()
