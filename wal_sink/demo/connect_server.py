"""A Spark Connect server of its own: `python -m wal_sink.demo.connect_server PORT NAME=VALUE…`."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

import pyspark

from wal_sink.demo.crash import Driver
from wal_sink.demo.pauses import PAUSES, Pause, pauses
from wal_sink.demo.servers import process

HOME = Path(pyspark.__file__).parent
"""Of Spark, as pip installs it."""

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
    """A server on a port of its own; it answers when the object is made.

    :param folder: for its output and its tables.
    :param where: points at which its Python workers pause to be killed.
    :param settings: of Spark, beside those of all servers.
    :param environment: added to this process's.
    """

    def __init__(
        self,
        folder: Path,
        *where: Pause,
        settings: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.port = process.choose("127.0.0.1")
        tables = {"spark.sql.warehouse.dir": str(folder / "tables")}
        chosen = {**_SETTINGS, **tables, **(settings or {})}
        pairs = [f"{name}={value}" for name, value in chosen.items()]
        super().__init__(
            ["-m", "wal_sink.demo.connect_server", str(self.port), *pairs],
            folder / f"connect-server-{self.port}.log",
            {"SPARK_HOME": str(HOME), PAUSES: pauses(*where), **(environment or {})},
            folder=folder,
        )
        self.reach(self._answers)

    @property
    def url(self) -> str:
        """Where clients connect to."""
        return f"sc://127.0.0.1:{self.port}"

    def _answers(self) -> bool:
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", self.port)) == 0


def main(port: str, settings: list[str]) -> None:
    """Be the server."""
    pairs = [f"spark.connect.grpc.binding.port={port}", *settings]
    confs = [text for pair in pairs for text in ("--conf", pair)]
    submit = str(HOME / "bin" / "spark-submit")
    os.execv(submit, [submit, "--class", _CLASS, *confs, "spark-internal"])  # noqa: S606 - no shell is needed


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
