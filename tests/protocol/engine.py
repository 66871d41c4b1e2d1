"""A stand-in for Spark's micro-batch engine: the same durable steps in the same order, without a JVM.

It plays Spark, never the sink: tickets, segments, manifests and the flush are the real code. Its order is
the one measured on Spark 4.3: metadata, onQueryStarted, read the checkpoint, offsets/N, tasks, commit(),
commits/N.
"""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Sequence
from typing import Self

import pyarrow as pa

from state_backends import StateBackend, open_backend
from wal_sink.checkpoint.checkpoint import Checkpoint
from wal_sink.errors import WalSinkError
from wal_sink.flush.flusher import Flusher, Pipeline
from wal_sink.flush.run_history import RunHistory
from wal_sink.model import paths
from wal_sink.model.ledger import LedgerState, Window
from wal_sink.model.manifest import Appended, Execution, Manifest, Task
from wal_sink.model.plan import Plan, several_plans_key
from wal_sink.model.records import Decision
from wal_sink.protocol.next_step import Idle, Step
from wal_sink.publish.append import OnInvalidRow, append, most_inline
from wal_sink.publish.fencing import take_ticket
from wal_sink.publish.publisher import Publisher
from wal_sink.publish.start import begin_log, note_without_sink
from wal_sink.targets.base import Session, Target
from wal_sink.testing.faults import Faults, FaultyBackend, FaultyTarget
from wal_sink.testing.memory_target import MemoryOptions, MemoryTarget
from wal_sink.wal.log import Log
from wal_sink.wal.targets import attach_targets

SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64())])
Rows = Sequence[tuple[str, int | None]]
"""Keys with their values; None for a delete, in a world whose target has deletes."""

NOW_US = 1_700_000_000_000_000


class Clock:
    """A clock that moves when it is told to."""

    def __init__(self, us: int = NOW_US) -> None:
        self.us = us

    def __call__(self) -> int:
        self.us += 1
        return self.us


def a_decision(epoch: int, highest: int = 1) -> Decision:
    """Return a decision to go on without an epoch, published `highest` times at the most."""
    return Decision(
        verb="skip",
        epoch=epoch,
        by="user@host",
        at_us=1,
        why="",
        where="",
        files=(),
        generation=1,
        offsets_digest="",
        rows=-1,
        last_us=0,
        highest=highest,
    )


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


class World:
    """One query's checkpoint, log and target, and what Spark has committed.

    :param target: takes rows of `SCHEMA` with the key k; None for `store`, which is the target where
        that is a `MemoryTarget`.
    """

    adds = False
    """Whether the target adds each row to those that are there; otherwise the last one of a key stays."""
    dates = True
    """Whether `store` has each visible row with the write timestamp that the log says."""

    def __init__(
        self, checkpoint: StateBackend, logs: StateBackend, target: Target | None = None
    ) -> None:
        self.checkpoint = checkpoint
        self.log_backend = logs
        self.storage_options: dict[str, object] = {}
        """For other places in the same store."""
        own = MemoryTarget(MemoryOptions(keys="k"))
        self.store = target if isinstance(target, MemoryTarget) else own
        self.target = target or self.store
        self.clock = Clock()
        self.target_ahead_us = 0
        """How far the target's clock is ahead of all others."""
        self.store.clock_us = lambda: self.clock.us + self.target_ahead_us
        self.retention_s = 0.0
        self.on_invalid_row: OnInvalidRow = "fail"
        self.inline_from: int | None = None
        """The first partition whose small segments are in the manifest; None: here all are files."""
        self.query_id = str(uuid.uuid4())
        self.committed: dict[int, dict[str, int | None]] = {}
        """Rows of the attempts whose run wrote `commits/N`, by epoch."""
        self.keepers: dict[int, str] = {}
        """The runs that wrote `commits/N`, by epoch."""
        self.computed: dict[tuple[int, str], dict[str, int | None]] = {}
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

    def run(
        self,
        faults: Faults | None = None,
        *,
        listening: bool = True,
        run_history: RunHistory | None = None,
    ) -> Run:
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
        """Flush until there is nothing to do; return the steps."""
        flusher = self.flusher(faults, run_history)
        try:
            return until_rest(flusher)
        finally:
            flusher.close()

    def begin_and_die(self) -> None:
        """Take one step of a flusher that dies when it has begun a window, before the first row."""
        flusher = self.flusher()
        flusher._flush = lambda *args, **kwargs: None  # type: ignore[method-assign]
        flusher.run_once()

    def flushed(self) -> dict[str, int]:
        """Flush until there is nothing to do; return what a reader of the target sees then."""
        self.flush()
        return self.table()

    def table(self) -> dict[str, int]:
        """What a reader of the target sees."""
        return dict(self.visible())

    def visible(self) -> list[tuple[str, int]]:
        """Return the rows that a reader of the target sees; one that is there twice comes twice."""
        return [(key[0], row["v"]) for key, row in self.store.rows().items()]

    def ledger(self) -> LedgerState | None:
        """Return the ledger row, as it lies in the target."""
        return self.store.ledger.get(self.query_id)

    @property
    def state(self) -> LedgerState:
        """The ledger row, which is there."""
        row = self.ledger()
        assert row is not None
        return row

    @property
    def begun(self) -> Window:
        """The window that is begun."""
        begun = self.state.begun
        assert begun is not None
        return begun

    @property
    def last(self) -> Window:
        """The window that was finished last."""
        last = self.state.last
        assert last is not None
        return last

    def end_sessions(self) -> None:
        """Let the target notice that its clients are gone, as a server does when a process dies."""
        for session in self._sessions:
            session.close()
        self._sessions.clear()

    def expected(self) -> dict[str, int]:
        """What a reader should see when all is flushed: later epochs win."""
        table: dict[str, int | None] = {}
        for epoch in sorted(self.committed):
            table.update(self.committed[epoch])
        return {key: value for key, value in table.items() if value is not None}

    def frame(self, rows: Rows) -> pa.RecordBatch:
        """Return rows as the DataFrame has them."""
        return pa.RecordBatch.from_pylist([{"k": k, "v": v} for k, v in rows], SCHEMA)


class Run:
    """One run of the query, from `start()` on."""

    def __init__(
        self, world: World, faults: Faults, *, listening: bool, run_history: RunHistory
    ) -> None:
        self.world = world
        self.faults = faults
        self.run_history = run_history
        self.run_id = str(uuid.uuid4())
        self.log = Log(FaultyBackend(world.log_backend, faults), several=world.several)
        self.checkpoint = FaultyBackend(world.checkpoint, faults)
        if "metadata" not in self.checkpoint.list():
            self.checkpoint.create("metadata", json.dumps({"id": world.query_id}).encode())
        if listening:
            with contextlib.suppress(OSError):  # an error in the callback does not stop Spark
                if world.several:
                    attach_targets(
                        self.log, Checkpoint(self.checkpoint), world.targets, world.clock(), "user"
                    )
                begin_log(self.log, Checkpoint(self.checkpoint))
                note_without_sink(self.log, Checkpoint(self.checkpoint))
                take_ticket(self.log, self.run_id)
            run_history.watch(world.query_id)
            run_history.started(world.query_id, self.run_id)
        self.next = Checkpoint(self.checkpoint).last_commit() + 1
        schema = world.frame(()).schema
        named = {name: (target.name, target.shape) for name, target in world.targets.items()}
        key = several_plans_key(schema, named)
        self.plans: dict[str, Plan] = {}
        for name, target in world.targets.items():
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
        self.world.flush()
        return self

    def publish(self, *partitions: Rows, offset: str | None = None) -> Manifest | None:
        """Run a micro-batch up to the return of `commit()`; `commits/N` is not written."""
        self.write_offsets(offset)
        return self.commit(self.tasks(*partitions))

    def write_offsets(self, offset: str | None = None) -> None:
        """Write offsets/N, unless a run before has planned the batch already."""
        epoch = self.next
        conf = {"spark.sql.shuffle.partitions": "2"}
        metadata = json.dumps({"batchTimestampMs": self.world.clock(), "conf": conf})
        body = f'v1\n{metadata}\n{{"offset":{offset or epoch}}}'
        if f"offsets/{epoch}" not in self.checkpoint.list("offsets/"):
            self.checkpoint.create(f"offsets/{epoch}", body.encode())

    def tasks(self, *partitions: Rows) -> list[Appended]:
        """Run the tasks; Spark runs at least one."""
        rows = dict(row for part in partitions for row in part)
        self.world.computed[self.next, self.run_id] = rows
        return [
            append(
                [self.world.frame(rows)],
                task=Task(
                    query_id=self.world.query_id,
                    run_id=self.run_id,
                    epoch=self.next,
                    partition=number,
                    task_attempt=0,
                ),
                backend=self.log.backend,
                check=self._check,
                compression="lz4",
                on_invalid_row=self.world.on_invalid_row,
                inline_bytes=most_inline(number) if number in self.world.inline else 0,
            )
            for number, rows in enumerate(partitions or ((),))
        ]

    def _check(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Let each target refuse rows; the only one casts them."""
        world = self.world
        checked = [t.check(batch, self.plans[name]) for name, t in world.targets.items()]
        return batch if world.several else checked[0]

    @property
    def execution(self) -> Execution:
        """What Spark calls the micro-batch that comes next."""
        return Execution(self.world.query_id, self.run_id, self.next)

    def commit(self, appended: list[Appended]) -> Manifest | None:
        """Call the sink's `commit()`."""
        publisher = Publisher(
            self.log,
            Checkpoint(self.checkpoint),
            plan=self.plan.key,
            options={"targets": ",".join(self.world.targets)} if self.world.several else {},
            clock_us=self.world.clock,
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
            there = path in self.world.checkpoint.list("commits/")
            if there and body.encode() in self.world.checkpoint.read(path):
                self.world.keepers[self.next] = self.run_id
                self.world.committed[self.next] = dict(row for rows in partitions for row in rows)
        if heard:
            with self.faults.around(f"event {self.next}"):
                pass  # it comes late, and in a crash never
            self.run_history.progressed(self.world.query_id, self.run_id, self.next)
        self.next += 1

    def end(self, *, gave_way: bool = False) -> None:
        """End as a query does whose driver lives on."""
        self.run_history.terminated(self.world.query_id, self.run_id, gave_way=gave_way)


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
