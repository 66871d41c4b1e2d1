"""Checks options and DataFrame before a query starts, for `wal_sink.check`. Creates nothing."""

from __future__ import annotations

import os
from collections.abc import Mapping

import msgspec
import pyarrow as pa

from wal_sink.checkpoint.checkpoint import local_folder
from wal_sink.configuration import Configuration, configure
from wal_sink.errors import OptionError, of_target
from wal_sink.model.plan import Plan
from wal_sink.model.spark_types import spark_ddl
from wal_sink.options import qualified
from wal_sink.publish.plans import inputs_key_of, refuse_quarantine, with_epoch_field


class CheckedColumn(msgspec.Struct, frozen=True, kw_only=True):
    """A column of the DataFrame, and the target's column that gets its values."""

    name: str
    source: str
    """Arrow type in the DataFrame."""
    spark: str
    """Spark's type in the DataFrame."""
    type: str
    """Type of the target's column, as the target writes it."""
    role: str
    """Role of the target's column: part of its key, `required` (accepts no null), `regular`, …"""

    column: str = ""
    """Name of the target's column. Empty if the DataFrame's column has the same name."""

    target: str = ""
    """Name of the target. Empty if the query has a single target."""

    @property
    def heading(self) -> str:
        """Return the name of the column, with the name of its target if there are several."""
        return qualified(self.target, self.name)

    @property
    def fits(self) -> str:
        """Return a text with the type in the DataFrame, and the target's column with its type and role."""
        name = f"{self.column} " if self.column else ""
        role = "" if self.role == "regular" else f" ({self.role})"
        return f"{self.spark} to {name}{self.type}{role}"


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a check that found no problem, with the values in force when the query starts."""

    in_force: dict[str, str]
    """Target, table, log, checkpoint, budget and others by heading, without secrets."""
    columns: tuple[CheckedColumn, ...]
    """Columns of each target, in the order of the DataFrame."""

    @property
    def lines(self) -> list[tuple[str, str]]:
        """Return the result for people, as pairs of heading and text."""
        columns = [(column.heading, column.fits) for column in self.columns]
        return [*self.in_force.items(), *columns, ("fits", "the query can start")]

    def __str__(self) -> str:
        width = max(len(heading) for heading, _ in self.lines)
        return "\n".join(f"{heading:<{width}}  {text}" for heading, text in self.lines)

    __repr__ = __str__


def preflight_options(raw: Mapping[str, str]) -> Checked:
    """Check options without connecting. The result has no columns.

    :param raw: options of the query by name.
    :raises OptionError: an option is missing or unknown, or has a value that does not fit.
    """
    configuration = configure(raw)
    _refuse_files(configuration)
    configuration.refuse_bucket()
    return Checked(in_force=_in_force(configuration), columns=())


def _refuse_files(configuration: Configuration) -> None:
    """Refuse a checkpoint or a log whose path is a file, or is below a file.

    :raises OptionError: there is such a file.
    """
    location = configuration.location
    for option, url in (
        ("checkpointLocation", location.checkpoint),
        ("wal.location", location.logs),
    ):
        folder = local_folder(url)
        for path in (folder, *folder.parents) if folder is not None else ():
            if os.path.isfile(path):  # noqa: PTH113 - False if this user cannot read the path
                raise OptionError(
                    f"Option {option} is {url}, and {path} is a file, so the folder cannot be created.",
                    "Name a folder that exists, or that can be created.",
                )


def _in_force(configuration: Configuration) -> dict[str, str]:
    return configuration.in_force(f"{configuration.location.logs}/<query id>")


def preflight(
    raw: Mapping[str, str], schema: pa.Schema, file_manager: str | None = None
) -> Checked:
    """Check options, and compare a DataFrame with the target's table.

    :param raw: options of the query by name.
    :param schema: schema of the DataFrame, with timestamps in UTC.
    :param file_manager: see `Configuration.refuse_bucket`.
    :raises OptionError: an option is missing or unknown, or has a value that does not fit.
    :raises SchemaMismatch: the DataFrame does not fit, or the table cannot be written exactly once.
    :raises TargetUnavailable, TargetRefused: the target does not answer, or refuses.
    """
    configuration = configure(raw)
    _refuse_files(configuration)
    configuration.refuse_bucket(file_manager)
    columns = with_epoch_field(schema, configuration.sink.epoch_column)
    inputs_key = inputs_key_of(configuration, columns)
    plans: dict[str, Plan] = {}
    for destination in configuration.destinations:
        with of_target(destination.prefix):
            plans[destination.prefix] = destination.target.dry_plan(columns, inputs_key)
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
