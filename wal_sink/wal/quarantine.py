"""The rows of a log that its target does not have because it refused them (rule 24).

Each object in `quarantine/` is an Arrow file of refused rows, see `wal.segment`. Its name says all that is
counted: epoch, write timestamp of its first row, number of rows. Each target has its own, as each has its
own timestamps. A note beside it, whose name says which rows, says that these have left.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

import pyarrow as pa

from wal_sink.errors import CorruptLog
from wal_sink.model import paths
from wal_sink.model.ledger import BegunEpoch
from wal_sink.model.manifest import SegmentRef
from wal_sink.model.paths import EntryName, ReleasedName
from wal_sink.model.records import FlushedEpoch, Released
from wal_sink.wal.log import Log


class Entry(NamedTuple):
    """Refused rows of one segment; row i has the write timestamp `name.us + i`."""

    name: EntryName
    left: tuple[int, ...]
    """The rows that are still in quarantine, counted from 0, ascending."""

    @property
    def path(self) -> str:
        """In a log of one target."""
        return paths.QUARANTINED.path(self.name)


def keep(log: Log, epoch: int, segment: SegmentRef, first_us: int) -> None:
    """Copy a segment of refused rows into quarantine, once.

    :raises FileNotFoundError: it is gone.
    """
    to = log.stored_path(paths.quarantined(epoch, first_us, segment.rows, segment.path))
    with contextlib.suppress(FileExistsError):
        log.backend.copy(segment.path, to)


def keep_row(log: Log, epoch: int, us: int, segment: str, row: pa.RecordBatch) -> None:
    """Put one row into quarantine, once; from here on a flush passes over it.

    :param us: its write timestamp.
    :param segment: path of the one that it comes from.
    :param row: as `wal.segment` has it.
    """
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, row.schema) as writer:
        writer.write_batch(row)
    path = log.stored_path(paths.quarantined(epoch, us, 1, segment))
    with contextlib.suppress(FileExistsError):
        log.backend.create(path, sink.getvalue().to_pybytes())


def passed_us(log: Log, epochs: Collection[int], first_us: int, last_us: int) -> frozenset[int]:
    """List the write timestamps of rows of some epochs that are, or were, in quarantine.

    Of other epochs there can be entries with these timestamps, where an operator has brought timestamps back
    from the future.

    :param first_us: and `last_us`: between which they lie.
    """
    found: set[int] = set()
    for name in log.names(paths.QUARANTINED.folder):
        note = paths.RELEASED.parse(name)
        entry = note.entry if note else paths.QUARANTINED.parse(name)
        if entry is not None and entry.epoch in epochs:
            end_us = min(entry.us + entry.rows, last_us + 1)
            found.update(range(max(entry.us, first_us), end_us))
    return frozenset(found)


def entries(log: Log) -> list[Entry]:
    """List what is in quarantine, in the order of the write timestamps; opens no file."""
    found = []
    for name, gone in _of(log.names(paths.QUARANTINED.folder)):
        if left := tuple(i for i in range(name.rows) if i not in gone):
            found.append(Entry(name, left))
    return sorted(found, key=lambda entry: (entry.name.epoch, entry.name.us))


def quarantined_rows(log: Log) -> int:
    """Count the rows in quarantine; as fast for an entry of a million as for one of a single row."""
    listed = log.names(paths.QUARANTINED.folder)
    return sum(name.rows - len(gone) for name, gone in _of(listed))


def left_entries(log: Log, upto: int) -> list[str]:
    """List what is left of entries that all rows have left, of epochs up to `upto`: entries, then notes.

    An entry that is there without its notes would say that its rows are in quarantine.
    """
    names = log.names(paths.QUARANTINED.folder)
    whole = {name for name, gone in _of(names) if len(gone) < name.rows}
    found = []
    for path in names:
        note = paths.RELEASED.parse(path)
        entry = note.entry if note else paths.QUARANTINED.parse(path)
        if entry is not None and entry.epoch <= upto and entry not in whole:
            found.append((note is not None, path))
    return [path for _, path in sorted(found)]


def _of(listed: Sequence[str]) -> Iterator[tuple[EntryName, Collection[int]]]:
    """Yield the name of each entry, and which of its rows have left."""
    gone: dict[EntryName, set[int]] = {}
    for path in listed:
        if note := paths.RELEASED.parse(path):
            gone.setdefault(note.entry, set()).update(range(note.first, note.first + note.length))
    for path in listed:
        if name := paths.QUARANTINED.parse(path):
            yield name, gone.get(name, ())


class Listing:
    """What the log lists of entries, and of rewinds, at one moment; as fresh as what follows needs."""

    def __init__(self, log: Log) -> None:
        self._gone = dict(_of(log.names(paths.QUARANTINED.folder, fresh=True)))
        self._rewinds = log.rewinds(fresh=True)

    def has(self, name: EntryName, row: int) -> bool:
        """Whether a row of an entry is in quarantine."""
        return name in self._gone and row not in self._gone[name]

    def is_older(self, name: EntryName, flushed: BegunEpoch | FlushedEpoch) -> bool:
        """Whether an entry is of a flush of its epoch before this one, and a rewind was between them.

        One of the future is, too: a rewind has left its timestamps behind.
        """
        future = bool(flushed.manifest) and name.us > flushed.last_us
        return future or _is_older(name, flushed, self._rewinds)


def older_entries(log: Log, upto: int) -> list[str]:
    """List the entries that a rewind has left which died: their epochs were flushed again since.

    :param upto: the epoch up to which all are flushed, as the ledger row says.
    """
    rewinds = log.rewinds()
    found = []
    for path in log.names(paths.QUARANTINED.folder) if rewinds else ():
        name = paths.QUARANTINED.parse(path)
        if name is None or name.epoch > upto or not _rewound(name, rewinds):
            continue
        flushed = log.flushed(name.epoch)
        if flushed is not None and _is_older(name, flushed, rewinds):
            found.append(path)
    return found


def _rewound(name: EntryName, rewinds: Sequence[tuple[int, int]]) -> list[int]:
    """Return the highest timestamps used before the rewinds that take the flush of an entry back."""
    return [us for to, us in rewinds if to < name.epoch and name.us <= us]


def _is_older(
    name: EntryName, flushed: BegunEpoch | FlushedEpoch, rewinds: Sequence[tuple[int, int]]
) -> bool:
    """See `Listing.is_older`. An epoch without a manifest was given up since, not flushed again."""
    return (
        bool(flushed.manifest)
        and min(_rewound(name, rewinds), default=flushed.base_us) < flushed.base_us
    )


def read_entry(log: Log, entry: Entry) -> pa.Table | None:
    """Read the rows of an entry, those that have left included; None: all have, since it was listed.

    :return: columns as in `wal.segment`.
    :raises CorruptLog: it cannot be read, or has another number of rows.
    """
    try:
        data = log.backend.read(log.stored_path(entry.path))
    except FileNotFoundError:
        return None
    try:
        found = pa.ipc.open_file(pa.BufferReader(data)).read_all()
    except pa.ArrowException as error:
        raise CorruptLog(f"{log.url_of(entry.path)} cannot be read: {error}", _RESTORE) from error
    if found.num_rows != entry.name.rows:
        raise CorruptLog(
            f"{log.url_of(entry.path)} has {found.num_rows} rows, and its name says {entry.name.rows}",
            _RESTORE,
        )
    return found


_RESTORE = (
    "Restore it from a copy of the log; it has the only copy of rows that the target refused."
)


def kept_again(log: Log, above: int, but: Collection[int]) -> list[Entry]:
    """List the entries of epochs that are flushed again, which keeps their rows again.

    :param above: the epochs after this one are flushed again.
    :param but: those of which no flush keeps the rows again.
    """
    return [e for e in entries(log) if e.name.epoch > above and e.name.epoch not in but]


def forget(log: Log, kept: Sequence[Entry], us: int, by: str, at_us: int) -> None:
    """Delete entries whose rows are kept again, with newer timestamps.

    :param us: the highest write timestamp that was used so far, microseconds since 1970.
    :param by: who does it, and `at_us` when.
    """
    for entry in kept:
        if entry.name.us <= us:  # else, after a lost row, it may be the same name
            release(log, entry, entry.left, by, at_us)
    log.delete(entry.path for entry in kept)


def release(log: Log, entry: Entry, rows: Sequence[int], by: str, at_us: int) -> None:
    """Note that rows of an entry have left the quarantine; delete the entry when all have.

    :param rows: counted from 0, ascending.
    """
    for first, number in runs(rows):
        note = Released(by=by, at_us=at_us)
        log.create(paths.RELEASED, ReleasedName(*entry.name, first, number), note)
    if set(entry.left) <= set(rows):
        log.delete([entry.path])


def runs(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the first one and the length of each run of consecutive numbers.

    :param numbers: ascending.
    """
    for _, run in groupby(enumerate(numbers), key=lambda item: item[1] - item[0]):
        first, *others = [number for _, number in run]
        yield first, 1 + len(others)
