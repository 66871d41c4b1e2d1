"""The values that `protocol` decides on: what a flusher saw, and what it may do next."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from wal_sink.model.ledger import Mark, Window
from wal_sink.model.manifest import Attempt, Published
from wal_sink.model.offsets import Offsets
from wal_sink.model.records import Decision, FlushedEpoch, Kept, LogIdentity, WithoutSink


@dataclass(frozen=True)
class View:
    """What a flusher saw in one pass, in the order in which it looked (rule 9)."""

    checkpointed: int
    """The highest epoch that `commits/` covers, -1 for none."""
    recorded: FlushedEpoch | None
    """The newest `flushed/` record; read before the ledger, which may only be ahead of it."""
    identity: LogIdentity | None
    asked: bool
    """Whether the ledger was read; not while `resting` says that it need not be."""
    mark: Mark | None
    """The ledger row; None when there is none, or when it was not read."""
    attempts: tuple[Attempt, ...]
    """The manifests there are."""
    rewound: bool = False
    """Whether an operator has rewound the log; looked at only where neither row nor record is there."""
    trimmable: int | None = None
    """The highest epoch that may be trimmed by now; None: all that are recorded (`trim.delay`)."""
    retained: tuple[int, ...] = ()
    """Flushed epochs that were kept for `trim.delay`, and whose time is over."""
    unrecorded: tuple[int, ...] = ()
    """Epochs of the ledger's last window that lie below the newest record, and have none themselves."""
    overtaken: bool = False
    """Whether there are newer records than `recorded`, looked for after `attempts` were listed: of what they
    are about, the manifests may be gone already."""
    known: bool = False
    """Whether `mark` is what this flusher saw last, and was not read in this pass (rule 14)."""
    absent: str = ""
    """Why nothing is flushed for this target of several; then nothing else was looked at."""

    @property
    def agreed(self) -> bool:
        """Whether ledger and records were read, and say that the same epoch is flushed."""
        if self.mark is None or self.known or self.recorded is None:
            return False
        return self.mark.flushed == self.recorded.epoch


class Contender(NamedTuple):
    """A manifest of the epoch that is flushed next, as far as it is needed to choose."""

    attempt: Attempt
    run_id: str
    offsets_digest: str


@dataclass(frozen=True)
class Evidence:
    """What a flusher knows of the epoch that is flushed next; read after the `View`."""

    epoch: int
    attempts: tuple[Attempt, ...]
    """The manifests there are, as listed for the `View`; of several contenders, listed again after all that
    may prove one of them."""
    contenders: tuple[Contender, ...] = ()
    """Those of the epoch itself."""
    before: tuple[Offsets | None, Offsets | None] = (None, None)
    """From what the two epochs before were planned, nearest first; None: purged, or cannot matter."""
    planned: Offsets | None = None
    after: Offsets | None = None
    without_sink: WithoutSink | None = None
    """That Spark made the epoch, or passed over it, without a sink; looked at only where `before`, `planned`
    and `after` cannot tell, as Spark has purged them."""
    kept: tuple[Kept, ...] = ()
    """What fenced runs have left about the epoch."""
    swept: frozenset[Attempt] = frozenset()
    """Those that were published late, after their segments were deleted: Spark has kept none of them."""
    committed: str | None = None
    """The run whose progress event for the epoch this process saw."""
    lost: frozenset[str] = frozenset()
    """Runs that ended in this process because another run had written the file that they were to write."""
    running: str | None = None
    """The run of the query that lives in this process."""
    decision: Decision | None = None
    """That an operator has given the epoch up; then nothing else is looked at."""


class Rest(NamedTuple):
    """There is nothing to do."""

    why: str
    odd: bool = False
    """True when an operator should know."""


class LookAgain(NamedTuple):
    """What was seen is of several moments: nothing follows from it."""


class CreateLedger(NamedTuple):
    """The target does not know the query yet: create its row."""

    flushed: int


class RecordFlushed(NamedTuple):
    """The ledger is ahead of the log's mark, or records are missing below: write those of its last window."""

    window: Window


class Trim(NamedTuple):
    """Delete what the log still holds of flushed epochs."""

    epochs: tuple[int, ...]


class Resume(NamedTuple):
    """Finish exactly what is begun."""

    window: Window


class Choose(NamedTuple):
    """Begin an epoch: `choose_attempt.choose` says from which of its attempts.

    Those that follow it may share its window: `windows.joined`.
    """

    epoch: int
    attempts: tuple[Attempt, ...]
    """All manifests there are."""
    checkpointed: int | None = None
    """The highest epoch that `commits/` covers, if the caller knows it: nothing was made after that one."""


@dataclass(frozen=True)
class Begin:
    """Begin a window with these attempts, one an epoch, contiguous."""

    attempts: tuple[Attempt, ...]
    proven: bool = True
    """False when nothing tells which of several attempts Spark has kept (rule 11)."""
    manifests: tuple[Published, ...] = field(default=(), compare=False, repr=False)
    """Those of the attempts, as they were read to choose. No manifest ever changes, so the attempts alone
    tell two decisions apart."""


class PassOver(NamedTuple):
    """Begin an epoch without rows: Spark made it without a sink (rule 12), or it is given up (22)."""

    epoch: int
    generation: int
    """The highest one that had published the epoch before it was given up, 0 for none."""
    offsets_digest: str
    why: str = "Spark's state repartition made it"
    decided: bool = False
    """Whether an operator has given it up, for one target."""


class ManifestMissing(NamedTuple):
    """A checkpointed epoch has no manifest: missing, unless it was flushed and trimmed meanwhile."""

    epoch: int


class RecordsBehind(NamedTuple):
    """The ledger is further ahead of the records than a window: the records were read too early, or lost."""

    window: Window


Step: TypeAlias = (
    RecordsBehind
    | LookAgain
    | Rest
    | CreateLedger
    | RecordFlushed
    | Trim
    | Resume
    | Choose
    | Begin
    | PassOver
    | ManifestMissing
)
