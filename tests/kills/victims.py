"""Queries of one application: each SIGKILL of its driver hits them all, each in a window of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from tests.spark.conftest import ROWS_PER_FILE, write_source
from tests.spark.tables import Table
from wal_sink import status
from wal_sink.demo.pauses import Pause, Point
from wal_sink.demo.servers.cassandra import Node
from wal_sink.wal.location import locate
from wal_sink.wal.states import newest

DURABLE: dict[Point, tuple[bool, bool]] = {
    # What is durable when a query dies there, as (published, checkpointed).
    "write": (False, False),
    "commit called": (False, False),
    "commit returned": (True, False),
    "committed": (True, True),
    "flushing": (True, True),
}


class At(NamedTuple):
    """Where a query pauses when it is killed."""

    point: Point
    epoch: int


class Victim:
    """One query; the key of its rows is `uuid()`.

    So whatever an attempt that Spark did not keep had written would be an extra row.

    :param name: of its table.
    :param deaths: by the number of the kill; the query is not hurt by the others.
    """

    sink: ClassVar[str] = "wal_sink"
    files: ClassVar[int] = 3
    options: ClassVar[dict[str, Any]] = {}
    settings: ClassVar[dict[str, str]] = {}
    """Of Spark, for this query alone."""

    def __init__(
        self, node: Node, keyspace: str, folder: Path, name: str, deaths: dict[int, At]
    ) -> None:
        self.table = Table(node, keyspace, name)
        self.deaths = deaths
        self.checkpoint = str(folder / name / "checkpoint")
        self._source = write_source(folder / name / "source", self.files)
        self._folder = folder / name

    def config(self, number: int) -> dict[str, Any]:
        """Return what `tests.spark.app` has to know of it at its start `number`."""
        return {
            "sink": self.sink,
            "source": self._source,
            "checkpoint": self.checkpoint,
            "options": self.options,
            "own_settings": self.settings,
            **self.table.config,
        }

    def pause(self, number: int) -> Pause | None:
        """Return where it is to pause."""
        at = self.deaths.get(number)
        if at is None:
            return None
        marker = str(self._folder / f"marker-{number}")
        return Pause(point=at.point, table=self.table.name, epoch=at.epoch, marker=marker)

    def is_there(self, number: int) -> bool:
        """Return True if it stands where it is to be killed."""
        pause = self.pause(number)
        return pause is None or Path(pause.marker).exists()

    def look(self, number: int) -> None:
        """After a kill that hit it: see which window that was, and that what is visible is checkpointed."""
        at = self.deaths[number]
        assert where_it_died(self.checkpoint, at.epoch) == DURABLE[at.point], at
        checkpointed = (locate(self.checkpoint).open_checkpoint().last_commit() + 1) * ROWS_PER_FILE
        extra = [i for i in self.table.ids() if i >= checkpointed]
        assert extra == [], f"{at}: rows are visible that are not checkpointed"

    def check(self) -> None:
        """In the end: each row of the source is there once."""
        assert self.table.ids() == list(range(self.files * ROWS_PER_FILE))


class Repeatedly(Victim):
    """It dies at each kill; before the manifest or after it, at last in the flush."""

    files = 4

    def is_there(self, number: int) -> bool:
        """Wait for what went before, too, so that the next flush begins with the epoch of this death."""
        at = self.deaths[number]
        flushing = DURABLE[at.point][1]
        return super().is_there(number) and (
            flushing or status(self.checkpoint).flushed == at.epoch - 1
        )

    def look(self, number: int) -> None:
        """See also that nothing is missing, and that what is flushed later is not there yet."""
        super().look(number)
        visible = self.table.ids()
        whole = self.deaths[number].epoch * ROWS_PER_FILE
        assert visible[:whole] == list(range(whole))
        assert len(visible) < whole + ROWS_PER_FILE
        assert (len(visible) > whole) == (self.deaths[number].point == "flushing")


class Forgetful(Repeatedly):
    """The same where Spark retains one batch only: what it purges is not needed after any death."""

    settings: ClassVar[dict[str, str]] = {
        "spark.sql.streaming.minBatchesToRetain": "1",
        "spark.sql.streaming.asyncLogPurge.enabled": "false",  # a query may end before that thread
    }

    def check(self) -> None:
        """See also that Spark has purged what lies before that batch."""
        super().check()
        names = [path.name for path in Path(self.checkpoint, "offsets").iterdir()]
        assert min(int(name) for name in names if name.isdecimal()) >= self.files - 2


class Updating(Repeatedly):
    """The same in output mode update, by `batch_writer`."""

    sink = "batch_writer"


class ByBothApis(Repeatedly):
    """It comes by `batch_writer` and by the format in turn: log and ledger are the same."""

    def config(self, number: int) -> dict[str, Any]:
        """Change the API at each start."""
        sink = "batch_writer" if number % 2 else "wal_sink"
        return {**super().config(number), "sink": sink}


class WithoutRows(Victim):
    """The attempt that died had published rows; the one that Spark keeps has none."""

    files = 2

    def config(self, number: int) -> dict[str, Any]:
        """Compute other rows after the death."""
        where = f"id < {ROWS_PER_FILE}" if number > min(self.deaths) else "true"
        return {**super().config(number), "where": where}

    def check(self) -> None:
        """No row of the dead attempt is there."""
        assert self.table.ids() == list(range(ROWS_PER_FILE))


class Read(Victim):
    """Killed in the middle of epoch 1's rows: by `epochColumn` and the ledger a reader sees whole windows."""

    options: ClassVar[dict[str, Any]] = {"epochColumn": "epoch"}

    def __init__(
        self, node: Node, keyspace: str, folder: Path, name: str, deaths: dict[int, At]
    ) -> None:
        super().__init__(node, keyspace, folder, name, deaths)
        node.execute(f"ALTER TABLE {keyspace}.{name} ADD epoch bigint")

    def look(self, number: int) -> None:
        """A slow flusher has epochs 0 and 1 in one window: then a reader sees none of both."""
        super().look(number)
        whole = self.whole_epochs()
        assert whole in ([], list(range(ROWS_PER_FILE)))
        assert len(self.table.ids()) > len(whole)

    def check(self) -> None:
        super().check()
        assert self.whole_epochs() == self.table.ids()

    def whole_epochs(self) -> list[int]:
        """Read as docs/cassandra.md says: the ledger first, then the rows up to its mark."""
        table = self.table
        ledger = table.cassandra.execute(
            f"SELECT epoch FROM {table.keyspace}.wal_sink_ledger WHERE query_id = %s",
            [locate(self.checkpoint).open_checkpoint().query_id()],
        )
        rows = table.cassandra.execute(f"SELECT id, epoch FROM {table.keyspace}.{table.name}")
        return sorted(row.id for row in rows if row.epoch <= ledger[0].epoch)


class InJob(Victim):
    """Its windows are written by Spark jobs; it dies with half of a slice sent by a task."""

    options: ClassVar[dict[str, Any]] = {"flush.distributedAboveBytes": 0}

    def look(self, number: int) -> None:
        """See also that a task paused, and not the driver, which sends no row of the window."""
        super().look(number)
        assert len(self.table.ids()) > 0


class Control(Victim):
    """The same by `foreachBatch`: killed between the writes and `commits/N`."""

    sink = "foreachBatch"

    def is_there(self, number: int) -> bool:
        """Be at its end before a kill that is not its own: each one in mid-batch doubles rows."""
        if number in self.deaths:
            return super().is_there(number)
        return Path(self.checkpoint, "commits", str(self.files - 1)).exists()

    def look(self, number: int) -> None:
        """There is no log to look at."""

    def check(self) -> None:
        """It has more rows than the source."""
        ids = self.table.ids()
        assert set(ids) == set(range(self.files * ROWS_PER_FILE))
        assert len(ids) == (self.files + len(self.deaths)) * ROWS_PER_FILE


def where_it_died(checkpoint: str, epoch: int) -> tuple[bool, bool]:
    """Read from log and checkpoint which window was hit."""
    location = locate(checkpoint)
    spark = location.open_checkpoint()
    state = newest(location.open_log(spark.query_id()))
    published = state is not None and state.last.epoch >= epoch
    return published, spark.last_commit() >= epoch
