"""A contender's table: made for one run, checked after it, and dropped."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from cassandra.concurrent import execute_concurrent_with_args

from tests.benchmarks.contenders.contender import Store
from tests.benchmarks.rows import COLUMNS, Source, Totals
from wal_sink.demo.cassandra import EmbeddedCassandra, Node

_ROWS_A_REQUEST = 40_000
"""The rows that one request counts; a busy server may time out at more."""
_COUNTED_AT_ONCE = 2
_SAMPLE = 200

KEYSPACE = "bench"

_numbers = itertools.count()


class RowsWrong(Exception):
    """A contender lost, doubled or changed rows."""


class Table:
    """A new table with `COLUMNS`, of which `device` is the partition key and `id` the clustering column."""

    def __init__(self, server: Node) -> None:
        self.server = server
        self.name = f"rows_{next(_numbers)}"
        self.where = f"{KEYSPACE}.{self.name}"
        typed = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
        server.create_keyspace(KEYSPACE)
        server.execute(f"CREATE TABLE {self.where} ({typed}, PRIMARY KEY (device, id))")

    @property
    def insert(self) -> str:
        """The INSERT statement of a row."""
        marks = ", ".join("?" for _ in COLUMNS)
        return f"INSERT INTO {self.where} ({', '.join(COLUMNS)}) VALUES ({marks})"

    def drop(self) -> None:
        """Drop the table."""
        self.server.execute(f"DROP TABLE {self.where}")

    def check(self, source: Source) -> None:
        """Compare the table with its source: all totals, and every column of a sample of rows.

        :raises RowsWrong: if they differ.
        """
        self.check_totals(source.totals())
        ids = np.unique(np.linspace(0, source.rows - 1, min(source.rows, _SAMPLE)).astype(np.int64))
        names = ", ".join(COLUMNS)
        select = f"SELECT {names} FROM {self.where} WHERE device = ? AND id = ?"
        wanted = source.table(ids).to_pylist()
        keys = [(row["device"], row["id"]) for row in wanted]
        session = self.server.session()
        answers = execute_concurrent_with_args(session, session.prepare(select), keys)
        for row, (_, rows) in zip(wanted, answers, strict=True):
            row["at"] = row["at"].replace(tzinfo=None)  # the driver returns naive times in UTC
            if [read._asdict() for read in rows] != [row]:
                raise RowsWrong(f"{self.where} lacks {row}")

    def check_totals(self, wanted: Totals) -> None:
        """Compare the number of rows and the sums; check that no column has a null.

        :raises RowsWrong: if they differ.
        """
        others = [name for name in COLUMNS if name not in {"device", "id"}]
        counts = ", ".join(f"count({name})" for name in others)
        select = (
            f"SELECT count(*), sum(id), sum(amount), {counts} FROM {self.where}"
            " WHERE token(device) > ? AND token(device) <= ?"
        )
        session = self.server.session()
        prepared = session.prepare(select)
        between = _ranges(wanted.rows // _ROWS_A_REQUEST + 1)
        answers = execute_concurrent_with_args(
            session, prepared, between, concurrency=_COUNTED_AT_ONCE
        )
        rows, ids, amounts, *filled = _added([counts.one() for _, counts in answers])
        if (rows, ids, amounts) != wanted or set(filled) != {wanted.rows}:
            filled_by_column = dict(zip(others, filled, strict=True))
            raise RowsWrong(
                f"{self.where} has {Totals(rows, ids, amounts)} and values {filled_by_column}, not {wanted}"
            )


def cassandra(server: EmbeddedCassandra, source: Source) -> Store:
    """Return a node as the store of a source."""
    return Store(source.shape, lambda: Table(server), Table.check, Table.drop, server)


def _ranges(number: int) -> list[tuple[int, int]]:
    """Divide the tokens into ranges."""
    bounds = [-(2**63) + (2**64 * index) // number for index in range(number)]
    return list(itertools.pairwise([*bounds, 2**63 - 1]))


def _added(answers: list[Any]) -> list[int]:
    return [sum(values) for values in zip(*answers, strict=True)]
