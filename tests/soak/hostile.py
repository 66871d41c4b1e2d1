"""The hostile soak: everything that a host, a disk or an operator can do to a query, in turn, for minutes."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import wal_sink
from tests.small_disk import SmallDisk, mounted
from tests.soak.app import TABLE
from tests.soak.backup import Backup
from tests.soak.clocks import WrongClock, tidy
from tests.soak.course import KEYSPACE, Outcome, Soak
from wal_sink.testing.crash import Driver
from wal_sink.testing.servers.process import DidNotStart

_PATIENCE_S = 1_200.0
_STUCK_S = 400.0
"""How long the driver may stand still before it is started again, as what supervises it would do."""

_HOUR_S = 3_600
_YEARS_S = 10 * 365 * 24 * _HOUR_S
_CLOCKS_DIFFER_S = 60

_HOST_JUMPS = (-_YEARS_S, -24 * _HOUR_S, -_HOUR_S, -90, 90, _HOUR_S, 24 * _HOUR_S, _YEARS_S)
_NODE_JUMPS = (-_HOUR_S, -90, 90, _HOUR_S)
"""By how much the clocks are wrong. Cassandra itself is not made for years."""


class HostileSoak(Soak):
    """A soak on a host with a wrong clock, a disk that gets full and a mount that caches listings."""

    def __init__(
        self, folder: Path, seed: int, say: Callable[[str], None] = lambda _: None
    ) -> None:
        super().__init__(folder, seed, say)
        self._host_clock = WrongClock(folder / "host-clock")
        self._node_clock = WrongClock(folder / "node-clock")
        self._backup: Backup | None = None
        self.stuck = 0
        """How often the driver had to be started again since it stood still."""

    def run_for(self, seconds: float) -> Outcome:
        """Be hostile for so long, and in each way once; let the query end in peace; compare."""
        events: dict[str, tuple[Callable[[], None], int]] = {
            "driver dies": (lambda: self._kill("driver"), 3),
            "worker dies": (lambda: self._kill("worker"), 3),
            "Cassandra dies": (lambda: self._kill("cassandra"), 2),
            "clock": (self._set_clock, 6),
            "full disk": (self._fill_disk, 2),
            "poison rows": (self._poison, 1),
            "zombie": (self._zombie, 2),
            "backup": (self._back_up, 2),
            "restore": (self._restore, 2),
        }
        dealt = deal(self._random, {name: weight for name, (_, weight) in events.items()})
        done: Counter[str] = Counter()
        with tidy(), self._disk() as self._small_disk, self._running(), self._ending():
            self._node.create_keyspace(KEYSPACE)
            self._node.execute(TABLE.format(KEYSPACE))
            self._driver = self._start()
            until_s = time.monotonic() + seconds
            with self._feed:
                while time.monotonic() < until_s or len(done) < len(events):
                    self._wait()
                    name = next(dealt)
                    left_s = max(0, until_s - time.monotonic())
                    self._say(f"{left_s:.0f} s left: {name}, {self._where()}")
                    events[name][0]()
                    done[name] += 1
                self._host_clock.set(0)
                self._node_clock.set(0)
                self._wait()
            self._host_clock.end_processes()
            self._feed.write()
            self._read_the_rest()
            self._refuse_future()
            found = wal_sink.status(str(self._checkpoint))
            assert (found.pending_epochs, found.orphan_segments) == (0, 0), found
            counts = ", ".join(f"{name} {count}" for name, count in sorted(done.items()))
            old = f"{self._host_clock.old_listings():,} listings were old"
            self._say(f"events: {counts}; {old}; {self.stuck} times stuck")
            return self._outcome(done)

    @contextmanager
    def _disk(self) -> Iterator[SmallDisk]:
        """Have the checkpoint, with the log inside, on a disk that can be filled."""
        with mounted(self._folder / "disk", "192m") as disk:
            self._checkpoint = disk.folder / "checkpoint"
            yield disk

    @contextmanager
    def _running(self) -> Iterator[None]:
        """Run the node, by its wrong clock."""
        try:
            self._start_node()
            yield
        finally:
            self._node.close()

    @contextmanager
    def _ending(self) -> Iterator[None]:
        """Leave no process of an application behind, be it one that stands still."""
        try:
            yield
        finally:
            self._host_clock.end_processes()

    def _start_node(self) -> None:
        """Start Cassandra by its wrong clock; on a busy machine that takes longer than a node may."""
        with self._node_clock.inherited():
            for left in reversed(range(5)):
                try:
                    self._node.start()
                except DidNotStart:
                    if not left:
                        raise
                else:
                    return

    def _environment(self) -> dict[str, str]:
        return self._host_clock.environment

    def _start(self, *, last: bool = False, **settings: bool) -> Driver:
        return super()._start(last=last, hostile=True, **settings)

    def _where(self) -> str:
        return (
            f"epoch {self._checkpointed()}, host {self._host_clock.ahead_s:+,} s,"
            f" Cassandra {self._node_clock.ahead_s:+,} s"
        )

    # --- whether it goes on -----------------------------------------------------------------------

    def _wait(self) -> None:
        """Wait until the query has gone on, and what was checkpointed is flushed."""
        before = self._checkpointed()
        self._until(lambda: self._checkpointed() > before, "goes on")
        self._until(lambda: self._flushed() >= before, "flushes")
        time.sleep(self._random.uniform(0, 2))

    def _until(self, reached: Callable[[], bool], what: str) -> None:
        """Wait; start the driver again when it has ended, or stands still."""
        deadline = time.monotonic() + _PATIENCE_S
        stuck_s = time.monotonic() + _STUCK_S
        while not reached():
            ended = self._driver.process.poll() is not None
            if ended or time.monotonic() > stuck_s:
                self.stuck += not ended
                if not ended:
                    self._say(f"stuck, {self._where()}: {self._last_error()}")
                    self._driver.kill()
                self._driver = self._start()
                stuck_s = time.monotonic() + _STUCK_S
            if time.monotonic() > deadline:
                raise AssertionError(
                    f"it neither {what} nor says why, {self._where()}: {self._last_error()}\n"
                    f"{self._driver.log()}"
                )
            time.sleep(0.1)

    def _flushed(self) -> int:
        return wal_sink.status(str(self._checkpoint)).flushed

    def _last_error(self) -> str:
        found = wal_sink.status(str(self._checkpoint))
        return f"checkpointed {found.checkpointed}, flushed {found.flushed}, {found.last_error}"

    def _refuse_future(self) -> None:
        """See that no row is written further in the future than Cassandra's clock has ever been (rule 14)."""
        rows = self._node.execute(f"SELECT writetime(total) AS us FROM {KEYSPACE}.windows")
        most_s = time.time() + self._node_clock.most_ahead_s + _CLOCKS_DIFFER_S + 5
        newest_s = max(row.us for row in rows) / 1_000_000
        assert newest_s < most_s, f"rows are written {newest_s - time.time():,.0f} s in the future"

    # --- what happens -----------------------------------------------------------------------------

    def _kill(self, victim: str) -> None:
        if victim != "cassandra":
            super()._kill(victim)  # type: ignore[arg-type]
            return
        self._node.kill()
        time.sleep(self._random.uniform(0, 15))
        self._start_node()

    def _set_clock(self) -> None:
        """Set a clock wrong, or a wrong one right again."""
        host = self._random.random() < 0.7
        clock = self._host_clock if host else self._node_clock
        jumps = _HOST_JUMPS if host else _NODE_JUMPS
        clock.set(0 if clock.ahead_s else self._random.choice(jumps))
        self._say(
            f"  now host {self._host_clock.ahead_s:+,} s, node {self._node_clock.ahead_s:+,} s"
        )

    def _fill_disk(self) -> None:
        """Let the disk of checkpoint and log be full for some seconds."""
        try:
            self._small_disk.fill(self._random.choice([0, 4_096, 65_536]))
            time.sleep(self._random.uniform(3, 20))
        finally:
            self._small_disk.free()

    def _poison(self) -> None:
        """Let the source have rows that the table cannot take; start it again and again, then without."""
        self._driver.kill()
        for _ in range(3):
            with self._start(poison=True) as poisoned:
                deadline = time.monotonic() + _PATIENCE_S
                while poisoned.process.poll() is None:
                    assert time.monotonic() < deadline, poisoned.log()
                    time.sleep(0.2)
                assert "InvalidRow" in poisoned.log(), poisoned.log()
        self._driver = self._start()

    def _zombie(self) -> None:
        """Stop the driver with all its processes; start another one; wake the first after a while."""
        zombie = self._driver
        os.killpg(zombie.process.pid, signal.SIGSTOP)
        try:
            self._driver = self._start()
            self._wait()
            time.sleep(self._random.uniform(0, 90))
        finally:
            os.killpg(zombie.process.pid, signal.SIGCONT)
        try:
            zombie.process.wait(60)
            self._say(f"  the zombie has ended with {zombie.process.returncode}")
        except subprocess.TimeoutExpired:
            self._say("  the zombie goes on; it is killed")
            zombie.kill()

    def _back_up(self) -> None:
        """Copy checkpoint and log, while the query is stopped."""
        self._host_clock.end_processes()
        self._backup = Backup(self._checkpoint, self._folder / "backup")
        self._driver = self._start()

    def _restore(self) -> None:
        """Restore the last backup: the ledger knows better, the flush stops, and an operator rewinds."""
        if self._backup is None:
            self._back_up()
        backup, self._backup = self._backup, None
        assert backup is not None
        self._until(lambda: self._flushed() > backup.checkpointed, "flushes")
        self._host_clock.end_processes()
        time.sleep(1)  # what Cassandra has received is written
        lost = backup.restore(self._node, KEYSPACE)
        self._say(f"  back to epoch {backup.checkpointed}; {lost} rows are gone from the table")
        self._driver = self._start()
        self._until(self._stops_at_other_history, "sees that the ledger knows better")
        self._host_clock.end_processes()
        self._say(f"  {self._last_error()}")
        self._say(f"  {backup.rewind().strip()}")
        self._driver = self._start()

    def _stops_at_other_history(self) -> bool:
        said = wal_sink.status(str(self._checkpoint)).last_error or ""
        return "Diverged" in said or "MissingManifest" in said


def deal(chance: random.Random, weights: Mapping[str, int]) -> Iterator[str]:
    """Deal names from a shuffled deck, again and again: each comes before one comes too often.

    :param weights: how many cards a name has; the first deck has one of each, so that a short soak has all.
    """
    deck = list(weights)
    while True:
        chance.shuffle(deck)
        yield from deck
        deck = [name for name, weight in weights.items() for _ in range(weight)]
