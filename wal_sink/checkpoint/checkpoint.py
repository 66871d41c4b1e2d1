"""Reads Spark's checkpoint of a query, which alone says what is checkpointed (rule 8).

Spark's files are never written. One small file of our own, beside them, says where the query's log is.

A checkpoint in a local folder can also be synced, and its files have times.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import TypeAlias

from state_backends import StateBackend
from wal_sink import errors
from wal_sink.errors import CheckpointNotVisible, UnknownOffsetsFormat
from wal_sink.model.manifest import Offsets, parse_offsets
from wal_sink.model.records import LogUrl

_LOCAL = "file://"
_REMEMBERED = 64
"""Files; an epoch has four."""

_FAILED: dict[tuple[int, int, int], OSError] = {}
"""Syncs that have failed in this process: device and inode, and when what they name was written last.

A system reports an error of writing once, and may drop what it could not write. A later sync of the same
bytes then succeeds, and says nothing (rule 8).
"""


def local_folder(url: str) -> Path | None:
    """Return the folder that a URL names; None for another kind of store."""
    return Path(url.removeprefix(_LOCAL)) if url.startswith(_LOCAL) else None


class Synced:
    """Files below one folder that were synced, and are as they were then. Used by several threads.

    A file with the same number, size and times has not changed since, nor was it named anew: it is durable,
    with its name. To look costs microseconds, a sync milliseconds.

    :param url: the folder; in another kind of store nothing is synced, as it keeps what it has acknowledged.
    """

    def __init__(self, url: str) -> None:
        self._root = local_folder(url)
        self._states: dict[Path, _State] = {}
        self._lock = threading.Lock()

    def has(self, path: str) -> bool:
        """Whether a file is there."""
        return self._root is not None and (self._root / path).exists()

    def make_durable(self, paths: Iterable[str]) -> None:
        """Sync files, their checksum files, and the folders that hold them, as far as they are not durable.

        Passes over files that Spark has purged.

        :raises OSError: a file could not be synced, now or earlier in this process, so its content must not
            be acted on.
        """
        if self._root is None:
            return
        files = [self._root / path for path in paths]
        # Hadoop reads a file only if the other one agrees.
        pairs = [each for file in files for each in (file, file.with_name(f".{file.name}.crc"))]
        with self._lock:
            synced: dict[Path, _State] = {}
            for file in pairs:
                known = self._states.get(file)
                if (state := _sync(file, known)) is not None and state != known:
                    synced[file] = state
            for folder in {file.parent for file in synced}:
                _sync(folder)
            for file, state in synced.items():
                self._states.pop(file, None)
                self._states[file] = state
            for file in list(self._states)[:-_REMEMBERED]:
                del self._states[file]


_State: TypeAlias = tuple[int, int, int, int, int]


def _state_of(found: os.stat_result) -> _State:
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _sync(path: Path, known: _State | None = None) -> _State | None:
    """Sync a file or folder, unless it is as known; return its state from before, None when it is not there.

    It is opened in any case: a network mount then asks its server for the state.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        found = os.fstat(descriptor)
        state, written = _state_of(found), (found.st_dev, found.st_ino, found.st_mtime_ns)
        try:
            if state != known:
                os.fsync(descriptor)
        except OSError as error:
            _FAILED[written] = error
        # After the sync: that of another thread may have failed meanwhile.
        if (failed := _FAILED.get(written)) is not None:
            raise OSError(
                failed.errno,
                f"{path} could not be synced ({failed}), and no later sync tells whether the disk has it. The"
                " flush goes on when the file is written anew (copy it, and move the copy into its place), or"
                " when Spark has committed two more epochs",
            ) from failed
    finally:
        os.close(descriptor)
    return state


def committed_us(url: str, epoch: int, published_us: int) -> int:
    """Return when `commits/<epoch>` was written, in microseconds since 1970.

    :param url: the checkpoint.
    :param published_us: when the manifest was published, some 0.1 s earlier: returned for a checkpoint in an
        object store, where each look costs a request, and for a file that Spark has purged since.
    """
    folder = local_folder(url)
    if folder is None:
        return published_us
    try:
        written = (folder / "commits" / str(epoch)).stat().st_mtime_ns // 1_000
    except OSError:
        return published_us
    return max(written, published_us)  # clocks of file systems tick in steps of up to 10 ms


_WHERE = (
    "Give the query's checkpointLocation, as an absolute one that the driver and this process share: a"
    " relative one counts from this process's folder."
)


class Checkpoint:
    """A checkpoint folder.

    :param backend: a state backend whose root is that folder.
    """

    METADATA = "metadata"
    """Path of Spark's file with the query id."""
    LOG_URL = "wal_sink/location.json"
    """Path of our own file; Spark leaves folders that it does not know alone."""

    def __init__(self, backend: StateBackend) -> None:
        self._backend = backend

    @property
    def url(self) -> str:
        """Where the checkpoint is; absolute."""
        return self._backend.url

    @property
    def billed(self) -> bool:
        """Whether every look into the checkpoint costs a request over a network."""
        return self._backend.billed

    def query_id(self) -> str:
        """Read the query's id from `metadata`.

        :raises CheckpointNotVisible: there is no readable `metadata`.
        """
        try:
            return _one_name(json.loads(self._backend.read(self.METADATA))["id"])
        except FileNotFoundError as error:
            # Spark writes metadata before either of these.
            if (log := self.log_url()) or _epochs(self._backend.list_fresh("offsets/")):
                raise _deleted(self.url, log) from error
            folder = local_folder(self.url)
            missing = folder is not None and not folder.is_dir()
            raise CheckpointNotVisible(
                f"{self.url}: no such folder"
                if missing
                else f"{self.url} is no checkpoint: Spark's file metadata is not in it",
                _WHERE,
            ) from error
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointNotVisible(
                f"No query id can be read from {self.url}/metadata ({type(error).__name__})", _WHERE
            ) from error

    def log_url(self) -> str | None:
        """Read where the query's log is; None before the first start."""
        try:
            data = self._backend.read(self.LOG_URL)
        except FileNotFoundError:
            return None
        return LogUrl.from_json(data, f"{self.url}/{self.LOG_URL}").log

    def create_log_url(self, url: str) -> None:
        """Note where the query's log is, unless that is noted already."""
        if self.log_url() is None:
            with contextlib.suppress(FileExistsError):  # another run was faster; the caller reads
                self._backend.create(self.LOG_URL, LogUrl(log=url).to_json())

    def replace_log_url(self, url: str) -> None:
        """Note another place of the query's log, whole: an operator adopts it (rule 22)."""
        self._backend.replace(self.LOG_URL, LogUrl(log=url).to_json())

    def last_commit(self, *, fresh: bool = False) -> int:
        """Return the highest checkpointed epoch, -1 for none.

        Every epoch up to it is checkpointed as well, although Spark purges old files. A file that is empty
        or torn does not count: Spark would run its epoch again.

        :param fresh: for a caller that goes on because an epoch is not checkpointed, see
            `StateBackend.list_fresh`.
        """
        listed = self._backend.list_fresh if fresh else self._backend.list
        for epoch in sorted(_epochs(listed("commits/")), reverse=True):
            try:
                if _well_formed(self._backend.read(f"commits/{epoch}")):
                    return epoch
            except FileNotFoundError:
                continue  # purged since it was listed
        return -1

    def next_epoch(self) -> int:
        """Return the epoch with which a run that starts goes on, from fresh listings.

        Spark runs the newest epoch that is planned and not checkpointed. Where `commits/` was set back and
        `offsets/` was not, that is not the one after the last commit: those between are not computed again.
        """
        planned = max(_epochs(self._backend.list_fresh("offsets/")), default=-1)
        return max(planned, self.last_commit(fresh=True) + 1)

    def committing_offsets(self, epoch: int) -> Offsets:
        """Read `offsets/<epoch>` of an epoch that Spark is committing.

        :raises CheckpointNotVisible: the file is not there.
        :raises UnknownOffsetsFormat: it is of a version that `parse_offsets` does not know.
        """
        found = self.offsets(epoch)
        if found is None:
            raise CheckpointNotVisible(
                f"{self.url}/offsets/{epoch} is not there although Spark is committing epoch {epoch}",
                _WHERE,
            )
        return found

    def offsets_digest(self, epoch: int) -> str | None:
        """Return the digest of what `offsets` reads; None also where its version is not known."""
        try:
            found = self.offsets(epoch)
        except UnknownOffsetsFormat:
            return None
        return found.digest if found else None

    def offsets(self, epoch: int) -> Offsets | None:
        """Read `offsets/<epoch>`; None when the epoch is not planned yet, or its file is purged.

        :raises UnknownOffsetsFormat: it is of a version that `parse_offsets` does not know.
        """
        path = f"offsets/{epoch}"
        try:
            text = self._backend.read(path).decode()
        except FileNotFoundError:
            return None
        return parse_offsets(text, f"{self.url}/{path}")


def _one_name(query_id: object) -> str:
    """Return an id that can name a folder and no other place, as it names the log's; refuse another."""
    if not re.fullmatch(r"[0-9A-Za-z_-]+", str(query_id)):
        raise ValueError(query_id)
    return str(query_id)


def _epochs(listed: Iterable[str]) -> list[int]:
    """Return the epochs of listed files; Spark's temporary ones have other names."""
    names = (path.rpartition("/")[2] for path in listed)
    return [int(name) for name in names if name.isdecimal()]


def _well_formed(commit: bytes) -> bool:
    """Whether a file of `commits/` is whole: a version, then a line of JSON."""
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
        f"{url} has lost Spark's file metadata. It was there when the query started: somebody has deleted"
        " it",
        "Stop the query. Restore the checkpoint, or start with a new one, which reads the source from its"
        f" beginning.{flush}{last}",
    )
