"""A Spark Connect server for tests and demo: `python -m wal_sink.demo.connect_server PORT NAME=VALUE…`."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

import pyspark

from wal_sink.demo.crash import Driver
from wal_sink.demo.pauses import PAUSES, Pause, pauses
from wal_sink.demo.servers.process import choose_port

HOME = Path(pyspark.__file__).parent
"""The folder of Spark that pip has installed."""

_CLASS = "org.apache.spark.sql.connect.service.SparkConnectServer"

_SETTINGS = {
    "spark.master": "local[4]",
    "spark.driver.memory": "1g",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.connect.grpc.binding.address": "127.0.0.1",
}


class ConnectServer(Driver):
    """A server process. When the constructor returns, the server answers.

    :param folder: gets the output and the tables of the server.
    :param points: the points at which the Python workers pause to be killed.
    :param settings: more settings of Spark.
    :param environment: more variables for the process.
    """

    def __init__(
        self,
        folder: Path,
        *points: Pause,
        settings: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.port = choose_port("127.0.0.1")
        tables = {"spark.sql.warehouse.dir": str(folder / "tables")}
        settings = {**_SETTINGS, **tables, **(settings or {})}
        pairs = [f"{name}={value}" for name, value in settings.items()]
        super().__init__(
            ["-m", "wal_sink.demo.connect_server", str(self.port), *pairs],
            folder / f"connect-server-{self.port}.log",
            {"SPARK_HOME": str(HOME), PAUSES: pauses(*points), **(environment or {})},
            folder=folder,
        )
        self.reach(self._answers)

    @property
    def url(self) -> str:
        """The URL for clients."""
        return f"sc://127.0.0.1:{self.port}"

    def _answers(self) -> bool:
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", self.port)) == 0


def main(port: str, settings: list[str]) -> None:
    """Replace this process with the server."""
    pairs = [f"spark.connect.grpc.binding.port={port}", *settings]
    confs = [text for pair in pairs for text in ("--conf", pair)]
    submit = str(HOME / "bin" / "spark-submit")
    os.execv(submit, [submit, "--class", _CLASS, *confs, "spark-internal"])  # noqa: S606 - no shell is needed


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
