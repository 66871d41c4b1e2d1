"""How many rows Spark hands over at a time: by what the log has seen, and the application has set."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from state_backends import open_backend
from tests.protocol.engine import World
from wal_sink.spark.arrow_batching import (
    BATCH_BYTES,
    FEW_ROWS,
    LOOK_EVERY,
    MARGIN,
    MAX_BYTES,
    MAX_RECORDS,
    UNMEASURED,
    ArrowBatching,
    most_rows,
    rows_a_batch,
)
from wal_sink.spark.internals import OwnSession


class Conf(dict[str, str]):
    """The configuration of a session, as Java has it."""

    def contains(self, key: str) -> bool:
        return key in self

    def get(self, key: str, _: Any = None) -> str:
        return self[key] if key in self else {MAX_BYTES: "67108864b", MAX_RECORDS: "10000"}[key]

    def set(self, key: str, value: str) -> None:
        self[key] = value


@pytest.fixture
def world() -> World:
    name = f"memory://{uuid.uuid4().hex}"
    return World(open_backend(f"{name}/checkpoint"), open_backend(f"{name}/log"))


@pytest.mark.parametrize(
    ("rows", "size", "most", "expected"),
    [
        (1_000, 60_000, 10_000, 10_000),  # narrow
        (1_000, 4_194_304, 10_000, 1_000),  # 4 KiB a row in the log
        (2, 400 * 1024 * 1024, 10_000, 1),  # wider than a batch
        (1_000, 60_000, 500, 500),  # the application wants fewer
        (1_000, 4_194_304, 0, 1_000),  # and here as many as there are
        (5, 0, 100, 100),
    ],
)
def test_wide_rows_come_in_small_batches(rows: int, size: int, most: int, expected: int) -> None:
    """A batch has a few MiB, were rows as in the log, and 64 MiB were they 16 times as wide."""
    found = rows_a_batch(rows, size, most)
    assert found == expected
    assert found == 1 or found * size * MARGIN <= BATCH_BYTES * rows


def test_nothing_is_set_before_the_log_has_seen_rows(world: World) -> None:
    """And then for good: an epoch that is flushed and trimmed tells as well."""
    conf = Conf()
    arrow_batching = ArrowBatching(OwnSession(conf), world.log, wanted=True)
    arrow_batching.look()
    assert conf == {}
    assert "until the first epoch" in str(arrow_batching)
    world.run().batch([("a", 1), ("b", 2)])
    arrow_batching.look_again()
    assert conf == {MAX_RECORDS: conf[MAX_RECORDS], MAX_BYTES: str(UNMEASURED)}
    assert f"batches of {int(conf[MAX_RECORDS]):,} rows" in str(arrow_batching)
    world.flusher().run_once()
    later = Conf()
    ArrowBatching(OwnSession(later), world.log, wanted=True).look()
    assert later == conf


def test_rows_that_become_wider_come_in_smaller_batches(world: World) -> None:
    """Within five minutes; and the number does not grow again."""
    run, conf = world.run(), Conf()
    run.batch([(f"{i}", i) for i in range(5_000)])
    arrow_batching = ArrowBatching(OwnSession(conf), world.log, wanted=True)
    arrow_batching.look()
    before = int(conf[MAX_RECORDS])
    run.batch([("one row has all of a file", 1)])
    for _ in range(LOOK_EVERY - 1):
        arrow_batching.look_again()
    assert int(conf[MAX_RECORDS]) == before
    arrow_batching.look_again()
    narrow = int(conf[MAX_RECORDS])
    assert narrow < before
    run.batch([(f"{i}", i) for i in range(5_000)])
    for _ in range(LOOK_EVERY):
        arrow_batching.look_again()
    assert int(conf[MAX_RECORDS]) == narrow


@pytest.mark.parametrize("wanted", [True, False])
def test_what_the_application_has_set_stays(world: World, *, wanted: bool) -> None:
    """Its own limit of bytes, or that nothing is to be set."""
    world.run().batch([("a", 1)])
    conf = Conf({MAX_BYTES: "1m"} if wanted else {})
    before = dict(conf)
    arrow_batching = ArrowBatching(OwnSession(conf), world.log, wanted=wanted)
    arrow_batching.look()
    arrow_batching.look_again()
    assert conf == before
    assert str(arrow_batching) == (f"as {MAX_BYTES} is set" if wanted else "Spark's own settings")
    ArrowBatching(None, world.log, wanted=True).look()  # a Spark that does not tell


@pytest.mark.parametrize(
    ("settings", "expected_bytes", "most"),
    [
        ({}, BATCH_BYTES // MARGIN, FEW_ROWS),  # all of it fits into one batch
        ({}, BATCH_BYTES // MARGIN + 1, None),
        ({}, 2**63 - 1, None),  # Spark does not know
        ({MAX_RECORDS: "7"}, 0, 7),
        ({MAX_RECORDS: "0"}, 0, FEW_ROWS),  # the application sets no bound
        ({MAX_BYTES: str(UNMEASURED), MAX_RECORDS: "5000"}, 2**63 - 1, 5_000),
        ({MAX_BYTES: "1m"}, 0, None),  # the application's own
    ],
)
def test_only_what_may_be_large_is_measured(
    settings: dict[str, str], expected_bytes: int, most: int | None
) -> None:
    """A micro-batch of few bytes, or of rows that are known to be narrow, is bounded by their number."""
    assert most_rows(OwnSession(Conf(settings)), expected_bytes) == most
