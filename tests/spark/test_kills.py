"""SIGKILL in every window of a micro-batch's life, with real Spark and real Cassandra."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.spark.victims import (
    At,
    ByBothApis,
    Control,
    Forgetful,
    InJob,
    Read,
    Repeatedly,
    Updating,
    Victim,
    WithoutRows,
)
from wal_sink.testing.crash import PAUSES, Driver, pauses
from wal_sink.testing.servers.cassandra import Node

KILLS = (1, 2, 3)
IN_JOB = 3
"""The kill of the flush job: its tasks hold all slots but one, so no other task may stand still then."""

FROM_THE_WRITE = {1: At("write", 1), 2: At("commit returned", 2), 3: At("committed", 2)}
FROM_THE_COMMIT = {1: At("commit called", 1), 2: At("write", 2), 3: At("flushing", 2)}
FROM_THE_MANIFEST = {1: At("commit returned", 1), 2: At("commit called", 2), 3: At("flushing", 2)}
"""Where a query stands still at each of the three kills, by the kill's number."""


@pytest.mark.spark
@pytest.mark.cassandra
@pytest.mark.slow_first
@pytest.mark.timeout(900)
def test_every_window(cassandra: Node, keyspace: str, tmp_path: Path) -> None:
    """Three deaths of one driver, which hit up to nine queries; whatever each promises is kept.

    Five of the queries die three times, in each window at least once: after one in which Spark starts the
    epoch again, and after one in which the flusher does. Two of them retain one batch only.
    """

    def victim(kind: type[Victim], name: str, deaths: Mapping[int, At]) -> Victim:
        return kind(cassandra, keyspace, tmp_path, name, dict(deaths))

    repeatedly = [
        victim(Forgetful, "one", FROM_THE_WRITE),
        victim(Repeatedly, "two", FROM_THE_COMMIT),
        victim(Forgetful, "three", FROM_THE_MANIFEST),
        victim(Updating, "four", FROM_THE_WRITE),
        victim(ByBothApis, "five", FROM_THE_MANIFEST),
    ]
    once = [
        victim(WithoutRows, "replay", {1: At("commit returned", 1)}),
        victim(Read, "read", {1: At("flushing", 1)}),
        victim(Control, "control", {1: At("commit returned", 1)}),
    ]
    in_job = victim(InJob, "job", {3: At("flushing", 1)})
    for number in KILLS:
        victims = [*repeatedly, *once, *([in_job] if number == IN_JOB else [])]
        die(victims, number, tmp_path)
    victims = [*repeatedly, *once, in_job]
    with application(victims, KILLS[-1] + 1, tmp_path) as last:
        last.finish()
    for each in victims:
        each.judge()


def die(victims: Sequence[Victim], number: int, folder: Path) -> None:
    """Start the application; when all queries stand where they are to die, SIGKILL it and look."""
    with application(victims, number, folder) as driver:
        driver.reach(lambda: all(victim.is_there(number) for victim in victims))
        driver.kill()
    for victim in victims:
        if number in victim.deaths:
            victim.look(number)


def application(victims: Sequence[Victim], number: int, folder: Path) -> Driver:
    """Start the application for the `number`-th time."""
    config = {
        "settings": {"spark.master": "local[4]"},
        "queries": [victim.config(number) for victim in victims],
    }
    file = folder / f"config-{number}.json"
    file.write_text(json.dumps(config))
    where = [pause for victim in victims if (pause := victim.pause(number))]
    return Driver(
        ["-m", "tests.spark.app", str(file)],
        folder / f"output-{number}",
        {PAUSES: pauses(*where)},
        folder=Path(__file__).parents[2],
    )
