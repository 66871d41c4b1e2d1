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
from typing import Annotated

import msgspec
import pyarrow as pa
from msgspec import Meta

from wal_sink.errors import SchemaMismatch, TargetUnavailable
from wal_sink.options import CONNECTS
from wal_sink.targets import (
    Column,
    Delivery,
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


class FolderTarget(Target):
    """Adds rows to a folder."""

    name = "folder"
    options_type = FolderOptions
    delivery = Delivery.STAGED
    parallel_writes = True
    transient = (OSError,)  # above all: another flusher has the lock

    @property
    def shape(self) -> Mapping[str, str]:
        """Return the folder."""
        return {"path": self.options.path}

    def plan(self, schema: pa.Schema, key: str) -> Plan:
        """Refuse columns that the table does not have."""
        self.connect(Owner("", "", "")).refuse_unfit(schema)
        columns = tuple(map(Column.like, schema))
        return Plan(key=key, target="folder", table=self.options.path, columns=columns)

    def check(self, batch: pa.RecordBatch, plan: Plan) -> pa.RecordBatch:
        """Take each row: its types are those of the table."""
        return batch

    def connect(self, owner: Owner) -> FolderSession:
        """Connect; nothing is held."""
        return FolderSession(Path(self.options.path), owner)


class FolderSession(StagedSession):
    """Stages each slice in a file, whose name is the receipt."""

    def __init__(self, folder: Path, owner: Owner) -> None:
        self._folder, self._query_id = folder, owner.query_id
        self._staged: list[bytes] = []

    def refuse_unfit(self, schema: pa.Schema) -> None:
        """Refuse columns that the table does not have."""
        if unfit := {*schema} - {*pa.ipc.read_schema(self._folder / "schema.arrow")}:
            raise SchemaMismatch(f"{self._folder} has no {unfit}", "Write another schema.arrow.")

    def read_ledger(self) -> LedgerState | None:
        """Read the catalogue."""
        return self._catalogue().ledger.get(self._query_id)

    def start(self, window: Window) -> None:
        """Forget the rows without a receipt."""
        self._staged = []

    def write(self, plan: Plan, rows: Slice) -> None:
        """Write a file."""
        self.refuse_unfit(rows.batch.schema)
        if rows.batch.num_rows:
            name = f"{uuid.uuid4()}.arrow"
            with pa.ipc.new_file(self._folder / name, rows.batch.schema) as file:
                file.write_batch(rows.batch)
            self._staged.append(name.encode())

    def drain(self) -> tuple[bytes, ...]:
        """Return the names of the files since the last time."""
        staged, self._staged = self._staged, []
        return tuple(staged)

    def commit(
        self, seen: LedgerState | None, new: LedgerState, receipts: Sequence[bytes]
    ) -> Outcome:
        """Replace the catalogue, if the row is the one that was seen and the files are there."""
        with (self._folder / "lock").open("w") as lock:  # which ends with the file, or the process
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            there, names = self._catalogue(), [receipt.decode() for receipt in receipts]
            if there.ledger.get(self._query_id) != seen:
                return Outcome.CONFLICT
            if not all((self._folder / name).exists() for name in names):
                raise TargetUnavailable("Staged files are gone", "Nothing: they are staged again.")
            there.files += names
            there.ledger[self._query_id] = new
            (self._folder / "next.json").write_bytes(msgspec.json.encode(there))
            os.sync()  # the files, and the catalogue that names them
            (self._folder / "next.json").replace(self._folder / "catalogue.json")
            os.sync()
        return Outcome.APPLIED

    def discard(self, receipts: Sequence[bytes]) -> None:
        """Delete files."""
        for receipt in receipts:
            (self._folder / receipt.decode()).unlink(missing_ok=True)

    def close(self) -> None:
        """Nothing is held."""

    def _catalogue(self) -> Catalogue:
        path = self._folder / "catalogue.json"
        found = path.read_bytes() if path.exists() else b"{}"
        return msgspec.json.decode(found, type=Catalogue)
