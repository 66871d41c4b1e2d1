"""The state of a log, and its JSON. No I/O, no decisions.

Values of the protocol in `protocol/state.py`.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from wal_sink.model.codec import Record, learn


class Value(msgspec.Struct, frozen=True, kw_only=True):
    """The base of what a state is made of."""


class Sums(Value, frozen=True):
    """Rows and bytes of all epochs of a log, up to and including one of them."""

    rows: int = 0
    bytes: int = 0
    """Of rows for the target and of refused rows."""


class Predecessor(Value, frozen=True):
    """The epoch before, as the manifest of an epoch names it. Manifests form a chain by it."""

    manifest: str = ""
    """Path of its manifest below the log's folder; empty before the first epoch of a log."""
    digest: str = ""
    """Digest of its manifest; empty before the first epoch of a log."""
    last_us: int = 0
    """Its last write timestamp, microseconds since 1970."""
    sums: Sums = Sums()


class EpochManifest(Value, frozen=True):
    """What the protocol needs to know of a manifest: one attempt at an epoch, and its place in the chain."""

    epoch: int
    manifest: str
    """Path of the manifest: epoch and run. A run makes one for an epoch."""
    digest: str
    offsets_digest: str
    """Digest of the source offsets, equal for every attempt from the same offsets."""
    first_us: int
    """Write timestamp of row 0; row i has `first_us + i`."""
    last_us: int
    """The last write timestamp that is reserved for the epoch. An epoch without rows uses up one."""
    sums: Sums
    predecessor: Predecessor

    @property
    def rows(self) -> int:
        """Rows that the target takes."""
        return self.sums.rows - self.predecessor.sums.rows

    @property
    def bytes(self) -> int:
        """Bytes of all segments."""
        return self.sums.bytes - self.predecessor.sums.bytes

    def as_predecessor(self) -> Predecessor:
        """Return how the manifest of the next epoch names this one."""
        return Predecessor(
            manifest=self.manifest, digest=self.digest, last_us=self.last_us, sums=self.sums
        )


class Run(Value, frozen=True):
    """A start of the query that has opened the log."""

    number: int
    run_id: str
    """Empty after an `adopt` at another place: then no run may publish, and the options stay for commands."""
    options: Mapping[str, str] = {}
    """Options of the query, without secrets."""


class EarlierMark(Value, frozen=True):
    """An epoch and a time at which it, and all before it, were in the target."""

    epoch: int
    at_us: int
    bytes: int
    """Running sum of the log's bytes up to this epoch."""


class Mark(Value, frozen=True):
    """The last epoch that the log knows to be in the target.

    The ledger row is ahead of it at most for a moment.
    """

    epoch: int
    digest: str
    """Digest of its manifest, which the ledger row has, too."""
    sums: Sums
    at_us: int
    """When the mark moved."""
    earlier: tuple[EarlierMark, ...] = ()
    """Up to 16 earlier ones, ascending: which epochs have been in the target for how long."""


class TargetState(Value, frozen=True):
    """A target of the log, as far as it has got."""

    name: str
    first: int
    """The first epoch that it gets."""
    mark: Mark
    given_up: bool = False
    """The target gets nothing more, and nothing waits for it."""

    @property
    def flushed(self) -> int:
        """The last epoch that it has got from this log, -1 for none."""
        return self.mark.epoch if self.mark.epoch >= self.first else -1


class GivenUp(Value, frozen=True):
    """An epoch that an operator has given up for a target. Its files stay in the log."""

    epoch: int
    target: str


class Change(Value, frozen=True):
    """Who made a state, when, and for what reason. It tells the state from one that another process made."""

    by: str = ""
    at_us: int = 0
    reason: str = ""


class State(Record, frozen=True, kw_only=True):
    """All that is decided about a log. `state/<number>.json`, made from the state before."""

    number: int
    changed: Change = Change()
    query_id: str
    log_id: str
    """The ledger row of every target names it. `adopt` draws a new one."""
    checkpoint: str
    """URL of the checkpoint. A copy at another place does not publish and does not flush."""
    first: int
    """The first epoch of the log."""
    run: Run | None = None
    """The run that may publish."""
    opened: tuple[str, ...] = ()
    """Ids of the last runs that opened, in their order; the last one is `run`, unless an `adopt` ended it."""
    last: EpochManifest
    """The newest epoch that is published; before the first one, `first` - 1 without a manifest."""
    settled: int
    """Every epoch up to this one has its final attempt: at least `last` - 1."""
    trimmed: int
    """Every object of an epoch up to this one may be deleted, if no target gave the epoch up."""
    targets: tuple[TargetState, ...]
    given_up: tuple[GivenUp, ...] = ()

    def target(self, name: str) -> TargetState | None:
        """Return a target by its name; None if the log has none of this name."""
        return next((target for target in self.targets if target.name == name), None)

    @property
    def live(self) -> tuple[TargetState, ...]:
        """The targets that were not given up. Budget, trim and a change of targets wait for these."""
        return tuple(target for target in self.targets if not target.given_up)

    @property
    def slowest(self) -> TargetState:
        """The target that lacks most; of a log whose targets were all given up, the first such one."""
        return min(self.live or self.targets, key=lambda target: target.mark.epoch)

    def epochs_given_up(self, name: str) -> frozenset[int]:
        """Return the epochs that a target does without."""
        return frozenset(item.epoch for item in self.given_up if item.target == name)


learn()
