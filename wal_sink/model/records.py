"""The small JSON objects of the log: who owns it, who may publish, what is flushed, who flushes."""

from __future__ import annotations

from typing import Literal

import msgspec

from wal_sink.model.codec import Record


class LogIdentity(Record, frozen=True, kw_only=True):
    """`log.json`: ties the log to one checkpoint; created once, with the first publish (rule 1)."""

    log_id: str
    checkpoint: str
    """URL of the query's checkpoint."""
    first_epoch: int
    """The first epoch this sink was given; from here on every epoch has a manifest (rule 12)."""


class LogUrl(Record, frozen=True, kw_only=True):
    """`wal_sink/location.json` in the checkpoint: where the query's log is (rule 1)."""

    log: str


class Ticket(Record, frozen=True, kw_only=True):
    """`tickets/<run id>.json`: what a run saw before Spark read the checkpoint (rule 2)."""

    run_id: str
    generation: int
    """The highest generation claimed at that moment, 0 for none."""


class Claim(Record, frozen=True, kw_only=True):
    """`runs/<generation>.json`: the run that owns a generation (rule 3)."""

    run_id: str
    options: dict[str, str]
    """The sink's options as the run had them, without secrets."""


class Kept(Record, frozen=True, kw_only=True):
    """`kept/<epoch>-<generation>.json`: a run, fenced or waiting, had written `commits/<epoch>` (rule 11)."""

    epoch: int
    generation: int
    run_id: str
    highest: int
    """The highest generation claimed when this was written. Whoever claimed a higher one and published
    the epoch all the same has found `commits/<epoch>` deleted since."""


class FlushedEpoch(Record, frozen=True, kw_only=True):
    """`flushed/<epoch>.json`: what was delivered. The newest one is the flushed mark of the log (rule 17)."""

    epoch: int
    generation: int
    """The attempt that was flushed; of an epoch without manifest, the highest that was passed over."""
    manifest: str
    """Path that the manifest had; empty for an epoch that Spark's state repartition made (rule 12)."""
    offsets_digest: str
    rows: int
    bytes: int
    base_us: int
    """Write timestamp of row 0, microseconds since 1970."""
    published_us: int
    begun_us: int
    recorded_us: int
    """Clock of the flusher when it wrote this file, after the ledger said finished."""


class FileCopy(msgspec.Struct, frozen=True, kw_only=True):
    """An object that was taken out of the log."""

    path: str
    """In the log, and below `Decision.where`."""
    bytes: int
    digest: str
    """SHA-256 of the copy, as it was read back."""


class Decision(Record, frozen=True, kw_only=True):
    """`decisions/<epoch>.json`: an operator has given up an epoch; flushers pass over it (rule 22).

    Created once, and never deleted: it says which rows the table lacks, and where they are.
    """

    verb: Literal["set-aside", "accept-gap", "rewind"]
    """`skip` writes "set-aside" with copies and "accept-gap" without: the words that older flushers read."""
    epoch: int
    by: str
    """`<user>@<host>`."""
    at_us: int
    why: str
    where: str
    """URL of the folder that holds what was set aside; empty when there was nothing to keep."""
    files: tuple[FileCopy, ...]
    generation: int
    """The highest one that had published the epoch, 0 for none."""
    offsets_digest: str
    """Of the source offsets that the epoch covers; empty when nobody knows any more."""
    rows: int
    """Rows that are given up, -1 when nobody can tell."""
    last_us: int
    """The last write timestamp that rows of it may have in the target; 0 when it was not begun."""


class Intervention(Record, frozen=True, kw_only=True):
    """`decisions/<verb>-<time>.json`: what an operator was about to change, written before (rule 22)."""

    verb: Literal["adopt", "rewind"]
    by: str
    at_us: int
    why: str
    before: dict[str, str]
    """Who named whom, and the ledger row, as they were seen."""
    after: dict[str, str]


class ErrorReport(msgspec.Struct, frozen=True, kw_only=True):
    """An error as the flusher met it."""

    kind: str
    """Name of the class in `wal_sink.errors`."""
    what: str
    remedy: str
    epoch: int | None = None
    at_us: int
    transient: bool
    """True: the flusher goes on trying. False: the line is stopped until somebody acts."""


class FlusherReport(Record, frozen=True, kw_only=True):
    """`flusher.json`: hints for people, `await_flushed` and `HeartbeatHistory`; no flush depends on it."""

    flusher: str
    """`<host>:<pid>` of the process that flushes."""
    doing: str
    heartbeat_us: int
    error: ErrorReport | None = None
