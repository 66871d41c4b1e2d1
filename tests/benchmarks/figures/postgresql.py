"""PostgreSQL: the flush alone beside a bare COPY of the same rows, which is the limit; append and upsert."""

from __future__ import annotations

import io
import shutil
import time

import psycopg

from tests.benchmarks import backlog
from tests.benchmarks.bench import Bench
from tests.benchmarks.figure import Figure, at_least, figure
from tests.benchmarks.flush import flush
from tests.benchmarks.rows import Source
from wal_sink.testing.servers.postgresql import Server

_TYPES = {"text": "text", "bigint": "bigint", "timestamp": "timestamptz"}
_PIECE = 1 << 20
_EPOCHS = 4


class Table:
    """A table for a source, and what was measured on it.

    :param mode: `append`, or `upsert` with a primary key.
    """

    def __init__(self, server: Server, source: Source, mode: str) -> None:
        self._server, self._source, self.mode = server, source, mode
        columns = ", ".join(f"{name} {_TYPES[kind]}" for name, kind in source.columns.items())
        key = ", PRIMARY KEY (id)" if mode == "upsert" else ""
        server.execute(f"CREATE TABLE {mode} ({columns}{key})")
        self.flushed: list[float] = []
        self.copied: list[float] = []
        self.client_us: list[float] = []

    def measure(self, bench: Bench) -> None:
        """Flush all rows, then copy what has arrived once more, each into the empty table."""
        folder = bench.new_folder()
        options = {
            "target": "postgresql",
            "postgresql.uri": self._server.uri,
            "postgresql.mode": self.mode,
            "table": self.mode,
        }
        self._empty()
        waiting = backlog.make(folder, options, self._source, _EPOCHS)
        taken = flush(waiting)
        shutil.rmtree(folder)
        self.flushed.append(self._source.rows / taken.seconds)
        self.client_us.append((taken.client_cpu_s or 0) / self._source.rows * 1e6)
        if (wrong := self._wrong()) is not None:
            bench.wrong.append(f"PostgreSQL, {self.mode}: {wrong}")
        with psycopg.connect(self._server.uri) as connection:
            rows = self._rows(connection)
            connection.rollback()
            self._empty()
            began = time.perf_counter()
            statement = f"COPY {self.mode} FROM STDIN (FORMAT binary)"
            with connection.cursor() as cursor, cursor.copy(statement) as copy:
                for begin in range(0, len(rows), _PIECE):
                    copy.write(rows[begin : begin + _PIECE])
            connection.commit()
            self.copied.append(self._source.rows / (time.perf_counter() - began))

    def _empty(self) -> None:
        self._server.execute(f"TRUNCATE {self.mode}")
        self._server.execute("CHECKPOINT")

    def _rows(self, connection: psycopg.Connection) -> memoryview:
        """Return the table in the form that COPY takes."""
        found = io.BytesIO()
        statement = f"COPY {self.mode} TO STDOUT (FORMAT binary)"
        with connection.cursor() as cursor, cursor.copy(statement) as copy:
            for data in copy:
                found.write(data)
        return found.getbuffer()

    def _wrong(self) -> str | None:
        query = f"SELECT count(*), coalesce(sum(id), 0), coalesce(sum(amount), 0) FROM {self.mode}"
        ((rows, ids, amounts),) = self._server.execute(query)
        expected = self._source.totals()
        found = (int(rows), int(ids), int(amounts))
        return None if found == tuple(expected) else f"{found} instead of {tuple(expected)}"


def postgresql(bench: Bench) -> list[Figure]:
    """Rows a second of the flush alone, and of a bare COPY; the server's log is synced at each commit."""
    source = Source(shape="grouped", rows=bench.sizes.grouped)
    with Server({"max_wal_size": "4GB"}) as server:
        tables = [Table(server, source, mode) for mode in ("append", "upsert")]
        for number in range(bench.sizes.rounds):
            for table in tables:  # in turn, so that what else the machine does is in all figures
                bench.say(f"PostgreSQL, {table.mode}, round {number + 1}")
                table.measure(bench)
    return [each for table in tables for each in _figures(table)]


def _figures(table: Table) -> list[Figure]:
    name = f"PostgreSQL, {table.mode}"
    ratios = [a / b for a, b in zip(table.flushed, table.copied, strict=True)]
    return [
        figure(f"{name}: flush alone", table.flushed, "rows/s"),
        figure(f"{name}: bare COPY of the same rows", table.copied, "rows/s"),
        figure(f"{name}: flush alone, CPU of the client", table.client_us, "us/row"),
        figure(
            f"{name}: flush alone over bare COPY",
            ratios,
            "x",
            at_least(0.8) if table.mode == "append" else None,
        ),
    ]
