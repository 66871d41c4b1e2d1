"""The manifest: the segments that a run published as the content of an epoch. No I/O.

Also here: the message by which a task reports to the driver what it wrote.
"""

from __future__ import annotations

import builtins
from typing import NamedTuple

import msgspec

from wal_sink import errors
from wal_sink.errors import CorruptLog
from wal_sink.model.codec import Record, digest, learn
from wal_sink.model.state import EpochManifest, Predecessor, Sums

_END = b"\n}\n"
"""How the JSON of a manifest ends: in it, only the last brace stands at the beginning of a line."""


class SegmentRef(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A segment, as the task that wrote it has measured it."""

    path: str
    """Relative to the log's folder."""
    rows: int
    bytes: int
    """Size of the file."""
    digest: str
    """SHA-256 of the file, hexadecimal."""
    data: builtins.bytes | None = None
    """The bytes themselves of a small segment, which then has no file: nothing lies at its path. In JSON they
    are empty, and follow after it."""

    @property
    def is_file(self) -> bool:
        """True if it lies at its path, and not in its manifest."""
        return self.data is None

    def without_data(self) -> SegmentRef:
        """Return it without its rows, as much a file as before."""
        return self if self.is_file else msgspec.structs.replace(self, data=b"")


class Manifest(Record, frozen=True, kw_only=True):
    """Names all segments of an epoch, as one run computed it; immutable once created (rule `publish`)."""

    epoch: int
    """Spark's batch id."""
    query_id: str
    run_id: str
    nonce: str
    """Tells this manifest from another of the same name, when the answer to its creation was lost."""
    plan: str
    """Key of the plan that the rows were checked against."""
    segments: tuple[SegmentRef, ...]
    """In the order of Spark's partitions, in which the rows of the epoch are numbered."""
    refused: tuple[SegmentRef, ...] = ()
    """Segments of the rows that the target's check refused, in the order of the partitions."""
    offsets: str
    """Content of Spark's `offsets/<epoch>`: the part of the sources that the epoch covers."""
    offsets_digest: str
    """Digest of the source offsets alone, equal for every attempt at the epoch."""
    published_us: int
    """Clock of the publishing driver, microseconds since 1970."""
    first_us: int
    """Write timestamp of row 0, microseconds since 1970; row i has `first_us + i`."""
    last_us: int
    """The last write timestamp that is reserved for the epoch. An epoch without rows uses up one."""
    sums: Sums
    """Rows and bytes of all epochs of the log, this one included."""
    predecessor: Predecessor
    """The epoch before: by it manifests form a chain."""

    @property
    def all_segments(self) -> tuple[SegmentRef, ...]:
        """All segments, those of refused rows after the others."""
        return self.segments + self.refused

    @property
    def refused_rows(self) -> int:
        """Rows in the segments of refused rows."""
        return sum(segment.rows for segment in self.refused)

    @property
    def rows(self) -> int:
        """Rows that the target takes."""
        return sum(segment.rows for segment in self.segments)

    @property
    def bytes(self) -> int:
        """Bytes in all segments, those of refused rows included, files or not."""
        return sum(segment.bytes for segment in self.all_segments)

    def without_data(self) -> Manifest:
        """Return it without the rows that it holds, for a reader of many; it cannot be flushed."""
        bare = tuple(segment.without_data() for segment in self.segments)
        return msgspec.structs.replace(self, segments=bare)

    def to_file(self) -> builtins.bytes:
        """Encode as it lies in the log: JSON, and after it the segments that it holds, in their order."""
        held = [segment.data for segment in self.segments if segment.data is not None]
        return b"".join([self.without_data().to_json(), *held])

    @classmethod
    def from_file(cls, data: builtins.bytes, where: str) -> Published:
        """Decode what `to_file` has encoded, read from the path `where`.

        The bytes of segments are not compared with their digests: the flush does that before it sends rows.

        :raises CorruptLog: it is not a manifest, of a newer format, or not as long as it says.
        """
        json = _json_of(data)
        manifest = _with_data(cls.from_json(json, where), data, len(json), where)
        return Published(manifest, digest(json))

    def as_epoch(self, path: str, digest: str) -> EpochManifest:
        """Return what the protocol needs to know of it.

        :param path: where it lies, below the log's folder.
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
    """Return the digest by which ledger and records name a manifest: that of its JSON.

    The JSON has the digests of all segments, so no other rows have it.

    :param data: the whole file.
    """
    return digest(_json_of(data))


def _json_of(data: builtins.bytes) -> builtins.bytes:
    """Return the JSON of a manifest's file; all of it, where the JSON does not end as ours does."""
    end = data.find(_END)
    return data if end < 0 else data[: end + len(_END)]


def _with_data(manifest: Manifest, data: bytes, start: int, where: str) -> Manifest:
    """Return a manifest with the bytes of its segments, which lie in `data` from `start` on.

    :raises CorruptLog: there are more bytes, or less.
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
            f"{where} has {len(data)} bytes; with the segments that it holds it had {start}",
            f"The file was edited. {errors.restore_or_give_up(manifest.epoch)}",
        )
    return msgspec.structs.replace(manifest, segments=tuple(segments))


class Published(NamedTuple):
    """A manifest as it was read."""

    manifest: Manifest
    digest: str
    """See `manifest_digest`."""


learn()


class Execution(NamedTuple):
    """One run's computation of an epoch, as Spark names it to its tasks."""

    query_id: str
    run_id: str
    epoch: int


class _OfExecution(msgspec.Struct, frozen=True, kw_only=True):
    query_id: str
    run_id: str
    epoch: int

    @property
    def execution(self) -> Execution:
        """What it is part of."""
        return Execution(self.query_id, self.run_id, self.epoch)


class Task(_OfExecution, frozen=True, kw_only=True):
    """Identifies a task, as Spark does."""

    partition: int
    task_attempt: int
    call: str = ""
    """Hexadecimal digits with which the nonces of its segments begin: they tell the tasks of one call, where
    Spark does not call once for an epoch."""


class Appended(_OfExecution, frozen=True, kw_only=True):
    """Tells the driver which segments a task has written (rule `segments`)."""

    segments: tuple[SegmentRef, ...]
    planned: int | None = None
    """Number of the newest state as the task of partition 0 began; None from other tasks."""
    refused: tuple[SegmentRef, ...] = ()
    """Segments of the rows that the target's check refused."""

    @property
    def files(self) -> tuple[SegmentRef, ...]:
        """The segments that the task has written as files: this message has the others."""
        return tuple(segment for segment in self.segments + self.refused if segment.is_file)
