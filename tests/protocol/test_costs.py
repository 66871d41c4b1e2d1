"""What a pass of the flusher and a commit cost does not grow with the age of a query."""

from __future__ import annotations

import builtins
import collections
import re
from pathlib import Path
from typing import NamedTuple

import pytest

from state_backends import StateBackend, open_backend
from tests.protocol.aged_log import let_age
from tests.protocol.engine import World
from tests.protocol.several_world import CELLS, SeveralWorld
from wal_sink.errors import SegmentNotVisible
from wal_sink.model import paths
from wal_sink.protocol.next_step import Idle
from wal_sink.testing.faults import Faults, FaultyBackend
from wal_sink.wal.runs import RUNS_KEPT
from wal_sink.wal.trim import RECORDS_KEPT

_FORGETS = "delete flushed/#.json"
"""From the thousandth epoch on each one lets the oldest record go."""

STORES = ("memory", "local")


class Cost(NamedTuple):
    """What was asked of the log's store."""

    requests: list[str]
    """In their order, without numbers and names."""
    names: int
    """Most names of a listing."""


class Counting(FaultyBackend):
    """Counts requests and listed names."""

    def __init__(self, inner: StateBackend) -> None:
        super().__init__(inner, Faults())
        self.names: builtins.list[int] = []

    def list(self, prefix: str = "") -> builtins.list[str]:
        found = super().list(prefix)
        self.names.append(len(found))
        return found

    def cost(self) -> Cost:
        """Return what was asked since the last call."""
        requests = [re.sub(r"[0-9a-f-]{6,}", "#", each) for each in self.faults.operations]
        found = Cost(requests, max(self.names, default=0))
        self.faults.operations.clear()
        self.names.clear()
        return found


def costs(world: World, *, starts: int, epochs: int) -> dict[str, Cost]:
    """Return what a commit, the flush of its epoch and a pass that finds nothing cost."""
    world.retention_s = 86_400.0
    let_age(world, starts=starts, epochs=epochs)
    counting = world.log_backend = Counting(world.log_backend)
    run, flusher = world.run(), world.flusher()
    for _ in range(2):  # the first pass sweeps, and the first commit claims
        run.batch([("b", 2)])
        while not isinstance(flusher.run_once(), Idle):
            pass
    run.write_offsets()
    appended = run.tasks([("c", 3)])
    counting.cost()
    run.commit(appended)
    found = {"commit": counting.cost()}
    run.write_commit([[("c", 3)]])
    flusher.run_once()
    found["flush"] = counting.cost()
    assert isinstance(flusher.run_once(), Idle)
    found["look"] = counting.cost()
    assert world.table() == {"a": 1, "b": 2, "c": 3}
    world.run()
    found["start"] = counting.cost()
    return found


@pytest.fixture
def young(tmp_path_factory: pytest.TempPathFactory, world: World) -> World:
    """Another query, whose log is of a few epochs."""
    scheme = world.log_backend.url.partition("://")[0]
    folder = tmp_path_factory.mktemp("young")
    root = f"memory://{folder.name}" if scheme == "memory" else str(folder)
    return World(open_backend(f"{root}/checkpoint"), open_backend(f"{root}/log"))


def test_a_pass_and_a_commit_cost_the_same_after_2000_starts_and_epochs(
    world: World, young: World
) -> None:
    """The same requests in the same order, and listings of what waits and of the newest records (rule 18)."""
    old = costs(world, starts=2_000, epochs=2_000)
    for what, cost in costs(young, starts=10, epochs=10).items():
        requests = [each for each in old[what].requests if each != _FORGETS]
        assert requests == cost.requests, what
        assert len(old[what].requests) <= len(requests) + 1, what
        assert old[what].names <= RECORDS_KEPT + 1, what
        assert len(cost.requests) > 2, what
    assert old["commit"].names <= RECORDS_KEPT
    assert len(world.log.keys(paths.CLAIM)) < 2 * RUNS_KEPT


def window_costs(world: World, epochs: int, *, inline: bool = False) -> collections.Counter[str]:
    """Return how often each request is made for one window of so many epochs, each of two segments."""
    world.inline_from = 0 if inline else None
    run = world.run()
    for number in range(epochs):
        run.batch([("a", number)], [("b", number)])
    counting = world.log_backend = Counting(world.log_backend)
    flusher = world.flusher()
    for _ in range(2):  # to the ledger's row, and the sweep of the first pass
        flusher.run_once()
    found = collections.Counter(counting.cost().requests)
    assert world.log.flushed_epochs() == [*range(epochs)]
    return found


def test_a_pending_epoch_costs_one_read_of_each_object_and_one_deletion(
    world: World, young: World
) -> None:
    """What a window of 12 epochs asks for, over one of 6, for each epoch more."""
    more = window_costs(world, 12)
    more.subtract(window_costs(young, 6))
    assert {request: count / 6 for request, count in more.items() if count} == {
        "read manifests/#.json": 1,
        "read segments/#/#.arrow": 2,
        "list segments/#/": 1,
        "delete segments/#/#.arrow": 2,
        "delete manifests/#.json": 1,
    }


def test_a_pending_epoch_whose_rows_are_in_its_manifest_is_one_object(
    world: World, young: World
) -> None:
    """Nothing but the manifest is read, and nothing else is deleted; so with its `commit()`."""
    more = window_costs(world, 12, inline=True)
    more.subtract(window_costs(young, 6, inline=True))
    assert {request: count / 6 for request, count in more.items() if count} == {
        "read manifests/#.json": 1,
        "list segments/#/": 1,
        "delete manifests/#.json": 1,
    }


def test_a_commit_asks_nothing_for_what_its_manifest_holds(world: World, young: World) -> None:
    """Each segment that is a file costs a task a write, and the publisher a look."""
    asked = []
    for each, inline in ((world, None), (young, 0)):
        each.inline_from = inline
        run = each.run()
        run.batch([("a", 1)])
        counting = each.log_backend = Counting(each.log_backend)
        run.log.backend = counting
        run.publish([("a", 2)], [("b", 2)])
        asked.append(collections.Counter(counting.cost().requests))
    as_files, inside = asked
    as_files.subtract(inside)
    assert {request: count for request, count in as_files.items() if count} == {
        "output segments/#/#.arrow": 2,
        "size segments/#/#.arrow": 2,
    }


@pytest.mark.parametrize(("name", "commit", "flush"), [("", 10, 19), (CELLS, 11, 25)])
def test_an_epoch_costs_a_log_of_named_targets_a_quarter_more(
    tmp_path: Path, name: str, commit: int, flush: int
) -> None:
    """In the steady state, with one target: see docs/decisions/README.md, decision 11."""
    store = World(open_backend("memory://ck-name"), open_backend("memory://log-name"))
    world = SeveralWorld(tmp_path, name) if name else store
    counting = world.log_backend = Counting(world.log_backend)
    run, flusher = world.run(), world.flusher(name=name)
    asked = []
    for number in range(3):
        counting.cost()
        run.batch([("a", number)])
        asked.append(len(counting.cost().requests))
        while not isinstance(flusher.run_once(), Idle):
            pass
        asked.append(len(counting.cost().requests))
    assert asked[-2:] == [commit, flush]


@pytest.mark.parametrize("missing", [False, True])
def test_many_segments_in_a_bucket_are_listed(missing: bool) -> None:
    """Not asked for one by one; one that is missing is asked for, and refused."""
    world = World(open_backend("memory://ck-listed"), open_backend("memory://log-listed"))
    world.forget()
    world.log_backend.billed = True
    counting = world.log_backend = Counting(world.log_backend)
    run = world.run()
    run.write_offsets()
    appended = run.tasks(*([(f"k{number}", number)] for number in range(25)))
    if missing:
        counting.inner.delete([appended[7].segments[0].path])
    counting.cost()
    if missing:
        with pytest.raises(SegmentNotVisible):
            run.commit(appended)
    else:
        run.commit(appended)
    asked = [request for request in counting.cost().requests if request.startswith("size")]
    assert len(asked) == (1 if missing else 0)
