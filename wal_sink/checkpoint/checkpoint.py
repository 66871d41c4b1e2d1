"""Reads Spark's checkpoint of a query, which alone says what is checkpointed (rule 8).

Spark's files are never written. One small file of our own, beside them, says where the query's log is.
"""

from __future__ import annotations

import contextlib
import json
import re

from state_backends import StateBackend
from wal_sink.checkpoint.local_files import local_folder
from wal_sink.errors import CheckpointNotVisible
from wal_sink.model.offsets import Offsets, parse_offsets
from wal_sink.model.records import LogUrl

_WHERE = (
    "Give the query's checkpointLocation, as an absolute one that the driver and this process share: a"
    " relative one counts from this process's folder."
)


class Checkpoint:
    """A checkpoint folder.

    :param backend: a state backend whose root is that folder.
    """

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
            return _one_name(json.loads(self._backend.read("metadata"))["id"])
        except FileNotFoundError as error:
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
        """Read where the query's log is; None before the first publish."""
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
        names = [path.rpartition("/")[2] for path in listed("commits/")]
        for epoch in sorted([int(name) for name in names if name.isdecimal()], reverse=True):
            try:
                if _well_formed(self._backend.read(f"commits/{epoch}")):
                    return epoch
            except FileNotFoundError:
                continue  # purged since it was listed
        return -1

    def offsets(self, epoch: int) -> Offsets:
        """Read `offsets/<epoch>` of an epoch that Spark is committing.

        :raises CheckpointNotVisible: the file is not there.
        :raises UnknownOffsetsFormat: it is of a version that `parse_offsets` does not know.
        """
        found = self.planned(epoch)
        if found is None:
            raise CheckpointNotVisible(
                f"{self.url}/offsets/{epoch} is not there although Spark is committing epoch {epoch}",
                _WHERE,
            )
        return found

    def planned(self, epoch: int) -> Offsets | None:
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
