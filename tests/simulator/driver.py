"""A Spark application with a query: the same durable steps in the same order, and the sink's real code.

The order is the one measured on Spark 4.3: `metadata`, `onQueryStarted`, read the checkpoint, `offsets/N`,
tasks, `commit()`, `commits/N`, progress event.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from tests.simulator import rows
from tests.simulator.attempts import Computed
from tests.simulator.flushing import Flushing
from tests.simulator.machine import MACHINE, uuid4
from tests.simulator.process import Thread
from tests.simulator.site import Site
from tests.simulator.target import SimulatedTarget
from tests.simulator.volume import Mount
from tests.simulator.world import World
from wal_sink import clock, errors
from wal_sink.flush.run_history import RunHistory
from wal_sink.model import paths
from wal_sink.model.manifest import Appended, Task
from wal_sink.model.plan import several_plans_key
from wal_sink.model.records import Stop
from wal_sink.progress.backlog import BacklogReaders
from wal_sink.protocol.budget import Budget
from wal_sink.publish.backpressure import Backpressure
from wal_sink.publish.fencing import refuse_published, take_ticket
from wal_sink.publish.orphans import discard, discard_call
from wal_sink.publish.publisher import Publisher
from wal_sink.publish.start import begin_log, claim_early, note_without_sink
from wal_sink.wal.location import owned

_MUCH = 10**12

_EXPECTED = {"LogFull", "NoFlusher", "StoppedWaiting", "InvalidRow"}
"""Kinds of errors with which any run may end."""


class Driver:
    """A process in which Spark runs the query, one run after the other, and which flushes it."""

    def __init__(self, world: World, site: Site) -> None:
        self.world = world
        self.site = site
        self.process = world.process("driver")
        self.main = Thread(self.process, "main")
        self.run_history = RunHistory()
        self.run_history.watch(world.query_id)
        self.flushings = {
            name: Flushing(world, site, self.process, self.run_history, name)
            for name in world.targets
        }
        self.flushing = self.flushings[world.targets[0]]
        self.log = site.open_log(self.process)
        self.store = Mount(site.checkpoint, self.process)
        self.backlogs = BacklogReaders()
        self.run: Run | None = None
        self.error = ""
        """The kind of error with which its last run ended."""
        self.documented: set[str] = set()
        """Kinds of errors with which its runs may end, beside those of the whole history."""

    def batch(self, count: int, *, heard: bool = True) -> None:
        """Run a micro-batch with so many rows; start the query first, if it does not run."""
        self.main.start(lambda: self._as_spark(lambda: self._batch(count, heard)))

    def poison(self) -> None:
        """Run a micro-batch of which the second task meets a row that the target would refuse."""
        self.main.start(lambda: self._as_spark(lambda: self._batch(2, heard=True, poison=True)))

    def pass_by(self) -> None:
        """Run a micro-batch whose function does not call the writer."""

        def act() -> None:
            if self.run is None:
                self.run = Run(self)
                self.run.start()
            self.run.pass_by()

        self.main.start(lambda: self._as_spark(act))

    def told_to_stop(self) -> None:
        """Note that the query is told to stop, as its driver does after some seconds; its batch goes on."""
        if (run := self.run) is not None:

            def note() -> None:
                with contextlib.suppress(OSError):
                    self.log.create(paths.STOP, run.run_id, Stop(run_id=run.run_id))

            Thread(self.process, "stops").start(note)

    def stop(self) -> None:
        """Stop the query between two batches."""
        if self.run is not None and not self.main.stands_still:
            self.ended()

    def ended(self, *, gave_way: bool = False) -> None:
        """End the run as a query does whose driver lives on.

        :param gave_way: over a file of another run; then the driver asks it first how far it had come, as
            its events may be lost.
        """
        if self.run is not None:
            if gave_way:
                self.run_history.caught_up(self.world.query_id, self.run.run_id, self.run.next - 1)
            self.run_history.terminated(self.world.query_id, self.run.run_id, gave_way=gave_way)
            self.run = None

    def _batch(self, count: int, heard: bool, *, poison: bool = False) -> None:
        if self.run is None:
            self.run = Run(self)
            self.run.start()
        self.run.batch(count, heard=heard, poison=poison)

    def _as_spark(self, act: Callable[[], None]) -> None:
        """Do as Spark does: an error ends the query."""
        world = self.world
        try:
            act()
        except errors.Fenced:
            world.counts["runs fenced"] += 1
            self._was_refused()
            if self.run is not None:
                self.run.was_fenced()
            self.ended()
        except FileExistsError:
            world.counts["runs gave way"] += 1
            self.ended(gave_way=True)
        except OSError as error:
            self._ends(error, expected=True)
        except errors.WalSinkError as error:
            self._ends(error, expected=self._is_expected(error))
        except Exception as error:  # noqa: BLE001 - a bug of the product, or of ours
            world.judge.violate(f"a run ended with {error!r}")
            self.ended()

    def _ends(self, error: Exception, *, expected: bool) -> None:
        self.world.trace.say(
            f"    {self.process.name}: the query fails: {type(error).__name__}: {error}"
        )
        self.error = type(error).__name__
        self._was_refused()
        if not expected:
            self.world.judge.violate(f"a run ended with {error!r}")
        self.ended()

    def _was_refused(self) -> None:
        """Tell the judge that a run has ended in order."""
        run, judge = self.run, self.world.judge
        attempt = judge.attempts.get((run.next, run.run_id)) if run is not None else None
        if attempt is not None and not self.process.disturbed_us:
            judge.left(self.site, attempt)

    def _is_expected(self, error: errors.WalSinkError) -> bool:
        """Whether an error of ours may end a run, after what was injected."""
        kind = type(error).__name__
        documented = self.world.documented | self.documented
        if kind in documented or error.transient or self._is_zombie():
            return True
        run = self.run
        of_kind = {
            "CorruptLog": any(map(self.site.lacks_records, self.world.targets)),
            # See `World.copied`.
            "WrongOwner": self.world.copied and self.world.max_bytes is not None,
            # Its ticket could not be written, or went as newer runs have claimed.
            "NotRegistered": bool(self.process.disturbed_us)
            or (
                run is not None
                and (not run.noted or self.site.claimant not in (run.claimant, run.run_id))
            ),
        }
        return of_kind.get(kind, False) or kind in _EXPECTED

    def _is_zombie(self) -> bool:
        """Whether another run has completed the epoch: what this one needs may be gone."""
        run, kept = self.run, self.site.kept
        if run is None or run.next not in kept:
            return False
        attempt = kept[run.next]
        return attempt is None or attempt.run_id != run.run_id


class Run:
    """One run of the query."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.world = driver.world
        self.run_id = str(uuid4())
        self.next = 0
        self.planned = False
        """Whether `offsets/<next>` is there, of this run or of one before."""
        self.plan = ""
        self.claimant = driver.site.claimant
        self.noted = False
        """Whether it has noted what Spark made without a sink. One that could not purges nothing here: where
        Spark keeps fewer than three batches, the driver stops it; otherwise nothing that tells is purged."""

    def start(self) -> None:
        """Begin: the ticket before the checkpoint is read (rule 2)."""
        driver, store = self.driver, self.driver.store
        if not store.list("metadata"):
            store.create("metadata", json.dumps({"id": self.world.query_id}).encode())
        driver.main.next_epoch = driver.site.next_epoch
        self.world.documented |= self.world.documented_once_started
        with contextlib.suppress(OSError, errors.WalSinkError):  # the listener only logs an error
            checkpoint = driver.site.open_checkpoint(driver.process)
            owned(driver.log, checkpoint)
            begin_log(driver.log, checkpoint)
            note_without_sink(driver.log, checkpoint)
            self.noted = True
            take_ticket(driver.log, self.run_id)
            left = driver.site.bytes_left(driver.site.next_epoch)
            claim_early(driver.log, checkpoint, self.run_id, self._budget(), self.world.options)
            self._has_swept(left)
        driver.run_history.started(self.world.query_id, self.run_id)
        commits, offsets = self._newest("commits"), self._newest("offsets")
        self.planned = offsets > commits
        self.next = offsets if self.planned else commits + 1
        plain = self.world.lists and self.world.chance.random() < 0.3
        targets = {
            name: SimulatedTarget(database, driver.process, plain=plain)
            for name, database in self.world.databases.items()
        }
        key = several_plans_key(rows.SCHEMA, {n: (t.name, t.shape) for n, t in targets.items()})
        for name, target in targets.items():
            log = driver.log.of(name)
            if log.plan(key) is None:
                log.create(paths.PLAN, key, target.plan(rows.SCHEMA, key))
        self.plan = key

    def _has_swept(self, left: int) -> None:
        """Look whether a run has claimed as it starts, where earlier ones have left what fills the log.

        :param left: how many bytes there were of the epoch that it computes, before.
        """
        site, process = self.driver.site, self.driver.process
        ticket = paths.TICKET.path(self.run_id)
        if process.disturbed_us or process.stalled_us or not site.log.has(ticket):
            return
        mine = paths.CLAIM.path(json.loads(site.log.get(ticket))["generation"] + 1)
        if left >= (self.world.max_bytes or _MUCH) and not site.log.has(mine):
            self.world.judge.violate(f"a run starts beside {left} bytes, and claims nothing")

    def batch(self, count: int, *, heard: bool, poison: bool) -> None:
        """Run one micro-batch to the end, or to a row that is refused."""
        driver, epoch = self.driver, self.next
        driver.main.run_id = self.run_id
        if not self.planned:
            driver.store.create(f"offsets/{epoch}", self._offsets())
            self.planned = True
            self._purge()
        attempt = self._attempt(count)
        task = Task(
            query_id=self.world.query_id,
            run_id=self.run_id,
            epoch=epoch,
            partition=0,
            task_attempt=0,
            call=f"{MACHINE.random.getrandbits(64):016x}" if self.world.batch_writer else "",
        )
        if self.world.batch_writer:
            refuse_published(driver.log, task.execution)
        appended = self._tasks(task, attempt)
        if self.world.batch_writer and not poison and self.world.chance.random() < 0.2:
            self._call_beside(task)
        if poison:
            if self.world.batch_writer:
                discard_call(driver.log, task.execution, task.call)
            else:  # as `abort()` does, without the message of another task
                discard(driver.log, appended)
            raise errors.InvalidRow("a row that the target would refuse", "Filter such rows out.")
        driver.main.since_us = MACHINE.true_us
        Publisher(
            driver.log,
            driver.site.open_checkpoint(driver.process),
            plan=self.plan,
            options=self.world.options,
            clock_us=clock.now_us,
            backpressure=self._backpressure(),
        ).publish(task.execution, appended)
        if self.world.batch_writer and self.world.chance.random() < 0.2:
            self._write_again(task, attempt)
        body = json.dumps({"nextBatchWatermarkMs": 0, "by": self.run_id})
        driver.store.create(f"commits/{epoch}", f"v1\n{body}".encode())
        if heard:
            driver.process.io(
                "event", str(epoch), lambda: None
            )  # it comes late, after a crash never
            driver.run_history.progressed(self.world.query_id, self.run_id, epoch)
        self.planned = False
        self.next += 1
        self.world.counts["batches"] += 1

    def _tasks(self, task: Task, attempt: Computed) -> list[Appended]:
        """Write the rows in one task, or in two."""
        mount, appended = Mount(self.driver.site.log, self.driver.process), []
        ordered = [*attempt.rows.items()]
        first = self.world.chance.choice((len(ordered), len(ordered) // 2))
        for partition, part in enumerate((ordered[:first], ordered[first:])):
            if part or not partition:
                each = replace(task, partition=partition)
                appended.append(rows.write(mount, each, dict(part), small=self._is_small()))
                attempt.written += tuple(segment.path for segment in appended[-1].files)
        return appended

    def pass_by(self) -> None:
        """Complete a micro-batch of which the sink hears nothing."""
        self.driver.store.create(f"offsets/{self.next}", self._offsets())
        self.driver.store.create(f"commits/{self.next}", b'v1\n{"nextBatchWatermarkMs":0}')
        self.next += 1

    def _call_beside(self, task: Task) -> None:
        """Call the writer with the batch in another thread of the function, which meets an invalid row."""
        call = f"{MACHINE.random.getrandbits(64):016x}"
        mount = Mount(self.driver.site.log, self.driver.process)
        rows.write(mount, replace(task, call=call), {"beside": -1}, small=False)
        discard_call(self.driver.log, task.execution, call)

    def _write_again(self, task: Task, attempt: Computed) -> None:
        """Call the writer with the batch once more, as a function may that is wrong: that is refused."""
        with contextlib.suppress(errors.AlreadyPublished):
            refuse_published(self.driver.log, task.execution)
            overtaken = any(
                other.epoch == task.epoch and other.committed
                for other in self.world.judge.attempts.values()
            )  # then the publisher fences it, and its manifest may be trimmed
            if attempt.published and not overtaken:  # else it repeats what is flushed
                self.world.judge.violate(f"epoch {task.epoch} can be written a second time")

    def was_fenced(self) -> None:
        """Tell the judge that this run was fenced as it came to an epoch: it has left its proof (rule 11)."""
        judge = self.world.judge
        before = judge.attempts.get((self.next - 1, self.run_id))
        here = judge.attempts.get((self.next, self.run_id))
        published = here is not None and here.published
        if before is not None and not published and not self.driver.process.disturbed_us:
            before.fenced_us = MACHINE.true_us

    def _purge(self) -> None:
        """Forget old batches, as Spark does while it plans one, in no certain order."""
        retained = self.world.batches_retained
        if retained is None or not self.noted:
            return
        store = self.driver.store
        old = [
            path
            for folder in ("offsets/", "commits/")
            for path in store.list(folder)
            if int(path.rpartition("/")[2]) < self.next - retained
        ]
        self.world.chance.shuffle(old)
        store.delete(old)

    def _newest(self, folder: str) -> int:
        names = [path.rpartition("/")[2] for path in self.driver.store.list(folder)]
        return max(map(int, names), default=-1)

    def _offsets(self) -> bytes:
        """Plan a batch, perhaps with other data than in a history that was lost."""
        metadata: dict[str, Any] = {
            "batchTimestampMs": clock.now_us() // 1_000,
            "conf": {"spark.sql.shuffle.partitions": "2"},
        }
        drawn = self.next * 10 + self.world.chance.randrange(2)
        offset = self.world.offsets.setdefault(self.next, drawn)
        return f'v1\n{json.dumps(metadata)}\n{{"offset":{offset}}}'.encode()

    def _attempt(self, count: int) -> Computed:
        world, judge = self.world, self.world.judge
        value = judge.next_value()
        refused = world.quarantine and world.chance.random() < 0.4
        attempt = Computed(
            self.next, self.run_id, value, rows.rows_of(value, count, refused=refused)
        )
        judge.computed(attempt)
        return attempt

    def _is_small(self) -> bool:
        """Whether the rows of a batch are few enough for the manifest."""
        return "small segments" in self.world.swarm and self.world.chance.random() < 0.8

    def _backpressure(self) -> Backpressure | None:
        world, driver = self.world, self.driver
        if world.max_bytes is None:
            return None
        return Backpressure(
            self._budget(),
            driver.site.open_checkpoint(driver.process),
            driver.log,
            clock_us=clock.now_us,
            now_s=lambda: MACHINE.true_us / 1_000_000,
            sleep=self._wait,
            backlogs=driver.backlogs,
        )

    def _wait(self, seconds: float) -> None:
        """Wait for space, and show it to the judge."""
        judge, site = self.world.judge, self.driver.site
        before = judge.attempts.get((self.next - 1, self.run_id))
        if before is not None and not self.driver.process.disturbed_us:
            judge.steps.waits(site, before)
        self.driver.process.sleep(seconds)

    def _budget(self) -> Budget:
        return Budget(self.world.max_bytes or _MUCH, "block")
