"""Agrees with each target, as a run starts, on the plan by which the rows of the run are checked.

A plan in the log never changes. Its key is a digest of all that it says, and each manifest names the plan of
its epoch. `plans/agreed.json` says which plans are in force, and whether the present run has
compared them with the tables. A run that starts takes the second part back (`compare_again`). So
its first micro-batch connects, and if the table was altered meanwhile, a new plan is in force from
that micro-batch on. If the target does not answer, the run goes on by the plan of the run before.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping
from typing import NamedTuple

import pyarrow as pa
from msgspec.structs import replace

from state_backends import StateBackendError
from wal_sink.checkpoint.checkpoint import Checkpoint
from wal_sink.configuration import Configuration
from wal_sink.errors import (
    CorruptLog,
    LogUnavailable,
    SchemaMismatch,
    TargetUnavailable,
    WalSinkError,
)
from wal_sink.model import paths
from wal_sink.model.ledger import ledger_key
from wal_sink.model.plan import Agreed, Plan, content_key
from wal_sink.publish.micro_batch import (
    MicroBatch,
    plans_key,
    refuse_quarantine,
    with_epoch_field,
)
from wal_sink.targets.base import Target
from wal_sink.wal.location import refuse_other_log, store_errors
from wal_sink.wal.manifests import ManifestChain
from wal_sink.wal.states import newest
from wal_sink.wal.store import LogStore

logger = logging.getLogger(__name__)


def compare_again(store: LogStore) -> None:
    """Let the first micro-batch of the run that starts compare the plans with the tables."""
    agreed = _read(store)
    if agreed is not None and agreed.compared:
        store.replace(paths.AGREED, replace(agreed, compared=False).to_json())


def agree(configuration: Configuration, schema: pa.Schema) -> MicroBatch:
    """Return how rows of a schema are written; connects in the first micro-batch of a run.

    :param schema: of the DataFrame, timestamps in UTC.
    :raises SchemaMismatch, TargetUnavailable, OptionError: from the plan.
    :raises CheckpointNotVisible: the query has no checkpoint here.
    :raises WrongOwner: the log is not that of the checkpoint.
    """
    checkpoint = configuration.location.open_checkpoint()
    store = configuration.location.open_log(checkpoint.query_id())
    columns = with_epoch_field(schema, configuration.sink.epoch_column)
    targets = {each.name: each.target for each in configuration.destinations}
    key = plans_key(configuration, columns)
    plans = plans_in_force(store, checkpoint, targets, columns, key)
    refuse_quarantine(plans.values(), configuration.sink.on_invalid_row)
    return MicroBatch(configuration, plans)


def plans_in_force(
    store: LogStore,
    checkpoint: Checkpoint,
    targets: Mapping[str, Target],
    schema: pa.Schema,
    key: str,
) -> Mapping[str, Plan]:
    """Return the plan of each target, all of one key; compare them first if the run has not done so.

    :param targets: by name.
    :param key: of schema and options, see `plans_key`.
    """
    with store_errors():
        agreed = _read(store)
        if agreed is None or agreed.key != key:
            refuse_other_log(store, checkpoint)  # else a folder would stay where no log may be
            agreed = None
    if agreed is None or not agreed.compared:
        agreed = _Start(store, checkpoint, targets, schema, key).agreed(agreed)
    return agreed.plans


def _read(store: LogStore) -> Agreed | None:
    with contextlib.suppress(CorruptLog):  # it is made again
        return store.read_record(Agreed, paths.AGREED)
    return None


class _Start(NamedTuple):
    """The start of a run."""

    store: LogStore
    checkpoint: Checkpoint
    targets: Mapping[str, Target]
    """By name."""
    schema: pa.Schema
    key: str
    """Of schema and options."""

    def agreed(self, before: Agreed | None) -> Agreed:
        """Plan again, and put the plans in force.

        :param before: the plans of an earlier run for the same schema and options.
        """
        if before is None:
            self._probe()
            plans = {name: self._first_plan(target) for name, target in self.targets.items()}
        else:
            plans = {
                name: self._next_plan(target, before.plans[name])
                for name, target in self.targets.items()
            }
        key = content_key(plans)
        plans = {name: replace(plan, key=key) for name, plan in plans.items()}
        if before is not None and key not in {plan.key for plan in before.plans.values()}:
            for name, target in self.targets.items():
                self._refuse_unfit_backlog(name, target, key)
        data = Agreed(key=self.key, plans=plans).to_json()
        with store_errors():
            for name, plan in plans.items():
                self.store.create(_path(name, key), plan.to_json())
            self.store.replace(paths.AGREED, data)
        return Agreed.from_json(data, self.store.url_of(paths.AGREED))

    def _probe(self) -> None:
        try:
            self.store.backend.probe()
        except StateBackendError as error:
            raise LogUnavailable(
                f"The log cannot be kept in {self.store.url}: {error}.",
                "Set wal.location to a place that driver and executors share and may write to.",
            ) from error

    def _first_plan(self, target: Target) -> Plan:
        """Make a plan, and what is missing for it."""
        try:
            return target.plan(self.schema, self.key)
        except TargetUnavailable as error:  # the flush tries again, a start does not
            raise TargetUnavailable(
                error.what, f"{error.remedy} Then start the query again."
            ) from error

    def _next_plan(self, target: Target, before: Plan) -> Plan:
        """Make a plan by the table as it is now; a table that is missing is not made again.

        :raises SchemaMismatch: the DataFrame does not fit any more, or the table is gone.
        """
        try:
            plan = target.dry_plan(self.schema, self.key)
        except TargetUnavailable as error:
            logger.warning(
                "%s does not answer. The query starts all the same, and checks its rows by what was agreed"
                " when it started last: %s",
                target.writes_to or target.name,
                error.what,
            )
            return replace(before, key=self.key)
        if plan.creates:
            raise SchemaMismatch(
                f"{plan.table} is gone, which this query has written to. A new table would lack the rows that"
                " were flushed before.",
                "Restore the table from a backup. Or, if the rows may be missing, create it:\n"
                f"{plan.creates}",
            )
        if plan.to_json() != replace(before, key=self.key).to_json():
            return target.plan(self.schema, self.key)  # which may add what options ask for
        return plan

    def _refuse_unfit_backlog(self, name: str, target: Target, key: str) -> None:
        """Refuse to start if checkpointed epochs are pending that do not fit the table as it is now.

        The flush would stop at them; and if the table is changed back, at those that come from now on.

        :param key: of the new plans.
        :raises SchemaMismatch: there are such epochs.
        """
        pending = self._pending_plans(name, key)
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

    def _pending_plans(self, name: str, key: str) -> Mapping[int, Plan]:
        """Return the other plans of checkpointed epochs that are not flushed, each by its first epoch."""
        state = newest(self.store)
        target = state.target(name) if state is not None else None
        if state is None or target is None or target.given_up:
            return {}
        chain, last = ManifestChain(self.store), self.checkpoint.last_commit()
        keys, found = {key}, dict[int, Plan]()
        for epoch, manifest in sorted(chain.chain(state, target.mark.epoch).items()):
            planned = chain.read(manifest).manifest.plan if epoch <= last else key
            if planned not in keys:
                keys.add(planned)
                if (plan := self.store.read_record(Plan, _path(name, planned))) is not None:
                    found[epoch] = plan
        return found


def _path(name: str, key: str) -> str:
    return paths.PLAN.path(paths.PlanName(name, key))
