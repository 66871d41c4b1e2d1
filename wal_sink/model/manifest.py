"""Lists the segments of an epoch in a manifest. No I/O.

The module also has the message by which a task reports its segments to the driver.
"""

from __future__ import annotations

import builtins
from typing import NamedTuple

import msgspec

from wal_sink import errors
from wal_sink.errors import CorruptLog
from wal_sink.model.codec import Record, digest, prepare_decoders
from wal_sink.model.state import EpochManifest, Predecessor, Sums

_END = b"\n}\n"
"""The end of a manifest's JSON. Only the last brace of the JSON is at the beginning of a line."""


class SegmentRef(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Names a segment, with rows, size and digest as its task has measured them."""

    path: str
    """Path of the segment, relative to the log's folder."""
    rows: int
    bytes: int
    """Size of the file."""
    digest: str
    """SHA-256 of the file, hexadecimal."""
    data: builtins.bytes | None = None
    """Content of a small segment that is inlined in its manifest, so no file exists at `path`. None for a
    segment with a file. The JSON of the manifest has empty data, and the bytes follow after the JSON."""

    @property
    def is_file(self) -> bool:
        """Return True if the segment is a file at `path`, and not inlined in its manifest."""
        return self.data is None

    def without_data(self) -> SegmentRef:
        """Return the reference without the bytes of an inlined segment."""
        return self if self.is_file else msgspec.structs.replace(self, data=b"")


class Manifest(Record, frozen=True, kw_only=True):
    """Lists all segments of an epoch, as one run computed them. A manifest never changes (rule `publish`)."""

    epoch: int
    """Spark's batch id."""
    query_id: str
    run_id: str
    nonce: str
    """Random. A publisher whose answer was lost recognizes its own manifest by the nonce."""
    plan: str
    """Key of the plans that the rows were checked against."""
    segments: tuple[SegmentRef, ...]
    """Segments in the order of Spark's partitions. The rows of the epoch are numbered in this order."""
    refused: tuple[SegmentRef, ...] = ()
    """Segments of the rows that the target's check refused, in the order of the partitions."""
    offsets: str
    """Content of Spark's file `offsets/<epoch>`."""
    offsets_digest: str
    """Digest of the source offsets in `offsets`. Two attempts from the same offsets have the same digest."""
    published_us: int
    """Time of publishing by the driver's clock, microseconds since 1970."""
    first_us: int
    """Write timestamp of row 0, microseconds since 1970. Row i has `first_us + i`."""
    last_us: int
    """The last write timestamp that the epoch reserves. An epoch without rows reserves one timestamp."""
    sums: Sums
    """Rows and bytes of all epochs of the log up to `epoch`."""
    predecessor: Predecessor
    """Names the manifest of the epoch before, so that manifests form a chain."""

    @property
    def all_segments(self) -> tuple[SegmentRef, ...]:
        """Return all segments, the segments of refused rows last."""
        return self.segments + self.refused

    @property
    def refused_rows(self) -> int:
        """Return the number of refused rows."""
        return sum(segment.rows for segment in self.refused)

    @property
    def rows(self) -> int:
        """Return the number of rows for the target."""
        return sum(segment.rows for segment in self.segments)

    @property
    def bytes(self) -> int:
        """Return the bytes of all segments, inlined or not, with the segments of refused rows."""
        return sum(segment.bytes for segment in self.all_segments)

    def without_data(self) -> Manifest:
        """Return the manifest without the bytes of inlined segments, to save memory."""
        bare = tuple(segment.without_data() for segment in self.segments)
        return msgspec.structs.replace(self, segments=bare)

    def to_file(self) -> builtins.bytes:
        """Encode the manifest as its file: JSON, then the bytes of the inlined segments in their order."""
        held = [segment.data for segment in self.segments if segment.data is not None]
        return b"".join([self.without_data().to_json(), *held])

    @classmethod
    def from_file(cls, data: builtins.bytes, where: str) -> Manifest:
        """Decode the file of a manifest.

        The flush compares the digests of inlined segments before it sends rows. This function does not.

        :param where: path of the file, for errors.
        :raises CorruptLog: the file is not a manifest, has a newer format, or has a wrong length.
        """
        json = _json_of(data)
        return _with_data(cls.from_json(json, where), data, len(json), where)

    def as_epoch_manifest(self, path: str, digest: str) -> EpochManifest:
        """Return the part of the manifest that states and chains of manifests contain.

        :param path: path of the manifest below the log's folder.
        :param digest: see `manifest_digest`.
        """
        return EpochManifest(
            epoch=self.epoch,
            manifest=path,
            digest=digest,
            offsets_digest=self.offsets_digest,
            first_us=self.first_us,
            last_us=self.last_us,
            sums=self.sums,
            predecessor=self.predecessor,
        )


def manifest_digest(data: builtins.bytes) -> str:
    """Return the digest by which ledger rows and states name a manifest: the digest of its JSON.

    The JSON has the digests of all segments, so manifests with different rows have different digests.

    :param data: content of the manifest's file.
    """
    return digest(_json_of(data))


def _json_of(data: builtins.bytes) -> builtins.bytes:
    """Return the JSON of a manifest's file; the whole content if the end of the JSON is missing."""
    end = data.find(_END)
    return data if end < 0 else data[: end + len(_END)]


def _with_data(manifest: Manifest, data: bytes, start: int, where: str) -> Manifest:
    """Return the manifest with the bytes of its inlined segments.

    :param data: content of the manifest's file.
    :param start: where the inlined segments begin in `data`.
    :raises CorruptLog: the file is longer or shorter than the manifest says.
    """
    segments = []
    for segment in manifest.segments:
        if segment.is_file:
            segments.append(segment)
            continue
        end = start + segment.bytes
        segments.append(msgspec.structs.replace(segment, data=data[start:end]))
        start = end
    if start != len(data):
        raise CorruptLog(
            f"{where} has {len(data)} bytes. A manifest with these segments has {start} bytes.",
            f"The file was edited. {errors.restore_or_give_up(manifest.epoch)}",
        )
    return msgspec.structs.replace(manifest, segments=tuple(segments))


prepare_decoders()


class Execution(NamedTuple):
    """Identifies one run's computation of an epoch, by the ids that Spark passes to its tasks."""

    query_id: str
    run_id: str
    epoch: int


class Task(msgspec.Struct, frozen=True):
    """Identifies a task attempt of Spark."""

    execution: Execution
    partition: int
    task_attempt: int
    call: str = ""
    """Hexadecimal digits with which the nonces of the task's segments begin; empty for the data source. A
    `foreachBatch` function may call its writer several times in an epoch, and each call has other digits."""


class Appended(msgspec.Struct, frozen=True, kw_only=True):
    """Reports to the driver which segments a task has written (rule `segments`)."""

    execution: Execution
    segments: tuple[SegmentRef, ...]
    planned: int | None = None
    """Number of the newest state when the task of partition 0 began; None from other tasks."""
    refused: tuple[SegmentRef, ...] = ()
    """Segments of the rows that the target's check refused."""

    @property
    def files(self) -> tuple[SegmentRef, ...]:
        """Return the segments that the task wrote as files."""
        return tuple(segment for segment in self.segments + self.refused if segment.is_file)
