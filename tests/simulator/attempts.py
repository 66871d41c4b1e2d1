"""What a run has computed of an epoch, how far that has come at each target, and what a reader sees."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Arrival:
    """How far an attempt has come at one target."""

    keys: set[str] = field(default_factory=set)
    """The keys that the target has acknowledged."""
    taken: set[str] = field(default_factory=set)
    """Those that it has no more, since a backup of it was restored, or that a rewind has taken back."""
    gone: set[str] = field(default_factory=set)
    """Those that it lacks for good: of `taken`, what an operator has vouched for."""
    begun_us: int = 0
    """When it was begun last."""
    timestamps: dict[range, int] = field(default_factory=dict)
    """Those with which it was begun, and when it was first."""
    flushed: bool = False
    """Whether the ledger says that it is flushed."""
    flushed_us: int = 0
    """When it said so last."""


@dataclass(eq=False)
class Computed:
    """What one run computed of one epoch: an attempt, as the judge knows it."""

    epoch: int
    run_id: str
    value: int
    rows: dict[str, int]
    written: tuple[str, ...] = ()
    """The segments that its tasks have written."""
    segments: tuple[str, ...] = ()
    """Those that its manifest names, and does not hold."""
    manifest: str = ""
    """The path of its manifest."""
    offsets: str = ""
    """The data of the source from which it was computed, as its manifest says."""
    published: bool = False
    """Whether its manifest was created."""
    published_us: int = 0
    generation: int = 0
    committed: bool = False
    """Whether its run has written `commits/<epoch>`."""
    late: bool = False
    """Whether its run has written `commits/<epoch>` again, purged, when nothing told that another had."""
    lost: bool = False
    """Whether it was left, and its rows stay: a backup was restored, or the row that named it as begun was
    lost or shadowed."""
    excused: bool = False
    """Whether it was flushed by a choice that the flusher called unproven."""
    by_target: dict[str, Arrival] = field(default_factory=dict)
    fenced_us: int | None = None
    """When its run was fenced afterwards, in order: then the run has left its proof."""

    @property
    def name(self) -> str:
        """Return how messages call it."""
        return f"epoch {self.epoch} of run {self.run_id[:8]}"

    def at(self, target: str) -> Arrival:
        """Return how far it has come at a target."""
        return self.by_target.setdefault(target, Arrival())

    def begun_last(self, target: str) -> tuple[int, int]:
        """Return what orders attempts as they were begun last: epochs of one window at the same time."""
        return self.at(target).begun_us, self.epoch

    def begun_with(self, target: str, us: int) -> int:
        """Return when it was begun with a timestamp at a target; -1: it was not."""
        begun = self.at(target).timestamps.items()
        return next((since_us for each, since_us in begun if us in each), -1)

    @property
    def was_begun(self) -> bool:
        """Whether it was ever begun for a target."""
        return any(arrival.begun_us for arrival in self.by_target.values())


Table = dict[str, tuple[int, ...]]
"""What a reader sees: by key the value; of a total all that were added, of a list its elements."""


def newest(table: Table, key: str) -> int | None:
    """Return the value of a key, of a total the one that was added last; None: there is none."""
    return table[key][-1] if key in table else None
