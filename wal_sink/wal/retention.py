"""Keeps flushed epochs apart while `wal.retention` lasts, and says which may be trimmed (rule 18).

A pass of a flusher lists `manifests/` and `flushed/`, and a commit lists `flushed/`. With a long retention
they would have a name for each epoch of that time. So the manifest of a flushed epoch moves to `retained/`,
with a copy of its record, since only the newest records stay in `flushed/`. `Log` finds both in either
place.

The copies are durable before anything is deleted. A flusher that dies in between leaves the manifest where
it was; then the epoch is trimmed from there, when its time is over.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import takewhile

from wal_sink.model import paths
from wal_sink.model.ledger import BegunEpoch
from wal_sink.model.manifest import Attempt, manifest_digest
from wal_sink.model.records import FlushedEpoch
from wal_sink.wal.log import Log
from wal_sink.wal.targets import flushed_limits


class RetainedEpochs:
    """The epochs that one flusher knows to be retained: listed once, and again now and then.

    What another flusher has retained since is trimmed by that one, or after the next listing.
    """

    def __init__(self, log: Log) -> None:
        self._log = log
        self._paths: dict[int, list[str]] | None = None

    def look(self) -> None:
        """List them anew."""
        self._paths = retained_paths(self._log)

    def __iter__(self) -> Iterator[int]:
        return iter(self._known())

    def upto(self, epoch: int) -> tuple[int, ...]:
        """Return those up to an epoch, ascending."""
        return tuple(takewhile(lambda each: each <= epoch, self._known()))

    def paths_of(self, epochs: Iterable[int]) -> list[str]:
        """Return the objects of epochs."""
        return [path for epoch in epochs for path in self._known().get(epoch, ())]

    def note_deleted(self, epochs: Iterable[int]) -> None:
        """Note that epochs are deleted."""
        for epoch in epochs:
            self._known().pop(epoch, None)

    def retain(self, begun: Sequence[BegunEpoch], records: Sequence[FlushedEpoch]) -> None:
        """Move flushed epochs, whose records are durable; see `retain`."""
        known = self._known()
        for path in retain(self._log, begun, records):
            epoch = paths.retained_epoch(path)
            assert epoch is not None
            known.setdefault(epoch, []).append(path)

    def _known(self) -> dict[int, list[str]]:
        if self._paths is None:
            self.look()
            assert self._paths is not None
        return self._paths


def retained_paths(log: Log, *, fresh: bool = False) -> dict[int, list[str]]:
    """List the paths of what is retained, by epoch, ascending.

    :param fresh: to conclude from what is missing, see `StateBackend.list_fresh`.
    """
    found: dict[int, list[str]] = {}
    for path in log.names(paths.RETAINED_RECORD.folder, fresh=fresh):
        if (epoch := paths.retained_epoch(path)) is not None:
            found.setdefault(epoch, []).append(path)
    return found


def has_manifest(log: Log, attempt: Attempt) -> bool:
    """Whether the manifest of an attempt is there, retained or not; it is not read."""
    for path in (paths.MANIFEST.path(attempt), paths.RETAINED_MANIFEST.path(attempt)):
        with contextlib.suppress(FileNotFoundError):
            return log.backend.size(path) > 0
    return False


def all_records(log: Log) -> dict[int, FlushedEpoch]:
    """Read the records of all epochs, retained ones too, by epoch, ascending."""
    found = {record.epoch: record for record in log.flushed_since(-1)}
    for epoch in retained_paths(log).keys() - found:
        if (record := log.read(paths.RETAINED_RECORD, epoch)) is not None:
            found[epoch] = record
    return dict(sorted(found.items()))


def retain(log: Log, begun: Sequence[BegunEpoch], records: Sequence[FlushedEpoch]) -> list[str]:
    """Move flushed epochs to `retained/`; return the paths of the copies.

    Moves the manifest that was flushed, by its digest, and no other one: `trim` compares those.

    :param records: of the same epochs; they are durable.
    """
    copies: dict[str, bytes] = {}
    moved = []
    for each, record in zip(begun, records, strict=True):
        attempt = Attempt(each.epoch, each.generation)
        data = log.read_bytes(paths.MANIFEST.path(attempt)) if record.manifest else None
        if data is not None and manifest_digest(data) == each.digest:
            copies[paths.RETAINED_MANIFEST.path(attempt)] = data
            moved.append(paths.MANIFEST.path(attempt))
        copies[paths.RETAINED_RECORD.path(each.epoch)] = record.to_json()
    log.backend.create_missing(copies)
    # A flusher that stood still over a rewind may have left an older record, or be this one. It looks when
    # there are copies, since those that flush again may die before theirs; at each moment there is one.
    for counts in log.flushed_since(records[0].epoch - 1, fresh=True):
        path = paths.RETAINED_RECORD.path(counts.epoch)
        if path in copies and log.read_bytes(path) not in (None, counts.to_json()):
            log.backend.replace(path, counts.to_json())
    log.delete(moved)
    return list(copies)


def put_back(log: Log, to: int) -> None:
    """Put the manifests of retained epochs above `to` back, for `rewind`.

    Can be repeated at any point: what is put back twice is the same, to the byte. The copies stay until the
    manifests have second names: a flusher that stood still may retain them once more, and delete the first.
    """
    found = (path for epoch, copies in retained_paths(log).items() if epoch > to for path in copies)
    for path in found:
        attempt = paths.RETAINED_MANIFEST.parse(path)
        if attempt is not None and (data := log.read_bytes(path)) is not None:
            log.backend.create_missing({paths.MANIFEST.path(attempt): data})


class Retention:
    """Says which flushed epochs may be trimmed: each of several targets holds back what it lacks.

    The time of an epoch is that of its `flushed/` record, by the clock of the flusher that wrote it; of
    several targets, of the last one. Another clock may ask: one that is ahead shortens the delay by as much,
    one that is behind lengthens it. Either is safe, since an epoch that has a record is in the target. A
    record of the future, by a clock that was wrong, counts no later than the newest record: an epoch was
    flushed before those that follow it.

    Remembers one record of each target, so that a look costs no read while nothing is due. It is read again
    before its epoch counts as due: since a rewind the epoch may have been flushed anew.

    :param seconds: 0 lets every flushed epoch be trimmed at once.
    :param clock_us: microseconds since 1970.
    """

    def __init__(self, seconds: float, clock_us: Callable[[], int]) -> None:
        self.seconds = seconds
        self._clock_us = clock_us
        self._oldest: dict[str, tuple[int, int]] = {}
        """By target, an epoch, and when it was flushed as far as was read; 0: long ago."""
        self._slowest = ""

    def trimmable(self, log: Log, recorded: FlushedEpoch | None, epochs: Iterable[int]) -> int:
        """Return the highest epoch that may be trimmed, with all before it; -1 for none.

        :param recorded: the newest record; of several targets, each one's is read.
        :param epochs: of which there are manifests, waiting or retained, ascending. If one of several targets
            lacks the first of them, the others are not asked.
        """
        if not log.several:
            return self._of_target(log, recorded.epoch if recorded else -1, recorded, epochs)
        limit, there = None, list(epochs)
        # Listed after what the caller has seen as flushed: see `wal.targets`.
        for view, flushed in flushed_limits(log, fresh=True, before=self._slowest):
            newest = view.newest_flushed() if self.seconds else None
            mine = self._of_target(view, flushed, newest, there)
            limit = mine if limit is None else min(limit, mine)
            if there and limit < there[0]:
                self._slowest = view.target
                break
        return -1 if limit is None else limit

    def _of_target(
        self, view: Log, flushed: int, newest: FlushedEpoch | None, epochs: Iterable[int]
    ) -> int:
        """Return what one target lets go, of what it is done with up to `flushed`."""
        if self.seconds and newest is not None:
            now_us = self._clock_us()
            for epoch in takewhile(lambda each: each <= newest.epoch, epochs):
                if not self._is_due(view, epoch, newest, now_us):
                    return min(epoch - 1, flushed)
        return flushed

    def _is_due(self, view: Log, epoch: int, newest: FlushedEpoch, now_us: int) -> bool:
        def is_over(recorded_us: int) -> bool:
            return now_us >= min(recorded_us, newest.recorded_us) + self.seconds * 1_000_000

        oldest, recorded_us = self._oldest.get(view.target, (-1, 0))
        if oldest == epoch and not is_over(recorded_us):
            return False
        record = view.flushed(epoch)
        # Without a record the epoch is due: `trim` then says what is wrong.
        recorded_us = record.recorded_us if record else 0
        self._oldest[view.target] = epoch, recorded_us
        return is_over(recorded_us)
