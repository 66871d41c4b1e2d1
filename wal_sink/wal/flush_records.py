"""Reads and writes the records of what is flushed: which epochs are in the target, and as what (rule 17).

The epochs of a window are recorded together. The last one has an object of its own; the newest of these is
the log's mark. The others share an object, which is made before that one and counts up to the mark: in a
backlog of small epochs it costs one sync, or one request, where a record for each cost up to 63.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from wal_sink.errors import CorruptLog
from wal_sink.model import paths
from wal_sink.model.records import FlushedEpoch, FlushedWindow
from wal_sink.wal.objects import LogObjects


class Recorded(NamedTuple):
    """An object of `flushed/`, by its name: of which epochs it has the records."""

    window_end: int
    """The last epoch of the window. That has a record of its own, which makes those of the others count."""
    first: int
    last: int
    """The same as `window_end` in the object of that epoch, else the one before it."""
    path: str

    @property
    def is_mark(self) -> bool:
        """Whether it has the record of the last epoch, which was the log's mark when it was made."""
        return self.last == self.window_end

    def covers(self, epoch: int) -> bool:
        """Whether it has the record of an epoch."""
        return self.first <= epoch <= self.last


class FlushRecords(LogObjects):
    """The records of flushed epochs, as one of the log's targets sees them."""

    def newest_flushed(self, *, fresh: bool = False) -> FlushedEpoch | None:
        """Read the newest record: the flushed mark of the log.

        :param fresh: to conclude from a record that is missing, see `StateBackend.list_fresh`.
        """
        newest = self.newest_flushed_epoch(fresh=fresh)
        if newest is None:
            return None
        path = paths.flushed(newest)
        data = self.read_bytes(path, paths.retained_record(newest))
        return None if data is None else FlushedEpoch.from_json(data, self.where(path))

    def newest_flushed_epoch(self, *, fresh: bool = False) -> int | None:
        """Return the epoch of the newest record; it is not read."""
        names = reversed(self.names(paths.FLUSHED, fresh=fresh))  # which ascend as the epochs do
        parsed = map(paths.parse_flushed, names)
        return next((epoch for epoch in parsed if epoch is not None), None)

    def flushed(self, epoch: int) -> FlushedEpoch | None:
        """Read the record of one epoch; None when it is not flushed, or long ago."""
        found = self._window_of(epoch)
        return found[-1] if found else self.read(FlushedEpoch, paths.retained_record(epoch))

    def flushed_since(self, epoch: int) -> list[FlushedEpoch]:
        """Read the records of all epochs above `epoch`, ascending; each object once."""
        found: dict[int, FlushedEpoch] = {}
        for each in self._counted():
            for record in self.read_recorded(each) if each.last > epoch else ():
                found[record.epoch] = max(found.get(record.epoch, record), record, key=_begun)
        return [found[each] for each in sorted(found) if each > epoch]

    def flushed_epochs(self, *, fresh: bool = False) -> list[int]:
        """List the epochs that have a record, ascending.

        :param fresh: see `newest_flushed`.
        """
        counted = self._counted(fresh=fresh)
        return sorted({epoch for each in counted for epoch in range(each.first, each.last + 1)})

    def record_flushed(self, records: Iterable[FlushedEpoch]) -> None:
        """Record that the epochs of a window are in the target; an object that is there stays.

        The record of the last one comes last, and makes the others count.

        :param records: at least one, contiguous and ascending.
        """
        *others, last = records
        objects = {}
        if others:
            path = paths.flushed_window(others[0].epoch, others[-1].epoch, others[0].base_us)
            objects[self.own(path)] = FlushedWindow(epochs=tuple(others)).to_json()
        objects[self.own(paths.flushed(last.epoch))] = last.to_json()
        self.backend.create_missing(objects)

    def cut_window(self, to: int) -> None:
        """Record the epochs of a window up to `to` as if that were all of it, so that `to` can be the mark.

        Changes nothing while there is a later mark.
        """
        if records := self._window_of(to):
            self.record_flushed(records)

    def recorded_above(self, to: int, copied: Iterable[int]) -> list[tuple[int, list[str]]]:
        """List what `rewind` deletes one after the other: the records of the epochs above `to`, newest first.

        By windows, each with its last epoch, since the mark goes down window by window. The record of the
        last epoch, which makes those of the others count, comes behind them and behind their copies.

        :param copied: epochs of which there may be a copy in `retained/`.
        """
        objects: dict[int, list[str]] = {}
        end_of: dict[int, int] = {}
        for each in self.recorded():
            objects.setdefault(each.window_end, []).append(each.path)
            end_of.update(dict.fromkeys(range(each.first, each.last + 1), each.window_end))
        for epoch in (epoch for epoch in copied if epoch > to):
            of_window = objects.setdefault(end_of.get(epoch, epoch), [])
            of_window.insert(0, paths.retained_record(epoch))
        return [(end, objects[end]) for end in sorted(objects, reverse=True) if end > to]

    def recorded(self, *, fresh: bool = False) -> list[Recorded]:
        """List the objects with records, ascending by the last epoch of their windows.

        :param fresh: see `newest_flushed`.
        """
        found = []
        for path in self.names(paths.FLUSHED, fresh=fresh):
            if (epoch := paths.parse_flushed(path)) is not None:
                found.append(Recorded(epoch, epoch, epoch, path))
            elif (window := paths.parse_flushed_window(path)) is not None:
                found.append(Recorded(window[1] + 1, *window, path))
        return sorted(found)

    def read_recorded(self, each: Recorded) -> tuple[FlushedEpoch, ...]:
        """Read the records of an object; none when it is gone.

        :raises CorruptLog: it has no such records.
        """
        found: tuple[FlushedEpoch, ...]
        if each.is_mark:
            record = self.read(FlushedEpoch, each.path)
            found = () if record is None else (record,)
        else:
            window = self.read(FlushedWindow, each.path)
            found = () if window is None else window.epochs
        if found and [record.epoch for record in found] != [*range(each.first, each.last + 1)]:
            raise CorruptLog(
                f"{self.where(each.path)} holds the records of other epochs",
                "Restore the file from a copy; records must not be renamed.",
            )
        return found

    def _counted(self, *, fresh: bool = False) -> list[Recorded]:
        """List the objects whose records count: those of windows up to the mark."""
        listed = self.recorded(fresh=fresh)
        mark = max((each.last for each in listed if each.is_mark), default=-1)
        return [each for each in listed if each.window_end <= mark]

    def _window_of(self, epoch: int) -> list[FlushedEpoch]:
        """Read the records of an epoch and of those that precede it in its object; none without a record.

        Several objects have one after a rewind, if a flusher that stood still has recorded its window late,
        or where a version that knows of no windows has made again what a power loss took. The record of the
        epoch as it was begun last counts.
        """
        read = [self.read_recorded(each) for each in self._counted() if each.covers(epoch)]
        found = [[record for record in records if record.epoch <= epoch] for records in read]
        return max(filter(None, found), key=lambda each: (_begun(each[-1]), len(each)), default=[])


def _begun(record: FlushedEpoch) -> int:
    """Return what tells which of two records of one epoch is the newer one: timestamps grow (rule 14)."""
    return record.base_us
