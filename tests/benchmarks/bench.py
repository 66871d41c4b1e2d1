"""The state that all parts of the benchmark share."""

from __future__ import annotations

import functools
import itertools
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from tests.benchmarks import session
from tests.benchmarks.contenders.connector import Connector
from tests.benchmarks.contenders.counting import Counting
from tests.benchmarks.contenders.job import Contender, Job
from tests.benchmarks.rows import Source
from tests.benchmarks.run import Run, Taken, take
from tests.benchmarks.server import Server
from tests.benchmarks.sizes import Sizes
from tests.benchmarks.table import RowsWrong, Table
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
    :param plots: the folder for plots, which is made if there are any.
    :param say: prints a line of progress.
    :param with_connector: False leaves out the connector, whose jars are downloaded.
    """

    def __init__(
        self,
        sizes: Sizes,
        server: Server,
        folder: Path,
        plots: Path,
        say: Callable[[str], None],
        *,
        with_connector: bool = True,
    ) -> None:
        self.sizes, self.server, self.say = sizes, server, say
        self.folder, self.plots = folder, plots
        self.runs: list[Run] = []
        self.wrong: list[str] = []
        """Runs that failed or whose rows are wrong."""
        self.plotted: list[Path] = []
        self._with_connector = with_connector
        self._numbers = itertools.count()

    @functools.cached_property
    def spark(self) -> SparkSession:
        """The session, which is made at the first use."""
        sinks = session.sink_jars() if self._with_connector else []
        return session.open_shared(self.server, [*self._jars, *sinks])

    @functools.cached_property
    def _jars(self) -> list[Path]:
        return session.connector_jars() if self._with_connector else []

    def close(self) -> None:
        """Stop the session if it was made."""
        if "spark" in self.__dict__:
            self.spark.stop()

    def can(self, contender: Contender) -> bool:
        """Return True if the jars of a contender are there."""
        return bool(self._jars) or not isinstance(contender, Connector)

    def new_folder(self) -> Path:
        """Return the path of a folder that does not exist."""
        return self.folder / str(next(self._numbers))

    def stream(self, contender: Contender, source: Source, number: int) -> Run | None:
        """Let a contender stream a source; return None if it failed or its rows are wrong.

        :param number: the number of the round; -1 for a round that only warms up.
        """
        epochs = self.sizes.micro_batches
        source.files(epochs)
        checkpoint = self.new_folder()

        def job(table: Table) -> Job:
            return Job(self.spark, source, epochs, checkpoint, table)

        written = self.write(
            contender.name,
            source,
            number,
            lambda table: contender.run(job(table)),
            prepare=lambda table: contender.prepare(job(table)),
            check=(lambda _: None) if isinstance(contender, Counting) else None,
        )
        shutil.rmtree(checkpoint, ignore_errors=True)
        return written

    def write(
        self,
        contender: str,
        source: Source,
        number: int,
        what: Callable[[Table], Taken],
        *,
        prepare: Callable[[Table], None] = lambda _table: None,
        check: Callable[[Table], None] | None = None,
    ) -> Run | None:
        """Run a contender on a new table, and check the table.

        :param check: raises `RowsWrong`; None checks that all rows of the source are there.
        """
        table = Table(self.server, source.columns)
        try:
            prepare(table)
            run = take(
                self.server,
                lambda: what(table),
                contender=contender,
                source=source,
                number=number,
            )
        except _FAILURES as error:
            self.say(f"  {contender} failed: {error}")
            if number >= 0:
                self.wrong.append(f"{contender}, {source.shape}: {type(error).__name__}")
            return None
        if not self.complete(contender, lambda: check(table) if check else table.check(source)):
            return None
        table.drop()
        if number < 0:
            return run
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
