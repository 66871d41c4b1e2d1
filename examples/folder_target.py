"""A target of your own without SQL, whole: a folder of Arrow files, and a catalogue that names them.

Tasks stage rows in files; one replacement of the catalogue adds the files of a window, and moves the ledger
row. Use it as `.option("target", "folder_target:FolderTarget").option("folder.path", "/data/shop")`. The
folder has an Arrow schema in `schema.arrow`: the columns of the table.
"""

from __future__ import annotations

import fcntl
import os
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pyarrow as pa
from msgspec import Meta

from wal_sink.errors import SchemaMismatch, TargetUnavailable
from wal_sink.options import CONNECTS
from wal_sink.targets import (
    Column,
    Delivery,
    Kind,
    LedgerState,
    Options,
    Outcome,
    Owner,
    Plan,
    Slice,
    StagedSession,
    Target,
    Window,
)


class FolderOptions(Options, frozen=True, kw_only=True):
    """The options of this target."""

    path: Annotated[str, Meta(description="folder of the table", extra=CONNECTS)] = msgspec.field(
        name="folder.path"
    )


class Catalogue(msgspec.Struct):
    """What readers see, and the ledger rows by query: one file, replaced whole."""

    files: list[str] = []
    ledger: dict[str, LedgerState] = {}


def written(path: Path, data: Any) -> None:
    """Write a file, durably."""
    with path.open("wb") as file:
        file.write(data)
        os.fsync(file.fileno())


class FolderTarget(Target):
    """Adds rows to a folder."""

    name = "folder"
    options_type = FolderOptions
    delivery = Delivery.STAGED
    parallel_writes = True

    def __init__(self, options: FolderOptions) -> None:
        self.options = options

    @property
    def shape(self) -> Mapping[str, str]:
        """Return the folder."""
        return {"path": self.options.path}

    def plan(self, schema: pa.Schema, key: str) -> Plan:
        """Refuse columns that the table does not have as they are."""
        refuse_unfit(Path(self.options.path), {f.name: str(f.type) for f in schema})
        columns = tuple(
            Column(name=f.name, source=str(f.type), type=str(f.type), role="regular")
            for f in schema
        )
        return Plan(key=key, target=self.name, table=self.options.path, columns=columns)

    def check(self, batch: pa.RecordBatch, plan: Plan) -> pa.RecordBatch:
        """Take each row: the types are those of the table."""
        return batch

    def connect(self, owner: Owner) -> FolderSession:
        """Connect; nothing is held."""
        return FolderSession(Path(self.options.path), owner)

    def classify(self, error: Exception) -> Kind:
        """Try again what the file system refuses, such as a lock that another flusher has."""
        return "retry" if isinstance(error, OSError) else "fatal"


def refuse_unfit(folder: Path, columns: Mapping[str, str]) -> None:
    """Raise an error unless the table has the columns."""
    there = {f.name: str(f.type) for f in pa.ipc.read_schema(folder / "schema.arrow")}
    if unfit := {name: type_ for name, type_ in columns.items() if there.get(name) != type_}:
        raise SchemaMismatch(f"{folder} has no columns {unfit}", "Add them to schema.arrow.")


class FolderSession(StagedSession):
    """Stages the rows between two `drain` in a file for each slice, whose name is the receipt."""

    def __init__(self, folder: Path, owner: Owner) -> None:
        self._folder = folder
        self._query_id = owner.query_id
        self._staged: list[bytes] = []

    def read_ledger(self) -> LedgerState | None:
        """Read the catalogue."""
        return self._catalogue().ledger.get(self._query_id)

    def compare_and_set(self, seen: LedgerState | None, new: LedgerState) -> Outcome:
        """Replace the catalogue."""
        return self._replace(seen, new, ())

    def start(self, window: Window) -> None:
        """Forget what is staged."""
        self._staged = []

    def write(self, plan: Plan, rows: Slice) -> None:
        """Stage a file."""
        refuse_unfit(self._folder, {column.name: column.type for column in plan.columns})
        if rows.batch.num_rows:
            name, sink = f"{uuid.uuid4()}.arrow", pa.BufferOutputStream()
            with pa.ipc.new_file(sink, rows.batch.schema) as file:
                file.write_batch(rows.batch)
            written(self._folder / name, sink.getvalue())
            self._staged.append(name.encode())

    def drain(self) -> tuple[bytes, ...]:
        """Return the names of the files."""
        staged, self._staged = self._staged, []
        return tuple(staged)

    def commit(self, seen: LedgerState, new: LedgerState, receipts: Sequence[bytes]) -> Outcome:
        """Replace the catalogue, with the files."""
        return self._replace(seen, new, receipts)

    def discard(self, receipts: Sequence[bytes]) -> None:
        """Delete files."""
        for receipt in receipts:
            (self._folder / receipt.decode()).unlink(missing_ok=True)

    def close(self) -> None:
        """Nothing is held."""

    def _catalogue(self) -> Catalogue:
        path = self._folder / "catalogue.json"
        return (
            msgspec.json.decode(path.read_bytes(), type=Catalogue) if path.exists() else Catalogue()
        )

    def _replace(
        self, seen: LedgerState | None, new: LedgerState, receipts: Sequence[bytes]
    ) -> Outcome:
        with (self._folder / "lock").open("w") as lock:  # ends with the file, or the process
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            there, names = self._catalogue(), [receipt.decode() for receipt in receipts]
            if there.ledger.get(self._query_id) != seen:
                return Outcome.CONFLICT
            if gone := [name for name in names if not (self._folder / name).exists()]:
                raise TargetUnavailable(f"{gone} are gone", "Nothing: all rows are staged again.")
            there.ledger[self._query_id] = new
            there.files += names
            written(self._folder / "next.json", msgspec.json.encode(there))
            (self._folder / "next.json").replace(self._folder / "catalogue.json")
            folder = os.open(self._folder, os.O_RDONLY)
            os.fsync(folder)
            os.close(folder)
            return Outcome.APPLIED
