"""Starts Spark on this machine, for tests and demo: a session, an application, or a Spark Connect server.

An application and a server run in separate processes, which can be killed.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self

import pyspark
from pyspark.sql import SparkSession

from wal_sink.demo.pauses import PAUSES, Pause, pauses
from wal_sink.demo.server import HOST, choose_port
from wal_sink.errors import WalSinkError

_POLL_S = 0.05

HOME = Path(pyspark.__file__).parent
"""The folder of the installed Spark (SPARK_HOME)."""

_LOCAL = {
    "spark.ui.enabled": "false",
    "spark.driver.bindAddress": HOST,
    "spark.driver.host": HOST,
}
"""Settings of Spark in every session and Connect server that this module starts."""


def local_session(**settings: object) -> SparkSession:
    """Return the session of this process. A new session has two slots, and listens on the loopback address.

    :param settings: settings of Spark, which override the defaults of this function.
    """
    builder = SparkSession.builder
    defaults: dict[str, object] = {
        "spark.master": "local[2]",
        "spark.ui.showConsoleProgress": False,
        "spark.sql.shuffle.partitions": 2,
    }
    for name, value in {**_LOCAL, **defaults, **settings}.items():
        builder = builder.config(name, str(value))
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


class DriverFailed(WalSinkError):
    """An application ended too early or failed, or a wait timed out. The error ends with its output."""


class Driver:
    """A Spark application: a process group with the driver, its JVM and its Python workers.

    The end of the `with` block kills the application if it still runs.

    :param arguments: the arguments of `program`, for example `["-m", "my_job"]` for Python.
    :param output: the file for the output.
    :param environment: more variables for the process.
    :param folder: the working folder; None for the working folder of this process.
    :param patience_s: the timeout of each wait, in seconds.
    """

    program = sys.executable
    """The program that gets the arguments."""

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
                [self.program, *arguments],
                stdout=file,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # a new process group, which `kill` ends
                env={
                    **os.environ,
                    "PYSPARK_PYTHON": sys.executable,
                    "PYTHONFAULTHANDLER": "1",  # a crash of driver or worker prints all stacks
                    **environment,
                },
                cwd=folder,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.kill()

    def reach(self, reached: Callable[[], bool]) -> None:
        """Wait until `reached` returns True.

        :raises DriverFailed: the application ended before `reached` returned True, or the wait timed out.
        """
        self._wait(lambda: reached() or self.process.poll() is not None, "reach its point")
        if self.process.poll() is not None:
            raise DriverFailed(
                f"The application ended with {self.process.returncode} before its point:\n{self.log()}"
            )

    def kill(self) -> None:
        """Kill driver, JVM and Python workers by SIGKILL."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def finish(self, code: int = 0) -> None:
        """Wait until the application ends with this exit code.

        :raises DriverFailed: the application ended with another exit code, or the wait timed out.
        """
        self._wait(lambda: self.process.poll() is not None, "end")
        if self.process.returncode != code:
            raise DriverFailed(
                f"The application ended with {self.process.returncode}, not {code}:\n{self.log()}"
            )

    def log(self) -> str:
        """Return the output of the application."""
        return self.output.read_text(errors="replace")

    def _wait(self, done: Callable[[], bool], event: str) -> None:
        deadline = time.monotonic() + self._patience_s
        while not done():
            if time.monotonic() > deadline:
                self.process.send_signal(signal.SIGABRT)  # the fault handler prints all stacks
                time.sleep(_POLL_S)
                self.kill()
                raise DriverFailed(f"The application did not {event} in time:\n{self.log()}")
            time.sleep(_POLL_S)


class ConnectServer(Driver):
    """A Spark Connect server, which answers as soon as the constructor returns.

    :param folder: the folder for the output and the tables of the server.
    :param points: the points at which Python workers of the server pause to be killed.
    :param settings: more settings of Spark.
    :param environment: more variables for the process.
    """

    program = str(HOME / "bin" / "spark-submit")

    def __init__(
        self,
        folder: Path,
        *points: Pause,
        settings: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.port = choose_port(HOST)
        settings = {
            **_LOCAL,
            "spark.master": "local[4]",
            "spark.driver.memory": "1g",
            "spark.sql.shuffle.partitions": "1",
            "spark.connect.grpc.binding.address": HOST,
            "spark.connect.grpc.binding.port": str(self.port),
            "spark.sql.warehouse.dir": str(folder / "tables"),
            **(settings or {}),
        }
        options = [part for item in settings.items() for part in ("--conf", "=".join(item))]
        server = "org.apache.spark.sql.connect.service.SparkConnectServer"
        super().__init__(
            [*options, "--class", server, "spark-internal"],
            folder / f"connect-server-{self.port}.log",
            {"SPARK_HOME": str(HOME), PAUSES: pauses(*points), **(environment or {})},
            folder=folder,
        )
        self.reach(self._answers)

    @property
    def url(self) -> str:
        """The URL for clients."""
        return f"sc://{HOST}:{self.port}"

    def _answers(self) -> bool:
        with socket.socket() as client:
            return client.connect_ex((HOST, self.port)) == 0
