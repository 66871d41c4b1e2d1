"""What the parts of the benchmark share: server, session, folder, and the runs so far."""

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
"""Of a contender; the others go on."""


class Bench:
    """One benchmark.

    :param folder: for checkpoints and logs.
    :param plots: folder for plots; it is made when there is one.
    :param say: is told what happens.
    :param with_connector: False leaves the connector out, whose jars are a download.
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
        """Runs that failed, or whose rows were not complete."""
        self.plotted: list[Path] = []
        self._with_connector = with_connector
        self._numbers = itertools.count()

    @functools.cached_property
    def spark(self) -> SparkSession:
        """The session, made when it is first asked for."""
        sinks = session.sink_jars() if self._with_connector else []
        return session.open_shared(self.server, [*self._jars, *sinks])

    @functools.cached_property
    def _jars(self) -> list[Path]:
        return session.connector_jars() if self._with_connector else []

    def close(self) -> None:
        """Stop the session, if there is one."""
        if "spark" in self.__dict__:
            self.spark.stop()

    def can(self, contender: Contender) -> bool:
        """Return True if what it needs is there."""
        return bool(self._jars) or not isinstance(contender, Connector)

    def new_folder(self) -> Path:
        """Return a folder that does not exist yet."""
        return self.folder / str(next(self._numbers))

    def stream(self, contender: Contender, source: Source, number: int) -> Run | None:
        """Let a contender stream a source; None when it is left out, since its rows are wrong.

        :param number: of the round; -1 for one that only warms up.
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
        """Take a run into a new table, and check that.

        :param check: raises `RowsWrong`; None: all rows of the source are there.
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
        """Return True if a table is complete; when not, the run does not count, and the exit code says so."""
        try:
            check()
        except RowsWrong as error:
            self.wrong.append(f"{contender}: {error}")
            self.say(f"  {contender} cannot be measured: {error}")
            return False
        return True
