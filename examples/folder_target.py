"""A complete target without SQL: a folder of Arrow files, and a catalogue that names them.

Tasks stage rows in files. One replacement of the catalogue adds the files of a window, and moves the ledger
row. Use it as `.option("target", "folder_target:FolderTarget").option("folder.path", "/data/shop")`. The
folder has an Arrow schema in `schema.arrow`: the columns of the table.
"""

from __future__ import annotations

import fcntl
import os
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import pyarrow as pa

from wal_sink.errors import SchemaMismatch, TargetUnavailable
from wal_sink.options import CONNECTS, SHAPES, about
from wal_sink.targets import (
    Column,
    LedgerRow,
    Options,
    Outcome,
    Plan,
    RowSlice,
    StagedSession,
    Target,
)


class FolderOptions(Options, frozen=True, kw_only=True):
    """The options of this target."""

    path: Annotated[str, about("folder of the table", CONNECTS, SHAPES)] = msgspec.field(
        name="folder.path"
    )


class Catalogue(msgspec.Struct):
    """The files that readers read, and the ledger row of each query. It is one file, which is replaced."""

    files: list[str] = []
    ledger: dict[str, LedgerRow] = {}


class FolderTarget(Target):
    """Adds rows to a folder."""

    interface = 2
    name = "folder"
    options_type = FolderOptions
    parallel_writes = True
    transient = (OSError,)  # for example, another flusher has the lock

    def plan(self, schema: pa.Schema, key: str) -> Plan:
        """Refuse columns that the table does not have."""
        self.connect("").refuse_unfit(schema)
        columns = tuple(map(Column.like, schema))
        return Plan(key=key, target="folder", table=self.options.path, columns=columns)

    def check(self, batch: pa.RecordBatch, plan: Plan) -> pa.RecordBatch:
        """Accept each row, since its types are those of the table."""
        return batch

    def connect(self, query_id: str) -> FolderSession:
        """Return a session, which holds no connection."""
        return FolderSession(Path(self.options.path), query_id)


class FolderSession(StagedSession):
    """Stages each slice in a file. The name of the file is the receipt."""

    def __init__(self, folder: Path, query_id: str) -> None:
        self._folder, self._query_id = folder, query_id
        self._staged: list[bytes] = []

    def refuse_unfit(self, schema: pa.Schema) -> None:
        """Refuse columns that the table does not have."""
        if unfit := {*schema} - {*pa.ipc.read_schema(self._folder / "schema.arrow")}:
            raise SchemaMismatch(f"{self._folder} has no {unfit}", "Write another schema.arrow.")

    def read(self) -> LedgerRow | None:
        """Read the catalogue."""
        return self._catalogue().ledger.get(self._query_id)

    def write(self, plan: Plan, rows: RowSlice) -> None:
        """Write a file."""
        self.refuse_unfit(rows.batch.schema)
        if rows.batch.num_rows:
            name = f"{uuid.uuid4()}.arrow"
            with pa.ipc.new_file(self._folder / name, rows.batch.schema) as file:
                file.write_batch(rows.batch)
            self._staged.append(name.encode())

    def drain(self) -> tuple[bytes, ...]:
        """Return the names of the files that were staged since the last call."""
        staged, self._staged = self._staged, []
        return tuple(staged)

    def finish(
        self, current: LedgerRow | None, new: LedgerRow, receipts: Sequence[bytes] = ()
    ) -> Outcome:
        """Replace the catalogue, if it has the current ledger row and the files exist."""
        with (self._folder / "lock").open("w") as lock:  # closing the file unlocks it
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            catalogue = self._catalogue()
            names = [receipt.decode() for receipt in (*receipts, *self.drain())]
            if catalogue.ledger.get(self._query_id) != current:
                return Outcome.CONFLICT
            if not all((self._folder / name).exists() for name in names):
                raise TargetUnavailable("Staged files are gone", "Nothing: they are staged again.")
            catalogue.files += names
            catalogue.ledger[self._query_id] = new
            (self._folder / "next.json").write_bytes(msgspec.json.encode(catalogue))
            os.sync()  # the files, and the catalogue that names them
            (self._folder / "next.json").replace(self._folder / "catalogue.json")
            os.sync()
        return Outcome.APPLIED

    def discard(self, receipts: Sequence[bytes]) -> None:
        """Delete files."""
        for receipt in receipts:
            (self._folder / receipt.decode()).unlink(missing_ok=True)

    def close(self) -> None:
        """Do nothing."""

    def _catalogue(self) -> Catalogue:
        path = self._folder / "catalogue.json"
        text = path.read_bytes() if path.exists() else b"{}"
        return msgspec.json.decode(text, type=Catalogue)
