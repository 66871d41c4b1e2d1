"""Plays a streaming query without Spark: the same durable steps in the same order, and no JVM.

It plays Spark, never the sink: tickets, segments, manifests and the flush are the real code. Its order is
the one measured on Spark 4.3: metadata, onQueryStarted, read the checkpoint, offsets/N, tasks, commit(),
commits/N. `docs/targets.md#under-kills` has a test of a target by it.
"""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Callable, Sequence
from typing import Any, Generic, Self, TypeVar

import pyarrow as pa

from state_backends import StateBackend, open_backend
from wal_sink.checkpoint.checkpoint import Checkpoint
from wal_sink.clock import now_us
from wal_sink.errors import WalSinkError
from wal_sink.flush.flusher import Flusher, Pipeline
from wal_sink.flush.run_history import RunHistory
from wal_sink.model import paths
from wal_sink.model.manifest import Appended, Execution, Manifest, Task
from wal_sink.model.plan import Plan, several_plans_key
from wal_sink.protocol.next_step import Idle, Step
from wal_sink.publish.append import OnInvalidRow, append, most_inline
from wal_sink.publish.fencing import take_ticket
from wal_sink.publish.publisher import Publisher
from wal_sink.publish.start import begin_log, note_without_sink
from wal_sink.targets.base import Session, Target
from wal_sink.testing.faults import Faults, FaultyBackend, FaultyTarget
from wal_sink.wal.log import Log
from wal_sink.wal.targets import attach_targets

Row = tuple[Any, ...]
Rows = Sequence[Row]
"""Of a partition; what a row is, `PlayedQuery.frame` says."""


def in_memory() -> tuple[StateBackend, StateBackend]:
    """Return places for the checkpoint and the log of a new query."""
    name = uuid.uuid4().hex
    return open_backend(f"memory://{name}/ck"), open_backend(f"memory://{name}/log")


def until_rest(flusher: Flusher) -> list[Step]:
    """Run a flusher until there is nothing to do; return its steps."""
    steps: list[Step] = []
    for _ in range(100):
        steps.append(flusher.run_once())
        if isinstance(steps[-1], Idle):
            return steps
    raise AssertionError(f"the flusher never rests: {steps[-5:]}")


def flush(flusher: Flusher) -> None:
    """Flush as the loop does: what an error interrupted is tried again, on a new connection."""
    for _ in range(100):
        try:
            if isinstance(flusher.run_once(), Idle):
                return
        except WalSinkError as error:
            if not error.transient:
                raise
            flusher.close()
    raise AssertionError("the flusher never rests")


class PlayedQuery:
    """A query with its checkpoint and its log, and what Spark has committed.

    :param target: gets the rows.
    :param schema: of the DataFrame.
    :param stores: of checkpoint and log; None: new ones in memory.
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
        """Of driver and flushers, microseconds since 1970."""
        self.retention_s = 0.0
        self.on_invalid_row: OnInvalidRow = "fail"
        self.inline_from: int | None = None
        """The first partition whose small segments are in the manifest; None: here all are files."""
        self.committed: dict[int, list[Row]] = {}
        """Rows of the attempts whose run wrote `commits/N`, by epoch."""
        self.keepers: dict[int, str] = {}
        """The runs that wrote `commits/N`, by epoch."""
        self.computed: dict[tuple[int, str], list[Row]] = {}
        """Rows of every attempt, by epoch and run."""
        self._sessions: list[Session] = []

    def forget(self) -> None:
        """Delete checkpoint and log: stores in memory are as slow as they are full."""
        for backend in (self.checkpoint, self.log_backend):
            backend.delete(backend.list())

    @property
    def targets(self) -> dict[str, Target]:
        """The targets by name; the only one has none."""
        return {"": self.target}

    @property
    def inline(self) -> range:
        """The partitions whose small segments are in the manifest."""
        return range(0) if self.inline_from is None else range(self.inline_from, 100)

    @property
    def several(self) -> bool:
        """Whether the targets have names."""
        return "" not in self.targets

    @property
    def log(self) -> Log:
        """The log, without faults."""
        return Log(self.log_backend, several=self.several)

    def frame(self, rows: Rows) -> pa.RecordBatch:
        """Return rows as the DataFrame has them: each has its values in the order of the schema."""
        return pa.RecordBatch.from_pylist(
            [dict(zip(self.schema.names, row, strict=True)) for row in rows], self.schema
        )

    def run(
        self,
        faults: Faults | None = None,
        *,
        listening: bool = True,
        run_history: RunHistory | None = None,
    ) -> Run[Self]:
        """Start a run of the query; `listening` means that the sink is registered."""
        return Run(
            self, faults or Faults(), listening=listening, run_history=run_history or RunHistory()
        )

    def flusher(
        self,
        faults: Faults | None = None,
        run_history: RunHistory | None = None,
        name: str = "",
    ) -> Flusher:
        """Start a flusher, in a process of its own as far as its memory goes.

        :param run_history: what its process saw of runs; None when it is a process without any.
        :param name: of its target.
        """
        faults = faults or Faults()
        pipeline = Pipeline(
            self.query_id,
            Log(FaultyBackend(self.log_backend, faults), name),
            Checkpoint(FaultyBackend(self.checkpoint, faults)),
            FaultyTarget(self.targets[name], faults, self._sessions),
            self.retention_s,
            self.on_invalid_row == "quarantine",
        )
        return Flusher(pipeline, clock_us=self.clock, run_history=run_history or RunHistory())

    def flush(
        self, faults: Faults | None = None, run_history: RunHistory | None = None
    ) -> list[Step]:
        """Flush until there is nothing to do; return the steps.

        :raises Crash: the faults inject it. A dead flusher closes nothing: see `end_sessions`.
        """
        flusher = self.flusher(faults, run_history)
        try:
            steps = until_rest(flusher)
        except Exception:
            flusher.close()
            raise
        flusher.close()
        return steps

    def end_sessions(self) -> None:
        """Let the target notice that its clients are gone, as a server does when a process dies."""
        for session in self._sessions:
            session.close()
        self._sessions.clear()


Query_co = TypeVar("Query_co", bound=PlayedQuery, covariant=True)


class Run(Generic[Query_co]):
    """One run of the query, from `start()` on."""

    def __init__(
        self, query: Query_co, faults: Faults, *, listening: bool, run_history: RunHistory
    ) -> None:
        self.query = query
        self.faults = faults
        self.run_history = run_history
        self.run_id = str(uuid.uuid4())
        self.log = Log(FaultyBackend(query.log_backend, faults), several=query.several)
        self.checkpoint = FaultyBackend(query.checkpoint, faults)
        if "metadata" not in self.checkpoint.list():
            self.checkpoint.create("metadata", json.dumps({"id": query.query_id}).encode())
        if listening:
            with contextlib.suppress(OSError):  # an error in the callback does not stop Spark
                if query.several:
                    attach_targets(
                        self.log, Checkpoint(self.checkpoint), query.targets, query.clock(), "user"
                    )
                begin_log(self.log, Checkpoint(self.checkpoint))
                note_without_sink(self.log, Checkpoint(self.checkpoint))
                take_ticket(self.log, self.run_id)
            run_history.watch(query.query_id)
            run_history.started(query.query_id, self.run_id)
        self.next = Checkpoint(self.checkpoint).last_commit() + 1
        schema = query.frame(()).schema
        named = {name: (target.name, target.shape) for name, target in query.targets.items()}
        key = several_plans_key(schema, named)
        self.plans: dict[str, Plan] = {}
        for name, target in query.targets.items():
            log = self.log.of(name)
            if log.plan(key) is None:
                log.create(paths.PLAN, key, FaultyTarget(target, faults).plan(schema, key))
            plan = log.plan(key)
            assert plan is not None
            self.plans[name] = plan
        self.plan = next(iter(self.plans.values()))

    def batch(self, *partitions: Rows, offset: str | None = None) -> int:
        """Run one micro-batch to the end; return its epoch."""
        epoch = self.next
        self.publish(*partitions, offset=offset)
        self.write_commit(partitions)
        return epoch

    def batches(self, *each: Rows) -> Self:
        """Run a micro-batch of one partition for each; return the run."""
        for rows in each:
            self.batch(rows)
        return self

    def flushed_batches(self, *each: Rows) -> Self:
        """Do the same, and flush until there is nothing to do."""
        self.batches(*each)
        self.query.flush()
        return self

    def publish(self, *partitions: Rows, offset: str | None = None) -> Manifest | None:
        """Run a micro-batch up to the return of `commit()`; `commits/N` is not written."""
        self.write_offsets(offset)
        return self.commit(self.tasks(*partitions))

    def write_offsets(self, offset: str | None = None) -> None:
        """Write offsets/N, unless a run before has planned the batch already."""
        epoch = self.next
        conf = {"spark.sql.shuffle.partitions": "2"}
        metadata = json.dumps({"batchTimestampMs": self.query.clock(), "conf": conf})
        body = f'v1\n{metadata}\n{{"offset":{offset or epoch}}}'
        if f"offsets/{epoch}" not in self.checkpoint.list("offsets/"):
            self.checkpoint.create(f"offsets/{epoch}", body.encode())

    def tasks(self, *partitions: Rows) -> list[Appended]:
        """Run the tasks; Spark runs at least one."""
        rows = [row for part in partitions for row in part]
        self.query.computed[self.next, self.run_id] = rows
        return [
            append(
                [self.query.frame(rows)],
                task=Task(
                    query_id=self.query.query_id,
                    run_id=self.run_id,
                    epoch=self.next,
                    partition=number,
                    task_attempt=0,
                ),
                backend=self.log.backend,
                check=self._check,
                compression="lz4",
                on_invalid_row=self.query.on_invalid_row,
                inline_bytes=most_inline(number) if number in self.query.inline else 0,
            )
            for number, rows in enumerate(partitions or ((),))
        ]

    def _check(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Let each target refuse rows; the only one casts them."""
        query = self.query
        checked = [t.check(batch, self.plans[name]) for name, t in query.targets.items()]
        return batch if query.several else checked[0]

    @property
    def options(self) -> dict[str, str]:
        """The sink's options, as far as commands read them."""
        return {"targets": ",".join(self.query.targets)} if self.query.several else {}

    @property
    def execution(self) -> Execution:
        """What Spark calls the micro-batch that comes next."""
        return Execution(self.query.query_id, self.run_id, self.next)

    def commit(self, appended: list[Appended]) -> Manifest | None:
        """Call the sink's `commit()`."""
        publisher = Publisher(
            self.log,
            Checkpoint(self.checkpoint),
            plan=self.plan.key,
            options=self.options,
            clock_us=self.query.clock,
        )
        return publisher.publish(self.execution, appended)

    def write_commit(self, partitions: Sequence[Rows], *, heard: bool = True) -> None:
        """Write commits/N; an epoch that exists stays, as for Spark's rename without overwriting.

        :param heard: whether the event about it arrives.
        """
        path = f"commits/{self.next}"
        body = json.dumps({"nextBatchWatermarkMs": 0, "by": self.run_id})
        try:
            self.checkpoint.create(path, f"v1\n{body}".encode())
        finally:  # it may have taken effect although this process dies
            there = path in self.query.checkpoint.list("commits/")
            if there and body.encode() in self.query.checkpoint.read(path):
                self.query.keepers[self.next] = self.run_id
                self.query.committed[self.next] = [row for rows in partitions for row in rows]
        if heard:
            with self.faults.around(f"event {self.next}"):
                pass  # it comes late, and in a crash never
            self.run_history.progressed(self.query.query_id, self.run_id, self.next)
        self.next += 1

    def end(self, *, gave_way: bool = False) -> None:
        """End as a query does whose driver lives on."""
        self.run_history.terminated(self.query.query_id, self.run_id, gave_way=gave_way)
