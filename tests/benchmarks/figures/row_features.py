"""What a row costs that is no plain insert: the flush alone, beside one of inserts, in turn."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tests.benchmarks import backlog
from tests.benchmarks.bench import Bench
from tests.benchmarks.contenders import ours
from tests.benchmarks.figure import Figure, at_most, figure
from tests.benchmarks.figures.flush import NAME, flushed
from tests.benchmarks.flush import flush
from tests.benchmarks.rows import Source
from tests.benchmarks.run import Run, Taken
from tests.benchmarks.table import RowsWrong, Table

Ids = np.ndarray[Any, Any]
"""Numbers of rows (int64)."""
Pairs = list[tuple[Run, Run]]
"""A run of inserts and one of other rows, of each round that has both."""

_EVERY = 4
"""One row of so many is a delete, of the row before it."""
_LONG_S = 10_000
"""Longer than a run: the table has to be complete at its end."""


class Changes(Source, frozen=True, kw_only=True):
    """Rows of a shape, with a column `op`; the last of every four deletes the third one."""

    def table(self, ids: Ids) -> pa.Table:
        """Return the changes of these numbers."""
        deletes = ids % _EVERY == _EVERY - 1
        rows = super().table(np.where(deletes, ids - 1, ids))
        return rows.append_column("op", pa.array(np.where(deletes, "delete", "upsert")))


class Mortal(Source, frozen=True, kw_only=True):
    """Rows of a shape, with a column `life` of seconds."""

    def table(self, ids: Ids) -> pa.Table:
        """Return the rows of these numbers."""
        return super().table(ids).append_column("life", pa.array(_LONG_S + ids % 1000))


class Named(Source, frozen=True, kw_only=True):
    """Rows of a shape, with a column `goes` that names one of two tables in turn."""

    tables: tuple[str, str]

    def table(self, ids: Ids) -> pa.Table:
        """Return the rows of these numbers."""
        goes = np.where(ids % 2 == 0, *self.tables)
        return super().table(ids).append_column("goes", pa.array(goes))


class Clicks(Source, frozen=True, kw_only=True):
    """Rows of a shape, of which so many in a row have one key."""

    each: int

    def table(self, ids: Ids) -> pa.Table:
        """Return the rows of these numbers."""
        return super().table(ids // self.each)


class Feature(NamedTuple):
    """A kind of rows."""

    name: str
    rows: Callable[[Source, Table], Source]
    """Makes them of plain ones."""
    options: Callable[[Table], Mapping[str, str]]
    """Of the sink, beside those that name the server and the table."""
    check: Callable[[Table, Source], None] = Table.check
    """Compares the table with what plain rows leave in it; raises `RowsWrong`, saying what differs."""
    first: str = ""
    """A statement before the run; `{}` is the table."""


def _holds(table: Table, where: str, ids: Ids) -> None:
    rows = table.server.session().execute(f"SELECT id FROM {where}", timeout=None)  # by pages
    found = np.sort(np.fromiter((row.id for row in rows), np.int64))
    if not np.array_equal(found, ids):
        raise RowsWrong(f"{where} has {len(found):,} rows, not {len(ids):,}, or others")


def _not_deleted(table: Table, plain: Source) -> None:
    ids = np.arange(plain.rows)
    deletes = ids % _EVERY == _EVERY - 1
    _holds(table, table.where, np.setdiff1d(ids[~deletes], ids[deletes] - 1))


def _in_both(table: Table, plain: Source) -> None:
    for where in (table.where, f"{table.where}_too"):
        _holds(table, where, np.arange(plain.rows))
    table.server.execute(f"DROP TABLE {table.where}_too")


def _in_turn_in_each(table: Table, plain: Source) -> None:
    for first, where in enumerate((table.where, f"{table.where}_too")):
        _holds(table, where, np.arange(first, plain.rows, 2))
    table.server.execute(f"DROP TABLE {table.where}_too")


def _two(table: Table) -> dict[str, str]:
    return {"table": "", "tables": f"{table.name},{table.name}_too"}


def _plain(plain: Source, _: Table) -> Source:
    return plain


def _of(kind: type[Source], **more: Any) -> Callable[[Source, Table], Source]:
    return lambda plain, _: kind(shape=plain.shape, rows=plain.rows, **more)


def _by_name(plain: Source, table: Table) -> Source:
    return Named(shape=plain.shape, rows=plain.rows, tables=(table.name, f"{table.name}_too"))


_SECOND = (
    "CREATE TABLE {}_too"
    " (device text, id bigint, at timestamp, amount bigint, note text, PRIMARY KEY (device, id))"
)
DELETES = Feature("deletes", _of(Changes), lambda _: {"operationColumn": "op"}, _not_deleted)
LIVES = (
    Feature("lives", _of(Mortal), lambda _: {"cassandra.ttlColumn": "life"}),
    Feature("event times", _plain, lambda _: {"cassandra.timestampColumn": "at"}),
)
EVERY = Feature("two tables, each row in both", _plain, _two, _in_both, _SECOND)
BY_NAME = Feature(
    "two tables, by name",
    _by_name,
    lambda table: {**_two(table), "tableColumn": "goes"},
    _in_turn_in_each,
    _SECOND,
)


def _totals(each: int) -> Feature:
    def check(table: Table, plain: Source) -> None:
        """Compare the sum of the totals with that of the rows, and the number of keys."""
        given = Clicks(shape=plain.shape, rows=plain.rows, each=each).table(np.arange(plain.rows))
        session = table.server.session()
        rows = session.execute(f"SELECT amount FROM {table.where}", timeout=None)  # by pages
        found = [row.amount for row in rows]
        wanted = len(pc.unique(given["id"])), pc.sum(given["amount"]).as_py()
        if (len(found), sum(found)) != wanted:
            raise RowsWrong(f"{table.where} has {len(found):,} rows of {sum(found)}, not {wanted}")

    options = {"cassandra.addColumns": "amount"}
    added = "ALTER TABLE {} ADD wal_sink_added text"
    return Feature("totals", _of(Clicks, each=each), lambda _: options, check, added)


def deletes(bench: Bench) -> list[Figure]:
    """Whether rows cost more where some of them are deletes."""
    figures = []
    for plain in _two_shapes(bench):
        (pairs,) = _taken(bench, plain, [DELETES])
        figures += _over_inserts(f"deletes among upserts over inserts, {plain.shape}", pairs)
    return figures


def lives(bench: Bench) -> list[Figure]:
    """Whether rows cost more that have lives, or event times."""
    found = _taken(bench, Source(shape="grouped", rows=bench.sizes.grouped), LIVES)
    return [
        each
        for feature, pairs in zip(LIVES, found, strict=True)
        for each in _over_inserts(f"{feature.name} over inserts, grouped", pairs)
    ]


def two_tables(bench: Bench) -> list[Figure]:
    """Whether a row that is written costs more where there are two tables."""
    figures = []
    for plain in _two_shapes(bench):
        every, named = _taken(bench, plain, [EVERY, BY_NAME])
        what = f"over one, {plain.shape}: client CPU a written row"
        twice = [ratio / 2 for ratio in _client(every)]
        figures += [
            figure(f"each row in two tables {what}", twice, "x", at_most(1.15)),
            figure(f"each row in one of two tables {what}", _client(named), "x", at_most(1.15)),
        ]
    return figures


def totals(bench: Bench) -> list[Figure]:
    """What a row costs that is added, where each has a key of its own, and where fifty have one."""
    figures = []
    for each in (1, 50):
        plain = Source(shape="narrow", rows=bench.sizes.shapes)
        (pairs,) = _taken(bench, plain, [_totals(each)])
        name = f"totals over inserts, {each} of each key: client CPU a row"
        figures.append(figure(name, _client(pairs), "x"))
    return figures


def _two_shapes(bench: Bench) -> list[Source]:
    return [
        Source(shape="grouped", rows=bench.sizes.grouped),
        Source(shape="interleaved", rows=bench.sizes.shapes),
    ]


def _taken(bench: Bench, plain: Source, features: Sequence[Feature]) -> list[Pairs]:
    """Let inserts and each feature take turns; return the pairs of each."""
    names = ", ".join(feature.name for feature in features)
    bench.say(f"{names}; {plain.shape}, {plain.rows:,} rows")
    found: list[Pairs] = [[] for _ in features]
    for number in range(bench.sizes.rounds):
        inserts = flushed(bench, plain, bench.sizes.micro_batches, number)
        for feature, pairs in zip(features, found, strict=True):
            other = _flushed(bench, plain, feature, number)
            if inserts and other:
                pairs.append((inserts, other))
    return found


def _flushed(bench: Bench, plain: Source, feature: Feature, number: int) -> Run | None:
    """Make a backlog and flush it; None when the table is not what the rows leave."""
    folder = bench.new_folder()

    def prepare(table: Table) -> None:
        if feature.first:
            table.server.execute(feature.first.format(table.where))

    def what(table: Table) -> Taken:
        options, rows = (
            {**ours.options(table), **feature.options(table)},
            feature.rows(plain, table),
        )
        return flush(backlog.make(folder, options, rows, bench.sizes.micro_batches))

    name = f"{NAME}, {feature.name}"
    run = bench.write(
        name, plain, number, what, prepare=prepare, check=lambda table: feature.check(table, plain)
    )
    shutil.rmtree(folder, ignore_errors=True)
    return run


def _client(pairs: Pairs) -> list[float]:
    return [other.client_us / inserts.client_us for inserts, other in pairs]


def _over_inserts(what: str, pairs: Pairs) -> list[Figure]:
    """Return what other rows cost over plain inserts, in CPU a row."""
    served = [other.server_us / inserts.server_us for inserts, other in pairs]
    return [
        figure(f"{what}: client CPU a row", _client(pairs), "x", at_most(1.15)),
        figure(f"{what}: server CPU a row", served, "x"),
    ]
