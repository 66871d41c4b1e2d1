"""Queries of one application. Each SIGKILL of its driver hits every query at a point of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from tests.spark.conftest import ROWS_PER_FILE, write_source
from tests.spark.tables import Table
from wal_sink import status
from wal_sink.demo.cassandra import Node
from wal_sink.demo.pauses import Pause, Point
from wal_sink.wal.location import locate
from wal_sink.wal.store import newest

DURABLE: dict[Point, tuple[bool, bool]] = {
    # What is durable when a query dies there, as (published, checkpointed).
    "write": (False, False),
    "commit called": (False, False),
    "commit returned": (True, False),
    "committed": (True, True),
    "flushing": (True, True),
}


class At(NamedTuple):
    """The point where a query pauses when it is killed."""

    point: Point
    epoch: int


class Victim:
    """One query, with `uuid()` as the key of its rows.

    A row of an attempt that Spark did not keep is therefore an extra row.

    :param name: name of the table.
    :param deaths: the point of each kill that hits the query, by the number of the kill.
    """

    sink: ClassVar[str] = "wal_sink"
    files: ClassVar[int] = 3
    options: ClassVar[dict[str, Any]] = {}
    settings: ClassVar[dict[str, str]] = {}
    """Spark's settings for this query."""

    def __init__(
        self, node: Node, keyspace: str, folder: Path, name: str, deaths: dict[int, At]
    ) -> None:
        self.table = Table(node, keyspace, name)
        self.deaths = deaths
        self.checkpoint = str(folder / name / "checkpoint")
        self._source = write_source(folder / name / "source", self.files)
        self._folder = folder / name

    def config(self, number: int) -> dict[str, Any]:
        """Return the configuration for `tests.spark.app` at start `number`."""
        return {
            "sink": self.sink,
            "source": self._source,
            "checkpoint": self.checkpoint,
            "options": self.options,
            "own_settings": self.settings,
            **self.table.config,
        }

    def pause(self, number: int) -> Pause | None:
        """Return the pause before a kill; None if the kill does not hit the query."""
        at = self.deaths.get(number)
        if at is None:
            return None
        marker = str(self._folder / f"marker-{number}")
        return Pause(point=at.point, table=self.table.name, epoch=at.epoch, marker=marker)

    def is_there(self, number: int) -> bool:
        """Return True if the query pauses at its point."""
        pause = self.pause(number)
        return pause is None or Path(pause.marker).exists()

    def look(self, number: int) -> None:
        """Check which window a kill has hit, and that only checkpointed rows are visible."""
        at = self.deaths[number]
        assert where_it_died(self.checkpoint, at.epoch) == DURABLE[at.point], at
        checkpointed = (locate(self.checkpoint).open_checkpoint().last_commit() + 1) * ROWS_PER_FILE
        extra = [i for i in self.table.ids() if i >= checkpointed]
        assert extra == [], f"{at}: rows are visible that are not checkpointed"

    def check(self) -> None:
        """Check at the end that each row of the source is visible once."""
        assert self.table.ids() == list(range(self.files * ROWS_PER_FILE))


class Repeatedly(Victim):
    """Each kill hits the query: before or after the manifest, and the last kill during the flush."""

    files = 4

    def is_there(self, number: int) -> bool:
        """Wait also until the epochs before are flushed: the next flush then begins with this epoch."""
        at = self.deaths[number]
        flushing = DURABLE[at.point][1]
        return super().is_there(number) and (
            flushing or status(self.checkpoint).flushed == at.epoch - 1
        )

    def look(self, number: int) -> None:
        """Check also that no earlier row is missing, and that no later row is visible."""
        super().look(number)
        visible = self.table.ids()
        whole = self.deaths[number].epoch * ROWS_PER_FILE
        assert visible[:whole] == list(range(whole))
        assert len(visible) < whole + ROWS_PER_FILE
        assert (len(visible) > whole) == (self.deaths[number].point == "flushing")


class Forgetful(Repeatedly):
    """Spark retains one batch only. Nothing that Spark purges is needed after a kill."""

    settings: ClassVar[dict[str, str]] = {"spark.sql.streaming.minBatchesToRetain": "1"}

    def check(self) -> None:
        """Check also that Spark has purged older batches."""
        super().check()
        # Spark does not purge when it repeats the last batch after a kill.
        assert not Path(self.checkpoint, "offsets", "0").exists()


class Updating(Repeatedly):
    """The query runs in output mode update, by `batch_writer`."""

    sink = "batch_writer"


class ByBothApis(Repeatedly):
    """The query uses `batch_writer` and the format in turn. Log and ledger are the same."""

    def config(self, number: int) -> dict[str, Any]:
        sink = "batch_writer" if number % 2 else "wal_sink"
        return {**super().config(number), "sink": sink}


class WithoutRows(Victim):
    """The dead attempt had published rows, and the attempt that Spark keeps has none."""

    files = 2

    def config(self, number: int) -> dict[str, Any]:
        where = f"id < {ROWS_PER_FILE}" if number > min(self.deaths) else "true"
        return {**super().config(number), "where": where}

    def check(self) -> None:
        """No row of the dead attempt is visible."""
        assert self.table.ids() == list(range(ROWS_PER_FILE))


class Read(Victim):
    """The query is killed in the middle of epoch 1's rows.

    By `epochColumn` and the ledger a reader sees whole windows.
    """

    options: ClassVar[dict[str, Any]] = {"epochColumn": "epoch"}

    def __init__(
        self, node: Node, keyspace: str, folder: Path, name: str, deaths: dict[int, At]
    ) -> None:
        super().__init__(node, keyspace, folder, name, deaths)
        node.execute(f"ALTER TABLE {keyspace}.{name} ADD epoch bigint")

    def look(self, number: int) -> None:
        """A slow flusher may have epochs 0 and 1 in one window. A reader then sees no row of either epoch."""
        super().look(number)
        whole = self.whole_epochs()
        assert whole in ([], list(range(ROWS_PER_FILE)))
        assert len(self.table.ids()) > len(whole)

    def check(self) -> None:
        super().check()
        assert self.whole_epochs() == self.table.ids()

    def whole_epochs(self) -> list[int]:
        """Read as docs/cassandra.md says: first the ledger row, then the rows up to its epoch."""
        table = self.table
        ledger = table.cassandra.execute(
            f"SELECT epoch FROM {table.keyspace}.wal_sink_ledger WHERE query_id = %s",
            [locate(self.checkpoint).open_checkpoint().query_id()],
        )
        rows = table.cassandra.execute(f"SELECT id, epoch FROM {table.keyspace}.{table.name}")
        return sorted(row.id for row in rows if row.epoch <= ledger[0].epoch)


class InJob(Victim):
    """Spark jobs write the windows. The query is killed after a task has sent half of a slice."""

    options: ClassVar[dict[str, Any]] = {"flush.distributedAboveBytes": 0}

    def look(self, number: int) -> None:
        """Check also that a task paused, and not the driver, which sends no row of the window."""
        super().look(number)
        assert len(self.table.ids()) > 0


class Control(Victim):
    """The same query by `foreachBatch`, killed between the writes and `commits/N`."""

    sink = "foreachBatch"

    def is_there(self, number: int) -> bool:
        """Wait for the end of the query before a kill that must not hit it.

        A kill in the middle of a batch doubles rows.
        """
        if number in self.deaths:
            return super().is_there(number)
        return Path(self.checkpoint, "commits", str(self.files - 1)).exists()

    def look(self, number: int) -> None:
        """Do nothing: the query has no log."""

    def check(self) -> None:
        """Check that the table has more rows than the source."""
        ids = self.table.ids()
        assert set(ids) == set(range(self.files * ROWS_PER_FILE))
        assert len(ids) == (self.files + len(self.deaths)) * ROWS_PER_FILE


def where_it_died(checkpoint: str, epoch: int) -> tuple[bool, bool]:
    """Return from log and checkpoint whether the epoch is published and checkpointed."""
    location = locate(checkpoint)
    spark = location.open_checkpoint()
    state = newest(location.open_log(spark.query_id()))
    published = state is not None and state.last.epoch >= epoch
    return published, spark.last_commit() >= epoch
