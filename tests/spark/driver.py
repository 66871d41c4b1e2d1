"""Drivers that are started, watched and killed by a test."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

_PATIENCE_S = 240.0


class Driver:
    """One application with its JVM and its Python workers.

    :param folder: for its configuration, marker and output.
    :param module: what is run.
    """

    def __init__(self, folder: Path, *, module: str = "tests.spark.app", **config: Any) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.marker = folder / "marker"
        self.output = folder / "output"
        self.config = {**config, "marker": str(self.marker)}
        (folder / "config.json").write_text(json.dumps(self.config))
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", module, str(folder / "config.json")],
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # a process group of its own, to be killed whole
                env={**os.environ, "PYSPARK_PYTHON": sys.executable},
                cwd=Path(__file__).parents[2],
            )

    def kill_at_marker(self) -> None:
        """Wait until it reaches its point, then SIGKILL all of it."""
        self.reach_marker()
        self.kill()

    def reach_marker(self) -> None:
        """Wait until it reaches its point."""
        self._wait(self.marker.exists, "reach its point")

    def kill(self) -> None:
        """SIGKILL driver, JVM and workers."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def finish(self, code: int = 0) -> None:
        """Wait for its end, with this exit code: 0 is a good one."""
        self._wait(lambda: self.process.poll() is not None, "end", dead_is_bad=False)
        assert self.process.returncode == code, self.log()

    def log(self) -> str:
        """What it printed."""
        return self.output.read_text(errors="replace")

    def _wait(self, done: Any, what: str, *, dead_is_bad: bool = True) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        while not done():
            assert time.monotonic() < deadline, f"it did not {what}:\n{self.log()}"
            if dead_is_bad:
                assert self.process.poll() is None, f"it died before it could {what}:\n{self.log()}"
            time.sleep(0.05)
