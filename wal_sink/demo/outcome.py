"""The report of the demo: compares tables and source, and computes sums, conclusion and problems."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence

import msgspec
import pyarrow as pa

from wal_sink.demo.queries import Query, source_rows, table_rows
from wal_sink.demo.stores import Store, Stores


class RowCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of rows of a table and its source."""

    expected: int
    """Rows of the source."""
    found: int
    """Rows of the table."""
    missing: int
    """Rows of the source that the table does not have, or has with other values."""
    extra: int
    """Rows of the table that the source does not have, or has fewer times."""
    examples: tuple[str, ...]
    """At most five missing rows, then at most five extra rows."""

    @property
    def exact(self) -> bool:
        """Return True if the table has exactly the rows of the source."""
        return self.missing == 0 and self.extra == 0


def compare_rows(expected: Iterable[Hashable], actual: Iterable[Hashable]) -> RowCounts:
    """Compare two multisets of rows. A doubled row counts as an extra row."""
    wanted, present = Counter(expected), Counter(actual)
    missing, extra = wanted - present, present - wanted
    return RowCounts(
        expected=wanted.total(),
        found=present.total(),
        missing=missing.total(),
        extra=extra.total(),
        examples=tuple(map(str, (*list(missing)[:5], *list(extra)[:5]))),
    )


class KillOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the queries after a SIGKILL."""

    window: str
    """The point of the epoch at which each query was killed."""
    epoch: int
    rows_discarded: int
    """The rows that were published and not checkpointed. Spark computes these rows again."""
    seconds: float
    """Time of the SIGKILL, in seconds since the first start of the application."""


class Comparison(RowCounts, frozen=True, kw_only=True):
    """The comparison of a query's table in a store."""

    query: str
    sink: str
    table: str
    target: str


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of the demo. `expected`, `found`, `missing` and `extra` are sums over wal_sink's tables."""

    expected: int
    found: int
    missing: int
    extra: int
    control_missing: int
    """The rows that the table of the control lacks."""
    control_extra: int
    """The extra rows in the table of the control."""
    seconds: float
    kills: tuple[KillOutcome, ...]
    """The kills; empty in the demo of a failover."""
    not_replicated: int
    """The rows of wal_sink's table that the standby lacked when it was promoted; 0 in the demo of kills."""
    tables: tuple[Comparison, ...]
    picture: str
    """The path of the picture; empty if there is none."""
    target: str
    """The names of the stores, separated by commas."""
    server: str
    """The titles of the stores, with their versions."""

    @property
    def conclusion(self) -> str:
        """The result of a demo without `problems`, in one or two sentences."""
        if self.kills:
            return (
                f"wal_sink: each row exactly once. foreachBatch, under the same {len(self.kills)} kills:"
                f" {self.control_extra:,} extra rows."
            )
        return (
            f"The promoted standby lacked {self.not_replicated:,} rows of each table. wal_sink: each row"
            f" exactly once, and nobody typed a command. foreachBatch: {self.control_missing:,} rows lost."
        )

    @property
    def problems(self) -> list[str]:
        """The reasons why the demo failed; empty if it succeeded."""
        problems = []
        if self.missing or self.extra or not self.expected:
            ours = (table for table in self.tables if table.sink == "wal_sink")
            examples = [text for table in ours for text in table.examples]
            problems.append(
                "\n  ".join(["The tables differ from the source, for example:", *examples])
            )
        if self.kills:
            if not self.control_extra:
                problems.append("The control has no extra rows, so these kills prove nothing.")
        else:
            if not self.not_replicated:
                problems.append("The standby lacked no rows, so this failover proves nothing.")
            if not self.control_missing:
                problems.append("The control has lost no rows, so this failover proves nothing.")
        return problems


def report(
    comparisons: Iterable[Comparison],
    stores: Stores,
    seconds: float,
    *,
    kills: Sequence[KillOutcome] = (),
    picture: str = "",
    not_replicated: int = 0,
) -> Report:
    """Return a report with the sums over the tables of wal_sink, and over the table of the control."""
    tables = tuple(comparisons)
    ours = [table for table in tables if table.sink == "wal_sink"]
    control = [table for table in tables if table.sink != "wal_sink"]
    return Report(
        expected=sum(table.expected for table in ours),
        found=sum(table.found for table in ours),
        missing=sum(table.missing for table in ours),
        extra=sum(table.extra for table in ours),
        control_missing=sum(table.missing for table in control),
        control_extra=sum(table.extra for table in control),
        seconds=round(seconds, 1),
        kills=tuple(kills),
        not_replicated=not_replicated,
        tables=tables,
        picture=picture,
        target=stores.targets,
        server=stores.title,
    )


def comparison(query: Query, source: pa.Table, store: Store) -> Comparison:
    """Compare a query's table in a store with its source."""
    counts = compare_rows(source_rows(source, query), table_rows(store.rows(query)))
    return Comparison(
        query=query.name,
        sink=query.sink,
        table=query.table,
        target=store.target,
        **msgspec.structs.asdict(counts),
    )
