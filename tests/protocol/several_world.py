"""A query with two targets: cells in memory, and a table of SQLite to which each row is added."""

from __future__ import annotations

import hashlib
import sqlite3
import uuid
from itertools import pairwise
from pathlib import Path
from typing import Any

from sqlite_target import SqliteOptions
from tests.protocol import raw
from tests.protocol.adding_world import RefusingTarget
from tests.protocol.engine import World, flush, in_memory
from wal_sink.model.ledger import LedgerState, Owner, ledger_key
from wal_sink.targets.base import Target
from wal_sink.testing.oracle import judge

CELLS, ADDED = "cells", "added"


class SeveralWorld(World):
    """Checkpoint and log in memory.

    :param folder: of the table's file.
    """

    def __init__(self, folder: Path, *names: str) -> None:
        self._path = folder / f"{uuid.uuid4().hex}.db"
        self._create_table()
        super().__init__(*in_memory())
        added = RefusingTarget(SqliteOptions(path=str(self._path), table="t"))
        both: dict[str, Target] = {CELLS: self.store, ADDED: added}
        self.named = {each: both[each] for each in names or both}

    @property
    def targets(self) -> dict[str, Target]:
        """Those that the query names."""
        return self.named

    def rows(self, name: str) -> list[tuple[str, int]]:
        """Return what a reader of a target sees."""
        if name == CELLS:
            return self.visible()
        connection = sqlite3.connect(self._path)
        try:
            return connection.execute("SELECT k, v FROM t").fetchall()
        finally:
            connection.close()

    def row(self, name: str) -> LedgerState | None:
        """Return a target's ledger row, as it lies in the target."""
        key = ledger_key(self.query_id, name)
        if name == CELLS:
            return self.store.ledger.get(key)
        with self.targets[name].connect(Owner(key, "", "")) as session:
            try:
                return session.read_ledger()
            except sqlite3.OperationalError as error:
                if "no such table" not in str(error):
                    raise
                return None  # the query made no plan yet

    def records(self, name: str) -> list[dict[str, Any]]:
        """Return what the log says was flushed to a target."""
        return list(raw.records(self.log_backend, f"flushed/{name}/").values())

    def flush_all(self) -> None:
        """Flush to each target until there is nothing to do; once more, since the last one trims."""
        for name in (*self.targets, *self.targets):
            flusher = self.flusher(name=name)
            try:
                flush(flusher)
            finally:
                flusher.close()

    def _create_table(self) -> None:
        with sqlite3.connect(self._path) as connection:
            connection.execute("CREATE TABLE t (k TEXT, v INTEGER)")
        connection.close()

    def forget(self) -> None:
        """Delete the table's file, too."""
        super().forget()
        self._path.unlink()


def safe(world: SeveralWorld, why: object) -> None:
    """At any moment: what a target shows was kept, and no target that lacks an epoch misses a segment."""
    whose = raw.kept(world)
    for name in world.targets:
        for key, value in world.rows(name):
            found = {a for a, rows in world.computed.items() if (key, value) in rows}
            assert found, f"{key} was never computed ({why})"
            assert {run for _, run in found} <= {whose.get(epoch) for epoch, _ in found}, why
        _needed_is_there(world, name, whose, why)


def _needed_is_there(world: SeveralWorld, name: str, whose: dict[int, str], why: object) -> None:
    row = world.row(name)
    flushed = max([row.flushed if row else -1, *(r["epoch"] for r in world.records(name))])
    there = {
        (manifest["epoch"], manifest["run_id"]): manifest
        for manifest in raw.objects(world.log_backend, "manifests/").values()
    }
    for epoch, run in whose.items():
        if epoch > flushed:
            assert (epoch, run) in there, f"{name} lacks epoch {epoch}, which is gone ({why})"
            for segment in there[epoch, run]["segments"]:
                data = raw.segment_bytes(world.log_backend, segment)
                assert hashlib.sha256(data).hexdigest() == segment["digest"], why


def complete(world: SeveralWorld, epochs: int, why: object) -> None:
    """At the end: each target has every kept row once, of one history; nothing else is left in the log."""
    safe(world, why)
    whose = raw.kept(world)
    assert sorted(whose) == list(range(epochs)), why
    each = [row for n in whose for row in world.computed.get((n, whose[n]), ())]
    histories = []
    for name in world.targets:
        expected = list(raw.newest(range(epochs), world).items()) if name == CELLS else each
        verdict = judge(expected, world.rows(name))
        assert verdict.exact, f"{name}: {verdict} ({why})"
        records = world.records(name)
        assert [record["epoch"] for record in records] == list(range(epochs)), (name, why)
        row = world.row(name)
        assert row is not None
        assert (row.flushed, row.begun) == (epochs - 1, None), (name, why)
        for older, newer in pairwise(records):
            assert newer["base_us"] > raw.last_us(older), (name, why)
        histories.append([(r["epoch"], r["generation"], r.get("digest")) for r in records])
    assert all(history == histories[0] for history in histories), f"two histories ({why})"
    world.flush_all()  # a flusher that starts deletes what goes every hour
    left = {path.split("/")[0] for path in world.log_backend.list() if "flusher" not in path}
    known = {"flushed", "log.json", "plans", "runs", "tickets"}
    assert left <= known, f"{left} ({why})"
