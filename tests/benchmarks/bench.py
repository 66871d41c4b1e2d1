"""The state that all parts of the benchmark share, and the measurement of a run."""

from __future__ import annotations

import functools
import itertools
import os
import subprocess
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from tests.benchmarks import cpu, session
from tests.benchmarks.contenders.contender import Store
from tests.benchmarks.rows import Source
from tests.benchmarks.run import Run, Taken
from tests.benchmarks.server import Server
from tests.benchmarks.sizes import Sizes
from tests.benchmarks.table import RowsWrong
from wal_sink.demo.server import Child
from wal_sink.errors import WalSinkError

_FAILURES = (
    StreamingQueryException,
    WalSinkError,
    RuntimeError,
    subprocess.CalledProcessError,
)
"""Errors of a contender, after which the other contenders continue."""


class Bench:
    """A benchmark.

    :param folder: the folder for checkpoints and logs.
    :param say: prints a line of progress.
    :param parts: the parts to run, for which jars of other sinks are downloaded.
    """

    def __init__(
        self,
        sizes: Sizes,
        server: Server,
        folder: Path,
        say: Callable[[str], None],
        parts: Collection[str],
    ) -> None:
        self.sizes, self.server, self.say = sizes, server, say
        self.folder = folder
        self.runs: list[Run] = []
        self.wrong: list[str] = []
        """Runs that failed or whose rows are wrong."""
        self._parts = {*parts}
        self._numbers = itertools.count()

    @functools.cached_property
    def spark(self) -> SparkSession:
        """The session, which is made at the first use."""
        jars: list[Path] = []
        if self._parts & {"grouped", "scattered"}:
            jars += session.connector_jars()
        if self._parts & {"jdbc", "mariadb", "kafka"}:
            jars += session.sink_jars()
        return session.open_shared(self.server, jars)

    def close(self) -> None:
        """Stop the session if it was made."""
        if "spark" in self.__dict__:
            self.spark.stop()

    def new_name(self, prefix: str) -> str:
        """Return a name that no other call returns."""
        return f"{prefix}_{next(self._numbers)}"

    def new_folder(self) -> Path:
        """Return the path of a folder that does not exist."""
        return self.folder / self.new_name("run")

    def measure(
        self,
        contender: str,
        store: Store,
        source: Source,
        number: int,
        prepare: Callable[[Any], Callable[[], Taken]],
        *,
        check: bool = True,
    ) -> Run | None:
        """Let a contender write a source to a new table, measure the CPU, and check the table.

        :param number: the number of the round; -1 for a round that only warms up.
        :param prepare: returns the function that is measured, for the new table.
        :return: the result; None if the contender failed or its rows are wrong.
        """
        table = store.make()
        try:
            write = prepare(table)
            client_s, server_s = self._client_s(store.server), _server_s(store.server)
            taken = write()
            run = Run(
                contender=contender,
                shape=store.title,
                rows=source.rows,
                round=number,
                seconds=taken.seconds,
                client_cpu_s=self._client_s(store.server) - client_s
                if taken.client_cpu_s is None
                else taken.client_cpu_s,
                server_cpu_s=_server_s(store.server) - server_s,
            )
        except _FAILURES as error:
            self.say(f"  {contender} failed: {error}")
            if number >= 0:
                self.wrong.append(f"{contender}, {store.title}: {type(error).__name__}")
            return None
        if check and not self.complete(contender, lambda: store.check(table, source)):
            return None
        store.drop(table)
        if number >= 0:
            self.runs.append(run)
            self.say(
                f"  {contender}: {run.rows_per_s:,.0f} rows/s, CPU {run.client_us:.1f} us a row and"
                f" {run.server_us:.1f} of the server"
            )
        return run

    def complete(self, contender: str, check: Callable[[], None]) -> bool:
        """Return True if a check passes; otherwise record the failure."""
        try:
            check()
        except RowsWrong as error:
            self.wrong.append(f"{contender}: {error}")
            self.say(f"  {contender} cannot be measured: {error}")
            return False
        return True

    def _client_s(self, server: Child | None) -> float:
        """Return the CPU seconds of all processes except the servers."""
        servers = {self.server, *([server] if server else [])}
        return cpu.of_tree(os.getpid()) - sum(_server_s(item) for item in servers)


def _server_s(server: Child | None) -> float:
    return cpu.of_tree(server.pid) if server else 0
