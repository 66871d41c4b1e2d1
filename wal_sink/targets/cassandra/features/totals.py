"""Totals: values that are added to what the table holds, each exactly once (rule 27). Pure.

What a row has in an **added** column is added to what the table holds, and `ADDED_COLUMN` says, in the same
row of the table, up to which row of which query that was done. The rows of a key are a chain of totals, one
after each row. What is written is a member of that chain, with the place and the timestamp of its last row,
whatever was read and however the rows were cut.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, Inexact, localcontext
from typing import Any, NamedTuple, Self

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from wal_sink.errors import SchemaMismatch, TargetRefused
from wal_sink.model.ledger import Window
from wal_sink.model.plan import Column, WriteDemands
from wal_sink.targets.cassandra.casts import booleans, elements, indices
from wal_sink.targets.cassandra.feature import Agreement, Feature, Ints
from wal_sink.targets.cassandra.fitness import Server
from wal_sink.targets.cassandra.options import CassandraOptions
from wal_sink.targets.cassandra.row_options import ADD_COLUMNS, ADD_COLUMNS_AFTER
from wal_sink.targets.cassandra.row_plan import ADDED_COLUMN, CassandraPlan, CassandraRowPlan
from wal_sink.targets.cassandra.rules import row_text
from wal_sink.targets.cassandra.table import TableMetadata, alike
from wal_sink.targets.cassandra.types import parse


class Totals(Feature):
    """`cassandra.addColumns` and `cassandra.addColumnsAfter`."""

    noted = "added"
    demands = WriteDemands(one_session=True)

    def describe(self, options: CassandraOptions) -> Mapping[str, str]:
        """Say which columns are totals."""
        if not options.added:
            return {}
        return {
            "totals": f"{', '.join(options.added)} are added to what the table holds ({ADD_COLUMNS})"
        }

    def refuse_server(self, server: Server, options: CassandraOptions) -> None:
        """Refuse datacenters of which a flusher would not read what another one has written."""
        replicas = server.replicas(options.keyspace)
        if options.added and options.consistency_level == "LOCAL_QUORUM" and len(replicas) > 1:
            raise SchemaMismatch(
                f"Keyspace {options.keyspace} has replicas in datacenters {', '.join(sorted(replicas))}, and"
                " cassandra.consistencyLevel is LOCAL_QUORUM: a flusher beside another datacenter"
                " would add to totals that lack what was written last.",
                "Set cassandra.consistencyLevel to EACH_QUORUM, or to QUORUM; or leave out"
                f" {ADD_COLUMNS}.",
            )

    def agree(self, details: CassandraRowPlan, agreed: Agreement) -> CassandraRowPlan:
        """Note the columns, for a table that can hold totals."""
        added = agreed.options.added
        refuse_no_totals(agreed.live, agreed.columns, added)
        return msgspec.structs.replace(details, added=added)

    def refuse_drift(self, plan: CassandraPlan, live: TableMetadata) -> None:
        """Refuse a table whose totals would expire since it was altered."""
        for problem in _about_lives(live):
            raise SchemaMismatch(
                f"{live.name} cannot hold the totals of {ADD_COLUMNS} any more:\n  - {problem}",
                "The flush then goes on by itself. What was written meanwhile expires: write such totals"
                " again.",
            )


NUMBERS = ("tinyint", "smallint", "int", "bigint", "varint", "decimal", "float", "double")


def refuse_no_totals(live: TableMetadata, columns: Sequence[Column], added: Sequence[str]) -> None:
    """Refuse a table, or a DataFrame, by which values cannot be added to totals exactly once.

    :param columns: those of the table that the DataFrame has.
    :param added: the columns whose values are added, as the DataFrame names them; empty refuses nothing.
    :raises SchemaMismatch: with a line for each thing that does not fit.
    """
    if not added:
        return
    by_name = {column.name: column for column in columns}
    about = [(name, _why_no_total(by_name.get(name))) for name in added]
    about += [(c.name, _why_not_beside(c, live)) for c in columns if c.name not in added]
    problems = [f"{name}: {why}" for name, why in about if why] + [*_about_table(live)]
    problems += [*_about_lives(live)]
    if problems:
        raise SchemaMismatch(
            f"{live.name} cannot hold the totals of {ADD_COLUMNS}:\n"
            + "\n".join(f"  - {problem}" for problem in problems),
            "Correct each line above, and start again.",
        )


def _why_no_total(column: Column | None) -> str:
    """Say why a column cannot hold a total; empty: it can."""
    if column is None:
        return f"the DataFrame has no such column. Add it, or correct {ADD_COLUMNS}."
    if column.role != "regular":
        return f"it is a {column.role} column. Only a regular column can hold a total."
    if column.type not in NUMBERS:
        return f"it is {column.type}. A total is one of {', '.join(NUMBERS)}."
    if column.source in ("string", "large_string"):
        return 'the DataFrame has text. Make it a number, .cast("decimal(38,0)").'
    return ""


def _why_not_beside(column: Column, live: TableMetadata) -> str:
    """Say why a column cannot be written beside totals; empty: it can."""
    tree = parse(column.type, live.types)
    if column.in_table == ADDED_COLUMN:
        return f"the sink writes {ADDED_COLUMN}. Drop it, or rename it."
    if column.role == "static":
        return "it is static, so it is not of the row alone. Write it by another query."
    if why := alike(column, live):
        return f"{why}, and would be added to as two. Take another type."
    if tree.kind == "list" and not tree.frozen:
        return "it is a list that is not frozen. Write it by another query."
    return ""


def _about_table(live: TableMetadata) -> Iterator[str]:
    found = next((column for column in live.columns if column.name == ADDED_COLUMN), None)
    if found is None:
        yield (
            f"{ADDED_COLUMN}: the table has no such column, which says what is in the totals of a row. Run:"
            f" ALTER TABLE {live.name} ADD {ADDED_COLUMN} text;"
        )
    elif (found.type, found.role) != ("text", "regular"):
        yield f"{ADDED_COLUMN}: it is {found.type} ({found.role}), and has to be text (regular)."


def _about_lives(live: TableMetadata) -> Iterator[str]:
    if live.default_ttl:
        yield (
            f"default_time_to_live is {live.default_ttl}: a total that expires forgets what was added. Run:"
            f" ALTER TABLE {live.name} WITH default_time_to_live = 0;"
        )


class Added(NamedTuple):
    """The last row that is in a total."""

    query: str
    """The key of the query's ledger row."""
    epoch: int
    row: int
    """Counted from 0 in the epoch."""

    def to_text(self) -> str:
        """Encode for the table; equal ones have equal texts."""
        return f"{self.query} {self.epoch} {self.row}"

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Decode what `to_text` has encoded.

        :raises ValueError: the text is something else.
        """
        query, epoch, row = text.rsplit(" ", 2)
        return cls(query, int(epoch), int(row))


class Places:
    """The rows of a begun window, by epoch and number.

    Both are the same however often an epoch is flushed, and in whichever window; its timestamps need not be.
    """

    def __init__(self, window: Window) -> None:
        self._epochs = np.array([begun.epoch for begun in window.epochs], np.int64)
        self._bases = np.array([begun.base_us for begun in window.epochs], np.int64)

    def of(self, stamps: Ints) -> tuple[Ints, Ints]:
        """Return the epoch of each row, and its number there.

        :param stamps: write timestamps, microseconds since 1970.
        """
        at = np.searchsorted(self._bases, stamps, side="right") - 1
        return self._epochs[at], stamps - self._bases[at]


_EXACT = Context(prec=4_000, Emax=MAX_EMAX, Emin=MIN_EMIN, traps=[Inexact])
_DIGITS = 76
"""Digits of the sums of a slice's rows, which hold numbers of at most 38."""
_BEFORE_ALL = -1


class Current(NamedTuple):
    """What the table holds of a row."""

    values: tuple[Any, ...]
    """Of the added columns, in the order of `CassandraRowPlan.added`; None for null."""
    added: str | None
    """What `ADDED_COLUMN` says."""
    written_us: int
    """The highest write timestamp among these cells; -1 when there are none."""
    added_us: int
    """That of `ADDED_COLUMN`; -1 when there is none."""


NOTHING = Current((), None, -1, -1)
"""The table does not have the row."""


class Adding(NamedTuple):
    """Who adds what."""

    plan: CassandraPlan
    """Of the rows, without `ADDED_COLUMN`."""
    query: str
    """The key of the query's ledger row."""
    after: Collection[str]
    """Queries that have added before, and never will again."""
    places: Places
    """Of the begun window."""


class Sums(NamedTuple):
    """One row for each key that has something to add."""

    batch: pa.RecordBatch
    """With `ADDED_COLUMN` as its last column."""
    stamps: Ints
    """Write timestamps, ascending."""


def totals(
    batch: pa.RecordBatch,
    stamps: Ints,
    groups: Ints,
    current: Sequence[Current],
    adding: Adding,
) -> Sums:
    """Add rows to what the table holds, but for those that it has already.

    :param stamps: write timestamps of the rows, ascending.
    :param groups: of each row the number of its key.
    :param current: what the table holds, by these numbers.
    :raises TargetRefused: another query adds to a row; what is there is newer than what would be written; or
        has replaced what is passed over; or a total leaves the range of its type.
    """
    epochs, numbers = adding.places.of(stamps)
    done = _done(batch, groups, current, adding)
    is_new = (epochs > done[groups, 0]) | (
        (epochs == done[groups, 0]) & (numbers > done[groups, 1])
    )
    _refuse_replaced(batch, stamps, groups, np.flatnonzero(~is_new), current, adding)
    kept = np.flatnonzero(is_new)
    last = np.full(len(current), _BEFORE_ALL, np.int64)
    last[groups[kept]] = kept  # of equal numbers the last one stays
    ends = np.sort(last[last > _BEFORE_ALL])
    keys = groups[ends]
    _refuse_newer(batch, stamps[ends], ends, [current[key] for key in keys], adding)
    columns = []
    for column, name in zip(batch.columns, batch.schema.names, strict=True):
        if name in adding.plan.details.added:
            at = adding.plan.details.added.index(name)
            held = [current[key].values[at] if current[key].values else None for key in keys]
            columns.append(_added(batch, adding.plan, name, groups, kept, ends, held))
        else:
            columns.append(_newest(column, adding.plan, groups, kept, last, keys))
    places = zip(epochs[ends].tolist(), numbers[ends].tolist(), strict=True)
    told = [Added(adding.query, *place).to_text() for place in places]
    names = [*batch.schema.names, ADDED_COLUMN]
    rows = pa.RecordBatch.from_arrays([*columns, pa.array(told, pa.string())], names=names)
    return Sums(rows, stamps[ends])


def _done(
    batch: pa.RecordBatch, groups: Ints, current: Sequence[Current], adding: Adding
) -> npt.NDArray[np.int64]:
    """Return of each key the epoch and the number of the last row that is in its total; -1 for none.

    :raises TargetRefused: another query has added to it.
    """
    done = np.full((len(current), 2), _BEFORE_ALL, np.int64)
    for key, held in enumerate(current):
        if held.added is None:
            continue
        try:
            added = Added.from_text(held.added)
        except ValueError as error:
            raise TargetRefused(
                f"Column {ADDED_COLUMN} holds {held.added!r} in {_row_of(key, batch, groups, adding)},"
                " which this sink has not written.",
                "Where no query has added yet, say that the total stands:"
                f" {_says(adding.plan.table, held.added_us, 'null')}.",
            ) from error
        if added.query == adding.query:
            done[key] = added.epoch, added.row
        elif added.query not in adding.after:
            raise TargetRefused(
                f"Query {added.query} has added to {_row_of(key, batch, groups, adding)}, last in its epoch"
                f" {added.epoch}; this is query {adding.query}. Each of the two would undo what the other one"
                " adds.",
                f"If that query never will again, start this one with"
                f" {ADD_COLUMNS_AFTER}={added.query}: what the table"
                " holds stands, and is added to. Else let one of them write another table.",
            )
    return done


def _says(table: str, us: int, value: str) -> str:
    """Return the statement by which an operator says what is in a total.

    With a time of its own: a cell or a null of now would hide what is written as of an epoch that waits.
    """
    return f"UPDATE {table} USING TIMESTAMP {us} SET {ADDED_COLUMN} = {value} WHERE, and the key"  # noqa: S608


def _row_of(key: int, batch: pa.RecordBatch, groups: Ints, adding: Adding) -> str:
    """Name the row of a key; looks through the batch, so it is for errors alone."""
    return row_text(batch, adding.plan, int(np.argmax(groups == key)))


def _refuse_replaced(
    batch: pa.RecordBatch,
    stamps: Ints,
    groups: Ints,
    passed: Ints,
    current: Sequence[Current],
    adding: Adding,
) -> None:
    """Refuse to pass over rows as added where the total was replaced since, by what comes before them.

    A rewind to before the option was given does that: epochs whose plan adds nothing write their values anew,
    and leave the place as it is. What comes behind the rows may replace them.

    :param passed: the rows that the table says it has.
    :raises TargetRefused: naming the first such row.
    """
    added = np.array([each.added_us for each in current], np.int64)[groups[passed]]
    written = np.array([each.written_us for each in current], np.int64)[groups[passed]]
    if not (found := passed[(added < written) & (written < stamps[passed])]).size:
        return
    held, table = current[groups[found[0]]], adding.plan.table
    raise TargetRefused(
        f"{row_text(batch, adding.plan, int(found[0]))} of {table} says in {ADDED_COLUMN} that this row is in"
        f" its totals. They were written since, at {held.written_us} (microseconds since 1970), by something"
        " that is older than the row is now: whether they have it is not known.",
        "If the totals lack it and what follows, as after a rewind to before the option was given:"
        f" {_says(table, held.added_us, 'null')}. If they are right as they are:"
        f" {_says(table, held.written_us, repr(held.added))}.",
    )


def _refuse_newer(
    batch: pa.RecordBatch,
    stamps: Ints,
    ends: Ints,
    held: Sequence[Current],
    adding: Adding,
) -> None:
    """Refuse to write below a newer cell: the server would acknowledge it, and show the other one for ever.

    :raises TargetRefused: naming the first such row.
    """
    newer = np.array([each.written_us for each in held], np.int64) >= stamps
    if not newer.any():
        return
    first = int(np.argmax(newer))
    raise TargetRefused(
        f"{row_text(batch, adding.plan, int(ends[first]))} of {adding.plan.table} was written at"
        f" {held[first].written_us} by something else, and what is to be added has the earlier time"
        f" {stamps[first]} (microseconds since 1970): no reader would see it.",
        "Correct the table if it is wrong. Correct totals only while nothing waits to be flushed.",
    )


def _newest(
    column: pa.Array, plan: CassandraPlan, groups: Ints, kept: Ints, last: Ints, keys: Ints
) -> pa.Array:
    """Return the value of each key: the last row's, or where a null leaves the cell, the last one given."""
    if plan.details.nulls == "unset" and column.null_count:
        given = kept[booleans(column.is_valid())[kept]]
        last = last.copy()
        last[groups[given]] = given
    return column.take(indices(last[keys]))


def _added(
    batch: pa.RecordBatch,
    plan: CassandraPlan,
    name: str,
    groups: Ints,
    kept: Ints,
    ends: Ints,
    held: Sequence[Any],
) -> pa.Array:
    """Return the totals of a column, in the order of `ends`; null where nothing is there nor added."""
    column = batch.column(name)
    kind = column.type
    given = kept[booleans(column.is_valid())[kept]]
    of = groups[given]
    if pa.types.is_floating(kind):
        return _folded(column, given, of, groups[ends], held)
    sums, keys = _sums(column.take(indices(given)), of), groups[ends].tolist()
    with localcontext(_EXACT):
        values = [
            (value or 0) + sums[key] if key in sums else value
            for key, value in zip(keys, held, strict=True)
        ]
    if not pa.types.is_integer(kind):
        texts = [None if value is None else str(value) for value in values]
        return pa.array(texts, pa.string())
    bound = 1 << kind.bit_width - 1
    for at, value in enumerate(values):
        if value is not None and not -bound <= value < bound:
            raise TargetRefused(
                f"The total {value} of column {name} does not fit into {kind.bit_width} bits, in"
                f" {row_text(batch, plan, int(ends[at]))} of {plan.table}; nothing was added to it.",
                "Keep such totals in a wider column: a bigint, or a varint.",
            )
    return pa.array(values, kind)


def _sums(values: pa.Array, groups: Ints) -> dict[int, Any]:
    """Return the exact sum of each group's values: an integer, or a decimal of decimals."""
    scale = values.type.scale if pa.types.is_decimal(values.type) else 0
    wide = values.cast(pa.decimal256(_DIGITS, scale))
    table = pa.table({"of": indices(groups), "value": wide})
    found = table.group_by("of", use_threads=False).aggregate([("value", "sum")])
    number = int if pa.types.is_integer(values.type) else Decimal
    sums = map(number, found.column("value_sum").to_pylist())
    return dict(zip(found.column("of").to_pylist(), sums, strict=True))


def _folded(column: pa.Array, given: Ints, of: Ints, keys: Ints, held: Sequence[Any]) -> pa.Array:
    """Return totals of floats, added one after the other, so that they do not depend on how rows are cut."""
    floats = elements(column, f"f{column.type.bit_width // 8}")
    totals = np.zeros(int(keys.max(initial=-1)) + 1, floats.dtype)
    totals[keys] = [0 if value is None else value for value in held]
    np.add.at(totals, of, floats[given])
    known = np.zeros(len(totals), np.bool_)
    known[of] = True
    known[keys] |= [value is not None for value in held]
    return pa.array(totals[keys], column.type, mask=~known[keys])
