"""The Cassandra target. Each method imports what it needs, so that tasks never load the driver."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

import pyarrow as pa

from wal_sink.model.ledger import Owner
from wal_sink.model.plan import Plan
from wal_sink.options import Options
from wal_sink.targets.base import Delivery, Kind, Session, Target
from wal_sink.targets.cassandra.names import names_shape
from wal_sink.targets.cassandra.options import CassandraOptions, with_environment
from wal_sink.targets.cassandra.row_plan import (
    absent_shape,
    mode_shape,
    modes_shape,
    totals_described,
    totals_shape,
)
from wal_sink.targets.operations import BY_POSITION, described, operation_shape

_UPDATE = "by UPDATE: a row exists as long as one of its values does (cassandra.writeMode)"

_FIRST = "the first row of a key, and what the table has already, stays (cassandra.ifNotExists)"


class CassandraTarget(Target):
    """Apache Cassandra 3.0 and later, and databases that implement its protocol alike.

    :param options: see `CassandraOptions`.
    """

    name = "cassandra"
    options_type: type[Options] = CassandraOptions
    delivery = Delivery.IDEMPOTENT
    parallel_writes = True  # rows are ordered by their timestamps alone

    def __init__(self, options: CassandraOptions) -> None:
        self._options = options

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._options})"

    @property
    def shape(self) -> Mapping[str, str]:
        """Return keyspace, table, the treatment of nulls, and what the columns that are not written mean."""
        return {
            "keyspace": self._options.keyspace,
            **self._tables_shape(),
            "cassandra.nulls": self._options.nulls,
            **names_shape(self._options.column_names),
            **mode_shape(self._options.write_mode),
            **modes_shape(self._options.changes),
            **absent_shape(self._options.if_not_exists),
            **totals_shape(self._options.add_columns),
            **operation_shape(self._options.operation_column, self._options.words),
            **self._options.times.shape,
        }

    @property
    def writes_to(self) -> str:
        """Return keyspace and table, of several tables each."""
        return ", ".join(".".join(table) for table in self._options.data)

    def _tables_shape(self) -> dict[str, str]:
        given = self._options
        if given.table:
            return {"table": given.table}
        names = ",".join(table.table for table in given.data)
        return {
            "tables": names,
            **({"tableColumn": given.table_column} if given.table_column else {}),
        }

    @property
    def description(self) -> Mapping[str, str]:
        """Return cluster, consistency level, tables and the treatment of nulls."""
        given = self._options
        nulls = {"unset": "a null keeps the older value", "write": "a null clears the older value"}
        ledger = f"{given.ledger.keyspace}.{given.ledger.table}"
        where = given.where if given.secure_connect_bundle else f"{given.where}, port {given.port}"
        renamed = ", ".join(f"{name} as {column}" for name, column in given.column_names.items())
        changed = ", ".join(
            f"{option}={word}" for option, word in modes_shape(given.changes).items()
        )
        return {
            "target": f"{self.name} at {where}, {given.consistency_level}",
            "table" if given.table else "tables": f"{self.writes_to}, ledger in {ledger}",
            **({} if given.table else {"rows": _goes_to(given.table_column)}),
            **({"columns": f"{renamed} (cassandra.columns)"} if renamed else {}),
            **({"write": _UPDATE} if given.write_mode == "update" else {}),
            **({"collections": f"{changed}; by UPDATE"} if changed else {}),
            "nulls": f"{given.nulls}: {nulls[given.nulls]} (cassandra.nulls)",
            "newest": _FIRST
            if given.if_not_exists
            else f"{BY_POSITION} (see cassandra.timestampColumn)",
            **described(given.operation_column, given.words),
            **given.times.described,
            **totals_described(given.add_columns),
        }

    def plan(self, schema: pa.Schema, key: str) -> Plan:
        """Compare the DataFrame with the table; create the ledger's table if it is missing."""
        from wal_sink.targets.cassandra.schema.plan import make_plan  # noqa: PLC0415 -- the driver

        return make_plan(self._options, schema, key)

    def dry_plan(self, schema: pa.Schema, key: str) -> Plan:
        """Compare the DataFrame with the table."""
        from wal_sink.targets.cassandra.schema.plan import make_plan  # noqa: PLC0415 -- the driver

        return make_plan(self._options, schema, key, create=False)

    def check(self, batch: pa.RecordBatch, plan: Plan) -> pa.RecordBatch:
        """Cast `batch` to the log's types and refuse rows that the server would refuse."""
        from wal_sink.targets.cassandra.check import check_for_tables  # noqa: PLC0415 -- pyarrow.compute

        return check_for_tables(batch, plan)

    def load(self) -> None:
        """Import the driver."""
        import wal_sink.targets.cassandra.session  # noqa: F401, PLC0415 -- the driver

    def for_tasks(self) -> Self:
        """Fill in secrets from this process's environment: Spark's workers have that of their start."""
        return type(self)(with_environment(self._options))

    def connect(self, owner: Owner) -> Session:
        """Connect for flushing."""
        from wal_sink.targets.cassandra.session import open_session  # noqa: PLC0415 -- the driver

        return open_session(self._options, owner)

    def classify(self, error: Exception) -> Kind:
        """Return what an exception of the driver means for rows."""
        from wal_sink.targets.cassandra.driver.errors import classify  # noqa: PLC0415 -- the driver

        return classify(error)


def _goes_to(table_column: str) -> str:
    if table_column:
        return f"each to the table that {table_column} names (tableColumn)"
    return "each to every table, by the columns that it has (tables)"
