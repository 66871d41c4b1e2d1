"""Starts, watches and kills a Spark application, in a process group of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from wal_sink.errors import WalSinkError

_POLL_S = 0.05


class DriverDidNot(WalSinkError):
    """The application did not do in time what the test waited for; the text ends with its output."""


class Driver:
    """One application with its JVM and its Python workers.

    Leaving the `with` block kills what still runs.

    :param arguments: of Python, for example `["-m", "my_job"]`.
    :param output: the file that gets what it prints.
    :param environment: added to this process's.
    :param patience_s: how many seconds each wait may take.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        output: Path,
        environment: Mapping[str, str] = {},
        folder: Path | None = None,
        patience_s: float = 240.0,
    ) -> None:
        self.output = output
        self._patience_s = patience_s
        with output.open("wb") as file:
            self.process = subprocess.Popen(  # noqa: S603 - the caller's own program
                [sys.executable, *arguments],
                stdout=file,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # a process group of its own, to be killed whole
                env={
                    **os.environ,
                    "PYSPARK_PYTHON": sys.executable,
                    "PYTHONFAULTHANDLER": "1",  # a crash, of a worker too, prints all stacks
                    **environment,
                },
                cwd=folder,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self.process.poll() is None:
            self.kill()

    def reach(self, reached: Callable[[], bool]) -> None:
        """Wait until the application has reached a point.

        :raises DriverDidNot: it did not in time, or ended before.
        """
        self._wait(lambda: reached() or self.process.poll() is not None, "reach its point")
        if self.process.poll() is not None:
            raise DriverDidNot(
                f"The application ended ({self.process.returncode}) before its point:\n{self.log()}"
            )

    def kill(self) -> None:
        """SIGKILL driver, JVM and workers."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def finish(self, code: int = 0) -> None:
        """Wait until the application ends with this exit code.

        :raises DriverDidNot: it did not end, or ended with another one.
        """
        self._wait(lambda: self.process.poll() is not None, "end")
        if self.process.returncode != code:
            raise DriverDidNot(
                f"The application ended with {self.process.returncode}:\n{self.log()}"
            )

    def log(self) -> str:
        """Return what the application printed."""
        return self.output.read_text(errors="replace")

    def _wait(self, done: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + self._patience_s
        while not done():
            if time.monotonic() > deadline:
                self.kill()
                raise DriverDidNot(f"The application did not {what} in time:\n{self.log()}")
            time.sleep(_POLL_S)
