"""Reads and writes any object of a query's log: once, whole, and each target's own in its own place."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import TypeVar

from state_backends import StateBackend
from wal_sink.errors import CorruptLog
from wal_sink.model import paths
from wal_sink.model.codec import Record
from wal_sink.model.manifest import Attempt

R = TypeVar("R", bound=Record)
N = TypeVar("N", int, str, Attempt)


class LogObjects:
    """The objects of one log, as one of its targets sees them: what all targets share, and its own.

    Every path is given as in a log of one target. Of what each target has for itself, `own` says where it
    lies.

    :param backend: a state backend whose root is the log's folder.
    :param target: the target's name where the log has several; empty where it has one.
    """

    def __init__(self, backend: StateBackend, target: str = "") -> None:
        self.backend = backend
        self.target = target

    @property
    def url(self) -> str:
        """Where the log is, for messages."""
        return self.backend.url

    def own(self, path: str) -> str:
        """Return where an object lies: one that each target has for itself, in the place of this target."""
        return paths.of_target(self.target, path)

    def where(self, path: str) -> str:
        """Return an object's URL, for messages."""
        return f"{self.url}/{self.own(path)}"

    def names(self, folder: str, *, fresh: bool = False) -> list[str]:
        """List the objects of a folder, by their paths in a log of one target.

        :param fresh: see `StateBackend.list_fresh`.
        """
        mine = self.own(folder)
        found = self.backend.list_fresh(mine) if fresh else self.backend.list(mine)
        return found if mine == folder else [folder + path.removeprefix(mine) for path in found]

    def delete(self, objects: Iterable[str]) -> None:
        """Delete objects; those that are gone already are no error."""
        self.backend.delete(map(self.own, objects))

    def read(self, kind: type[R], path: str) -> R | None:
        """Read a record; None when there is none.

        :raises CorruptLog: what is there is no such record.
        """
        try:
            return kind.from_json(self.backend.read(self.own(path)), self.where(path))
        except FileNotFoundError:
            return None

    def read_bytes(self, *places: str) -> bytes | None:
        """Read the first of several objects that is there; None when none is."""
        for path in places:
            with contextlib.suppress(FileNotFoundError):
                return self.backend.read(self.own(path))
        return None

    def create(self, path: str, record: Record) -> None:
        """Create a record; the first content stays, which callers read back where it matters to them."""
        self.create_bytes(path, record.to_json())

    def create_bytes(self, path: str, data: bytes) -> None:
        """Create an object of these bytes; the first content stays."""
        with contextlib.suppress(FileExistsError):
            self.backend.create(self.own(path), data)

    def _settle(self, path: str, record: R) -> R:
        """Create a record unless there is one; return the one that stands."""
        present = self.read(type(record), path)
        if present is None:
            self.create(path, record)
            present = self.read(type(record), path)
        if present is None:
            raise CorruptLog(f"{self.where(path)} vanished", "Do not edit the log by hand.")
        return present

    def _listed(
        self, folder: str, parse: Callable[[str], N | None], *, fresh: bool = False
    ) -> list[N]:
        """List what the names of a folder's objects say, ascending; foreign names are passed over.

        :param fresh: see `StateBackend.list_fresh`.
        """
        parsed = map(parse, self.names(folder, fresh=fresh))
        return sorted(name for name in parsed if name is not None)
