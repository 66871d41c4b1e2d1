"""The manifest: what a run published for an epoch. No I/O."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import msgspec

from wal_sink.model.codec import FORMAT, Record, learn


class Attempt(NamedTuple):
    """One run's attempt at an epoch, which names a manifest. Ordered by epoch, then by generation."""

    epoch: int
    """Spark's batch id."""
    generation: int
    """Fencing number of the run, claimed once (rule 3)."""


class SegmentRef(msgspec.Struct, frozen=True, kw_only=True):
    """A segment, as the task that wrote it has measured it."""

    path: str
    """Relative to the log's folder."""
    rows: int
    bytes: int
    """Size of the file."""
    digest: str
    """SHA-256 of the file, hexadecimal."""


WITH_REFUSED = FORMAT + 1
"""Format of a manifest that names refused rows: a flusher of version 0.2.0 would delete them unseen."""


class Manifest(Record, frozen=True, kw_only=True):
    """Names all segments of an epoch, as one run computed it; immutable once created (rule 6)."""

    newest: ClassVar[int] = WITH_REFUSED

    epoch: int
    generation: int
    query_id: str
    run_id: str
    nonce: str
    """Tells this manifest from another of the same name, when the answer to its creation was lost."""
    plan: str
    """Key of the plan that the rows were checked against."""
    segments: tuple[SegmentRef, ...]
    """In the order of Spark's partitions, in which the rows of the epoch are numbered."""
    offsets: str
    """Content of Spark's `offsets/<epoch>`: the part of the sources that the epoch covers."""
    offsets_digest: str
    """Digest of the source offsets alone, equal for every attempt at the epoch."""
    published_us: int
    """Clock of the publishing driver, microseconds since 1970."""
    refused_segments: tuple[SegmentRef, ...] | msgspec.UnsetType = msgspec.UNSET
    """What `refused` returns, if there are any. Not there in manifests of format 1."""

    @property
    def refused(self) -> tuple[SegmentRef, ...]:
        """Segments of the rows that the target's check refused (rule 24), in the order of the partitions."""
        return () if self.refused_segments is msgspec.UNSET else self.refused_segments

    @property
    def files(self) -> tuple[SegmentRef, ...]:
        """All segments, those of refused rows behind the others."""
        return self.segments + self.refused

    @property
    def refused_rows(self) -> int:
        """Rows in the segments of refused rows."""
        return sum(segment.rows for segment in self.refused)

    @property
    def attempt(self) -> Attempt:
        """The name of this manifest."""
        return Attempt(self.epoch, self.generation)

    @property
    def rows(self) -> int:
        """Rows that the target takes."""
        return sum(segment.rows for segment in self.segments)

    @property
    def bytes(self) -> int:
        """Bytes in all segments, those of refused rows included."""
        return sum(segment.bytes for segment in self.files)


class Published(NamedTuple):
    """A manifest as it was read."""

    manifest: Manifest
    digest: str
    """Of its file."""


learn()
