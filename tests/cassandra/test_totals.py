"""Totals on a real node: types and other columns, then flushers that are killed among reads and writes."""

from __future__ import annotations

import multiprocessing
import time
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

from state_backends import open_backend
from tests.protocol.engine import World
from tests.support.cassandra import target_of
from wal_sink.checkpoint.checkpoint import Checkpoint
from wal_sink.clock import now_us
from wal_sink.errors import TargetRefused
from wal_sink.flush.flusher import Flusher, Pipeline
from wal_sink.model.ledger import Outcome
from wal_sink.protocol.next_step import Idle
from wal_sink.targets.base import Slice, Target
from wal_sink.targets.cassandra.write import totals
from wal_sink.testing.contracts.ledger import begin, begun_window, create, finish, new_owner
from wal_sink.testing.contracts.rows import deliver
from wal_sink.testing.servers.cassandra import Node
from wal_sink.wal.log import Log

pytestmark = pytest.mark.cassandra

NUMBERS = {
    "b": ("tinyint", pa.int8(), 100),
    "s": ("smallint", pa.int16(), -7),
    "i": ("int", pa.int32(), 2**30),
    "l": ("bigint", pa.int64(), 2**61),
    "w": ("varint", pa.decimal128(38, 0), Decimal(10**37)),
    "d": ("decimal", pa.decimal128(9, 2), Decimal("1.50")),
    "r": ("float", pa.float32(), 0.1),
    "f": ("double", pa.float64(), 0.1),
}
KEYS, EPOCHS = 300, 6


def types_are_added(node: Node, keyspace: str, table: str, target: Target) -> None:
    """Each type, over a key of two columns, beside a text; what is there counts, and is not left."""
    columns = ", ".join(f"{name} {cql}" for name, (cql, _, _) in NUMBERS.items())
    node.execute(
        f"CREATE TABLE {keyspace}.{table} (k text, n int, t text, {columns}, wal_sink_added text,"
        " PRIMARY KEY (k, n))"
    )
    node.execute(
        f"INSERT INTO {keyspace}.{table} (k, n, w) VALUES ('a', 1, {10**50}) USING TIMESTAMP 1"
    )
    keys = {"k": pa.array(["a", "b", "a"]), "n": pa.array([1, 1, 1], pa.int32())}
    numbers = {
        name: pa.array([value, None, value if name in "wdrf" else 1], kind)
        for name, (_, kind, value) in NUMBERS.items()
    }
    batch = pa.record_batch({**keys, "t": pa.array(["x", None, None]), **numbers})
    plan, owner = target.plan(batch.schema, table), new_owner()
    with target.connect(owner) as session:
        create(session)
        rows = Slice(0, target.check(batch, plan), 1_700_000_000_000_000)
        deliver(session, plan, rows)
        with pytest.raises(TargetRefused, match="total 201 of column b does not fit into 8 bits"):
            deliver(session, plan, Slice(1, rows.batch.slice(0, 1), rows.first_us + 1_000))
    found = {row.k: row for row in node.execute(f"SELECT * FROM {keyspace}.{table}")}
    assert found["a"].t == "x"
    assert found["b"].l is None
    assert found["b"].wal_sink_added.endswith(" 0 1")
    assert [found["a"].b, found["a"].s, found["a"].i, found["a"].l] == [
        101,
        -6,
        2**30 + 1,
        2**61 + 1,
    ]
    assert (found["a"].w, found["a"].d) == (10**50 + 2 * 10**37, Decimal("3.00"))
    assert found["a"].f == 0.2
    assert found["a"].r == pytest.approx(0.2)


def steps_wait_for_each_other(node: Node, keyspace: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of one key, each added by itself; and such of two plans from before the option between them."""
    table = f"{keyspace}.steps"
    node.execute(f"CREATE TABLE {table} (k text PRIMARY KEY, v bigint, wal_sink_added text)")
    rows = pa.record_batch({"k": pa.array(["a"] * 60), "v": pa.array([1] * 60)})
    plain = target_of(node, keyspace, table="steps")
    adding = target_of(node, keyspace, table="steps", **{"cassandra.addColumns": "v"})
    before, after = plain.plan(rows.schema, "plain"), adding.plan(rows.schema, "adding")
    window, us = begun_window(0, 200), 1_700_000_000_000_000
    later = adding.plan(rows.schema, "later")  # its buffer has another size
    third = plain.plan(rows.schema, "third")
    other = pa.record_batch({"k": pa.array(["other"]), "v": pa.array([6])})
    monkeypatch.setattr(totals, "MOST_ROWS", 1)
    with adding.connect(new_owner()) as session:
        create(session)
        begin(session, window)
        for _ in range(2):  # the second time everything is there
            session.start(window)
            for row in range(60):
                session.write(after, Slice(0, rows.slice(row, 1), us + row))
            session.write(before, Slice(0, rows.slice(0, 1), us + 60))
            session.write(third, Slice(0, other, us + 61))
            for row in range(40):
                session.write(after, Slice(0, rows.slice(row, 1), us + 62 + row))
            session.drain()
            ((found,),) = node.execute(f"SELECT v FROM {table} WHERE k = 'a'")
            assert found == 41
        finish(session, window)
        many = pa.record_batch(
            {"k": pa.array([f"k{i}" for i in range(600)]), "v": pa.array([1] * 600)}
        )
        backwards = many.take(pa.array(range(599, -1, -1)))
        window = begun_window(1, 3_600)
        monkeypatch.setattr(totals, "MOST_ROWS", 600)
        begin(session, window)
        session.start(window)
        for turn in range(6):  # what is read first was written last
            rows = (many, backwards)[turn % 2]
            session.write(later, Slice(1, rows, us + 1_000 + 600 * turn))
        session.drain()
        assert finish(session, window) is Outcome.APPLIED
    sums = {row.v for row in node.execute(f"SELECT k, v FROM {table}") if row.k != "a"}
    assert sums == {6}


def flush(folder: str, query_id: str, target: Target) -> None:
    """Flush in a process of its own, by small steps."""
    totals.MOST_ROWS = 100
    log, checkpoint = (open_backend(f"{folder}/{name}") for name in ("log", "checkpoint"))
    flusher = Flusher(Pipeline(query_id, Log(log), Checkpoint(checkpoint), target))
    while not isinstance(flusher.run_once(), Idle):
        pass


def test_rule_27_totals_are_exact(
    cassandra: Node, keyspace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After two SIGKILLs in the middle of a window, and two flushers at once, each row was added once."""
    added = {"cassandra.addColumns": ",".join(NUMBERS)}
    encoded = target_of(cassandra, keyspace, **added, table="encoded")
    types_are_added(cassandra, keyspace, "encoded", encoded)

    with monkeypatch.context() as small:
        steps_wait_for_each_other(cassandra, keyspace, small)

    table = f"{keyspace}.t"
    cassandra.execute(f"CREATE TABLE {table} (k text PRIMARY KEY, v bigint, wal_sink_added text)")
    target = target_of(cassandra, keyspace, **{"cassandra.addColumns": "v"})
    checkpoint, log = (open_backend(str(tmp_path / name)) for name in ("checkpoint", "log"))
    world = World(checkpoint, log, target)
    world.clock.us = now_us()
    run = world.run()
    for epoch in range(EPOCHS):
        run.batch([(f"k{i % KEYS}", 10**epoch) for i in range(KEYS)])
    spawn = multiprocessing.get_context("spawn")
    whole = KEYS * sum(10**epoch for epoch in range(EPOCHS))

    def there() -> int:
        return sum(row.v for row in cassandra.execute(f"SELECT v FROM {table}"))

    begun = 0
    for _ in range(2):
        process = spawn.Process(target=flush, args=(str(tmp_path), world.query_id, target))
        process.start()
        deadline = time.monotonic() + 120
        while (now := there()) <= begun and process.is_alive() and time.monotonic() < deadline:
            pass
        process.kill()
        process.join()
        begun = now
    assert 0 < begun < whole
    flushers = [
        spawn.Process(target=flush, args=(str(tmp_path), world.query_id, target)) for _ in range(2)
    ]
    for process in flushers:
        process.start()
    for process in flushers:
        process.join(120)
    world.flush()
    sums = {row.k: row.v for row in cassandra.execute(f"SELECT k, v FROM {table}")}
    assert sums == {f"k{i}": whole // KEYS for i in range(KEYS)}
