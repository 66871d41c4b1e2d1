"""Where the demo kills the driver, and what its death leaves."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, NamedTuple

import pyarrow as pa

from wal_sink.demo.pauses import Pause, Point
from wal_sink.demo.queries import CONTROL, FLIGHTS, TENTH, Query
from wal_sink.demo.stores import Stores
from wal_sink.model import paths
from wal_sink.model.manifest import Manifest
from wal_sink.wal.location import locate
from wal_sink.wal.store import LogStore

KillWindow = Literal[
    "while a task writes",
    "between manifest and commits/N",
    "while an epoch is being flushed",
    "none of them",
]
_MAGIC = 8  # bytes before the stream inside an Arrow IPC file


class Kill(NamedTuple):
    """One SIGKILL: each of the three queries pauses at a point of its own until it comes."""

    window: KillWindow
    twelfth: int
    """In which twelfth of all epochs it comes, from 0."""
    point: Point
    control: Point
    """`foreachBatch` has two windows only: while it writes, and before `commits/N`."""

    def epoch(self, epochs: int) -> int:
        """Return the epoch in which it comes, of `epochs`."""
        return self.twelfth * epochs // 12

    def pauses(self, folder: Path, epoch: int) -> list[Pause]:
        """Return where each query pauses."""
        points = {FLIGHTS.table: self.point, TENTH.table: self.point, CONTROL.table: self.control}
        return [
            Pause(
                point=point,
                table=table,
                epoch=epoch,
                marker=str(folder / f"reached-{epoch}-{table}"),
            )
            for table, point in points.items()
        ]


KILLS = (
    Kill("while a task writes", 2, "write", "write"),
    Kill("between manifest and commits/N", 5, "commit returned", "commit returned"),
    Kill("while an epoch is being flushed", 8, "flushing", "write"),
)


def window_hit(folder: Path, query: Query, epoch: int, stores: Stores) -> KillWindow:
    """Read from checkpoint, log and ledger how far `epoch` was when the driver died.

    The rows of a small segment are in the memory of its task until the manifest has them. So an epoch that
    Spark has planned, and that has no manifest, counts as hit while a task wrote.
    """
    location = locate(str(folder / query.checkpoint))
    checkpoint = location.open_checkpoint()
    query_id = checkpoint.query_id()
    store = location.open_log(query_id)
    if checkpoint.last_commit() >= epoch:
        row = stores.ledger(query_id)
        is_flushed = row is not None and row.epoch >= epoch
        return "none of them" if is_flushed else "while an epoch is being flushed"
    if _manifests(store, epoch):
        return "between manifest and commits/N"
    return "none of them" if checkpoint.offsets(epoch) is None else "while a task writes"


def discarded_rows(folder: Path, query: Query) -> int:
    """Count the rows in files and manifests that are not checkpointed: Spark computes them again."""
    location = locate(str(folder / query.checkpoint))
    checkpoint = location.open_checkpoint()
    store = location.open_log(checkpoint.query_id())
    epoch = checkpoint.last_commit() + 1
    refs = [ref for manifest in _manifests(store, epoch) for ref in manifest.segments]
    inline = sum(ref.rows for ref in refs if not ref.is_file)
    return inline + sum(map(_readable_rows, _segment_files(store, epoch)))


def _manifests(store: LogStore, epoch: int) -> list[Manifest]:
    """Read the manifests of an epoch, of all runs."""
    names = ((path, paths.MANIFEST.parse(path)) for path in store.list(paths.MANIFEST.folder))
    wanted = [path for path, name in names if name is not None and name.epoch == epoch]
    files = ((path, store.read(path)) for path in wanted)
    return [Manifest.from_file(data, path).manifest for path, data in files if data is not None]


def _segment_files(store: LogStore, epoch: int) -> list[Path]:
    """List the segments, and the files that a dead task did not finish."""
    folder = Path(store.url.removeprefix("file://")) / paths.segment_folder(epoch)
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _readable_rows(file: Path) -> int:
    """Count the rows of a segment up to where a dead task stopped writing.

    Such a file has no footer, so it is read as the Arrow stream that it contains.
    """
    rows = 0
    with file.open("rb") as content:
        content.seek(_MAGIC)
        try:
            for batch in pa.ipc.open_stream(content):
                rows += batch.num_rows
        except (pa.ArrowInvalid, OSError, EOFError):
            return rows
    return rows
