"""Entries that are added to a map one by one, under the faults that rows have: repeated, late, cut off.

All rows are of one key, and each adds an entry to its map: what the judge takes for a table is that map.
"""

from __future__ import annotations

import pyarrow as pa
import pytest

from tests.protocol.cases import covered
from tests.protocol.engine import Rows, World, in_memory
from tests.protocol.test_crash_everywhere import When, every_fault, upon_rows
from wal_sink.errors import TargetUnavailable
from wal_sink.flush.read_window import pieces, read_piece
from wal_sink.model.ledger import Owner
from wal_sink.testing.cell_store import CellStore, CellStoreOptions
from wal_sink.testing.crash.faults import Faults

SCHEMA = pa.schema([("k", pa.string()), ("m", pa.map_(pa.string(), pa.int64()))])


class AddingToMapWorld(World):
    """A query in memory whose rows add entries to the map of one row."""

    dates = False

    def __init__(self) -> None:
        super().__init__(
            *in_memory(), CellStore(CellStoreOptions(keys="k", collections={"m": "add"}))
        )

    def frame(self, rows: Rows) -> pa.RecordBatch:
        """Return rows as the DataFrame has them."""
        added = [{"k": "all", "m": [(key, value)]} for key, value in rows]
        return pa.RecordBatch.from_pylist(added, SCHEMA)

    def visible(self) -> list[tuple[str, int]]:
        """Return the entries that a reader sees."""
        row = self.store.rows().get(("all",))
        return list(row["m"].items()) if row else []


@upon_rows
def test_every_fault_upon_entries_is_recovered_from(role: str, when: When) -> None:
    """Every entry is as its last row has it, and none is of an attempt that is not kept."""
    hit = every_fault(AddingToMapWorld, role, when)
    assert len([name for name in hit if name.startswith("write ")]) > 3
    covered(f"fault at every operation of a {role} that adds entries, {when}", f"{len(hit)}")


def test_rule_15_a_late_flusher_cannot_set_an_entry_back() -> None:
    """It stood still before its rows, while another one finished them and the epoch that came after."""
    world = AddingToMapWorld()
    run = world.run()
    run.batch([("a", 1), ("b", 1)])
    stale = world.flusher(Faults(at=0, error=ConnectionError, matching="write"))
    stale.run_once()
    with pytest.raises(TargetUnavailable):
        stale.run_once()
    window = world.store.ledger[world.query_id].begun
    assert window is not None
    (piece,) = pieces(world.log, window.epochs[0])
    held = list(read_piece(world.log_backend, piece))
    run.batch([("a", 2)])
    world.flush()
    with world.store.connect(Owner(world.query_id, "", "")) as session:
        for rows in held:
            session.write(piece.plan, rows)
        session.drain()
    assert world.table() == {"a": 2, "b": 1}
