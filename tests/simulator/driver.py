"""A simulated Spark driver and flushers: Spark's durable steps in their order, around the product's code.

The order is that of Spark 4.3: `metadata`, read the checkpoint, `offsets/N`, tasks, `commit()`, `commits/N`.
`foreachBatch` has the same order.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Sequence

import pyarrow as pa

from tests.simulator.checker import Attempt
from tests.simulator.machine import MACHINE, uuid4
from tests.simulator.process import Process, Thread
from tests.simulator.target import INVALID, REFUSED, SCHEMA, SimulatedTarget
from tests.simulator.volume import Mount
from tests.simulator.world import World
from wal_sink import errors, units
from wal_sink.flush.flusher import Flusher
from wal_sink.flush.reporter import Reporter
from wal_sink.model import paths
from wal_sink.model.manifest import Appended, Execution, Task
from wal_sink.model.plan import Plan, plans_key
from wal_sink.publish.append import append, most_inline
from wal_sink.publish.publisher import Publisher, discard, discard_call
from wal_sink.wal.store import read_record


class FlusherThread:
    """A flusher of one target, in a thread of a process."""

    def __init__(self, world: World, process: Process, name: str) -> None:
        self.world = world
        self.process = process
        self.name = name
        self.thread = Thread(process)
        self.idle = False
        """True if the last pass had nothing to do."""
        self.error = ""
        """The class of the error that ended the last pass."""
        self.restart()

    def restart(self) -> None:
        assert not self.thread.stalled
        pipeline = self.world.pipeline(self.process, self.name)
        reporter = Reporter(pipeline.store, self.name)
        self._flusher = Flusher(pipeline, reporter)

    def act(self, passes: int) -> None:
        """Run some passes, or continue the stalled pass."""
        if self.thread.stalled:
            self.thread.resume()
        elif self.process.alive:
            self.thread.start(lambda: self._flush(passes))

    def _flush(self, passes: int) -> None:
        """Run passes; close the connection after an error, as the loop does."""
        self.idle, self.error = False, ""
        try:
            for _ in range(passes):
                if self._flusher.run_once().idle:
                    self.idle = True
                    self._flusher.reporter.succeeded(None)
                    return
                self._flusher.reporter.succeeded(self._flusher.mark)
        except errors.WalSinkError as error:
            self.error = type(error).__name__
            self.world.trace.say(f"    {self.process.name}: {self.name}: {self.error}: {error}")
            if not error.transient:
                self.world.flush_errors.add(self.error)
                if not self.world.expects_error(self.error, self.name):
                    self.world.checker.violate(f"the flush of {self.name} stops: {error!r}")
            self._flusher.close()
            self._flusher.reporter.failed(error, wait_s=1.0)
        except Exception as error:  # noqa: BLE001 - a bug of the product, or of ours
            self.world.checker.violate(f"the flush of {self.name} ends with {error!r}")
            self._flusher.close()


class Driver:
    """A process with the query, one run after the other, and with its flushers."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.process = world.process("driver")
        self.main = Thread(self.process)
        self.flushers = {name: FlusherThread(world, self.process, name) for name in world.names}
        self.log = world.site.open_log(self.process)
        self.store = Mount(world.site.checkpoint, self.process, syncs=False)
        self.begins_after = max(world.site.checkpoint.epochs("commits"), default=-1)
        """The last completed epoch when the driver started, for its `batch_writer`."""
        self.run: Run | None = None
        self.error = ""
        """The class of the error that ended the last run."""

    def batch(self, count: int, *, poison: bool = False) -> None:
        """Run a micro-batch with `count` rows; start the query first if it does not run."""

        def act() -> None:
            if self.run is None:
                self.run = Run(self)
                self.run.start()
            self.run.batch(count, poison=poison)

        self.main.start(lambda: self._as_spark(act))

    def _as_spark(self, act: Callable[[], None]) -> None:
        """End the query after an error, as Spark does."""
        world, self.error = self.world, ""
        try:
            act()
        except OSError as error:
            self._ends(error, expected=not isinstance(error, FileExistsError) or self._is_rival)
        except errors.WalSinkError as error:
            kind = type(error).__name__
            expected = (
                error.transient
                or kind in {"InvalidRow", "LogFull"}
                or (kind in {"Fenced", "Diverged"} and self._is_rival)
                or kind in world.flush_errors
                or world.expects_error(kind)
            )
            self._ends(error, expected=expected)
        except Exception as error:  # noqa: BLE001 - a bug of the product, or of ours
            self._ends(error, expected=False)

    @property
    def _is_rival(self) -> bool:
        return "two drivers" in self.world.swarm

    def _ends(self, error: Exception, *, expected: bool) -> None:
        self.error = type(error).__name__
        self.world.counts[f"runs that end with {self.error}"] += 1
        self.world.trace.say(f"    {self.process.name}: the query fails: {self.error}: {error}")
        if not expected:
            self.world.checker.violate(f"a run ends with {error!r}")
        self.run = None


class Run:
    """A run of the query."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.world = driver.world
        self.run_id = str(uuid4())
        self.next = 0
        self.planned = False
        """True if `offsets/<next>` exists."""
        self.names = self.world.names
        self.plans: dict[str, Plan] = {}

    def start(self) -> None:
        """Read the checkpoint, and agree on plans."""
        driver, store = self.driver, self.driver.store
        if "metadata" not in store.list():
            store.create("metadata", json.dumps({"id": self.world.query_id}).encode())
        commits, offsets = self._newest("commits"), self._newest("offsets")
        self.planned = offsets > commits
        self.next = offsets if self.planned else commits + 1
        targets = {
            name: SimulatedTarget(self.world.databases[name], driver.process) for name in self.names
        }
        self.targets = targets
        key = plans_key(SCHEMA, {n: (t.name, t.shape) for n, t in targets.items()})
        for name, target in targets.items():
            path = paths.PLAN.path(paths.PlanName(name, key))
            plan = read_record(driver.log, Plan, path)
            if plan is None:
                plan = target.plan(SCHEMA, key).for_log(key)
                driver.log.create(path, plan.to_json())
            self.plans[name] = plan

    def batch(self, count: int, *, poison: bool) -> None:
        """Run a micro-batch to its end.

        :param poison: True lets a task refuse a row, which fails the micro-batch.
        """
        self.plan_batch()
        keys = self._keys(count)
        value = self.world.next_value()
        taken = tuple(key for key in keys if not key.startswith(INVALID))
        attempt = Attempt(
            self.next,
            self.run_id,
            value,
            taken,
            frozenset(key for key in taken if key.startswith(REFUSED)),
            len(keys) - len(taken),
        )
        self.world.checker.computed(attempt)
        call = f"{MACHINE.random.getrandbits(64):016x}" if self.world.batch_writer else ""
        appended = self._tasks(keys, value, call)
        execution = Execution(self.world.query_id, self.run_id, self.next)
        if poison:
            if self.world.batch_writer:
                discard_call(self.driver.log, execution, call)
            else:  # `abort()` does this
                discard(self.driver.log, appended)
            raise errors.InvalidRow("a row that the target would refuse", "Filter such rows out.")
        self.publish(execution, appended)
        if self.world.batch_writer and self.world.chance.random() < 0.2:
            self._publish_again(execution, keys, value)
        self.complete()
        self.world.counts["batches"] += 1

    def publish(self, execution: Execution, appended: list[Appended]) -> object:
        """Call `commit()` on a new publisher, since `commit()` keeps nothing in memory."""
        world, driver = self.world, self.driver
        return Publisher(
            store=driver.log,
            checkpoint=world.site.open_checkpoint(driver.process),
            plans=self.plans,
            max_bytes=world.max_bytes,
            on_full=world.on_full,  # type: ignore[arg-type]
            options={"targets": ",".join(self.names)} if world.several else {},
            begins_after=driver.begins_after if world.batch_writer else None,
            clock_us=units.now_us,
        ).publish(execution, appended)

    def plan_batch(self) -> None:
        """Write `offsets/N`, unless an earlier run has written it."""
        if self.planned:
            return
        metadata = {"batchTimestampMs": units.now_us() // 1_000, "conf": {}}
        offset = self.world.offsets.setdefault(self.next, self.next * 1_000)
        body = f'v1\n{json.dumps(metadata)}\n{{"offset":{offset}}}'
        self.driver.store.create(f"offsets/{self.next}", body.encode())
        self.planned = True
        self._purge()

    def complete(self) -> None:
        body = json.dumps({"nextBatchWatermarkMs": 0, "by": self.run_id})
        self.driver.store.create(f"commits/{self.next}", f"v1\n{body}".encode())
        self.planned = False
        self.next += 1

    def _keys(self, count: int) -> list[str]:
        keys = [f"k{number}" for number in range(count)]
        if self.world.quarantine and self.world.chance.random() < 0.4:
            keys[1:1] = [f"{INVALID}0", f"{REFUSED}0", f"{REFUSED}1"]
        return keys

    def _tasks(self, keys: Sequence[str], value: int, call: str) -> list[Appended]:
        """Write the rows in one task or two."""
        first = self.world.chance.choice((len(keys), len(keys) // 2))
        small = "small segments" in self.world.swarm and self.world.chance.random() < 0.8
        parts = [part for part in (keys[:first], keys[first:]) if part] or [[]]
        execution = Execution(self.world.query_id, self.run_id, self.next)
        return [
            append(
                [pa.RecordBatch.from_pylist([{"k": key, "v": value} for key in part], SCHEMA)],
                task=Task(execution, partition, task_attempt=0, call=call),
                store=self.driver.log,
                check=self._check,
                compression="none",
                on_invalid_row="quarantine" if self.world.quarantine else "fail",
                inline_bytes=most_inline(partition) if small else 0,
            )
            for partition, part in enumerate(parts)
        ]

    def _check(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        for name, target in self.targets.items():
            batch = target.check(batch, self.plans[name])
        return batch

    def _publish_again(self, execution: Execution, keys: Sequence[str], value: int) -> None:
        """Call the writer with the same batch again, as a wrong function may: the call must be refused."""
        again = f"{MACHINE.random.getrandbits(64):016x}"
        with contextlib.suppress(errors.AlreadyPublished, errors.Fenced):
            if self.publish(execution, self._tasks(keys, value, again)) is not None:
                self.world.checker.violate(f"epoch {execution.epoch} can be written a second time")

    def _purge(self) -> None:
        """Delete old batches in random order, as Spark does when it plans a batch."""
        retained = self.world.retained_batches
        if retained is None:
            return
        old = [
            path
            for folder in ("offsets/", "commits/")
            for path in self.driver.store.list(folder)
            if int(path.rpartition("/")[2]) < self.next - retained
        ]
        self.world.chance.shuffle(old)
        self.driver.store.delete(old)

    def _newest(self, folder: str) -> int:
        names = [path.rpartition("/")[2] for path in self.driver.store.list(folder)]
        return max(map(int, names), default=-1)
