"""Runs the checks of a first micro-batch before a query starts; creates nothing.

`wal_sink.check` calls it; `wal-sink check` checks the options alone. A start does not: its first micro-batch
calls `agreement.agree`, which compares with the plan of the run before, too.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import pyarrow as pa

from wal_sink.configuration import Configuration, configure
from wal_sink.errors import of_target
from wal_sink.model.plan import Plan, spark_ddl
from wal_sink.options import qualified
from wal_sink.publish.micro_batch import plans_key, refuse_quarantine, with_epoch_field


class CheckedColumn(msgspec.Struct, frozen=True, kw_only=True):
    """A column, and what it is written to."""

    name: str
    source: str
    """Its Arrow type, as tasks get it."""
    spark: str
    """Its type in the DataFrame, in Spark's words."""
    type: str
    """The type of the target's column, in the target's words."""
    role: str
    """What the target says of the column: part of its key, `required` (it takes no null), `regular`, …"""

    column: str = ""
    """The name of the target's column, where it is another one."""

    target: str = ""
    """Name of the target, if it is one of several."""

    @property
    def heading(self) -> str:
        """The name of the column, after that of its target."""
        return qualified(self.target, self.name)

    @property
    def fits(self) -> str:
        """The type in the DataFrame, and the column of the target that it is written to."""
        name = f"{self.column} " if self.column else ""
        role = "" if self.role == "regular" else f" ({self.role})"
        return f"{self.spark} to {name}{self.type}{role}"


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """The options and the schema fit the target: what is in force when the query starts."""

    in_force: dict[str, str]
    """By heading: target, table, log, checkpoint, budget, …; no secrets."""
    columns: tuple[CheckedColumn, ...]
    """In the order of the DataFrame, for each target."""

    @property
    def lines(self) -> list[tuple[str, str]]:
        """Lay it out for people: what is in force, then each column; by heading."""
        columns = [(column.heading, column.fits) for column in self.columns]
        return [*self.in_force.items(), *columns, ("fits", "the query can start")]

    def __str__(self) -> str:
        width = max(len(heading) for heading, _ in self.lines)
        return "\n".join(f"{heading:<{width}}  {text}" for heading, text in self.lines)

    __repr__ = __str__


def preflight_options(raw: Mapping[str, str]) -> Checked:
    """Check options, and connect nowhere; the result has no columns.

    :param raw: the options that the query would be given, by their names.
    :raises OptionError: an option is missing, unknown, or does not fit.
    """
    configuration = configure(raw)
    configuration.refuse_bucket()
    return Checked(in_force=_in_force(configuration), columns=())


def _in_force(configuration: Configuration) -> dict[str, str]:
    return configuration.in_force(f"{configuration.location.logs}/<query id>")


def preflight(
    raw: Mapping[str, str], schema: pa.Schema, file_manager: str | None = None
) -> Checked:
    """Check options, and compare a DataFrame with the target's table.

    :param raw: the options that the query would be given, by their names.
    :param schema: of the DataFrame, timestamps in UTC.
    :param file_manager: see `Configuration.refuse_bucket`.
    :raises OptionError: an option is missing, unknown, or does not fit.
    :raises SchemaMismatch: the DataFrame does not fit, or the table cannot be written exactly once.
    :raises TargetUnavailable, TargetRefused: the target does not answer, or refuses.
    """
    configuration = configure(raw)
    configuration.refuse_bucket(file_manager)
    columns = with_epoch_field(schema, configuration.sink.epoch_column)
    key = plans_key(configuration, columns)
    plans: dict[str, Plan] = {}
    for destination in configuration.destinations:
        with of_target(destination.prefix):
            plans[destination.prefix] = destination.target.dry_plan(columns, key)
    refuse_quarantine(plans.values(), configuration.sink.on_invalid_row)
    creates = {
        qualified(name, "creates"): plan.creates for name, plan in plans.items() if plan.creates
    }
    return Checked(
        in_force=_in_force(configuration) | creates,
        columns=tuple(
            CheckedColumn(
                name=column.name,
                source=column.source,
                spark=spark_ddl(columns.field(column.name).type),
                type=column.type,
                role=column.role,
                column=column.column,
                target=target,
            )
            for target, plan in plans.items()
            for column in plan.columns
        ),
    )
