"""Reads Spark's checkpoint of a query, and watches it for completed epochs.

Only `commits/` decides which epochs are checkpointed (rule `settle`). The sink never writes Spark's files. It
adds one file, `wal_sink/location.json`, which names the query's log.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from state_backends import StateBackend
from state_backends.local import sync
from wal_sink import errors
from wal_sink.errors import CheckpointNotVisible, UnknownOffsetsFormat
from wal_sink.model.codec import Record, digest, prepare_decoders

_LOCAL = "file://"


class LogUrl(Record, frozen=True, kw_only=True):
    """`wal_sink/location.json` in the checkpoint: the URL of the query's log (rule `identity`)."""

    log: str


prepare_decoders()


def local_folder(url: str) -> Path | None:
    """Return the folder that a URL names; None if the URL names another kind of store."""
    return Path(url.removeprefix(_LOCAL)) if url.startswith(_LOCAL) else None


def committed_us(url: str, epoch: int, published_us: int) -> int:
    """Return when `commits/<epoch>` was written, in microseconds since 1970.

    If the checkpoint is in an object store, where each read costs a request, or if Spark has purged the file,
    return `published_us`, which is about 0.1 s earlier.

    :param url: URL of the checkpoint.
    :param published_us: when the manifest was published.
    """
    folder = local_folder(url)
    if folder is None:
        return published_us
    try:
        written = (folder / "commits" / str(epoch)).stat().st_mtime_ns // 1_000
    except OSError:
        return published_us
    return max(written, published_us)  # file systems store times in steps of up to 10 ms


class Offsets(NamedTuple):
    """The source offsets of an epoch."""

    text: str
    """Content of the file."""
    digest: str
    """Digest of the source offsets alone, without the batch's time and watermark in line two. The order of
    named sources (`v2`) does not count."""


def parse_offsets(text: str, where: str) -> Offsets:
    """Parse the content of `offsets/<epoch>`.

    Spark writes `v1` with one line for each source, in the order of the plan. If sources may have names,
    Spark 4.2 and later writes `v2` with one line `<name>:<offset>` for each source. One of two settings
    allows names: `spark.sql.streaming.queryEvolution.enableSourceEvolution` or
    `spark.sql.streaming.offsetLog.formatVersion=2`.

    :param where: path of the file, for errors.
    :raises UnknownOffsetsFormat: the version is unknown, or a line does not fit the version.
    """
    version, *lines = text.split("\n")
    if version not in ("v1", "v2"):
        raise _unknown(
            f"{where} has the version {version!r}. This version of wal_sink reads 'v1' and 'v2'."
        )
    sources = lines[1:] if version == "v1" else _by_name(lines[1:], where)
    return Offsets(text, digest("\n".join(sources).encode()))


def _by_name(lines: list[str], where: str) -> list[str]:
    """Return the lines of a `v2` file, sorted by name, since Spark writes them in the order of a hash map."""
    for line in lines:
        if not re.fullmatch(r'[^\s{}":]+:.+', line):
            raise _unknown(f"{where} has no `<name>:<offset>` in its line {line!r}.")
    return sorted(lines)


def _unknown(what: str) -> UnknownOffsetsFormat:
    return UnknownOffsetsFormat(
        what,
        "Upgrade wal_sink, or run the query with a Spark version that wal_sink is tested with.",
    )


_WHERE = (
    "Give the query's checkpointLocation as an absolute path or URL that the driver and this process share."
    " A relative path is resolved in the folder of this process."
)


class Checkpoint:
    """The checkpoint of one query.

    :param backend: a state backend whose root is the checkpoint's folder.
    """

    METADATA = "metadata"
    """Path of Spark's file with the query id."""
    LOG_URL = "wal_sink/location.json"
    """Path of the sink's own file. Spark ignores unknown folders in a checkpoint."""

    def __init__(self, backend: StateBackend) -> None:
        self._backend = backend
        self._whole = -1
        """The newest file of `commits/` that was read and is whole."""

    @property
    def url(self) -> str:
        """Return the absolute URL of the checkpoint."""
        return self._backend.url

    @property
    def billed(self) -> bool:
        """Return True if each read of the checkpoint costs a request over a network."""
        return self._backend.billed

    def query_id(self) -> str:
        """Read the query's id from `metadata`.

        :raises CheckpointNotVisible: `metadata` is missing or cannot be read.
        """
        try:
            return _safe_name(json.loads(self._backend.read(self.METADATA))["id"])
        except FileNotFoundError as error:
            # Spark writes metadata first. If there is a log, or offsets, metadata was deleted.
            if (log := self.log_url()) or _epochs(self._backend.list("offsets/")):
                raise _deleted(self.url, log) from error
            folder = local_folder(self.url)
            missing = folder is not None and not folder.is_dir()
            raise CheckpointNotVisible(
                f"{self.url}: no such folder."
                if missing
                else f"{self.url} is not a checkpoint: it lacks Spark's file metadata.",
                _WHERE,
            ) from error
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointNotVisible(
                f"No query id can be read from {self.url}/metadata ({type(error).__name__}).",
                _WHERE,
            ) from error

    def log_url(self) -> str | None:
        """Read the URL of the query's log; None before the first start."""
        try:
            data = self._backend.read(self.LOG_URL)
        except FileNotFoundError:
            return None
        return LogUrl.from_json(data, f"{self.url}/{self.LOG_URL}").log

    def create_log_url(self, url: str) -> None:
        """Record the URL of the query's log, unless a URL is recorded already."""
        if self.log_url() is None:
            # Another run may be faster. The caller reads the URL that this run has recorded.
            with contextlib.suppress(FileExistsError):
                self._backend.create(self.LOG_URL, LogUrl(log=url).to_json())

    def replace_log_url(self, url: str) -> None:
        """Record another URL of the query's log, for `adopt`."""
        self._backend.replace(self.LOG_URL, LogUrl(log=url).to_json())

    def last_commit(self) -> int:
        """Return the last checkpointed epoch; -1 for none.

        Every earlier epoch is checkpointed, too, though Spark purges old files. An empty or torn file does
        not count, since Spark would run the epoch again.
        """
        for epoch in sorted(_epochs(self._backend.list("commits/")), reverse=True):
            if epoch == self._whole:  # Spark does not change a whole file
                return epoch
            try:
                if _well_formed(self._backend.read(f"commits/{epoch}")):
                    self._whole = epoch
                    return epoch
            except FileNotFoundError:
                continue  # purged since it was listed
        return -1

    def offsets(self, epoch: int) -> Offsets | None:
        """Read `offsets/<epoch>`; None if Spark has not planned the epoch yet, or has purged the file.

        :raises UnknownOffsetsFormat: see `parse_offsets`.
        """
        path = f"offsets/{epoch}"
        try:
            text = self._backend.read(path).decode(errors="backslashreplace")
        except FileNotFoundError:
            return None
        return parse_offsets(text, f"{self.url}/{path}")

    def committing_offsets(self, epoch: int) -> Offsets:
        """Read `offsets/<epoch>` of an epoch that Spark is committing.

        :raises CheckpointNotVisible: the file is missing.
        :raises UnknownOffsetsFormat: see `parse_offsets`.
        """
        offsets = self.offsets(epoch)
        if offsets is None:
            raise CheckpointNotVisible(
                f"{self.url}/offsets/{epoch} does not exist, although Spark is committing epoch {epoch}.",
                _WHERE,
            )
        return offsets

    def make_durable(self, paths: Iterable[str]) -> None:
        """Sync files of Spark in a local folder, with their checksum files and folders.

        Files are synced in the order of `paths`, so after a power loss the first files are complete. Files
        that Spark has purged are ignored. For an object store nothing is done, since it keeps every
        acknowledged write.

        :raises OSError: a file could not be synced, so the caller must not act on the file's content.
        """
        root = local_folder(self.url)
        if root is None:
            return
        for file in (root / path for path in paths):
            # Hadoop reads a file only if it matches its checksum file.
            synced = [sync(path) for path in (file, file.with_name(f".{file.name}.crc"))]
            if any(synced):
                sync(file.parent)


READ_S = 0.02
"""Seconds between two reads of a local folder by `CommitWatcher`. The reads of an idle query take 0.2 % of a
core."""

_SETTLED_S = 0.1
"""Two changes of a folder that are more than this number of seconds apart have different times of change.
File systems store times in steps of up to 10 ms, and clocks of network mounts may differ by more."""


class CommitWatcher:
    """Watches `commits/` for new files. Used by one thread.

    Spark's event of a checkpointed epoch comes 0.1 to 0.6 s after the file, so a local folder is read every
    `READ_S` seconds. In a bucket each listing costs a request, so the flush loop waits for the event.

    :param url: URL of the checkpoint.
    """

    def __init__(self, url: str) -> None:
        folder = local_folder(url)
        self._commits = "" if folder is None else f"{folder}/commits"
        self._changed_s = 0.0
        self._newest = -1

    @property
    def can_watch(self) -> bool:
        """Return True if the checkpoint is in a local folder."""
        return bool(self._commits)

    def has_new_commit(self) -> bool:
        """Return True if the newest file of `commits/` has changed since the last call.

        Return False if the folder cannot be read. The flusher reads the folder, too, and raises the error.
        """
        if not self._commits:
            return False
        try:
            changed_s = os.stat(self._commits).st_mtime  # noqa: PTH116 - Path is slower, and this runs every 20 ms
            if changed_s == self._changed_s and time.time() - changed_s > _SETTLED_S:
                return False
            names = os.listdir(self._commits)  # noqa: PTH208 - only the names are needed
        except OSError:
            return False
        newest = max((int(name) for name in names if name.isdecimal()), default=-1)
        is_new = newest != self._newest
        self._changed_s, self._newest = changed_s, newest
        return is_new


def _safe_name(query_id: object) -> str:
    """Return the query id if it is safe as the name of a folder; otherwise raise ValueError."""
    if not re.fullmatch(r"[0-9A-Za-z_-]+", str(query_id)):
        raise ValueError(query_id)
    return str(query_id)


def _epochs(listed: Iterable[str]) -> list[int]:
    """Return the epochs of Spark's files. The names of Spark's temporary files are not numbers."""
    names = (path.rpartition("/")[2] for path in listed)
    return [int(name) for name in names if name.isdecimal()]


def _well_formed(commit: bytes) -> bool:
    """Return True if a file of `commits/` is whole: a version, then a line of JSON."""
    version, _, body = commit.partition(b"\n")
    if not re.fullmatch(rb"v\d+", version):
        return False
    try:
        json.loads(body.partition(b"\n")[0])
    except ValueError:
        return False
    return True


def _deleted(url: str, log: str | None) -> CheckpointNotVisible:
    flush = f" The log has what is not flushed. {errors.stand_in(log, 'LAST')}" if log else ""
    last = f" LAST is the newest epoch in {log}/manifests that Spark had kept." if log else ""
    return CheckpointNotVisible(
        f"{url} has lost Spark's file metadata. It existed when the query started, so somebody has"
        " deleted it.",
        "Stop the query. Restore the checkpoint, or start with a new one, which reads the source from its"
        f" beginning.{flush}{last}",
    )
