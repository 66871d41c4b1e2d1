"""An application as a process of its own, which a test starts, kills, and starts again."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from wal_sink.demo.local_spark import Driver
from wal_sink.demo.pauses import PAUSES, Pause, Point, pauses

ROOT = Path(__file__).parents[2]


class Application:
    """An application; the output of its first start is in `output-0`, and so on.

    :param folder: for its configuration, its markers and its output.
    :param module: the program. Its argument is the file of its configuration.
    :param patience_s: the timeout of each wait for the application, in seconds.
    """

    def __init__(
        self, folder: Path, module: str, config: Mapping[str, Any], patience_s: float = 240.0
    ) -> None:
        self.folder, self._module, self._config = folder, module, config
        self._patience_s = patience_s
        self._starts = itertools.count()

    def pause(self, table: str, point: Point, epoch: int) -> Pause:
        """Return a pause of a query, for `start`."""
        marker = self.folder / f"{table} at {point}".replace("/", " ")
        marker.unlink(missing_ok=True)
        return Pause(point=point, table=table, epoch=epoch, marker=str(marker))

    def start(self, *where: Pause, **more: Any) -> Driver:
        """Start the application; its queries pause at `where`.

        :param more: added to its configuration.
        """
        number = next(self._starts)
        file = self.folder / f"config-{number}.json"
        file.write_text(json.dumps({**self._config, **more}))
        path = os.pathsep.join([str(ROOT / "examples"), os.environ.get("PYTHONPATH", "")])
        return Driver(
            ["-m", self._module, str(file)],
            self.folder / f"output-{number}",
            {PAUSES: pauses(*where), "PYTHONPATH": path},
            folder=ROOT,
            patience_s=self._patience_s,
        )

    def die(
        self,
        where: Sequence[Pause],
        also: Callable[[], bool] = lambda: True,
        before_kill: Callable[[], None] = lambda: None,
    ) -> None:
        """Start the application, and kill it by SIGKILL when its queries have reached `where`.

        :param also: a further condition for the kill.
        """
        with self.start(*where) as driver:
            driver.reach(lambda: all(Path(pause.marker).exists() for pause in where) and also())
            before_kill()
            driver.kill()

    def finish(self) -> str:
        """Run the application to its end; return its output."""
        with self.start() as driver:
            driver.finish()
        return driver.log()
