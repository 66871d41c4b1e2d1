"""The requests that an epoch costs. They do not grow with the age of a query."""

from __future__ import annotations

import builtins
import collections
import re

import pytest

from state_backends import StateBackend, open_backend
from tests.protocol.engine import World, in_memory, until_idle
from tests.protocol.several_world import CELLS, SeveralWorld
from wal_sink.errors import SegmentNotVisible
from wal_sink.flush.flusher import Flusher
from wal_sink.flush.loop import POLL_BILLED_S
from wal_sink.progress.flusher_report import REPORT_BILLED_S
from wal_sink.protocol.retention import Retention
from wal_sink.testing.faults import Faults, FaultyBackend
from wal_sink.wal.store import KEPT

STORES = ("memory", "local")

TEN_MINUTES = Retention(us=600_000_000, bytes=1 << 40)


class Counting(FaultyBackend):
    """Counts requests and listed names."""

    def __init__(self, inner: StateBackend) -> None:
        super().__init__(inner, Faults())
        self.names: builtins.list[int] = []

    def list(self, prefix: str = "") -> builtins.list[str]:
        names = super().list(prefix)
        self.names.append(len(names))
        return names

    def requests(self) -> builtins.list[str]:
        """Return the requests since the last call, without numbers and names."""
        requests = [
            re.sub(r"[0-9a-f-]{6,}", "#", operation) for operation in self.faults.operations
        ]
        self.faults.operations.clear()
        return requests

    def most_names(self) -> int:
        """Return the longest listing since the last call."""
        most = max(self.names, default=0)
        self.names.clear()
        return most


def epoch_costs(world: World, epochs: int, name: str = "") -> dict[str, list[str]]:
    """Return the requests for the last of `epochs` epochs, each of which is flushed before the next one."""
    counting = world.log_backend = Counting(world.log_backend)
    run, flusher = world.run(), world.flusher(name=name)
    costs: dict[str, list[str]] = {}
    for number in range(epochs):
        run.write_offsets()
        appended = run.tasks([("a", number)])
        counting.requests()
        run.commit(appended)
        costs["commit"] = counting.requests()
        run.write_commit([[("a", number)]])
        until_idle(flusher)
        costs["flush"] = counting.requests()
        flusher.run_once()
        costs["idle"] = counting.requests()
    return costs


@pytest.mark.parametrize("name", ["", CELLS])
@pytest.mark.parametrize("inline", [False, True])
def test_epoch_costs_at_most_seventeen_requests(name: str, *, inline: bool) -> None:
    world = SeveralWorld(name) if name else World(*in_memory())
    world.retention = TEN_MINUTES
    world.inline = range(100) if inline else range(0)
    costs = epoch_costs(world, 5, name)
    assert costs == {
        "commit": [
            *("list state/", "read state/#.json"),
            *([] if inline else ["size segments/#/#.arrow"]),
            *("create manifests/#.json", "create state/#.json", "read state/#.json"),
        ],
        "flush": [
            *("list state/", "read state/#.json", "create state/#.json", "read state/#.json"),
            "read manifests/#.json",
            *([] if inline else ["read segments/#/#.arrow"]),
            *("create state/#.json", "read state/#.json"),
        ],
        "idle": [],
    }
    task = 0 if inline else 1
    assert task + len(costs["commit"]) + len(costs["flush"]) <= 17


def test_trimmed_epoch_costs_two_listings_and_its_objects() -> None:
    """Without retention each epoch is trimmed by itself. With retention a trim deletes several epochs."""
    world = World(*in_memory())
    trims = epoch_costs(world, 5)["flush"][-4:]
    assert trims == [
        "list manifests/",
        "list segments/",
        "delete manifests/#.json",
        "delete segments/#/#.arrow",
    ]


def test_idle_query_sends_400_requests_an_hour() -> None:
    """Each poll lists `commits/`, each report is one more request, and the state is read four times."""
    world = World(*in_memory())
    world.retention = TEN_MINUTES
    world.run().batch([("a", 1)])
    log = world.log_backend = Counting(world.log_backend)
    checkpoint = world.checkpoint = Counting(world.checkpoint)
    flusher = world.flusher()
    until_idle(flusher)
    world.clock.us += 700_000_000
    until_idle(flusher)
    assert world.state.trimmed == 0
    log.requests(), checkpoint.requests()
    for _ in range(round(3_600 / POLL_BILLED_S)):
        world.clock.us += round(POLL_BILLED_S * 1_000_000)
        assert flusher.run_once().idle
    asked = len(log.requests()) + len(checkpoint.requests())
    assert asked + 3_600 / REPORT_BILLED_S <= 400


@pytest.mark.parametrize("after", ["15 minutes", "15 minutes, and a clock set back", "a call"])
def test_idle_flusher_reads_state_after_15_minutes_or_recheck(after: str) -> None:
    """An operator may have changed the state. A caller that hurries the flusher need not wait."""
    world, now_s = World(*in_memory()), 0.0
    world.run().batch([("a", 1)])
    counting = world.log_backend = Counting(world.log_backend)
    pipeline = world.flusher().pipeline
    flusher = Flusher(pipeline, clock_us=world.clock, monotonic_s=lambda: now_s)
    until_idle(flusher)
    assert flusher.run_once().idle
    counting.requests()
    if after == "a call":
        flusher.recheck()
    else:
        now_s = 901.0
        world.clock.us += -86_400_000_000 if "back" in after else 901_000_000
    assert flusher.run_once().idle
    assert "list state/" in counting.requests()


def test_query_with_many_epochs_costs_no_more_requests(world: World) -> None:
    """Given hundreds of epochs and starts, listings stay bounded."""
    world.retention = Retention(us=50_000_000, bytes=1 << 40)
    young = epoch_costs(world, 5)
    for number in range(300):
        world.clock.us += 1_000_000
        world.run().flushed_batches([("a", number)])
    assert isinstance(world.log_backend, Counting)
    world.log_backend.most_names()
    assert epoch_costs(world, 5) == young
    assert world.log_backend.most_names() <= KEPT + 21
    assert len(world.state.opened) == 32


def window_costs(world: World, epochs: int, *, inline: bool = False) -> collections.Counter[str]:
    """Return the requests for one window of `epochs` epochs, each of two segments."""
    world.inline = range(100) if inline else range(0)
    run = world.run()
    for number in range(epochs):
        run.batch([("a", number)], [("b", number)])
    counting = world.log_backend = Counting(world.log_backend)
    until_idle(world.flusher())
    requests = collections.Counter(counting.requests())
    assert world.mark() == epochs - 1
    return requests


@pytest.mark.parametrize("inline", [False, True])
def test_pending_epoch_costs_only_requests_for_its_objects(*, inline: bool) -> None:
    """Given windows of 6 and of 12 epochs, the difference is divided by 6."""
    more = window_costs(World(*in_memory()), 12, inline=inline)
    more.subtract(window_costs(World(*in_memory()), 6, inline=inline))
    segments = {} if inline else {"read segments/#/#.arrow": 2, "delete segments/#/#.arrow": 2}
    assert {request: count / 6 for request, count in more.items() if count} == {
        "read manifests/#.json": 1,
        "delete manifests/#.json": 1,
        **segments,
    }


@pytest.mark.parametrize("missing", [False, True])
def test_segments_in_a_bucket_are_checked_by_one_listing(*, missing: bool) -> None:
    """A segment that the listing lacks is checked by itself."""
    world = World(open_backend("memory://ck-listed"), open_backend("memory://log-listed"))
    world.forget()
    world.log_backend.billed = True
    counting = world.log_backend = Counting(world.log_backend)
    run = world.run()
    run.write_offsets()
    appended = run.tasks(*([(f"k{number}", number)] for number in range(25)))
    if missing:
        counting.inner.delete([appended[7].segments[0].path])
    counting.requests()
    if missing:
        with pytest.raises(SegmentNotVisible):
            run.commit(appended)
    else:
        run.commit(appended)
    asked = [request for request in counting.requests() if request.startswith("size")]
    assert len(asked) == (1 if missing else 0)
