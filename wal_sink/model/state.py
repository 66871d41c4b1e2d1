"""The state of a log and its JSON form. No I/O. The transitions of the state are in `protocol/state.py`."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from wal_sink.model.codec import Record, prepare_decoders


class Value(msgspec.Struct, frozen=True, kw_only=True):
    """Base class of the parts of a state."""


class Sums(Value, frozen=True):
    """Rows and bytes of all epochs of a log up to one epoch."""

    rows: int = 0
    bytes: int = 0
    """Bytes of the rows for the target and of the refused rows."""


class Predecessor(Value, frozen=True):
    """Names the manifest of the epoch before. Every manifest has a predecessor, so manifests form a chain."""

    manifest: str = ""
    """Path of the predecessor below the log's folder; empty before the first epoch of a log."""
    digest: str = ""
    """Digest of the predecessor; empty before the first epoch of a log."""
    last_us: int = 0
    """The last write timestamp of the epoch before, microseconds since 1970."""
    sums: Sums = Sums()


class EpochManifest(Value, frozen=True):
    """One attempt at an epoch, and its place in the chain: the part of a manifest that the protocol needs."""

    epoch: int
    manifest: str
    """Path of the manifest. The path has epoch and run, so a run makes one manifest for an epoch."""
    digest: str
    offsets_digest: str
    """Digest of the source offsets. Two attempts from the same offsets have the same digest."""
    first_us: int
    """Write timestamp of row 0, microseconds since 1970. Row i has `first_us + i`."""
    last_us: int
    """The last write timestamp that the epoch reserves. An epoch without rows reserves one timestamp."""
    sums: Sums
    predecessor: Predecessor

    @property
    def rows(self) -> int:
        """Return the number of rows for the target."""
        return self.sums.rows - self.predecessor.sums.rows

    @property
    def bytes(self) -> int:
        """Return the bytes of all segments."""
        return self.sums.bytes - self.predecessor.sums.bytes

    def as_predecessor(self) -> Predecessor:
        """Return the predecessor that the manifest of the next epoch names."""
        return Predecessor(
            manifest=self.manifest, digest=self.digest, last_us=self.last_us, sums=self.sums
        )


class Run(Value, frozen=True):
    """A run of the query that has opened the log."""

    number: int
    """Number of the state in which the run opened."""
    run_id: str
    """Spark's run id. Empty after an `adopt` at another place, so that no run may publish."""
    options: Mapping[str, str] = {}
    """Options of the query, without secrets. Commands use them."""


class EarlierMark(Value, frozen=True):
    """A time at which the target had every epoch up to `epoch`."""

    epoch: int
    at_us: int
    bytes: int
    """Bytes of all epochs of the log up to `epoch`."""


class Mark(Value, frozen=True):
    """The last epoch that the log has recorded as written to a target.

    The ledger row of the target is ahead of the mark only until the flusher records the row.
    """

    epoch: int
    digest: str
    """Digest of the manifest of `epoch`, as in the ledger row."""
    sums: Sums
    at_us: int
    """When the mark moved, microseconds since 1970."""
    earlier: tuple[EarlierMark, ...] = ()
    """Up to 16 earlier marks, ascending, which show how long an epoch has been in the target."""


class TargetState(Value, frozen=True):
    """A target of the log and its mark."""

    name: str
    first: int
    """The first epoch that the target gets."""
    mark: Mark
    given_up: bool = False
    """True if an operator gave the target up: the target gets no more epochs, and nothing waits for it."""

    @property
    def flushed(self) -> int:
        """Return the last epoch of this log that the target has; -1 for none."""
        return self.mark.epoch if self.mark.epoch >= self.first else -1


class GivenUp(Value, frozen=True):
    """An epoch that an operator gave up for one target. The files of the epoch stay in the log."""

    epoch: int
    target: str


class Change(Value, frozen=True):
    """Records which process made a state, when, and for what reason. No two processes make equal changes."""

    by: str = ""
    at_us: int = 0
    reason: str = ""


class State(Record, frozen=True, kw_only=True):
    """All decisions about a log: the content of `state/<number>.json`, made from the state before."""

    number: int
    changed: Change = Change()
    query_id: str
    log_id: str
    """Id that the ledger row of every target names. `adopt` makes a new id."""
    checkpoint: str
    """URL of the checkpoint. A copy of the log at another place neither publishes nor flushes."""
    first: int
    """The first epoch of the log."""
    run: Run | None = None
    """The run that may publish."""
    opened: tuple[str, ...] = ()
    """Ids of the last runs that opened, in order. The last id is that of `run`, unless an `adopt` superseded
    `run`."""
    last: EpochManifest
    """The newest published epoch; before the first publish, epoch `first` - 1 without a manifest."""
    settled: int
    """Every epoch up to this number has its final attempt. The number is at least `last` - 1."""
    trimmed: int
    """Every object of the epochs up to this number may be deleted, except for epochs that were given up."""
    targets: tuple[TargetState, ...]
    given_up: tuple[GivenUp, ...] = ()

    def target(self, name: str) -> TargetState | None:
        """Return a target by its name; None if the log has no such target."""
        return next((target for target in self.targets if target.name == name), None)

    @property
    def live(self) -> tuple[TargetState, ...]:
        """Return the targets that were not given up. Only these targets count for budget and trim."""
        return tuple(target for target in self.targets if not target.given_up)

    @property
    def slowest(self) -> TargetState:
        """Return the live target with the oldest mark. If all targets were given up, return one of them."""
        return min(self.live or self.targets, key=lambda target: target.mark.epoch)

    def epochs_given_up(self, name: str) -> frozenset[int]:
        """Return the epochs that were given up for a target."""
        return frozenset(item.epoch for item in self.given_up if item.target == name)


prepare_decoders()
