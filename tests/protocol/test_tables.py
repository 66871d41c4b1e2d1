"""Several tables of one target, under the faults that one has: repeated, late, killed between two of them.

The tables of `CellStore` acknowledge one after the other, so a flusher that dies, or stands still, after a
call of `write` has left rows in the first table that the second one lacks.
"""

from __future__ import annotations

import pyarrow as pa
import pytest

from tests.protocol.cases import covered
from tests.protocol.engine import Rows, World, in_memory
from tests.protocol.test_crash_everywhere import When, every_fault, flush
from tests.protocol.test_deletes import DeletingWorld, changes
from wal_sink import errors
from wal_sink.flush.read_window import pieces, read_piece
from wal_sink.model.ledger import Mark, Owner
from wal_sink.testing.cell_store import CellStore, CellStoreOptions
from wal_sink.testing.crash.faults import Faults

SCHEMA = pa.schema([("k", pa.string()), ("op", pa.string()), ("v", pa.int64()), ("w", pa.int64())])
FIRST, LAST = "wide", "narrow"


class TablesWorld(DeletingWorld):
    """A query in memory whose rows go to two tables; the judge looks at the last one."""

    naming = False
    dates = False

    def __init__(self) -> None:
        store = CellStore(
            CellStoreOptions(
                keys="k;k",
                columns="k,v,w;k,v",
                tables=f"{FIRST},{LAST}",
                table_column="goes" if self.naming else "",
                operation_column="op",
            )
        )
        World.__init__(self, *in_memory(), store)

    def frame(self, rows: Rows) -> pa.RecordBatch:
        """Return rows as the DataFrame has them."""
        batch = super().frame(rows)
        return batch.append_column("w", batch.column("v"))

    def seen(self, table: str) -> dict[str, int]:
        """Return what a reader of one table sees."""
        return {key[0]: row["v"] for key, row in self.store.rows(table).items()}

    def visible(self) -> list[tuple[str, int]]:
        """Return what a reader of the last table sees; where nothing is begun, both tables are alike."""
        ledger = self.ledger()
        if ledger is not None and ledger.begun is None:
            assert self.seen(FIRST) == self.seen(LAST)
        return list(self.seen(LAST).items())


class NamingWorld(TablesWorld):
    """The same, where each row goes to one of the tables, by its key."""

    naming = True

    def frame(self, rows: Rows) -> pa.RecordBatch:
        """Return rows as the DataFrame has them."""
        goes = [FIRST if key in ("shared", "gone") else LAST for key, _ in rows]
        return super().frame(rows).append_column("goes", pa.array(goes, pa.string()))

    def visible(self) -> list[tuple[str, int]]:
        """Return the rows of both tables, which have no key in common."""
        assert set(self.seen(FIRST)) <= {"shared", "gone"}
        assert not set(self.seen(LAST)) & {"shared", "gone"}
        return [*self.seen(FIRST).items(), *self.seen(LAST).items()]


@pytest.mark.parametrize(
    ("kind", "role", "when"),
    [
        (TablesWorld, "flusher", "after"),
        (TablesWorld, "flusher of a backlog", "before"),
        (NamingWorld, "flusher of a backlog", "answer lost"),
    ],
)
def test_every_fault_between_tables_is_recovered_from(
    kind: type[TablesWorld], role: str, when: When
) -> None:
    """Every key of each table is as its last change has it, and no row is of an attempt that is not kept."""
    hit = every_fault(kind, role, when, changes)
    assert len([name for name in hit if name.startswith("write ")]) > 3
    covered(f"fault at every operation of a {role} of {kind.__name__}, {when}", f"{len(hit)}")


def begun(world: TablesWorld) -> Mark:
    """Let a flusher die when its rows are in one table, and not in the other; return the ledger row."""
    stale = world.flusher(Faults(at=1, when="after", error=ConnectionError, matching="write"))
    stale.run_once()
    with pytest.raises(errors.TargetUnavailable):
        stale.run_once()
    ledger = world.ledger()
    assert ledger is not None
    return ledger


def test_rule_15_a_window_is_not_finished_while_a_table_lacks_its_rows() -> None:
    """The ledger says that it is begun, one row for all tables; the next flusher writes to both again."""
    world = TablesWorld()
    world.run().batch([("a", 1), ("b", 2)])
    ledger = begun(world)
    assert (world.seen(FIRST), world.seen(LAST)) == ({"a": 1, "b": 2}, {"a": 1})
    assert (ledger.flushed, ledger.begun is None) == (-1, False)
    flush(world.flusher())
    assert world.seen(FIRST) == world.seen(LAST) == {"a": 1, "b": 2}
    assert len(world.store.ledger) == 1
    stamps = [
        {key: row.cells["v"].us for key, row in table.rows.items()}
        for table in world.store.tables.values()
    ]
    assert stamps[0] == stamps[1], "a row has one timestamp, whichever table it goes to"


def test_rule_15_a_late_flusher_changes_no_table() -> None:
    """It stood still between two tables, while another one finished, and flushed what came behind."""
    world = TablesWorld()
    run = world.run()
    run.batch([("k", 1), ("gone", 1)])
    window = begun(world).begun
    assert window is not None
    (piece,) = pieces(world.log, window.epochs[0])
    held = list(read_piece(world.log_backend, piece))
    run.batch([("k", 2), ("gone", None)])
    world.flush()
    with world.store.connect(Owner(world.query_id, "", "")) as session:
        for rows in held:
            session.write(piece.plan, rows)
        session.drain()
    assert world.seen(FIRST) == world.seen(LAST) == {"k": 2}


def test_a_word_that_names_no_table_publishes_nothing() -> None:
    """The task fails, and with it the micro-batch; the log has no segment of it."""
    world = NamingWorld()
    run = world.run()
    unknown = world.frame([("a", 1)]).set_column(4, "goes", pa.array(["system"]))
    world.frame = lambda rows: unknown  # type: ignore[method-assign]
    with pytest.raises(errors.InvalidRow, match=r"'system'.* names no table"):
        run.publish([("a", 1)])
    assert not [path for path in world.log_backend.list() if path.startswith(("seg", "man"))]


def test_the_log_counts_rows_and_not_what_the_tables_get() -> None:
    """In records and reports: a row that goes to two tables is one."""
    world = TablesWorld()
    world.run().batch([("a", 1), ("b", 2)])
    world.flush()
    assert world.log.flushed(0).rows == 2  # type: ignore[union-attr]
