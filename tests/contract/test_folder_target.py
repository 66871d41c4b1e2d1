"""The contract of staged targets over the example without SQL, and the example test of docs/targets.md."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from folder_target import Catalogue, FolderOptions, FolderSession, FolderTarget
from wal_sink.targets import LedgerRow, Outcome
from wal_sink.targets.base import Target
from wal_sink.testing.contracts import StagedContract
from wal_sink.testing.contracts.ledger import Stored
from wal_sink.testing.contracts.rows import WITH_DOUBLE

PAGE = Path(__file__).parents[2] / "docs" / "targets.md"


class TestFolder(StagedContract):
    kind: type[FolderTarget] = FolderTarget

    @pytest.fixture
    def target(self, tmp_path: Path) -> FolderTarget:
        (tmp_path / "schema.arrow").write_bytes(WITH_DOUBLE.serialize())
        return self.kind(FolderOptions(path=str(tmp_path)))

    def records(self, target: Target) -> list[Stored]:
        return [(row["k"], row["n"], row["v"], row["t"], row.get("d")) for row in read(target)]

    def conflict_after_commit(
        self, patch: pytest.MonkeyPatch, landed: Callable[[], object]
    ) -> None:
        real = FolderSession.finish

        def finish(
            self: FolderSession,
            current: LedgerRow | None,
            new: LedgerRow,
            receipts: Sequence[bytes] = (),
        ) -> Outcome:
            patch.setattr(FolderSession, "finish", real)
            real(self, current, new, receipts)
            landed()
            raise BlockingIOError("the lock is held")

        patch.setattr(FolderSession, "finish", finish)


class RowsFirstSession(FolderSession):
    """Commits rows, then the ledger row."""

    def finish(
        self, current: LedgerRow | None, new: LedgerRow, receipts: Sequence[bytes] = ()
    ) -> Outcome:
        catalogue = self._catalogue()
        catalogue.files += [receipt.decode() for receipt in (*receipts, *self.drain())]
        (self._folder / "catalogue.json").write_bytes(msgspec.json.encode(catalogue))
        catalogue.ledger[self._query_id] = new
        (self._folder / "catalogue.json").write_bytes(msgspec.json.encode(catalogue))
        return Outcome.APPLIED


def test_calls_of_a_session_in_another_package_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The suite also counts the calls of a session whose class is in another package than the target."""
    (tmp_path / "schema.arrow").write_bytes(WITH_DOUBLE.serialize())
    monkeypatch.setattr(
        FolderTarget, "connect", lambda self, query_id: RowsFirstSession(tmp_path, query_id)
    )
    with pytest.raises(AssertionError, match="call "):
        TestFolder().test_flusher_that_dies_anywhere_loses_nothing(
            FolderTarget(FolderOptions(path=str(tmp_path)))
        )


def test_kill_test_of_the_docs_passes(tmp_path: Path) -> None:
    (shown,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "schema.arrow").write_bytes(WITH_DOUBLE.serialize())
    target = FolderTarget(FolderOptions(path=str(tmp_path)))
    exec(compile(shown, str(PAGE), "exec"), names := dict[str, Any]())
    names["test_a_flusher_dies_between_two_slices"](
        target, lambda: [(row["k"], row["n"]) for row in read(target)]
    )


def read(target: Target) -> list[dict[str, Any]]:
    """Read the rows of the files in the catalogue."""
    assert isinstance(target, FolderTarget)
    folder = Path(target.options.path)
    if not (folder / "catalogue.json").exists():
        return []
    files = msgspec.json.decode((folder / "catalogue.json").read_bytes(), type=Catalogue).files
    return [row for name in files for row in pa.ipc.open_file(folder / name).read_all().to_pylist()]
