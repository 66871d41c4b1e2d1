"""A Delta table, as it was when it was looked at; a commit is about exactly that."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import TableNotFoundError
from deltalake.transaction import AddAction

from wal_sink.errors import SchemaMismatch
from wal_sink.targets.delta.files import Files
from wal_sink.targets.delta.fitness import refuse_unfit

_SYNCED_AT_ONCE = 20


class Table:
    """The table at a path. delta-rs keeps what it has read; `refresh` reads what was committed since.

    :raises SchemaMismatch: there is no table.
    """

    def __init__(self, path: str, options: dict[str, str] | None, files: Files) -> None:
        self.path = path
        self._options = options
        self._files = files
        self._table = self._opened()
        self._synced: int | None = None

    def refresh(self) -> None:
        """Look at the newest version.

        :raises SchemaMismatch: there is no table any more.
        """
        self._table.update_incremental()
        # A table that was deleted and made again has a log of its own, upon which an old one must not go on.
        if self._files.missing([_commit_file(self._table.version())]):
            self._table, self._synced = self._opened(), None

    def transaction_version(self, app_id: str) -> int | None:
        """Return the newest version that a writer has noted with its commits; None for none."""
        return self._table.transaction_version(app_id)

    def commit(
        self, files: Sequence[AddAction], transactions: dict[str, int], said: dict[str, str]
    ) -> None:
        """Add files in one commit, unless one since this look has noted any of the transactions.

        delta-rs tells that from the commits that lie between this look and its own; commits of other writers
        that do not touch this one's it passes over.

        :param said: what the table's history says of the commit.
        :raises CommitFailedError: it certainly has no effect, unless it is this very commit that was met: one
            whose answer was lost on the way.
        """
        self._table.create_write_transaction(
            list(files),
            "append",
            self._table.schema(),
            partition_by=self.partitioned_by,
            commit_properties=CommitProperties(
                custom_metadata=said,
                app_transactions=[Transaction(app, v) for app, v in transactions.items()],
            ),
        )

    def sync(self) -> None:
        """Make the version that was looked at survive a power loss, and those before it."""
        newest = self._table.version()
        if newest != self._synced:
            first = max(0, newest - _SYNCED_AT_ONCE, (self._synced or -1) + 1)
            self._files.sync(_commit_file(version) for version in range(first, newest + 1))
            self._synced = newest

    @property
    def fields(self) -> list[dict[str, Any]]:
        """The columns, as the log has them."""
        fields: list[dict[str, Any]] = json.loads(self._table.schema().to_json())["fields"]
        return fields

    @property
    def partitioned_by(self) -> list[str]:
        """The partition columns, in their order."""
        return list(self._table.metadata().partition_columns)

    @property
    def fingerprint(self) -> str:
        """A digest of all that shapes the files of the table."""
        metadata, protocol = self._table.metadata(), self._table.protocol()
        shapes = [
            metadata.id,
            self._table.schema().to_json(),
            metadata.partition_columns,
            sorted(metadata.configuration.items()),
            sorted(protocol.writer_features or ()),
        ]
        return hashlib.sha256(json.dumps(shapes).encode()).hexdigest()[:32]

    def refuse_unfit(self) -> None:
        """See that files may be added.

        :raises SchemaMismatch: names what is in the way.
        """
        refuse_unfit(
            self.path,
            self.fields,
            self._table.metadata().configuration,
            self._table.protocol().writer_features or (),
        )

    def _opened(self) -> DeltaTable:
        try:
            return DeltaTable(self.path, storage_options=self._options)
        except TableNotFoundError as error:
            raise SchemaMismatch(
                f"There is no Delta table at {self.path}.",
                "Create it, or correct option delta.path.",
            ) from error


def _commit_file(version: int) -> str:
    return f"_delta_log/{version:020}.json"
