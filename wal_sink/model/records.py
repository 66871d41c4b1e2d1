"""The small records of the log: who owns it, who may publish, what is flushed, who flushes. No I/O.

`Backlog` is a value beside them: the pending epochs as one listing found them (`progress.backlog`).
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec

from wal_sink.model.codec import Record, learn


class LogIdentity(Record, frozen=True, kw_only=True):
    """`log.json`: ties the log to one checkpoint; created once, as the first run starts (rule 1)."""

    log_id: str
    checkpoint: str
    """URL of the query's checkpoint."""
    first_epoch: int
    """The first epoch that was not checkpointed then; every epoch from it on has a manifest (rule 12)."""
    targets: tuple[str, ...] = ()
    """Names of the log's targets, ascending; none where it has one target, without a name."""

    def mark(self, flushed: int) -> int:
        """Return the last epoch that is flushed, or else what lies before the first one.

        :param flushed: the epoch of the newest record.
        """
        return max(flushed, self.first_epoch - 1)


class LogUrl(Record, frozen=True, kw_only=True):
    """`wal_sink/location.json` in the checkpoint: where the query's log is (rule 1)."""

    log: str


class Ticket(Record, frozen=True, kw_only=True):
    """`tickets/<run id>.json`: what a run saw in the log before Spark read the checkpoint (rule 2)."""

    run_id: str
    generation: int
    """The highest generation claimed at that moment, 0 for none."""

    @property
    def claims(self) -> int:
        """The generation that the run claims when it first publishes (rule 3)."""
        return self.generation + 1


class Stop(Record, frozen=True, kw_only=True):
    """`stops/<run id>.json`: Spark was told to stop a run, which goes on all the same (rule 2)."""

    run_id: str


class Claim(Record, frozen=True, kw_only=True):
    """`runs/<generation>.json`: the run that owns a generation (rule 3)."""

    run_id: str
    options: dict[str, str]
    """The sink's options as the run had them, without secrets."""
    early: bool
    """The run claimed as it started, to free space. It may have failed before its first `commit()`, over
    these very options."""
    epoch: int
    """The epoch from which on Spark computed in this run: of a record about a later one it tells, without any
    manifest, that Spark went back behind it (rule 12)."""


class CommitProof(Record, frozen=True, kw_only=True):
    """`proofs/<epoch>-<generation>.json`: Spark has kept an attempt of a fenced or waiting run (rule 11).

    In `aside/`: a rewind flushes the attempt again.
    """

    epoch: int
    generation: int
    run_id: str
    highest: int
    """The highest generation claimed when this was written. A run that claimed a higher one, and published
    the epoch all the same, found that `commits/<epoch>` had been deleted since."""


class WithoutSink(Record, frozen=True, kw_only=True):
    """`without_sink/<epoch>.json`: Spark's state repartition made an epoch, or left it out (rule 12).

    A run that starts after it writes this note, since Spark deletes the files that tell. Never deleted; a run
    that finds the same again, after others have claimed a generation, writes it anew.
    """

    epoch: int
    offsets_digest: str
    """Digest of the source offsets from which Spark had planned the epoch."""
    highest: int
    """The highest generation claimed when this was written. A run that claimed a higher one, and published
    the epoch all the same, found that the checkpoint had been set back behind the epoch since."""


class OrphanTombstone(Record, frozen=True, kw_only=True):
    """`tombstones/<epoch>-<generation>.json`: orphans of a fenced run were deleted (rule 18).

    When this was written, a higher generation was claimed, and the run had not published the epoch. Should
    its manifest come late, Spark has not kept that attempt, and its segments may be gone.
    """

    epoch: int
    generation: int
    run_id: str


class Chosen(Record, frozen=True, kw_only=True):
    """`choices/<epoch>.json`: the attempt at an epoch that each of several targets gets (rule 11).

    Created once, before the first `begin` of the epoch for any target; goes with the epoch.
    """

    epoch: int
    generation: int
    """For an epoch without manifest, the highest that was passed over."""
    digest: str
    """Digest of the manifest (rule 4); empty for an epoch that Spark's state repartition made (rule 12)."""
    offsets_digest: str


class FlushedEpoch(Record, frozen=True, kw_only=True):
    """Says that an epoch is in the target. The newest is the log's flushed mark (rule 17).

    `FlushedWindow` has it; `retained/<epoch>.json` is a copy, while `wal.retention` keeps the epoch.
    """

    epoch: int
    generation: int
    """The attempt that was flushed; for an epoch without manifest, the highest that was passed over."""
    manifest: str
    """Path that the manifest had; empty for an epoch without rows: Spark's state repartition made it (rule
    12), or it was given up, before or after it was begun (rule 22)."""
    digest: str
    """Digest of the manifest (rule 4), which tells this attempt from another of the same name (rule 23).
    Empty for an epoch without manifest."""
    offsets_digest: str
    rows: int
    bytes: int
    base_us: int
    """Write timestamp of row 0, microseconds since 1970."""
    published_us: int
    begun_us: int
    recorded_us: int
    """Clock of the flusher when it wrote this record, after it had finished the epoch in the ledger."""

    @property
    def last_us(self) -> int:
        """The last write timestamp that belongs to the epoch; an empty epoch uses up its base."""
        return self.base_us + max(self.rows, 1) - 1

    def names(self, digest: str, offsets_digest: str) -> bool:
        """Whether it is about the manifest of this digest; where it has none, about these source offsets."""
        return self.digest == digest if self.digest else self.offsets_digest == offsets_digest


class FlushedWindow(Record, frozen=True, kw_only=True):
    """`flushed/<last>-<first>-<us>.json`: the epochs of a window are in the target (rule 17)."""

    epochs: tuple[FlushedEpoch, ...]
    """Contiguous and ascending."""


class FileCopy(msgspec.Struct, frozen=True, kw_only=True):
    """A copy of an object that an operator has taken out of the log."""

    path: str
    """In the log, and below `Decision.where`."""
    bytes: int
    digest: str
    """SHA-256 of the copy, as it was read back."""


class Decision(Record, frozen=True, kw_only=True):
    """`decisions/<epoch>-<number>.json`: an operator has given an epoch up; flushers pass over it (rule 22).

    Created once and never deleted: it says which rows the table lacks, and where they are. When the
    checkpoint is set back behind it, and Spark computes the epoch again, it no longer covers the epoch; a
    later decision has the next number.
    """

    verb: Literal["skip", "rewind"]
    """What decided: `rewind` passes over epochs that had no rows when they were flushed."""
    epoch: int
    by: str
    """`<user>@<host>`."""
    at_us: int
    why: str
    where: str
    """URL of the folder that holds the copies; empty when there was nothing to keep."""
    files: tuple[FileCopy, ...]
    generation: int
    """The highest generation that had published the epoch, 0 for none."""
    offsets_digest: str
    """Digest of the source offsets that the epoch covers; empty when they are not known any more."""
    rows: int
    """Rows that are given up; -1 when their number is not known."""
    last_us: int
    """The last write timestamp that rows of the epoch may have in the target; 0 when it was not begun."""
    highest: int
    """The highest generation claimed when the operator decided: a run that has claimed a higher one computed
    the epoch again."""


LEFT_FIRST, LEFT_LAST = "left_first_us", "left_last_us"
"""What the record of a rewind says, in `after`, of write timestamps of the future that are left behind."""


class Intervention(Record, frozen=True, kw_only=True):
    """`interventions/<verb>-<time>.json`: what an operator changes, written before the change (rule 22)."""

    verb: Literal["adopt", "rewind"]
    by: str
    at_us: int
    why: str
    before: dict[str, str]
    """How log and checkpoint named each other, and the ledger row, as the command found them."""
    after: dict[str, str]


class ErrorReport(msgspec.Struct, frozen=True, kw_only=True):
    """An error that the flusher has met."""

    kind: str
    """Name of the class in `wal_sink.errors`."""
    what: str
    remedy: str
    epoch: int | None = None
    at_us: int
    transient: bool
    """Whether the error may pass by itself. The flusher tries every error again; one that is not transient is
    also raised to those who wait (rule 21)."""

    @property
    def summary(self) -> str:
        """The kind and what happened, without the remedy."""
        return f"{self.kind}: {self.what}"


class FlusherReport(Record, frozen=True, kw_only=True):
    """`flusher.json`: what a flusher reports of itself; never the reason to send a row.

    `progress.heartbeat` says what else depends on it.
    """

    flusher: str
    """`<host>:<pid>` of the process that flushes."""
    doing: str
    heartbeat_us: int
    """Clock of the flusher's host, which other hosts do not rely on."""
    beat: int
    """How many reports this flusher has written: each differs from the one before, whatever the clock."""
    error: ErrorReport | None = None


learn()


class Backlog(NamedTuple):
    """The epochs of a query that are checkpointed and not flushed; epoch ids are -1 for none."""

    checkpointed: int
    """The last epoch that may be flushed."""
    flushed: int
    """The last epoch that is, by the log's records, which the flusher writes after the ledger."""
    epochs: int
    """How many lie between, whether or not their manifests can be read."""
    rows: int
    bytes: int
    """Rows, and bytes of segments, that are to be sent: of one attempt at each epoch. Where there are
    several, of the one that the log proves to be kept, else of the highest (rule 11): an estimate, since an
    event of Spark, which only its driver sees, may decide for another one. What is damaged or missing is
    not counted."""
    stored_bytes: int
    """Bytes of the segments of all attempts at them: they are on the disk, whichever is flushed."""
    oldest_us: int | None
    """When the oldest of them was published, or first seen by this process if nothing readable says so;
    microseconds since 1970, None for none."""
    read_us: int
    """When this was read, microseconds since 1970."""
    quarantined_rows: int = 0
    """Rows that the target refused, and that are in quarantine (rule 24); counted by `look` alone."""

    def oldest_seconds(self, now_us: int) -> float:
        """Return how long the oldest has waited; 0 for none. It grows although nothing can be read."""
        return 0.0 if self.oldest_us is None else max(0.0, (now_us - self.oldest_us) / 1_000_000)
