"""Random histories: batches, replays, crashes, zombies, lost events, outages, clocks, and what operators do.

Hypothesis picks the steps; after each one the judge looks at the stores. Every run takes another seed
and prints it; `WAL_SINK_SEED=<seed>` repeats a run exactly, and a failure prints its steps as a program.
"""

from __future__ import annotations

import logging
import os
import random
import re
from collections import Counter
from itertools import pairwise

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from state_backends import StateBackend, open_backend
from tests.protocol import raw
from tests.protocol.cases import covered
from tests.protocol.engine import Rows, Run, World
from tests.protocol.test_crash_everywhere import Unanswered, new_world
from wal_sink import errors
from wal_sink.flush.flusher import Flusher
from wal_sink.flush.report import RunHistory
from wal_sink.model.ledger import LedgerState
from wal_sink.protocol.next_step import Idle
from wal_sink.testing.faults import Crash, Faults
from wal_sink.testing.memory_target import Shadow

SEED = int(os.environ.get("WAL_SINK_SEED") or random.randrange(2**32))
EXAMPLES = int(os.environ.get("WAL_SINK_EXAMPLES") or 200)
STEPS = 50

_WANTED = ("batches", "fenced", "zombies woke", "diverged")
"""What the histories have to contain to say anything."""
_MOST_RUNS = 5
"""Hypothesis leaves some of the steps out of a run: where one is missing, the next seeds are played, too."""

done: Counter[str] = Counter()
"""How often each thing happened, over all histories."""


class Armed(Faults):
    """Fails at an operation that is chosen while it runs."""

    def arm(self, k: int, kind: str) -> None:
        """Fail at the k-th operation from now on."""
        self._at = len(self.operations) + k
        self._when = "before" if kind == "before" else "after"
        self._error = Unanswered if kind == "lost" else Crash

    def disarm(self) -> None:
        """Fail no more."""
        self._at = None


class Down(Faults):
    """The target is away: every operation on it fails."""

    def __init__(self) -> None:
        super().__init__(at=0, error=ConnectionError)

    def call(self, name, operation):  # type: ignore[no-untyped-def]
        """Fail what goes to the target."""
        if name.startswith(("connect", "read ledger", "begin", "write", "finish", "create ledger")):
            raise ConnectionError(name)
        return operation()


class Unproven(logging.Handler):
    """Hears which choices the flusher calls unproven."""

    def __init__(self) -> None:
        super().__init__()
        self.epochs: set[int] = set()

    def emit(self, record: logging.LogRecord) -> None:
        """Note the epoch."""
        text = record.getMessage()
        if "unproven" in text and (found := re.search(r"at epoch (\d+)", text)):
            self.epochs.add(int(found[1]))


def copied(backend: StateBackend, name: str) -> StateBackend:
    """Copy a store."""
    copy = open_backend(f"memory://{name}")
    copy.delete(copy.list())
    for path in backend.list():
        copy.create(path, backend.read(path))
    return copy


KINDS = st.sampled_from(["before", "after", "lost"])
OPERATIONS = st.integers(0, 45)


class Histories(RuleBasedStateMachine):
    """One query, its drivers, dead and alive, and an operator."""

    run: Run
    started = False

    @initialize()
    def begin(self) -> None:
        """A query that has never run."""
        self.world = new_world()
        self.world.settled = {}
        self.zombies: list[Run] = []
        self.written: dict[str, list[Rows]] = {}
        self.unproven = Unproven()
        logging.getLogger("wal_sink").addHandler(self.unproven)
        self.run = self._new_run(RunHistory())
        self.started = True

    def teardown(self) -> None:
        """The last driver brings everything to its end."""
        if not self.started:
            return
        try:
            self._end()
            self.run = self._new_run(RunHistory())
            self._batch(self.run, 1)
            while self.run.next <= max(raw.decided(self.world), default=0) + 1:
                self._batch(self.run, 1)  # it was set back: on, to what is new
            self._flush(self.world.flusher())
            self.looks_right()
            epochs = self.run.next
            expected = raw.newest(range(epochs), self.world)
            assert self.world.table() == expected
            assert self.world.store.ledger[self.world.query_id].flushed == epochs - 1
            self._flush(self.world.flusher())  # which sweeps, as it starts
            left = [p for f in ("segments/", "manifests/") for p in self.world.log_backend.list(f)]
            late = [path for path in left if int(path.split("/")[1][:20]) < epochs]
            assert late == [], "what is flushed is not trimmed"
        finally:
            logging.getLogger("wal_sink").removeHandler(self.unproven)
            self.world.forget()

    # --- Spark ------------------------------------------------------------------------------------

    @rule(same_process=st.booleans(), stands_still=st.booleans())
    def restart(self, same_process: bool, stands_still: bool) -> None:
        """Start the query again: here, or elsewhere while the old driver merely stands still."""
        if same_process:
            self.run.end()
        elif stands_still:
            self.zombies.append(self.run)
        self.run = self._new_run(self.run.run_history if same_process else RunHistory())
        done["restarts"] += 1

    @rule(count=st.integers(0, 3), heard=st.booleans())
    def batch(self, count: int, heard: bool) -> None:
        """Run a micro-batch, with rows of its own or none; its event may be lost."""
        if not self._batch(self.run, count, heard):
            self.run = self._new_run(RunHistory())

    @rule(count=st.integers(0, 3))
    def published_only(self, count: int) -> None:
        """Run a micro-batch up to `commits/N`."""
        self.publish(count)

    def publish(self, count: int) -> None:
        """Run a micro-batch up to `commits/N`, where the driver stands still or dies."""
        if self.run.run_id not in self.written:
            rows = self._rows(self.run, count)
            if self._act(self.run, lambda: self.run.publish(*rows)):
                self.written[self.run.run_id] = rows
                done["published only"] += 1
            else:
                self.run = self._new_run(RunHistory())

    @rule(published=st.booleans(), both=st.booleans())
    def stands_still(self, published: bool, both: bool) -> None:
        """The driver stands still, before or after it has published; a new one may have published, too."""
        old = self.run
        if published and old.run_id not in self.written:
            self.publish(1)
        if self.run is old:
            self.zombies.append(old)
            self.run = self._new_run(RunHistory())
        if both:
            self.publish(2)
        done["stood still"] += 1

    @precondition(lambda self: self.started and self.zombies)
    @rule(which=st.integers(0, 9), heard=st.booleans())
    def zombie(self, which: int, heard: bool) -> None:
        """An old driver wakes, and goes on where it stood."""
        run = self.zombies[which % len(self.zombies)]
        if not self._batch(run, 1, heard):
            self.zombies.remove(run)
        done["zombies woke"] += 1

    @rule(k=OPERATIONS, kind=KINDS, count=st.integers(0, 3))
    def batch_fails(self, k: int, kind: str, count: int) -> None:
        """The driver dies, or loses an answer, at an operation of a micro-batch."""
        faults = self.run.faults
        assert isinstance(faults, Armed)
        faults.arm(k, kind)
        alive = self._batch(self.run, count)
        faults.disarm()
        if not alive:
            self.run = self._new_run(RunHistory())
            done[f"batch: {kind}"] += 1

    # --- the flusher ------------------------------------------------------------------------------

    @rule(here=st.booleans())
    def flush(self, here: bool) -> None:
        """Flush, in the driver or in a process that has seen nothing."""
        self._flush(self.world.flusher(run_history=self.run.run_history if here else None))

    @rule(k=OPERATIONS, kind=KINDS)
    def flush_fails(self, k: int, kind: str) -> None:
        """The flusher dies, or loses an answer and goes on."""
        faults = Faults(at=k, when="before" if kind == "before" else "after")
        if kind == "lost":
            faults._error = Unanswered
        try:
            self._flush(self.world.flusher(faults))
        except Crash:
            done[f"flush: {kind}"] += 1
        self._settle()

    @rule()
    def outage(self) -> None:
        """The target does not answer."""
        flusher = self.world.flusher(Down())
        try:
            for _ in range(20):
                if isinstance(flusher.run_once(), Idle):
                    return
        except errors.TargetUnavailable:
            done["outages"] += 1

    @rule(seconds=st.sampled_from([-86_400, -5, 5, 86_400]))
    def clock_jumps(self, seconds: int) -> None:
        """All clocks jump."""
        self.world.clock.us += seconds * 1_000_000
        done["clock jumps"] += 1

    # --- Spark and operators on files -------------------------------------------------------------

    @rule(keep=st.integers(1, 2))
    def purge(self, keep: int) -> None:
        """Spark forgets old batches."""
        for folder in ("commits", "offsets"):
            numbers = sorted(int(p.split("/")[1]) for p in self.world.checkpoint.list(folder))
            self.world.checkpoint.delete(f"{folder}/{n}" for n in numbers[: -keep - 1])
        done["purges"] += 1

    @rule(back=st.integers(1, 3), planned=st.booleans())
    def set_back(self, back: int, planned: bool) -> None:
        """Delete the newest commit files, or restore an older checkpoint, and start again."""
        commits = sorted(int(p.split("/")[1]) for p in self.world.checkpoint.list("commits/"))
        gone = commits[-back:]
        if len(gone) == len(commits):
            return  # purged further: no Spark could start from that
        self._end()
        self._settle()
        for epoch in gone:
            self.world.checkpoint.delete([f"commits/{epoch}"])
            self.world.keepers.pop(epoch, None)
            self.world.committed.pop(epoch, None)
        if not planned:
            offsets = sorted(int(p.split("/")[1]) for p in self.world.checkpoint.list("offsets/"))
            self.world.checkpoint.delete(f"offsets/{n}" for n in offsets if n >= gone[0])
        self.run = self._new_run(RunHistory())
        done["checkpoints set back"] += 1

    @rule(back=st.integers(1, 3))
    def set_back_to_other_data(self, back: int) -> None:
        """Restore an older checkpoint, from which Spark plans other data; undo it if that is refused."""
        commits = sorted(int(p.split("/")[1]) for p in self.world.checkpoint.list("commits/"))
        mark = max(raw.records(self.world.log_backend), default=-1)
        if len(commits) <= back or commits[-back] > mark:
            return
        self._end()
        saved = copied(self.world.checkpoint, "saved")
        first = commits[-back]
        for folder in ("commits/", "offsets/"):
            late = [p for p in self.world.checkpoint.list(folder) if int(p.split("/")[1]) >= first]
            self.world.checkpoint.delete(late)
        run = self._new_run(RunHistory())
        assert run.next == first
        computed = dict(self.world.computed)
        try:
            run.publish(*self._rows(run, 1), offset="777")
        except errors.Diverged:
            done["diverged"] += 1
        else:
            raise AssertionError("another history was published under a flushed epoch")
        self.world.computed = computed
        for path in self.world.checkpoint.list():
            self.world.checkpoint.delete([path])
        for path in saved.list():
            self.world.checkpoint.create(path, saved.read(path))
        self.run = self._new_run(RunHistory())

    @rule()
    def checkpoint_copied(self) -> None:
        """A second pipeline starts from a copy of the checkpoint, with the same log."""
        if "log.json" not in self.world.log_backend.list():
            return  # nothing is published: the run that comes first takes it
        other = World(copied(self.world.checkpoint, "second"), self.world.log_backend)
        other.query_id, other.target = self.world.query_id, self.world.store
        before = self._decisions()
        try:
            other.run().batch([("ghost", 1)])
        except errors.WrongOwner:
            done["checkpoints copied"] += 1
        else:
            raise AssertionError("a copied checkpoint was used")
        assert self._decisions() == before

    @rule()
    def log_copied(self) -> None:
        """The log is copied elsewhere, and `wal.location` changed to the copy."""
        if not self.world.checkpoint.list("wal_sink/"):
            return
        kept, self.world.log_backend = (
            self.world.log_backend,
            copied(self.world.log_backend, "moved"),
        )
        try:
            self.world.flusher().run_once()
        except errors.WrongOwner:
            done["logs copied"] += 1
        else:
            raise AssertionError("a copied log was flushed")
        finally:
            self.world.log_backend = kept

    # --- operators on the ledger ------------------------------------------------------------------

    @rule(lost=st.booleans())
    def ledger_lost(self, lost: bool) -> None:
        """The ledger is truncated, or restored from a backup; nothing is flushed until it is back."""
        records = [*raw.records(self.world.log_backend)]
        mark = self._mark()
        if not records or mark is None:
            return
        ledger = self.world.store.ledger
        if lost:
            del ledger[self.world.query_id]
        else:
            older = {"flushed": max(records) - 1, "begun": None, "last": None}
            ledger[self.world.query_id] = msgspec.structs.replace(mark, **older)
        before = dict(self.world.store.table)
        try:
            self._flush(self.world.flusher())
        except errors.LedgerBehindLog:
            done["ledgers lost"] += 1
        else:
            raise AssertionError("the loss of the ledger was not seen")
        finally:
            assert self.world.store.table == before
            ledger[self.world.query_id] = mark

    @rule()
    def ledger_shadowed(self) -> None:
        """A plain write to the ledger row had a timestamp in the future."""
        store, query_id = self.world.store, self.world.query_id
        store.shadows[query_id] = Shadow(2**62, ("flushed",))
        before = self._mark()
        try:
            self._flush(self.world.flusher())
        except errors.LedgerShadowed:
            done["ledgers shadowed"] += 1
            torn = self._mark()
            assert torn is not None
            with pytest.raises(errors.LedgerShadowed):  # nothing is begun from such a row
                self._flush(self.world.flusher())
            assert self._mark() == torn
            last = before and before.last
            store.ledger[query_id] = msgspec.structs.replace(torn, begun=torn.last, last=last)
        finally:
            del store.shadows[query_id]
        self._settle()

    # --- the judge --------------------------------------------------------------------------------

    @invariant()
    def looks_right(self) -> None:
        """What is visible was kept; marks have no gaps; timestamps grow; nothing needed is gone."""
        if not self.started:
            return
        self._settle()
        raw.safe(self.world, "")
        records = list(raw.records(self.world.log_backend).values())
        assert [record["epoch"] for record in records] == list(range(len(records)))
        for older, newer in pairwise(records):
            assert newer["base_us"] > older["base_us"] + max(older["rows"], 1) - 1
        mark = self._mark()
        if mark is not None and records:
            assert mark.flushed >= records[-1]["epoch"]

    def _settle(self) -> None:
        """What is begun stays so, whatever becomes of the checkpoint: rows are of that attempt."""
        keepers = raw.kept(self.world)
        for epoch, run in raw.decided(self.world).items():
            if epoch in self.world.settled:
                assert self.world.settled[epoch] == run, f"epoch {epoch} was begun twice"
            elif epoch not in self.unproven.epochs:
                assert keepers.get(epoch) == run, f"epoch {epoch}: begun of a run that Spark left"
            else:
                done["unproven choices"] += 1
                done["unproven and wrong"] += keepers.get(epoch) != run
            self.world.settled[epoch] = run

    # --- how things are done ----------------------------------------------------------------------

    def _new_run(self, run_history: RunHistory) -> Run:
        return self.world.run(Armed(), run_history=run_history)

    def _end(self) -> None:
        """Stop every driver, as an operator does before touching anything."""
        self.zombies.clear()
        self.run.end()

    def _rows(self, run: Run, count: int) -> list[Rows]:
        mark = int(run.run_id[:6], 16) * 100 + run.next
        rows = [("shared", mark), (f"{run.next}-{run.run_id[:8]}", mark), (f"{mark}", mark)]
        return [rows[:count]]

    def _batch(self, run: Run, count: int, heard: bool = True) -> bool:
        """Run a micro-batch, or end the one that stands still; False when the run is over."""
        rows = self.written.pop(run.run_id, None)

        def act() -> None:
            nonlocal rows
            if rows is None:
                rows = self._rows(run, count)
                run.publish(*rows)
            run.write_commit(rows, heard=heard)

        done["batches"] += 1
        return self._act(run, act)

    def _act(self, run: Run, act) -> bool:  # type: ignore[no-untyped-def]
        """Do as Spark does; False when the run has ended, or died."""
        try:
            act()
        except Crash:
            return False
        except errors.Fenced:
            done["fenced"] += 1
            run.end()
            return False
        except FileExistsError:
            done["gave way"] += 1
            run.end(gave_way=True)
            return False
        except (OSError, errors.LogUnavailable, errors.NotRegistered):
            assert isinstance(run.faults, Armed)
            assert run.faults.injected
            run.end()
            return False
        return True

    def _flush(self, flusher: Flusher) -> None:
        """Flush as the loop does."""
        for _ in range(200):
            try:
                if isinstance(flusher.run_once(), Idle):
                    done["flushes"] += 1
                    return
            except errors.WalSinkError as error:
                if not error.transient:
                    raise
                flusher.close()
        raise AssertionError("the flusher never rests")

    def _mark(self) -> LedgerState | None:
        return self.world.store.ledger.get(self.world.query_id)

    def _decisions(self) -> list[str]:
        """The log without what a refused driver may leave, which decides nothing."""
        harmless = ("tickets/", "segments/")
        return [p for p in self.world.log_backend.list() if not p.startswith(harmless)]


def test_random_histories() -> None:
    """Whatever happens, in whatever order."""
    done.clear()
    covered("random histories", f"WAL_SINK_SEED={SEED}")  # said also when it fails
    for further in range(_MOST_RUNS):
        run_state_machine_as_test(
            seed(SEED + further)(Histories),
            settings=settings(
                max_examples=EXAMPLES,
                stateful_step_count=STEPS,
                deadline=None,
                database=None,
                print_blob=True,
                report_multiple_bugs=False,
                phases=(Phase.generate, Phase.shrink),
                suppress_health_check=list(HealthCheck),
            ),
        )
        if all(done[what] for what in _WANTED):
            break
    what = ", ".join(f"{name} {number}" for name, number in sorted(done.items()))
    covered("random histories", f"WAL_SINK_SEED={SEED}, {EXAMPLES} of up to {STEPS} steps: {what}")
    assert min(done[what] for what in _WANTED) > 0
