"""Makes the plans by which the rows of a query are checked, at the start of each run.

A plan in the log never changes. The plans of all targets have one key in the log, a digest of their content.
Each manifest names the plans of its epoch by this key. `plans/agreed.json` has the plans in force, and a flag
whether the present run has compared them with the tables. The start of a run clears the flag
(`compare_again`), so the first micro-batch of the run connects. If table, schema or options have changed, a
new plan is in force from this micro-batch on. The start is refused if pending epochs do not fit the table. If
the target does not answer, a run with the same schema and options continues with the former plan.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import pyarrow as pa
from msgspec.structs import replace

from state_backends import StateBackendError
from wal_sink.checkpoint.checkpoint import Checkpoint
from wal_sink.configuration import Configuration
from wal_sink.errors import (
    CorruptLog,
    LogUnavailable,
    MissingManifest,
    OptionError,
    SchemaMismatch,
    TargetUnavailable,
    WalSinkError,
    of_target,
)
from wal_sink.model import paths
from wal_sink.model.ledger import ledger_key
from wal_sink.model.plan import Agreed, Plan, content_key, plans_key
from wal_sink.model.state import State, TargetState
from wal_sink.publish.micro_batch import EPOCH_TYPE, MicroBatch
from wal_sink.targets.base import Target
from wal_sink.wal.location import refuse_other_log, store_errors
from wal_sink.wal.manifests import ManifestChain
from wal_sink.wal.store import LogStore, create_object, newest, read_record

logger = logging.getLogger(__name__)

RESERVED = "wal_sink:"
"""Prefix of the names of columns that the sink adds to the columns of a DataFrame."""


def compare_again(store: LogStore) -> None:
    """Record at the start of a run that its first micro-batch must compare the plans with the tables."""
    agreed = _read(store)
    if agreed is not None and agreed.compared:
        store.replace(paths.AGREED, replace(agreed, compared=False).to_json())


def agree(configuration: Configuration, schema: pa.Schema) -> MicroBatch:
    """Return a micro-batch with the plans for its rows. The first call of a run connects to the targets.

    :param schema: schema of the DataFrame, with timestamps in UTC.
    :raises SchemaMismatch, TargetUnavailable, OptionError: the target refuses the plan.
    :raises CheckpointNotVisible: the query has no checkpoint at this place.
    :raises WrongOwner: the checkpoint names another log.
    """
    checkpoint = configuration.location.open_checkpoint()
    store = configuration.location.open_log(checkpoint.query_id())
    columns = with_epoch_field(schema, configuration.sink.epoch_column)
    targets = {destination.name: destination.target for destination in configuration.destinations}
    inputs_key = inputs_key_of(configuration, columns)
    plans = plans_in_force(store, checkpoint, targets, columns, inputs_key)
    refuse_quarantine(plans.values(), configuration.sink.on_invalid_row)
    return MicroBatch(configuration, plans)


def with_epoch_field(schema: pa.Schema, name: str) -> pa.Schema:
    """Add `epochColumn` to a DataFrame's schema.

    :param name: name of the column. If it is empty, the schema is returned unchanged.
    :raises OptionError: the DataFrame has a column of this name.
    :raises SchemaMismatch: the name of a column has the prefix of the sink's own columns.
    """
    _refuse_reserved_names((*schema.names, name))
    if not name:
        return schema
    if name in schema.names:
        raise OptionError(
            f"Option epochColumn is {name}, and the DataFrame has a column of that name.",
            "Set epochColumn to a column of the table that the DataFrame lacks, or drop the column from the"
            " DataFrame.",
        )
    return schema.append(pa.field(name, EPOCH_TYPE, nullable=False))


def _refuse_reserved_names(columns: Iterable[str]) -> None:
    for column in columns:
        if column.startswith(RESERVED):
            raise SchemaMismatch(
                f"Column {column} has a name that begins with {RESERVED}, as the sink's own columns have.",
                f"Rename the column: .withColumnRenamed({column!r}, …).",
            )


def inputs_key_of(configuration: Configuration, columns: pa.Schema) -> str:
    """Return a digest of the columns, and of each target's kind and options.

    The plans depend on these inputs and on the tables. The tables are not in the digest.
    """
    named = ((place.name, place.target) for place in configuration.destinations)
    return plans_key(columns, {name: (target.name, target.shape) for name, target in named})


def refuse_quarantine(plans: Iterable[Plan], on_invalid_row: str) -> None:
    """Refuse quarantine for a table with lists that are not frozen.

    Quarantine identifies a row by its timestamp. Such a list gets other timestamps each time that its row is
    sent (rule `repeatable`).

    :raises OptionError: a plan is for such a table.
    """
    if on_invalid_row == "quarantine":
        for plan in plans:
            if plan.sent_once:
                raise OptionError(
                    f"Option onInvalidRow is quarantine, and {plan.table} has lists that are not frozen."
                    " Refused rows are identified by their timestamps, and each sending of such lists has"
                    " other timestamps.",
                    "Remove the option, change the columns to frozen<list<…>>, or drop the columns from the"
                    " DataFrame.",
                )


def plans_in_force(
    store: LogStore,
    checkpoint: Checkpoint,
    targets: Mapping[str, Target],
    schema: pa.Schema,
    inputs_key: str,
) -> Mapping[str, Plan]:
    """Return the plan of each target. Compare the plans with the tables first, if the run has not done so.

    :param targets: targets by name.
    :param inputs_key: see `inputs_key_of`.
    """
    with store_errors():
        agreed = _read(store)
        if agreed is not None and agreed.key == inputs_key and agreed.compared:
            return agreed.plans
        if agreed is None or agreed.key != inputs_key:
            refuse_other_log(store, checkpoint)  # before a write creates a folder there
    return _RunStart(store, checkpoint, targets, schema, inputs_key).agree(agreed).plans


def _read(store: LogStore) -> Agreed | None:
    with contextlib.suppress(CorruptLog):  # the caller makes the record again
        return read_record(store, Agreed, paths.AGREED)
    return None


class _RunStart(NamedTuple):
    """Makes the plans at the start of a run."""

    store: LogStore
    checkpoint: Checkpoint
    targets: Mapping[str, Target]
    """Targets by name."""
    schema: pa.Schema
    inputs_key: str
    """The key of schema and options, see `inputs_key_of`."""

    def agree(self, record: Agreed | None) -> Agreed:
        """Make the plans again, and put them in force.

        :param record: the plans in force so far, perhaps for another schema or other options. None if the log
            has no such record.
        """
        if record is None:
            self._probe()
        former = record.plans if record is not None else {}
        same_inputs = record is not None and record.key == self.inputs_key
        plans: dict[str, Plan] = {}
        for name, target in self.targets.items():
            with of_target(name if len(self.targets) > 1 else ""):
                plans[name] = self._plan(target, former.get(name), same_inputs=same_inputs)
        log_key = content_key(plans)
        plans = {name: plan.for_log(log_key) for name, plan in plans.items()}
        if log_key not in {plan.key for plan in former.values()}:
            for name, target in self.targets.items():
                self._refuse_unfit_backlog(name, target, log_key)
        data = Agreed(key=self.inputs_key, plans=plans).to_json()
        with store_errors():
            for name, plan in plans.items():
                create_object(self.store, _path(name, log_key), plan.to_json())
            self.store.replace(paths.AGREED, data)
        return Agreed.from_json(data, f"{self.store.url}/{paths.AGREED}")

    def _probe(self) -> None:
        try:
            self.store.probe()
        except StateBackendError as error:
            raise LogUnavailable(
                f"The log cannot be kept in {self.store.url}: {error}.",
                "Set wal.location to a place that driver and executors share and may write to.",
            ) from error

    def _plan(self, target: Target, former: Plan | None, *, same_inputs: bool) -> Plan:
        """Make the plan for the table as it is now, and create or alter the table if options ask for it.

        A table that the query has written to is not created again.

        :param former: the plan in force so far. None for a new target.
        :param same_inputs: True if `former` was made for the present schema and options.
        :raises SchemaMismatch: the DataFrame does not fit the table, or the table is gone.
        :raises TargetUnavailable: the target does not answer, and `former` is for another schema or other
            options.
        """
        try:
            if former is None:
                return target.plan(self.schema, self.inputs_key)
            plan = target.dry_plan(self.schema, self.inputs_key)
            if plan.creates and plan.table == former.table:
                raise SchemaMismatch(
                    f"{plan.table} is gone, and this query has written to it. A new table would lack the rows"
                    " that were flushed before.",
                    "Restore the table from a backup. Or, if the rows may be missing, name another table in"
                    " the options, which createTable makes; or create this one:\n"
                    f"{plan.creates}",
                )
            if (
                same_inputs
                and plan.to_json() == replace(former, key=self.inputs_key, digest="").to_json()
            ):
                return plan
            # Unlike `dry_plan`, this adds the columns that options ask for.
            return target.plan(self.schema, self.inputs_key)
        except TargetUnavailable as error:
            if former is None or not same_inputs:
                # Unlike a flush, a start is not tried again by itself.
                raise TargetUnavailable(
                    error.what, f"{error.remedy} Then start the query again."
                ) from error
            logger.warning(
                "%s does not answer. The query starts nevertheless, and checks its rows by the plan of the"
                " run before. Cause: %s",
                target.writes_to or target.name,
                error.what,
            )
            return replace(former, key=self.inputs_key, digest="")

    def _refuse_unfit_backlog(self, name: str, target: Target, log_key: str) -> None:
        """Refuse to start if pending checkpointed epochs do not fit the table as it is now.

        The flush would stop at the pending epochs. After a change back, it would stop at the new epochs.

        :param log_key: the key of the new plans in the log.
        :raises SchemaMismatch: a pending epoch does not fit the table.
        """
        with store_errors():
            pending = self._pending_plans(name, log_key)
        if not pending:
            return
        query_key = ledger_key(self.checkpoint.query_id(), name if len(self.targets) > 1 else "")
        try:
            with target.connect(query_key) as session:
                for plan in pending.values():
                    session.compare(plan)
        except SchemaMismatch as error:
            raise SchemaMismatch(
                f"Epoch {min(pending)} is not flushed yet, and does not fit the table as it is now."
                f" {error.what}",
                f"Change the table back, and run: wal-sink flush {self.checkpoint.url}\n"
                "Then change the table, and start the query again.",
            ) from error
        except WalSinkError:
            raise
        except Exception as error:
            if target.classify(error) == "fatal":
                raise
            logger.info("pending epochs were not compared with the table: %r", error)

    def _pending_plans(self, name: str, log_key: str) -> Mapping[int, Plan]:
        """Return the former plans of pending checkpointed epochs, by the first epoch of each plan."""
        while True:
            state = newest(self.store)
            target = state.target(name) if state is not None else None
            if state is None or target is None or target.given_up:
                return {}
            try:
                return self._plans_after(state, target, log_key)
            except (CorruptLog, MissingManifest):
                if newest(self.store) == state:
                    raise  # if the state has changed, a flusher has trimmed the objects

    def _plans_after(self, state: State, target: TargetState, log_key: str) -> Mapping[int, Plan]:
        chain, committed = ManifestChain(self.store), self.checkpoint.last_commit()
        keys, plans = {log_key}, dict[int, Plan]()
        for epoch, manifest in sorted(chain.chain(state, target.mark.epoch).items()):
            plan_key = chain.read(manifest).plan if epoch <= committed else log_key
            if plan_key not in keys:
                keys.add(plan_key)
                plan = read_record(self.store, Plan, _path(target.name, plan_key))
                if plan is not None:
                    plans[epoch] = plan
        return plans


def _path(name: str, log_key: str) -> str:
    return paths.PLAN.path(paths.PlanName(name, log_key))
