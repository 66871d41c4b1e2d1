"""What waits to be flushed, as one look found it. A value: `progress.backlog` reads it."""

from __future__ import annotations

from typing import NamedTuple


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
