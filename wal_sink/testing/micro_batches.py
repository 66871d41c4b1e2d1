"""Plays a streaming query without Spark and without a JVM: makes the durable steps of Spark in their order.

The steps of a micro-batch are the steps of Spark 4.3: read the checkpoint, write offsets/N, run the tasks,
call `commit()`, write commits/N. The product's code publishes and flushes.
`docs/targets.md#under-kills` shows a test that uses this module.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, Self, TypeVar

import pyarrow as pa

from state_backends import StateBackend, open_backend
from wal_sink.checkpoint.checkpoint import Checkpoint
from wal_sink.errors import WalSinkError
from wal_sink.flush.flusher import Flusher, Pass
from wal_sink.flush.pipeline import Pipeline
from wal_sink.model import paths
from wal_sink.model.manifest import Appended, Execution, Manifest, Task
from wal_sink.model.plan import Plan, plans_key
from wal_sink.model.state import State
from wal_sink.protocol.retention import Retention
from wal_sink.publish.append import OnInvalidRow, append, most_inline
from wal_sink.publish.publisher import Publisher
from wal_sink.targets.base import Session, Target
from wal_sink.testing.faults import Faults, FaultyBackend, FaultyTarget
from wal_sink.units import now_us
from wal_sink.wal.store import create_object, newest, read_record

Row = tuple[Any, ...]
"""The values of a row, in the order of the schema."""
Rows = Sequence[Row]
"""The rows of a partition."""

_MOST_TRIES = 200
"""How many passes a flusher may need until it is idle, including failed passes."""


def in_memory() -> tuple[StateBackend, StateBackend]:
    """Return new stores in memory, for a checkpoint and a log."""
    name = uuid.uuid4().hex
    return open_backend(f"memory://{name}/ck"), open_backend(f"memory://{name}/log")


def until_idle(flusher: Flusher, *, retry: bool = False) -> list[Pass]:
    """Run a flusher until a pass has nothing to do; return the passes.

    :param retry: True to continue with a new connection after a transient error.
    """
    passes: list[Pass] = []
    for _ in range(_MOST_TRIES):
        try:
            passes.append(flusher.run_once())
        except WalSinkError as error:
            if not (retry and error.transient):
                raise
            flusher.close()
        else:
            if passes[-1].idle:
                return passes
    raise AssertionError(f"the flusher is never idle: {passes[-5:]}")


def flush_with_retries(flusher: Flusher) -> None:
    """Run a flusher until it is idle, also after transient errors."""
    until_idle(flusher, retry=True)


class PlayedQuery:
    """A query with its checkpoint and its log.

    :param target: the target of the rows.
    :param schema: the columns of the DataFrame.
    :param stores: the stores of checkpoint and log; None makes new ones in memory.
    """

    def __init__(
        self,
        target: Target,
        schema: pa.Schema,
        stores: tuple[StateBackend, StateBackend] | None = None,
    ) -> None:
        self.target = target
        self.schema = schema
        self.checkpoint, self.log_backend = stores or in_memory()
        self.query_id = str(uuid.uuid4())
        self.clock: Callable[[], int] = now_us
        """The clock of driver and flushers, in microseconds since 1970."""
        self.retention = Retention(us=0, bytes=0)
        self.max_bytes = 10 << 30
        """The option `wal.maxBytes`."""
        self.on_invalid_row: OnInvalidRow = "fail"
        self.inline = range(0)
        """The numbers of the partitions whose small segments are in the manifest, not in files."""
        self.committed: dict[int, list[Row]] = {}
        """The rows of each completed epoch."""
        self.keepers: dict[int, str] = {}
        """The id of the run that wrote `commits/N`, by epoch."""
        self.computed: dict[tuple[int, str], list[Row]] = {}
        """The rows of every attempt, by epoch and run id."""
        self._sessions: list[Session] = []

    def forget(self) -> None:
        """Delete all objects of checkpoint and log, since a full store in memory is slow."""
        for backend in (self.checkpoint, self.log_backend):
            backend.delete(backend.list())

    @property
    def targets(self) -> dict[str, Target]:
        """The targets by name. A single target is named by its attribute `name`."""
        return {self.target.name: self.target}

    @property
    def several(self) -> bool:
        """True if the query has several targets."""
        return len(self.targets) > 1

    @property
    def options(self) -> dict[str, str]:
        """The options of a run, as the state of the log contains them."""
        return {"targets": ",".join(self.targets)} if self.several else {}

    @property
    def state(self) -> State:
        """The newest state of the log, which must exist."""
        state = newest(self.log_backend)
        assert state is not None
        return state

    def frame(self, rows: Rows) -> pa.RecordBatch:
        """Return rows as a batch of the DataFrame."""
        return pa.RecordBatch.from_pylist(
            [dict(zip(self.schema.names, row, strict=True)) for row in rows], self.schema
        )

    def run(self, faults: Faults | None = None) -> Run[Self]:
        """Start a run of the query."""
        return Run(self, faults or Faults())

    def flusher(self, faults: Faults | None = None, name: str = "") -> Flusher:
        """Return a new flusher, which shares no memory with other flushers.

        :param name: the name of its target; by default the first target.
        """
        faults, name = faults or Faults(), name or next(iter(self.targets))
        pipeline = Pipeline(
            query_id=self.query_id,
            store=FaultyBackend(self.log_backend, faults),
            checkpoint=Checkpoint(FaultyBackend(self.checkpoint, faults)),
            target=FaultyTarget(self.targets[name], faults, self._sessions),
            target_name=name,
            several=self.several,
            retention=self.retention,
            quarantine=self.on_invalid_row == "quarantine",
        )
        return Flusher(pipeline, clock_us=self.clock, monotonic_s=lambda: self.clock() / 1_000_000)

    def flush(self, faults: Faults | None = None) -> list[Pass]:
        """Flush into every target until there is nothing to do; return the passes.

        :raises Crash: `faults` has injected it. The sessions then stay open until `end_sessions`.
        """
        passes = []
        for name in self.targets:
            flusher = self.flusher(faults, name)
            try:
                passes += until_idle(flusher)
            except Exception:
                flusher.close()
                raise
            flusher.close()
        return passes

    def end_sessions(self) -> None:
        """Close all sessions of flushers, as a server does when a process dies."""
        for session in self._sessions:
            session.close()
        self._sessions.clear()


Query_co = TypeVar("Query_co", bound=PlayedQuery, covariant=True)


class Run(Generic[Query_co]):
    """One run of a query."""

    def __init__(self, query: Query_co, faults: Faults) -> None:
        self.query = query
        self.faults = faults
        self.run_id = str(uuid.uuid4())
        self.store = FaultyBackend(query.log_backend, faults)
        self.checkpoint = FaultyBackend(query.checkpoint, faults)
        if "metadata" not in self.checkpoint.list():
            self.checkpoint.create("metadata", json.dumps({"id": query.query_id}).encode())
        self.next = Checkpoint(self.checkpoint).last_commit() + 1
        schema, targets = query.frame(()).schema, query.targets
        key = plans_key(schema, {name: (t.name, t.shape) for name, t in targets.items()})
        self.plans = self.agreed(schema, key)
        self.plan = next(iter(self.plans.values()))

    def agreed(self, schema: pa.Schema, key: str) -> Mapping[str, Plan]:
        """Return the plans by the name of the target; make the plans that the log does not have."""
        plans: dict[str, Plan] = {}
        for name, target in self.query.targets.items():
            path = paths.PLAN.path(paths.PlanName(name, key))
            plan = read_record(self.store, Plan, path)
            if plan is None:
                plan = FaultyTarget(target, self.faults).plan(schema, key).for_log(key)
                create_object(self.store, path, plan.to_json())
            plans[name] = plan
        return plans

    def batch(self, *partitions: Rows, offset: str | None = None) -> int:
        """Run one micro-batch with these partitions; return its epoch."""
        epoch = self.next
        self.publish(*partitions, offset=offset)
        self.write_commit(partitions)
        return epoch

    def batches(self, *batches: Rows) -> Self:
        """Run one micro-batch of one partition for each argument; return the run."""
        for rows in batches:
            self.batch(rows)
        return self

    def flushed_batches(self, *batches: Rows) -> Self:
        """Run micro-batches as `batches` does, and flush them; return the run."""
        self.batches(*batches)
        self.query.flush()
        return self

    def publish(self, *partitions: Rows, offset: str | None = None) -> Manifest | None:
        """Run a micro-batch without writing commits/N; return its manifest."""
        self.write_offsets(offset)
        return self.commit(self.tasks(*partitions))

    def write_offsets(self, offset: str | None = None) -> None:
        """Write offsets/N, unless an earlier run has written it."""
        epoch = self.next
        metadata = json.dumps({"batchTimestampMs": self.query.clock(), "conf": {}})
        body = f'v1\n{metadata}\n{{"offset":{offset or epoch}}}'
        if f"offsets/{epoch}" not in self.checkpoint.list("offsets/"):
            self.checkpoint.create(f"offsets/{epoch}", body.encode())

    def tasks(self, *partitions: Rows) -> list[Appended]:
        """Run a task for each partition, and return their messages. Without partitions, run an empty task."""
        rows = [row for part in partitions for row in part]
        self.query.computed[self.next, self.run_id] = rows
        return [
            append(
                [self.query.frame(rows)],
                task=Task(self.execution, number, task_attempt=0),
                store=self.store,
                check=self._check,
                compression="lz4",
                on_invalid_row=self.query.on_invalid_row,
                inline_bytes=most_inline(number) if number in self.query.inline else 0,
            )
            for number, rows in enumerate(partitions or ((),))
        ]

    def _check(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows that the checks of all targets accept. A single target may also cast the rows."""
        query = self.query
        checked = [t.check(batch, self.plans[name]) for name, t in query.targets.items()]
        return batch if query.several else checked[0]

    @property
    def execution(self) -> Execution:
        """The ids of the next micro-batch."""
        return Execution(self.query.query_id, self.run_id, self.next)

    def commit(self, appended: list[Appended]) -> Manifest | None:
        """Publish what the tasks have appended, as `commit()` of the sink does; return the manifest."""
        query = self.query
        publisher = Publisher(
            store=self.store,
            checkpoint=Checkpoint(self.checkpoint),
            plans=self.plans,
            max_bytes=query.max_bytes,
            on_full="fail",
            options=query.options,
            clock_us=query.clock,
        )
        return publisher.publish(self.execution, appended)

    def write_commit(self, partitions: Sequence[Rows]) -> None:
        """Write commits/N; raise `FileExistsError` if it exists, as Spark does."""
        path = f"commits/{self.next}"
        body = json.dumps({"nextBatchWatermarkMs": 0, "by": self.run_id})
        try:
            self.checkpoint.create(path, f"v1\n{body}".encode())
        finally:  # the create may have taken effect although it raised
            is_committed = path in self.query.checkpoint.list("commits/")
            if is_committed and body.encode() in self.query.checkpoint.read(path):
                self.query.keepers[self.next] = self.run_id
                self.query.committed[self.next] = [row for rows in partitions for row in rows]
        self.next += 1
