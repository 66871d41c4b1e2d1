"""The manifest: what a run published for an epoch. No I/O."""

from __future__ import annotations

import builtins
from collections.abc import Collection, Iterable
from typing import ClassVar, NamedTuple

import msgspec

from wal_sink import remedies
from wal_sink.errors import CorruptLog
from wal_sink.model.codec import FORMAT, Record, digest, learn

_END = b"\n}\n"
"""How the JSON of a manifest ends: in it, only the last brace stands at the beginning of a line."""


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
    data: builtins.bytes | msgspec.UnsetType = msgspec.UNSET
    """The bytes themselves of a small segment, which then is no file: nothing lies at its path. In JSON they
    are empty, and follow behind it. Not there in manifests of format 1 and 2."""

    @property
    def is_file(self) -> bool:
        """Whether it lies at its path, and not in its manifest."""
        return self.data is msgspec.UNSET

    def without_data(self) -> SegmentRef:
        """Return it without its rows, as much a file as before."""
        return self if self.is_file else msgspec.structs.replace(self, data=b"")


WITH_REFUSED = FORMAT + 1
"""Format of a manifest that names refused rows: a flusher of version 0.2.0 would delete them unseen."""

WITH_DATA = FORMAT + 2
"""Format of a manifest that holds segments: an older flusher would look for their files. Before version 0.2.0
their bytes were in its JSON for some time, in base64, and are read there, too."""


class Manifest(Record, frozen=True, kw_only=True):
    """Names all segments of an epoch, as one run computed it; immutable once created (rule 6)."""

    newest: ClassVar[int] = WITH_DATA

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
    def all_segments(self) -> tuple[SegmentRef, ...]:
        """All segments, those of refused rows behind the others."""
        return self.segments + self.refused

    @property
    def files(self) -> tuple[SegmentRef, ...]:
        """The segments that lie beside the manifest, and not in it."""
        return tuple(segment for segment in self.all_segments if segment.is_file)

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
        """Bytes in all segments, those of refused rows included, files or not."""
        return sum(segment.bytes for segment in self.all_segments)

    def without_data(self) -> Manifest:
        """Return it without the rows that it holds, for a reader of many; it cannot be flushed."""
        if self.format < WITH_DATA:
            return self
        bare = tuple(segment.without_data() for segment in self.segments)
        return msgspec.structs.replace(self, segments=bare)

    def to_file(self) -> builtins.bytes:
        """Encode as it lies in the log: JSON, and behind it the segments that it holds, in their order."""
        held = [segment.data for segment in self.segments if segment.data is not msgspec.UNSET]
        return b"".join([self.without_data().to_json(), *held])

    @classmethod
    def from_file(cls, data: builtins.bytes, where: str) -> Published:
        """Decode what `to_file` has encoded, read from the path `where`.

        The bytes of segments are not compared with their digests: the flush does that before it sends rows.

        :raises CorruptLog: it is no manifest, of a newer format, or not as long as it says.
        """
        json = _json_of(data)
        manifest = cls.from_json(json, where)
        if len(json) < len(data) or manifest.format >= WITH_DATA:
            manifest = _with_data(manifest, data, len(json), where)
        return Published(manifest, digest(json))


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
    found = []
    for segment in manifest.segments:
        if segment.data == b"":
            end = start + segment.bytes
            found.append(msgspec.structs.replace(segment, data=data[start:end]))
            start = end
        else:
            found.append(segment)
    if start != len(data):
        raise CorruptLog(
            f"{where} has {len(data)} bytes; with the segments that it holds it had {start}",
            f"The file was edited. {remedies.lost_manifest(manifest.epoch)}",
        )
    return msgspec.structs.replace(manifest, segments=tuple(found))


def format_of(segments: Iterable[SegmentRef], refused: Collection[SegmentRef]) -> int:
    """Return the lowest format that says all of a manifest: an older version reads what it can."""
    if not all(segment.is_file for segment in segments):
        return WITH_DATA
    return WITH_REFUSED if refused else FORMAT


class Published(NamedTuple):
    """A manifest as it was read."""

    manifest: Manifest
    digest: str
    """See `manifest_digest`."""


learn()
